package rtnetlink

import (
	"encoding/binary"
	"errors"
	"os"
	"runtime"
	"testing"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
	"google.golang.org/protobuf/proto"

	ipwitnessv1 "github.com/ipwitness/ipwitness/proto/ipwitness/v1"
)

// requireRoot skips a test that needs root; under make test it fails instead.
func requireRoot(t *testing.T) {
	t.Helper()
	switch {
	case os.Geteuid() == 0:
	case os.Getenv("IPWITNESS_ROOT_TESTS") != "":
		t.Fatal("needs root, and IPWITNESS_ROOT_TESTS is set")
	default:
		t.Skip("needs root: run make test")
	}
}

// inNamespace runs fn on its own thread in its own network namespace.
func inNamespace(t *testing.T, fn func() error) {
	t.Helper()
	requireRoot(t)
	err := make(chan error)
	go func() {
		runtime.LockOSThread() // never unlocked: the namespace ends with the thread
		if e := unix.Unshare(unix.CLONE_NEWNET); e != nil {
			err <- e
			return
		}
		err <- fn()
	}()
	if e := <-err; e != nil {
		t.Fatal(e)
	}
}

func TestPointToPointAddressIsTheLocalOneAndNotThePeer(t *testing.T) {
	inNamespace(t, func() error {
		l := &netlink.Veth{LinkAttrs: netlink.LinkAttrs{Name: "v0"}, PeerName: "v1"}
		if err := netlink.LinkAdd(l); err != nil {
			return err
		}
		a, _ := netlink.ParseAddr("192.0.2.1/32")
		a.Peer, _ = netlink.ParseIPNet("192.0.2.2/32")
		if err := netlink.AddrAdd(l, a); err != nil {
			return err
		}
		req, err := Dial()
		if err != nil {
			return err
		}
		defer req.Close()
		got, err := req.Addresses(NoNSID, 0)
		if err != nil {
			return err
		}
		if len(got) != 1 || got[0].Addr.String() != "192.0.2.1" || got[0].PrefixLength != 32 {
			t.Errorf("addresses: got %+v, want only 192.0.2.1/32", got)
		}
		if got[0].Created <= 0 {
			t.Errorf("creation time: got %v since boot", got[0].Created)
		}
		return nil
	})
}

func TestRequestAboutADeadNamespaceIsAnErrorAndNotOurOwnAddresses(t *testing.T) {
	inNamespace(t, func() error {
		l := &netlink.Veth{LinkAttrs: netlink.LinkAttrs{Name: "v0"}, PeerName: "v1"}
		if err := netlink.LinkAdd(l); err != nil {
			return err
		}
		a, _ := netlink.ParseAddr("192.0.2.1/24")
		if err := netlink.AddrAdd(l, a); err != nil {
			return err
		}
		req, err := Dial()
		if err != nil {
			return err
		}
		defer req.Close()
		const nobody = 4711
		if got, err := req.Addresses(nobody, 0); !errors.Is(err, ErrNamespaceGone) {
			t.Errorf("addresses of nsid %d: got %v, %v, want %v", nobody, got, err, ErrNamespaceGone)
		}
		if got, err := req.Links(nobody); !errors.Is(err, ErrNamespaceGone) {
			t.Errorf("links of nsid %d: got %v, %v, want %v", nobody, got, err, ErrNamespaceGone)
		}
		if _, err := req.Link(NoNSID, nobody); !errors.Is(err, unix.ENODEV) {
			t.Errorf("link with index %d: got %v, want ENODEV", nobody, err)
		}
		return nil
	})
}

func TestNamespaceGetsAnIDOnceAndIsListed(t *testing.T) {
	inNamespace(t, func() error {
		req, err := Dial()
		if err != nil {
			return err
		}
		defer req.Close()
		self, err := os.Open("/proc/thread-self/ns/net")
		if err != nil {
			return err
		}
		defer func() { _ = self.Close() }()
		first, assigned, err := req.NSIDOf(int(self.Fd()))
		if err != nil {
			return err
		}
		again, twice, err := req.NSIDOf(int(self.Fd()))
		if err != nil {
			return err
		}
		ids, err := req.NSIDs()
		if err != nil {
			return err
		}
		if !assigned || twice || first < 0 || again != first || len(ids) != 1 || ids[0] != first {
			t.Errorf("ids: got %d, then %d, listed %v: want the same id", first, again, ids)
		}
		return nil
	})
}

func TestBridgeMessagesAreNotAboutTheEndOfAnInterface(t *testing.T) {
	body := make([]byte, unix.SizeofIfInfomsg)
	body[0] = unix.AF_BRIDGE
	var m Message
	known, err := m.parse(unix.RTM_DELLINK, NoNSID, body)
	if known || err != nil {
		t.Errorf("RTM_DELLINK of family AF_BRIDGE: got known %v, error %v, want it ignored", known, err)
	}
}

func TestInterfaceNameThatIsNotUTF8CanBeReported(t *testing.T) {
	body := make([]byte, unix.SizeofIfInfomsg)
	body = append(body, 8, 0, unix.IFLA_IFNAME, 0, 'e', 0xff, '0', 0)
	l, err := parseLink(body)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := proto.Marshal(&ipwitnessv1.InterfaceRecord{Name: l.Name}); err != nil {
		t.Errorf("record of interface %q: %v", l.Name, err)
	}
}

func TestNamespaceOfAMessageComesAsControlMessage(t *testing.T) {
	oob := make([]byte, unix.CmsgSpace(4))
	binary.NativeEndian.PutUint64(oob, uint64(unix.CmsgLen(4)))
	binary.NativeEndian.PutUint32(oob[8:], unix.SOL_NETLINK)
	binary.NativeEndian.PutUint32(oob[12:], unix.NETLINK_LISTEN_ALL_NSID)
	binary.NativeEndian.PutUint32(oob[16:], 9)
	if got := controlNSID(oob); got != 9 {
		t.Errorf("nsid: got %d, want 9", got)
	}
	if got := controlNSID(nil); got != NoNSID {
		t.Errorf("nsid without a control message: got %d, want none", got)
	}
}

// FuzzMessage passes random bytes to all parsers of netlink messages. They must neither crash
// nor read beyond the end.
func FuzzMessage(f *testing.F) {
	link := make([]byte, unix.SizeofIfInfomsg)
	link = append(link, 8, 0, unix.IFLA_LINK, 0, 1, 0, 0, 0)
	f.Add(uint16(unix.RTM_NEWLINK), link)
	addr := append([]byte{unix.AF_INET, 24, 0, 0, 2, 0, 0, 0}, 8, 0, unix.IFA_LOCAL, 0, 192, 0, 2, 1)
	f.Add(uint16(unix.RTM_NEWADDR), addr)
	f.Add(uint16(unix.RTM_NEWNSID), []byte{0, 0, 0, 0, 8, 0, netnsaNSID, 0, 3, 0, 0, 0})
	f.Add(uint16(unix.RTM_DELLINK), []byte{1})
	f.Fuzz(func(t *testing.T, typ uint16, data []byte) {
		var m Message
		known, err := m.parse(typ, NoNSID, data)
		if known && err == nil && (typ == unix.RTM_NEWADDR || typ == unix.RTM_DELADDR) && !m.Address.Addr.IsValid() {
			t.Errorf("address message without an address was accepted: %x", data)
		}
		controlNSID(data)
	})
}
