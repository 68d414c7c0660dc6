// SPDX-License-Identifier: MIT OR Apache-2.0
/* A machine of 16 operations and two registers runs 128 of them. */
#include "prog.h"

PROGRAM int machine(void *ctx)
{
	u64 a = ((const u64 *)mem)[100], b = ((const u64 *)mem)[101];

	for (u32 i = 0; i < 128; i++) {
		switch (mem[i] & 15) {
		case 0: a += b; break;
		case 1: b -= a; break;
		case 2: a ^= b >> 7; break;
		case 3: b += 0x9e37; break;
		case 4: a *= 5; break;
		case 5: b <<= 3; break;
		case 6: a >>= 1; break;
		case 7: b ^= a; break;
		case 8: a |= 0x101; break;
		case 9: b &= 0xffffffffffull; break;
		case 10: a += i; break;
		case 11: b -= i; break;
		case 12: a = ~a; break;
		case 13: b *= 9; break;
		case 14: a = rol64(a, 11); break;
		default: b = a + b + 1; break;
		}
	}
	return a ^ b ^ (a ^ b) >> 32;
}
