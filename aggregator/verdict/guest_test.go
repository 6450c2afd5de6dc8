package verdict_test

import (
	"testing"
	"time"

	"github.com/ipwitness/ipwitness/aggregator/verdict"
	"github.com/ipwitness/ipwitness/tests/verdicttest"
)

// A frame of a virtual machine that arrives at another node is one of its pod, and not of a device
// outside.
func TestFramesOfAGuestThatArriveAtAnotherNode(t *testing.T) {
	const guest, other = "\x02\x00\x00\x00\x00\x06", "\x02\x00\x00\x00\x00\x07"
	for what, test := range map[string]struct {
		machine string
		node    string // that the frame arrives at
		mac     string
		owners  int
	}{
		"of a virtual machine":              {"vm", "n1", guest, 1},
		"of a pod that runs no machine":     {"", "n1", guest, 2},
		"of another device":                 {"vm", "n1", other, 2},
		"at its own node, which sends back": {"vm", "n2", guest, 2},
	} {
		w := newWorld("192.168.1.50")
		uplinks := map[string]*verdict.Interface{}
		for i, n := range verdicttest.OnLAN(w.World, "n1", "n2") {
			uplinks[[]string{"n1", "n2"}[i]] = n
		}
		who := verdicttest.Who("launcher")
		who.VirtualMachine = test.machine
		ns := w.Namespace("n2", 9, "109", who)
		port := w.Interface(w.Host("n2"), verdict.Interface{Name: "vm", MAC: "hostvm", Attachment: verdict.Own, Link: uplinks["n2"].Link, Peer: 9})
		w.Wire(port, guest)
		w.Wire(uplinks[test.node], test.mac)
		out := w.judge()
		if len(out.Owners) != test.owners {
			t.Errorf("%s: got owners %+v, want %d", what, out.Owners, test.owners)
		}
		for _, o := range out.Owners {
			if o.Namespace != nil && (o.ID != ns.ID || o.Interface != port || o.InGuest() != (test.machine != "")) {
				t.Errorf("%s: got %+v on %s, want the pod and its own port", what, o, o.Interface.Name)
			}
		}
	}
}

// A virtual machine on a bridge of its node is behind its tap, whatever other nodes receive its frames.
func TestThePlaceOfAGuestIsItsTap(t *testing.T) {
	const guest = "\x52\x54\x00\x00\x00\x01"
	for what, test := range map[string]struct {
		ports []string // those that its frames enter, one after the other
		weak  string   // the port at which only frames were seen that make nobody an owner
		place string
		guest verdict.Guest
	}{
		"of the first node":                   {[]string{"n1/tap", "n2/eth0"}, "", "n1/tap", verdict.TapGuest},
		"of a later node":                     {[]string{"n1/eth0", "n3/eth0", "n2/tap"}, "", "n2/tap", verdict.TapGuest},
		"that was migrated":                   {[]string{"n1/tap", "n3/eth0", "n2/tap"}, "", "n2/tap", verdict.TapGuest},
		"that was migrated back":              {[]string{"n3/tap", "n1/tap", "n2/eth0"}, "", "n1/tap", verdict.TapGuest},
		"no guest":                            {[]string{"n3/eth0", "n2/eth0"}, "", "n2/eth0", verdict.NoGuest},
		"for which a guest of n3 speaks":      {[]string{"n3/tap", "n2/eth0"}, "n3/tap", "n2/eth0", verdict.NoGuest},
		"for which another guest speaks, too": {[]string{"n2/tap", "n1/tap"}, "n1/tap", "n2/tap", verdict.TapGuest},
	} {
		w := newWorld("192.168.1.50")
		ports := map[string]*verdict.Interface{}
		for _, i := range verdicttest.OnLAN(w.World, "n1", "n2", "n3") {
			n := i.Namespace.Node.Name
			ports[n+"/eth0"] = i
			ports[n+"/tap"] = w.Interface(w.Host(n), verdict.Interface{Name: "tap", Attachment: verdict.Own, Link: i.Link, Tap: true})
		}
		for _, port := range test.ports {
			w.after(time.Second)
			w.Wire(ports[port], guest).NoOverride = port == test.weak
		}
		out := w.judge()
		if len(out.Owners) != 1 {
			t.Fatalf("%s: got owners %+v, want one", what, out.Owners)
		}
		o := out.Owners[0]
		if at := o.Node.Name + "/" + o.Interface.Name; at != test.place || o.Claims[0].Interface != o.Interface || o.Guest() != test.guest {
			t.Errorf("%s: got %s, guest %d, want %s, guest %d", what, at, o.Guest(), test.place, test.guest)
		}
	}
}

// After a migration, the frames are those of the pod that sent the newest one.
func TestFramesOfAGuestThatWasMigrated(t *testing.T) {
	const guest = "\x02\x00\x00\x00\x00\x06"
	w := newWorld("192.168.1.50")
	uplinks := verdicttest.OnLAN(w.World, "n1", "n2", "n3")
	var pods []*verdict.Namespace
	for i, name := range []string{"from", "to"} {
		who := verdicttest.Who(name)
		who.VirtualMachine = "vm"
		n := uplinks[i].Namespace.Node.Name
		ns := w.Namespace(n, 9, "109", who)
		w.Wire(w.Interface(w.Host(n), verdict.Interface{Name: "vm", MAC: "hostvm", Attachment: verdict.Own, Link: uplinks[i].Link, Peer: 9}), guest)
		w.after(time.Second)
		pods = append(pods, ns)
	}
	seen := w.Wire(uplinks[2], guest)
	for _, o := range w.judge().Owners {
		if has := len(o.Claims) == 2; has != (o.ID == pods[1].ID) {
			t.Errorf("got %d claims of %s, want that of %s to be one of the pod after the migration", len(o.Claims), o.ID, seen.Interface.Name)
		}
	}
}
