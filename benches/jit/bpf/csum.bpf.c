// SPDX-License-Identifier: MIT OR Apache-2.0
/* The Internet checksum of 1500 bytes, sixteen bits at a time. */
#include "prog.h"

PROGRAM int csum(void *ctx)
{
	const u16 *words = (const u16 *)mem;
	u64 sum = 0;

	for (u32 i = 0; i < 750; i++)
		sum += words[i];
	sum = (sum & 0xffff) + (sum >> 16);
	sum = (sum & 0xffff) + (sum >> 16);
	return ~sum & 0xffff;
}
