// SPDX-License-Identifier: MIT OR Apache-2.0
/* Compares 32 names of up to 32 bytes with one of them, as strcmp does, and counts equal and smaller ones. */
#include "prog.h"

#define LEN 32

PROGRAM int strings(void *ctx)
{
	u32 equal = 0, smaller = 0;

	for (u32 i = 0; i < 32; i++) {
		const u8 *name = mem + i * LEN, *want = mem + 7 * LEN;
		int order = 0;

		for (u32 n = 0; n < LEN; n++) {
			u8 a = name[n] & 0x61, b = want[n] & 0x61;

			if (a != b) {
				order = a < b ? -1 : 1;
				break;
			}
			if (!a)
				break;
		}
		if (order < 0)
			smaller++;
		else if (!order)
			equal++;
	}
	return equal << 16 | smaller;
}
