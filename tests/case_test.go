package tests

import (
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"google.golang.org/protobuf/encoding/protojson"

	ipwitnessv1 "github.com/ipwitness/ipwitness/proto/ipwitness/v1"
)

// TestACaseIsJudgedWithoutAnAggregator runs the commands of docs/troubleshooting.md that collect a
// bug report, and judges the case in the root namespace, outside the lab.
func TestACaseIsJudgedWithoutAnAggregator(t *testing.T) {
	t.Parallel()
	const addr = "10.244.0.7"
	l := newLab(t)
	l.pod("secret-a", addr+"/32")
	l.pod("secret-b", addr+"/32")
	l.watch.await(addr+" to be confirmed", inState(addr, ipwitnessv1.Conflict_CONFIRMED))

	guide, err := os.ReadFile("../docs/troubleshooting.md")
	if err != nil {
		t.Fatal(err)
	}
	_, chapter, _ := strings.Cut(string(guide), "\n## The verdict is wrong\n")
	_, commands, _ := strings.Cut(chapter, "```sh\n")
	commands, _, ok := strings.Cut(commands, "```")
	if !ok {
		t.Fatal("docs/troubleshooting.md has no commands for a wrong verdict")
	}
	work := t.TempDir()
	if err := os.Symlink(binary, filepath.Join(work, "ipwitness")); err != nil {
		t.Fatal(err)
	}
	cmd := l.Command("sh", "-euxc", "cd '"+work+"'\n"+strings.ReplaceAll(commands, "ADDRESS", addr))
	cmd.Env = append(os.Environ(), "PATH="+work+":"+os.Getenv("PATH"))
	if out, err := l.Output(cmd); err != nil {
		t.Fatalf("%v\n%s", err, out)
	}

	file, err := os.ReadFile(filepath.Join(work, "case.json"))
	if err != nil {
		t.Fatal(err)
	}
	if !strings.Contains(string(file), addr) {
		t.Errorf("got\n%s\nwant a case of %s", file, addr)
	}
	judged := &ipwitnessv1.ExplainResponse{}
	if err := protojson.Unmarshal([]byte(output(t, exec.Command(binary, "judge", filepath.Join(work, "case.json"), "-o", "json"))), judged); err != nil {
		t.Fatal(err)
	}
	want := l.explain(addr)
	got, live := judged.GetConflicts(), want.GetConflicts()
	if len(got) != 1 || len(live) != 1 || got[0].GetState() != live[0].GetState() || got[0].GetRule() != live[0].GetRule() ||
		got[0].GetCause() != live[0].GetCause() || len(got[0].GetOwners()) != 2 || got[0].GetScope().GetKind() != live[0].GetScope().GetKind() {
		t.Errorf("got\n%v\nwant the verdict of\n%v", judged, want)
	}
}
