/* Makes a chain of two XDP programs, sends packets through it, and takes one program out again. */
#include <linux/bpf.h>
#include <stdio.h>
#include <skep.h>

static int failed(const char *what)
{
	fprintf(stderr, "%s: %s\n%s", what, skep_last_error(), skep_last_log());
	return 1;
}

static int send(skep_runner *runner, uint32_t size)
{
	unsigned char packet[64] = { 0 };
	struct skep_test_run run = { .data_in = packet, .data_size_in = size };

	return skep_runner_test_run(runner, &run, sizeof(run)) ? -1 : (int)run.retval;
}

int main(int argc, char **argv)
{
	skep_session *session;
	skep_object *object;
	skep_program *drop_short, *count;
	skep_runner *runner;
	skep_map *packets;
	uint32_t zero = 0;
	uint64_t counted = 0;
	int first, second;

	if (argc != 2 || skep_session_scratch(&session) || skep_object_open(session, argv[1], &object) ||
	    skep_object_program(object, "drop_short", &drop_short) ||
	    skep_object_program(object, "count", &count) ||
	    skep_object_map(object, "packets", &packets))
		return failed("object");
	if (skep_chain_create(session, "fw", BPF_PROG_TYPE_XDP) ||
	    (first = skep_chain_add(session, "fw", drop_short, 0, "pass")) < 0 ||
	    (second = skep_chain_add(session, "fw", count, first, "pass")) < 0 ||
	    skep_chain_runner(session, "fw", &runner))
		return failed("chain");
	printf("verdicts %d and %d\n", send(runner, 64), send(runner, 20));
	/* What is dropped is counted as well from now on; the runner notices. */
	if (skep_chain_connect(session, "fw", first, "drop", second, 0))
		return failed("connect");
	printf("verdict %d of what `count` says\n", send(runner, 20));
	if (skep_map_lookup(packets, &zero, sizeof(zero), &counted, sizeof(counted), 0))
		return failed("packets");
	printf("%llu packets counted\n", (unsigned long long)counted);
	if (skep_chain_remove(session, "fw", second))
		return failed("remove");
	printf("verdict %d again\n", send(runner, 20));
	if (!skep_chain_connect(session, "fw", first, "pass", first, 0))
		return failed("a cycle");
	printf("%s\n", skep_last_error());
	if (skep_chain_delete(session, "fw"))
		return failed("delete");
	printf("verdict %d to the end\n", send(runner, 20));
	skep_runner_free(runner);
	skep_map_free(packets);
	skep_program_free(drop_short);
	skep_program_free(count);
	skep_object_free(object);
	skep_session_free(session);
	return 0;
}
