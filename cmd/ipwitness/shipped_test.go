package main

import (
	"os"
	"path/filepath"
	"regexp"
	"testing"

	"github.com/spf13/pflag"
	"go.yaml.in/yaml/v3"

	"github.com/ipwitness/ipwitness/cmd/cli"
)

// TestShippedSettingsAreFlags parses the example settings in the package, including those that are
// commented out.
func TestShippedSettingsAreFlags(t *testing.T) {
	for command, file := range map[string]string{"aggregator": "aggregator.yaml", "run": "ipwitness.yaml"} {
		t.Run(command, func(t *testing.T) {
			text, err := os.ReadFile("../../deploy/systemd/" + file)
			if err != nil {
				t.Fatal(err)
			}
			text = regexp.MustCompile(`(?m)^#([a-z]|  - )`).ReplaceAll(text, []byte("$1"))
			var keys map[string]any
			if err := yaml.Unmarshal(text, &keys); err != nil {
				t.Fatal(err)
			}
			if len(keys) < 3 {
				t.Errorf("got the keys %v, want some", keys)
			}
			path := filepath.Join(t.TempDir(), file)
			if err := os.WriteFile(path, text, 0o600); err != nil {
				t.Fatal(err)
			}
			cmd, _, err := newRoot(system{program: "ipwitness", getenv: os.Getenv}).Find([]string{command})
			if err != nil {
				t.Fatal(err)
			}
			if err := cmd.ParseFlags([]string{"--config", path}); err != nil {
				t.Fatal(err)
			}
			if err := cli.ApplySettings(cmd, func(string) string { return "" }); err != nil {
				t.Error(err)
			}
			cmd.Flags().VisitAll(func(f *pflag.Flag) {
				if f.Changed {
					delete(keys, f.Name)
				}
			})
			if len(keys) != 0 {
				t.Errorf("these are no flags of %s: %v", command, keys)
			}
		})
	}
}
