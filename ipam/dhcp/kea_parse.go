package dhcp

import (
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"strconv"
	"strings"
	"time"

	"github.com/ipwitness/ipwitness/ipam"
)

// The values of columns that matter.
const (
	stateLeased  = "0"
	typeAddress  = "0" // not a temporary address or a prefix (IPv6)
	forever      = "4294967295"
	escapedComma = "&#x2c"
)

// A journal is the content of the lease files of one server. Kea appends a line for each change of a
// lease, so that the last line of an address counts.
type journal map[netip.Addr]record

// read reads a lease file. The last line may be incomplete.
func (j journal) read(data []byte) (invalid string, err error) {
	text := string(data)
	text = text[:strings.LastIndex(text, "\n")+1]
	if text == "" {
		return "", nil
	}
	header, rest, _ := strings.Cut(text, "\n")
	columns := map[string]int{}
	for i, name := range strings.Split(header, ",") {
		columns[name] = i
	}
	for _, name := range []string{"address", "valid_lifetime", "expire"} {
		if _, ok := columns[name]; !ok {
			return "", fmt.Errorf("the file has another format: it has no column %q", name)
		}
	}
	for line := range strings.Lines(rest) {
		w := strings.Split(strings.TrimSuffix(line, "\n"), ",")
		column := func(name string) string {
			if i, ok := columns[name]; ok && i < len(w) {
				return strings.ReplaceAll(w[i], escapedComma, ",")
			}
			return ""
		}
		a, errAddress := netip.ParseAddr(column("address"))
		expire, errExpire := strconv.ParseInt(column("expire"), 10, 64)
		if errAddress != nil || errExpire != nil {
			invalid = "a line of the lease file has another format: " + ipam.Shorten(line)
			continue
		}
		if state, kind := column("state"), column("lease_type"); column("valid_lifetime") == "0" || state != "" && state != stateLeased || kind != "" && kind != typeAddress {
			delete(j, a) // released, declined, reclaimed, or not an address
			continue
		}
		r := record{Address: a, Hostname: strings.TrimSuffix(column("hostname"), "."), Expires: time.Unix(expire, 0)}
		if column("valid_lifetime") == forever {
			r.Expires = time.Time{}
		}
		if mac, err := net.ParseMAC(column("hwaddr")); err == nil {
			r.MAC = mac.String()
		}
		r.Client = column("client_id")
		j[a] = r.after(j[a])
	}
	return invalid, nil
}

// A config is what the configuration says.
type config struct {
	leaseFile    string
	database     string // the type of the database; empty for files
	ranges       []ipam.Range
	reservations []record
}

// The format of a configuration.
type (
	global struct {
		Database struct {
			Type, Name string
		} `json:"lease-database"`
		Networks []subnets `json:"shared-networks"`
		subnets
		Reservations []reservation
	}
	subnets struct {
		Subnet4, Subnet6 []struct {
			Pools        []struct{ Pool string }
			Reservations []reservation
		}
	}
	reservation struct {
		MAC       string       `json:"hw-address"`
		Address   string       `json:"ip-address"`
		Addresses []netip.Addr `json:"ip-addresses"`
		Hostname  string
	}
)

// parseConfig parses a configuration.
func parseConfig(data []byte) (c config, err error) {
	var all struct{ Dhcp4, Dhcp6 *global }
	if err := json.Unmarshal(withoutComments(data), &all); err != nil {
		return c, err
	}
	g := all.Dhcp4
	if g == nil {
		g = all.Dhcp6
	}
	if g == nil {
		return c, errors.New("it has neither Dhcp4 nor Dhcp6")
	}
	if t := g.Database.Type; t == "" || t == "memfile" {
		c.leaseFile = g.Database.Name
	} else {
		c.database = t
	}
	c.reserve(g.Reservations)
	for _, n := range append(g.Networks, g.subnets) {
		for _, s := range append(n.Subnet4, n.Subnet6...) {
			c.reserve(s.Reservations)
			for _, p := range s.Pools {
				if r, err := ipam.ParseRange(strings.Join(strings.Fields(p.Pool), ""), "-"); err == nil { // "FIRST - LAST", or a prefix
					c.ranges = append(c.ranges, r)
				}
			}
		}
	}
	return c, nil
}

func (c *config) reserve(all []reservation) {
	for _, r := range all {
		record := record{Hostname: r.Hostname}
		if mac, err := net.ParseMAC(r.MAC); err == nil {
			record.MAC = mac.String()
		}
		if a, err := netip.ParseAddr(r.Address); err == nil {
			r.Addresses = append(r.Addresses, a)
		}
		for _, record.Address = range r.Addresses {
			c.reservations = append(c.reservations, record)
		}
	}
}

// withoutComments returns a configuration without its comments: "//" and "#" to the end of the line,
// and "/* */".
func withoutComments(data []byte) (out []byte) {
	for text := string(data); text != ""; {
		end, found := 0, ""
		quoted := false
		for ; end < len(text) && found == ""; end++ {
			switch {
			case quoted && text[end] == '\\':
				end++
			case text[end] == '"':
				quoted = !quoted
			case quoted:
			case text[end] == '#', strings.HasPrefix(text[end:], "//"):
				found = "\n"
			case strings.HasPrefix(text[end:], "/*"):
				found = "*/"
			}
		}
		if found == "" {
			return append(out, text...)
		}
		out = append(out, text[:end-1]...)
		_, text, _ = strings.Cut(text[end:], found)
		out = append(out, '\n')
	}
	return out
}
