package tests

import (
	"os"
	"regexp"
	"strings"
	"testing"

	"github.com/ipwitness/ipwitness/tests/wait"
)

// podmanBlock matches a block of podman commands that starts ipwitness.
var podmanBlock = regexp.MustCompile("(?ms)^```\n(podman build --tag ipwitness \\.\n.*?)^```$")

// The container of the README and of docs/install-linux.md observes the host with a real podman, and
// sees namespaces that are made after its start. The image has the program only; TestImage… build the
// one of the Dockerfile.
func TestTheContainerOfTheREADMEObservesTheHost(t *testing.T) {
	t.Parallel()
	possible(t)
	for _, page := range []string{"README.md", "docs/install-linux.md"} {
		t.Run(page, func(t *testing.T) {
			text, err := os.ReadFile("../" + page)
			if err != nil {
				t.Fatal(err)
			}
			block := podmanBlock.FindStringSubmatch(string(text))
			if block == nil {
				t.Fatal("the page starts no container")
			}
			e := newPodmanHost(t)
			e.program.Kill() // the container has the same ports
			wait.Until(t, "the ports to be free", func() bool {
				_, err := e.program.Nodes(t.Context())
				return err != nil
			})
			e.shell("mount --make-rshared /", "rm -r /run/image/*", "cp '"+binary+"' /run/image/ipwitness", "tar -C /run/image -cf /run/image.tar .",
				`podman import --change 'ENTRYPOINT ["/ipwitness"]' /run/image.tar ipwitness`)
			commands := strings.Replace(block[1], "podman build --tag ipwitness .\n", "", 1)
			commands = strings.Replace(commands, "podman run ", "podman run --cgroup-parent "+e.Cgroup()+" ", 1)
			start, queries, _ := strings.Cut(commands, "podman exec ")
			e.shell(start)
			t.Cleanup(func() { e.shell("podman rm --force ipwitness || true") })
			e.pod("later", "10.9.0.7/24")
			var out string
			wait.Until(t, "the container to list the owner and its name", func() bool {
				out, _ = e.Output(e.Command("podman", "exec", "ipwitness", "/ipwitness", "owners", "10.9.0.7"))
				return regexp.MustCompile(`(?m)^10\.9\.0\.7 +(\S+/)?later `).MatchString(out)
			})
			if nodes, err := e.Output(e.Command("podman", "exec", "ipwitness", "/ipwitness", "nodes")); err != nil || !regexp.MustCompile(`LIVE .* (tcx|clsact) `).MatchString(nodes) {
				t.Errorf("got %s (%v), want a node that sees frames", nodes, err)
			}
			e.shell("podman exec " + queries)
		})
	}
}
