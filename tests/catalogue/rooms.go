package main

import (
	"fmt"
	"go/build"
	"os"
	"path/filepath"
	"strings"
)

const (
	roomPage  = "CONTRIBUTING.md"
	roomBegin = "<!-- rooms: generated from the comments of the packages by `make generate` -->\n"
	roomEnd   = "<!-- end of rooms -->\n"
	// list has the IPAMs, each of which is a folder and no room.
	list = "ipam/registry/ipam.go"
)

// roomTable adds the page with the table of rooms: the first sentence of each package's comment, up to
// a colon.
func (c *catalogue) roomTable() error {
	ipams, err := os.ReadFile(list)
	if err != nil {
		return err
	}
	var dirs []string
	for _, pattern := range []string{"bpf", "agent", "agent/*", "aggregator", "aggregator/*", "ipam", "ipam/*", "cmd/*", "cmd/*/*", "secure"} {
		found, err := filepath.Glob(pattern)
		if err != nil {
			return err
		}
		dirs = append(dirs, found...)
	}
	var b strings.Builder
	b.WriteString("| Room | |\n|---|---|\n")
	for _, dir := range dirs {
		if strings.HasSuffix(dir, "test") || strings.Contains(dir, "/") && strings.Contains(string(ipams), "/"+dir+`"`) {
			continue
		}
		if sources, _ := filepath.Glob(dir + "/*.go"); len(sources) == 0 {
			continue
		}
		p, err := build.ImportDir(dir, 0)
		if err != nil {
			return err
		}
		words := strings.SplitN(p.Doc, " ", 3) // Package name …
		if len(words) < 3 {
			return fmt.Errorf("package %s has no comment", dir)
		}
		what, _, _ := strings.Cut(words[2], ": ")
		fmt.Fprintf(&b, "| `%s` | %s |\n", dir, strings.TrimSuffix(what, "."))
	}
	page, err := os.ReadFile(roomPage)
	if err != nil {
		return err
	}
	before, rest, begins := strings.Cut(string(page), roomBegin)
	_, after, ends := strings.Cut(rest, roomEnd)
	if !begins || !ends {
		return fmt.Errorf("%s lacks the markers of the table of rooms", roomPage)
	}
	c.pages[roomPage] = before + roomBegin + b.String() + roomEnd + after
	return nil
}
