/* Keys that no program may pass: the first two are those of the kernel's selftests. */
#include <linux/bpf.h>
#include <bpf/bpf_helpers.h>
#include "../../../../cli/bpf/skep_maps.bpf.h"

char _license[] SEC("license") = "GPL";

extern int bpf_dynptr_from_xdp(struct xdp_md *xdp, __u64 flags, struct bpf_dynptr *to) __ksym;

struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__type(key, struct bpf_dynptr);
	__type(value, __u32);
	__uint(max_entries, 1);
} whole SEC(".maps");

struct around {
	__u64 number;
	struct bpf_dynptr text;
};

struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__type(key, struct around);
	__type(value, __u32);
	__uint(max_entries, 1);
} part SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_QP_TRIE);
	__type(key, struct bpf_dynptr);
	__type(value, __u32);
	__uint(max_entries, 1);
	__uint(map_extra, 16);
	__uint(map_flags, BPF_F_NO_PREALLOC);
} words SEC(".maps");

char text[16];

SEC("syscall")
int add_dynptr_to_key1(void *ctx)
{
	struct bpf_dynptr key;
	__u32 value = 0;

	bpf_dynptr_from_mem(text, sizeof(text), 0, &key);
	bpf_map_update_elem(&whole, &key, &value, BPF_ANY);
	return 0;
}

SEC("syscall")
int add_dynptr_to_key2(void *ctx)
{
	struct around key = {};
	__u32 value = 0;

	bpf_dynptr_from_mem(text, sizeof(text), 0, &key.text);
	bpf_map_update_elem(&part, &key, &value, BPF_ANY);
	return 0;
}

SEC("syscall")
int text_as_key(void *ctx)
{
	char key[16] = "text";

	bpf_map_delete_elem(&words, key);
	return 0;
}

SEC("xdp")
int packet_as_key(struct xdp_md *ctx)
{
	struct bpf_dynptr key;

	bpf_dynptr_from_xdp(ctx, 0, &key);
	return bpf_map_lookup_elem(&words, &key) ? XDP_DROP : XDP_PASS;
}
