/* vfork, posix_spawn, system and popen: children that share memory with the parent until they exec. */
#include "count.h"
#include <spawn.h>
#include <sys/wait.h>

extern char **environ;

FN static long step(long x)
{
	COUNT("step");
	return x + 1;
}

FN static void reap(pid_t pid, int want)
{
	COUNT("reap");
	int status;
	CHECK(waitpid(pid, &status, 0) == pid);
	CHECK(WIFEXITED(status) && WEXITSTATUS(status) == want);
}

int main(int argc, char **argv)
{
	COUNT("main");
	if (argc > 1) {
		for (int i = 0; i < 17; i++)
			step(i);
		return 3;
	}
	char *child[] = {argv[0], (char *)"child", 0};
	for (int i = 0; i < 5; i++) {
		pid_t pid = vfork();
		if (pid == 0) {
			step(i);
			execv("/proc/self/exe", child);
			_exit(127);
		}
		CHECK(pid > 0);
		reap(pid, 3);
	}
	for (int i = 0; i < 5; i++) {
		pid_t pid;
		CHECK(!posix_spawn(&pid, "/proc/self/exe", 0, 0, child, environ));
		reap(pid, 3);
		step(i);
	}
	CHECK(WEXITSTATUS(system("exit 5")) == 5);
	FILE *out = popen("echo from-a-pipe", "r");
	char line[64] = "";
	CHECK(out && fgets(line, sizeof line, out));
	CHECK(pclose(out) == 0);
	printf("spawn %s", line);
	return 0;
}
