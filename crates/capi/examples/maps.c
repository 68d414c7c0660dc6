/* Creates a map, fills it by a batch, counts its elements by a dump, and takes them out by another. */
#include <stdio.h>
#include <string.h>
#include <linux/bpf.h>
#include <skep.h>

static int failed(const char *what)
{
	fprintf(stderr, "%s: %s\n", what, skep_last_error());
	return 1;
}

int main(void)
{
	struct skep_map_def def = { .type = BPF_MAP_TYPE_HASH, .key_size = 4, .value_size = 8,
				    .max_entries = 1000, .name = "squares" };
	struct { uint32_t key; uint64_t value; } __attribute__((packed)) rows[64];
	struct skep_map_info info;
	uint64_t cursor[16] = { 0 }, values[1000], sum = 0;
	uint32_t keys[1000], count = 1000, n = 0;
	skep_session *session;
	skep_map *map;
	int got;

	if (skep_session_scratch(&session) || skep_map_create(session, &def, sizeof(def), &map))
		return failed("map");
	for (uint32_t i = 0; i < count; i++) {
		keys[i] = i;
		values[i] = (uint64_t)i * i;
	}
	if (skep_map_update_batch(map, keys, values, &count, 0))
		return failed("update");
	if (skep_map_info(map, &info, sizeof(info)) || info.strict_cursor_size > sizeof(cursor))
		return failed("info");
	while ((got = skep_map_dump(map, cursor, info.strict_cursor_size, rows, sizeof(rows),
				    SKEP_STRICT)) > 0)
		n += (size_t)got / sizeof(rows[0]);
	if (got < 0)
		return failed("dump");
	memset(cursor, 0, sizeof(cursor));
	while ((got = skep_map_dump(map, cursor, info.cursor_size, rows, sizeof(rows),
				    SKEP_DELETE | SKEP_EXACT)) > 0) {
		for (size_t i = 0; i < (size_t)got / sizeof(rows[0]); i++)
			sum += rows[i].value;
	}
	if (got < 0)
		return failed("dump that takes");
	memset(cursor, 0, sizeof(cursor));
	if (skep_map_dump(map, cursor, info.cursor_size, rows, sizeof(rows), 0) != 0)
		return failed("empty");
	printf("%u elements, sum %llu\n", n, (unsigned long long)sum);
	skep_map_free(map);
	skep_session_free(session);
	return 0;
}
