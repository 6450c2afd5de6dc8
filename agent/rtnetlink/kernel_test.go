package rtnetlink

import (
	"context"
	"errors"
	"maps"
	"net"
	"net/netip"
	"os"
	"os/exec"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/vishvananda/netlink"
	"github.com/vishvananda/netns"
	"golang.org/x/sys/unix"
	"kernel.org/pub/linux/libs/security/libcap/cap"

	"github.com/ipwitness/ipwitness/tests/alone"
	"github.com/ipwitness/ipwitness/tests/wait"
)

// must ends the test at the first error.
func must(t *testing.T, errs ...error) {
	t.Helper()
	for _, err := range errs {
		if err != nil {
			t.Fatal(err)
		}
	}
}

// newNamespace returns a new network namespace.
func newNamespace(t *testing.T) netns.NsHandle {
	t.Helper()
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	home, err := netns.Get()
	must(t, err)
	defer func() { _ = home.Close() }()
	ns, err := netns.New()
	must(t, err, netns.Set(home))
	t.Cleanup(func() { _ = ns.Close() })
	return ns
}

func dial(t *testing.T) *Conn {
	t.Helper()
	req, err := Dial()
	must(t, err)
	t.Cleanup(req.Close)
	return req
}

// addLink creates an interface that is up, and returns its index.
func addLink(t *testing.T, l netlink.Link, addrs ...string) int32 {
	t.Helper()
	must(t, netlink.LinkAdd(l), netlink.LinkSetUp(l))
	for _, a := range addrs {
		addr, err := netlink.ParseAddr(a)
		must(t, err)
		addr.Flags |= unix.IFA_F_NODAD
		must(t, netlink.AddrAdd(l, addr))
	}
	return int32(l.Attrs().Index)
}

func attrs(name string) netlink.LinkAttrs {
	a := netlink.NewLinkAttrs()
	a.Name = name
	return a
}

// listed returns addresses without the link-local ones, in order.
func listed(all []Address) string {
	var out []string
	for _, a := range all {
		if !a.Addr.IsLinkLocalUnicast() {
			out = append(out, netip.PrefixFrom(a.Addr, int(a.PrefixLength)).String())
		}
	}
	slices.Sort(out)
	return strings.Join(out, " ")
}

func TestKernelIsReadByNamespaceAndInterface(t *testing.T) {
	alone.Run(t, func() {
		req := dial(t)
		br := addLink(t, &netlink.Bridge{LinkAttrs: attrs("br0")}, "192.0.2.1/24", "2001:db8::1/64")
		other := newNamespace(t)
		veth := &netlink.Veth{LinkAttrs: attrs("v0"), PeerName: "v1", PeerNamespace: netlink.NsFd(other)}
		veth.MasterIndex = int(br)
		port := addLink(t, veth)
		plain := addLink(t, &netlink.Bridge{LinkAttrs: attrs("d0")}, "198.51.100.1/32")

		nsid, assigned, err := req.NSIDOf(int(other))
		must(t, err)
		if assigned || nsid < 0 {
			t.Errorf("nsid of a namespace with a peer: got %d, assigned %v, want the one that the peer has caused", nsid, assigned)
		}
		unrelated := newNamespace(t)
		second, assigned, err := req.NSIDOf(int(unrelated))
		must(t, err)
		if !assigned || second < 0 || second == nsid {
			t.Errorf("nsid of another namespace: got %d, assigned %v, want a new one", second, assigned)
		}
		ids, err := req.NSIDs()
		must(t, err)
		slices.Sort(ids)
		if want := []int32{min(nsid, second), max(nsid, second)}; !slices.Equal(ids, want) {
			t.Errorf("nsids: got %v, want %v", ids, want)
		}
		if _, _, err := req.NSIDOf(0); err == nil {
			t.Error("nsid of a file that is no namespace: got no error")
		}

		links, err := req.Links(NoNSID)
		must(t, err)
		byIndex := map[int32]Link{}
		for _, l := range links {
			byIndex[l.Index] = l
		}
		if len(links) != 4 || len(byIndex) != 4 {
			t.Errorf("links: got %+v, want lo and three more", links)
		}
		for _, l := range links {
			one, err := req.Link(NoNSID, l.Index)
			must(t, err)
			if one.Flags, l.Flags = 0, 0; one != l { // the carrier may come up meanwhile
				t.Errorf("link %d: got %+v, in the list %+v", l.Index, one, l)
			}
		}
		if l := byIndex[br]; l.Name != "br0" || l.Kind != "bridge" || l.LowerNSID != NoNSID {
			t.Errorf("bridge: got %+v", l)
		}
		if l := byIndex[port]; l.Kind != "veth" || l.SlaveKind != "bridge" || l.Master != br || l.LowerNSID != nsid || len(l.MAC) != 6 || l.Flags&unix.IFF_UP == 0 {
			t.Errorf("port: got %+v", l)
		}
		peers, err := req.Links(nsid)
		must(t, err)
		if len(peers) != 2 || peers[1].Name != "v1" || peers[1].Lower != port {
			t.Errorf("links of the other namespace: got %+v, want lo and v1", peers)
		}
		if l, err := req.Link(nsid, peers[1].Index); err != nil || l.Name != "v1" {
			t.Errorf("link of the other namespace: got %+v and error %v, want %+v", l, err, peers[1])
		}

		for index, want := range map[int32]string{
			0: "192.0.2.1/24 198.51.100.1/32 2001:db8::1/64", br: "192.0.2.1/24 2001:db8::1/64", plain: "198.51.100.1/32", port: "", 4711: "",
		} {
			all, err := req.Addresses(NoNSID, index)
			if got := listed(all); err != nil || got != want {
				t.Errorf("addresses of interface %d: got %q and error %v, want %q", index, got, err, want)
			}
		}
		if all, err := req.Addresses(nsid, 0); err != nil || listed(all) != "" {
			t.Errorf("addresses of the other namespace: got %v and error %v, want none", all, err)
		}
		if _, err := req.Link(nsid, 4711); !errors.Is(err, unix.ENODEV) || !strings.Contains(err.Error(), "nsid") {
			t.Errorf("missing link of the other namespace: got error %v, want ENODEV of its nsid", err)
		}
		vlans, err := req.VLANs()
		must(t, err)
		if got := slices.Sorted(maps.Keys(vlans)); !slices.Equal(got, []int32{br, port, plain}) {
			t.Errorf("interfaces with VLANs: got %v, want the bridges and the port", got)
		}

		wantHops := func(addr string, want ...Hop) {
			t.Helper()
			got, err := req.Route(netip.MustParseAddr(addr))
			if err != nil || !slices.Equal(got, want) {
				t.Errorf("route to %s: got %v and error %v, want %v", addr, got, err, want)
			}
		}
		add := func(dst, gateway string, kind int) {
			t.Helper()
			_, network, err := net.ParseCIDR(dst)
			must(t, err)
			must(t, netlink.RouteAdd(&netlink.Route{Dst: network, Gw: net.ParseIP(gateway), Type: kind, LinkIndex: map[bool]int{true: int(br)}[gateway != ""]}))
		}
		wantHops("10.1.0.1")
		wantHops("fd01::1")
		add("10.1.0.0/16", "192.0.2.9", unix.RTN_UNICAST)
		add("fd01::/64", "2001:db8::9", unix.RTN_UNICAST)
		add("10.2.0.0/16", "", unix.RTN_UNREACHABLE)
		wantHops("10.1.0.1", Hop{Index: br, Gateway: netip.MustParseAddr("192.0.2.9")})
		wantHops("fd01::1", Hop{Index: br, Gateway: netip.MustParseAddr("2001:db8::9")})
		wantHops("10.2.0.1")
		_, both, err := net.ParseCIDR("10.3.0.0/16")
		must(t, err)
		must(t, netlink.RouteAdd(&netlink.Route{Dst: both, MultiPath: []*netlink.NexthopInfo{
			{LinkIndex: int(br), Gw: net.ParseIP("192.0.2.8")}, {LinkIndex: int(br), Gw: net.ParseIP("192.0.2.9")},
		}}))
		wantHops("10.3.0.1", Hop{Index: br, Gateway: netip.MustParseAddr("192.0.2.8")}, Hop{Index: br, Gateway: netip.MustParseAddr("192.0.2.9")})
		wantHops("192.0.2.7", Hop{Index: br})
		// Until somebody adds a rule, the kernel looks up the tables local and main as one, and names the latter.
		localTo := func(prefix string, table uint32) Hop {
			return Hop{Index: br, Local: true, Prefix: netip.MustParsePrefix(prefix), Table: table}
		}
		wantHops("192.0.2.1", localTo("192.0.2.1/32", unix.RT_TABLE_MAIN))

		_, alias, err := net.ParseCIDR("192.0.2.64/26")
		must(t, err)
		must(t, netlink.RouteAdd(&netlink.Route{Dst: alias, Type: unix.RTN_LOCAL, Table: unix.RT_TABLE_LOCAL, Scope: netlink.SCOPE_HOST, LinkIndex: int(br)}))
		wantHops("192.0.2.65", localTo("192.0.2.64/26", unix.RT_TABLE_MAIN))
		for _, want := range []string{"192.0.2.64/26", "192.0.2.1/32", "2001:db8::1/128"} {
			wait.Until(t, "local route "+want, func() bool { // that of an IPv6 address comes after duplicate address detection
				local, err := req.LocalRoutes()
				return err == nil && slices.ContainsFunc(local, func(r Route) bool { return r.String() == want })
			})
		}
		wantUplink := func(why string, want int32) {
			if got, err := req.DefaultRoute(); err != nil || got != want {
				t.Errorf("%s: got default interface %d and error %v, want %d", why, got, err, want)
			}
		}
		wantUplink("no default route", 0)
		_, v4, _ := net.ParseCIDR("0.0.0.0/0")
		_, v6, _ := net.ParseCIDR("::/0")
		must(t, netlink.RouteAdd(&netlink.Route{Dst: v4, LinkIndex: int(plain), Scope: netlink.SCOPE_LINK, Table: 100}))
		wantUplink("one in another table", 0)
		must(t, netlink.RouteAdd(&netlink.Route{Dst: v6, LinkIndex: int(br)}))
		wantUplink("one of IPv6", br)
		must(t, netlink.RouteAdd(&netlink.Route{Dst: v4, LinkIndex: int(br), Scope: netlink.SCOPE_LINK, Priority: 200}))
		must(t, netlink.RouteAdd(&netlink.Route{Dst: v4, LinkIndex: int(plain), Scope: netlink.SCOPE_LINK, Priority: 100}))
		wantUplink("two of IPv4", plain)
		for to, protocol := range map[string]netlink.RouteProtocol{"192.0.2.50/32": unix.RTPROT_BOOT, "192.0.2.51/32": unix.RTPROT_STATIC, "192.0.2.52/32": unix.RTPROT_BIRD, "10.4.0.0/16": unix.RTPROT_BOOT} {
			_, dst, err := net.ParseCIDR(to)
			must(t, err)
			must(t, netlink.RouteAdd(&netlink.Route{Dst: dst, Table: 100, Scope: netlink.SCOPE_LINK, LinkIndex: int(br), Protocol: protocol}))
		}
		hosts, err := req.HostRoutes()
		must(t, err)
		var names []string
		for _, r := range hosts {
			if names = append(names, r.String()); r.Index != br || r.Table != 100 {
				t.Errorf("route %s: got interface %d and table %d, want %d and 100", r, r.Index, r.Table, br)
			}
		}
		if want := []string{"192.0.2.50/32", "192.0.2.51/32"}; !slices.Equal(names, want) {
			t.Errorf("routes to hosts: got %v, want %v", names, want)
		}
		for _, mark := range []uint32{0, 1} {
			rule := netlink.NewRule()
			rule.Table, rule.Mark, rule.IifName = 300+int(mark), mark, "br0"
			must(t, netlink.RuleAdd(rule))
		}
		if tables, err := req.UnmarkedTables(); err != nil || !slices.Contains(tables, 300) || slices.Contains(tables, 301) {
			t.Errorf("tables for packets without a mark: got %v and error %v, want 300 and not 301", tables, err)
		}
		if got := req.Settings("br0"); got != (Settings{}) {
			t.Errorf("settings: got %+v, want the defaults", got)
		}
		if filtered, err := req.FiltersARP(); filtered || err != nil {
			t.Errorf("got rules about ARP %t and error %v, want neither", filtered, err)
		}
		if arptables, err := exec.LookPath("arptables"); err == nil { // not each machine has it
			must(t, exec.Command(arptables, "-A", "OUTPUT", "-s", "192.0.2.1", "-j", "DROP").Run())
			if filtered, err := req.FiltersARP(); !filtered || err != nil {
				t.Errorf("got rules about ARP %t and error %v, want that of arptables", filtered, err)
			}
		}
		from, to := netip.MustParseAddr("192.0.2.7"), netip.MustParseAddr("10.1.0.1")
		if hops, err := req.RouteFrom(br, from, to); err != nil || hops != nil {
			t.Errorf("a packet from %s without forwarding: got %v and error %v, want no hop", from, hops, err)
		}
		for file, value := range map[string]string{"ip_forward": "1", "conf/br0/proxy_arp": "1", "conf/br0/proxy_arp_pvlan": "1", "conf/all/arp_ignore": "2", "conf/all/arp_filter": "1", "conf/br0/rp_filter": "0", "conf/all/rp_filter": "0"} {
			must(t, os.WriteFile("/proc/sys/net/ipv4/"+file, []byte(value), 0o600))
		}
		for _, file := range []string{"br0/forwarding", "all/proxy_ndp"} {
			must(t, os.WriteFile("/proc/sys/net/ipv6/conf/"+file, []byte("1"), 0o600))
		}
		if got, want := req.Settings("br0"), (Settings{ARPIgnore: 2, ARPFilter: true, ProxyARP: true, PVLAN: true, ProxyNDP: true}); got != want {
			t.Errorf("settings: got %+v, want %+v", got, want)
		}
		// Strict rp_filter drops a packet whose sender has a route by another interface.
		for _, check := range []struct {
			from   string
			filter string
			want   []Hop
		}{
			{"192.0.2.7", "1", []Hop{localTo("192.0.2.64/26", unix.RT_TABLE_LOCAL)}},
			{"198.51.100.7", "1", nil},
			{"10.1.0.7", "0", []Hop{localTo("192.0.2.64/26", unix.RT_TABLE_LOCAL)}},
		} {
			must(t, os.WriteFile("/proc/sys/net/ipv4/conf/br0/rp_filter", []byte(check.filter), 0o600))
			if hops, err := req.RouteFrom(br, netip.MustParseAddr(check.from), netip.MustParseAddr("192.0.2.65")); err != nil || !slices.Equal(hops, check.want) {
				t.Errorf("a packet from %s, rp_filter %s: got %v and error %v, want %v", check.from, check.filter, hops, err, check.want)
			}
		}
		// The rule for the interface, and not that for marked packets, leads to a table.
		proxied := &netlink.Route{Dst: &net.IPNet{IP: net.IPv4zero, Mask: net.CIDRMask(0, 32)}, Type: unix.RTN_LOCAL, Table: 300, Scope: netlink.SCOPE_HOST, LinkIndex: int(br)}
		must(t, netlink.RouteAdd(proxied))
		if hops, err := req.RouteFrom(br, from, netip.MustParseAddr("203.0.113.9")); err != nil || !slices.Equal(hops, []Hop{localTo("0.0.0.0/0", 300)}) {
			t.Errorf("a packet for which a rule leads to a table: got %v and error %v, want its default route", hops, err)
		}
		must(t, netlink.RouteDel(proxied))
		if hops, err := req.RouteFrom(0, netip.MustParseAddr("192.0.2.65"), to); err != nil || !slices.Equal(hops, []Hop{{Index: br, Gateway: netip.MustParseAddr("192.0.2.9")}}) {
			t.Errorf("a packet of the node itself: got %v and error %v, want the gateway", hops, err)
		}
		want := []Neighbour{{Index: br, Addr: netip.MustParseAddr("198.51.100.9"), Proxied: true}, {Index: br, Addr: netip.MustParseAddr("2001:db8::50"), Proxied: true}}
		for _, p := range want {
			must(t, netlink.NeighAdd(&netlink.Neigh{LinkIndex: int(br), IP: p.Addr.AsSlice(), Flags: netlink.NTF_PROXY}))
		}
		if got, err := req.Proxied(); err != nil || !slices.Equal(got, want) {
			t.Errorf("proxied addresses: got %v and error %v, want %v", got, err, want)
		}
		mac := net.HardwareAddr{2, 0, 0, 0, 0xde, 0xad}
		must(t, netlink.NeighAdd(&netlink.Neigh{LinkIndex: int(port), Family: unix.AF_BRIDGE, State: netlink.NUD_NOARP, Flags: netlink.NTF_MASTER, HardwareAddr: mac}))
		forwarding, err := req.Forwarding()
		must(t, err)
		if !slices.ContainsFunc(forwarding, func(n Neighbour) bool { return n.Index == port && n.Bridge == br && n.MAC == string(mac) }) {
			t.Errorf("forwarding tables: got %v, want %s behind the port", forwarding, mac)
		}
		if hops, err := req.RouteFrom(br, from, to); err != nil || !slices.Equal(hops, []Hop{{Index: br, Gateway: netip.MustParseAddr("192.0.2.9")}}) {
			t.Errorf("a packet from %s: got %v and error %v, want the gateway", from, hops, err)
		}

		own, err := req.OwnNSID()
		must(t, err)
		if own < 0 || own == nsid || own == second {
			t.Errorf("own nsid: got %d, others have %d and %d", own, nsid, second)
		}
		if all, err := req.Addresses(own, br); err != nil || listed(all) != "192.0.2.1/24 2001:db8::1/64" {
			t.Errorf("own addresses by our nsid: got %v and error %v", all, err)
		}

		req.Close()
		if _, err := req.Links(NoNSID); err == nil {
			t.Error("links by a closed socket: got no error")
		}
	})
}

func TestCapabilitiesThatAreMissingAreNamed(t *testing.T) {
	alone.Run(t, func() {
		other := newNamespace(t)
		files := func() int {
			entries, err := os.ReadDir("/proc/self/fd")
			must(t, err)
			return len(entries)
		}
		before := files()
		set := cap.GetProc()
		must(t, set.SetFlag(cap.Effective, false, cap.NET_ADMIN, cap.NET_BROADCAST), set.SetProc())

		req := dial(t)
		if id, assigned, err := req.NSIDOf(int(other)); !errors.Is(err, unix.EPERM) || id != NoNSID || assigned {
			t.Errorf("nsid of another namespace: got %d, assigned %v, and error %v, want EPERM", id, assigned, err)
		}
		if id, err := req.OwnNSID(); !errors.Is(err, unix.EPERM) || !strings.Contains(err.Error(), "CAP_NET_ADMIN") || id != Elsewhere {
			t.Errorf("own nsid: got %d and error %v, want none and the name of the capability", id, err)
		}
		if l, err := Listen(true); !errors.Is(err, unix.EPERM) || !strings.Contains(err.Error(), "CAP_NET_BROADCAST") {
			t.Errorf("listen everywhere: got %v and error %v, want the name of the capability", l, err)
		}
		l, err := Listen(false)
		must(t, err)
		l.Close()
		req.Close()
		if got := files(); got != before {
			t.Errorf("open files: got %d, want %d as before", got, before)
		}

		must(t, set.SetFlag(cap.Effective, true, cap.NET_ADMIN), set.SetProc())
		id, err := dial(t).OwnNSID()
		must(t, err)
		must(t, set.SetFlag(cap.Effective, false, cap.NET_ADMIN), set.SetProc())
		if got, err := dial(t).OwnNSID(); !errors.Is(err, unix.EACCES) || !strings.Contains(err.Error(), "CAP_NET_ADMIN") || !strings.Contains(err.Error(), "nsid "+strconv.Itoa(int(id))+": permission denied") || got != id {
			t.Errorf("own nsid that is assigned: got %d and error %v, want %d, EACCES and what to do", got, err, id)
		}

		// There is no room for sockets.
		must(t, unix.Setrlimit(unix.RLIMIT_NOFILE, &unix.Rlimit{Cur: 0, Max: 0}))
		if _, err := Dial(); !errors.Is(err, unix.EMFILE) {
			t.Errorf("dial without room for files: got error %v, want EMFILE", err)
		}
		if _, err := Listen(false); !errors.Is(err, unix.EMFILE) {
			t.Errorf("listen without room for files: got error %v, want EMFILE", err)
		}
		if _, err := req.OwnNSID(); !errors.Is(err, unix.EMFILE) {
			t.Errorf("own nsid without room for files: got error %v, want EMFILE", err)
		}
	})
}

// heard runs a Listener until the test ends, and passes its messages to the test.
type heard struct {
	t         *testing.T
	messages  chan Message
	lost      chan struct{}
	malformed atomic.Int32
	stop      func() error
}

func hear(t *testing.T, l *Listener) *heard {
	ctx, cancel := context.WithCancel(context.Background())
	h := &heard{t: t, messages: make(chan Message), lost: make(chan struct{})}
	ended := make(chan error, 1)
	go func() {
		ended <- l.Run(ctx,
			func(m *Message) {
				select {
				case h.messages <- *m:
				case <-ctx.Done():
				}
			},
			func() {
				select {
				case h.lost <- struct{}{}:
				case <-ctx.Done():
				}
			},
			func() { h.malformed.Add(1) })
	}()
	h.stop = func() error {
		cancel()
		select {
		case err := <-ended:
			return err
		case <-time.After(wait.Patience()):
			return errors.New("Run does not end with its context")
		}
	}
	return h
}

// await returns the next message for which is is true, and the number of messages before it.
func (h *heard) await(what string, is func(Message) bool) (m Message, before int) {
	h.t.Helper()
	late := time.NewTimer(wait.Patience())
	defer late.Stop()
	for {
		select {
		case m := <-h.messages:
			if is(m) {
				return m, before
			}
			before++
		case <-h.lost:
			h.t.Fatal("messages were lost while waiting for ", what)
		case <-late.C:
			h.t.Fatal("got no message: ", what)
		}
	}
}

func linkNamed(name string) func(Message) bool {
	return func(m Message) bool { return m.Type == unix.RTM_NEWLINK && m.Link.Name == name }
}

func TestChangesOfAllNamespacesAreHeard(t *testing.T) {
	alone.Run(t, func() {
		req := dial(t)
		everywhere, err := Listen(true)
		must(t, err)
		defer everywhere.Close()
		here, err := Listen(false)
		must(t, err)
		defer here.Close()
		all, own := hear(t, everywhere), hear(t, here)

		other := newNamespace(t)
		nsid, _, err := req.NSIDOf(int(other))
		must(t, err)
		is := func(typ uint16) func(Message) bool {
			return func(m Message) bool { return m.Type == typ && m.ID == nsid }
		}
		all.await("new nsid", is(unix.RTM_NEWNSID))
		own.await("new nsid", is(unix.RTM_NEWNSID))
		in, err := netlink.NewHandleAt(other, unix.NETLINK_ROUTE)
		must(t, err)
		defer in.Close()
		d := &netlink.Bridge{LinkAttrs: attrs("inside")}
		must(t, in.LinkAdd(d), in.LinkSetUp(d))
		for _, a := range []string{"192.0.2.1/24", "2001:db8::1/64"} {
			addr, err := netlink.ParseAddr(a)
			must(t, err)
			must(t, in.AddrAdd(d, addr))
			m, _ := all.await("address", func(m Message) bool {
				return m.Type == unix.RTM_NEWADDR && m.Address.Addr.String()+"/"+strings.Split(a, "/")[1] == a
			})
			if m.NSID != nsid || m.Address.Index != int32(d.Index) {
				t.Errorf("message: got %+v, want the address on %d of nsid %d", m, d.Index, nsid)
			}
		}
		must(t, in.LinkDel(d))
		all.await("end of the interface", func(m Message) bool { return m.Type == unix.RTM_DELLINK && m.NSID == nsid && m.Link.Name == "inside" })

		// A process that is not the kernel sends a message to our socket.
		forged := slices.Concat(make([]byte, unix.SizeofIfInfomsg), attribute(unix.IFLA_IFNAME, []byte("forged\x00")...))
		for _, l := range []*Listener{everywhere, here} {
			var to uint32
			must(t, l.rc.Control(func(fd uintptr) {
				sa, err := unix.Getsockname(int(fd))
				must(t, err)
				to = sa.(*unix.SockaddrNetlink).Pid
			}))
			must(t, unix.Sendto(req.fd, message(unix.RTM_NEWLINK, 0, 0, forged...), 0, &unix.SockaddrNetlink{Family: unix.AF_NETLINK, Pid: to}))
		}
		addLink(t, &netlink.Bridge{LinkAttrs: attrs("real")})
		seen := false
		for _, h := range []*heard{all, own} {
			m, _ := h.await("own interface", func(m Message) bool {
				seen = seen || m.Link.Name == "forged"
				return linkNamed("real")(m)
			})
			if m.NSID != NoNSID {
				t.Errorf("own interface: got %+v, want no nsid", m)
			}
		}
		if seen {
			t.Error("a message that is not from the kernel was taken")
		}
		for _, h := range []*heard{all, own} {
			if got := h.malformed.Load(); got != 0 {
				t.Errorf("malformed messages of the kernel: got %d, want none", got)
			}
			must(t, h.stop())
		}

		here.Close()
		if err := here.Run(t.Context(), func(*Message) {}, func() {}, func() {}); err == nil {
			t.Error("run on a closed socket: got no error")
		}
	})
}

func TestOfRoutesOnlyLocalOnesAreHeard(t *testing.T) {
	alone.Run(t, func() {
		l, err := Listen(true)
		must(t, err)
		defer l.Close()
		h := hear(t, l)
		d := &netlink.Bridge{LinkAttrs: attrs("d0")}
		addLink(t, d, "192.0.2.1/24")
		add := func(to string, typ, table int) {
			_, dst, err := net.ParseCIDR(to)
			must(t, err)
			scope := map[bool]netlink.Scope{true: netlink.SCOPE_HOST, false: netlink.SCOPE_LINK}[typ == unix.RTN_LOCAL]
			must(t, netlink.RouteAdd(&netlink.Route{Dst: dst, Type: typ, Table: table, Scope: scope, LinkIndex: d.Index}))
		}
		ofMTU := func(mtu int) func(Message) bool {
			must(t, netlink.LinkSetMTU(d, mtu))
			return func(m Message) bool { return m.Type == unix.RTM_NEWLINK && m.Link.Index == int32(d.Index) }
		}
		h.await("the interface", func(m Message) bool { return m.Type == unix.RTM_NEWADDR && m.Address.Addr.Is4() })
		h.await("the interface again", ofMTU(1400))
		add("10.1.0.0/16", unix.RTN_UNICAST, unix.RT_TABLE_MAIN)
		add("10.2.0.0/16", unix.RTN_UNICAST, 100)
		heard := false
		next := ofMTU(1300)
		h.await("the interface after two routes", func(m Message) bool {
			heard = heard || m.Type == Answering
			return next(m)
		})
		if heard {
			t.Error("a message about a unicast route was heard")
		}
		add("10.2.0.1/32", unix.RTN_UNICAST, 100)
		h.await("the route to a host", func(m Message) bool { return m.Type == Answering && m.NSID == NoNSID })
		add("10.3.0.0/16", unix.RTN_LOCAL, unix.RT_TABLE_LOCAL)
		h.await("the local route", func(m Message) bool { return m.Type == Answering && m.NSID == NoNSID })
		must(t, h.stop())
	})
}

func TestLostMessagesAreReportedOnceAfterTheOldOnesAreRead(t *testing.T) {
	alone.Run(t, func() {
		l, err := Listen(true)
		must(t, err)
		defer l.Close()
		must(t, l.rc.Control(func(fd uintptr) {
			room, err := unix.GetsockoptInt(int(fd), unix.SOL_SOCKET, unix.SO_RCVBUF)
			if must(t, err); room < 16<<20 {
				t.Errorf("buffer of the socket: got %d bytes, want 16 MiB", room)
			}
			must(t, unix.SetsockoptInt(int(fd), unix.SOL_SOCKET, unix.SO_RCVBUFFORCE, 4096))
		}))
		d := &netlink.Bridge{LinkAttrs: attrs("d0")}
		must(t, netlink.LinkAdd(d))
		for range 100 {
			must(t, netlink.LinkSetUp(d), netlink.LinkSetDown(d))
		}
		h := hear(t, l)
		late := time.NewTimer(wait.Patience())
		defer late.Stop()
		select {
		case <-h.lost:
		case m := <-h.messages:
			t.Errorf("got message %+v from before the loss", m)
		case <-late.C:
			t.Fatal("lost messages are not told")
		}
		must(t, netlink.LinkSetUp(d)) // what comes next is heard, and not lost
		h.await("next change", linkNamed("d0"))
		must(t, h.stop())
	})
}

func TestListenerEndsWithItsContext(t *testing.T) {
	alone.Run(t, func() {
		l, err := Listen(false)
		must(t, err)
		defer l.Close()
		h := hear(t, l)
		must(t, netlink.LinkAdd(&netlink.Bridge{LinkAttrs: attrs("br0")})) // which stays down, so that nothing follows
		h.await("new interface", linkNamed("br0"))
		must(t, h.stop())
	})
}
