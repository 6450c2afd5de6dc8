package main

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// part is a line of a backup, with data in base64.
func part(name, data string) string {
	return `{"result":{"name":"` + name + `","data":"` + data + `"}}` + "\n"
}

// A directory gets its name only when the whole backup is in it. Nothing is left of another one.
func TestOnlyACompleteBackupGetsItsName(t *testing.T) {
	whole := part("acknowledgements.json", "e30=") + part("journal/1.sst", "YWI=") + part("journal/1.sst", "Yw==") + part("empty", "")
	for name, one := range map[string]struct {
		try  try
		want string // in the error; empty for none
	}{
		"complete":      {try{status: 200, body: whole + `{"result":{"files":3}}` + "\n"}, ""},
		"broken off":    {try{status: 200, body: whole}, "closed the connection"},
		"in a line":     {try{status: 200, body: whole + `{"result":{"na`}, "closed the connection"},
		"files missing": {try{status: 200, body: whole + `{"result":{"files":4}}` + "\n"}, "3 of 4 files"},
		"failed":        {try{status: 200, body: whole + `{"error":{"code":8,"message":"the data directory is full"}}` + "\n"}, "the data directory is full"},
		"refused":       {try{status: 403, body: `{"code":7,"message":"reader may not get backups"}`}, "reader may not get backups"},
		"none":          {try{status: 400, body: `{"error":{"code":9,"message":"there is nothing to back up"}}`}, "there is nothing to back up"},
		"outside":       {try{status: 200, body: part("../outside", "YWI=") + `{"result":{"files":1}}` + "\n"}, "outside of the backup"},
		"absolute":      {try{status: 200, body: part("/outside", "YWI=") + `{"result":{"files":1}}` + "\n"}, "outside of the backup"},
		"twice":         {try{status: 200, body: part("a", "YWI=") + part("b", "") + part("a", "YWI=")}, "exists"},
	} {
		t.Run(name, func(t *testing.T) {
			parent := t.TempDir()
			dir := filepath.Join(parent, "backup")
			c := newConsole()
			c.transport = &script{tries: []try{one.try}}
			code := execute(t.Context(), c.system, []string{"backup", dir})
			entries, err := os.ReadDir(parent)
			if err != nil {
				t.Fatal(err)
			}
			if one.want != "" {
				if code != 1 || !strings.Contains(c.stderr.String(), one.want) || len(entries) != 0 {
					t.Errorf("got exit code %d, %q and the files %v, want 1, %q and none", code, c.stderr.String(), entries, one.want)
				}
				return
			}
			if code != 0 || len(entries) != 1 || !strings.Contains(c.stdout.String(), "3 files, 5 bytes") {
				t.Errorf("got exit code %d, %q, %q and %v", code, c.stdout.String(), c.stderr.String(), entries)
			}
			for name, want := range map[string]string{"acknowledgements.json": "{}", "journal/1.sst": "abc", "empty": ""} {
				if got, err := os.ReadFile(filepath.Join(dir, name)); err != nil || string(got) != want {
					t.Errorf("got %q and %v in %s, want %q", got, err, name, want)
				}
			}
		})
	}
}

func TestABackupReplacesNothing(t *testing.T) {
	full := t.TempDir()
	file := filepath.Join(full, "file")
	if err := os.WriteFile(file, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	for dir, want := range map[string]string{full: "directory not empty", file: "not a directory", filepath.Join(full, "none", "backup"): "no such file"} {
		c := newConsole()
		c.transport = &script{tries: []try{{status: 200, body: `{"result":{"files":0}}` + "\n"}}}
		if code := execute(t.Context(), c.system, []string{"backup", dir}); code != 1 || !strings.Contains(c.stderr.String(), want) {
			t.Errorf("got exit code %d and %q for %s, want 1 and %q", code, c.stderr.String(), dir, want)
		}
	}
}
