package recording

import "strings"

// Demo is the picture of `make demo` in the README.
var Demo = Picture{
	Title: "Recording of make demo: two pods get one address, and ipwitness reports it",
	Description: "Three pods run. The records of their IPAM, host-local, are deleted. ipwitness reports at once that the addresses are in use without an allocation. " +
		"Three more pods start and get the addresses of the first three: three conflicts are suspected at once and confirmed after one second. " +
		"ipwitness names the owners, the cause and the steps to take. When the older pods are deleted, the conflicts are resolved.",
	Still: func(line string) bool {
		return strings.Contains(line, "CONFIRMED") && strings.Contains(line, "ipam-state-lost")
	},
}
