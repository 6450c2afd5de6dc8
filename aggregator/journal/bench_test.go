package journal

import (
	"encoding/binary"
	"fmt"
	"math/rand/v2"
	"net/netip"
	"os"
	"runtime/debug"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"google.golang.org/protobuf/types/known/timestamppb"

	"github.com/ipwitness/ipwitness/ipam"
	pb "github.com/ipwitness/ipwitness/proto/ipwitness/v1"
	"github.com/ipwitness/ipwitness/tests/wait"
)

const (
	// benchAddresses is the number of addresses in use in BenchmarkJournal, and benchFree that of the
	// addresses that wait for their next owner.
	benchAddresses = 110_000
	benchFree      = 1_000
	// benchRate is the number of changes per second of the clock in a busy cluster.
	benchRate = 20
	// benchMonth is the number of seconds in a month.
	benchMonth = 30 * 24 * 60 * 60
)

// benchPod is the pod that has an address for the nth time. Its identifiers are random, as Kubernetes
// and container runtimes give them. randomMAC is set if its MAC is random as well; otherwise it is made
// of the address, as several CNI plugins do.
func benchPod(address, nth uint32, now time.Time, randomMAC bool) (id string, o *pb.Owner) {
	random := rand.New(rand.NewPCG(uint64(address), uint64(nth)))
	node, service := random.IntN(1000), random.IntN(200)
	assigned := now.Add(-time.Duration(random.IntN(100_000)) * time.Microsecond)
	mac := [6]byte{0x0a, 0x58}
	binary.BigEndian.PutUint32(mac[2:], address)
	if randomMAC {
		binary.BigEndian.PutUint32(mac[2:], random.Uint32())
		mac[0], mac[1] = byte(random.Uint32())&^3|2, byte(random.Uint32())
	}
	return fmt.Sprintf("%d/%d", address, nth), &pb.Owner{
		Address: benchAddr(address).String(), Scope: &pb.Scope{Kind: pb.Scope_NETWORK, Name: "pods"},
		Node: fmt.Sprintf("ip-10-1-%d-%d.eu-central-1.compute.internal", node/250, node%250), Mac: fmt.Sprintf("%02x:%02x:%02x:%02x:%02x:%02x", mac[0], mac[1], mac[2], mac[3], mac[4], mac[5]),
		Interface: "eth0", HostInterface: fmt.Sprintf("veth%08x", random.Uint32()), Netns: fmt.Sprint(4026532000 + random.IntN(10000)), State: pb.Owner_LIVE,
		FirstSeen: timestamppb.New(now.Add(-time.Duration(random.IntN(10_000)) * time.Microsecond)), AssignedAt: timestamppb.New(assigned.Truncate(10 * time.Millisecond)),
		Workload: &pb.Workload{
			Kind: pb.Workload_POD, Namespace: fmt.Sprintf("team-%d", random.IntN(50)), Name: fmt.Sprintf("service-%d-%08x-%05x", service, random.Uint32(), random.IntN(1<<20)),
			Uid:         fmt.Sprintf("%08x-%04x-4%03x-a%03x-%012x", random.Uint32(), random.IntN(1<<16), random.IntN(1<<12), random.IntN(1<<12), random.Uint64N(1<<48)),
			ContainerId: fmt.Sprintf("%016x%016x%016x%016x", random.Uint64(), random.Uint64(), random.Uint64(), random.Uint64()), Source: "cri",
			Controller: &pb.Controller{Kind: "Deployment", Name: fmt.Sprintf("service-%d", service)}, Phase: "Running",
		},
	}
}

// cpu returns the CPU time of the process, which does not depend on what else the machine does.
func cpu(b *testing.B) time.Duration {
	var usage syscall.Rusage
	if err := syscall.Getrusage(syscall.RUSAGE_SELF, &usage); err != nil {
		b.Fatal(err)
	}
	return time.Duration(usage.Utime.Nano() + usage.Stime.Nano())
}

// benchAddr returns an address of 10.0.0.0/8.
func benchAddr(address uint32) netip.Addr {
	return netip.AddrFrom4([4]byte{10, byte(address >> 16), byte(address >> 8), byte(address)})
}

// BenchmarkJournal measures the disk space of a transition, memory, and how long answers take, with
// 110,000 addresses whose owners end, and begin again with new identifiers on an address that was free
// for a while: for as many transitions as b.N. Its process has nothing but the journal and the generator
// of the pods. At 20 transitions a second, 1,800,000 have a whole day, whose disk space is that of each
// day. In the month, they are spread over 30 days, so that answers need 30 segments.
func BenchmarkJournal(b *testing.B) {
	b.Run("busy", func(b *testing.B) { benchmark(b, benchRate, false) })
	b.Run("busy-random-mac", func(b *testing.B) { benchmark(b, benchRate, true) })
	b.Run("month", func(b *testing.B) { benchmark(b, float64(b.N)/benchMonth, false) })
}

func benchmark(b *testing.B, rate float64, randomMAC bool) {
	if b.N == 1 {
		return // the framework tries with 1 first
	}
	defer debug.SetGCPercent(debug.SetGCPercent(25)) // as the aggregator does
	before := memory(b, "VmRSS")
	j := newBench(b, b.TempDir())
	j.add(11*time.Hour + 59*time.Minute) // the first segment ends soon
	random := rand.New(rand.NewPCG(1, 2))
	var held, free []uint32
	nth := make([]uint32, benchAddresses+benchFree)
	change := func(typ pb.Watch_Type, address uint32) *Change {
		id, o := benchPod(address, nth[address], j.Now(), randomMAC)
		return &Change{At: j.Now(), Type: typ, ID: id, Owner: o}
	}
	for _, kind := range kinds {
		feed := j.Feed(kind)
		j.must(feed.Begin())
		for i := range uint32(len(nth)) {
			switch {
			case kind != pb.Event_OWNER:
			case i < benchFree:
				free = append(free, i)
			default:
				held = append(held, i)
				j.must(feed.Present(change(pb.Watch_ADDED, i)))
			}
		}
		j.must(feed.Complete())
	}
	j.flush()
	owners := j.Feed(pb.Event_OWNER)
	pass := func() { j.add(time.Duration(random.ExpFloat64() * float64(time.Second) / rate)) }
	began := time.Now()
	b.ResetTimer()
	for n := 0; n < b.N; n += 2 {
		i := random.IntN(len(held))
		pass()
		j.must(owners.Changed(change(pb.Watch_REMOVED, held[i])))
		free = append(free, held[i])
		held[i], free = free[0], free[1:]
		nth[held[i]]++
		pass()
		j.must(owners.Changed(change(pb.Watch_ADDED, held[i])))
	}
	j.flush()
	b.StopTimer()
	b.ReportMetric(memory(b, "VmHWM")-before, "writing-peak-RSS-MiB")
	b.ReportMetric(float64(b.N)/time.Since(began).Seconds(), "transitions/s")
	j.wholeSegments()
	j.must(j.store.db.Flush())
	wait.Until(b, "compactions", func() bool {
		return j.store.compacting.Load() == 0 && j.store.db.Metrics().Compact.NumInProgress == 0
	})
	b.ReportMetric(float64(j.Stats().Bytes)/float64(b.N), "disk-B/transition")
	list := j.store.list()
	b.ReportMetric(float64(len(list)), "segments")
	if len(list) > 2 { // the second one is a whole day, with its copy of the state
		first, end := tablePrefix(list[1].number, 0), tablePrefix(list[2].number, 0)
		bytes, err := j.store.db.EstimateDiskUsage(first, end)
		j.must(err)
		b.ReportMetric(float64(bytes)/1e6, "disk-MB/day")
	}
	var took []time.Duration
	events := 0
	used := cpu(b)
	for range 2000 {
		a := benchAddr(uint32(random.IntN(len(nth))))
		start := time.Now()
		j.must(j.Events(b.Context(), &Query{Span: ipam.Range{First: a, Last: a}}, func(*pb.Event) bool { events++; return true }))
		took = append(took, time.Since(start))
	}
	b.ReportMetric(float64((cpu(b)-used).Microseconds())/1e3/float64(len(took)), "history-cpu-ms")
	slices.Sort(took)
	b.ReportMetric(float64(events)/float64(len(took)), "events/history")
	b.ReportMetric(float64(took[len(took)/2].Microseconds())/1e3, "history-p50-ms")
	b.ReportMetric(float64(took[len(took)*99/100].Microseconds())/1e3, "history-p99-ms")
	// The worst time is the end of a segment: all its records are read.
	at := j.Now()
	if len(list) > 1 {
		at = time.UnixMicro(list[len(list)-1].start - 1)
	}
	took = took[:0]
	used = cpu(b)
	for range 5 {
		start, n := time.Now(), 0
		j.must(j.At(b.Context(), pb.Event_OWNER, at, ipam.Range{}, Position{}, func(*pb.Event, Position) bool { n++; return n < 100_000 }))
		took = append(took, time.Since(start))
		if n != 100_000 {
			b.Errorf("got %d owners, want 100000", n)
		}
	}
	b.ReportMetric(float64((cpu(b)-used).Milliseconds())/float64(len(took)), "at-100k-cpu-ms")
	slices.Sort(took)
	b.ReportMetric(float64(took[len(took)/2].Milliseconds()), "at-100k-ms")
	b.ReportMetric(float64(j.store.db.Metrics().Total().TablesCount), "files")
	b.ReportMetric(memory(b, "VmHWM")-before, "peak-RSS-MiB")
}

// memory returns one of the sizes in /proc/self/status, in MiB.
func memory(b *testing.B, name string) (mib float64) {
	status, err := os.ReadFile("/proc/self/status")
	if err != nil {
		b.Fatal(err)
	}
	_, size, _ := strings.Cut(string(status), name+":")
	if _, err := fmt.Sscan(size, &mib); err != nil {
		b.Fatal(err)
	}
	return mib / 1024
}
