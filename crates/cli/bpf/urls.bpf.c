/* Requests by the parts of their URL's path: `/api/v1/users/7?full=1` counts for `/`, `/api/`, `/api/v1/`, and `/api/v1/users/`.
 *
 *     skep run urls.bpf.o --attach 'request=server:handle_request' -- ./server
 *
 * The URL is the function's first argument. In the report what is below a part stands behind it.
 */
#include "skep.bpf.h"
#include "skep_maps.bpf.h"

#define LONGEST 255
#define PARTS 8 /* most parts of a path that are counted */

struct {
	__uint(type, BPF_MAP_TYPE_QP_TRIE);
	__uint(max_entries, 100000);
	__uint(map_extra, LONGEST);
	__uint(map_flags, BPF_F_NO_PREALLOC);
	__type(key, struct bpf_dynptr);
	__type(value, __u64);
} requests SEC(".maps");

/* Where a URL is copied to: dynptrs are of map memory. */
struct url {
	__u32 parts;
	char text[LONGEST + 1];
};

struct {
	__uint(type, BPF_MAP_TYPE_PERCPU_ARRAY);
	__uint(max_entries, 1);
	__type(key, __u32);
	__type(value, struct url);
} buffers SEC(".maps");

__u64 not_counted; /* for want of memory */

static __attribute__((noinline)) int count(char *text, __u32 len)
{
	struct bpf_dynptr key;
	__u64 one = 1, *n;

	if (!text || len > LONGEST)
		return 0;
	bpf_dynptr_from_mem(text, len, 0, &key);
	n = bpf_map_lookup_elem(&requests, &key);
	if (!n) {
		if (bpf_map_update_elem(&requests, &key, &one, BPF_NOEXIST) == 0)
			return 0;
		n = bpf_map_lookup_elem(&requests, &key); /* another thread was faster */
	}
	if (n)
		__sync_fetch_and_add(n, 1);
	else
		__sync_fetch_and_add(&not_counted, 1);
	return 0;
}

SEC("uprobe.multi")
int request(struct pt_regs *regs)
{
	__u32 zero = 0;
	volatile struct url *url = bpf_map_lookup_elem(&buffers, &zero);

	if (!url || bpf_probe_read_user_str((char *)url->text, sizeof(url->text), (void *)regs->di) <= 1)
		return 0;
	url->parts = 0;
	for (int i = 0; i < LONGEST; i++) {
		char c = url->text[i];

		if (!c || c == '?' || c == '#')
			break;
		if (c != '/')
			continue;
		count((char *)url->text, i + 1);
		if (++url->parts >= PARTS)
			break;
	}
	return 0;
}

char _license[] SEC("license") = "Dual MIT/GPL";
