/* Keys that another thread writes to while elements go in and out: which key that is may be either, but
 * the map stays whole. Returns the line of what went wrong. */
#include <errno.h>
#include <linux/bpf.h>
#include <pthread.h>
#include <stdatomic.h>
#include <string.h>
#include "is.h"

enum { ENTRIES = 500, LONGEST = 24, ROUNDS = 3000, CHANGES = 300 };

static _Alignas(64) unsigned char key[LONGEST];
static atomic_int over;

static void *change(void *unused)
{
	volatile unsigned char *bytes = key;
	unsigned random = 1;

	(void)unused;
	while (!over) {
		random = random * 1664525 + 1013904223;
		bytes[(random >> 8) % LONGEST] = "ab\0\xff"[random >> 20 & 3];
	}
	return NULL;
}

static skep_map *map;
static unsigned char last[LONGEST];
static size_t last_size;
static int elements, ordered;

/* Each element is found by its key, and where keys have an order, is behind the one before. */
static int element(void *context, const void *found, size_t size, const void *value, size_t value_size)
{
	size_t both = size < last_size ? size : last_size;
	int order = memcmp(last, found, both);
	unsigned char copy[8];

	(void)context;
	(void)value;
	if (ordered && elements && (order > 0 || (order == 0 && last_size >= size)))
		return -EILSEQ;
	memcpy(last, found, size);
	last_size = size;
	elements++;
	return skep_map_lookup(map, found, size, copy, value_size, 0);
}

static int stays_whole(skep_session *session, uint32_t type, uint32_t flags)
{
	int is_trie = type == SKEP_MAP_TYPE_QP_TRIE;
	struct skep_map_def def = { .type = type, .key_size = is_trie ? 16 : LONGEST, .value_size = 8,
				    .max_entries = ENTRIES, .map_flags = BPF_F_NO_PREALLOC | flags,
				    .map_extra = is_trie ? LONGEST : 0, .name = "changing" };
	unsigned char own[LONGEST] = { 0 };
	unsigned random = 7;
	pthread_t other;
	uint64_t value, removed;

	IS(skep_map_create(session, &def, sizeof(def), &map), 0);
	over = 0;
	IS(pthread_create(&other, NULL, change, NULL), 0);
	for (int round = 0; round < ROUNDS; round++) {
		for (int i = 0; i < CHANGES; i++) {
			size_t size;

			random = random * 1664525 + 1013904223;
			size = is_trie ? 1 + (random >> 16) % LONGEST : LONGEST;
			value = random;
			if (random >> 9 & 3)
				skep_map_update(map, key, size, &value, sizeof(value), random >> 12 & 1);
			else
				skep_map_delete(map, key, size);
		}
		elements = 0;
		ordered = is_trie;
		if (is_trie)
			IS(skep_map_visit(map, NULL, 0, NULL, 0, 0, element, NULL), elements);
	}
	over = 1;
	IS(pthread_join(other, NULL), 0);
	/* All of them can be removed one by one, and as many others put in. */
	for (size_t size = LONGEST; skep_map_next_key(map, NULL, 0, own, &size) == 0; size = LONGEST)
		IS(skep_map_delete(map, own, size), 0);
	removed = 0;
	if (is_trie) {
		IS(skep_map_delete_range(map, NULL, 0, NULL, 0, 0, &removed), 0);
		IS(removed, 0);
	}
	for (unsigned i = 0; i < ENTRIES; i++) {
		memcpy(own, &i, sizeof(i));
		IS(skep_map_update(map, own, is_trie ? sizeof(i) : LONGEST, &value, sizeof(value), 0), 0);
	}
	memset(own, 0xee, sizeof(own));
	IS(skep_map_update(map, own, LONGEST, &value, sizeof(value), 0), is_trie ? -ENOSPC : -E2BIG);
	IS(skep_map_free(map), 0);
	return 0;
}

int main(void)
{
	skep_session *session;
	int line;

	IS(skep_session_scratch(&session), 0);
	if ((line = stays_whole(session, SKEP_MAP_TYPE_QP_TRIE, 0)))
		return line;
	if ((line = stays_whole(session, SKEP_MAP_TYPE_QP_TRIE, SKEP_F_NO_LEAF_CACHE)))
		return line;
	if ((line = stays_whole(session, BPF_MAP_TYPE_HASH, 0)))
		return line;
	IS(skep_session_free(session), 0);
	return 0;
}
