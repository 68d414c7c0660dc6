/* The program behind `skep trace --return`: calls that return something without running. The attach cookie is the rule's number. */
#include "skep.bpf.h"

static long (*const bpf_override_return)(struct pt_regs *ctx, __u64 value) = (void *)58;

/* Not a function of the kernel. */
extern int skep_set_errno(__u32 value) __ksym __weak;

#define RULES 64

struct rule {
	__u64 value;
	__u64 every; /* of so many calls, the last one */
	__u64 calls;
	__u64 returned;
	__u64 error; /* what `errno` becomes; 0: it stays */
};

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, RULES);
	__type(key, __u32);
	__type(value, struct rule);
} rules SEC(".maps");

SEC("uprobe.multi")
int fault(struct pt_regs *ctx)
{
	__u32 number = bpf_get_attach_cookie(ctx);
	struct rule *r = bpf_map_lookup_elem(&rules, &number);
	__u64 call;

	if (!r || !r->every)
		return 0;
	call = __sync_fetch_and_add(&r->calls, 1) + 1;
	if (call % r->every)
		return 0;
	if (bpf_override_return(ctx, r->value))
		return 0;
	if (r->error)
		skep_set_errno(r->error);
	__sync_fetch_and_add(&r->returned, 1);
	return 0;
}

char _license[] SEC("license") = "Dual MIT/GPL";
