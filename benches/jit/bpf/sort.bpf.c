// SPDX-License-Identifier: MIT OR Apache-2.0
/* Bubble sort of 24 numbers in scratch memory, and a sum that depends on the order. */
#include "prog.h"

#define N 24

PROGRAM int sort(void *ctx)
{
	u32 *a = (u32 *)(mem + MEM_SIZE - N * 4), sum = 0;

	for (u32 i = 0; i < N; i++)
		a[i] = ((const u32 *)mem)[i];
	for (u32 i = 0; i < N - 1; i++) {
		for (u32 j = 0; j < N - 1 - i; j++) {
			u32 x = a[j], y = a[j + 1];

			if (x > y) {
				a[j] = y;
				a[j + 1] = x;
			}
		}
	}
	for (u32 i = 0; i < N; i++)
		sum = sum * 31 + a[i];
	return sum;
}
