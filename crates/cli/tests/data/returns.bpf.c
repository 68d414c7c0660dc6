/* Counts returns of all functions of a program. */
#include "../../bpf/skep.bpf.h"
#include "../../bpf/skep_maps.bpf.h"

__u64 returns;

SEC("uretprobe.multi/./unwound:*")
int at_return(struct pt_regs *regs)
{
	__sync_fetch_and_add(&returns, 1);
	return 0;
}

char _license[] SEC("license") = "Dual MIT/GPL";
