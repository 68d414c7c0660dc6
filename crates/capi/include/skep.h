/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/*
 * libskep: eBPF outside the kernel, for C.
 *
 * Answers. Every function that returns int answers 0 or more for success, and a negative error
 * number for failure. skep_last_error() then has one line that says what failed.
 *
 * Handles (skep_session * and so on) are opaque. A handle that was freed, or is of another kind, is
 * answered with -EBADF, NULL with -EFAULT; freeing NULL does nothing. What a handle needs stays as
 * long as the handle: an object may be freed before its programs, maps and links. What was freed, and
 * is not pinned or in a chain, goes when the directory is opened the next time, or while more is made.
 *
 * Structs are given with their size, `sizeof` as the caller's compiler sees it. Fields that the
 * caller does not have are zero. Fields that the library does not have must be zero (-E2BIG), and
 * come back as zero. Set structs to zero before use.
 *
 * Texts are UTF-8 (-EINVAL) and end with NUL. Buffers of one call may not overlap, where one of them
 * is written (-EINVAL), unless a function says so.
 *
 * Threads. Every function may be called on any thread that has 128 kB of stack left, with any handle.
 * A handle may be freed while another thread uses it: that call finishes normally. Functions that allow
 * only one call at a time say so.
 *
 * Fork. In the child of a process with several threads, call nothing before it executes another
 * program. The child of a process with one thread may go on.
 *
 * Callbacks may call every function. They must return: no longjmp, no C++ exception.
 */
#ifndef SKEP_H
#define SKEP_H

#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

typedef struct skep_session skep_session;
typedef struct skep_map skep_map;
typedef struct skep_loader skep_loader;
typedef struct skep_object skep_object;
typedef struct skep_program skep_program;
typedef struct skep_link skep_link;
typedef struct skep_process skep_process;
typedef struct skep_ring skep_ring;
typedef struct skep_runner skep_runner;
typedef struct skep_vmas skep_vmas;

/* ---- The library ---------------------------------------------------------------------------- */

/* Returns the version: major << 16 | minor << 8 | patch. */
uint32_t skep_version(void);

/* Returns why the last call of this thread failed that did; "" before. Valid until the thread's next
 * failure. */
const char *skep_last_error(void);

/* Returns what the verifier said, if that failure was a rejected program, else "": the reason, what
 * may help, and the shortest path of instructions to it. Valid as long. */
const char *skep_last_log(void);

/* ---- Sessions ------------------------------------------------------------------------------- */

/* Opens a skep directory, or creates it. NULL is the one of the environment: $SKEP_DIR, else
 * $XDG_RUNTIME_DIR/skep, else /dev/shm/skep-UID. */
int skep_session_open(const char *dir, skep_session **out);

/* Makes a directory for this process alone, which is removed with its last user. */
int skep_session_scratch(skep_session **out);

/* Writes the directory's path as snprintf does, with the bytes that it has in the environment, which need
 * not be UTF-8. Returns its length without the NUL. */
int skep_session_dir(skep_session *session, char *buffer, size_t size);

int skep_session_free(skep_session *session);

/* ---- Maps ----------------------------------------------------------------------------------- */

/* Numbers of types and flags are those of <linux/bpf.h>, plus these: */
#define SKEP_MAP_TYPE_QP_TRIE 0x03630001
#define SKEP_F_NO_LEAF_CACHE (1U << 30) /* qp-tries: less memory, lookups by way of the trie */

/* A qp-trie takes BPF_F_NO_PREALLOC. Its keys are strings of 1 to `map_extra` bytes if `key_size` is 16
 * and `map_extra` not 0, else `key_size` bytes. */
struct skep_map_def {
	uint32_t type;        /* BPF_MAP_TYPE_... */
	uint32_t key_size;
	uint32_t value_size;
	uint32_t max_entries; /* for ring buffers, bytes */
	uint32_t map_flags;   /* BPF_F_... */
	uint32_t reserved;
	uint64_t map_extra;
	const char *name;     /* up to 15 characters, or NULL */
	skep_map *inner;      /* a map that the inner ones are like, for maps of maps */
};

struct skep_map_info {
	uint32_t type;
	uint32_t id;
	uint32_t key_size;
	uint32_t value_size;
	uint32_t max_entries;
	uint32_t map_flags;
	uint64_t map_extra;
	uint32_t key_cell_size;      /* bytes of a key in dumps and batches */
	uint32_t lookup_size;        /* bytes of a value for users: all slots' of per-CPU maps */
	uint32_t cursor_size;        /* bytes of a cursor */
	uint32_t strict_cursor_size; /* bytes of a cursor with SKEP_STRICT */
	uint32_t btf_id;
	uint32_t frozen;             /* 1: users may not write */
	char name[16];
};

/* Creates a map. */
int skep_map_create(skep_session *session, const struct skep_map_def *def, size_t size, skep_map **out);

/* Open a map by its id; by its name or pin (-EEXIST: several maps have the name); by the path of its
 * file or of a pin. */
int skep_map_open_id(skep_session *session, uint32_t id, skep_map **out);
int skep_map_open_name(skep_session *session, const char *name, skep_map **out);
int skep_map_open_path(skep_session *session, const char *path, skep_map **out);

/* Pin a map of the session's directory (-EINVAL: it is in another one) under a name, which may have
 * folders (`shop/totals`; -EINVAL: it begins with `/`, or a part is empty, `.` or `..`; -EEXIST: there is a
 * pin or a folder of the name; -ENOTDIR: one of its folders is a pin), and remove the pin (-EISDIR: it is
 * a folder). A pinned map stays. */
int skep_map_pin(skep_session *session, skep_map *map, const char *name);
int skep_map_unpin(skep_session *session, const char *name);

int skep_map_info(skep_map *map, struct skep_map_info *info, size_t size);

/*
 * Elements, as by bpf(2), with its flags and error numbers. A value of a per-CPU map is those of all
 * slots, each rounded up to eight bytes: `lookup_size` bytes. Keys of maps of maps and program
 * arrays are as usual, values are ids of what is there (-EBADF).
 *
 * Queues, stacks and bloom filters have no key: NULL and 0. A lookup in a bloom filter reads `value`, and
 * answers whether it was put in: 0, probably; -ENOENT, never.
 */
int skep_map_lookup(skep_map *map, const void *key, size_t key_size, void *value, size_t value_size,
		    uint64_t flags);
int skep_map_lookup_and_delete(skep_map *map, const void *key, size_t key_size, void *value,
			       size_t value_size, uint64_t flags);
int skep_map_update(skep_map *map, const void *key, size_t key_size, const void *value,
		    size_t value_size, uint64_t flags);
int skep_map_delete(skep_map *map, const void *key, size_t key_size);

/* Writes the key after `key`, or the first one for NULL; `next` may be `key`. `next_size` is the
 * size of the buffer, and becomes that of the key. -ENOENT at the end, -ENOSPC for a buffer that is
 * too small. */
int skep_map_next_key(skep_map *map, const void *key, size_t key_size, void *next, size_t *next_size);

/*
 * Maps whose keys are in the order of their bytes: SKEP_MAP_TYPE_QP_TRIE. -524 (ENOTSUPP) of others.
 * `skep_map_next_key` goes in that order; from a key that the map does not have it begins anew, as the
 * kernel's maps do: `skep_map_lookup_nearest` finds what comes after one.
 */
#define SKEP_FLOOR 0          /* the greatest key that is not greater than the one given */
#define SKEP_CEILING 1        /* the least key that is not less */
#define SKEP_LONGEST_PREFIX 2 /* the longest key that the one given begins with */

/* Looks up the element nearest to a key of any length. `found_size` is the size of the buffer for its
 * key, and becomes the key's size, also for -ENOSPC: the buffer is too small. -ENOENT: there is none.
 * `found` or `value` may be `key`, or lie over it. */
int skep_map_lookup_nearest(skep_map *map, const void *key, size_t key_size, uint32_t which, void *found,
			    size_t *found_size, void *value, size_t value_size);

/* Flags of ranges. A range goes from the key `from` up to the key `to` without that one; NULL is no
 * bound. */
#define SKEP_PREFIX 1  /* the keys that begin with the bytes of `from`; `to` is NULL */
#define SKEP_REVERSE 2 /* visits: from the greatest key to the least */

/* Calls `element` for each element of a range, which may change the map. Ends when `element` returns
 * another number than 0: a negative one is the answer. The bytes are valid during the call. Returns how
 * many elements were visited, INT_MAX for more. */
int skep_map_visit(skep_map *map, const void *from, size_t from_size, const void *to, size_t to_size,
		   uint32_t flags,
		   int (*element)(void *context, const void *key, size_t key_size, const void *value,
				  size_t value_size),
		   void *context);

/* Deletes the elements of a range. `removed`, unless NULL, becomes how many those were. */
int skep_map_delete_range(skep_map *map, const void *from, size_t from_size, const void *to,
			  size_t to_size, uint32_t flags, uint64_t *removed);

/* Flags of dumps and batches. */
#define SKEP_LOCK (UINT64_C(1) << 2)    /* copy values under their spin lock */
#define SKEP_DELETE (UINT64_C(1) << 33) /* take elements out */
#define SKEP_EXACT (UINT64_C(1) << 34)  /* with SKEP_DELETE: lose no update that is under way */
#define SKEP_ALIGN (UINT64_C(1) << 36)  /* dumps: each value at a multiple of eight bytes */
#define SKEP_STRICT (UINT64_C(1) << 37) /* dumps: no element that came after the first call */

/*
 * Copies as many elements as there is room for, each a key (`key_cell_size`) and a value
 * (`lookup_size`), and moves the cursor behind them. Returns how many bytes were written, at most
 * INT_MAX, 0 at the end. The cursor has `cursor_size` bytes, `strict_cursor_size` with SKEP_STRICT; zeros begin.
 * Concurrent changes never make a dump repeat or skip other elements.
 */
int skep_map_dump(skep_map *map, void *cursor, size_t cursor_size, void *buffer, size_t size,
		  uint64_t flags);

/*
 * Batches. `keys` and `values` are columns with room for `*count` elements, which becomes the number
 * of elements done, also upon failure. A lookup answers -ENOENT at the end, with the last elements;
 * its cursor has at least `cursor_size` bytes, zeros begin.
 */
int skep_map_lookup_batch(skep_map *map, void *cursor, size_t cursor_size, void *keys, void *values,
			  uint32_t *count, uint64_t flags);
int skep_map_update_batch(skep_map *map, const void *keys, const void *values, uint32_t *count,
			  uint64_t flags);
int skep_map_delete_batch(skep_map *map, const void *keys, uint32_t *count);

/* Finds the key in a cell of `key_cell_size` bytes. Keys of variable length have a length before
 * them; of others the cell is the key. */
int skep_map_cell_key(skep_map *map, const void *cell, const void **key, size_t *key_size);

/* Forbids users, but not programs, to write from now on. */
int skep_map_freeze(skep_map *map);

int skep_map_free(skep_map *map);

/* ---- Objects -------------------------------------------------------------------------------- */

/* Loads an object file: creates its maps, relocates and verifies its programs. -EACCES is a program
 * that was rejected; skep_last_log() says more. Nothing is left behind upon failure. */
int skep_object_open(skep_session *session, const char *path, skep_object **out);

/* Load with options, which are checked when it loads. A loader can load several times. */
int skep_loader_new(skep_session *session, skep_loader **out);
/* Gives a global variable a value, written as in C: "7", "{1, 2}", "\"text\"". */
int skep_loader_global(skep_loader *loader, const char *name, const char *value);
int skep_loader_max_entries(skep_loader *loader, const char *map, uint32_t entries);
int skep_loader_autoload(skep_loader *loader, const char *program, int load);
/* Treats a program as if it were in another section. */
int skep_loader_program_type(skep_loader *loader, const char *program, const char *section);
/* CO-RE for the types in this file, BTF or debug information, not for those of the kernel. */
int skep_loader_core_target(skep_loader *loader, const char *path);
/* Where the types of the functions are that programs are going to be attached to: the debug information
 * of this program or library. A name without a slash is searched in $PATH. */
int skep_loader_prototypes(skep_loader *loader, const char *path);
int skep_loader_load_file(skep_loader *loader, const char *path, skep_object **out);
int skep_loader_load_memory(skep_loader *loader, const void *bytes, size_t size, skep_object **out);
int skep_loader_free(skep_loader *loader);

/* Programs and maps by name, and by number from 0 on (-ENOENT behind the last). Global variables are
 * in the maps ".data", ".bss" and ".rodata". */
int skep_object_program(skep_object *object, const char *name, skep_program **out);
int skep_object_program_at(skep_object *object, uint32_t index, skep_program **out);
int skep_object_map(skep_object *object, const char *name, skep_map **out);
int skep_object_map_at(skep_object *object, uint32_t index, skep_map **out);
int skep_object_free(skep_object *object);

struct skep_program_info {
	uint32_t id;
	uint32_t reserved;
	char name[128];    /* longer ones are cut */
	char section[256];
};

int skep_program_info(skep_program *program, struct skep_program_info *info, size_t size);
int skep_program_free(skep_program *program);

/* ---- Links to functions --------------------------------------------------------------------- */

struct skep_target {
	const char *pattern; /* "libc:malloc", "libfoo:foo_*", "*:main"; several with commas */
	uint64_t cookie;     /* what bpf_get_attach_cookie() returns there */
};

/* The functions are those of other processes: see skep_command_start() and skep_process_attach(). */
#define SKEP_ATTACH_OTHERS 1

/* Without targets, the functions that the program's section names, with `cookie`. */
struct skep_attach_opts {
	const struct skep_target *targets;
	uint64_t target_count;
	const char *exclude; /* a pattern, or NULL */
	uint64_t cookie;
	uint64_t flags;      /* SKEP_ATTACH_... */
};

/* Attaches a program to functions of this process; `opts` may be NULL. Functions that cannot be
 * hooked are left out, skep_link_functions() says why; -ENOENT if that leaves none. With
 * SKEP_ATTACH_OTHERS nothing is hooked yet. */
int skep_program_attach(skep_program *program, const struct skep_attach_opts *opts, size_t size,
			skep_link **out);

/* Attaches several programs by one link, as one for entries and one for exits. They run in this
 * order. */
int skep_object_attach(skep_object *object, const char *const *programs, size_t count,
		       const struct skep_attach_opts *opts, size_t size, skep_link **out);

struct skep_function {
	uint64_t size;       /* of the struct, as the library knows it */
	const char *name;
	const char *module;
	uint64_t vaddr;      /* the address in the module's file */
	const char *skipped; /* why it was left out; NULL: it was attached */
};

/* Calls `visit` for each function that matched, until it returns another number than 0: a negative
 * one is the answer. The struct is valid during the call. Returns how many calls there were. */
int skep_link_functions(skep_link *link,
			int (*visit)(void *context, const struct skep_function *function),
			void *context);

/* Events without a run of the program. */
struct skep_missed {
	uint64_t inside;        /* the thread was already running a program */
	uint64_t stack;         /* no room on the stack */
	uint64_t thread;        /* the thread could not be registered */
	uint64_t slots;         /* more threads than slots */
	uint64_t pid_namespace; /* of processes in another pid namespace */
};

int skep_link_missed(skep_link *link, struct skep_missed *missed, size_t size);
int skep_link_id(skep_link *link);

/* Detaches, frees the handle, and waits until no thread is inside a hooked function. Returns 1, or 0
 * if there still was one at the end of the time; programs do not run any more in both cases, nor in
 * other processes, whose threads are not waited for. */
int skep_link_detach(skep_link *link, uint32_t timeout_ms);

/* ---- Other processes ------------------------------------------------------------------------ */

/*
 * Links that were made with SKEP_ATTACH_OTHERS, in the directory of the session. `agent` is the path
 * of libskep_preload.so, which other processes load; NULL: the one that $SKEP_PRELOAD names, else
 * the one beside libskep.so or in `skep/` there, else the one beside this program.
 */
struct skep_command {
	const char *const *argv; /* the program, found as by execvp(3), and its arguments, then NULL */
	const char *agent;
	int fds[3];              /* what it gets as descriptors 0, 1 and 2; 0: what this process has */
	uint32_t reserved;
};

/* Starts a command with links in it: its functions are hooked before main, and so are those of what
 * it forks and executes. Static programs run without them. Returns its process id, which the caller
 * waits for as for any child. */
int skep_command_start(skep_session *session, const struct skep_command *command, size_t size,
		       skep_link *const *links, size_t count);

/* Attaches links in a process that runs already: it is stopped for some milliseconds. It has one skep
 * at a time (-EBUSY). A link that the process was started with runs twice there until it is left. */
int skep_process_attach(skep_session *session, uint32_t pid, skep_link *const *links, size_t count,
			const char *agent, skep_process **out);

/* Returns how many functions the links have there. */
int skep_process_functions(skep_process *process);

/* Returns 1 while the programs run there, 0 once the process has ended or executed another program. */
int skep_process_is_running(skep_process *process);

/* Takes the links out of the process, so that it has the code that it had, and frees the handle.
 * -EBUSY: threads are still inside hooked functions; nothing runs there any more all the same. */
int skep_process_leave(skep_process *process);

/* ---- Ring buffers --------------------------------------------------------------------------- */

/* Begins to read a ring buffer, or an array of perf events. There is one reader among all processes
 * (-EBUSY). One call at a time reads (-EBUSY), so callbacks cannot read their own ring. A forked child
 * has the ring in common with its parent: what it takes, the parent does not get. One of them may read. */
int skep_ring_open(skep_map *map, skep_ring **out);

/* Calls `record` for each record that is there, and waits for the first one: so many milliseconds,
 * without an end if negative. Ends when `record` returns another number than 0: a negative one is the
 * answer. The bytes are valid during the call. Returns how many records were taken. */
int skep_ring_poll(skep_ring *ring, int timeout_ms,
		   int (*record)(void *context, const void *bytes, size_t size), void *context);

/* Copies the next record out. `size` is the size of the buffer, and becomes that of the record.
 * Returns 1, 0 if none came, and -EMSGSIZE for a buffer that is too small: the record then comes
 * again. */
int skep_ring_next(skep_ring *ring, int timeout_ms, void *buffer, size_t *size);

/* Counts records that nobody took in time: of perf events. A program that finds no room in a ring
 * buffer is told so itself. */
int skep_ring_lost(skep_ring *ring, uint64_t *lost);
int skep_ring_free(skep_ring *ring);

/* ---- Test runs ------------------------------------------------------------------------------ */

/* Makes a program ready to run, as machine code, or with SKEP_INTERP instruction by instruction.
 * Calls run one at a time; others wait. */
#define SKEP_INTERP 1
int skep_program_runner(skep_program *program, uint32_t flags, skep_runner **out);

/* Makes a chain ready to run. A run sees what was changed before it, also by other processes; it fails
 * once if that cannot be compiled, and then the previous chain keeps running. */
int skep_chain_runner(skep_session *session, const char *name, skep_runner **out);

/* As the test run of bpf(2). Buffers may be NULL. Nothing is written before all that goes in was read, so
 * `data_out` may be `data_in`, or lie over it. */
struct skep_test_run {
	const void *data_in;
	void *data_out;
	const void *ctx_in;
	void *ctx_out;
	uint32_t data_size_in;
	uint32_t data_size_out; /* the size of the buffer, and then of the packet */
	uint32_t ctx_size_in;
	uint32_t ctx_size_out;
	uint32_t repeat;        /* 0: once */
	uint32_t retval;        /* out */
	uint64_t duration_ns;   /* out: average of one run */
	uint32_t flags;         /* 0, or SKEP_TEST_LIVE_FRAMES */
	uint32_t batch_size;    /* live frames in a batch, at most 256; 0: 64 */
};

/* For XDP programs and chains: `repeat` frames, as if the interface of the context received them
 * (BPF_F_TEST_XDP_LIVE_FRAMES). They go where they are sent on this machine: XDP_PASS to the kernel, XDP_TX back,
 * redirects to other interfaces. Needs root (-EPERM). `retval` is 0; with a context, `data_out` and `ctx_out` are
 * NULL (-EINVAL). */
#define SKEP_TEST_LIVE_FRAMES 2

/* Runs once, or `repeat` times, on this thread. -ENOSPC: a buffer was too small and has the
 * beginning; everything else is there. */
int skep_runner_test_run(skep_runner *runner, struct skep_test_run *run, size_t size);
int skep_runner_free(skep_runner *runner);

/* ---- Chains --------------------------------------------------------------------------------- */

/*
 * A chain is programs in sequence: the verdict of one says which comes next. It is known by its name,
 * and stays in the session's directory until it is deleted. `skep chain` works on the same chains.
 *
 * `on` is a list of verdicts, as in "pass,tx", or "*" for all that have no edge of their own. Programs
 * have numbers from 1 on, in the order in which they were added; a number that the chain does not have is
 * -ENOENT.
 */

/* Makes a chain of programs of one type, BPF_PROG_TYPE_... (-EEXIST: the name is taken). */
int skep_chain_create(skep_session *session, const char *name, uint32_t program_type);

/* Puts a program behind number `after`, upon these verdicts of that one, or with 0 before all others,
 * which follow upon these verdicts of its own. Returns the program's number. */
int skep_chain_add(skep_session *session, const char *name, skep_program *program, uint32_t after,
		   const char *on);

/* Makes verdicts of `from` lead to `to`, or with 0 to the end. -ELOOP: the chain would never end;
 * `times` is how often a packet may go this way, if it is not 0. */
int skep_chain_connect(skep_session *session, const char *name, uint32_t from, const char *on,
		       uint32_t to, uint32_t times);

/* Takes a program out; what led there leads where it led upon the same verdict. */
int skep_chain_remove(skep_session *session, const char *name, uint32_t node);

/* Removes a chain. Processes that run it keep running it. */
int skep_chain_delete(skep_session *session, const char *name);

/* ---- Mappings of processes ------------------------------------------------------------------ */

/* Opens the mappings of a process (0: of this one), or of a snapshot or core file. */
int skep_vmas_open_pid(uint32_t pid, skep_vmas **out);
int skep_vmas_open_file(const char *path, skep_vmas **out);

/* Answers a `struct procmap_query` of <linux/fs.h> as the kernel's PROCMAP_QUERY does, also where
 * the kernel has none. */
int skep_vmas_query(skep_vmas *vmas, void *query);
int skep_vmas_free(skep_vmas *vmas);

#ifdef __cplusplus
}
#endif

#endif
