// Package explain turns judgements and findings into text: names, summaries, reasons, evidence,
// diagnoses, advice and repair commands. The text of each kind of fact, rule, exclusion and ending
// is in one place here, and testdata contains all of it.
//
// The package makes no decisions, runs nothing, reads no clock and accesses no store. Its input is
// typed values, and every sentence is derived from them alone.
package explain

import (
	"fmt"
	"strings"
	"time"

	"github.com/ipwitness/ipwitness/aggregator/verdict"
	"github.com/ipwitness/ipwitness/ipam/advice"
)

// NamespaceName returns a readable name of a network namespace.
func NamespaceName(ns *verdict.Namespace) string { return workloadName(ns, ns.Who.Workload()) }

// OwnerName returns a readable name of an owner, without its place.
func OwnerName(o *verdict.Owner) string {
	if o.Namespace == nil {
		return "the device with MAC " + o.Claims[0].MAC.String()
	}
	return workloadName(o.Namespace, o.Workload())
}

// workloadName returns the name of a workload in a namespace.
func workloadName(ns *verdict.Namespace, w verdict.Workload) string {
	if w.OnlyNetns() {
		return "network namespace " + w.Name
	}
	switch w.Kind {
	case verdict.Pod:
		if w.Name == "" {
			return "pod with uid " + w.UID
		}
		return "pod " + w.Namespace + "/" + w.Name
	case verdict.Container:
		if w.Name != "" {
			return "container " + w.Name
		}
		return "container " + advice.ShortID(w.ContainerID)
	case verdict.VM:
		return "virtual machine " + w.Name
	case verdict.Host:
		return "node " + ns.Node.Name + " itself"
	}
	switch {
	case w.Name != "":
		return "network namespace " + w.Name
	case w.ContainerID != "":
		return "container " + advice.ShortID(w.ContainerID)
	case w.Process != "":
		return "process " + w.Process
	case ns.Netns != "":
		return "network namespace " + ns.Netns
	}
	return fmt.Sprintf("network namespace #%d of node %s", ns.Record, ns.Node.Name)
}

// placed returns the name of an owner and its location.
func placed(o *verdict.Owner) string {
	name := OwnerName(o)
	switch {
	case o.Namespace == nil:
		return fmt.Sprintf("%s (seen on %s)", name, witness(o.Claims[0]))
	case o.Interface.Namespace.ID != o.ID:
		return fmt.Sprintf("%s (behind %s of node %s)", name, o.Interface.Name, o.Node.Name)
	case o.Kind() == verdict.Host:
		return fmt.Sprintf("%s (%s)", name, o.Interface.Name)
	}
	if p := o.Pod; p != nil && p.Controller != "" {
		return fmt.Sprintf("%s of %s %s (%s, node %s)", name, p.ControllerKind, p.Controller, o.Interface.Name, o.Node.Name)
	}
	return fmt.Sprintf("%s (%s, node %s)", name, o.Interface.Name, o.Node.Name)
}

// netnsName returns the name of an owner's network namespace, which distinguishes several namespaces of
// one container.
func netnsName(o *verdict.Owner) string {
	if o.Namespace.Netns == "" {
		return fmt.Sprintf("network namespace #%d", o.Namespace.Record)
	}
	return "network namespace " + o.Namespace.Netns
}

// placedNetns returns the name of an owner's network namespace and its location.
func placedNetns(o *verdict.Owner) string {
	return fmt.Sprintf("%s (%s, node %s)", netnsName(o), o.Interface.Name, o.Node.Name)
}

// witness returns the interface that a claim was seen on, as NODE/INTERFACE.
func witness(c *verdict.Claim) string { return c.Node().Name + "/" + c.Interface.Name }

// mostListed is the number of names that a list contains at most; it counts the others.
const mostListed = 6

// list joins names for use in a sentence.
func list(names []string) string {
	switch n := len(names); n {
	case 0:
		return "none"
	case 1:
		return names[0]
	default:
		if n > mostListed {
			return fmt.Sprintf("%s and %d more", strings.Join(names[:mostListed-1], ", "), n-mostListed+1)
		}
		return strings.Join(names[:n-1], ", ") + " and " + names[n-1]
	}
}

// each applies word to each item.
func each[T any](items []T, word func(*T) string) []string {
	words := make([]string, 0, len(items))
	for i := range items {
		words = append(words, word(&items[i]))
	}
	return words
}

// capital returns s with its first letter in upper case.
func capital(s string) string {
	if s == "" || s[0] < 'a' || s[0] > 'z' {
		return s
	}
	return string(s[0]-'a'+'A') + s[1:]
}

// after prepends words to a text that is not empty.
func after(words, text string) string {
	if text == "" {
		return ""
	}
	return words + text
}

// linkName returns the name of a link; it is empty for nil.
func linkName(l *verdict.Link) string {
	if l == nil {
		return ""
	}
	return l.Name
}

// stampText formats a time for use in a sentence.
func stampText(s verdict.Stamp) string { return s.Time().Format("2006-01-02 15:04:05 MST") }

// secondsText formats a number of seconds for use in a sentence.
func secondsText(seconds float64) string {
	const most = float64(1<<63-1) / float64(time.Second)
	d := time.Duration(min(seconds, most) * float64(time.Second))
	switch {
	case d < time.Minute:
		return fmt.Sprintf("%d s", d/time.Second)
	case d < 2*time.Hour:
		return fmt.Sprintf("%d min", d/time.Minute)
	case d < 48*time.Hour:
		return fmt.Sprintf("%d hours", d/time.Hour)
	}
	return fmt.Sprintf("%d days", d/(24*time.Hour))
}

// plural returns a number followed by its noun.
func plural[N ~uint32 | ~uint64 | ~int](n N, one, many string) string {
	if n == 1 {
		return "1 " + one
	}
	return fmt.Sprintf("%d %s", n, many)
}

// isAre returns "is" for one thing and "are" for several.
func isAre[N ~uint64 | ~int](n N) string {
	if n == 1 {
		return "is"
	}
	return "are"
}

// runbooks is the URL prefix of the runbook pages.
const runbooks = "https://github.com/ipwitness/ipwitness/blob/main/docs/runbooks/"

// Runbook returns the URL of the page about a cause or a kind of finding.
func Runbook(name string) string { return runbooks + name + ".md" }
