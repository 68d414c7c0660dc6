/* Skips functions of `target`: leaf returns 7000 for odd arguments and 0 for those that 4 divides; elsewhere it is refused. */
#include "../../bpf/skep.bpf.h"

static long (*const bpf_override_return)(struct pt_regs *ctx, __u64 value) = (void *)58;

__s64 at_return;
__s64 in_session;
__u64 skipped;

SEC("uprobe/skipped:leaf")
int skip(struct pt_regs *regs)
{
	if (regs->di & 1) {
		skipped++;
		bpf_override_return(regs, 1);
		return bpf_override_return(regs, 7000); /* the last one counts */
	}
	if (!(regs->di & 3)) {
		skipped++;
		bpf_override_return(regs, 0);
	}
	return 0;
}

SEC("uretprobe/skipped:leaf")
int returned(struct pt_regs *regs)
{
	at_return = bpf_override_return(regs, 1);
	return 0;
}

SEC("uprobe.session/skipped:leaf")
int session(struct pt_regs *regs)
{
	__s64 done = bpf_override_return(regs, 1);

	if (!bpf_session_is_return(regs))
		in_session = done;
	*bpf_session_cookie(regs) = 5;
	return 0;
}

char _license[] SEC("license") = "Dual MIT/GPL";
