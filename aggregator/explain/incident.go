package explain

import "fmt"

// Incident returns the summary of an incident with several members: its cause, where it is, how many addresses it is about,
// and how many of them have several owners for certain, or seem to have them.
func Incident(cause string, nodes []string, addresses, confirmed, suspected int) string {
	const mostNodes = 3
	where, held := after(" on ", Names(nodes)), ""
	if n := len(nodes); n > mostNodes {
		where = " on " + plural(n, "node", "nodes")
	}
	switch n := confirmed + suspected; {
	case confirmed > 0:
		held = fmt.Sprintf(", %d held twice", n)
	case n > 0:
		held = fmt.Sprintf(", %d perhaps held twice", n)
	}
	return Text("incident", "head", Text("incident/"+cause), "where", where, "addresses", plural(addresses, "address", "addresses"), "held", held)
}
