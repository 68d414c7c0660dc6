/*
 * Independent counts: each target counts its own calls, so that a tracer's numbers can be checked against them.
 *
 * COUNT("f") as the first statement of f counts a call of f. Counters live in a file that the whole family of
 * processes shares (environment variable TARGET_COUNTS, made by the harness), so they survive fork, exec, _exit and a
 * crash, and need no file descriptor after start. Without the variable, a target prints its counts as JSON on
 * stderr when it exits, for people.
 *
 * The file: rows of 64 bytes, the name (56 bytes, zero-padded) and the count.
 */
#ifndef COUNT_H
#define COUNT_H
#ifndef _GNU_SOURCE
#define _GNU_SOURCE
#endif
#include <fcntl.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

/* A function a tracer can see: one symbol, one body, but all the optimisations a caller may take (-fipa-ra). */
#define FN __attribute__((noinline, noclone))

struct counted {
	const char *name;
	uint64_t *slot;
	uint64_t local;
	uint64_t pad;
} __attribute__((aligned(32)));

struct counted_row {
	char name[56];
	uint64_t count;
};

#define COUNTED_ROWS 256

/* Counts one call of the function `n`. Not in inline functions or templates: the counter is one static. */
#define COUNT(n)                                                                                                       \
	do {                                                                                                           \
		static struct counted counted_here __attribute__((section("counted"), used)) = {n, 0, 0, 0};           \
		uint64_t *slot_ = counted_here.slot ? counted_here.slot : &counted_here.local;                         \
		__atomic_fetch_add(slot_, 1, __ATOMIC_RELAXED);                                                        \
	} while (0)

/* Takes the value through a place the compiler cannot see into: a call before it is no tail call, recursion stays recursion. */
#define KEEP(value)                                                                                                    \
	({                                                                                                             \
		__typeof__(value) kept_ = (value);                                                                     \
		__asm__ volatile("" : "+r"(kept_));                                                                    \
		kept_;                                                                                                 \
	})

/* CHECK ends the target with a message when what it computed is wrong: a tracer has damaged it. */
#define CHECK(condition)                                                                                               \
	do {                                                                                                           \
		if (!(condition)) {                                                                                    \
			static const char text_[] = __FILE__ ": wrong: " #condition "\n";                              \
			if (write(2, text_, sizeof text_ - 1) < 0)                                                     \
				_exit(98);                                                                             \
			_exit(99);                                                                                     \
		}                                                                                                      \
	} while (0)

extern struct counted __start_counted[] __attribute__((weak, visibility("hidden")));
extern struct counted __stop_counted[] __attribute__((weak, visibility("hidden")));

__attribute__((constructor(101), used)) static void counted_open(void)
{
	const char *path = getenv("TARGET_COUNTS");
	int fd = path ? open(path, O_RDWR | O_CLOEXEC) : -1;
	if (fd < 0)
		return;
	struct counted_row *rows = (struct counted_row *)mmap(0, COUNTED_ROWS * sizeof *rows, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
	close(fd);
	if (rows == MAP_FAILED)
		return;
	for (struct counted *c = __start_counted; c < __stop_counted; c++) {
		for (int i = 0; i < COUNTED_ROWS; i++) {
			if (!rows[i].name[0])
				strncpy(rows[i].name, c->name, sizeof rows[i].name - 1);
			if (!strcmp(rows[i].name, c->name)) {
				c->slot = &rows[i].count;
				break;
			}
		}
	}
}

__attribute__((destructor(101), used)) static void counted_print(void)
{
	if (getenv("TARGET_COUNTS"))
		return;
	const char *before = "{";
	for (struct counted *c = __start_counted; c < __stop_counted; c++) {
		fprintf(stderr, "%s\"%s\":%llu", before, c->name, (unsigned long long)c->local);
		before = ",";
	}
	fprintf(stderr, "%s}\n", *before == '{' ? before : "");
}
#endif
