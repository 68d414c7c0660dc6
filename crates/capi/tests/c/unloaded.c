/* Attaches a program to a function, detaches, frees all, and closes the library of the first argument, as a host
 * of plugins does; the object is the second. The function, whose entry led into the library, and threads go on. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <pthread.h>
#include <stdio.h>
#include "skep.h"

__attribute__((noinline)) int library_called(int n)
{
	__asm__ volatile("" : "+r"(n));
	return n * 3 + 1;
}

static void *calls(void *context)
{
	for (int i = 0; i < 100; i++)
		library_called(i);
	return context;
}

static int on_a_thread(void)
{
	pthread_t thread;

	return pthread_create(&thread, NULL, calls, NULL) || pthread_join(thread, NULL);
}

#define FIND(name) __typeof__(&name) name##_ = (__typeof__(&name))dlsym(library, #name)
#define IS(call, want)                                                              \
	do {                                                                        \
		int is_ = (call);                                                   \
		if (is_ != (want)) {                                                \
			fprintf(stderr, "line %d: %s: %d\n", __LINE__, #call, is_); \
			return 1;                                                   \
		}                                                                   \
	} while (0)

static int visit(const char *path, const char *object_path)
{
	void *library = dlopen(path, RTLD_NOW | RTLD_LOCAL);

	IS(library != NULL, 1);
	FIND(skep_session_scratch);
	FIND(skep_session_free);
	FIND(skep_object_open);
	FIND(skep_object_program);
	FIND(skep_object_free);
	FIND(skep_program_attach);
	FIND(skep_program_free);
	FIND(skep_link_detach);
	struct skep_target target = { .pattern = "*:library_called" };
	struct skep_attach_opts opts = { .targets = &target, .target_count = 1 };
	skep_session *session;
	skep_object *object;
	skep_program *program;
	skep_link *link;

	IS(skep_session_scratch_(&session), 0);
	IS(skep_object_open_(session, object_path, &object), 0);
	IS(skep_object_program_(object, "count", &program), 0);
	IS(skep_program_attach_(program, &opts, sizeof(opts), &link), 0);
	IS(on_a_thread(), 0);
	IS(skep_link_detach_(link, 1000), 1);
	IS(skep_program_free_(program), 0);
	IS(skep_object_free_(object), 0);
	IS(skep_session_free_(session), 0);
	IS(dlclose(library), 0);
	IS(library_called(2), 7);
	IS(on_a_thread(), 0);
	return 0;
}

int main(int argc, char **argv)
{
	IS(argc, 3);
	/* What stays is used again. */
	return visit(argv[1], argv[2]) || visit(argv[1], argv[2]);
}
