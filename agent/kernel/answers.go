package kernel

import (
	"context"
	"encoding/binary"
	"maps"
	"net/netip"
	"slices"
	"strings"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"github.com/ipwitness/ipwitness/agent/rtnetlink"
	"github.com/ipwitness/ipwitness/agent/table"
	ipwitnessv1 "github.com/ipwitness/ipwitness/proto/ipwitness/v1"
)

// Linux answers ARP requests for any address that its routing tables call local, on any interface, and with
// proxy_arp for any that they send elsewhere (arp_process in net/ipv4/arp.c). It takes packets for local ones
// itself, even if a pod or another host has the address.
const (
	// answersEvery is how often the answers are determined again without a message of the kernel, which
	// reports neither arp_ignore nor, to us, unicast routes. It is longer if it takes long to determine them,
	// so that this takes 0.05 % of the time on a quiet node, and 1 % on any other, where it waits answersEvery at most: on a
	// busy node the time passes without that anything is computed.
	answersEvery, quietShare = 10 * time.Second, 2000
	// answersAfter is how long further changes are awaited.
	answersAfter, busyShare = 200 * time.Millisecond, 100
	// mostAnswers limits the addresses that a route or a proxy covers.
	mostAnswers = 1024
	// mostRouted limits the addresses of a local route in the subnet of a LAN that are asked for before a frame shows them.
	mostRouted = 16
	// mostNeighbours limits the known neighbours of an interface that are tried as senders of a request.
	mostNeighbours = 4
)

// answers are the addresses that the node answers for on links on which it does not have them.
type answers struct {
	changed   chan struct{}                  // holds one token while the answers must be determined again
	published map[table.ClaimKey]table.Claim // what makes the node answer, without times
	own       map[netip.Addr][]*link         // addresses of our own namespace
	routes    []rtnetlink.Route              // local routes that are not those of addresses
	unmarked  []uint32                       // tables that are looked up for packets without a mark, if one has a local default route
	hosts     []rtnetlink.Route              // routes to single addresses, if an interface on a LAN answers for others
	proxies   bool                           // an interface answers for others
	proxied   []rtnetlink.Neighbour          // the addresses for which one answers as a proxy
}

// An answerer is an interface of our own namespace that receives ARP requests, or packets for its link.
type answerer struct {
	*link
	rtnetlink.Settings
	outside bool         // frames from outside of the node enter its link
	askers  []netip.Addr // IPv4 addresses from which requests may come there; nil if they were not needed yet
}

// FollowAnswers keeps the answers up to date until ctx ends.
func (k *Mirror) FollowAnswers(ctx context.Context) error {
	var took time.Duration
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-k.answers.changed:
		case <-time.After(max(answersEvery, quietShare*took)):
		}
		select {
		case <-ctx.Done():
			return nil
		case <-time.After(max(answersAfter, min(busyShare*took, answersEvery))):
		}
		k.mu.Lock()
		k.table.Update(func() {
			began := time.Now() // of the wait for the locks, nothing counts
			k.answer(began)
			took = time.Since(began)
		})
		k.mu.Unlock()
	}
}

// answer determines the answers and publishes claims to their addresses. What cannot be listed counts as it was before.
func (k *Mirror) answer(now time.Time) {
	a := &k.answers
	routes, err := k.req.LocalRoutes()
	if err != nil {
		k.log.Debug("cannot list local routes", "error", err)
		return
	}
	if proxied, err := k.req.Proxied(); err != nil {
		k.log.Debug("cannot list proxied addresses", "error", err)
	} else {
		a.proxied = proxied
	}
	filter := ipwitnessv1.ClaimRecord_FILTER_UNSPECIFIED
	switch filtered, err := k.req.FiltersARP(); {
	case err != nil:
		k.log.Debug("cannot tell whether a packet filter drops answers", "error", err)
		filter = ipwitnessv1.ClaimRecord_UNREADABLE
	case filtered:
		filter = ipwitnessv1.ClaimRecord_RULES
	}
	a.own = map[netip.Addr][]*link{}
	macs := k.ownMACs()
	for _, l := range k.own.links {
		for addr := range l.addrs {
			a.own[addr] = append(a.own[addr], l)
		}
	}
	// The table of a default route is usually looked up for marked packets only (TPROXY).
	if slices.ContainsFunc(routes, func(r rtnetlink.Route) bool { return r.Bits() == 0 }) {
		if unmarked, err := k.req.UnmarkedTables(); err != nil {
			k.log.Debug("cannot list rules", "error", err)
		} else {
			a.unmarked = unmarked
		}
	}
	a.routes = slices.DeleteFunc(routes, func(r rtnetlink.Route) bool {
		return r.Bits() == 0 && !slices.Contains(a.unmarked, r.Table) || r.Addr().IsLoopback() || r.IsSingleIP() && a.own[r.Addr()] != nil
	})
	answerers := k.answerers()
	pvlan := map[*link]bool{}
	for _, all := range answerers {
		for _, at := range all {
			pvlan[at.link] = at.PVLAN
		}
	}
	for _, l := range k.own.links {
		if l.pvlan != pvlan[l] {
			l.pvlan = pvlan[l]
			k.publishRecord(k.own, l, now)
		}
	}
	if len(a.proxied) == 0 && !slices.ContainsFunc(slices.Collect(maps.Values(answerers)), answersForHosts) {
		a.hosts = nil
	} else if hosts, err := k.req.HostRoutes(); err != nil {
		k.log.Debug("cannot list routes to hosts", "error", err)
	} else {
		a.hosts = hosts
	}

	want, asked := map[table.ClaimKey]table.Claim{}, map[table.ClaimKey]bool{}
	// Children without ARP, such as ipvlan in mode l3s, cannot answer for their addresses: the node does so in their place.
	type onLink struct {
		addr   netip.Addr
		domain string
	}
	mute := map[onLink]bool{}
	for host, ends := range k.attached {
		for l := range ends {
			if own := k.own.links[host]; own != nil && isChild(l.Kind) && l.Flags&unix.IFF_NOARP != 0 {
				for addr := range l.addrs {
					mute[onLink{addr, k.domainOf(own).name}] = true
				}
			}
		}
	}
	ask := func(addr netip.Addr, domain string) {
		if mute[onLink{addr, domain}] {
			return
		}
		for _, at := range answerers[domain] {
			key := table.ClaimKey{Address: addr, Kind: ipwitnessv1.Evidence_WOULD_ANSWER, At: table.InterfaceKey{Namespace: table.OwnNamespace, Index: at.Index}}
			if _, known := a.published[key]; asked[key] || !known && len(asked) >= mostAnswers {
				continue
			}
			asked[key] = true
			if c := k.answersFor(addr, at, domain); c.Answer != 0 {
				if at.outside && addr.Is4() {
					c.Filter = filter
				}
				want[key] = c
			}
		}
	}
	// Addresses that others have on a link of the node.
	for host, ends := range k.attached {
		for l, ns := range ends {
			if own := k.own.links[host]; own != nil && ns != k.own {
				for addr := range l.addrs {
					if k.mayAnswer(addr) {
						ask(addr, k.domainOf(own).name)
					}
				}
			}
		}
	}
	for _, port := range k.table.WirePorts() {
		for key, c := range k.table.WireClaims(port) {
			leaked := key.Kind == ipwitnessv1.Evidence_USED && a.onBridgesOnly(key.Address, answerers[c.Link])
			if !macs[key.MAC] && k.mayAnswer(key.Address) && !leaked {
				ask(key.Address, c.Link)
			}
		}
	}
	// Addresses that it has an entry for, even if no frame has shown an owner.
	for _, p := range a.proxied {
		for domain, all := range answerers {
			if usable(p.Addr) && slices.ContainsFunc(all, func(at *answerer) bool { return at.Index == p.Index }) {
				ask(p.Addr, domain)
			}
		}
	}
	// Addresses of hosts behind the node, even if no frame has shown an owner: the host may be on another node now.
	for domain, all := range answerers {
		for _, r := range a.hosts {
			if r.Addr().Is4() && usable(r.Addr()) && answersForHosts(all) {
				ask(r.Addr(), domain)
			}
		}
	}
	// Addresses in the subnet of a LAN, or of a loopback or dummy device, even if no frame has shown an owner there.
	for domain, all := range answerers {
		if !all[0].outside {
			continue
		}
		contains := func(addr netip.Addr) bool {
			return slices.ContainsFunc(all, func(at *answerer) bool { return at.contains(addr) })
		}
		for addr, devices := range a.own {
			if addr.Is4() && usable(addr) && (contains(addr) || !slices.ContainsFunc(devices, isNotVirtual)) {
				ask(addr, domain)
			}
		}
		for _, r := range a.routes {
			for addr := r.Addr(); addr.Is4() && 1<<(32-r.Bits()) <= mostRouted && r.Contains(addr); addr = addr.Next() {
				if contains(addr) {
					ask(addr, domain)
				}
			}
		}
	}

	suppressing := map[int32]bool{} // bridges
	for _, l := range k.own.links {
		if l.Suppress {
			suppressing[l.Master] = true
		}
	}
	forwarding := sync.OnceValues(k.req.Forwarding) // of all bridges
	for _, l := range k.own.links {
		over := l.Index
		if l.Kind == "vlan" {
			over = l.Lower
		}
		if (l.Proxy || suppressing[over]) && l.Up() {
			k.answersFromTable(l, forwarding, want)
		}
	}

	for key, c := range want {
		if a.published[key] != c {
			a.published[key] = c
			c.First, c.Last, c.Count = now, now, 1
			k.table.Add(key, c, now)
		}
	}
	k.dropAnswers(func(key table.ClaimKey) bool { return want[key].Answer == 0 }, now)
}

// answersFromTable adds what a VXLAN device, or a bridge with a port with NEIGH_SUPPRESS, answers from its table of neighbours in
// place of namespaces of the node that have the address on its link, but another MAC. A bridge, or a VLAN device on one, answers
// if its forwarding table has the neighbour's MAC behind such a port (br_do_proxy_suppress_arp in
// net/bridge/br_arp_nd_proxy.c). forwarding returns these tables.
func (k *Mirror) answersFromTable(l *link, forwarding func() ([]rtnetlink.Neighbour, error), want map[table.ClaimKey]table.Claim) {
	entries, err := k.req.Neighbours(l.Index)
	var forwarded []rtnetlink.Neighbour
	if !l.Proxy && err == nil && len(entries) > 0 {
		forwarded, err = forwarding()
	}
	if err != nil {
		k.log.Debug("cannot list neighbours", "interface", l.Name, "error", err)
		for key, c := range k.answers.published {
			if key.At.Index == l.Index && c.Answer == ipwitnessv1.ClaimRecord_NEIGHBOUR {
				want[key] = c
			}
		}
		return
	}
	if len(entries) == 0 {
		return
	}
	domain := k.domainOf(l).name
	there := map[netip.Addr][]string{} // the MACs of those that have an address on the link
	for host, ends := range k.attached {
		for end := range ends {
			if own := k.own.links[host]; own != nil && k.domainOf(own).name == domain {
				for addr := range end.addrs {
					there[addr] = append(there[addr], end.MAC)
				}
			}
		}
	}
	behind := map[string]bool{} // the MACs behind ports with NEIGH_SUPPRESS
	for _, e := range forwarded {
		if port := k.own.links[e.Index]; port != nil && port.Suppress && (e.Bridge == l.Index || e.Bridge == l.Lower) {
			behind[e.MAC] = true
		}
	}
	for _, e := range entries {
		answers := l.Proxy && e.Connected || e.Valid && behind[e.MAC]
		if macs := there[e.Addr]; answers && usable(e.Addr) && len(macs) > 0 && !slices.Contains(macs, e.MAC) {
			key := table.ClaimKey{Address: e.Addr, Kind: ipwitnessv1.Evidence_WOULD_ANSWER, At: table.InterfaceKey{Namespace: table.OwnNamespace, Index: l.Index}}
			want[key] = table.Claim{Network: table.Network{Name: l.Name}, Answer: ipwitnessv1.ClaimRecord_NEIGHBOUR}
		}
	}
}

// dropAnswers ends answers.
func (k *Mirror) dropAnswers(match func(table.ClaimKey) bool, now time.Time) {
	for key := range k.answers.published {
		if match(key) {
			delete(k.answers.published, key)
			k.table.RemoveClaim(key, now)
		}
	}
}

// mayAnswer reports whether the node may answer for an address on a link on which it does not have it.
func (k *Mirror) mayAnswer(addr netip.Addr) bool {
	a := &k.answers
	return usable(addr) && (a.own[addr] != nil || a.proxies && addr.Is4() ||
		slices.ContainsFunc(a.proxied, func(p rtnetlink.Neighbour) bool { return p.Addr == addr }) ||
		slices.ContainsFunc(a.routes, func(r rtnetlink.Route) bool { return r.Contains(addr) }))
}

// answerers returns the interfaces that may answer, by the name of their link.
func (k *Mirror) answerers() map[string][]*answerer {
	k.answers.proxies = false
	outside := map[*link]bool{}
	for _, l := range k.own.links {
		if l.published.GetUplink() {
			outside[k.domainOf(l).base] = true
		}
	}
	out := map[string][]*answerer{}
	for _, l := range k.own.links {
		d := k.domainOf(l)
		at := &answerer{link: l, outside: outside[d.base]}
		switch {
		case !l.Up() || isLocal(l) || l.ARPHRD != unix.ARPHRD_ETHER || l.Master != 0 && (k.vrfOf(l) == "" || !at.outside):
			continue // a port, or in a VRF, whose tables are looked up for packets from outside only
		case d.kind == ipwitnessv1.LinkRecord_OVS_PORT, d.kind == ipwitnessv1.LinkRecord_BRIDGE && !at.outside && !k.routes(d):
			continue
		case d.kind != ipwitnessv1.LinkRecord_POINT_TO_POINT: // else the only one who asks is the one who has the address
			at.Settings = k.req.Settings(l.Name)
		}
		k.answers.proxies = k.answers.proxies || at.ProxyARP
		out[d.name] = append(out[d.name], at)
	}
	return out
}

// onBridgesOnly reports whether only bridges of the node have an address, and none of some interfaces has a subnet with it. Any
// host may have such an address on a bridge of its own, as each one with Docker has 172.17.0.1, and use it on a LAN by mistake.
func (a *answers) onBridgesOnly(addr netip.Addr, answerers []*answerer) bool {
	return len(a.own[addr]) > 0 && !slices.ContainsFunc(a.own[addr], func(l *link) bool { return l.Kind != "bridge" }) &&
		!slices.ContainsFunc(answerers, func(at *answerer) bool { return at.contains(addr) })
}

// isNotVirtual reports whether an interface is no loopback or dummy device, or is one on which kube-proxy (kube-ipvs0) or
// kube-router (kube-dummy-if) has the addresses of all Services.
func isNotVirtual(l *link) bool { return !isLocal(l) || strings.HasPrefix(l.Name, "kube-") }

// answersForHosts reports whether interfaces on one link answer on a LAN for others.
func answersForHosts(all []*answerer) bool {
	return all[0].outside && slices.ContainsFunc(all, func(at *answerer) bool { return at.ProxyARP })
}

// contains reports whether an address is in a subnet of an interface.
func (l *link) contains(addr netip.Addr) bool {
	for own, entries := range l.addrs {
		for _, a := range entries {
			if p := netip.PrefixFrom(own, int(a.PrefixLength)); !p.IsSingleIP() && p.Contains(addr) {
				return true
			}
		}
	}
	return false
}

// answersFor returns what makes the node answer for an address on an interface, or take packets from there for
// it, as a claim without times; the zero Claim if it does not, or has the address on that link.
func (k *Mirror) answersFor(addr netip.Addr, at *answerer, domain string) (no table.Claim) {
	if slices.ContainsFunc(k.answers.own[addr], func(l *link) bool {
		return k.domainOf(l).name == domain && (!at.outside || addr.Is6() || !isWithoutARP(l))
	}) {
		return no
	}
	proxied := slices.ContainsFunc(k.answers.proxied, func(p rtnetlink.Neighbour) bool {
		return p.Addr == addr && (p.Index == at.Index || p.Index == 0)
	})
	switch {
	case addr.Is6() && proxied && at.ProxyNDP: // ndisc_recv_ns asks for no route, other than arp_process
		return k.answersAsProxy(addr, ipwitnessv1.ClaimRecord_PROXY_ENTRY, k.hops(addr))
	case addr.Is6() && at.outside: // the kernel answers solicitations only on the interface that has the address
		return no
	case addr.Is4() && at.outside && at.Flags&unix.IFF_NOARP != 0: // arp_rcv drops requests; ndisc_rcv does not
		return no
	case !at.outside && !at.ProxyARP && !proxied:
		return k.answersTo(addr, addr, at, k.hops(addr), proxied)
	case addr.Is6():
		hops, _ := k.req.RouteFrom(at.Index, addr, addr)
		return k.answersTo(addr, addr, at, hops, proxied)
	}
	for _, asker := range k.askersFor(addr, at) {
		hops, _ := k.req.RouteFrom(at.Index, asker, addr)
		if c := k.answersTo(asker, addr, at, hops, proxied); c.Answer != 0 {
			return c
		}
	}
	return no
}

// answersTo is answersFor for a request from one asker, for whose packets the node has these hops.
func (k *Mirror) answersTo(asker, addr netip.Addr, at *answerer, hops []rtnetlink.Hop, proxied bool) (no table.Claim) {
	if i := slices.IndexFunc(hops, func(h rtnetlink.Hop) bool { return h.Local }); i >= 0 {
		own := k.answers.own[addr]
		switch {
		case !at.outside: // it keeps the packets, whether it answers or not
		case at.ARPIgnore == 1 || at.ARPIgnore == 2 || at.ARPIgnore == 8 || at.ARPIgnore == 3 && !slices.ContainsFunc(own, func(l *link) bool { return l.addrs[addr][0].Scope < unix.RT_SCOPE_HOST }):
			return no
		case at.ARPFilter:
			if back, _ := k.req.RouteFrom(0, addr, asker); !slices.ContainsFunc(back, func(h rtnetlink.Hop) bool { return h.Index == at.Index }) {
				return no
			}
		}
		if len(own) > 0 {
			first := slices.MinFunc(own, func(a, b *link) int { return int(a.Index - b.Index) })
			return table.Claim{Network: table.Network{Name: first.Name}, Answer: ipwitnessv1.ClaimRecord_ADDRESS}
		}
		route := hops[i]
		dev := k.own.links[route.Index]
		if dev == nil || !slices.ContainsFunc(k.answers.routes, func(r rtnetlink.Route) bool { return r.Prefix == route.Prefix }) {
			return no // such as the route of an address that was just added
		}
		answer := ipwitnessv1.ClaimRecord_ROUTE
		switch route.Table {
		case unix.RT_TABLE_LOCAL, unix.RT_TABLE_MAIN, unix.RT_TABLE_DEFAULT: // the kernel looks them up without a rule that somebody added
		default:
			if k.vrfOf(at.link) == "" {
				answer = ipwitnessv1.ClaimRecord_RULE
			}
		}
		return table.Claim{
			Network: table.Network{Name: dev.Name}, Answer: answer,
			PrefixLength: uint8(route.Prefix.Bits()), //nolint:gosec // 128 at most
		}
	}
	switch {
	case len(hops) == 0 || slices.ContainsFunc(hops, func(h rtnetlink.Hop) bool { return h.Index == at.Index }):
	case addr.Is4() && at.ProxyARP:
		return k.answersAsProxy(addr, ipwitnessv1.ClaimRecord_PROXY_ARP, hops)
	case addr.Is4() && proxied:
		return k.answersAsProxy(addr, ipwitnessv1.ClaimRecord_PROXY_ENTRY, hops)
	}
	return no
}

// answersAsProxy returns the claim of a node that answers for an address that its routes send elsewhere.
func (k *Mirror) answersAsProxy(addr netip.Addr, answer ipwitnessv1.ClaimRecord_Answer, hops []rtnetlink.Hop) table.Claim {
	c := table.Claim{Answer: answer}
	if len(hops) > 0 && k.own.links[hops[0].Index] != nil {
		c.Name = k.own.links[hops[0].Index].Name
	}
	if slices.ContainsFunc(k.answers.hosts, func(r rtnetlink.Route) bool { return r.Addr() == addr && len(hops) > 0 && r.Index == hops[0].Index }) {
		c.PrefixLength = uint8(addr.BitLen()) //nolint:gosec // 128 at most
	}
	return c
}

// askersFor returns IPv4 addresses from which hosts on the link of an interface may ask for another address. The
// kernel drops requests from some of them, such as those that its routes call local or, with strict rp_filter, send
// elsewhere: the node answers for an address if it answers one of them.
func (k *Mirror) askersFor(addr netip.Addr, at *answerer) []netip.Addr {
	if at.askers == nil {
		at.askers = []netip.Addr{} // looked up
		neighbours, err := k.req.Neighbours(at.Index)
		if err != nil {
			k.log.Debug("cannot list neighbours", "interface", at.Name, "error", err)
		}
		for _, n := range neighbours {
			if n.Addr.Is4() && !n.Addr.IsMulticast() && n.Addr != netip.AddrFrom4([4]byte{255, 255, 255, 255}) {
				at.askers = append(at.askers, n.Addr)
			}
		}
		slices.SortFunc(at.askers, netip.Addr.Compare)
		at.askers = at.askers[:min(len(at.askers), mostNeighbours)]
		for own, entries := range at.addrs {
			if bits := int(entries[0].PrefixLength); own.Is4() && bits < 31 {
				at.askers = append(at.askers, hostsOf(netip.PrefixFrom(own, bits))...)
			}
		}
	}
	unusable := func(asker netip.Addr) bool { return asker == addr || k.answers.own[asker] != nil }
	if usable := slices.DeleteFunc(slices.Clone(at.askers), unusable); len(usable) > 0 {
		return usable
	}
	return slices.DeleteFunc(hostsOf(netip.PrefixFrom(addr, 24)), unusable)
}

// hostsOf returns the first address for a host in an IPv4 subnet, one in its middle, and the last one.
func hostsOf(subnet netip.Prefix) []netip.Addr {
	raw := subnet.Masked().Addr().As4()
	first := binary.BigEndian.Uint32(raw[:])
	size := uint32(1) << (32 - subnet.Bits())
	var out []netip.Addr
	for _, n := range []uint32{1, size / 2, size - 2} {
		binary.BigEndian.PutUint32(raw[:], first+n)
		out = append(out, netip.AddrFrom4(raw))
	}
	return out
}
