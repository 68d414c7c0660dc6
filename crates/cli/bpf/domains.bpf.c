/* What may be asked of a name server: a policy for a domain is one for all names below it, unless there is another one nearer to the name.
 *
 * Policies lie in a trie by reversed names, "com.example.www": then all that is below a domain has it as prefix, and lies side by side.
 *
 *     skep test domains.test.toml
 */
#include "skep.bpf.h"
#include "skep_maps.bpf.h"

#define LONGEST 255 /* bytes of a name */
#define LABELS 16 /* most labels of a name that is judged */
#define HEADERS (14 + 20 + 8 + 12) /* Ethernet, IPv4 without options, UDP, DNS */

enum { XDP_ABORTED, XDP_DROP, XDP_PASS };

struct xdp_md {
	__u32 data, data_end, data_meta, ingress_ifindex, rx_queue_index, egress_ifindex;
};

struct policy {
	__u32 action; /* XDP_DROP or XDP_PASS */
	__u32 :32;
	__u64 queries; /* that it decided */
};

struct {
	__uint(type, BPF_MAP_TYPE_QP_TRIE);
	__uint(max_entries, 1000000);
	__uint(map_extra, LONGEST);
	__uint(map_flags, BPF_F_NO_PREALLOC);
	__type(key, struct bpf_dynptr);
	__type(value, struct policy);
} policies SEC(".maps");

/*
 * Where a name is reversed: dynptrs are of map memory. It is volatile below, as the verifier takes long for numbers in registers, which it
 * follows from byte to byte.
 * Labels are copied from the end of `text` to its front. `ends` tells where each ends, the first one last.
 */
struct reversed {
	__u32 at; /* where the text begins by now */
	__u32 labels;
	__u32 left; /* of the label that is copied */
	__u32 to;
	__u8 ends[LABELS];
	__u8 text[2 * (LONGEST + 1)];
};

struct {
	__uint(type, BPF_MAP_TYPE_PERCPU_ARRAY);
	__uint(max_entries, 1);
	__type(key, __u32);
	__type(value, struct reversed);
} buffers SEC(".maps");

/* Copies the name at `p`; 0 when it is not whole, compressed, or has too many labels. A function of its own, so that paths meet behind it. */
static __attribute__((noinline)) int reverse(volatile struct reversed *name, __u8 *p, __u8 *end)
{
	name->at = LONGEST;
	name->labels = name->left = 0;
	for (int i = 0; i <= LONGEST; i++, p++) {
		if (p + 1 > end)
			return 0;
		if (name->left) {
			name->text[name->to++ & 0xff] = *p >= 'A' && *p <= 'Z' ? *p | 0x20 : *p;
			name->left--;
			continue;
		}
		if (!*p)
			return name->labels;
		if (*p > 63 || name->labels >= LABELS || name->at < *p + 1u)
			return 0;
		if (name->labels)
			name->text[--name->at & 0xff] = '.';
		name->ends[name->labels++ & (LABELS - 1)] = name->at;
		name->at -= *p;
		name->left = *p;
		name->to = name->at;
	}
	return 0;
}

SEC("xdp")
int policy(struct xdp_md *ctx)
{
	__u8 *packet = (void *)(long)ctx->data, *end = (void *)(long)ctx->data_end;
	__u32 zero = 0;
	struct reversed *name = bpf_map_lookup_elem(&buffers, &zero);

	if (!name || packet + HEADERS > end)
		return XDP_PASS;
	/* A UDP packet to port 53. */
	if (packet[12] != 8 || packet[13] || packet[14] != 0x45 || packet[23] != 17 || packet[36] || packet[37] != 53)
		return XDP_PASS;
	if (!reverse(name, packet + HEADERS, end))
		return XDP_PASS;
	/* The whole name, then without its first label, and so on. */
	for (int i = 0; i < LABELS && i < name->labels; i++) {
		__u32 at = name->at & 0xff, size = (name->ends[i] - at) & 0xff;
		struct bpf_dynptr key;
		struct policy *found;

		bpf_dynptr_from_mem(name->text + at, size, 0, &key);
		found = bpf_map_lookup_elem(&policies, &key);
		if (found) {
			__sync_fetch_and_add(&found->queries, 1);
			return found->action == XDP_DROP ? XDP_DROP : XDP_PASS;
		}
	}
	return XDP_PASS;
}

char _license[] SEC("license") = "Dual MIT/GPL";
