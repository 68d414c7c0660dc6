// SPDX-License-Identifier: MIT OR Apache-2.0
/* Sorts 64 samples into the 32 slots of an array map by their magnitude. Natively, the map is a function in another object. */
#include "prog.h"

#ifdef __bpf__
struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, 32);
	__type(key, u32);
	__type(value, u64);
} slots SEC(".maps");
#else
extern u8 slots;
void *bpf_map_lookup_elem(void *map, const void *key);
#endif

PROGRAM int histogram(void *ctx)
{
	u32 found = 0;

	for (u32 i = 0; i < 64; i++) {
		u32 v = ((const u32 *)mem)[i], key = 0;
		u64 *count;

		for (u32 n = 16; n; n >>= 1) {
			if (v >> n) {
				v >>= n;
				key += n;
			}
		}
		count = bpf_map_lookup_elem(&slots, &key);
		if (count) {
			*count += 1;
			found++;
		}
	}
	return found;
}
