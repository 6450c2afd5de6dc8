package explain

import (
	"fmt"
	"net/netip"
)

// Past returns the answer about an address at a time in the past: the number of owners that were
// compared with one another, and whether they were in conflict.
func Past(a netip.Addr, owners int, conflict bool) string {
	had := fmt.Sprintf("%s had %d owners at that time", a, owners)
	switch owners {
	case 0:
		had = fmt.Sprintf("No owner of %s is recorded for that time", a)
	case 1:
		had = fmt.Sprintf("%s had one owner at that time", a)
	}
	if conflict {
		return had + ", and was in conflict."
	}
	return had + ", and was not in conflict."
}
