// SPDX-License-Identifier: MIT OR Apache-2.0
/* Programs for record.c, which differ by name, and by size with PAD. */
#include <linux/bpf.h>
#include <bpf/bpf_helpers.h>

#ifndef PAD
#define PAD 0
#endif

#define PROGRAM(name)                                           \
	SEC("xdp") int name(struct xdp_md *ctx)                 \
	{                                                       \
		volatile int verdict = XDP_PASS;                \
		for (int n = 0; n < PAD; n++)                   \
			asm volatile("r2 = %0" ::"i"(n) : "r2"); \
		return verdict;                                 \
	}

PROGRAM(alpha)
PROGRAM(Alpha)
PROGRAM(alphabet)
PROGRAM(beta)
PROGRAM(p2)
PROGRAM(p10)
PROGRAM(_under)
PROGRAM(zulu)
PROGRAM(a_name_longer_than_15)

char _license[] SEC("license") = "GPL";
