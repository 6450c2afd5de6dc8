package report

import "sync"

// Instances has the aggregators that the streams of an agent lead to. Several names or addresses may
// lead to one aggregator, for example the IPv4 and the IPv6 address of a host. Only one stream of an
// agent reports to it.
type Instances struct {
	mu   sync.Mutex
	held map[string]chan struct{} // closed when the stream ends
}

// NewInstances returns an empty set.
func NewInstances() *Instances { return &Instances{held: make(map[string]chan struct{})} }

// hold reserves an aggregator for a stream. If it is reserved for another one, hold returns a channel
// that is closed when that stream ends.
func (i *Instances) hold(id string) (release func(), taken <-chan struct{}) {
	i.mu.Lock()
	defer i.mu.Unlock()
	if other := i.held[id]; other != nil {
		return nil, other
	}
	end := make(chan struct{})
	i.held[id] = end
	return func() {
		i.mu.Lock()
		defer i.mu.Unlock()
		delete(i.held, id)
		close(end)
	}, nil
}

// A takenError is the error of a stream to an aggregator that another stream of the agent leads to.
type takenError struct {
	// until is closed when the other stream ends.
	until <-chan struct{}
}

func (*takenError) Error() string { return "another stream leads to the same aggregator" }
