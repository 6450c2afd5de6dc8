// Package bpf observes claims to addresses on the ingress of interfaces in the kernel, and returns
// them as events.
//
// The package has the C program, its loader, and the ways to attach it. The program never changes
// what happens to a frame. The package knows frames and not owners: it does not decide what a
// claim means. It also reads the clock of the stamps of addresses, which only a program can.
package bpf

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"net/netip"
	"unsafe"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/ringbuf"
	"golang.org/x/sys/unix"
)

// Observer is the program and its maps in the kernel. Its methods may be called concurrently,
// except Read, which allows one caller at a time, and Close, which must be called last.
type Observer struct {
	objects   observeObjects
	programID ebpf.ProgramID
	reader    *ringbuf.Reader
	record    ringbuf.Record
	raw       observeEvent // what record.RawSample points at
}

// Load loads the program and its maps into the kernel, without attaching it to an
// interface. It requires CAP_BPF, CAP_PERFMON (not on every kernel) and CAP_NET_ADMIN,
// and Linux 5.17 or newer.
func Load() (*Observer, error) {
	spec, err := loadObserve()
	if err != nil {
		return nil, fmt.Errorf("read bpf object: %w", err)
	}
	if err := spec.Variables[observeVarHashSeed].Set(rand.Uint64()); err != nil {
		return nil, fmt.Errorf("set seed of hashes: %w", err)
	}
	return load(spec)
}

func load(spec *ebpf.CollectionSpec) (*Observer, error) {
	var o Observer
	if err := spec.LoadAndAssign(&o.objects, nil); err != nil {
		return nil, fmt.Errorf("load bpf program: %w", explain(err, toLoad))
	}
	info, err := o.objects.Observe.Info()
	if err != nil {
		return nil, errors.Join(fmt.Errorf("get bpf program id: %w", err), o.objects.Close())
	}
	o.programID, _ = info.ID()
	o.reader, err = ringbuf.NewReader(o.objects.Events)
	if err != nil {
		return nil, errors.Join(fmt.Errorf("open event ring: %w", err), o.objects.Close())
	}
	o.record.RawSample = unsafe.Slice((*byte)(unsafe.Pointer(&o.raw)), unsafe.Sizeof(o.raw))
	return &o, nil
}

// Close removes the program and its maps from the kernel and ends Read. Close the attachments
// first: those left open continue without a reader.
func (o *Observer) Close() error {
	return errors.Join(o.reader.Close(), o.objects.Close())
}

// SetTunnels sets the VLANs in which a bridge puts frames of its port that came through a tunnel, by the identifier of
// the tunnel (VNI): the frames have no tag themselves. There can be 65536 of them on all ports.
func (o *Observer) SetTunnels(ifindex int, vlans map[uint32]uint16) error {
	var key observeTunnel
	var vid uint16
	var gone []observeTunnel
	have := map[uint32]uint16{}
	all := o.objects.Tunnels.Iterate()
	for all.Next(&key, &vid) {
		if _, ok := vlans[key.Id]; key.Ifindex == uint32(ifindex) && ok {
			have[key.Id] = vid
		} else if key.Ifindex == uint32(ifindex) {
			gone = append(gone, key)
		}
	}
	err := all.Err()
	for _, key := range gone {
		err = errors.Join(err, o.objects.Tunnels.Delete(key))
	}
	for id, vid := range vlans {
		if old, ok := have[id]; !ok || old != vid {
			err = errors.Join(err, o.objects.Tunnels.Put(observeTunnel{Ifindex: uint32(ifindex), Id: id}, vid))
		}
	}
	if len(vlans) > 0 {
		err = errors.Join(err, o.objects.Tunnelled.Set(uint8(1)))
	}
	if err != nil {
		return fmt.Errorf("set the VLANs of tunnels of interface %d: %w", ifindex, err)
	}
	return nil
}

// Interrupt makes the current and all later calls of Read return os.ErrClosed. All other methods
// still work. It may be called more than once.
func (o *Observer) Interrupt() {
	// Only unmapping the ring buffer can fail.
	_ = o.reader.Close()
}

// Read waits for the next event. After Close or Interrupt the error is
// os.ErrClosed.
func (o *Observer) Read(ev *Event) error {
	if err := o.reader.ReadInto(&o.record); err != nil {
		return fmt.Errorf("read event: %w", err)
	}
	ev.set(&o.raw)
	return nil
}

// Contest sets whether addr is contested: known claims to it are then reported every second instead
// of every 30 s. At most 16384 addresses can be contested at a time.
func (o *Observer) Contest(addr netip.Addr, on bool) error {
	if err := setMember(o.objects.Contested, addr, on); err != nil {
		return fmt.Errorf("contest address %s: %w", addr, err)
	}
	return nil
}

// SetImportant sets whether claims to addr are important. New bindings of
// important addresses have a limit of their own: a port that is flooded with
// made-up addresses still reports them. At most 262144 addresses can be important
// at a time.
func (o *Observer) SetImportant(addr netip.Addr, on bool) error {
	if err := setMember(o.objects.Important, addr, on); err != nil {
		return fmt.Errorf("set important address %s: %w", addr, err)
	}
	return nil
}

// setMember adds an address to a set in the kernel, or removes it.
func setMember(set *ebpf.Map, addr netip.Addr, in bool) error {
	if key := addr.As16(); in {
		err := set.Put(key, uint8(1))
		if errors.Is(err, unix.E2BIG) {
			return fmt.Errorf("the limit is %d addresses: %w", set.MaxEntries(), err)
		}
		return err
	} else if err := set.Delete(key); !errors.Is(err, ebpf.ErrKeyNotExist) {
		return err
	}
	return nil
}

// Limited returns the number of frames with ResultLimited on an interface since the Observer was
// attached to it.
func (o *Observer) Limited(ifindex int) (frames uint64, err error) {
	var p observePort
	if err := o.objects.Ports.Lookup(uint32(ifindex), &p); err != nil {
		return 0, fmt.Errorf("read frames that were limited on interface %d: %w", ifindex, err)
	}
	return p.Limited, nil
}

// addPort adds the limits of an interface, before the Observer is attached to it. It returns a
// function that removes the limits.
func (o *Observer) addPort(ifindex int) (remove func(), err error) {
	key := uint32(ifindex)
	err = o.objects.Ports.Update(key, observePort{}, ebpf.UpdateNoExist)
	if errors.Is(err, ebpf.ErrKeyExist) {
		return func() {}, nil // already attached there, or this attempt fails because of that
	}
	if err != nil {
		return nil, fmt.Errorf("add interface %d to the ports of the observer: %w", ifindex, err)
	}
	return func() { _ = o.objects.Ports.Delete(key) }, nil
}

// Forget removes a binding, so that its next claim is reported at once, as if it were new. It
// succeeds if there is no such binding.
func (o *Observer) Forget(ifindex uint32, vlan, innerVLAN uint16, addr netip.Addr, sha, source MAC) error {
	key := observeBinding{
		Ifindex:   ifindex,
		Vlan:      vlan,
		InnerVlan: innerVLAN,
		Addr:      addr.As16(),
		Sha:       sha,
		Source:    source,
	}
	if err := o.objects.Bindings.Delete(&key); err != nil && !errors.Is(err, ebpf.ErrKeyNotExist) {
		return fmt.Errorf("forget binding of %s to %s: %w", addr, sha, err)
	}
	return nil
}

// Counter is the number of frames of a protocol with a result.
type Counter struct {
	// Protocol and Result are the strings of the types with these names.
	Protocol, Result string
	Frames           uint64
}

// Counters returns all counters since Load in a fixed order, including those at 0.
func (o *Observer) Counters() (counters []Counter, err error) {
	for protocol := range Protocol(observeProtocolPROTOCOLS) {
		for result := ResultNone + 1; result < results; result++ {
			frames, err := o.count(protocol, result)
			if err != nil {
				return nil, err
			}
			counters = append(counters, Counter{protocol.String(), result.String(), frames})
		}
	}
	return counters, nil
}

// Frames returns the number of frames of all protocols with a result since Load.
func (o *Observer) Frames(result Result) (frames uint64, err error) {
	for protocol := range Protocol(observeProtocolPROTOCOLS) {
		of, err := o.count(protocol, result)
		if err != nil {
			return 0, err
		}
		frames += of
	}
	return frames, nil
}

func (o *Observer) count(protocol Protocol, result Result) (frames uint64, err error) {
	var perCPU []uint64
	if err := o.objects.Counters.Lookup(uint32(protocol)*uint32(results)+uint32(result), &perCPU); err != nil {
		return 0, fmt.Errorf("read counter of %s frames with result %s: %w", protocol, result, err)
	}
	for _, of := range perCPU {
		frames += of
	}
	return frames, nil
}
