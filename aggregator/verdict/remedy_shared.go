package verdict

// sharedAnswered: several have the address on a loopback or dummy device, and answer
// for it on a wire.
func (t *telling) sharedAnswered() {
	owners := t.f.Owners
	addr := t.f.Address
	t.told.Summary = addr.String() + " stands on a loopback or dummy device of several, and they answer for it on a wire: " +
		list(each(owners, (*Owner).placed)) + ". Who asks there gets any one of them, by chance."
	for i := range owners {
		for _, c := range owners[i].Claims {
			if c.Wire() && !c.Weak() {
				t.evidence("%s was seen with it on %s, last at %s, by the clock of that node.", capital(owners[i].name()), witness(c), stampText(c.Last))
				break
			}
		}
	}
	t.advise("Linux answers for any address that it has, on every interface, unless it is told not to: on each of them, `sysctl -w net.ipv4.conf.all.arp_ignore=1 net.ipv4.conf.all.arp_announce=2`. " +
		"kube-proxy does so itself in IPVS mode with `strictARP: true`, which MetalLB needs in that mode.")
	t.advise("If several are to answer for it on purpose (anycast), say so: --shared %s=REASON.", addr)
	t.closing()
}
