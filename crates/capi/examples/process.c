/* Runs programs in other processes: in a command from its start, and in one that runs already.
 * Arguments: an object with a program `count`, which counts calls by function, and libskep_preload.so. */
#define _GNU_SOURCE
#include <fcntl.h>
#include <stdio.h>
#include <sys/wait.h>
#include <unistd.h>
#include <skep.h>

static int failed(const char *what)
{
	fprintf(stderr, "%s: %s\n%s", what, skep_last_error(), skep_last_log());
	return 1;
}

/* All calls that were counted. */
static uint64_t total(skep_map *counts)
{
	uint64_t cursor[16] = { 0 }, rows[64][2], sum = 0;
	struct skep_map_info info;
	int got;

	if (skep_map_info(counts, &info, sizeof(info)))
		return 0;
	while ((got = skep_map_dump(counts, cursor, info.cursor_size, rows, sizeof(rows), 0)) > 0) {
		for (size_t i = 0; i < (size_t)got / sizeof(rows[0]); i++)
			sum += rows[i][1];
	}
	return sum;
}

/* Writes a byte to `cat`, and waits until that has written it back. */
static int echo(int to, int from)
{
	char byte = 'x';

	return write(to, &byte, 1) == 1 && read(from, &byte, 1) == 1;
}

int main(int argc, char **argv)
{
	static const char *const sort[] = { "sort", "/etc/passwd", NULL }, *const cat[] = { "cat", NULL };
	struct skep_target target = { .pattern = "libc:malloc", .cookie = 0 };
	struct skep_attach_opts opts = { .targets = &target, .target_count = 1,
					 .flags = SKEP_ATTACH_OTHERS };
	struct skep_command command = { .argv = sort, .agent = argv[argc - 1] };
	skep_session *session;
	skep_object *object;
	skep_program *count;
	skep_process *process;
	skep_link *link;
	skep_map *counts;
	uint64_t before, after;
	int pid, status, in[2], out[2];

	if (argc != 3 || skep_session_scratch(&session) || skep_object_open(session, argv[1], &object) ||
	    skep_object_program(object, "count", &count) || skep_object_map(object, "counts", &counts))
		return failed("object");

	/* A command, from its start. */
	if (skep_program_attach(count, &opts, sizeof(opts), &link))
		return failed("attach");
	command.fds[1] = open("/dev/null", O_WRONLY);
	pid = skep_command_start(session, &command, sizeof(command), &link, 1);
	if (pid < 0)
		return failed("start");
	waitpid(pid, &status, 0);
	printf("sort ended with %d, calls of malloc: %s\n", WEXITSTATUS(status), total(counts) ? "some" : "none");
	skep_link_detach(link, 0);

	/* A process that runs already: it knows nothing of skep. */
	if (pipe2(in, O_CLOEXEC) || pipe2(out, O_CLOEXEC))
		return 1;
	command = (struct skep_command){ .argv = cat, .fds = { in[0], out[1], 0 } };
	pid = skep_command_start(session, &command, sizeof(command), NULL, 0);
	if (pid < 0 || !echo(in[1], out[0]))
		return failed("cat");
	target.pattern = "libc:read";
	if (skep_program_attach(count, &opts, sizeof(opts), &link) ||
	    skep_process_attach(session, (uint32_t)pid, &link, 1, argv[2], &process))
		return failed("attach to cat");
	before = total(counts);
	/* Its call of read() that waits was not counted; the next one is. */
	if (!echo(in[1], out[0]) || !echo(in[1], out[0]))
		return 1;
	printf("cat: %d function, running: %d, calls of read: %s\n", skep_process_functions(process),
	       skep_process_is_running(process), total(counts) > before ? "some" : "none");
	if (skep_process_leave(process))
		return failed("leave");
	after = total(counts);
	if (!echo(in[1], out[0]) || !echo(in[1], out[0]))
		return 1;
	printf("after it was left: %s\n", total(counts) == after ? "none" : "some");
	close(in[1]);
	waitpid(pid, &status, 0);
	printf("cat ended with %d\n", WEXITSTATUS(status));
	skep_link_detach(link, 0);
	skep_map_free(counts);
	skep_program_free(count);
	skep_object_free(object);
	return skep_session_free(session);
}
