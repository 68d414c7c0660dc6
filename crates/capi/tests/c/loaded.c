/* Objects, programs, links, rings, runners, batches and mappings with what a hostile or careless
 * caller gives, on the object of the first argument; a second argument leaves out what hooks
 * functions. Compiled as C and as C++. Prints nothing; says the line of what went wrong. */
#include <dirent.h>
#include <errno.h>
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>
#include "is.h"

#ifdef __cplusplus
extern "C"
#else
extern
#endif
int library_called(int n);

__attribute__((noinline)) int library_called(int n)
{
	__asm__ volatile("" : "+r"(n));
	return n * 3 + 1;
}

static unsigned char *bytes_of(const char *path, size_t *size)
{
	FILE *file = fopen(path, "rb");
	unsigned char *bytes = NULL;
	long n = -1;

	if (file && fseek(file, 0, SEEK_END) == 0 && (n = ftell(file)) > 0) {
		rewind(file);
		bytes = (unsigned char *)malloc((size_t)n);
		if (bytes && fread(bytes, 1, (size_t)n, file) != (size_t)n) {
			free(bytes);
			bytes = NULL;
		}
	}
	if (file)
		fclose(file);
	*size = n > 0 ? (size_t)n : 0;
	return bytes;
}

/* A loader takes the option, and then does not load. */
#define REFUSED(option, words)                                                 \
	do {                                                                      \
		IS(skep_loader_new(session, &loader), 0);                        \
		IS(option, 0);                                                    \
		IS(skep_loader_load_file(loader, path, &object) < 0, 1);          \
		SAYS(words);                                                      \
		IS(object == NULL, 1);                                            \
		IS(skep_loader_free(loader), 0);                                  \
	} while (0)

/* Objects that are cut off, and options that fit none. */
static int loaders(skep_session *session, const char *path)
{
	unsigned char noise[4096];
	char fifo[256];
	skep_map *map = NULL;
	skep_vmas *vmas = NULL;
	skep_loader *loader = NULL;
	skep_object *object = NULL;
	size_t size, cut, i;
	unsigned char *whole = bytes_of(path, &size);

	IS(whole != NULL, 1);
	IS(skep_object_open(session, "/no/such.bpf.o", &object), -ENOENT);
	SAYS("/no/such.bpf.o");
	IS(object == NULL, 1);
	IS(skep_object_open(session, "/", &object), -EISDIR);
	IS(skep_object_open(session, "/dev/null", &object), -EINVAL);
	/* A pipe that nobody writes to: an answer, not a wait. The directory goes with the session. */
	IS(skep_session_dir(session, fifo, sizeof(fifo)) < 200, 1);
	strcat(fifo, "/fifo");
	IS(mkfifo(fifo, 0600), 0);
	IS(skep_map_open_path(session, fifo, &map) < 0, 1);
	IS(skep_vmas_open_file(fifo, &vmas), -EINVAL);
	IS(skep_object_open(session, fifo, &object), -EINVAL);
	SAYS("not a regular file");
	REFUSED(skep_loader_core_target(loader, fifo), "not a regular file");
	REFUSED(skep_loader_prototypes(loader, fifo), fifo);
	IS(skep_object_open(session, "/proc/self/exe", &object) < 0, 1);
	IS(skep_object_open(session, "\xff", &object), -EINVAL);

	IS(skep_loader_new(session, &loader), 0);
	IS(skep_loader_load_memory(loader, NULL, 1, &object), -EFAULT);
	IS(skep_loader_load_memory(loader, whole, SIZE_MAX, &object), -EINVAL);
	IS(skep_loader_load_memory(loader, whole, 0, &object), -ENOEXEC);
	IS(skep_loader_load_memory(loader, whole, size, NULL), -EFAULT);
	/* Each prefix of some hundred: an error, never a crash. The table of sections is last. */
	for (cut = 0; cut < size - 64; cut += 293) {
		unsigned char *part = (unsigned char *)malloc(cut + 1);

		memcpy(part, whole, cut);
		i = (size_t)skep_loader_load_memory(loader, part, cut, &object);
		free(part);
		IS((int)i < 0, 1);
		IS(*skep_last_error() != 0, 1);
	}
	for (i = 0; i < sizeof(noise); i++)
		noise[i] = (unsigned char)(i * 2654435761u >> 7);
	IS(skep_loader_load_memory(loader, noise, sizeof(noise), &object), -ENOEXEC);
	memcpy(noise, whole, 64);
	IS(skep_loader_load_memory(loader, noise, sizeof(noise), &object) < 0, 1);

	IS(skep_loader_free(loader), 0);

	/* What options name is looked up when it loads. */
	REFUSED(skep_loader_global(loader, "no_such", "1"), "no_such");
	REFUSED(skep_loader_global(loader, "limit", "a lot"), "limit");
	REFUSED(skep_loader_max_entries(loader, "no_map", 4), "no_map");
	REFUSED(skep_loader_max_entries(loader, "counts", UINT32_MAX), "counts");
	REFUSED(skep_loader_autoload(loader, "no_program", 0), "no_program");
	REFUSED(skep_loader_program_type(loader, "first_bytes", "no/such/section"), "no/such/section");
	REFUSED(skep_loader_core_target(loader, "/no/such/types"), "/no/such/types");
	REFUSED(skep_loader_prototypes(loader, "/dev/null"), "/dev/null");
	REFUSED(skep_loader_prototypes(loader, "/no/such/program"), "`/no/such/program` was not found");
	IS(skep_loader_load_file(loader, path, &object), -EBADF);
	IS(skep_loader_new(session, &loader), 0);
	IS(skep_loader_global(loader, NULL, "1"), -EFAULT);
	IS(skep_loader_global(loader, "limit", NULL), -EFAULT);
	IS(skep_loader_global(loader, "limit", "\xc3"), -EINVAL);
	IS(skep_loader_free(loader), 0);

	/* And one whose options fit loads twice. */
	IS(skep_loader_new(session, &loader), 0);
	IS(skep_loader_global(loader, "limit", "12"), 0);
	IS(skep_loader_max_entries(loader, "counts", 16), 0);
	for (i = 0; i < 2; i++) {
		IS(skep_loader_load_memory(loader, whole, size, &object), 0);
		IS(skep_object_free(object), 0);
		IS(skep_object_free(object), -EBADF);
	}
	IS(skep_loader_free(loader), 0);
	free(whole);
	return 0;
}

/* How many files a folder of the session's directory has. */
static int files(skep_session *session, const char *folder)
{
	char path[256];
	DIR *dir;
	int n = 0;

	IS(skep_session_dir(session, path, sizeof(path)) < 200, 1);
	strcat(path, folder);
	dir = opendir(path);
	IS(dir != NULL, 1);
	while (readdir(dir))
		n++;
	closedir(dir);
	return n - 2;
}

/* What was freed does not fill the memory of a session that goes on; what is used or pinned stays. */
static int freed(const char *path)
{
	struct skep_map_def def;
	skep_session *session;
	skep_map *map, *kept;
	skep_object *object;
	uint32_t key = 1;
	uint64_t value = 9;
	int i;

	memset(&def, 0, sizeof(def));
	def.type = 1; /* BPF_MAP_TYPE_HASH */
	def.key_size = 4;
	def.value_size = 8;
	def.max_entries = 8;
	IS(skep_session_scratch(&session), 0);
	IS(skep_map_create(session, &def, sizeof(def), &kept), 0);
	IS(skep_map_update(kept, &key, 4, &value, 8, 0), 0);
	IS(skep_map_create(session, &def, sizeof(def), &map), 0);
	IS(skep_map_pin(session, map, "pinned"), 0);
	IS(skep_map_free(map), 0);
	for (i = 0; i < 200; i++) {
		IS(skep_map_create(session, &def, sizeof(def), &map), 0);
		IS(skep_map_free(map), 0);
	}
	IS(files(session, "/maps") < 100, 1);
	for (i = 0; i < 200; i++) {
		IS(skep_object_open(session, path, &object), 0);
		IS(skep_object_free(object), 0);
	}
	IS(files(session, "/maps") < 1000 && files(session, "/progs") < 1000, 1);
	value = 0;
	IS(skep_map_lookup(kept, &key, 4, &value, 8, 0), 0);
	IS((int)value, 9);
	IS(skep_map_open_name(session, "pinned", &map), 0);
	IS(skep_map_free(map), 0);
	IS(skep_map_free(kept), 0);
	IS(skep_session_free(session), 0);
	return 0;
}

/* Programs and maps of an object by what it does not have. */
static int parts(skep_object *object)
{
	struct { struct skep_program_info info; uint64_t more; } info;
	skep_program *program = NULL, *gone;
	skep_map *map = NULL;
	uint32_t n;

	IS(skep_object_program(object, "no_such", &program), -ENOENT);
	SAYS("first_bytes");
	IS(program == NULL, 1);
	IS(skep_object_program(object, "", &program), -ENOENT);
	IS(skep_object_program(object, "\xff", &program), -EINVAL);
	IS(skep_object_program(object, "count", NULL), -EFAULT);
	IS(skep_object_map(object, "no_such", &map), -ENOENT);
	IS(skep_object_program_at(object, UINT32_MAX, &program), -ENOENT);
	IS(skep_object_map_at(object, UINT32_MAX, &map), -ENOENT);
	for (n = 0; skep_object_map_at(object, n, &map) == 0; n++)
		IS(skep_map_free(map), 0);
	IS(n >= 6 && n < 12, 1);
	for (n = 0; skep_object_program_at(object, n, &program) == 0; n++) {
		memset(&info, 1, sizeof(info));
		IS(skep_program_info(program, &info.info, sizeof(info)), 0);
		IS(info.more == 0 && strlen(info.info.name) > 0, 1);
		IS(skep_program_info(program, &info.info, 4), -EINVAL);
		IS(skep_program_info(program, &info.info, 5000), -E2BIG);
		IS(skep_program_info(program, NULL, sizeof(info.info)), -EFAULT);
		gone = program;
		IS(skep_program_free(program), 0);
		IS(skep_program_info(gone, &info.info, sizeof(info.info)), -EBADF);
	}
	IS((int)n, 6);
	return 0;
}

static int stop_at_once(void *context, const struct skep_function *f)
{
	*(int *)context += f->name != NULL;
	return -EPERM;
}

/* Answers 1, what a link does that was detached. */
static int detaches(void *context, const struct skep_function *f)
{
	int done = f->name ? skep_link_detach(*(skep_link **)context, 1000) : -EIO;

	return library_called(1) == 4 ? done : -EIO;
}

/* A link that another call uses runs no program any more when it was detached. */
static int used(skep_object *object, skep_program *count, const struct skep_attach_opts *opts)
{
	skep_link *link = NULL;
	skep_map *counts;
	uint64_t key = (uintptr_t)library_called, value, before;

	IS(skep_object_map(object, "counts", &counts), 0);
	IS(skep_program_attach(count, opts, sizeof(*opts), &link), 0);
	IS(library_called(1), 4);
	IS(skep_map_lookup(counts, &key, sizeof(key), &before, sizeof(before), 0), 0);
	IS(skep_link_functions(link, detaches, &link), 1);
	IS(skep_link_id(link), -EBADF);
	IS(skep_map_lookup(counts, &key, sizeof(key), &value, sizeof(value), 0), 0);
	IS(value == before, 1);
	IS(skep_map_free(counts), 0);
	return 0;
}

/* Links to functions that are none, with options that are none. */
static int links(skep_session *session, skep_object *object)
{
	const char *words[] = {"true", NULL};
	struct skep_command command;
	skep_process *process = NULL;
	struct { struct skep_attach_opts opts; uint64_t more; } later;
	struct skep_attach_opts *opts = &later.opts;
	struct skep_target target;
	struct { struct skep_missed missed; uint64_t more; } missed;
	const char *names[3] = {"enter", "leave", NULL};
	skep_program *count, *xdp;
	skep_link *link = NULL;
	int visited = 0;

	memset(&later, 0, sizeof(later));
	memset(&target, 0, sizeof(target));
	opts->targets = &target;
	opts->target_count = 1;
	IS(skep_object_program(object, "count", &count), 0);
	IS(skep_object_program(object, "first_bytes", &xdp), 0);
	target.pattern = "*:no_such_function_anywhere";
	IS(skep_program_attach(count, opts, sizeof(*opts), &link), -ENOENT);
	SAYS("no_such_function_anywhere");
	IS(link == NULL, 1);
	IS(skep_program_attach(count, NULL, 0, &link), -ENOENT); /* its section names nothing */
	target.pattern = NULL;
	IS(skep_program_attach(count, opts, sizeof(*opts), &link), -EFAULT);
	target.pattern = "\xff";
	IS(skep_program_attach(count, opts, sizeof(*opts), &link), -EINVAL);
	target.pattern = "";
	IS(skep_program_attach(count, opts, sizeof(*opts), &link) < 0, 1);
	target.pattern = ":::";
	IS(skep_program_attach(count, opts, sizeof(*opts), &link) < 0, 1);
	target.pattern = "*:library_called";
	opts->target_count = UINT64_MAX;
	IS(skep_program_attach(count, opts, sizeof(*opts), &link) < 0, 1);
	opts->target_count = 1;
	opts->targets = NULL;
	IS(skep_program_attach(count, opts, sizeof(*opts), &link), -EFAULT);
	opts->targets = &target;
	opts->flags = 1u << 30;
	IS(skep_program_attach(count, opts, sizeof(*opts), &link), -EINVAL);
	opts->flags = 0;
	opts->exclude = "\xff";
	IS(skep_program_attach(count, opts, sizeof(*opts), &link), -EINVAL);
	opts->exclude = "*:library_called";
	IS(skep_program_attach(count, opts, sizeof(*opts), &link), -ENOENT);
	opts->exclude = NULL;
	IS(skep_program_attach(count, opts, 3, &link), -EINVAL);
	later.more = 1;
	IS(skep_program_attach(count, opts, sizeof(later), &link), -E2BIG);
	later.more = 0;
	IS(skep_program_attach(xdp, opts, sizeof(*opts), &link) < 0, 1);
	IS(skep_program_attach(count, opts, sizeof(*opts), NULL), -EFAULT);
	IS(skep_object_attach(object, NULL, 2, opts, sizeof(*opts), &link), -EFAULT);
	IS(skep_object_attach(object, names, 3, opts, sizeof(*opts), &link), -EFAULT);
	IS(skep_object_attach(object, names, 0, opts, sizeof(*opts), &link) < 0, 1);
	IS(skep_object_attach(object, names, SIZE_MAX, opts, sizeof(*opts), &link) < 0, 1);
	names[1] = "no_such";
	IS(skep_object_attach(object, names, 2, opts, sizeof(*opts), &link) < 0, 1);
	SAYS("no_such");
	IS(link == NULL, 1);

	/* Agents that are none, for commands as for processes. */
	memset(&command, 0, sizeof(command));
	command.argv = words;
	opts->flags = SKEP_ATTACH_OTHERS;
	IS(skep_program_attach(count, opts, sizeof(*opts), &link), 0);
	command.agent = "/etc/passwd";
	IS(skep_command_start(session, &command, sizeof(command), &link, 1), -ENOEXEC);
	SAYS("`/etc/passwd` is not the agent's library");
	IS(skep_process_attach(session, 1, &link, 1, command.agent, &process), -ENOEXEC);
	command.agent = "/proc/self/exe";
	IS(skep_command_start(session, &command, sizeof(command), &link, 1), -ENOEXEC);
	command.agent = "/dev/null";
	IS(skep_command_start(session, &command, sizeof(command), &link, 1), -ENOENT);
	IS(skep_link_detach(link, 1000), 1);
	opts->flags = 0;

	/* One that is there, used in the wrong way. */
	IS(skep_program_attach(count, opts, sizeof(*opts), &link), 0);
	IS(skep_link_functions(link, NULL, NULL), -EFAULT);
	IS(skep_link_functions(link, stop_at_once, &visited), -EPERM);
	IS(visited, 1);
	IS(skep_link_missed(link, &missed.missed, 1), -EINVAL);
	memset(&missed, 1, sizeof(missed));
	IS(skep_link_missed(link, &missed.missed, sizeof(missed)), 0);
	IS(missed.more == 0 && missed.missed.inside == 0, 1);
	IS(skep_link_id(link) > 0, 1);
	IS(skep_process_leave((skep_process *)link), -EBADF);
	IS(library_called(1), 4);
	IS(skep_link_detach(link, 1000), 1);
	IS(skep_link_detach(link, 0), -EBADF);
	IS(skep_link_id(link), -EBADF);
	IS(used(object, count, opts), 0);
	IS(skep_program_free(count), 0);
	IS(skep_program_free(xdp), 0);
	return 0;
}

struct reader {
	skep_ring *ring;
	int answer, records;
};

static int reads_its_own_ring(void *context, const void *bytes, size_t size)
{
	struct reader *reader = (struct reader *)context;
	char buffer[64];
	size_t room = sizeof(buffer);

	reader->records++;
	reader->answer = skep_ring_next(reader->ring, 0, buffer, &room);
	return bytes && size == 16 ? 0 : -EIO;
}

static int refuses(void *context, const void *bytes, size_t size)
{
	(void)bytes;
	(void)size;
	return *(int *)context;
}

/* Rings: of maps that are none, read twice at a time, into little room. */
static int rings(skep_object *object)
{
	struct skep_attach_opts opts;
	struct skep_target target;
	struct reader reader;
	skep_program *tell;
	skep_link *link;
	skep_map *events, *counts;
	skep_ring *ring = NULL, *second = NULL;
	char buffer[64];
	size_t size = 3;
	uint64_t lost = 9;
	uint32_t count = 2;
	int refusal = -ECANCELED;

	memset(&opts, 0, sizeof(opts));
	memset(&target, 0, sizeof(target));
	target.pattern = "*:library_called";
	opts.targets = &target;
	opts.target_count = 1;
	IS(skep_object_map(object, "counts", &counts), 0);
	IS(skep_ring_open(counts, &ring), -EINVAL);
	IS(skep_ring_open((skep_map *)object, &ring), -EBADF);
	IS(skep_object_map(object, "events", &events), 0);
	IS(skep_map_lookup_batch(events, buffer, sizeof(buffer), NULL, NULL, &count, 0), -524);
	SAYS("has no lookup batch");
	IS(skep_ring_open(events, NULL), -EFAULT);
	IS(skep_ring_open(events, &ring), 0);
	IS(skep_ring_open(events, &second), -EBUSY);
	IS(skep_ring_next(ring, 0, buffer, &size), 0);
	IS(skep_ring_poll(ring, 1, reads_its_own_ring, &reader), 0);
	IS(skep_ring_lost(ring, &lost), 0);
	IS((int)lost, 0);
	IS(skep_ring_lost(ring, NULL), -EFAULT);

	IS(skep_object_program(object, "tell", &tell), 0);
	IS(skep_program_attach(tell, &opts, sizeof(opts), &link), 0);
	IS(library_called(1) + library_called(2) + library_called(3), 21);
	size = 3;
	IS(skep_ring_next(ring, 0, buffer, &size), -EMSGSIZE);
	IS((int)size, 16);
	size = 16;
	IS(skep_ring_next(ring, 0, NULL, &size), -EFAULT);
	IS(skep_ring_next(ring, 0, buffer, NULL), -EFAULT);
	IS(skep_ring_next(ring, 0, &size, &size), -EINVAL);
	IS(skep_ring_next(ring, 0, buffer, &size), 1); /* the first record came again */
	IS((int)size, 16);
	/* A callback that refuses has had its record. */
	IS(skep_ring_poll(ring, 0, refuses, &refusal), -ECANCELED);
	reader.ring = ring;
	reader.records = reader.answer = 0;
	IS(skep_ring_poll(ring, 0, reads_its_own_ring, &reader), 1);
	IS(reader.records, 1);
	IS(reader.answer, -EBUSY);
	IS(skep_ring_poll(ring, 0, NULL, NULL), -EFAULT);
	IS(library_called(4), 13);
	IS(skep_ring_free(ring), 0);
	IS(skep_ring_next(ring, 0, buffer, &size), -EBADF);
	/* Its record waits for the next reader. */
	IS(skep_ring_open(events, &ring), 0);
	IS(skep_link_detach(link, 1000), 1);
	IS(skep_map_free(events), 0);
	IS(skep_program_free(tell), 0);
	IS(skep_ring_next(ring, 0, buffer, &size), 1);
	IS(skep_ring_free(ring), 0);
	IS(skep_map_free(counts), 0);
	return 0;
}

/* Live frames, of a program that drops them: they go nowhere. */
static int live_frames(skep_runner *runner, const unsigned char *packet)
{
	uint32_t md[6] = { 0, 64, 0, 1 }; /* from loopback */
	unsigned char out[64];
	struct skep_test_run run;
	int done;

	memset(&run, 0, sizeof(run));
	run.data_in = packet;
	run.data_size_in = 64;
	run.repeat = 100;
	run.retval = 7;
	run.batch_size = 1;
	IS(skep_runner_test_run(runner, &run, sizeof(run)), -EINVAL);
	run.flags = SKEP_TEST_LIVE_FRAMES | 1;
	IS(skep_runner_test_run(runner, &run, sizeof(run)), -EINVAL);
	run.flags = SKEP_TEST_LIVE_FRAMES;
	run.batch_size = 257;
	IS(skep_runner_test_run(runner, &run, sizeof(run)), -E2BIG);
	run.batch_size = 256;
	run.ctx_in = md;
	run.ctx_size_in = sizeof(md);
	run.data_out = out;
	run.data_size_out = sizeof(out);
	IS(skep_runner_test_run(runner, &run, sizeof(run)), -EINVAL);
	run.data_out = NULL;
	run.data_size_out = 0;
	done = skep_runner_test_run(runner, &run, sizeof(run));
	if (done == -EPERM) /* the machine's interfaces are not ours */
		return 0;
	IS(done, 0);
	IS(run.retval, 0);
	md[3] = 0x7ffffff0; /* from nowhere */
	IS(skep_runner_test_run(runner, &run, sizeof(run)), -ENODEV);
	run.ctx_in = NULL;
	run.ctx_size_in = 0;
	run.data_out = out;
	run.data_size_out = sizeof(out);
	IS(skep_runner_test_run(runner, &run, sizeof(run)), 0);
	IS(run.data_size_out == 64 && memcmp(out, packet, 64) == 0, 1);
	return 0;
}

/* Test runs: packets and contexts of wrong sizes, memory that is not the caller's. */
static int runners(skep_object *object)
{
	struct { struct skep_test_run run; uint64_t more; } later;
	struct skep_test_run *run = &later.run;
	unsigned char packet[64], out[64];
	skep_program *xdp, *count;
	skep_runner *runner = NULL;
	uint32_t flags;

	IS(skep_object_program(object, "first_bytes", &xdp), 0);
	IS(skep_object_program(object, "count", &count), 0);
	IS(skep_program_runner(xdp, 1u << 31, &runner), -EINVAL);
	IS(skep_program_runner(xdp, 0, NULL), -EFAULT);
	IS(skep_program_runner((skep_program *)object, 0, &runner), -EBADF);
	for (flags = 0; flags <= SKEP_INTERP; flags++) {
		memset(packet, 7, sizeof(packet));
		IS(skep_program_runner(xdp, flags, &runner), 0);
		memset(&later, 0, sizeof(later));
		IS(skep_runner_test_run(runner, NULL, sizeof(*run)), -EFAULT);
		IS(skep_runner_test_run(runner, run, 7), -EINVAL);
		IS(skep_runner_test_run(runner, run, 5000), -E2BIG);
		later.more = 1;
		IS(skep_runner_test_run(runner, run, sizeof(later)), -E2BIG);
		later.more = 0;
		IS(skep_runner_test_run(runner, run, sizeof(*run)), -EINVAL); /* no packet */
		run->data_size_in = sizeof(packet);
		IS(skep_runner_test_run(runner, run, sizeof(*run)), -EFAULT);
		run->data_in = packet;
		run->data_size_in = 13; /* less than an Ethernet header */
		IS(skep_runner_test_run(runner, run, sizeof(*run)), -EINVAL);
		SAYS("the packet has 13 bytes, at least 14 are needed");
		run->data_size_in = UINT32_MAX;
		IS(skep_runner_test_run(runner, run, sizeof(*run)) < 0, 1);
		run->data_size_in = sizeof(packet);
		IS(skep_runner_test_run(runner, run, sizeof(*run)), 0);
		IS((int)run->retval, 1); /* XDP_DROP */
		run->data_out = out;
		run->data_size_out = 10;
		IS(skep_runner_test_run(runner, run, sizeof(*run)), -ENOSPC);
		IS(run->data_size_out == sizeof(packet) && memcmp(out, packet, 10) == 0, 1);
		run->data_out = NULL;
		run->data_size_out = 0;
		run->ctx_in = packet;
		run->ctx_size_in = sizeof(packet);
		IS(skep_runner_test_run(runner, run, sizeof(*run)) < 0, 1);
		run->ctx_in = NULL;
		IS(skep_runner_test_run(runner, run, sizeof(*run)), -EFAULT);
		run->ctx_size_in = 0;
		run->data_out = packet + 1; /* over `data_in`, and one byte short */
		run->data_size_out = sizeof(packet) - 1;
		memset(packet, 7, sizeof(packet));
		packet[0] = 9;
		IS(skep_runner_test_run(runner, run, sizeof(*run)), -ENOSPC);
		IS(packet[1] == 9 && packet[2] == 7 && packet[63] == 7, 1);
		run->data_size_out = sizeof(packet) - 1;
		run->ctx_out = packet + 60;
		run->ctx_size_out = 24;
		IS(skep_runner_test_run(runner, run, sizeof(*run)), -EINVAL);
		run->ctx_out = NULL;
		run->ctx_size_out = 0;
		run->data_out = run;
		IS(skep_runner_test_run(runner, run, sizeof(*run)), -EINVAL);
		run->data_out = packet;
		run->data_size_out = sizeof(packet);
		run->repeat = 3;
		IS(skep_runner_test_run(runner, run, sizeof(*run)), 0);
		IS(live_frames(runner, packet), 0);
		IS(skep_runner_free(runner), 0);
		IS(skep_runner_test_run(runner, run, sizeof(*run)), -EBADF);
	}
	IS(skep_program_free(xdp), 0);
	IS(skep_program_free(count), 0);
	return 0;
}

/* Calls that read nothing leave a cursor at the beginning: an array then gives all of its elements, and a trie
 * that was empty those that came since. */
static int cursors(skep_session *session)
{
	struct skep_map_def def;
	struct skep_map_info info;
	unsigned char cursor[64], place[64], rows[1024];
	uint32_t keys[20], count, n, seen = 0;
	uint64_t values[20];
	skep_map *map = NULL;
	int answer;

	memset(&def, 0, sizeof(def));
	def.type = 2; /* BPF_MAP_TYPE_ARRAY */
	def.key_size = 4;
	def.value_size = 8;
	def.max_entries = 20;
	IS(skep_map_create(session, &def, sizeof(def), &map), 0);
	IS(skep_map_info(map, &info, sizeof(info)), 0);
	IS(info.cursor_size <= sizeof(place), 1);
	memset(cursor, 0, sizeof(cursor));
	memset(place, 0, sizeof(place));
	count = 0;
	IS(skep_map_lookup_batch(map, cursor, sizeof(cursor), keys, values, &count, 0), 0);
	count = 7;
	IS(skep_map_lookup_batch(map, cursor, sizeof(cursor), keys, values, &count, 1u << 20), -EINVAL);
	count = 7;
	IS(skep_map_lookup_batch(map, cursor, sizeof(cursor), keys, values, &count, SKEP_LOCK), -EINVAL);
	count = 7;
	IS(skep_map_lookup_batch(map, cursor, sizeof(cursor), keys, values, &count, SKEP_DELETE) < 0, 1);
	IS(skep_map_dump(map, place, info.cursor_size, rows, sizeof(rows), SKEP_LOCK), -EINVAL);
	IS(skep_map_dump(map, place, info.cursor_size, rows, 3, 0), -EINVAL);
	IS(skep_map_dump(map, place, info.cursor_size, rows, sizeof(rows), 0), 20 * (4 + 8));
	do {
		count = 7;
		answer = skep_map_lookup_batch(map, cursor, sizeof(cursor), keys, values, &count, 0);
		for (n = 0; n < count; n++)
			IS((int)keys[n], (int)seen++);
	} while (answer == 0);
	IS(answer, -ENOENT);
	IS((int)seen, 20);
	IS(skep_map_free(map), 0);

	def.type = 11; /* BPF_MAP_TYPE_LPM_TRIE */
	def.key_size = 8;
	def.map_flags = 1; /* BPF_F_NO_PREALLOC */
	IS(skep_map_create(session, &def, sizeof(def), &map), 0);
	memset(cursor, 0, sizeof(cursor));
	count = 7;
	IS(skep_map_lookup_batch(map, cursor, sizeof(cursor), keys, values, &count, 0), -ENOENT);
	memset(keys, 0, sizeof(keys)); /* 0.0.0.0/0 */
	IS(skep_map_update(map, keys, 8, values, 8, 0), 0);
	count = 7;
	IS(skep_map_lookup_batch(map, cursor, sizeof(cursor), keys, values, &count, 0), -ENOENT);
	IS((int)count, 1);
	IS(skep_map_free(map), 0);
	return 0;
}

/* Batches: columns that are none, counts that cannot be, cursors of garbage. `*count` always says how
 * many elements were done. */
static int batches(skep_object *object)
{
	struct skep_map_info info;
	uint64_t keys[8], values[8];
	unsigned char cursor[256];
	skep_map *counts;
	uint32_t count, i;

	IS(skep_object_map(object, "counts", &counts), 0);
	IS(skep_map_info(counts, &info, sizeof(info)), 0);
	IS(info.strict_cursor_size <= sizeof(cursor), 1);
	for (i = 0; i < 8; i++)
		keys[i] = values[i] = i + 1;
	count = 8;
	IS(skep_map_update_batch(counts, keys, values, &count, 0), 0);
	IS((int)count, 8);
	count = 0;
	IS(skep_map_update_batch(counts, NULL, NULL, &count, 0), 0);
	count = 3;
	IS(skep_map_update_batch(counts, NULL, values, &count, 0), -EFAULT);
	IS((int)count, 0);
	count = 3;
	IS(skep_map_update_batch(counts, keys, NULL, &count, 0), -EFAULT);
	IS((int)count, 0);
	IS(skep_map_update_batch(counts, keys, values, NULL, 0), -EFAULT);
	count = 3;
	IS(skep_map_update_batch(counts, keys, values, &count, 1u << 20) < 0, 1);
	IS((int)count, 0);
	keys[7] = 3;
	IS(skep_map_update_batch(counts, keys + 5, values, (uint32_t *)&keys[7], 0), -EINVAL);
	keys[7] = 3;
	IS(skep_map_delete_batch(counts, keys + 5, (uint32_t *)&keys[7]), -EINVAL);
	keys[7] = 8;
	count = 3;
	IS(skep_map_delete_batch(counts, NULL, &count), -EFAULT);
	IS((int)count, 0);

	memset(cursor, 0, sizeof(cursor));
	count = 4;
	IS(skep_map_lookup_batch(counts, NULL, 64, keys, values, &count, 0), -EFAULT);
	IS((int)count, 0);
	count = 4;
	IS(skep_map_lookup_batch(counts, cursor, 1, keys, values, &count, 0), -EINVAL);
	IS((int)count, 0);
	count = 4;
	IS(skep_map_lookup_batch(counts, cursor, sizeof(cursor), NULL, NULL, &count, 0), -EFAULT);
	SAYS("the column of keys is NULL");
	count = 4;
	IS(skep_map_lookup_batch(counts, cursor, sizeof(cursor), keys, values, (uint32_t *)&keys[2], 0), -EINVAL);
	for (i = 0; i < 8; i++)
		keys[i] = i + 1;
	IS(skep_map_lookup_batch(counts, cursor, sizeof(cursor), keys, keys, &count, 0), -EINVAL);
	count = 4;
	IS(skep_map_lookup_batch(counts, cursor, sizeof(cursor), keys, values, &count, SKEP_EXACT), -EINVAL);
	count = 4;
	IS(skep_map_lookup_batch(counts, cursor, sizeof(cursor), keys, values, &count, 1u << 20), -EINVAL);
	IS((int)count, 0);
	/* Any bytes for a cursor: an answer, whatever it is. */
	for (i = 0; i < 256; i++) {
		memset(cursor, (int)i, sizeof(cursor));
		cursor[i] ^= 0x55;
		count = 8;
		skep_map_lookup_batch(counts, cursor, sizeof(cursor), keys, values, &count, 0);
		IS(count <= 8, 1);
		memset(cursor, (int)(255 - i), sizeof(cursor));
		IS(skep_map_dump(counts, cursor, info.cursor_size, keys, sizeof(keys), 0) <= (int)sizeof(keys), 1);
		memset(cursor, (int)i, sizeof(cursor));
		IS(skep_map_dump(counts, cursor, info.strict_cursor_size, keys, sizeof(keys), SKEP_STRICT) <=
			   (int)sizeof(keys), 1);
	}
	/* No room for one element is no end. */
	memset(cursor, 0, sizeof(cursor));
	IS(skep_map_dump(counts, cursor, info.cursor_size, keys, 3, 0), -EINVAL);
	IS(skep_map_dump(counts, cursor, info.cursor_size, NULL, 64, 0), -EFAULT);
	IS(skep_map_dump(counts, cursor, info.cursor_size, keys, sizeof(keys), SKEP_STRICT), -EINVAL);
	IS(skep_map_dump(counts, cursor, info.cursor_size, keys, sizeof(keys), UINT64_MAX), -EINVAL);
	IS(skep_map_dump(counts, cursor, sizeof(cursor), cursor, 8, 0), -EINVAL);
	IS(skep_map_free(counts), 0);
	return 0;
}

/* `struct procmap_query` of <linux/fs.h>, which older headers do not have. */
struct query {
	uint64_t size, query_flags, query_addr, vma_start, vma_end, vma_flags, vma_page_size, vma_offset,
		inode;
	uint32_t dev_major, dev_minor, vma_name_size, build_id_size;
	uint64_t vma_name_addr, build_id_addr;
};

/* Mappings of processes that are none, and structs of every size. */
static int vmas(void)
{
	union {
		struct query query;
		unsigned char bytes[5000];
	} q;
	char name[4096];
	skep_vmas *own = NULL, *other = NULL;
	uint64_t size;
	pid_t child;
	int want;

	IS(skep_vmas_open_pid(UINT32_MAX, &other), -ESRCH);
	IS(skep_vmas_open_pid(0x7ffffffe, &other), -ESRCH);
	IS(other == NULL, 1);
	IS(skep_vmas_open_file("/no/such/snapshot", &other), -ENOENT);
	SAYS("/no/such/snapshot");
	IS(skep_vmas_open_file("/", &other) < 0, 1);
	IS(skep_vmas_open_file(NULL, &other), -EFAULT);
	IS(skep_vmas_open_pid(0, &own), 0);
	IS(skep_vmas_query(own, NULL), -EFAULT);
	for (size = 0; size < 4200; size += size < 130 ? 1 : 61) {
		memset(&q, 0, sizeof(q));
		q.query.size = size;
		q.query.query_addr = (uintptr_t)&vmas;
		want = size < 24 ? -EINVAL : size > 4096 ? -E2BIG : 0;
		IS(skep_vmas_query(own, &q), want);
		if (want == 0 && size >= 40)
			IS(q.query.vma_start <= (uintptr_t)&vmas && (uintptr_t)&vmas < q.query.vma_end, 1);
	}
	memset(&q, 0, sizeof(q));
	q.query.size = 4096;
	q.query.query_addr = (uintptr_t)&vmas;
	q.bytes[4095] = 1;
	IS(skep_vmas_query(own, &q), -E2BIG);
	memset(&q, 0, sizeof(q));
	q.query.size = sizeof(q.query);
	q.query.query_addr = (uintptr_t)&vmas;
	q.query.query_flags = UINT64_MAX;
	IS(skep_vmas_query(own, &q), -EINVAL);
	q.query.query_flags = 0;
	q.query.vma_name_size = sizeof(name);
	IS(skep_vmas_query(own, &q), -EINVAL); /* a size without an address */
	memset(name, 1, sizeof(name)); /* the kernel writes it, as valgrind does not see */
	q.query.vma_name_addr = (uintptr_t)name;
	IS(skep_vmas_query(own, &q), 0);
	IS(q.query.vma_name_size > 1 && name[0] == '/' && name[q.query.vma_name_size - 1] == 0, 1);
	q.query.vma_name_size = 2;
	IS(skep_vmas_query(own, &q), -ENAMETOOLONG);
	q.query.vma_name_size = 0;
	q.query.vma_name_addr = 0;
	q.query.query_addr = 1;
	IS(skep_vmas_query(own, &q), -ENOENT);
	SAYS("no mapping is there");

	/* A child that has ended and was waited for. */
	child = fork();
	if (child == 0)
		_exit(pause());
	IS(child > 0, 1);
	IS(skep_vmas_open_pid((uint32_t)child, &other), 0);
	kill(child, SIGKILL);
	IS(waitpid(child, NULL, 0) == child, 1);
	q.query.query_addr = (uintptr_t)&vmas;
	IS(skep_vmas_query(other, &q), -ESRCH);
	IS(skep_vmas_free(other), 0);
	IS(skep_vmas_query(other, &q), -EBADF);
	IS(skep_vmas_free(own), 0);
	return 0;
}

/* Handles that are none: whatever is guessed is answered, on many threads at a time. */
static void *guesses(void *context)
{
	uintptr_t seed = (uintptr_t)context;
	struct skep_map_info info;
	struct skep_program_info program;
	uint64_t value;
	int i;

	for (i = 0; i < 4000; i++) {
		uintptr_t guess;

		seed = seed * (uintptr_t)6364136223846793005u + 1442695040888963407u;
		guess = seed >> (i & 63);
		/* A guess may be right by chance; that is an answer, too. */
		(void)skep_map_info((skep_map *)guess, &info, sizeof(info));
		(void)skep_program_info((skep_program *)guess, &program, sizeof(program));
		(void)skep_map_lookup((skep_map *)guess, &value, 4, &value, 8, 0);
		(void)skep_vmas_free((skep_vmas *)(guess | (uintptr_t)1 << 62));
		if (*skep_last_error() == 0)
			return (void *)1;
	}
	return NULL;
}

static int threads(void)
{
	pthread_t ids[4];
	uintptr_t n;
	void *failed;

	for (n = 0; n < 4; n++)
		IS(pthread_create(&ids[n], NULL, guesses, (void *)(n * 0x9e3779b9u + 1)), 0);
	for (n = 0; n < 4; n++) {
		IS(pthread_join(ids[n], &failed), 0);
		IS(failed == NULL, 1);
	}
	return 0;
}

/* The directory of the environment has any name. */
static int environment(skep_session *scratch)
{
	skep_session *session = NULL;
	char given[256], dir[256];

	IS(skep_session_dir(scratch, given, sizeof(given)) < 200, 1);
	strcat(given, "/n\xff");
	IS(setenv("SKEP_DIR", given, 1), 0);
	IS(skep_session_open(NULL, &session), 0);
	IS(skep_session_dir(session, dir, sizeof(dir)), (int)strlen(given));
	IS(strcmp(dir, given), 0);
	IS(skep_session_free(session), 0);
	IS(skep_session_open(given, &session), -EINVAL); /* not the one of the environment */
	return unsetenv("SKEP_DIR");
}

int main(int argc, char **argv)
{
	skep_session *session = NULL;
	skep_object *object = NULL;
	skep_program *program = NULL;
	struct skep_program_info info;

	IS(argc >= 2, 1);
	IS(skep_session_scratch(&session), 0);
	if (loaders(session, argv[1]))
		return 1;
	IS(skep_object_open(session, argv[1], &object), 0);
	if (parts(object) || runners(object) || batches(object) || cursors(session))
		return 1;
	if (argc == 2 && (links(session, object) || rings(object)))
		return 1;
	if (vmas() || threads() || freed(argv[1]) || environment(session))
		return 1;
	/* What came of an object and a session outlives both handles. */
	IS(skep_object_program(object, "count", &program), 0);
	IS(skep_object_free(object), 0);
	IS(skep_session_free(session), 0);
	IS(skep_program_info(program, &info, sizeof(info)), 0);
	IS(strcmp(info.name, "count"), 0);
	IS(skep_program_free(program), 0);
	return 0;
}
