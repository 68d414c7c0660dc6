/* The program behind `skep trace --coverage`: which functions were called at all.
 *
 * The first call of a function takes the hook out, so that later ones cost nothing. The attach cookie
 * is the function's index in the link.
 */
#include "skep.bpf.h"

/* Not a function of the kernel. */
extern int skep_detach_func(void *ctx) __ksym __weak;

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, 1);
	__type(key, __u32);
	__type(value, __u8);
} called SEC(".maps");

SEC("fentry.multi/*")
int coverage(__u64 *ctx)
{
	__u32 index = bpf_get_attach_cookie(ctx);
	__u8 *was = bpf_map_lookup_elem(&called, &index);

	if (was && !*was)
		*was = 1;
	/* Where it cannot be done now, the next call tries again. */
	skep_detach_func(ctx);
	return 0;
}

char _license[] SEC("license") = "Dual MIT/GPL";
