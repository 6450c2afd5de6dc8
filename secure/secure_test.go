package secure

import (
	"log/slog"
	"os"
	"path/filepath"
	"testing"

	"github.com/ipwitness/ipwitness/tests/pki"
)

// The kubelet writes new files to a directory and replaces one symbolic link, so that all files
// change at once. A pair of which only half is new, or which has disappeared, is not used.
func TestFilesOfASecretRotate(t *testing.T) {
	dir := t.TempDir()
	turn := func(generation string) {
		t.Helper()
		if err := os.MkdirAll(filepath.Join(dir, generation), 0o700); err != nil {
			t.Fatal(err)
		}
		ca, err := pki.New(filepath.Join(dir, generation), "clients")
		if err == nil {
			_, err = ca.Issue(pki.Want{File: "tls", CommonName: generation, Hosts: []string{"localhost"}})
		}
		if err == nil {
			err = os.Symlink(generation, filepath.Join(dir, "..data_tmp"))
		}
		if err == nil {
			err = os.Rename(filepath.Join(dir, "..data_tmp"), filepath.Join(dir, "..data"))
		}
		if err != nil {
			t.Fatal(err)
		}
	}
	turn("one")
	at := func(name string) string { return filepath.Join(dir, name) }
	for _, name := range []string{"tls.crt", "tls.key", "clients-ca.crt"} {
		if err := os.Symlink(filepath.Join("..data", name), at(name)); err != nil {
			t.Fatal(err)
		}
	}
	config, err := Files{Cert: at("tls.crt"), Key: at("tls.key"), ClientCA: at("clients-ca.crt")}.Server(slog.New(slog.DiscardHandler))
	if err != nil {
		t.Fatal(err)
	}
	want := func(name string) {
		t.Helper()
		now, err := config.GetConfigForClient(nil)
		if err != nil || now.Certificates[0].Leaf.Subject.CommonName != name {
			t.Errorf("got %v and error %v, want the certificate of %s", now.Certificates[0].Leaf.Subject, err, name)
		}
	}
	want("one")
	turn("two")
	want("two")
	// Only half of a pair.
	if err := os.Rename(at("one/tls.key"), at("two/tls.key")); err != nil {
		t.Fatal(err)
	}
	want("two")
	turn("three")
	want("three")
	if err := os.Remove(at("..data")); err != nil {
		t.Fatal(err)
	}
	want("three")
	turn("four")
	want("four")
}
