package journal

import (
	pb "github.com/ipwitness/ipwitness/proto/ipwitness/v1"
)

// A subjectItem identifies an item.
type subjectItem struct {
	kind pb.Event_Kind
	itemID
}

// latestItems is the largest number of items in latest.
const latestItems = 8192

// remember notes the state of an item, which is going to be recorded.
func (w *writer) remember(r *record) error {
	id := subjectItem{r.kind, itemID{r.place, r.id}}
	if r.item == nil {
		delete(w.latest, id)
		return nil
	}
	if len(w.latest) >= latestItems {
		if err := w.commit(); err != nil { // the others are found in the store
			return err
		}
		clear(w.latest)
	}
	like, err := likeness(w.seed, r.item)
	w.latest[id] = like
	return err
}

// news reports whether a change has to be recorded: not if it leaves the item as it was recorded last,
// because owners are also updated when their evidence changes, and not if an item is removed that was
// never recorded, because it was gone before its turn came in the present state.
func (w *writer) news(r *record) (bool, error) {
	removed, id := r.item == nil, itemID{r.place, r.id}
	awaited := w.kinds[r.kind].known // not nil while the present state is arriving
	if _, present := awaited[id]; removed && (awaited == nil || present) || !removed && r.typ != pb.Watch_UPDATED {
		return true, nil
	}
	before, known := w.latest[subjectItem{r.kind, id}]
	if !known {
		e, err := w.s.find(r.subject, r.id)
		if err != nil || e == nil {
			return !removed, err
		}
		if before, err = w.likenessOf(e); err != nil {
			return false, err
		}
	}
	if removed {
		return true, nil
	}
	like, err := likeness(w.seed, r.item)
	return before != like, err
}
