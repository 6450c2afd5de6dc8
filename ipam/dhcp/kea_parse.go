package dhcp

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"net/netip"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/ipwitness/ipwitness/ipam"
)

// The values of columns that matter.
const (
	stateLeased  = "0"
	stateKept    = "1"          // a client has declined it, and the server leases it to nobody until it expires
	typeAddress  = "0"          // not a temporary address or a prefix (IPv6)
	forever      = "4294967295" // a lifetime (RFC 2131, section 3.3)
	escapedComma = "&#x2c"
)

// A journal is the content of the lease files of one server. Kea appends a line for each change of a
// lease, so that the last line of an address counts.
type journal map[netip.Addr]record

// read reads a lease file. Kea leaves out a line with fewer columns than the first one, too, and empty lines
// (VersionedCSVFile::next). The last line may be incomplete.
func (j journal) read(name string, data []byte, bad *faults) error {
	text := string(data)
	text = text[:strings.LastIndex(text, "\n")+1]
	if text == "" {
		return nil
	}
	header, rest, _ := strings.Cut(text, "\n")
	columns := strings.Split(header, ",")
	for _, column := range []string{"address", "valid_lifetime", "expire"} {
		if !slices.Contains(columns, column) {
			return fmt.Errorf("the file has another format: it has no column %q", column)
		}
	}
	number := 1
	for line := range strings.Lines(rest) {
		number++
		if line = strings.TrimSuffix(line, "\n"); line == "" {
			continue
		}
		w := strings.Split(line, ",")
		column := func(name string) string {
			if i := slices.Index(columns, name); i >= 0 && i < len(w) {
				return strings.ReplaceAll(w[i], escapedComma, ",")
			}
			return ""
		}
		a, errAddress := netip.ParseAddr(column("address"))
		expire, errExpire := strconv.ParseInt(column("expire"), 10, 64)
		_, errLifetime := strconv.ParseUint(column("valid_lifetime"), 10, 32)
		if errAddress != nil || errExpire != nil || errLifetime != nil || len(w) < len(columns) {
			bad.add(fmt.Sprintf("line %d of %s", number, name), ipam.Shorten(line))
			continue
		}
		if state, kind := column("state"), column("lease_type"); column("valid_lifetime") == "0" || state != "" && state != stateLeased && state != stateKept || kind != "" && kind != typeAddress {
			delete(j, a) // released, reclaimed, or not an address
			continue
		}
		r := record{Address: a, Hostname: strings.TrimSuffix(column("hostname"), "."), Expires: time.Unix(expire, 0), Declined: column("state") == stateKept}
		if column("valid_lifetime") == forever {
			r.Expires = time.Time{}
		}
		r.MAC = macOf(column("hwaddr"))
		if r.Client = column("client_id"); column("duid") != "" { // IPv6: each lease is of one identity association of the client
			r.Client = column("duid") + " " + column("iaid")
		}
		j[a] = r.after(j[a])
	}
	return nil
}

type config struct {
	leaseFile    string
	elsewhere    string // where the leases are; empty for files
	ranges       []ipam.Range
	reservations []record
}

// The format of a configuration.
type (
	global struct {
		Database struct {
			Type, Name string
			Persist    *bool
		} `json:"lease-database"`
		Networks []subnets `json:"shared-networks"`
		subnets
		Reservations []reservation
		Unique       *bool `json:"ip-reservations-unique"`
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

// parseConfig parses a configuration. read returns the content of an included file.
func parseConfig(data []byte, read func(path string) ([]byte, error)) (c config, err error) {
	var plain []byte
	if err := plainly(&plain, string(data), read, maxIncluded); err != nil {
		return c, err
	}
	var all struct{ Dhcp4, Dhcp6 *global }
	if err := json.Unmarshal(plain, &all); err != nil {
		return c, err
	}
	g := all.Dhcp4
	if g == nil {
		g = all.Dhcp6
	}
	if g == nil {
		return c, errors.New("it has neither Dhcp4 nor Dhcp6")
	}
	switch d := g.Database; {
	case d.Type != "" && d.Type != "memfile":
		c.elsewhere = "in a database (" + d.Type + ")"
	case d.Persist != nil && !*d.Persist:
		c.elsewhere = "in its memory (persist is false)"
	}
	c.leaseFile = g.Database.Name
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
	if g.Unique != nil && !*g.Unique { // the server leases the address to whichever of the clients asks first
		clients := map[netip.Addr][]string{}
		for _, r := range c.reservations {
			clients[r.Address] = append(clients[r.Address], r.clients)
		}
		for i, r := range c.reservations {
			if all := clients[r.Address]; len(all) > 1 {
				c.reservations[i] = record{Address: r.Address, clients: strings.TrimSpace(strings.Join(all, " "))}
			}
		}
	}
	return c, nil
}

func (c *config) reserve(all []reservation) {
	for _, r := range all {
		record := record{MAC: macOf(strings.TrimPrefix(r.MAC, "0x")), Hostname: r.Hostname}
		record.clients = record.MAC
		if a, err := netip.ParseAddr(r.Address); err == nil {
			r.Addresses = append(r.Addresses, a)
		}
		for _, record.Address = range r.Addresses {
			c.reservations = append(c.reservations, record)
		}
	}
}

// maxIncluded is how deep Kea lets files include others.
const maxIncluded = 10

// plainly appends a configuration as JSON: without its comments ("//" and "#" to the end of the line, and
// "/* */") and extra commas, and with the files that it includes (<?include "PATH"?>).
func plainly(out *[]byte, text string, read func(path string) ([]byte, error), depth int) error {
	afterComma := func() bool {
		*out = bytes.TrimRight(*out, " \t\r\n")
		return bytes.HasSuffix(*out, []byte(","))
	}
	for text != "" {
		token := token.FindStringSubmatch(text)
		text = text[len(token[0]):]
		switch path := token[1]; {
		case path != "" && depth == 0:
			return errors.New("it includes files too deep")
		case path != "":
			data, err := read(path)
			if err == nil {
				err = plainly(out, string(data), read, depth-1)
			}
			if err != nil {
				return err
			}
		case token[0][0] == '#', strings.HasPrefix(token[0], "//"), strings.HasPrefix(token[0], "/*"):
		case token[0] == "," && afterComma():
		default:
			if c := token[0]; (c == "}" || c == "]") && afterComma() {
				*out = (*out)[:len(*out)-1]
			}
			*out = append(*out, token[0]...)
		}
	}
	return nil
}

// token matches a string, a comment, an included file, a byte with a meaning, or anything else.
var token = regexp.MustCompile(`^(?s:"(?:[^"\\]|\\.)*"|#[^\n]*|//[^\n]*|/\*.*?\*/|<\?\s*include\s*"([^"\n]+)"\s*\?>|[^"#/<,\]}]+|.)`)
