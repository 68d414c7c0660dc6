/* Blocks signals of faults in all usual ways, and prints what it is told of that. With `handler`, `blocked`, `suspended` or `thread`, the
 * files in $SKEP_DIR are cut off while these signals are blocked. With `creating`, somebody else does that while threads and children are
 * started.
 */
#define _GNU_SOURCE
#include <dirent.h>
#include <pthread.h>
#include <signal.h>
#include <spawn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

static int calls;
__attribute__((noinline)) int work(int n) { return n < 1 ? ++calls : work(n - 1) + 1; }

static void cut(const char *path)
{
	char name[4096];
	DIR *dir = opendir(path);

	if (!dir) {
		/* The agent is a file that even its owner may not write to. */
		if (chmod(path, 0600) == 0 && truncate(path, 0) == 0)
			work(1);
		return;
	}
	for (struct dirent *e; (e = readdir(dir));) {
		if (e->d_name[0] == '.')
			continue;
		snprintf(name, sizeof name, "%s/%s", path, e->d_name);
		cut(name);
	}
	closedir(dir);
}

static void cut_all(void)
{
	if (getenv("SKEP_DIR"))
		cut(getenv("SKEP_DIR"));
	for (int i = 0; i < 100; i++)
		work(3);
}

static void say(const char *what, const sigset_t *set)
{
	unsigned long mask = 0;

	for (int n = 1; n < 65; n++)
		if (sigismember(set, n) == 1)
			mask |= 1UL << (n - 1);
	printf("%s: %lx\n", what, mask);
	fflush(stdout);
}

static void now(const char *what)
{
	sigset_t set;

	sigemptyset(&set);
	sigprocmask(SIG_SETMASK, 0, &set);
	say(what, &set);
}

static int cuts;

static void on_signal(int n)
{
	(void)n;
	if (cuts)
		cut_all();
	work(2);
}

static void *thread(void *p)
{
	sigset_t all, set;

	sigfillset(&all);
	pthread_sigmask(SIG_BLOCK, &all, &set);
	cut_all();
	pthread_sigmask(SIG_SETMASK, &set, &all);
	say("in a thread", &all);
	return p;
}

static void *nothing(void *p)
{
	return p;
}

static void create(char **argv)
{
	char *args[] = { argv[0], "nothing", 0 };
	struct timespec from, to;
	pthread_t t[4];
	pid_t pid;
	int status;

	puts("ready"), fflush(stdout);
	clock_gettime(CLOCK_MONOTONIC, &from);
	do {
		for (int i = 0; i < 400; i++) {
			for (int k = 0; k < 4; k++)
				pthread_create(&t[k], 0, nothing, 0);
			for (int k = 0; k < 4; k++)
				pthread_join(t[k], 0);
		}
		if (posix_spawn(&pid, "/proc/self/exe", 0, 0, args, 0) == 0)
			waitpid(pid, &status, 0);
		clock_gettime(CLOCK_MONOTONIC, &to);
	} while (to.tv_sec * 1000 + to.tv_nsec / 1000000 < from.tv_sec * 1000 + from.tv_nsec / 1000000 + 500);
	puts("done");
}

int main(int argc, char **argv)
{
	const char *mode = argc > 1 ? argv[1] : "";
	sigset_t all, one, old;
	struct sigaction action = { .sa_handler = on_signal }, was;
	pthread_t t;
	int n = 0;

	sigfillset(&all);
	sigemptyset(&one);
	sigaddset(&one, SIGBUS);
	action.sa_mask = all;
	work(1);
	if (!strcmp(mode, "nothing"))
		return 0;
	if (!strcmp(mode, "creating"))
		return create(argv), 0;
	if (!strcmp(mode, "child")) {
		now("executed");
		return 0;
	}
	cuts = !strcmp(mode, "handler") || !strcmp(mode, "suspended");
	sigaction(SIGUSR1, &action, 0);
	sigaction(SIGUSR1, 0, &was);
	say("of the handler", &was.sa_mask);
	if (!strcmp(mode, "suspended")) {
		sigaddset(&one, SIGUSR1);
		sigprocmask(SIG_BLOCK, &one, &old);
		raise(SIGUSR1);
		sigsuspend(&old);
		sigprocmask(SIG_SETMASK, &old, 0);
		return printf("%d\n", calls > 0) < 0;
	}
	raise(SIGUSR1);
	if (cuts)
		return printf("%d\n", calls > 0) < 0;
	signal(SIGUSR1, on_signal);
	sigaction(SIGUSR1, 0, &was);
	say("of signal", &was.sa_mask);
	now("at first");
	if (!strcmp(mode, "blocked")) {
		sigprocmask(SIG_BLOCK, &all, &old);
		cut_all();
		sigprocmask(SIG_SETMASK, &old, 0);
		return printf("%d\n", calls > 0) < 0;
	}
	if (!strcmp(mode, "thread")) {
		pthread_create(&t, 0, thread, 0);
		pthread_join(t, 0);
		return printf("%d\n", calls > 0) < 0;
	}
	sigprocmask(SIG_BLOCK, &all, &old);
	say("before", &old);
	now("all");
	sigprocmask(SIG_UNBLOCK, &one, &old);
	say("with it", &old);
	now("without it");
	sigprocmask(SIG_SETMASK, &one, 0);
	now("only it");
	/* It waits until somebody takes it. */
	kill(getpid(), SIGBUS);
	work(1);
	sigpending(&old);
	say("waiting", &old);
	sigwait(&one, &n);
	printf("taken: %d\n", n);
	sigpending(&old);
	say("not waiting", &old);
	pthread_kill(pthread_self(), SIGBUS);
	now("sent to a thread");
	sigwait(&one, &n);
	printf("taken: %d\n", n);
	fflush(stdout);
	if (fork() == 0) {
		now("a child");
		execl("/proc/self/exe", argv[0], "child", (char *)0);
		_exit(1);
	}
	wait(0);
	action.sa_handler = on_signal;
	sigaction(SIGBUS, &action, 0);
	kill(getpid(), SIGBUS);
	calls = 0;
	now("still held");
	printf("%d\n", calls);
	sigprocmask(SIG_UNBLOCK, &one, 0);
	printf("%d\n", calls);
	now("at last");
	printf("%d\n", pthread_sigmask(77, &one, 0) != 0);
	fflush(stdout);
	/* It kills who has no handler. */
	signal(SIGBUS, SIG_DFL);
	sigprocmask(SIG_BLOCK, &one, 0);
	kill(getpid(), SIGBUS);
	sigprocmask(SIG_UNBLOCK, &one, 0);
	return 0;
}
