package bpf

import (
	"errors"
	"fmt"
	"slices"

	"github.com/cilium/ebpf"
	"github.com/vishvananda/netlink"
	"github.com/vishvananda/netlink/nl"
	"golang.org/x/sys/unix"
)

const (
	// clsactName identifies the filters of this package. "tc filter show" prints it.
	clsactName = "ipwitness_observe"

	// The handle of the filter records, also for a later run, whether this package created the
	// qdisc and therefore removes it.
	handleOnOurQdisc   = 0x69700001
	handleOnTheirQdisc = 0x69700002

	// maxPriority is the last priority that is tried. After it the kernel chooses one, which is
	// behind those that people commonly use.
	maxPriority = 16
)

// AttachClsact adds the Observer to the ingress filters of an interface of the calling thread's
// network namespace, at the first free priority. It creates the clsact qdisc if the interface has
// neither a clsact nor an ingress qdisc. The error is ErrGone if there is no such interface.
//
// The filter outlives a process that is killed: see RemoveLeftovers.
func (o *Observer) AttachClsact(ifindex int) (*Attachment, error) {
	remove, err := o.addPort(ifindex)
	if err != nil {
		return nil, err
	}
	f := clsactFilter{ifindex: ifindex, programID: o.programID}
	if err := f.add(o.objects.Observe.FD()); err != nil {
		remove()
		return nil, attachError(Clsact, ifindex, err)
	}
	return &Attachment{mode: Clsact, remove: remove, there: f.there, detach: f.remove}, nil
}

// there reports whether the filter is still in its qdisc.
func (f *clsactFilter) there() bool {
	ours, err := ourFilters(f.ifindex)
	return err != nil || len(ours) > 0
}

// RemoveLeftovers removes the clsact filters that a killed process left on an interface of the
// calling thread's network namespace. It also removes the qdisc if that process created it and it
// has no other filter. It returns the number of filters removed. It cannot distinguish them from
// the filters of a running agent.
func RemoveLeftovers(ifindex int) (removed int, err error) {
	ours, err := ourFilters(ifindex)
	for _, f := range ours {
		if err = f.remove(); err != nil {
			break
		}
		removed++
	}
	if err != nil {
		return removed, fmt.Errorf("remove leftovers from interface %d: %w", ifindex, err)
	}
	return removed, nil
}

// clsactFilter is a filter as the kernel lists it.
type clsactFilter struct {
	ifindex   int
	priority  uint16
	handle    uint32
	kind      string
	name      string
	programID ebpf.ProgramID
}

// ourFilters returns the ingress filters of an interface that this package added.
func ourFilters(ifindex int) ([]clsactFilter, error) {
	filters, err := listFilters(ifindex, netlink.HANDLE_MIN_INGRESS)
	return slices.DeleteFunc(filters, func(f clsactFilter) bool { return f.kind != "bpf" || f.name != clsactName || f.handle == 0 }), err
}

// add adds the filter to the kernel and records its place in f.
func (f *clsactFilter) add(program int) error {
	ours, err := ourFilters(f.ifindex)
	if err != nil {
		return err
	}
	if len(ours) > 0 {
		return fmt.Errorf("filter %s already exists: stop the other agent on this host, "+
			"or remove the filter that a killed agent left", clsactName)
	}

	f.kind, f.name = "bpf", clsactName
	switch err := netlink.QdiscAdd(f.qdisc()); {
	case err == nil:
		f.handle = handleOnOurQdisc
	case errors.Is(err, unix.EEXIST):
		f.handle = handleOnTheirQdisc
	default:
		return fmt.Errorf("add clsact qdisc: %w", err)
	}
	if err := f.addToQdisc(program); err != nil {
		return errors.Join(fmt.Errorf("add filter: %w", err), f.removeQdisc())
	}
	return nil
}

// addToQdisc adds the filter at the first priority that is free or that has filters of the same
// type and protocol; the kernel puts the newest of those first.
func (f *clsactFilter) addToQdisc(program int) error {
	var err error
	for f.priority = 1; f.priority <= maxPriority; f.priority++ {
		// All filters of a priority have the same type and protocol: the kernel refuses others with
		// EINVAL.
		err = netlink.FilterAdd(f.netlink(program))
		if !errors.Is(err, unix.EINVAL) {
			return err
		}
	}
	f.priority = 0
	return netlink.FilterAdd(f.netlink(program))
}

// remove removes the filter, if it still exists, and then the qdisc, if this package created it and
// it is empty.
func (f *clsactFilter) remove() error {
	ours, err := ourFilters(f.ifindex)
	if err != nil {
		return err
	}
	for _, found := range ours {
		// Compare the program, too: another interface may have the index now.
		if found.handle != f.handle || found.programID != f.programID {
			continue
		}
		if err := netlink.FilterDel(found.netlink(-1)); err != nil && !isGone(err) {
			return fmt.Errorf("remove filter: %w", err)
		}
		return f.removeQdisc()
	}
	return nil
}

// removeQdisc removes the clsact qdisc if this package created it and it has no filters.
func (f *clsactFilter) removeQdisc() error {
	if f.handle != handleOnOurQdisc {
		return nil
	}
	for _, parent := range []uint32{netlink.HANDLE_MIN_INGRESS, netlink.HANDLE_MIN_EGRESS} {
		filters, err := listFilters(f.ifindex, parent)
		if err != nil {
			return err
		}
		if len(filters) > 0 {
			return nil
		}
	}
	if err := netlink.QdiscDel(f.qdisc()); err != nil && !isGone(err) {
		return fmt.Errorf("remove clsact qdisc: %w", err)
	}
	return nil
}

func (f *clsactFilter) netlink(program int) *netlink.BpfFilter {
	return &netlink.BpfFilter{
		FilterAttrs: netlink.FilterAttrs{
			LinkIndex: f.ifindex,
			Parent:    netlink.HANDLE_MIN_INGRESS,
			Handle:    f.handle,
			Priority:  f.priority,
			Protocol:  unix.ETH_P_ALL,
		},
		Fd:           program,
		Name:         f.name,
		DirectAction: true,
	}
}

func (f *clsactFilter) qdisc() *netlink.Clsact {
	return &netlink.Clsact{QdiscAttrs: netlink.QdiscAttrs{
		LinkIndex: f.ifindex,
		Handle:    netlink.MakeHandle(0xffff, 0),
		Parent:    netlink.HANDLE_CLSACT,
	}}
}

// isGone reports whether the error means that the interface, the qdisc or the filter no longer
// exists.
func isGone(err error) bool {
	return errors.Is(err, unix.ENODEV) || errors.Is(err, unix.ENOENT) || errors.Is(err, unix.EINVAL)
}

// listFilters returns all filters of one direction. It returns none if there is no qdisc or no
// interface. It does not use netlink.FilterList, which fails on filters that it cannot parse and
// leaves some out.
func listFilters(ifindex int, parent uint32) ([]clsactFilter, error) {
	var messages [][]byte
	var err error
	for range 5 {
		req := nl.NewNetlinkRequest(unix.RTM_GETTFILTER, unix.NLM_F_DUMP)
		req.AddData(&nl.TcMsg{Family: nl.FAMILY_ALL, Ifindex: int32(ifindex), Parent: parent})
		if messages, err = req.Execute(unix.NETLINK_ROUTE, unix.RTM_NEWTFILTER); !errors.Is(err, netlink.ErrDumpInterrupted) {
			break
		}
	}
	if err != nil {
		return nil, fmt.Errorf("list filters: %w", err)
	}

	var filters []clsactFilter
	for _, m := range messages {
		msg := nl.DeserializeTcMsg(m)
		priority, _ := netlink.MajorMinor(msg.Info)
		f := clsactFilter{ifindex: ifindex, priority: priority, handle: msg.Handle}
		if err := f.parse(m[msg.Len():]); err != nil {
			return nil, fmt.Errorf("list filters: %w", err)
		}
		filters = append(filters, f)
	}
	return filters, nil
}

// parse parses the attributes of a filter that this package needs.
func (f *clsactFilter) parse(b []byte) error {
	attrs, err := nl.ParseRouteAttrAsMap(b)
	if err != nil {
		return err
	}
	f.kind = unix.ByteSliceToString(attrs[nl.TCA_KIND].Value)
	if f.kind != "bpf" {
		return nil
	}
	opts, err := nl.ParseRouteAttrAsMap(attrs[nl.TCA_OPTIONS].Value)
	if err != nil {
		return err
	}
	f.name = unix.ByteSliceToString(opts[nl.TCA_BPF_NAME].Value)
	if id := opts[nl.TCA_BPF_ID].Value; len(id) == 4 {
		f.programID = ebpf.ProgramID(nl.NativeEndian().Uint32(id))
	}
	return nil
}
