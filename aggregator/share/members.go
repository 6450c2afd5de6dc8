package share

import (
	"context"
	"crypto/sha256"
	"encoding/binary"
	"errors"
	"fmt"
	"strconv"
	"strings"
	"time"

	"github.com/nats-io/nats.go/jetstream"
	"google.golang.org/protobuf/proto"

	"github.com/ipwitness/ipwitness/aggregator/facts"
	"github.com/ipwitness/ipwitness/aggregator/stream"
	pb "github.com/ipwitness/ipwitness/proto/ipwitness/v1"
)

const (
	// leaseFor is how long a replica that is not heard counts as alive, and beatEvery is how often each
	// replica renews its lease.
	leaseFor  = 5 * time.Second
	beatEvery = time.Second
	// letGoAfter is how long a partition is still served after its new holder serves it completely, so that
	// all replicas know of that before.
	letGoAfter = time.Second
	// lookEvery is how often it is looked which partitions are complete, and which leases have ended.
	lookEvery = 100 * time.Millisecond
)

// A member is another replica.
type member struct {
	// complete are the partitions that it serves and has all claims of.
	complete facts.PartitionSet
	// grown is when the last one of them was added.
	grown time.Time
	// heard is when it was heard last.
	heard time.Time
}

// grew reports whether partitions are complete that were not before.
func (one *member) grew(before *member) bool {
	for p := range one.complete {
		if one.complete[p] && !before.complete[p] {
			return true
		}
	}
	return false
}

// members are the replicas of a cluster, and their leases in a bucket of NATS.
type members struct {
	// prefix is that of the keys of the cluster.
	prefix   string
	name     string
	instance int64
	clock    func() time.Time
	bucket   jetstream.KeyValue
	// revision is that of the own lease; 0 if there is none.
	revision uint64
	// renewed is when the own lease was renewed last, and since when it has been renewed without an
	// interruption.
	renewed, since time.Time
	// told are the complete partitions that the lease names.
	told   facts.PartitionSet
	others map[string]*member
	// left are others that have given up their leases, and that expire has not returned yet.
	left []string
	// known is set when all members have been read since the own lease was taken.
	known bool
	// doubtful is set after the own lease had ended: another replica may have taken the partitions.
	doubtful bool
}

// Bucket is the name of the bucket with the leases of the replicas of all clusters. A key is the name of
// the cluster, a dot, and the name of the replica.
const Bucket = "ipwitness_replicas"

// openBucket opens the bucket, and creates it if it does not exist.
func (s *Share) openBucket(ctx context.Context) (jetstream.KeyValue, error) {
	ctx, cancel := context.WithTimeout(ctx, answerWithin)
	defer cancel()
	cfg := jetstream.KeyValueConfig{
		Bucket: Bucket, Description: "leases of the replicas of aggregators of ipwitness", TTL: leaseFor, Storage: jetstream.FileStorage,
	}
	kv, err := s.link.JetStream().KeyValue(ctx, cfg.Bucket)
	if !errors.Is(err, jetstream.ErrBucketNotFound) {
		return kv, err
	}
	for _, cfg.Replicas = range []int{3, 1} {
		if kv, err = s.link.JetStream().CreateKeyValue(ctx, cfg); err == nil || !stream.FewServers(err) {
			break
		}
	}
	if err != nil {
		return nil, fmt.Errorf("create the bucket %s: %w", cfg.Bucket, err)
	}
	return kv, nil
}

// key returns the key of the own lease.
func (m *members) key() string { return m.prefix + stream.Token(m.name) }

// renew renews the own lease, or takes a new one.
func (m *members) renew(ctx context.Context, complete facts.PartitionSet) error {
	if m.doubtful {
		complete = facts.PartitionSet{} // before it is known what others have taken
	}
	ctx, cancel := context.WithTimeout(ctx, renewWithin)
	defer cancel()
	value, err := proto.Marshal(&pb.ReplicaRecord{Instance: m.instance, Complete: bitsOf(&complete)})
	if err != nil {
		return err
	}
	key := m.key()
	if m.revision != 0 {
		revision, err := m.bucket.Update(ctx, key, value, m.revision)
		if err == nil {
			m.renewedWith(revision, complete)
			return nil
		}
		if !conflicting(err) {
			return err
		}
		m.revision, m.doubtful, m.known, m.since = 0, true, false, time.Time{}
		if m.taken(ctx, key) {
			return errTaken
		}
		return errEnd
	}
	revision, err := m.bucket.Create(ctx, key, value)
	if errors.Is(err, jetstream.ErrKeyExists) { // that of the former process
		var entry jetstream.KeyValueEntry
		if entry, err = m.bucket.Get(ctx, key); err == nil {
			revision, err = m.bucket.Update(ctx, key, value, entry.Revision())
		}
	}
	if err != nil {
		return err
	}
	m.renewedWith(revision, complete)
	return nil
}

// taken reports whether another process has the own lease.
func (m *members) taken(ctx context.Context, key string) bool {
	entry, err := m.bucket.Get(ctx, key)
	if err != nil {
		return false // it has ended
	}
	record := new(pb.ReplicaRecord)
	return proto.Unmarshal(entry.Value(), record) == nil && record.GetInstance() != m.instance
}

func (m *members) renewedWith(revision uint64, complete facts.PartitionSet) {
	now := m.clock()
	if m.since.IsZero() || now.Sub(m.renewed) > 2*beatEvery { // others may not have been heard meanwhile
		m.since = now
	}
	m.revision, m.told, m.renewed = revision, complete, now
}

// errEnd is the error for a lease that has ended, because it was not renewed in time.
var errEnd = errors.New("the lease has ended: looking which partitions other replicas have taken over")

// errTaken is the error for a lease that another process has taken.
var errTaken = errors.New("another process has taken the lease: give each replica a name of its own (--replica)")

// conflicting reports whether an update was refused because the key has another revision or none.
func conflicting(err error) bool {
	api := (*jetstream.APIError)(nil)
	return errors.Is(err, jetstream.ErrKeyExists) || errors.Is(err, jetstream.ErrKeyNotFound) ||
		errors.As(err, &api) && (api.ErrorCode == jetstream.JSErrCodeStreamWrongLastSequence || api.ErrorCode == jetstream.JSErrCodeStreamWrongLastSequenceConstant)
}

// hear takes the lease of another replica; entry is nil when all leases have been read.
func (m *members) hear(entry jetstream.KeyValueEntry) {
	if entry == nil {
		m.known = true
		return
	}
	name := stream.NameOf(strings.TrimPrefix(entry.Key(), m.prefix))
	if name == m.name {
		return
	}
	if entry.Operation() != jetstream.KeyValuePut {
		if m.others[name] != nil {
			m.left = append(m.left, name)
		}
		delete(m.others, name)
		return
	}
	record := new(pb.ReplicaRecord)
	if proto.Unmarshal(entry.Value(), record) != nil {
		return
	}
	one := &member{complete: setOf(record.GetComplete()), grown: m.clock(), heard: m.clock()}
	if before := m.others[name]; before != nil && !one.grew(before) {
		one.grown = before.grown
	}
	m.others[name] = one
}

// expire removes the replicas whose leases have ended. While this replica cannot renew its own one, it
// is not known whether others can. It returns those that are gone since the last call.
func (m *members) expire() (gone []string) {
	now := m.clock()
	gone, m.left = m.left, nil
	if m.since.IsZero() || now.Sub(m.renewed) > 2*beatEvery {
		m.since = time.Time{}
		return gone
	}
	for name, one := range m.others {
		if now.Sub(one.heard) > leaseFor && now.Sub(m.since) > leaseFor {
			delete(m.others, name)
			gone = append(gone, name)
		}
	}
	return gone
}

// serve returns the partitions to serve. served are those that are served now.
func (m *members) serve(served facts.PartitionSet) facts.PartitionSet {
	if !m.known {
		return served
	}
	for p := range served {
		holder := m.holder(p)
		switch {
		case !served[p]:
			served[p] = holder == m.name && m.revision != 0
		case m.doubtful:
			served[p] = !m.elsewhere(p)
		case holder != m.name: // until the other one has all claims
			other := m.others[holder]
			served[p] = !other.complete[p] || m.clock().Sub(other.grown) < letGoAfter
		}
	}
	m.doubtful = false
	return served
}

// elsewhere reports whether another replica serves a partition completely.
func (m *members) elsewhere(p int) bool {
	for _, one := range m.others {
		if one.complete[p] {
			return true
		}
	}
	return false
}

// passed reports whether another replica is to serve a partition, and serves it completely.
func (m *members) passed(p int) bool {
	holder := m.holder(p)
	return holder != m.name && m.others[holder].complete[p]
}

// holder returns the name of the replica that is to serve a partition: the one with the highest weight
// (rendezvous hashing), so that few partitions move when a replica comes or goes.
func (m *members) holder(p int) string {
	best, most := m.name, weight(m.name, p)
	for name := range m.others {
		if w := weight(name, p); w > most || w == most && name < best {
			best, most = name, w
		}
	}
	return best
}

func weight(name string, p int) uint64 {
	sum := sha256.Sum256([]byte(name + " " + strconv.Itoa(p)))
	return binary.BigEndian.Uint64(sum[:])
}

// bitsOf returns a set as messages have it, and setOf reads it.
func bitsOf(set *facts.PartitionSet) []byte {
	bits := make([]byte, len(set)/8)
	for p, in := range set {
		if in {
			bits[p/8] |= 1 << (p % 8)
		}
	}
	return bits
}

func setOf(bits []byte) (set facts.PartitionSet) {
	for p := range set {
		set[p] = p/8 < len(bits) && bits[p/8]&(1<<(p%8)) != 0
	}
	return set
}
