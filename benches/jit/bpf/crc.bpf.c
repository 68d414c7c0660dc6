// SPDX-License-Identifier: MIT OR Apache-2.0
/* CRC-32 of 512 bytes, a nibble at a time. */
#include "prog.h"

static const u32 table[16] = {
	0x00000000, 0x1db71064, 0x3b6e20c8, 0x26d930ac, 0x76dc4190, 0x6b6b51f4, 0x4db26158, 0x5005713c,
	0xedb88320, 0xf00f9344, 0xd6d6a3e8, 0xcb61b38c, 0x9b64c2b0, 0x86d3d2d4, 0xa00ae278, 0xbdbdf21c,
};

PROGRAM int crc(void *ctx)
{
	u32 sum = ~0u;

	for (u32 i = 0; i < 512; i++) {
		sum ^= mem[i];
		sum = sum >> 4 ^ table[sum & 15];
		sum = sum >> 4 ^ table[sum & 15];
	}
	return ~sum;
}
