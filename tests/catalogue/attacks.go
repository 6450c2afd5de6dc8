package main

import (
	"errors"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
)

const (
	attackPage  = "docs/security.md"
	attackTexts = "tests/testdata/attacks"
	attackBegin = "<!-- attacks: made by make generate from the texts of the tests, do not edit -->\n"
	attackEnd   = "<!-- end of attacks -->\n"
)

// attack is one attack in the table of docs/security.md. Its effect and how ipwitness
// reports it are in the file named after its id, which a test wrote
// (situations.CheckAttack).
type attack struct{ id, what string }

// attacks are in the order of the table.
var attacks = []attack{
	{"arp-reply", "A pod on the same bridge sends an ARP reply to one neighbour only, with its own MAC for another pod's address (arpspoof)"},
	{"arp-other-source", "The same in a frame with a third MAC as Ethernet source"},
	{"arp-hardware-type", "The same with ARP hardware type 6 (IEEE 802), which Linux accepts"},
	{"arp-group-mac", "The same with a multicast MAC as the sender's"},
	{"arp-responder-mac", "The same with ee:ee:ee:ee:ee:ee, with which Calico answers"},
	{"arp-priority-tags", "The same with 300 VLAN tags with VID 0, which Linux strips"},
	{"arp-loopback", "A pod has another one's address on its loopback, and its kernel answers for it"},
	{"arp-victim-mac", "A pod sends a gratuitous ARP with another pod's address and MAC"},
	{"ndp-advertisement", "A pod sends a solicited neighbour advertisement to one neighbour only, with its own MAC for another pod's address"},
	{"ndp-options", "The same behind 150 other options"},
	{"ndp-extensions", "The same behind 150 IPv6 extension headers"},
	{"ndp-group-mac", "The same with a multicast MAC"},
	{"ndp-no-override", "The same without the Override flag, as a proxy does"},
	{"unread-tags", "A pod sends an ARP reply with three VLAN tags: only two are read"},
	{"flood-bindings", "Two pods send new bindings as fast as a core can, more than the agent's table holds"},
	{"stitched-lans", "A machine on the LAN of a node sends one frame with the MAC of a node on another LAN"},
	{"stolen-token-name", "An agent's stolen token reports under the name of another node"},
	{"stolen-token-boot-id", "It reports under its own node's name, with the boot id and network namespace of another node"},
	{"stolen-token-commands", "It reports names, paths and ids with commands for a shell, options and control characters in them"},
	{"stolen-token-memory", "It reports 100,000 bindings to an aggregator that has 64 MiB of memory"},
	{"dripped-requests", "1,024 connections send the body of a request byte by byte"},
	{"rapid-reset", "A connection of HTTP/2 begins calls and resets them (CVE-2023-44487)"},
	{"connections-of-a-caller", "A caller keeps opening gRPC connections"},
	{"watches-unread", "A client keeps opening watches and reads none of them"},
	{"acknowledgements-damaged", "The file of acknowledgements is cut short"},
	{"acknowledgements-fifo", "A FIFO is in its place"},
	{"open-listeners", "Nothing: the aggregator runs without authentication, and other hosts can reach its listeners"},
}

// attackTable writes the table of attacks into its page.
func (c *book) attackTable() error {
	var faults []error
	var b strings.Builder
	b.WriteString("| Attack | What it does | What ipwitness says | Proven by |\n|---|---|---|---|\n")
	used := map[string]bool{}
	for _, a := range attacks {
		used[a.id] = true
		text, err := os.ReadFile(filepath.Join(attackTexts, a.id+".txt"))
		if err != nil {
			faults = append(faults, fmt.Errorf("attack %s: %w: run its test with -args -update", a.id, err))
			continue
		}
		head, seen, _ := strings.Cut(string(text), "\n\n")
		values := map[string]string{}
		for line := range strings.Lines(head) {
			name, value, _ := strings.Cut(strings.TrimSuffix(line, "\n"), ": ")
			values[name] = value
		}
		if c.tests[values["test"]] == "" {
			faults = append(faults, fmt.Errorf("attack %s: there is no test %q", a.id, values["test"]))
		}
		fmt.Fprintf(&b, "| %s | %s | %s | `%s` |\n", a.what, values["effect"], strings.TrimSuffix(seen, "\n"), values["test"])
	}
	files, err := filepath.Glob(attackTexts + "/*.txt")
	if err != nil {
		return err
	}
	for _, file := range files {
		if id := strings.TrimSuffix(filepath.Base(file), ".txt"); !used[id] {
			faults = append(faults, fmt.Errorf("%s belongs to no attack of %v", file, slices.Sorted(maps.Keys(used))))
		}
	}
	page, err := os.ReadFile(attackPage)
	if err != nil {
		return err
	}
	before, rest, begins := strings.Cut(string(page), attackBegin)
	_, after, ends := strings.Cut(rest, attackEnd)
	if !begins || !ends {
		faults = append(faults, fmt.Errorf("%s has no place for attacks", attackPage))
	}
	if len(faults) > 0 {
		return errors.Join(faults...)
	}
	return os.WriteFile(attackPage, []byte(before+attackBegin+b.String()+attackEnd+after), 0o644)
}
