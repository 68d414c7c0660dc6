/* Runs an XDP program on a packet, and looks into its maps. */
#include <stdio.h>
#include <string.h>
#include <skep.h>

static int failed(const char *what)
{
	fprintf(stderr, "%s: %s\n%s", what, skep_last_error(), skep_last_log());
	return 1;
}

int main(int argc, char **argv)
{
	unsigned char packet[64] = { 42 }, out[64];
	uint32_t wanted = 42, last = 0;
	skep_session *session;
	skep_object *object;
	skep_program *program;
	skep_runner *runner;
	skep_map *waiting, *done;

	if (argc != 2 || skep_session_scratch(&session) || skep_object_open(session, argv[1], &object))
		return failed("object");
	if (skep_object_program(object, "first_bytes", &program) ||
	    skep_object_map(object, "waiting", &waiting) || skep_object_map(object, "done", &done) ||
	    skep_map_update(waiting, NULL, 0, &wanted, sizeof(wanted), 0) ||
	    skep_program_runner(program, 0, &runner))
		return failed("program");
	for (int i = 0; i < 2; i++) {
		struct skep_test_run run = { .data_in = packet, .data_size_in = sizeof(packet),
					     .data_out = out, .data_size_out = sizeof(out) };

		if (skep_runner_test_run(runner, &run, sizeof(run)))
			return failed("run");
		printf("verdict %u, %u bytes, the same: %d\n", run.retval, run.data_size_out,
		       !memcmp(packet, out, sizeof(out)));
	}
	if (skep_map_lookup_and_delete(done, NULL, 0, &last, sizeof(last), 0))
		return failed("done");
	printf("dropped a packet that begins with %u\n", last);
	skep_runner_free(runner);
	skep_map_free(waiting);
	skep_map_free(done);
	skep_program_free(program);
	skep_object_free(object);
	skep_session_free(session);
	return 0;
}
