//go:build ignore

// SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause)

/* Observes claims to addresses on the ingress of one interface and reports them to user space. It
 * never changes what happens to a frame. ARP is parsed according to RFC 826 and RFC 5227, and
 * neighbour discovery (NDP) according to RFC 4861 and RFC 4862. A fuzz test compares the result
 * with that of decode.go.
 */

#include <asm/errno.h>
#include <linux/bpf.h>
#include <linux/if_ether.h>
#include <linux/pkt_cls.h>
#include <linux/types.h>
#include <stdbool.h>
#include <stddef.h>
#include <bpf/bpf_endian.h>
#include <bpf/bpf_helpers.h>

/* Defined here because linux/if_arp.h, linux/in.h, linux/in6.h and linux/icmpv6.h need the headers
 * of a 32-bit libc.
 */
#define ARPHRD_ETHER     1
#define ARPHRD_IEEE802   6
#define ARPOP_REQUEST    1
#define ARPOP_REPLY      2
#define IN_LOOPBACKNET   127
#define IPPROTO_HOPOPTS  0
#define IPPROTO_ROUTING  43
#define IPPROTO_ICMPV6   58
#define IPPROTO_DSTOPTS  60
#define ND_SOLICITATION  135
#define ND_ADVERTISEMENT 136
#define ND_SOLICITED     0x40
#define ND_OVERRIDE      0x20
#define ND_SOURCE_LLADDR 1
#define ND_TARGET_LLADDR 2
#define ND_HOP_LIMIT     255 /* no router has forwarded the packet */

#define VLAN_VID_MASK 0x0fff
/* More than fit into a frame of 1500 bytes. Receivers parse all tags, headers and options, so an
 * attacker could hide a claim behind those that are not parsed here. Frames with more are counted
 * by reason.
 */
#define MAX_TAGS       512
#define MAX_EXTENSIONS 256
#define MAX_ND_OPTIONS 256
#define MAX_BINDINGS   131072
#define MAX_CONTESTED  16384
/* Allocations that the agent reads from IPAM, and as many addresses of kernels. */
#define MAX_IMPORTANT 262144
#define MAX_PORTS     65536
#define MAX_REFUSALS  65536
#define MAX_TUNNELS   65536
#define EVENTS_SIZE   (1 << 20)
/* An attempt fails if another CPU reports the same binding at that moment, which can happen once
 * for each bit of KINDS in use.
 */
#define MAX_TRIES    6
#define NSEC_PER_SEC 1000000000ULL
/* 67 ms. Tokens are returned in batches, because user space handles a batch of events at lower cost
 * than single events.
 */
#define TOKENS_EVERY (1ULL << 26)

#define READ_ONCE(x) (*(const volatile typeof(x) *)&(x))

char __license[] SEC("license") = "Dual BSD/GPL";

/* One byte each, so that struct event can use these types. */
enum __attribute__((packed)) protocol {
	PROTOCOL_ARP,
	PROTOCOL_NDP,
	PROTOCOLS,
};

/* How an address was claimed. */
enum __attribute__((packed)) kind {
	KIND_ANNOUNCED = 1, /* unsolicited, to all hosts */
	KIND_ANSWERED = 2,  /* in the answer to a request */
	KIND_USED = 3,      /* as the sender of a request for another address */
};

/* The result for one frame. */
enum __attribute__((packed)) result {
	RESULT_NONE,      /* another protocol; not counted */
	RESULT_EVENT,     /* reported to user space */
	RESULT_KNOWN,     /* already known to user space */
	RESULT_PROBE,     /* a probe for an address; claims nothing yet */
	RESULT_MALFORMED, /* truncated, ARP not for IPv4 over Ethernet, or wrong option lengths */
	RESULT_INVALID,   /* ignored by receivers, or not an address that a host can have */
	RESULT_OTHER,     /* no claim: neither request nor reply, or no link-layer address */
	RESULT_LOST,      /* the ring buffer was full; the next such frame is tried again */
	/* Not parsed to the end, although a receiver may do so. */
	RESULT_UNPARSED_TAGS,       /* more than two VLANs in a claim, or more than MAX_TAGS */
	RESULT_UNPARSED_EXTENSIONS, /* more than MAX_EXTENSIONS extension headers */
	RESULT_UNPARSED_OPTIONS,    /* more than MAX_ND_OPTIONS options */
	RESULT_LIMITED,             /* beyond the limit of the port; the next frame is tried */
	RESULTS,
};

/* A claim to an address by a MAC address on a port. IPv4 addresses are stored as ::ffff:a.b.c.d. */
struct binding {
	__u32 ifindex;
	__u16 vlan;       /* outermost VID; 0 if there is none */
	__u16 inner_vlan; /* inner VID; 0 if there is none */
	__u8 addr[16];
	__u8 sha[ETH_ALEN];
	/* Source of the Ethernet frame. It is part of the key, so that a known binding in a frame
	 * from another MAC address is reported.
	 */
	__u8 source[ETH_ALEN];
};

/* What user space knows about a binding. */
struct reported {
	/* The start of the period, from bpf_ktime_get_coarse_ns(); the lowest byte has one bit for
	 * each kind that was reported in the period. Both are in one word, so that one
	 * compare-and-swap updates both. A kind without override has its own bit.
	 */
	__u64 period;
	__u32 frames; /* since the last event */
	__u32 pad;
};

#define KINDS            0xffULL
#define NO_OVERRIDE_BITS 4 /* offset of the bits of kinds without override */

struct event {
	__u64 ktime; /* bpf_ktime_get_ns() */
	__u32 ifindex;
	__u32 frames; /* frames of this binding since its last event, including this one */
	__u8 addr[16];
	__u16 vlan;
	__u16 inner_vlan;
	__u8 sha[ETH_ALEN];
	__u8 source[ETH_ALEN]; /* source of the Ethernet frame */
	enum kind kind;
	enum protocol protocol;
	__u8 no_override; /* 1 for an advertisement without the Override flag */
	__u8 pad[5];
};

/* Two token buckets for the reports of one port. Each is stored as the time at which the bucket is
 * full again (the generic cell rate algorithm, ITU-T I.371), in one word, so that one
 * compare-and-swap takes a token.
 */
struct allowance {
	__u64 peak;
	__u64 sustained;
};

/* One interface with the observer on it. */
struct port {
	struct allowance important; /* for claims to addresses in the map of that name */
	struct allowance other;
	__u64 limited; /* frames with RESULT_LIMITED */
};

/* A tunnel (VNI) of which the bridge knows the VLAN, and the port of that bridge. */
struct tunnel {
	__u32 ifindex;
	__u32 id;
};

/* The claim in one frame. */
struct claim {
	struct binding binding;
	enum kind kind;
	enum protocol protocol;
	__u8 no_override;
	__u8 pad;
};

/* The time after which a known binding is reported again, and the same for a contested address. */
volatile const __u64 refresh_ns = 30 * NSEC_PER_SEC;
volatile const __u64 contested_refresh_ns = 1 * NSEC_PER_SEC;

/* Always 0, which the verifier does not know. Variables that a callback of bpf_loop changes are
 * initialized with it: before Linux 6.7, the verifier checks only one call of the callback and
 * removes code that the first call cannot reach.
 */
volatile __u8 zero;

/* Whether there is a tunnel in the map tunnels. */
volatile __u8 tunnelled;

/* Limits, for each port, of bindings that are reported to user space for the first time. They bound
 * the CPU time of the agent and the aggregator: a pod can invent new bindings as fast as it can
 * send, and each costs user space about 10 us. Bindings that were reported before do not count. At
 * the peak rate, a LAN of 50,000 hosts is known within 5 s. The sustained rate applies to a port
 * that continues after as many bindings as the agent keeps for one port.
 */
volatile const __u64 peak_interval_ns = NSEC_PER_SEC / 10000;
volatile const __u64 peak_burst = 1024;
volatile const __u64 sustained_interval_ns = NSEC_PER_SEC / 500;
volatile const __u64 sustained_burst = 65536;
/* The part of both buckets for other addresses that is reserved for bindings which were refused
 * before: hosts repeat their claims, and a flood of new bindings does not.
 */
volatile const __u64 repeated_burst = 256;
/* How long a refused binding is remembered, in ns. Hosts repeat ARP requests every second. */
volatile const __u64 refused_ns = 2 * NSEC_PER_SEC;
/* Random, so that an attacker cannot predict the slot of a binding in refusals. */
volatile const __u64 hash_seed = 0;

struct {
	__uint(type, BPF_MAP_TYPE_LRU_HASH);
	__type(key, struct binding);
	__type(value, struct reported);
	__uint(max_entries, MAX_BINDINGS);
} bindings SEC(".maps");

/* Addresses for which user space wants more frequent reports. */
struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__type(key, __u8[16]);
	__type(value, __u8);
	__uint(max_entries, MAX_CONTESTED);
} contested SEC(".maps");

/* Addresses that are configured or allocated on this node, and contested addresses. Claims to them
 * have separate limits, so that a flood of invented addresses does not hide them.
 */
struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(map_flags, BPF_F_NO_PREALLOC);
	__type(key, __u8[16]);
	__type(value, __u8);
	__uint(max_entries, MAX_IMPORTANT);
} important SEC(".maps");

/* Ports by interface index. User space adds a port before it attaches the program to it. */
struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(map_flags, BPF_F_NO_PREALLOC);
	__type(key, __u32);
	__type(value, struct port);
	__uint(max_entries, MAX_PORTS);
} ports SEC(".maps");

/* The VLANs in which bridges put the frames of tunnels (vlan_tunnel): one VXLAN device, of which
 * the frames have metadata, may serve many networks.
 */
struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(map_flags, BPF_F_NO_PREALLOC);
	__type(key, struct tunnel);
	__type(value, __u16);
	__uint(max_entries, MAX_TUNNELS);
} tunnels SEC(".maps");

/* Bindings that were refused recently. One half of a binding's hash selects the slot; the slot has
 * the other half in its lower 32 bits, and the time in units of 2^20 ns in its upper 32 bits. A
 * slot is not reused before refused_ns have passed, so that a flood cannot evict its content.
 */
struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__type(key, __u32);
	__type(value, __u64);
	__uint(max_entries, MAX_REFUSALS);
} refusals SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_RINGBUF);
	__type(value, struct event);
	__uint(max_entries, EVENTS_SIZE);
} events SEC(".maps");

/* A separate macro, because clang-format takes the product for a pointer. */
#define COUNTERS (PROTOCOLS * RESULTS)

/* Frames by protocol * RESULTS + result. */
struct {
	__uint(type, BPF_MAP_TYPE_PERCPU_ARRAY);
	__type(key, __u32);
	__type(value, __u64);
	__uint(max_entries, COUNTERS);
} counters SEC(".maps");

struct vlan_tag {
	__be16 tci;
	__be16 protocol; /* of the data that follows */
};

/* ARP for IPv4 over Ethernet. */
struct arp {
	__be16 htype;
	__be16 ptype;
	__u8 hlen;
	__u8 plen;
	__be16 op;
	__u8 sha[ETH_ALEN];
	__u8 spa[4];
	__u8 tha[ETH_ALEN];
	__u8 tpa[4];
};

struct ipv6 {
	__u8 version; /* in its upper half */
	__u8 flow[3];
	__be16 payload_length;
	__u8 next_header;
	__u8 hop_limit;
	__be32 source[4];
	__be32 destination[4];
};

/* The first bytes of an extension header that may precede NDP. */
struct ipv6_extension {
	__u8 next_header;
	__u8 length; /* in units of 8 bytes, without the first 8 bytes */
	__u8 routing_type;
	__u8 segments_left;
};

/* A neighbour solicitation or advertisement, without its options. */
struct nd_message {
	__u8 type;
	__u8 code;
	__be16 checksum;
	__u8 flags; /* only in an advertisement */
	__u8 reserved[3];
	__be32 target[4];
};

/* An option of the minimum length, which is that of an Ethernet link-layer address. */
struct nd_option {
	__u8 type;
	__u8 length; /* in units of 8 bytes */
	__u8 lladdr[ETH_ALEN];
};

static __always_inline void count(enum protocol protocol, enum result result)
{
	__u32 index = protocol * RESULTS + result;
	__u64 *frames = bpf_map_lookup_elem(&counters, &index);

	if (frames)
		(*frames)++;
}

/* Takes a token from the bucket that is full again at *full, unless fewer than leave tokens would
 * remain.
 */
static __always_inline bool take_token(__u64 *full, __u64 now, __u64 interval, __u64 burst,
				       __u64 leave)
{
	for (int i = 0; i < MAX_TRIES; i++) {
		__u64 was = READ_ONCE(*full);
		__u64 next = (was > now ? was : now) + interval;

		if (next > now + (burst - leave) * interval)
			return false;
		if (__sync_val_compare_and_swap(full, was, next) == was)
			return true;
	}
	return false;
}

static __always_inline bool take(struct allowance *allowance, __u64 now, __u64 leave)
{
	return take_token(&allowance->peak, now, peak_interval_ns, peak_burst, leave) &&
	       take_token(&allowance->sustained, now, sustained_interval_ns, sustained_burst,
			  leave);
}

/* Records that a binding is refused, and reports whether it was refused before within refused_ns.
 */
static __always_inline bool refused_before(const struct binding *binding, __u64 now)
{
	const __u32 *words = (const __u32 *)binding;
	__u32 when = now >> 20, age, index;
	__u64 hash = hash_seed, *refusal;

	for (int i = 0; i < (int)(sizeof(*binding) / sizeof(*words)); i++) {
		hash = (hash ^ words[i]) * 0x9e3779b97f4a7c15ULL;
		hash ^= hash >> 29;
	}
	index = (hash >> 32) % MAX_REFUSALS;
	refusal = bpf_map_lookup_elem(&refusals, &index);
	if (!refusal)
		return false;
	age = when - (__u32)(*refusal >> 32);
	if (!*refusal || age > refused_ns >> 20) {
		*refusal = (__u64)when << 32 | (__u32)hash;
		return false;
	}
	return (__u32)*refusal == (__u32)hash;
}

/* Returns RESULT_EVENT if a new binding may be reported to user space. */
static __noinline enum result may_report(const struct binding *binding, __u64 now)
{
	__u32 ifindex = binding->ifindex;
	struct port *port = bpf_map_lookup_elem(&ports, &ifindex);

	if (!port)
		return RESULT_EVENT;
	if (bpf_map_lookup_elem(&important, binding->addr)) {
		if (take(&port->important, now, 0))
			return RESULT_EVENT;
	} else {
		/* The other half of the ring buffer is reserved for important addresses. */
		if (bpf_ringbuf_query(&events, BPF_RB_AVAIL_DATA) > EVENTS_SIZE / 2)
			return RESULT_LOST;
		__u64 tick = now & ~(TOKENS_EVERY - 1);

		if (take(&port->other, tick, repeated_burst) ||
		    (refused_before(binding, now) && take(&port->other, tick, 0)))
			return RESULT_EVENT;
	}
	__sync_fetch_and_add(&port->limited, 1);
	return RESULT_LIMITED;
}

/* Reports a claim to user space, unless one of the same kind was reported in this period. Returns
 * RESULT_NONE if another CPU was faster; the caller then tries again.
 */
static __noinline enum result report(const struct claim *claim)
{
	const struct binding *binding = &claim->binding;
	const __u64 bit = 1ULL << (claim->kind + (claim->no_override ? NO_OVERRIDE_BITS : 0));
	struct reported *prev = bpf_map_lookup_elem(&bindings, binding);
	__u64 was = prev ? READ_ONCE(prev->period) : 0;
	/* Read after the period, so that it is never before it. The coarse clock is accurate to
	 * some milliseconds, which suffices here, and is cheaper than the exact clock.
	 */
	__u64 now = bpf_ktime_get_coarse_ns();
	__u64 period = (now & ~KINDS) | bit;
	struct event *event;
	__u32 frames = 0;

	if (prev) {
		__u64 age = now - (was & ~KINDS);

		if (age < refresh_ns && (age < contested_refresh_ns ||
					 !bpf_map_lookup_elem(&contested, binding->addr))) {
			period = was | bit;
			if (period == was) {
				__sync_fetch_and_add(&prev->frames, 1);
				return RESULT_KNOWN;
			}
		}
	} else {
		enum result may = may_report(binding, now);

		if (may != RESULT_EVENT)
			return may;
	}

	/* A claim may be marked as reported only if the report cannot fail any more. */
	event = bpf_ringbuf_reserve(&events, sizeof(*event), 0);
	if (!event) {
		if (prev)
			__sync_fetch_and_add(&prev->frames, 1);
		return RESULT_LOST;
	}

	if (prev) {
		if (__sync_val_compare_and_swap(&prev->period, was, period) != was)
			goto raced;
		frames = __sync_lock_test_and_set(&prev->frames, 0);
	} else {
		struct reported first = {.period = period};
		/* An int, because before Linux 6.4 the upper half of the result may be wrong. */
		int err = bpf_map_update_elem(&bindings, binding, &first, BPF_NOEXIST);

		/* After any other error the binding stays unknown: two reports are better than
		 * none.
		 */
		if (err == -EEXIST)
			goto raced;
	}

	event->ktime = bpf_ktime_get_ns();
	event->ifindex = binding->ifindex;
	event->frames = frames + 1;
	__builtin_memcpy(event->addr, binding->addr, sizeof(event->addr));
	event->vlan = binding->vlan;
	event->inner_vlan = binding->inner_vlan;
	__builtin_memcpy(event->sha, binding->sha, sizeof(event->sha));
	__builtin_memcpy(event->source, binding->source, sizeof(event->source));
	event->kind = claim->kind;
	event->protocol = claim->protocol;
	event->no_override = claim->no_override;
	__builtin_memset(event->pad, 0, sizeof(event->pad));
	bpf_ringbuf_submit(event, 0);
	return RESULT_EVENT;
raced:
	bpf_ringbuf_discard(event, 0);
	return RESULT_NONE;
}

static __always_inline bool is_vlan(__be16 protocol)
{
	return protocol == bpf_htons(ETH_P_8021Q) || protocol == bpf_htons(ETH_P_8021AD);
}

/* The VLAN tags of a frame, from the outermost inwards. */
struct tags {
	struct __sk_buff *skb;
	__u32 offset;
	__be16 protocol; /* of the data at offset */
	__u16 vlan;      /* as in struct binding */
	__u16 inner_vlan;
	bool more; /* there are more than two VLANs */
	bool cut;  /* the frame ends within a tag */
};

/* Adds a VLAN. A priority tag (VID 0) does not count. */
static __always_inline void add_vlan(struct tags *tags, __u16 tci)
{
	__u16 vid = tci & VLAN_VID_MASK;

	if (!vid)
		return;
	if (!tags->vlan)
		tags->vlan = vid;
	else if (!tags->inner_vlan)
		tags->inner_vlan = vid;
	else
		tags->more = true;
}

/* Parses one tag; returning 1 ends the loop. Linux removes any number of tags with VID 0
 * (__netif_receive_skb_core in net/core/dev.c).
 */
static long next_tag(__u32 i __attribute__((unused)), struct tags *tags)
{
	struct vlan_tag tag;

	if (!is_vlan(tags->protocol))
		return 1;
	if (bpf_skb_load_bytes(tags->skb, tags->offset, &tag, sizeof(tag))) {
		tags->cut = true;
		return 1;
	}
	add_vlan(tags, bpf_ntohs(tag.tci));
	tags->protocol = tag.protocol;
	tags->offset += sizeof(tag);
	return 0;
}

/* Parses an ARP packet. If it returns RESULT_EVENT, claim has the claim of the packet. */
static __always_inline enum result read_arp(struct __sk_buff *skb, __u32 offset,
					    struct claim *claim)
{
	struct arp arp;
	__be32 spa, tpa;

	/* Copied, because the frame may not be contiguous. */
	if (bpf_skb_load_bytes(skb, offset, &arp, sizeof(arp)))
		return RESULT_MALFORMED;
	/* Linux accepts both hardware types on Ethernet (arp_process in net/ipv4/arp.c). */
	if (arp.htype != bpf_htons(ARPHRD_ETHER) && arp.htype != bpf_htons(ARPHRD_IEEE802))
		return RESULT_MALFORMED;
	if (arp.ptype != bpf_htons(ETH_P_IP) || arp.hlen != sizeof(arp.sha) ||
	    arp.plen != sizeof(arp.spa))
		return RESULT_MALFORMED;
	if (arp.op != bpf_htons(ARPOP_REQUEST) && arp.op != bpf_htons(ARPOP_REPLY))
		return RESULT_OTHER;

	/* Any sender hardware address is reported, even a multicast one: Linux adds it to the
	 * neighbour table.
	 */
	/* Loopback, multicast, class E and broadcast. */
	if (arp.spa[0] == IN_LOOPBACKNET || arp.spa[0] >= 224)
		return RESULT_INVALID;
	__builtin_memcpy(&spa, arp.spa, sizeof(spa));
	__builtin_memcpy(&tpa, arp.tpa, sizeof(tpa));
	if (!spa)
		return arp.op == bpf_htons(ARPOP_REQUEST) ? RESULT_PROBE : RESULT_INVALID;

	/* RFC 5227, sections 1.1 and 3: in an announcement, sender and target address are the same.
	 */
	if (spa == tpa)
		claim->kind = KIND_ANNOUNCED;
	else if (arp.op == bpf_htons(ARPOP_REPLY))
		claim->kind = KIND_ANSWERED;
	else
		claim->kind = KIND_USED;

	claim->binding.addr[10] = 0xff;
	claim->binding.addr[11] = 0xff;
	__builtin_memcpy(claim->binding.addr + 12, arp.spa, sizeof(arp.spa));
	__builtin_memcpy(claim->binding.sha, arp.sha, sizeof(arp.sha));
	return RESULT_EVENT;
}

/* Reports whether a header is ICMPv6 or an extension header that may precede NDP. A fragment header
 * may not: receivers ignore NDP in fragments (RFC 6980). AH and ESP cannot be parsed without a key.
 */
static __always_inline bool leads_to_ndp(__u8 header)
{
	return header == IPPROTO_ICMPV6 || header == IPPROTO_HOPOPTS || header == IPPROTO_ROUTING ||
	       header == IPPROTO_DSTOPTS;
}

static __always_inline bool is_multicast(const __be32 addr[4])
{
	return (addr[0] & bpf_htonl(0xff000000)) == bpf_htonl(0xff000000);
}

static __always_inline bool is_unspecified(const __be32 addr[4])
{
	return !(addr[0] | addr[1] | addr[2] | addr[3]);
}

/* ff02::1:ff00:0/104, RFC 4291, section 2.7.1. */
static __always_inline bool is_solicited_node(const __be32 addr[4])
{
	return addr[0] == bpf_htonl(0xff020000) && !addr[1] && addr[2] == bpf_htonl(1) &&
	       (addr[3] & bpf_htonl(0xff000000)) == bpf_htonl(0xff000000);
}

/* Reports whether addr can be the address of one host: not multicast, :: or ::1, and not in
 * ::ffff:0:0/96, which receivers reject in frames and which stands for IPv4 in struct binding.
 */
static __always_inline bool is_host_addr(const __be32 addr[4])
{
	if (is_multicast(addr))
		return false;
	if (addr[0] | addr[1])
		return true;
	if (!addr[2])
		return addr[3] && addr[3] != bpf_htonl(1);
	return addr[2] != bpf_htonl(0xffff);
}

/* The NDP options between offset and end. */
struct options {
	struct __sk_buff *skb;
	__u32 offset;
	__u32 end;
	struct nd_option found; /* the first option of the type; its length is 0 if there is none */
	__u8 type;
	bool bad;
};

/* Parses one option; returning 1 ends the loop. */
static long next_option(__u32 i __attribute__((unused)), struct options *options)
{
	struct nd_option option;

	if (options->offset >= options->end)
		return 1;
	if (bpf_skb_load_bytes(options->skb, options->offset, &option, sizeof(option)) ||
	    !option.length) {
		options->bad = true;
		return 1;
	}
	if (option.type == options->type && !options->found.length)
		options->found = option;
	options->offset += option.length * sizeof(option);
	return 0;
}

/* Parses all options between offset and end, and stores the first one of a type in *found; its
 * length is 0 if there is none. Returns RESULT_EVENT if the lengths of the options add up.
 * Otherwise the behaviour of receivers is not known.
 */
static __always_inline enum result find_option(struct __sk_buff *skb, __u32 offset, __u32 end,
					       __u8 type, struct nd_option *found)
{
	struct options options = {
		.skb = skb,
		.offset = offset + zero,
		.end = end,
		.found = {.type = zero, .length = zero},
		.type = type,
		.bad = zero,
	};

	bpf_loop(MAX_ND_OPTIONS, next_option, &options, 0);
	*found = options.found;
	if (options.bad || options.offset > end)
		return RESULT_MALFORMED;
	if (options.offset == end)
		return RESULT_EVENT;
	return end - options.offset < sizeof(*found) ? RESULT_MALFORMED : RESULT_UNPARSED_OPTIONS;
}

/* The headers of an IPv6 packet. */
struct headers {
	struct __sk_buff *skb;
	__u32 offset;
	__u8 header; /* of the data at offset */
	bool other;  /* not followed by NDP */
};

/* Parses one extension header; returning 1 ends the loop. The options in the header are not
 * checked.
 */
static long next_header(__u32 i, struct headers *headers)
{
	struct ipv6_extension extension;

	if (headers->header == IPPROTO_ICMPV6)
		return 1;
	if (!leads_to_ndp(headers->header) || (headers->header == IPPROTO_HOPOPTS && i) ||
	    bpf_skb_load_bytes(headers->skb, headers->offset, &extension, sizeof(extension))) {
		headers->other = true;
		return 1;
	}
	/* The packet is forwarded to another host, which then processes it. */
	if (headers->header == IPPROTO_ROUTING && extension.segments_left) {
		headers->other = true;
		return 1;
	}
	headers->header = extension.next_header;
	headers->offset += (extension.length + 1) * 8;
	return 0;
}

/* Parses an IPv6 packet. If it returns RESULT_EVENT, claim has the claim of an NDP message. The
 * checksum is not verified: a forger can compute it, and a valid frame does not have it yet if a
 * virtual interface leaves it to the hardware (CHECKSUM_PARTIAL).
 */
static __always_inline enum result read_ndp(struct __sk_buff *skb, __u32 offset,
					    struct claim *claim)
{
	struct nd_option lladdr;
	struct nd_message nd;
	struct ipv6 ip;
	struct headers headers = {.skb = skb, .other = zero};
	enum result options;
	__u32 end;
	__u8 type;

	if (bpf_skb_load_bytes(skb, offset, &ip, sizeof(ip)) || ip.version >> 4 != 6)
		return RESULT_NONE;
	offset += sizeof(ip);
	/* Not the end of the frame, which may be padded. */
	end = offset + bpf_ntohs(ip.payload_length);

	headers.header = ip.next_header;
	if (headers.header != IPPROTO_ICMPV6) {
		headers.offset = offset + zero;
		bpf_loop(MAX_EXTENSIONS, next_header, &headers, 0);
		if (headers.other)
			return RESULT_NONE;
		if (headers.header != IPPROTO_ICMPV6)
			return leads_to_ndp(headers.header) ? RESULT_UNPARSED_EXTENSIONS
							    : RESULT_NONE;
		offset = headers.offset;
	}
	if (bpf_skb_load_bytes(skb, offset, &type, sizeof(type)) ||
	    (type != ND_SOLICITATION && type != ND_ADVERTISEMENT))
		return RESULT_NONE;

	if (end > skb->len || offset + sizeof(nd) > end ||
	    bpf_skb_load_bytes(skb, offset, &nd, sizeof(nd)))
		return RESULT_MALFORMED;
	offset += sizeof(nd);

	/* RFC 4861, sections 7.1.1 and 7.1.2. */
	if (ip.hop_limit != ND_HOP_LIMIT || nd.code)
		return RESULT_INVALID;
	if (!is_host_addr(nd.target))
		return RESULT_INVALID;
	if (!is_unspecified(ip.source) && !is_host_addr(ip.source))
		return RESULT_INVALID;

	if (type == ND_SOLICITATION) {
		options = find_option(skb, offset, end, ND_SOURCE_LLADDR, &lladdr);
		if (options != RESULT_EVENT)
			return options;
		/* RFC 4862, section 5.4.2: duplicate address detection. A looped-back solicitation
		 * (RFC 7527) needs no special case, because a probe claims nothing.
		 */
		if (is_unspecified(ip.source))
			return is_solicited_node(ip.destination) && !lladdr.length ? RESULT_PROBE
										   : RESULT_INVALID;
		claim->kind = KIND_USED;
		__builtin_memcpy(claim->binding.addr, ip.source, sizeof(ip.source));
	} else {
		bool solicited = nd.flags & ND_SOLICITED;

		if (solicited && is_multicast(ip.destination))
			return RESULT_INVALID;
		options = find_option(skb, offset, end, ND_TARGET_LLADDR, &lladdr);
		if (options != RESULT_EVENT)
			return options;
		claim->kind = solicited ? KIND_ANSWERED : KIND_ANNOUNCED;
		claim->no_override = !(nd.flags & ND_OVERRIDE);
		__builtin_memcpy(claim->binding.addr, nd.target, sizeof(nd.target));
	}
	/* Without the option, the message does not have a MAC address. */
	if (!lladdr.length)
		return RESULT_OTHER;
	if (lladdr.length != 1)
		return RESULT_INVALID;
	__builtin_memcpy(claim->binding.sha, lladdr.lladdr, sizeof(lladdr.lladdr));
	return RESULT_EVENT;
}

/* Returns the VLAN of a frame without a tag that came through a tunnel, as
 * br_handle_ingress_vlan_tunnel in net/bridge/br_vlan_tunnel.c does; 0 if it came through none, or
 * its bridge has no VLAN for it.
 */
static __noinline __u16 vlan_of_tunnel(struct __sk_buff *skb)
{
	const __u32 size = offsetof(struct bpf_tunnel_key, tunnel_label);
	struct tunnel tunnel = {.ifindex = skb->ifindex};
	struct bpf_tunnel_key key = {};
	__u16 *vlan;

	/* Of both families of outer packets. Linux before 5.19 knows no fields behind the first
	 * ones. */
	if (bpf_skb_get_tunnel_key(skb, &key, size, 0) &&
	    bpf_skb_get_tunnel_key(skb, &key, size, BPF_F_TUNINFO_IPV6))
		return 0;
	tunnel.id = key.tunnel_id;
	vlan = bpf_map_lookup_elem(&tunnels, &tunnel);
	return vlan ? *vlan : 0;
}

/* A separate function, so that frames of other protocols do not pay for its stack. */
static __noinline void observe_frame(struct __sk_buff *skb)
{
	struct claim claim = {.binding.ifindex = skb->ifindex};
	struct tags tags = {
		.skb = skb,
		.offset = ETH_HLEN + zero,
		.protocol = skb->protocol,
		.vlan = zero,
		.inner_vlan = zero,
		.more = zero,
		.cut = zero,
	};
	enum result result;

	/* The kernel has removed the outermost tag from the frame, except in BPF_PROG_TEST_RUN.
	 * Before Linux 6.2, vlan_tci may have the value of an earlier tag.
	 */
	if (skb->vlan_present)
		add_vlan(&tags, skb->vlan_tci);
	if (is_vlan(tags.protocol)) {
		bpf_loop(MAX_TAGS, next_tag, &tags, 0);
		if (tags.cut)
			return;
		/* The inner protocol is not known; the frame is counted as ARP. */
		if (is_vlan(tags.protocol))
			count(PROTOCOL_ARP, RESULT_UNPARSED_TAGS);
	} else if (tunnelled && !skb->vlan_present) {
		tags.vlan = vlan_of_tunnel(skb);
	}

	claim.binding.vlan = tags.vlan;
	claim.binding.inner_vlan = tags.inner_vlan;

	switch (tags.protocol) {
	case bpf_htons(ETH_P_ARP):
		claim.protocol = PROTOCOL_ARP;
		result = read_arp(skb, tags.offset, &claim);
		break;
	case bpf_htons(ETH_P_IPV6):
		claim.protocol = PROTOCOL_NDP;
		result = read_ndp(skb, tags.offset, &claim);
		break;
	default:
		return;
	}
	if (tags.more)
		result = result == RESULT_EVENT ? RESULT_UNPARSED_TAGS : RESULT_NONE;
	if (result == RESULT_EVENT) {
		bpf_skb_load_bytes(skb, ETH_ALEN, claim.binding.source,
				   sizeof(claim.binding.source));
		result = RESULT_NONE;
		for (int i = 0; i < MAX_TRIES && result == RESULT_NONE; i++)
			result = report(&claim);
		if (result == RESULT_NONE)
			result = RESULT_LOST;
	}
	if (result != RESULT_NONE)
		count(claim.protocol, result);
}

/* Reports whether an IPv6 frame certainly has no NDP message. If the header is not in the linear
 * data of the frame, the answer is no.
 */
static __always_inline bool cannot_be_ndp(struct __sk_buff *skb)
{
	const __u8 *header =
		(void *)(long)skb->data + ETH_HLEN + offsetof(struct ipv6, next_header);

	return (void *)(header + 1) <= (void *)(long)skb->data_end && !leads_to_ndp(*header);
}

SEC("tc")
int observe(struct __sk_buff *skb)
{
	switch (skb->protocol) {
	case bpf_htons(ETH_P_IPV6):
		if (cannot_be_ndp(skb))
			break;
		__attribute__((fallthrough));
	case bpf_htons(ETH_P_ARP):
	case bpf_htons(ETH_P_8021Q):
	case bpf_htons(ETH_P_8021AD):
		observe_frame(skb);
	}
	/* Equal to TCX_NEXT, which kernel headers before Linux 6.6 do not have. */
	return TC_ACT_UNSPEC;
}
