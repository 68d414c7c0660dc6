/* Every function of the header, called with what a hostile or careless caller gives. Compiled as C
 * and as C++. Prints nothing; returns the line of what went wrong. */
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include "is.h"

static int visit(void *context, const struct skep_function *f)
{
	(void)context;
	return f->size ? 0 : -EINVAL;
}

/* Adds the first byte of each key; ends with what `context` points at when that is not zero. */
static int letters[2];

static int element(void *context, const void *key, size_t key_size, const void *value, size_t value_size)
{
	if (key_size == 0 || value_size != 8 || value == NULL)
		return -EIO;
	letters[0]++;
	letters[1] = letters[1] * 3 + *(const char *)key - 'a';
	return context ? *(int *)context : 0;
}

static int record(void *context, const void *bytes, size_t size)
{
	(void)context;
	(void)bytes;
	(void)size;
	return 0;
}

/* Each function with NULL for its handle. */
static int nulls(void)
{
	skep_map *map = NULL;
	skep_object *object = NULL;
	skep_program *program = NULL;
	skep_link *link = NULL;
	skep_ring *ring = NULL;
	skep_runner *runner = NULL;
	skep_vmas *vmas = NULL;
	skep_process *process = NULL;
	struct skep_command command;
	skep_loader *loader = NULL;
	struct skep_map_def def;
	struct skep_map_info info;
	struct skep_program_info program_info;
	struct skep_missed missed;
	struct skep_test_run run;
	const void *key;
	char buffer[64];
	size_t size = sizeof(buffer);
	uint32_t count = 1;
	uint64_t lost;

	memset(&def, 0, sizeof(def));
	memset(&run, 0, sizeof(run));
	memset(&command, 0, sizeof(command));
	IS(skep_session_scratch(NULL), -EFAULT);
	IS(skep_session_open("/dev/null/x", NULL), -EFAULT);
	IS(skep_session_dir(NULL, buffer, sizeof(buffer)), -EFAULT);
	IS(skep_map_create(NULL, &def, sizeof(def), &map), -EFAULT);
	IS(skep_map_open_id(NULL, 1, &map), -EFAULT);
	IS(skep_map_open_name(NULL, "x", &map), -EFAULT);
	IS(skep_map_open_path(NULL, "x", &map), -EFAULT);
	IS(skep_map_pin(NULL, NULL, "x"), -EFAULT);
	IS(skep_map_unpin(NULL, "x"), -EFAULT);
	IS(skep_map_info(NULL, &info, sizeof(info)), -EFAULT);
	IS(skep_map_lookup(NULL, "k", 1, buffer, 8, 0), -EFAULT);
	IS(skep_map_lookup_and_delete(NULL, "k", 1, buffer, 8, 0), -EFAULT);
	IS(skep_map_update(NULL, "k", 1, "v", 1, 0), -EFAULT);
	IS(skep_map_delete(NULL, "k", 1), -EFAULT);
	IS(skep_map_next_key(NULL, NULL, 0, buffer, &size), -EFAULT);
	IS(skep_map_dump(NULL, buffer, 32, buffer + 32, 32, 0), -EFAULT);
	IS(skep_map_lookup_batch(NULL, buffer, 32, buffer, buffer, &count, 0), -EFAULT);
	IS(skep_map_update_batch(NULL, buffer, buffer, &count, 0), -EFAULT);
	IS(skep_map_delete_batch(NULL, buffer, &count), -EFAULT);
	IS(skep_map_cell_key(NULL, buffer, &key, &size), -EFAULT);
	IS(skep_map_lookup_nearest(NULL, "k", 1, SKEP_FLOOR, buffer, &size, buffer + 32, 8), -EFAULT);
	IS(skep_map_visit(NULL, NULL, 0, NULL, 0, 0, element, NULL), -EFAULT);
	IS(skep_map_delete_range(NULL, NULL, 0, NULL, 0, 0, &lost), -EFAULT);
	IS(skep_map_freeze(NULL), -EFAULT);
	IS(skep_object_open(NULL, "x", &object), -EFAULT);
	IS(skep_loader_new(NULL, &loader), -EFAULT);
	IS(skep_loader_global(NULL, "x", "1"), -EFAULT);
	IS(skep_loader_max_entries(NULL, "x", 1), -EFAULT);
	IS(skep_loader_autoload(NULL, "x", 1), -EFAULT);
	IS(skep_loader_program_type(NULL, "x", "xdp"), -EFAULT);
	IS(skep_loader_core_target(NULL, "x"), -EFAULT);
	IS(skep_loader_prototypes(NULL, "x"), -EFAULT);
	IS(skep_loader_load_file(NULL, "x", &object), -EFAULT);
	IS(skep_loader_load_memory(NULL, "x", 1, &object), -EFAULT);
	IS(skep_object_program(NULL, "x", &program), -EFAULT);
	IS(skep_object_program_at(NULL, 0, &program), -EFAULT);
	IS(skep_object_map(NULL, "x", &map), -EFAULT);
	IS(skep_object_map_at(NULL, 0, &map), -EFAULT);
	IS(skep_object_attach(NULL, NULL, 1, NULL, 0, &link), -EFAULT);
	IS(skep_program_info(NULL, &program_info, sizeof(program_info)), -EFAULT);
	IS(skep_program_attach(NULL, NULL, 0, &link), -EFAULT);
	IS(skep_link_functions(NULL, visit, NULL), -EFAULT);
	IS(skep_link_missed(NULL, &missed, sizeof(missed)), -EFAULT);
	IS(skep_link_id(NULL), -EFAULT);
	IS(skep_command_start(NULL, &command, sizeof(command), NULL, 0), -EFAULT);
	IS(skep_process_attach(NULL, 1, NULL, 0, NULL, &process), -EFAULT);
	IS(skep_process_functions(NULL), -EFAULT);
	IS(skep_process_is_running(NULL), -EFAULT);
	IS(skep_process_leave(NULL), 0);
	IS(skep_ring_open(NULL, &ring), -EFAULT);
	IS(skep_ring_poll(NULL, 0, record, NULL), -EFAULT);
	IS(skep_ring_next(NULL, 0, buffer, &size), -EFAULT);
	IS(skep_ring_lost(NULL, &lost), -EFAULT);
	IS(skep_program_runner(NULL, 0, &runner), -EFAULT);
	IS(skep_chain_runner(NULL, "x", &runner), -EFAULT);
	IS(skep_chain_create(NULL, "x", 6), -EFAULT);
	IS(skep_chain_add(NULL, "x", program, 0, "pass"), -EFAULT);
	IS(skep_chain_connect(NULL, "x", 1, "pass", 2, 0), -EFAULT);
	IS(skep_chain_remove(NULL, "x", 1), -EFAULT);
	IS(skep_chain_delete(NULL, "x"), -EFAULT);
	IS(skep_runner_test_run(NULL, &run, sizeof(run)), -EFAULT);
	IS(skep_vmas_open_pid(0, NULL), -EFAULT);
	IS(skep_vmas_open_file("/dev/null", &vmas), -EINVAL);
	IS(skep_vmas_open_file("/etc/passwd", &vmas), -EINVAL);
	SAYS("a file that is no snapshot");
	IS(skep_vmas_query(NULL, buffer), -EFAULT);
	IS(skep_session_free(NULL), 0);
	IS(skep_map_free(NULL), 0);
	IS(skep_loader_free(NULL), 0);
	IS(skep_object_free(NULL), 0);
	IS(skep_program_free(NULL), 0);
	IS(skep_link_detach(NULL, 0), 1);
	IS(skep_ring_free(NULL), 0);
	IS(skep_runner_free(NULL), 0);
	IS(skep_vmas_free(NULL), 0);
	return 0;
}

/* Sizes and buffers that do not fit, and handles that are no more. */
static int hostile(skep_session *session)
{
	struct { struct skep_map_def def; uint64_t more; } later;
	struct skep_map_def *def = &later.def;
	struct { struct skep_map_info info; uint64_t more; } info;
	skep_map *map = NULL, *gone = NULL;
	skep_session *elsewhere = NULL;
	const void *at = NULL;
	uint32_t key = 1, other = 0;
	uint64_t value = 7, words[8] = {0}, *all;
	size_t size = sizeof(other);

	memset(&later, 0, sizeof(later));
	def->type = 1; /* BPF_MAP_TYPE_HASH */
	def->key_size = 4;
	def->value_size = 8;
	def->max_entries = 4;
	def->name = "numbers";
	IS(skep_chain_create(session, NULL, 6), -EFAULT);
	IS(skep_chain_create(session, "no name", 6), -EINVAL);
	IS(skep_chain_create(session, "fw", 9999), -EINVAL);
	IS(skep_chain_create(session, "fw", 0), -EINVAL); /* BPF_PROG_TYPE_UNSPEC */
	IS(skep_chain_remove(session, "fw", 1), -ENOENT);
	IS(skep_chain_create(session, "fw", 6), 0);
	IS(skep_chain_create(session, "fw", 6), -EEXIST);
	IS(skep_chain_add(session, "fw", (skep_program *)session, 0, "pass"), -EBADF);
	IS(skep_chain_connect(session, "fw", 1, "perhaps", 0, 0), -EINVAL);
	IS(skep_chain_connect(session, "fw", 1, "pass", 0, 0), -ENOENT);
	IS(skep_chain_connect(session, "fw", 1, NULL, 0, 0), -EFAULT);
	IS(skep_chain_remove(session, "fw", 77), -ENOENT);
	IS(skep_chain_delete(session, "fw"), 0);
	IS(skep_chain_delete(session, "fw"), -ENOENT);
	IS(skep_map_create(session, def, 8, &map), -EINVAL);
	IS(skep_map_create(session, def, 5000, &map), -E2BIG);
	def->reserved = 1;
	IS(skep_map_create(session, def, sizeof(*def), &map), -EINVAL);
	SAYS("`reserved`");
	def->reserved = 0;
	IS(skep_map_create(session, (struct skep_map_def *)((char *)def + 1), sizeof(*def), &map), -EFAULT);
	later.more = 1;
	IS(skep_map_create(session, def, sizeof(later), &map), -E2BIG);
	later.more = 0;
	def->name = "two\nlines";
	IS(skep_map_create(session, def, sizeof(*def), &map), -EINVAL);
	SAYS("`two\\nlines`");
	def->name = "numbers";
	def->type = 9999;
	IS(skep_map_create(session, def, sizeof(*def), &map), -EINVAL);
	def->type = 1;
	IS(skep_map_create(session, def, sizeof(later), &gone), 0);
	IS(skep_map_free(gone), 0);
	IS(skep_map_free(gone), -EBADF);
	IS(skep_map_create(session, def, sizeof(*def), &map), 0);
	IS(map == gone, 0);
	IS(skep_map_delete(gone, &key, 4), -EBADF);
	IS(skep_session_free((skep_session *)map), -EBADF);
	IS(skep_map_freeze((skep_map *)session), -EBADF);
	IS(skep_map_freeze((skep_map *)&value), -EBADF);

	IS(skep_map_update(map, &key, 4, &value, 8, 0), 0);
	IS(skep_map_update(map, &key, 4, &value, 8, 1), -EEXIST);
	IS(skep_map_update(map, &key, 3, &value, 8, 0), -EINVAL);
	IS(skep_map_update(map, NULL, 4, &value, 8, 0), -EFAULT);
	IS(skep_map_lookup(map, &key, 4, &value, 7, 0), -EINVAL);
	IS(skep_map_lookup(map, &key, SIZE_MAX, &value, 8, 0), -EINVAL);
	IS(skep_map_lookup(map, &other, 4, &value, 8, 0), -ENOENT);
	IS(skep_map_lookup(map, words, 4, words, 8, 0), -EINVAL);
	value = 0;
	IS(skep_map_lookup(map, &key, 4, &value, 8, 0), 0);
	IS((int)value, 7);
	IS(skep_map_next_key(map, NULL, 0, &other, &size), 0);
	IS((int)other, 1);
	size = 2;
	IS(skep_map_next_key(map, NULL, 0, &other, &size), -ENOSPC);
	IS((int)size, 4);
	IS(skep_map_next_key(map, &other, 4, &other, &size), -ENOENT);
	IS(skep_map_next_key(map, NULL, 0, &size, &size), -EINVAL);
	IS(skep_map_lookup(map, NULL, 4, NULL, 8, 0), -EFAULT);
	SAYS("the key is NULL");
	IS(skep_map_dump(map, words, 8, &value, 8, 0), -EINVAL);
	SAYS("the cursor has size 8");
	IS(skep_map_dump(map, NULL, 0, &value, 8, 0), -EFAULT);
	IS(skep_map_dump(map, words, sizeof(words), &value, 8, SKEP_EXACT), -EINVAL);
	SAYS("SKEP_DELETE");
	IS(skep_map_dump(map, words, sizeof(words), &value, 8, 1), -EINVAL);
	SAYS("flags 0x1 ");
	IS(skep_map_dump(map, words, 8, &value, SIZE_MAX, 0), -EINVAL);
	SAYS("the buffer cannot have size");
	memset(&info, 1, sizeof(info));
	IS(skep_map_info(map, &info.info, sizeof(info)), 0);
	IS((int)info.more, 0);
	IS((int)info.info.value_size, 8);
	IS(strcmp(info.info.name, "numbers"), 0);
	IS(skep_map_free(map), 0);

	/* A number of an interface, not flags. */
	def->type = 25; /* BPF_MAP_TYPE_DEVMAP_HASH */
	def->value_size = 4;
	IS(skep_map_create(session, def, sizeof(*def), &map), 0);
	IS(skep_map_update(map, &key, 4, &other, 4, 0), 0);
	other = 0;
	IS(skep_map_update(map, &key, 4, &other, 4, 0), -EINVAL);
	SAYS("no interface has this number");
	IS(skep_map_free(map), 0);
	def->value_size = 8;

	/* Values of all CPUs, or an error: not those of some. */
	def->type = 5; /* BPF_MAP_TYPE_PERCPU_HASH */
	IS(skep_map_create(session, def, sizeof(*def), &map), 0);
	IS(skep_map_info(map, &info.info, sizeof(info)), 0);
	all = (uint64_t *)calloc(info.info.lookup_size + 8, 1);
	IS(skep_map_update(map, &key, 4, all, info.info.lookup_size - 8, 0), -EINVAL);
	IS(skep_map_update(map, &key, 4, all, info.info.lookup_size + 8, 0), -EINVAL);
	IS(skep_map_update(map, &key, 4, all, info.info.lookup_size, 0), 0);
	IS(skep_map_lookup(map, &key, 4, all, info.info.lookup_size - 8, 0), -EINVAL);
	IS(skep_map_lookup(map, &key, 4, all, info.info.lookup_size + 8, 0), -EINVAL);
	IS(skep_map_lookup(map, &key, 4, all, info.info.lookup_size, 0), 0);
	free(all);
	IS(skep_map_free(map), 0);

	/* Keys without bytes lie where their cells do. */
	def->type = 22; /* BPF_MAP_TYPE_QUEUE */
	def->key_size = 0;
	IS(skep_map_create(session, def, sizeof(*def), &map), 0);
	IS(skep_map_cell_key(map, words, &at, &size), 0);
	IS(at == words && size == 0, 1);
	IS(skep_map_free(map), 0);

	/* A pin is of the session's directory. */
	IS(skep_session_scratch(&elsewhere), 0);
	def->type = 1;
	def->key_size = 4;
	IS(skep_map_create(elsewhere, def, sizeof(*def), &map), 0);
	IS(skep_map_pin(session, map, "numbers"), -EINVAL);
	SAYS("another directory");
	IS(skep_map_pin(elsewhere, map, "of/numbers"), 0);
	/* What is wrong with a name is said. */
	IS(skep_map_pin(elsewhere, map, "/numbers"), -EINVAL);
	SAYS("cannot name the pin `/numbers`: it begins with `/`");
	IS(skep_map_pin(elsewhere, map, "of/../../numbers"), -EINVAL);
	SAYS("none of its parts may be empty, `.` or `..`");
	IS(skep_map_unpin(elsewhere, ""), -EINVAL);
	SAYS("none of its parts may be empty");
	IS(skep_map_pin(elsewhere, map, "of/numbers"), -EEXIST);
	IS(skep_map_pin(elsewhere, map, "of"), -EEXIST);
	IS(skep_map_pin(elsewhere, map, "of/numbers/small"), -ENOTDIR);
	IS(skep_map_unpin(elsewhere, "of"), -EISDIR);
	IS(skep_map_free(map), 0);
	IS(skep_map_open_name(elsewhere, "of/numbers", &map), 0);
	IS(skep_map_pin(elsewhere, map, "again"), 0); /* opened by a pin */
	IS(skep_map_unpin(elsewhere, "again"), 0);
	IS(skep_map_unpin(elsewhere, "of/numbers"), 0);
	IS(skep_map_free(map), 0);

	/* A program array takes programs that are there. */
	def->type = 3; /* BPF_MAP_TYPE_PROG_ARRAY */
	def->value_size = 4;
	IS(skep_map_create(elsewhere, def, sizeof(*def), &map), 0);
	words[0] = 77;
	IS(skep_map_update(map, &key, 4, words, 4, 0), -EBADF);
	SAYS("the map cannot hold `77`: there is no such program");
	IS(skep_map_free(map), 0);
	IS(skep_session_free(elsewhere), 0);
	return 0;
}

/* A qp-trie: its order, and ranges that are none. */
static int ordered(skep_session *session)
{
	struct skep_map_def def;
	struct skep_map_info info;
	skep_map *map = NULL, *hash = NULL;
	uint64_t value = 7, removed = 99, cursor[64];
	char found[16], rows[256];
	size_t size = sizeof(found);
	int stop = 2, fail = -EPERM;
	const void *key;

	memset(&def, 0, sizeof(def));
	def.type = 1; /* BPF_MAP_TYPE_HASH */
	def.key_size = 4;
	def.value_size = 8;
	def.max_entries = 8;
	IS(skep_map_create(session, &def, sizeof(def), &hash), 0);
	IS(skep_map_update(hash, "abcd", 4, &value, 8, 0), 0);
	IS(skep_map_lookup_nearest(hash, "abcd", 4, SKEP_FLOOR, found, &size, &value, 8), -524);
	IS(skep_map_visit(hash, NULL, 0, NULL, 0, 0, element, NULL), -524);
	IS(skep_map_delete_range(hash, NULL, 0, NULL, 0, 0, &removed), -524);
	IS((int)removed, 99);
	IS(skep_map_free(hash), 0);

	def.type = SKEP_MAP_TYPE_QP_TRIE;
	def.key_size = 16; /* struct bpf_dynptr */
	def.map_flags = 1; /* BPF_F_NO_PREALLOC */
	def.map_extra = 12;
	IS(skep_map_create(session, &def, sizeof(def), &map), 0);
	IS(skep_map_lookup_nearest(map, "b", 1, SKEP_FLOOR, found, &size, &value, 8), -ENOENT);
	IS(skep_map_update(map, "b", 1, &value, 8, 0), 0);
	value = 8;
	IS(skep_map_update(map, "bcd", 3, &value, 8, 0), 0);
	value = 9;
	IS(skep_map_update(map, "d", 1, &value, 8, 0), 0);
	IS(skep_map_update(map, "0123456789abc", 13, &value, 8, 0), -EINVAL);

	IS(skep_map_lookup_nearest(map, "c", 1, SKEP_FLOOR, found, &size, &value, 8), 0);
	IS(size == 3 && memcmp(found, "bcd", 3) == 0 && value == 8, 1);
	size = sizeof(found);
	IS(skep_map_lookup_nearest(map, "bcdef-is-longer-than-keys", 25, SKEP_LONGEST_PREFIX, found, &size,
				   &value, 8), 0);
	IS(size == 3 && value == 8, 1);
	size = sizeof(found);
	IS(skep_map_lookup_nearest(map, "bd", 2, SKEP_CEILING, found, &size, &value, 8), 0);
	IS(size == 1 && found[0] == 'd' && value == 9, 1);
	IS(skep_map_lookup_nearest(map, "a", 1, SKEP_FLOOR, found, &size, &value, 8), -ENOENT);
	IS(skep_map_lookup_nearest(map, "a", 1, SKEP_LONGEST_PREFIX, found, &size, &value, 8), -ENOENT);
	IS(skep_map_lookup_nearest(map, "e", 1, SKEP_CEILING, found, &size, &value, 8), -ENOENT);
	IS(skep_map_lookup_nearest(map, "c", 1, 3, found, &size, &value, 8), -EINVAL);
	size = 2;
	IS(skep_map_lookup_nearest(map, "c", 1, SKEP_FLOOR, found, &size, &value, 8), -ENOSPC);
	IS((int)size, 3);
	IS(skep_map_lookup_nearest(map, "c", 1, SKEP_FLOOR, found, NULL, &value, 8), -EFAULT);
	IS(skep_map_lookup_nearest(map, "c", 1, SKEP_FLOOR, NULL, &size, &value, 8), -EFAULT);
	IS(skep_map_lookup_nearest(map, "c", 1, SKEP_FLOOR, found, &size, NULL, 8), -EFAULT);
	IS(skep_map_lookup_nearest(map, "c", 1, SKEP_FLOOR, found, &size, &value, 4), -EINVAL);
	IS(skep_map_lookup_nearest(map, "a", 1, SKEP_FLOOR, found, &size, &value, 4), -EINVAL);
	IS(skep_map_lookup_nearest(map, NULL, 1, SKEP_FLOOR, found, &size, &value, 8), -EFAULT);
	size = sizeof(found);
	IS(skep_map_lookup_nearest(map, "c", 1, SKEP_FLOOR, found, &size, found + 2, 8), -EINVAL);
	IS(skep_map_lookup_nearest(map, "c", 1, SKEP_FLOOR, found, &size, &size, 8), -EINVAL);
	size = 8;
	IS(skep_map_lookup_nearest(map, "c", 1, SKEP_FLOOR, &size, &size, &value, 8), -EINVAL);
	size = sizeof(found);
	/* The key may go where the one given is. */
	memcpy(found, "cc", 2);
	IS(skep_map_lookup_nearest(map, found, 2, SKEP_FLOOR, found, &size, &value, 8), 0);
	IS(size == 3 && memcmp(found, "bcd", 3) == 0, 1);

	/* In order and against it, as a number to the base of 3: b, b, d is 1, 1, 3. */
	IS(skep_map_visit(map, NULL, 0, NULL, 0, 0, element, NULL), 3);
	IS(letters[0], 3);
	IS(letters[1], 9 + 3 + 3);
	letters[1] = 0;
	IS(skep_map_visit(map, NULL, 0, NULL, 0, SKEP_REVERSE, element, NULL), 3);
	IS(letters[1], 27 + 3 + 1);
	IS(skep_map_visit(map, "bc", 2, NULL, 0, 0, element, NULL), 2);
	IS(skep_map_visit(map, "b", 1, "d", 1, 0, element, NULL), 2);
	IS(skep_map_visit(map, "d", 1, "b", 1, 0, element, NULL), 0);
	IS(skep_map_visit(map, "b", 1, NULL, 0, SKEP_PREFIX, element, NULL), 2);
	IS(skep_map_visit(map, "", 0, NULL, 0, SKEP_PREFIX, element, NULL), 3);
	IS(skep_map_visit(map, NULL, 0, NULL, 0, 0, element, &stop), 1);
	IS(skep_map_visit(map, NULL, 0, NULL, 0, 0, element, &fail), -EPERM);
	IS(skep_map_visit(map, NULL, 0, NULL, 0, 0, NULL, NULL), -EFAULT);
	IS(skep_map_visit(map, NULL, 0, NULL, 0, SKEP_PREFIX, element, NULL), -EFAULT);
	IS(skep_map_visit(map, "b", 1, "c", 1, SKEP_PREFIX, element, NULL), -EINVAL);
	IS(skep_map_visit(map, NULL, 1, NULL, 0, 0, element, NULL), -EFAULT);
	IS(skep_map_visit(map, "b", SIZE_MAX, NULL, 0, 0, element, NULL), -EINVAL);
	IS(skep_map_visit(map, NULL, 0, NULL, 0, 4, element, NULL), -EINVAL);

	/* The next key goes in the same order, and need not begin at one that is there. */
	size = sizeof(found);
	IS(skep_map_next_key(map, "bcd", 3, found, &size), 0);
	IS(size == 1 && found[0] == 'd', 1);
	memset(cursor, 0, sizeof(cursor));
	IS(skep_map_info(map, &info, sizeof(info)), 0);
	IS(info.strict_cursor_size <= sizeof(cursor), 1);
	IS(skep_map_dump(map, cursor, info.strict_cursor_size, rows, sizeof(rows), SKEP_STRICT) > 0, 1);
	IS(skep_map_cell_key(map, rows, &key, &size), 0);
	IS(size == 1 && *(const char *)key == 'b', 1);

	IS(skep_map_delete_range(map, NULL, 0, NULL, 0, SKEP_REVERSE, NULL), -EINVAL);
	IS(skep_map_delete_range(map, "b", 1, NULL, 0, SKEP_PREFIX, (uint64_t *)(found + 1)), -EFAULT);
	IS(skep_map_delete_range(map, "b", 1, NULL, 0, SKEP_PREFIX, &removed), 0);
	IS((int)removed, 2);
	IS(skep_map_delete_range(map, NULL, 0, NULL, 0, 0, NULL), 0);
	IS(skep_map_visit(map, NULL, 0, NULL, 0, 0, element, NULL), 0);
	IS(skep_map_free(map), 0);
	return 0;
}

/* Commands and processes that are none. */
static int processes(skep_session *session)
{
	const char *words[] = {"/no/such/program", NULL}, *none[] = {NULL};
	struct { struct skep_command command; uint64_t more; } later;
	struct skep_command *command = &later.command;
	skep_process *process = (skep_process *)words;
	skep_link *links[1];

	links[0] = (skep_link *)session;
	memset(&later, 0, sizeof(later));
	IS(skep_command_start(session, NULL, sizeof(*command), NULL, 0), -EFAULT);
	IS(skep_command_start(session, command, 8, NULL, 0), -EINVAL);
	IS(skep_command_start(session, command, sizeof(*command), NULL, 0), -EFAULT);
	command->argv = words;
	command->reserved = 1;
	IS(skep_command_start(session, command, sizeof(*command), NULL, 0), -EINVAL);
	SAYS("`reserved`");
	command->reserved = 0;
	command->argv = none;
	IS(skep_command_start(session, command, sizeof(*command), NULL, 0), -EINVAL);
	command->argv = words;
	IS(skep_command_start(session, command, sizeof(*command), NULL, 0), -ENOENT);
	IS(skep_command_start(session, command, sizeof(*command), NULL, 1), -EFAULT);
	SAYS("the list of links is NULL");
	IS(skep_command_start(session, command, sizeof(*command), links, 1), -EBADF);
	IS(skep_command_start(session, command, sizeof(*command), links, SIZE_MAX), -E2BIG);
	words[0] = "/bin/sh";
	command->fds[1] = 9999;
	IS(skep_command_start(session, command, sizeof(*command), NULL, 0), -EBADF);
	command->fds[1] = -1;
	IS(skep_command_start(session, command, sizeof(*command), NULL, 0), -EBADF);
	command->fds[1] = 0;
	later.more = 1;
	IS(skep_command_start(session, command, sizeof(later), NULL, 0), -E2BIG);

	IS(skep_process_attach(session, 1, links, 1, NULL, &process), -EBADF);
	IS(skep_process_attach(session, 1, NULL, 0, "/dev/null", NULL), -EFAULT);
	IS(skep_process_attach(session, 1, NULL, 0, "/no/such/agent.so", &process), -ENOENT);
	IS(process == NULL, 1);
	IS(skep_process_attach(session, 1, NULL, 0, "/proc/self/exe", &process), -ENOEXEC);
	IS(skep_process_functions((skep_process *)session), -EBADF);
	IS(skep_process_leave((skep_process *)session), -EBADF);
	return 0;
}

int main(void)
{
	skep_session *session = NULL;
	char dir[8];
	int length;

	IS(skep_version() == 0x000100, 1);
	IS(strcmp(skep_last_error(), ""), 0);
	IS(strcmp(skep_last_log(), ""), 0);
	if (nulls())
		return 1;
	IS(skep_session_open("/dev/null/x", &session), -ENOTDIR);
	IS(skep_session_open("/dev/null", &session), -ENOTDIR);
	IS(skep_session_open("/etc/passwd", &session), -ENOTDIR);
	IS(skep_session_open("", &session), -EINVAL);
	IS(session == NULL, 1);
	IS(skep_session_scratch(&session), 0);
	length = skep_session_dir(session, dir, sizeof(dir));
	IS(length > 8 && strlen(dir) == 7 && dir[0] == '/', 1);
	if (hostile(session) || ordered(session) || processes(session))
		return 1;
	IS(skep_session_free(session), 0);
	IS(skep_session_free(session), -EBADF);
	IS(strstr(skep_last_error(), "freed") != NULL, 1);
	return 0;
}
