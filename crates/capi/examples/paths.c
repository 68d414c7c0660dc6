/* Counts paths in a map whose keys are in order; prints a directory, finds a path's longest prefix, and
 * deletes a directory. */
#include <stdio.h>
#include <string.h>
#include <linux/bpf.h>
#include <skep.h>

static int failed(const char *what)
{
	fprintf(stderr, "%s: %s\n", what, skep_last_error());
	return 1;
}

static int print(void *context, const void *key, size_t key_size, const void *value, size_t value_size)
{
	uint64_t count;

	(void)context;
	if (value_size != sizeof(count))
		return -1;
	memcpy(&count, value, sizeof(count));
	printf("%.*s %llu\n", (int)key_size, (const char *)key, (unsigned long long)count);
	return 0;
}

int main(void)
{
	static const char *const opened[] = {
		"/usr/lib/libc.so.6", "/etc/passwd", "/etc", "/usr/lib/libm.so.6", "/etc/passwd",
		"/etc/hosts", "/usr/lib/libc.so.6", "/etcetera", "/etc/passwd", "/home",
	};
	struct skep_map_def def = { .type = SKEP_MAP_TYPE_QP_TRIE, .key_size = 16, .value_size = 8,
				    .max_entries = 1000, .map_flags = BPF_F_NO_PREALLOC,
				    .map_extra = 255, .name = "opened" };
	const char *path = "/etc/passwd.old";
	char near[255];
	uint64_t count, removed;
	size_t size = sizeof(near);
	skep_session *session;
	skep_map *map;

	if (skep_session_scratch(&session) || skep_map_create(session, &def, sizeof(def), &map))
		return failed("map");
	for (size_t i = 0; i < sizeof(opened) / sizeof(*opened); i++) {
		count = 0;
		skep_map_lookup(map, opened[i], strlen(opened[i]), &count, sizeof(count), 0);
		count++;
		if (skep_map_update(map, opened[i], strlen(opened[i]), &count, sizeof(count), BPF_ANY))
			return failed("update");
	}
	if (skep_map_visit(map, "/etc/", 5, NULL, 0, SKEP_PREFIX, print, NULL) < 0)
		return failed("visit");
	if (skep_map_lookup_nearest(map, path, strlen(path), SKEP_LONGEST_PREFIX, near, &size, &count,
				    sizeof(count)))
		return failed("nearest");
	printf("%s begins with %.*s\n", path, (int)size, near);
	if (skep_map_delete_range(map, "/etc/", 5, NULL, 0, SKEP_PREFIX, &removed))
		return failed("delete");
	printf("%llu deleted, left are:\n", (unsigned long long)removed);
	if (skep_map_visit(map, NULL, 0, NULL, 0, SKEP_REVERSE, print, NULL) < 0)
		return failed("visit");
	skep_map_free(map);
	skep_session_free(session);
	return 0;
}
