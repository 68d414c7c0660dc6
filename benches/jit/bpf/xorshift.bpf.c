// SPDX-License-Identifier: MIT OR Apache-2.0
/* 1000 steps of xorshift128+, the state in registers. */
#include "prog.h"

PROGRAM int xorshift(void *ctx)
{
	u64 s = ((const u64 *)mem)[0] | 1, t = ((const u64 *)mem)[1], sum = 0;

	for (u32 i = 0; i < 1000; i++) {
		u64 x = s, y = t;

		sum += x + y;
		s = y;
		x ^= x << 23;
		t = x ^ y ^ x >> 17 ^ y >> 26;
	}
	return sum ^ sum >> 32;
}
