/* Attaches programs to functions of this process: counts calls, and reads records of them. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <skep.h>

struct event {
	uint32_t pid, cookie;
	uint64_t address;
};

__attribute__((noinline)) int work(int n)
{
	__asm__ volatile("" : "+r"(n));
	return n * 3 + 1;
}

static int failed(const char *what)
{
	fprintf(stderr, "%s: %s\n%s", what, skep_last_error(), skep_last_log());
	return 1;
}

static int on_event(void *context, const void *bytes, size_t size)
{
	struct event e;

	if (size != sizeof(e))
		return -1;
	memcpy(&e, bytes, size);
	*(uint64_t *)context += e.cookie;
	return 0;
}

static int on_function(void *context, const struct skep_function *f)
{
	(void)context;
	printf("%s: %s\n", f->name, f->skipped ? f->skipped : "attached");
	return 0;
}

int main(int argc, char **argv)
{
	static const char *const both[] = { "enter", "leave" };
	struct skep_target target = { .pattern = "*:work", .cookie = 7 };
	struct skep_attach_opts opts = { .targets = &target, .target_count = 1 };
	struct skep_map_info info;
	uint64_t cookies = 0, *slots, calls[2] = { 0 };
	skep_session *session;
	skep_object *object;
	skep_program *tell;
	skep_link *telling, *counting;
	skep_map *events, *counts;
	skep_ring *ring;
	int sum = 0, got;

	if (argc != 2 || skep_session_scratch(&session) || skep_object_open(session, argv[1], &object))
		return failed("object");
	if (skep_object_program(object, "tell", &tell) ||
	    skep_program_attach(tell, &opts, sizeof(opts), &telling) ||
	    skep_object_attach(object, both, 2, &opts, sizeof(opts), &counting))
		return failed("attach");
	if (skep_object_map(object, "events", &events) || skep_ring_open(events, &ring))
		return failed("ring");
	skep_link_functions(telling, on_function, NULL);
	for (int i = 0; i < 100; i++)
		sum += work(i);
	if (skep_link_detach(telling, 1000) != 1 || skep_link_detach(counting, 1000) != 1)
		return failed("detach");
	work(1);
	got = skep_ring_poll(ring, 1000, on_event, &cookies);
	if (got < 0)
		return failed("poll");
	printf("%d records, sum of cookies %llu\n", got, (unsigned long long)cookies);

	/* The maps of both programs: the counts of all slots. */
	if (skep_object_map(object, "calls", &counts) || skep_map_info(counts, &info, sizeof(info)))
		return failed("calls");
	slots = malloc(info.lookup_size);
	for (uint32_t key = 0; key < 2; key++) {
		if (skep_map_lookup(counts, &key, sizeof(key), slots, info.lookup_size, 0))
			return failed("lookup");
		for (uint32_t i = 0; i < info.lookup_size / 8; i++)
			calls[key] += slots[i];
	}
	printf("%llu entries, %llu exits, sum %d\n", (unsigned long long)calls[0],
	       (unsigned long long)calls[1], sum);
	free(slots);
	skep_map_free(counts);
	skep_map_free(events);
	skep_ring_free(ring);
	skep_program_free(tell);
	skep_object_free(object);
	skep_session_free(session);
	return 0;
}
