package share

import (
	"fmt"
	"net/netip"
	"os"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"testing"

	"github.com/nats-io/nkeys"

	"github.com/ipwitness/ipwitness/aggregator/share"
	pb "github.com/ipwitness/ipwitness/proto/ipwitness/v1"
	"github.com/ipwitness/ipwitness/tests/nats"
)

// documented returns the permissions in NATS that docs/reference.md lists for replicas of the cluster a.b, by
// publish and subscribe.
func documented(t *testing.T) map[string][]string {
	t.Helper()
	page, err := os.ReadFile("../../docs/reference.md")
	if err != nil {
		t.Fatal(err)
	}
	_, table, found := strings.Cut(string(page), "The account of a replica needs these permissions in NATS")
	if !found {
		t.Fatal("docs/reference.md has no permissions of replicas")
	}
	table, _, _ = strings.Cut(table, "\n\nThe stream")
	all := make(map[string][]string)
	for _, row := range regexp.MustCompile(`(?m)^\| (publish|subscribe)(?:, to the API of JetStream)? \| (.*) \|$`).FindAllStringSubmatch(table, -1) {
		for _, one := range regexp.MustCompile("`([^`]+)`").FindAllStringSubmatch(row[2], -1) {
			for _, name := range []string{share.LogName("a.b"), "KV_" + share.Bucket} {
				subject := strings.ReplaceAll(one[1], "CLUSTER", "a=2Eb")
				all[row[1]] = append(all[row[1]], strconv.Quote(regexp.MustCompile(`\bS\b`).ReplaceAllLiteralString(subject, name)))
			}
		}
	}
	return all
}

// Replicas need no other permissions than those in docs/reference.md.
func TestTheDocumentedPermissionsOfReplicasSuffice(t *testing.T) {
	bin, err := nats.Binary("../..")
	if err != nil {
		t.Fatal(err)
	}
	key, err := nkeys.CreateUser()
	if err != nil {
		t.Fatal(err)
	}
	public, _ := key.PublicKey()
	seed, _ := key.Seed()
	permissions := documented(t)
	l := &lab{T: t, nkey: filepath.Join(t.TempDir(), "nkey")}
	if err := os.WriteFile(l.nkey, append(seed, '\n'), 0o600); err != nil {
		t.Fatal(err)
	}
	more := fmt.Sprintf("authorization { users: [ { nkey: %s, permissions: { publish: [%s], subscribe: [%s] } } ] }\n", public,
		strings.Join(permissions["publish"], ", "), strings.Join(permissions["subscribe"], ", "))
	w := &world{lab: l}
	port := w.freePort()
	if l.server, err = nats.Start(nil, bin, t.TempDir(), nats.Config{Name: "one", Port: port, More: more}); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(l.server.Kill)
	l.url = fmt.Sprintf("nats://127.0.0.1:%d", port)
	a, b := l.join("a"), l.join("b")
	l.wantShared("two", a, b)
	one := owner(netip.MustParseAddr("10.0.0.1"), "n1")
	learns(one, a, b)
	wantOwners(t, "what the holder says", "10.0.0.1 on n1", a, b)
	if err := a.Ask(t.Context(), "b", "a method", new(pb.ListOwnersRequest), func([]byte) error { return nil }); err != nil {
		t.Errorf("one asks the other: got %v, want an answer", err)
	}
	dir := t.TempDir()
	for range 2 { // it gets the state of the others, and then it goes on with what it has
		c := l.joinIn("c", dir)
		c.mu.Lock()
		c.knows[one.ID] = one
		c.mu.Unlock()
		l.wantShared("three", a, b, c)
		wantOwners(t, "at all", "10.0.0.1 on n1", a, b, c)
		c.stop()
		l.wantShared("one has stopped", a, b)
	}
	if log := l.server.Log.String(); strings.Contains(log, "Permissions Violation") {
		t.Errorf("the server refuses something:\n%s", log)
	}
}
