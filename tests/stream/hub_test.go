package stream

import (
	"encoding/json"
	"fmt"
	"os"
	"regexp"
	"strings"
	"testing"

	"github.com/nats-io/nats.go/jetstream"
	"google.golang.org/protobuf/proto"

	"github.com/ipwitness/ipwitness/aggregator/stream"
	pb "github.com/ipwitness/ipwitness/proto/ipwitness/v1"
	"github.com/ipwitness/ipwitness/tests/nats"
	"github.com/ipwitness/ipwitness/tests/wait"
)

// mirrorOf returns the configuration of the mirror of a cluster, as docs/export.md describes it for the
// cluster prod. The domain is the name of the cluster.
func mirrorOf(t *testing.T, cluster string) (cfg jetstream.StreamConfig) {
	t.Helper()
	page, err := os.ReadFile("../../docs/export.md")
	if err != nil {
		t.Fatal(err)
	}
	block := regexp.MustCompile("(?s)```json\n(\\{.*?\"mirror\".*?)```").FindSubmatch(page)
	if block == nil {
		t.Fatal("docs/export.md has no configuration of a mirror")
	}
	if err := json.Unmarshal([]byte(strings.ReplaceAll(string(block[1]), "prod", cluster)), &cfg); err != nil {
		t.Fatal(err)
	}
	return cfg
}

// The streams of two clusters are mirrored into a hub through leaf nodes. Each mirror has the same
// messages with the same numbers, also after the hub and a cluster were killed.
func TestAHubMirrorsTheStreamsOfTwoClusters(t *testing.T) {
	if testing.Short() {
		t.Skip("slow, because servers wait before they resume a mirror: run make test-all")
	}
	t.Parallel()
	hub := newLabOf(t, "none", nats.Config{Name: "hub", Domain: "hub", Port: -1, LeafPort: -1})
	url, err := hub.server.Leafnodes(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	var clusters []*lab
	var replicas []*replica
	for _, name := range []string{"west", "east"} {
		l := newLabOf(t, name, nats.Config{Name: name, Domain: name, Port: -1, Hub: url})
		r := l.replica(0)
		r.present("10.0.0.1", "10.0.0.2")
		_, end := r.lead()
		t.Cleanup(end)
		clusters, replicas = append(clusters, l), append(replicas, r)
		js, err := jetstream.NewWithDomain(hub.conn, "hub")
		if err != nil {
			t.Fatal(err)
		}
		if _, err := js.CreateStream(t.Context(), mirrorOf(t, name)); err != nil {
			t.Fatal(err)
		}
	}
	n := 0
	// same waits until each mirror has another change, and then compares all messages.
	same := func() {
		t.Helper()
		n++
		for i, l := range clusters {
			addr := fmt.Sprintf("10.0.%d.%d", i+1, n)
			replicas[i].record(pb.Watch_ADDED, addr)
			wait.Until(t, addr+" in the stream", func() bool { return has(l.messages(), addr) })
			var mirrored []*pb.TransitionBatch
			defer func() {
				if t.Failed() {
					t.Logf("the mirror of %s has %d messages (%v); the hub said:\n%s\nthe cluster said:\n%s", l.cluster, len(mirrored), err, hub.server.Log, l.server.Log)
				}
			}()
			wait.Until(t, addr+" in the mirror", func() bool {
				mirrored, err = nats.Read(t.Context(), hub.conn, "hub", stream.Name(l.cluster))
				return has(mirrored, addr)
			})
			for k, m := range l.messages()[:len(mirrored)] {
				if !proto.Equal(m, mirrored[k]) {
					t.Errorf("got %v as message %d of the mirror of %s, want %v", mirrored[k], k+1, l.cluster, m)
				}
			}
		}
	}
	same()
	hub.server.Kill()
	for i, r := range replicas { // the clusters do not depend on the hub
		addr := fmt.Sprintf("10.0.%d.100", i+1)
		r.record(pb.Watch_ADDED, addr)
		wait.Until(t, addr+" in the stream", func() bool { return has(clusters[i].messages(), addr) })
	}
	if err := hub.server.Start(); err != nil {
		t.Fatal(err)
	}
	same()
	west := clusters[0]
	west.server.Kill()
	replicas[0].record(pb.Watch_ADDED, "10.0.1.101")
	if err := west.server.Restart(west.url); err != nil {
		t.Fatal(err)
	}
	same()
	if !has(west.messages(), "10.0.1.101") {
		t.Error("got no transition that was recorded while NATS was away, want it")
	}
}

// has reports whether a change of an address is in some messages.
func has(all []*pb.TransitionBatch, addr string) bool {
	for _, b := range all {
		for _, one := range b.GetTransitions() {
			if b.GetPart() == pb.TransitionBatch_UNSPECIFIED && one.GetEvent().GetOwner().GetAddress() == addr {
				return true
			}
		}
	}
	return false
}
