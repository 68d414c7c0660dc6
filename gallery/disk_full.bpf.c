/* A disk that gets full: after `room` bytes, writing to files fails with ENOSPC. What does the program do then? */
// clang: -D__TARGET_ARCH_x86
#include <linux/bpf.h>
#include <linux/errno.h>
#include <linux/ptrace.h>
#include <bpf/bpf_helpers.h>
#include <bpf/bpf_tracing.h>

char _license[] SEC("license") = "GPL";

/* Not a function of the kernel: what skep offers to programs that return in a function's place. */
extern int skep_set_errno(__u32 value) __ksym __weak;

const volatile __u64 room = 1 << 20;

__u64 written;
__u64 refused;

SEC("uprobe.multi/libc.so.6:write,pwrite64")
int BPF_KPROBE(on_write, int file, const void *from, __u64 bytes)
{
	/* Not to the terminal. */
	if (file <= 2)
		return 0;
	if (__sync_fetch_and_add(&written, bytes) + bytes <= room)
		return 0;
	if (bpf_override_return(ctx, -1) == 0) {
		skep_set_errno(ENOSPC);
		__sync_fetch_and_add(&refused, 1);
	}
	return 0;
}
