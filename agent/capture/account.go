package capture

import (
	"fmt"
	"time"

	"github.com/ipwitness/ipwitness/agent/table"
	"github.com/ipwitness/ipwitness/agent/wire"
	pb "github.com/ipwitness/ipwitness/proto/ipwitness/v1"
)

// gatherFor is how long repeated claims are gathered before they are reported. A new one is reported at once.
const gatherFor = 100 * time.Millisecond

// expireEvery is the interval at which claims that nobody repeats are looked for.
const expireEvery = 30 * time.Second

// An Agent reports the claims in captures as an agent reports those on its ports. Each interface of a capture is a port that leads
// out of the node. It is used by one goroutine. Use NewAgent.
type Agent struct {
	table  *table.Table
	reader *table.Reader
	links  map[string]string // of interfaces, by name
	ports  map[string]int32  // by name of the interface
	known  map[string]bool   // links
	send   func(m *pb.ReportRequest, at time.Time) error
	// sequence is the number of the last message, dirty is since when claims are gathered, or zero, looked is when those that nobody
	// repeats were looked for, and last is the time of the last frame.
	sequence            uint64
	dirty, looked, last time.Time
}

// NewAgent returns an agent of the given name, which passes what it reports to send, by the clock of the captures. links are the links of
// interfaces, by name; any other interface is a link of its own.
func NewAgent(name string, links map[string]string, begun time.Time, send func(m *pb.ReportRequest, at time.Time) error) (*Agent, error) {
	a := &Agent{table: table.New(), links: links, last: begun, ports: make(map[string]int32), known: make(map[string]bool), send: send, looked: begun}
	a.table.Update(func() {
		a.table.Namespaces.Put(table.OwnNamespace, &pb.NamespaceRecord{Id: table.OwnNamespace, Netns: "1"}, begun)
		a.table.SetStatus(&pb.StatusRecord{Wire: "capture"})
	})
	a.reader = a.table.Attach()
	return a, a.report(begun, &pb.Hello{Node: name, BootId: name, Netns: "1", Epoch: 1})
}

// Add adds a claim. A frame that is older than the one before, which happens if a file has those of several processors, counts as
// captured with it.
func (a *Agent) Add(f Frame) error {
	if f.At.Before(a.last) {
		f.At = a.last
	}
	a.last = f.At
	if err := a.advance(f.At); err != nil {
		return err
	}
	key := table.ClaimKey{
		Address: f.Addr, Kind: wire.Evidence[f.Kind], MAC: string(f.SHA[:]), VLAN: f.VLAN, InnerVLAN: f.InnerVLAN, NoOverride: f.NoOverride,
	}
	if f.Source != f.SHA {
		key.Source = string(f.Source[:])
	}
	fresh := false
	a.table.Update(func() {
		key.At = table.InterfaceKey{Namespace: table.OwnNamespace, Index: a.port(f)}
		fresh = a.table.Claim(key).Count == 0
		a.table.Add(key, table.Claim{Link: a.link(f), First: f.At, Last: f.At, Count: 1}, f.At)
	})
	if a.dirty.IsZero() {
		a.dirty = f.At
	}
	if fresh {
		return a.report(f.At, nil)
	}
	return nil
}

// End reports everything that was not reported before a time.
func (a *Agent) End(at time.Time) error {
	if err := a.advance(at); err != nil {
		return err
	}
	return a.report(at, nil)
}

// LeftOut returns the number of claims for which an agent has no room.
func (a *Agent) LeftOut() uint64 {
	_, left := a.table.Size()
	return left
}

// advance reports what is due before or at a time.
func (a *Agent) advance(to time.Time) error {
	for {
		at := to
		gathered := !a.dirty.IsZero() && !a.dirty.Add(gatherFor).After(to)
		if gathered {
			at = a.dirty.Add(gatherFor)
		}
		if a.looked.Sub(a.last) > wire.Kept+expireEvery { // there are none
			a.looked = to
		}
		if expire := a.looked.Add(expireEvery); !expire.After(at) {
			a.looked = expire
			a.table.Update(func() {
				if len(a.table.RemoveOld(expire.Add(-wire.Kept), expire)) > 0 && a.dirty.IsZero() {
					a.dirty = expire
				}
			})
			continue
		}
		if !gathered {
			return nil
		}
		if err := a.report(at, nil); err != nil {
			return err
		}
	}
}

// report sends everything that was not reported yet.
func (a *Agent) report(at time.Time, hello *pb.Hello) error {
	a.dirty = time.Time{}
	for m := a.reader.Take(at); m != nil; m = a.reader.Take(at) {
		a.sequence++
		m.Sequence, m.Hello, hello = a.sequence, hello, nil
		if err := a.send(m, at); err != nil {
			return err
		}
	}
	return nil
}

// port returns the index of the interface of a frame, which it adds if it is new. The caller holds the table.
func (a *Agent) port(f Frame) int32 {
	if index := a.ports[f.Interface]; index != 0 {
		return index
	}
	index := int32(len(a.ports) + 1) //nolint:gosec // a file has fewer interfaces
	a.ports[f.Interface] = index
	a.table.Interfaces.Put(table.InterfaceKey{Namespace: table.OwnNamespace, Index: index}, &pb.InterfaceRecord{
		Namespace: table.OwnNamespace, Index: uint32(index), Name: f.Interface, Attachment: pb.InterfaceRecord_OWN, Link: a.put(f.Interface, 0, 0), Uplink: true, //nolint:gosec // positive
	}, f.At)
	return index
}

// link returns the link that a frame was seen on. The caller holds the table.
func (a *Agent) link(f Frame) string { return a.put(f.Interface, f.VLAN, f.InnerVLAN) }

// put returns the link of an interface and VLANs, which it adds if it is new.
func (a *Agent) put(port string, vlan, inner uint16) string {
	name := port
	if a.links[port] != "" {
		name = a.links[port]
	}
	for _, vid := range []uint16{vlan, inner} {
		if vid != 0 {
			name = fmt.Sprintf("%s.%d", name, vid)
		}
	}
	if !a.known[name] {
		a.known[name] = true
		a.table.Links.Put(name, &pb.LinkRecord{Name: name, Kind: pb.LinkRecord_UPLINK}, time.Time{})
	}
	return name
}
