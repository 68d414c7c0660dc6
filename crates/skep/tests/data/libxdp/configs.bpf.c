// SPDX-License-Identifier: MIT OR Apache-2.0
/* Programs with all that `.xdp_run_config` can say of one, and some of what it should not. What libxdp reads there is in
 * configs.libxdp.txt, by record.c. */
#include <linux/bpf.h>
#include <bpf/bpf_helpers.h>

#define XDP_RUN_CONFIG(f) _##f SEC(".xdp_run_config")
#define PROGRAM(name)                         \
	SEC("xdp") int name(struct xdp_md *ctx) \
	{                                       \
		return XDP_PASS;                \
	}

struct {
	__uint(priority, 10);
	__uint(XDP_PASS, 1);
	__uint(XDP_DROP, 1);
} XDP_RUN_CONFIG(pass_and_drop);

struct {
	__uint(priority, 1);
} XDP_RUN_CONFIG(priority_alone);

struct {
	__uint(XDP_TX, 1);
} XDP_RUN_CONFIG(tx_too);

struct {
	__uint(XDP_PASS, 0);
	__uint(XDP_TX, 1);
} XDP_RUN_CONFIG(tx_not_pass);

struct {
	__uint(XDP_PASS, 0);
} XDP_RUN_CONFIG(none);

struct {
	__uint(priority, 0);
	__uint(XDP_ABORTED, 1);
	__uint(XDP_DROP, 1);
	__uint(XDP_PASS, 1);
	__uint(XDP_TX, 1);
	__uint(XDP_REDIRECT, 1);
} XDP_RUN_CONFIG(all);

struct {
	__uint(XDP_DROP, 7);
	__uint(priority, 1000000);
} XDP_RUN_CONFIG(more_than_one);

struct {
	__uint(priority, 20);
	__uint(priority_of_another, 30);
	__uint(XDP_PAS, 0);
} XDP_RUN_CONFIG(unknown_members);

struct {
	__uint(priority, 99);
} XDP_RUN_CONFIG(of_no_program);

PROGRAM(pass_and_drop)
PROGRAM(priority_alone)
PROGRAM(tx_too)
PROGRAM(tx_not_pass)
PROGRAM(none)
PROGRAM(all)
PROGRAM(more_than_one)
PROGRAM(unknown_members)
PROGRAM(without)

char LICENSE[] SEC("license") = "GPL";
