// SPDX-License-Identifier: MIT OR Apache-2.0
/* The product of two 8x8 matrices, folded. */
#include "prog.h"

#define N 8

PROGRAM int matrix(void *ctx)
{
	const u64 *x = (const u64 *)mem, *y = x + N * N;
	u64 sum = 0;

	for (u32 i = 0; i < N; i++) {
		for (u32 j = 0; j < N; j++) {
			u64 v = 0;

			for (u32 k = 0; k < N; k++)
				v += x[i * N + k] * y[k * N + j];
			sum = rol64(sum, 9) ^ v;
		}
	}
	return sum ^ sum >> 32;
}
