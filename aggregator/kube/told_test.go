package kube

import (
	"errors"
	"log/slog"
	"testing"

	"k8s.io/client-go/rest"
)

// A leader that was paused after it had checked that it leads writes once more, after the exporters of the next
// one have loaded what was told. None of them overwrites that before it has loaded it.
func TestALateWriteOfTheFormerLeaderIsNotOverwritten(t *testing.T) {
	const webhook, otlp = "webhook", "otlp"
	f := newLeaseAPI(t)
	told := func() *Told {
		c, err := openAt(&rest.Config{Host: f.URL}, slog.New(slog.NewTextHandler(t.Output(), nil)), Config{Version: "test", Lease: "default/witness"})
		if err != nil {
			t.Fatal(err)
		}
		c.election.name = "" // both believe that they lead
		return &Told{election: c.election, loaded: make(map[string]int)}
	}
	load := func(by *Told, name, want string) {
		t.Helper()
		if got, err := by.Load(t.Context(), name); err != nil || string(got) != want {
			t.Errorf("%s: got %q, %v, want %q", name, got, err, want)
		}
	}
	save := func(by *Told, name, value string, want error) {
		t.Helper()
		if err := by.Save(t.Context(), name, []byte(value)); !errors.Is(err, want) {
			t.Errorf("%s: got %v from saving %q, want %v", name, err, value, want)
		}
	}
	former, next := told(), told()
	for _, name := range []string{webhook, otlp} {
		load(former, name, "")
	}
	for _, name := range []string{webhook, otlp} {
		save(former, name, "told", nil)
		load(next, name, "told")
	}
	load(next, webhook, "told")
	save(former, otlp, "late", nil)
	save(next, webhook, "mine", errNotLeading)
	load(next, webhook, "told")
	save(next, otlp, "mine", errNotLeading) // it has not loaded what was late
	load(next, otlp, "late")
	save(next, otlp, "mine", nil)
	save(next, webhook, "mine", nil)
	save(former, otlp, "later", errNotLeading)
	load(next, otlp, "mine")
}
