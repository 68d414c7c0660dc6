/* Which files are opened, and how often: a trie by path, so that a report is in order and a directory is a prefix.
 *
 *     skep run opened.bpf.o -- sort /etc/services
 *
 * `fopen` and its like call `open` themselves. What the C library opens by other ways, as `opendir` does, is not counted.
 */
#include "skep.bpf.h"
#include "skep_maps.bpf.h"

#define LONGEST 255

struct {
	__uint(type, BPF_MAP_TYPE_QP_TRIE);
	__uint(max_entries, 100000);
	__uint(map_extra, LONGEST);
	__uint(map_flags, BPF_F_NO_PREALLOC);
	__type(key, struct bpf_dynptr);
	__type(value, __u64);
} opened SEC(".maps");

/* Where a path is copied to: dynptrs are of map memory. */
struct {
	__uint(type, BPF_MAP_TYPE_PERCPU_ARRAY);
	__uint(max_entries, 1);
	__type(key, __u32);
	__type(value, char[LONGEST + 1]);
} buffers SEC(".maps");

__u64 not_counted; /* without a path that can be read, or for want of memory */

static __always_inline int count(const void *path)
{
	__u32 zero = 0;
	__u64 one = 1, *n;
	char *buffer = bpf_map_lookup_elem(&buffers, &zero);
	struct bpf_dynptr key;
	long len;

	if (!buffer)
		return 0;
	len = bpf_probe_read_user_str(buffer, LONGEST + 1, path);
	if (len > 1 && len <= LONGEST + 1) {
		bpf_dynptr_from_mem(buffer, len - 1, 0, &key); /* without the zero byte */
		n = bpf_map_lookup_elem(&opened, &key);
		if (!n) {
			if (bpf_map_update_elem(&opened, &key, &one, BPF_NOEXIST) == 0)
				return 0;
			n = bpf_map_lookup_elem(&opened, &key); /* another thread was faster */
		}
		if (n) {
			__sync_fetch_and_add(n, 1);
			return 0;
		}
	}
	__sync_fetch_and_add(&not_counted, 1);
	return 0;
}

SEC("uprobe.multi/libc.so.6:open,open64")
int by_path(struct pt_regs *regs)
{
	return count((void *)regs->di);
}

SEC("uprobe.multi/libc.so.6:openat,openat64")
int below_directory(struct pt_regs *regs)
{
	return count((void *)regs->si);
}

char _license[] SEC("license") = "Dual MIT/GPL";
