// SPDX-License-Identifier: MIT OR Apache-2.0
/* Population count, bit reversal and leading zeros of 64 words, without instructions for them. */
#include "prog.h"

static inline __attribute__((always_inline)) u64 ones(u64 v)
{
	v -= v >> 1 & 0x5555555555555555ull;
	v = (v & 0x3333333333333333ull) + (v >> 2 & 0x3333333333333333ull);
	v = (v + (v >> 4)) & 0x0f0f0f0f0f0f0f0full;
	return v * 0x0101010101010101ull >> 56;
}

static inline __attribute__((always_inline)) u32 reversed(u32 v)
{
	v = (v >> 1 & 0x55555555) | (v & 0x55555555) << 1;
	v = (v >> 2 & 0x33333333) | (v & 0x33333333) << 2;
	v = (v >> 4 & 0x0f0f0f0f) | (v & 0x0f0f0f0f) << 4;
	v = (v >> 8 & 0x00ff00ff) | (v & 0x00ff00ff) << 8;
	return v >> 16 | v << 16;
}

static inline __attribute__((always_inline)) u32 width(u32 v)
{
	u32 n = 0;

	if (v >> 16) { n += 16; v >>= 16; }
	if (v >> 8) { n += 8; v >>= 8; }
	if (v >> 4) { n += 4; v >>= 4; }
	if (v >> 2) { n += 2; v >>= 2; }
	return n + (v >> 1);
}

PROGRAM int bits(void *ctx)
{
	const u64 *words = (const u64 *)mem;
	u64 sum = 0;

	for (u32 i = 0; i < 64; i++) {
		u64 v = words[i];

		sum = sum * 3 + ones(v) + reversed(v) + width(v >> 32);
	}
	return sum ^ sum >> 32;
}
