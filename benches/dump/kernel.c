// Reads a whole map of the kernel, one entry at a time or by batches: the rival of `cargo xtask bench dump`.
//
// usage: kernel hash|array each|batch|hold [ENTRIES a call]
// Prints `measured NS` for all 100,000 entries, the best of five times. `hold` only makes and fills the map, prints `map ID`, and
// waits for the end of stdin.
#include <errno.h>
#include <linux/bpf.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#define N 100000u
#define ROUNDS 5

static long bpf(int cmd, union bpf_attr *attr)
{
	return syscall(SYS_bpf, cmd, attr, sizeof(*attr));
}

static void die(const char *what)
{
	fprintf(stderr, "%s: %s\n", what, strerror(errno));
	exit(1);
}

static uint64_t now(void)
{
	struct timespec t;
	clock_gettime(CLOCK_MONOTONIC, &t);
	return t.tv_sec * 1000000000ull + t.tv_nsec;
}

static unsigned long each(int fd)
{
	uint64_t key = 0, next = 0, value;
	unsigned long n = 0;
	union bpf_attr attr;
	int begun = 0;

	for (;; n++) {
		memset(&attr, 0, sizeof(attr));
		attr.map_fd = fd;
		attr.key = begun ? (uintptr_t)&key : 0;
		attr.next_key = (uintptr_t)&next;
		if (bpf(BPF_MAP_GET_NEXT_KEY, &attr))
			return n;
		key = next;
		begun = 1;
		memset(&attr, 0, sizeof(attr));
		attr.map_fd = fd;
		attr.key = (uintptr_t)&key;
		attr.value = (uintptr_t)&value;
		if (bpf(BPF_MAP_LOOKUP_ELEM, &attr))
			die("lookup");
	}
}

// A bucket that does not fit makes the buffer twice as large, as every caller has to.
static unsigned long batch(int fd, unsigned key_size, unsigned room)
{
	unsigned long n = 0;
	uint64_t in = 0, out = 0;
	int begun = 0;
	char *keys = malloc((size_t)room * key_size), *values = malloc((size_t)room * 8);
	union bpf_attr attr;

	for (;;) {
		long err;
		memset(&attr, 0, sizeof(attr));
		attr.batch.in_batch = begun ? (uintptr_t)&in : 0;
		attr.batch.out_batch = (uintptr_t)&out;
		attr.batch.keys = (uintptr_t)keys;
		attr.batch.values = (uintptr_t)values;
		attr.batch.count = room;
		attr.batch.map_fd = fd;
		err = bpf(BPF_MAP_LOOKUP_BATCH, &attr);
		if (err && errno == ENOSPC) {
			room *= 2;
			keys = realloc(keys, (size_t)room * key_size);
			values = realloc(values, (size_t)room * 8);
			continue;
		}
		if (err && errno != ENOENT)
			die("batch");
		n += attr.batch.count;
		if (err)
			break;
		in = out;
		begun = 1;
	}
	free(keys);
	free(values);
	return n;
}

int main(int argc, char **argv)
{
	int hash = argc > 1 && !strcmp(argv[1], "hash");
	unsigned key_size = hash ? 8 : 4;
	union bpf_attr attr = { .map_type = hash ? BPF_MAP_TYPE_HASH : BPF_MAP_TYPE_ARRAY, .key_size = key_size, .value_size = 8, .max_entries = N };
	uint64_t best = ~0ull;
	int fd;

	if (argc < 3)
		return 2;
	fd = bpf(BPF_MAP_CREATE, &attr);
	if (fd < 0)
		die("create");
	for (uint64_t i = 0; i < N; i++) {
		uint64_t key = hash ? i * 0x9e3779b97f4a7c15ull : i, value = i;
		memset(&attr, 0, sizeof(attr));
		attr.map_fd = fd;
		attr.key = (uintptr_t)&key;
		attr.value = (uintptr_t)&value;
		if (bpf(BPF_MAP_UPDATE_ELEM, &attr))
			die("update");
	}
	if (!strcmp(argv[2], "hold")) {
		struct bpf_map_info info = {};
		memset(&attr, 0, sizeof(attr));
		attr.info.bpf_fd = fd;
		attr.info.info_len = sizeof(info);
		attr.info.info = (uintptr_t)&info;
		if (bpf(BPF_OBJ_GET_INFO_BY_FD, &attr))
			die("info");
		printf("map %u\n", info.id);
		fflush(stdout);
		while (getchar() != EOF)
			;
		return 0;
	}
	for (int r = 0; r < ROUNDS; r++) {
		uint64_t begin = now(), took;
		unsigned long n = !strcmp(argv[2], "each") ? each(fd) : batch(fd, key_size, atoi(argv[3]));
		took = now() - begin;
		if (n != N) {
			fprintf(stderr, "read %lu entries\n", n);
			return 1;
		}
		best = took < best ? took : best;
	}
	printf("measured %llu\n", (unsigned long long)best);
	return 0;
}
