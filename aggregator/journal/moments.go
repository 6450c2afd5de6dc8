package journal

import (
	"bytes"
	"cmp"
	"context"
	"errors"
	"net/netip"
	"slices"
	"strings"
	"time"

	"github.com/cockroachdb/pebble/v2"
	"golang.org/x/sync/errgroup"

	pb "github.com/ipwitness/ipwitness/proto/ipwitness/v1"
)

// segmentsAtOnce is the number of segments in which owners at moments are searched at once: each owner is in a block of
// its own, which has to be read and decompressed.
const segmentsAtOnce = 2

// A Moment is an address at a time.
type Moment struct {
	Address netip.Addr
	At      time.Time
}

// moment is a Moment in a list, as it is read.
type moment struct {
	index int
	// segments is the number of segments that have begun.
	segments int
	place    place
	at       stamp
}

// Owners calls do with the index of each moment, and with the owners that its address had then. do must not change
// them. It is called in no particular order, and by several goroutines. The records of an address in a segment are
// read once for all moments.
func (j *Journal) Owners(ctx context.Context, moments []Moment, do func(i int, owners []*pb.Owner)) error {
	return j.view(func(s *store) error {
		list := s.list()
		all := make([]moment, len(moments))
		for i, m := range moments {
			at := m.At.UnixMicro()
			begun, _ := slices.BinarySearchFunc(list, at+1, func(seg segment, at stamp) int { return cmp.Compare(seg.start, at) })
			all[i] = moment{i, begun, placeOf(m.Address), at}
		}
		slices.SortFunc(all, func(a, b moment) int {
			return cmp.Or(cmp.Compare(a.segments, b.segments), strings.Compare(string(a.place), string(b.place)), cmp.Compare(a.at, b.at))
		})
		readers, ctx := errgroup.WithContext(ctx)
		readers.SetLimit(segmentsAtOnce)
		for len(all) > 0 {
			n := 1
			for n < len(all) && all[n].segments == all[0].segments {
				n++
			}
			some := all[:n]
			readers.Go(func() error { return s.owners(ctx, from(list, some[0].at), some, do) })
			all = all[n:]
		}
		return readers.Wait()
	})
}

// owners reads the owners at moments of the last one of some segments, ordered by place and time.
func (s *store) owners(ctx context.Context, segs []segment, moments []moment, do func(i int, owners []*pb.Owner)) (err error) {
	its := make([]*pebble.Iterator, len(segs))
	for i, seg := range segs {
		table := tablePrefix(seg.number, byte(pb.Event_OWNER))
		if its[i], err = s.db.NewIter(&pebble.IterOptions{LowerBound: table, UpperBound: after(table)}); err != nil {
			return err
		}
		defer func() { _ = its[i].Close() }() // its error was returned before
	}
	var items []stored
	var owners []*pb.Owner // of the items; nil until one is needed
	for n := 0; len(moments) > 0; n++ {
		if n%256 == 0 && ctx.Err() != nil {
			return ctx.Err()
		}
		about := subject{pb.Event_OWNER, moments[0].place}
		items, owners = items[:0], owners[:0]
		// tell answers the moments of the place before a time.
		tell := func(before stamp) error {
			for len(moments) > 0 && moments[0].place == about.place && moments[0].at < before {
				for i := range items {
					if owners[i] == nil {
						e, err := s.event(&items[i], about, items[i].at)
						if err != nil {
							return err
						}
						owners[i] = e.GetOwner()
					}
				}
				do(moments[0].index, owners)
				moments = moments[1:]
			}
			return nil
		}
		for i, it := range its {
			prefix := itemPrefix(segs[i].number, about.kind, about.place)
			for it.SeekGE(prefix); it.Valid() && bytes.HasPrefix(it.Key(), prefix); it.Next() {
				_, one, err := parseItem(segs[i], it)
				if err == nil && i == len(its)-1 {
					err = tell(one.at)
				}
				if err != nil {
					return err
				}
				if len(moments) == 0 || moments[0].place != about.place {
					break
				}
				if k := slices.IndexFunc(items, func(known stored) bool { return known.id == one.id }); k >= 0 {
					items, owners = slices.Delete(items, k, k+1), slices.Delete(owners, k, k+1)
				}
				if one.typ != pb.Watch_REMOVED {
					one.item = bytes.Clone(one.item) // it ends when the iterator moves on
					items, owners = append(items, one), append(owners, nil)
				}
			}
			if err := it.Error(); err != nil {
				return err
			}
		}
		if err := tell(1<<63 - 1); err != nil {
			return err
		}
	}
	return nil
}

// Nodes calls do with the nodes that were known at the beginning of a period or before it, and then with their changes
// until its end. It is ordered by time for each node only. A node that is not known any more has only its name, and
// gone is set.
func (j *Journal) Nodes(ctx context.Context, since, until time.Time, do func(at time.Time, n *pb.Node, gone bool)) error {
	return j.view(func(s *store) error {
		list := s.list()
		if first := from(list, since.UnixMicro()); len(first) > 0 {
			for list[0].number != first[0].number {
				list = list[1:]
			}
		}
		names := make(map[place]string)
		for i, seg := range list {
			if seg.start > until.UnixMicro() {
				break
			}
			it, err := s.db.NewIter(&pebble.IterOptions{
				LowerBound: tablePrefix(seg.number, byte(pb.Event_NODE)), UpperBound: after(tablePrefix(seg.number, byte(pb.Event_NODE))),
			})
			if err != nil {
				return err
			}
			for it.First(); it.Valid() && err == nil; it.Next() {
				var one stored
				var p []byte
				p, one, err = parseItem(seg, it)
				if err != nil || one.at > until.UnixMicro() || i > 0 && one.at < seg.start { // a copy of what is known
					continue
				}
				at := time.UnixMicro(max(one.at, seg.start))
				if one.typ == pb.Watch_REMOVED {
					do(at, &pb.Node{Name: names[place(p)]}, true)
					continue
				}
				var e *pb.Event
				if e, err = s.event(&one, subject{pb.Event_NODE, place(p)}, one.at); err == nil {
					names[place(p)] = e.GetNode().GetName()
					do(at, e.GetNode(), false)
				}
			}
			if err = errors.Join(err, it.Error(), it.Close(), ctx.Err()); err != nil {
				return err
			}
		}
		return nil
	})
}
