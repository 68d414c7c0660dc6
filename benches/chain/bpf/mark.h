/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/* A test run of the kernel waits for a grace period at its end, and tells whole nanoseconds. So the last program of what is measured notes
 * the time in two of its runs. `runs` must be 0 when a test run begins. */
struct {
	__u64 runs, first, last, begin, end;
	__u64 zero; /* for what the compiler must not know */
} mark;

static __always_inline void count_run(void)
{
	__u64 n = mark.runs++;
	if (n == mark.first)
		mark.begin = bpf_ktime_get_ns();
	if (n == mark.last)
		mark.end = bpf_ktime_get_ns();
}
