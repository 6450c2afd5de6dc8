package main

import (
	"errors"
	"fmt"
	"maps"
	"path/filepath"
	"slices"
	"strings"

	"github.com/ipwitness/ipwitness/tests/situations/record"
)

const (
	attackPage  = "docs/attacks.md"
	attackTexts = "tests/testdata/attacks"
	attackIntro = `<!-- Made by make generate from the texts of the tests: do not edit. -->

# Attacks, and how they are reported

Each row comes from a test with real frames or real connections. Tests with frames run on TCX and on clsact, and first prove the effect on Linux. The text is what ipwitness printed. [security.md](security.md) says what an attacker cannot do.

`
)

// attack is one attack in the table of docs/attacks.md. Its effect and how ipwitness
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

// attackTable adds the page of attacks.
func (c *catalogue) attackTable() error {
	var faults []error
	var b strings.Builder
	b.WriteString(attackIntro + "| Attack | What it does | What ipwitness says | Proven by |\n|---|---|---|---|\n")
	used := map[string]bool{}
	for _, a := range attacks {
		used[a.id] = true
		text, err := record.Read(filepath.Join(attackTexts, a.id+".txt"))
		if err != nil {
			faults = append(faults, fmt.Errorf("attack %s: %w: run its test with -args -update", a.id, err))
			continue
		}
		values := text.Values
		if c.tests[values["test"]] == "" {
			faults = append(faults, fmt.Errorf("attack %s: there is no test %q", a.id, values["test"]))
		}
		fmt.Fprintf(&b, "| %s | %s | %s | `%s` |\n", a.what, values["effect"], strings.TrimSuffix(text.Text, "\n"), values["test"])
	}
	files, err := filepath.Glob(attackTexts + "/*.txt")
	if err != nil {
		return err
	}
	for _, file := range files {
		if id := strings.TrimSuffix(filepath.Base(file), ".txt"); !used[id] {
			faults = append(faults, fmt.Errorf("%s is the text of no attack in %v", file, slices.Sorted(maps.Keys(used))))
		}
	}
	if len(faults) > 0 {
		return errors.Join(faults...)
	}
	c.pages[attackPage] = b.String()
	return nil
}
