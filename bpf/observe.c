//go:build ignore

// SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause)

/* Sees who claims which address on the ingress of one interface, and tells user space.
 *
 * It watches only: every frame goes on as if this program were not there. ARP is read as RFC 826
 * and RFC 5227 define it. decode.go says the same in Go, and a fuzz test holds the two together.
 */

#include <asm/errno.h>
#include <linux/bpf.h>
#include <linux/if_ether.h>
#include <linux/pkt_cls.h>
#include <linux/types.h>
#include <stdbool.h>
#include <bpf/bpf_endian.h>
#include <bpf/bpf_helpers.h>

/* Not from linux/if_arp.h and linux/in.h: those need the headers of a 32-bit libc. */
#define ARPHRD_ETHER   1
#define ARPOP_REQUEST  1
#define ARPOP_REPLY    2
#define IN_LOOPBACKNET 127

#define VLAN_VID_MASK 0x0fff
/* More tags than these, or more VLANs, no interface of a host is likely to terminate. */
#define MAX_FRAME_TAGS 2
#define MAX_BINDINGS   131072
#define MAX_CONTESTED  16384
#define EVENTS_SIZE    (1 << 20)
/* A try fails when another CPU tells of the same binding at that moment, which it can do once for
 * each kind.
 */
#define MAX_TRIES    4
#define NSEC_PER_SEC 1000000000ULL

#define READ_ONCE(x) (*(const volatile typeof(x) *)&(x))

char __license[] SEC("license") = "Dual BSD/GPL";

/* One byte each, so that the event, too, is declared with them. */
enum __attribute__((packed)) protocol {
	PROTOCOL_ARP,
	PROTOCOLS,
};

/* How an address was claimed. */
enum __attribute__((packed)) kind {
	KIND_ANNOUNCED = 1, /* to everybody, unasked */
	KIND_ANSWERED = 2,  /* when asked for */
	KIND_USED = 3,      /* as the sender of a question about another address */
};

/* What became of a frame. */
enum __attribute__((packed)) result {
	RESULT_NONE,      /* none of our protocols: not counted */
	RESULT_EVENT,     /* user space was told */
	RESULT_KNOWN,     /* user space has been told before */
	RESULT_PROBE,     /* asks whether an address is free: claims nothing */
	RESULT_MALFORMED, /* not ARP for IPv4 over Ethernet, or cut off */
	RESULT_INVALID,   /* a sender that no host can be */
	RESULT_OTHER,     /* neither request nor reply */
	RESULT_LOST,      /* the ring was full: the next such frame tries again */
	RESULTS,
};

/* Who says to hold which address, and where. IPv4 addresses are written as ::ffff:a.b.c.d. */
struct binding {
	__u32 ifindex;
	__u16 vlan;       /* outermost VID, 0 without */
	__u16 inner_vlan; /* the VID inside, 0 without */
	__u8 addr[16];
	__u8 sha[ETH_ALEN];
	__u8 pad[2];
};

/* What user space knows of a binding. */
struct told {
	/* The start of the period, in bpf_ktime_get_coarse_ns(), and in its lowest byte a bit for
	 * each kind told in that period: one word, so that one compare-and-swap claims both.
	 */
	__u64 period;
	__u32 frames; /* since the last event */
	__u32 pad;
};

#define KINDS 0xffULL

struct event {
	__u64 ktime; /* bpf_ktime_get_ns() */
	__u32 ifindex;
	__u32 frames; /* of this binding since its last event, this one included */
	__u8 addr[16];
	__u16 vlan;
	__u16 inner_vlan;
	__u8 sha[ETH_ALEN];
	__u8 source[ETH_ALEN]; /* of the Ethernet frame */
	enum kind kind;
	enum protocol protocol;
	__u8 pad[6];
};

/* How long a binding stays told, and how long while its address is contested. */
volatile const __u64 refresh_ns = 30 * NSEC_PER_SEC;
volatile const __u64 contested_refresh_ns = 1 * NSEC_PER_SEC;

struct {
	__uint(type, BPF_MAP_TYPE_LRU_HASH);
	__type(key, struct binding);
	__type(value, struct told);
	__uint(max_entries, MAX_BINDINGS);
} bindings SEC(".maps");

/* Addresses of which user space wants to hear more often. */
struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__type(key, __u8[16]);
	__type(value, __u8);
	__uint(max_entries, MAX_CONTESTED);
} contested SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_RINGBUF);
	__type(value, struct event);
	__uint(max_entries, EVENTS_SIZE);
} events SEC(".maps");

/* Of its own, or clang-format takes the product for a pointer. */
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
	__be16 protocol; /* of what follows */
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

static __always_inline void count(enum protocol protocol, enum result result)
{
	__u32 index = protocol * RESULTS + result;
	__u64 *frames = bpf_map_lookup_elem(&counters, &index);

	if (frames)
		(*frames)++;
}

/* Tells user space of a claim, unless it has been told of that kind in this period. RESULT_NONE
 * means that another CPU was faster: look again.
 */
static __noinline enum result tell(struct __sk_buff *skb, const struct binding *binding,
				   enum protocol protocol, enum kind kind)
{
	struct told *told = bpf_map_lookup_elem(&bindings, binding);
	__u64 was = told ? READ_ONCE(told->period) : 0;
	/* Read after the period, so that it is never before it. Good to some milliseconds, which
	 * is enough here, and cheaper than the exact clock.
	 */
	__u64 now = bpf_ktime_get_coarse_ns();
	__u64 period = (now & ~KINDS) | 1ULL << kind;
	struct event *event;
	__u32 frames = 0;

	if (told) {
		__u64 age = now - (was & ~KINDS);

		if (age < refresh_ns && (age < contested_refresh_ns ||
					 !bpf_map_lookup_elem(&contested, binding->addr))) {
			period = was | 1ULL << kind;
			if (period == was) {
				__sync_fetch_and_add(&told->frames, 1);
				return RESULT_KNOWN;
			}
		}
	}

	/* Only what is sure to be told may be noted as told. */
	event = bpf_ringbuf_reserve(&events, sizeof(*event), 0);
	if (!event) {
		if (told)
			__sync_fetch_and_add(&told->frames, 1);
		return RESULT_LOST;
	}

	if (told) {
		if (__sync_val_compare_and_swap(&told->period, was, period) != was)
			goto raced;
		frames = __sync_lock_test_and_set(&told->frames, 0);
	} else {
		struct told first = {.period = period};
		/* An int: before Linux 6.4 its upper half may be missing. */
		int err = bpf_map_update_elem(&bindings, binding, &first, BPF_NOEXIST);

		/* Any other error leaves the binding unknown: better told twice than never. */
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
	bpf_skb_load_bytes(skb, ETH_ALEN, event->source, sizeof(event->source));
	event->kind = kind;
	event->protocol = protocol;
	__builtin_memset(event->pad, 0, sizeof(event->pad));
	bpf_ringbuf_submit(event, 0);
	return RESULT_EVENT;
raced:
	bpf_ringbuf_discard(event, 0);
	return RESULT_NONE;
}

/* Notes one more VLAN, from the outside in. A priority tag (VID 0) is none. */
static __always_inline bool add_vlan(struct binding *binding, __u16 tci)
{
	__u16 vid = tci & VLAN_VID_MASK;

	if (!vid)
		return true;
	if (!binding->vlan) {
		binding->vlan = vid;
		return true;
	}
	if (!binding->inner_vlan) {
		binding->inner_vlan = vid;
		return true;
	}
	return false;
}

/* A function of its own, so that frames that are not ours do not pay for its stack. */
static __noinline enum result observe_arp(struct __sk_buff *skb)
{
	struct binding binding = {.ifindex = skb->ifindex};
	__be16 protocol = skb->protocol;
	__u32 offset = ETH_HLEN;
	struct arp arp;
	__be32 spa, tpa;
	enum kind kind;

	/* The kernel has taken the outermost tag out of the frame, except in BPF_PROG_TEST_RUN.
	 * Before Linux 6.2 vlan_tci may hold a former tag.
	 */
	if (skb->vlan_present)
		add_vlan(&binding, skb->vlan_tci);
	for (int i = 0; i < MAX_FRAME_TAGS; i++) {
		struct vlan_tag tag;

		if (protocol != bpf_htons(ETH_P_8021Q) && protocol != bpf_htons(ETH_P_8021AD))
			break;
		if (bpf_skb_load_bytes(skb, offset, &tag, sizeof(tag)))
			return RESULT_NONE;
		if (!add_vlan(&binding, bpf_ntohs(tag.tci)))
			return RESULT_NONE;
		protocol = tag.protocol;
		offset += sizeof(tag);
	}
	if (protocol != bpf_htons(ETH_P_ARP))
		return RESULT_NONE;

	/* Copied, because the frame may not be in one piece. */
	if (bpf_skb_load_bytes(skb, offset, &arp, sizeof(arp)))
		return RESULT_MALFORMED;
	if (arp.htype != bpf_htons(ARPHRD_ETHER) || arp.ptype != bpf_htons(ETH_P_IP) ||
	    arp.hlen != sizeof(arp.sha) || arp.plen != sizeof(arp.spa))
		return RESULT_MALFORMED;
	if (arp.op != bpf_htons(ARPOP_REQUEST) && arp.op != bpf_htons(ARPOP_REPLY))
		return RESULT_OTHER;

	if (arp.sha[0] & 1) /* a group of hosts */
		return RESULT_INVALID;
	if (!(arp.sha[0] | arp.sha[1] | arp.sha[2] | arp.sha[3] | arp.sha[4] | arp.sha[5]))
		return RESULT_INVALID;
	/* Loopback, multicast, class E and broadcast. */
	if (arp.spa[0] == IN_LOOPBACKNET || arp.spa[0] >= 224)
		return RESULT_INVALID;
	__builtin_memcpy(&spa, arp.spa, sizeof(spa));
	__builtin_memcpy(&tpa, arp.tpa, sizeof(tpa));
	if (!spa)
		return arp.op == bpf_htons(ARPOP_REQUEST) ? RESULT_PROBE : RESULT_INVALID;

	/* RFC 5227, sections 1.1 and 3: an announcement asks for, or answers with, its own
	 * address.
	 */
	if (spa == tpa)
		kind = KIND_ANNOUNCED;
	else if (arp.op == bpf_htons(ARPOP_REPLY))
		kind = KIND_ANSWERED;
	else
		kind = KIND_USED;

	binding.addr[10] = 0xff;
	binding.addr[11] = 0xff;
	__builtin_memcpy(binding.addr + 12, arp.spa, sizeof(arp.spa));
	__builtin_memcpy(binding.sha, arp.sha, sizeof(arp.sha));

	for (int i = 0; i < MAX_TRIES; i++) {
		enum result result = tell(skb, &binding, PROTOCOL_ARP, kind);

		if (result != RESULT_NONE)
			return result;
	}
	return RESULT_LOST;
}

SEC("tc")
int observe(struct __sk_buff *skb)
{
	switch (skb->protocol) {
	case bpf_htons(ETH_P_ARP):
	case bpf_htons(ETH_P_8021Q):
	case bpf_htons(ETH_P_8021AD): {
		enum result result = observe_arp(skb);

		if (result != RESULT_NONE)
			count(PROTOCOL_ARP, result);
	}
	}
	/* The same as TCX_NEXT, which headers before Linux 6.6 do not have. */
	return TC_ACT_UNSPEC;
}
