/* Runs each of its arguments in every way the C library has, and prints how that ended. */
#include "count.h"
#include <pthread.h>
#include <spawn.h>
#include <sys/wait.h>

extern char **environ;

FN static void ended(const char *how, int status)
{
	COUNT("ended");
	printf("%s: %d\n", how, WIFEXITED(status) ? WEXITSTATUS(status) : -WTERMSIG(status));
	fflush(stdout);
}

static void copy(FILE *from)
{
	int c;
	while ((c = getc(from)) != EOF)
		putchar(c);
}

static void *run(void *arg)
{
	char *path = arg, *argv[] = {path, 0};
	int status = 0;
	pid_t child;
	fflush(stdout);
	ended("system", system(path));
	FILE *f = popen(path, "r");
	CHECK(f);
	copy(f);
	ended("popen", pclose(f));
	CHECK(posix_spawn(&child, path, 0, 0, argv, environ) == 0 && waitpid(child, &status, 0) == child);
	ended("posix_spawn", status);
	CHECK(posix_spawnp(&child, path, 0, 0, argv, environ) == 0 && waitpid(child, &status, 0) == child);
	ended("posix_spawnp", status);
	child = vfork();
	if (child == 0) {
		execv(path, argv);
		_exit(90);
	}
	CHECK(waitpid(child, &status, 0) == child);
	ended("vfork", status);
	child = fork();
	if (child == 0) {
		execlp(path, path, (char *)0);
		_exit(90);
	}
	CHECK(waitpid(child, &status, 0) == child);
	ended("fork", status);
	child = fork();
	if (child == 0) {
		fexecve(open(path, O_PATH | O_CLOEXEC), argv, environ);
		_exit(90);
	}
	CHECK(waitpid(child, &status, 0) == child);
	ended("fexecve", status);
	child = fork();
	if (child == 0) {
		execveat(open(path, O_RDONLY | O_CLOEXEC), "", argv, environ, 0x1000);
		_exit(90);
	}
	CHECK(waitpid(child, &status, 0) == child);
	ended("execveat", status);
	return 0;
}

int main(int argc, char **argv)
{
	for (int i = 1; i < argc; i++) {
		run(argv[i]);
		/* By a thread whose first deed it is. */
		pthread_t thread;
		CHECK(pthread_create(&thread, 0, run, argv[i]) == 0 && pthread_join(thread, 0) == 0);
	}
	return 0;
}
