// SPDX-License-Identifier: MIT OR Apache-2.0
/* Four lanes of multiply and rotate over 512 bytes, and a final mix. */
#include "prog.h"

#define P1 0x9e3779b185ebca87ull
#define P2 0xc2b2ae3d27d4eb4full
#define P3 0x165667b19e3779f9ull

static inline __attribute__((always_inline)) u64 lane(u64 v, u64 word)
{
	return rol64(v + word * P2, 31) * P1;
}

PROGRAM int hash(void *ctx)
{
	const u64 *words = (const u64 *)mem;
	u64 a = P1 + P2, b = P2, c = 0, d = 0 - P1, h;

	for (u32 i = 0; i < 64; i += 4) {
		a = lane(a, words[i]);
		b = lane(b, words[i + 1]);
		c = lane(c, words[i + 2]);
		d = lane(d, words[i + 3]);
	}
	h = rol64(a, 1) + rol64(b, 7) + rol64(c, 12) + rol64(d, 18);
	h ^= h >> 33;
	h *= P2;
	h ^= h >> 29;
	h *= P3;
	h ^= h >> 32;
	return h;
}
