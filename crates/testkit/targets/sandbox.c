/*
 * Puts itself into a sandbox and goes on: calls by the first thread, by a thread that was there before, by new threads, by children.
 *
 * Arguments: how, a word of those in main. What is left out of a sandbox's list of system calls is what the program itself does not
 * need.
 */
#include "count.h"
#include <dlfcn.h>
#include <errno.h>
#include <linux/audit.h>
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <pthread.h>
#include <signal.h>
#include <stddef.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <sys/wait.h>

FN static long step(long x)
{
	COUNT("step");
	return x * 3 + 1;
}

FN static long steps(long x, int n)
{
	COUNT("steps");
	for (int i = 0; i < n; i++)
		x = step(x);
	return x;
}

/* Called the first time when the sandbox is there. */
FN static long fresh(long x)
{
	COUNT("fresh");
	return steps(x, 11);
}

static volatile int punished;
/* Whether system calls lead to the handler. */
static volatile char dispatches;

static void on_sys(int signal, siginfo_t *info, void *context)
{
	(void)signal, (void)info, (void)context;
	dispatches = 0;
	punished++;
}

/* What glibc 2.31 to 2.41 needs for threads, children, output and the end. */
static const int needed[] = {
	SYS_read, SYS_write, SYS_exit, SYS_exit_group, SYS_futex, SYS_rt_sigreturn, SYS_rt_sigprocmask, SYS_mmap, SYS_munmap, SYS_mprotect,
	SYS_madvise, SYS_brk, SYS_clone, 435 /* clone3 */, SYS_set_robust_list, 334 /* rseq */, SYS_wait4, SYS_newfstatat, SYS_fstat,
	SYS_sigaltstack, SYS_clock_gettime, SYS_ioctl, SYS_execve, SYS_set_tid_address, SYS_arch_prctl, SYS_openat, SYS_close, SYS_access,
	SYS_faccessat, SYS_prlimit64, SYS_getrandom, SYS_pread64, SYS_tgkill, SYS_getpid, SYS_gettid,
};

#define LAST_OF_LONG_LIST ((int)(sizeof needed / sizeof *needed))
/* Without what only a tracer asks for. */
#define LAST_OF_SHORT_LIST 20

/* Not -1: what is punished, instead of all that is not listed. */
static int only = -1;

static void set_filter(unsigned action, int count, int by_syscall)
{
	struct sock_filter code[128];
	const int *list = needed;
	unsigned listed = SECCOMP_RET_ALLOW, others = action;
	if (only >= 0) {
		list = &only;
		count = 1;
		listed = action;
		others = SECCOMP_RET_ALLOW;
	}
	int n = 0;
	code[n++] = (struct sock_filter)BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, arch));
	code[n++] = (struct sock_filter)BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, AUDIT_ARCH_X86_64, 1, 0);
	code[n++] = (struct sock_filter)BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_KILL_PROCESS);
	code[n++] = (struct sock_filter)BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, nr));
	for (int i = 0; i < count; i++) {
		code[n++] = (struct sock_filter)BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, list[i], 0, 1);
		code[n++] = (struct sock_filter)BPF_STMT(BPF_RET | BPF_K, listed);
	}
	code[n++] = (struct sock_filter)BPF_STMT(BPF_RET | BPF_K, others);
	struct sock_fprog program = {(unsigned short)n, code};
	CHECK(prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) == 0);
	if (by_syscall == 2) {
		long result = 317;
		register long flags __asm__("rdx") = (long)&program;
		__asm__ volatile("syscall" : "+a"(result) : "D"(1L), "S"(0L), "r"(flags) : "rcx", "r11", "memory");
		CHECK(result == 0);
	} else if (by_syscall)
		CHECK(syscall(SYS_seccomp, SECCOMP_SET_MODE_FILTER, SECCOMP_FILTER_FLAG_TSYNC, &program) == 0);
	else
		CHECK(prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &program) == 0);
}

static unsigned result_of(const char *how)
{
	return strstr(how, "kill")      ? SECCOMP_RET_KILL_PROCESS
	       : strstr(how, "trap")    ? SECCOMP_RET_TRAP
	       : strstr(how, "pretend") ? SECCOMP_RET_ERRNO
	       : strstr(how, "fault")   ? SECCOMP_RET_ERRNO | EFAULT
					: SECCOMP_RET_ERRNO | EPERM;
}

static pthread_barrier_t ready, go;

static void *early(void *arg)
{
	long x = steps((long)arg, 101);
	pthread_barrier_wait(&ready);
	pthread_barrier_wait(&go);
	return (void *)fresh(steps(x, 101));
}

static void *late(void *arg)
{
	return (void *)fresh(steps((long)arg, 101));
}

static void say(const char *what, long x)
{
	char text[64];
	int n = snprintf(text, sizeof text, "%s %ld\n", what, x);
	CHECK(write(1, text, n) == n);
}

/* Filters that the kernel refuses, each for another reason. */
static void ask_for_refusals(void)
{
	struct sock_filter kill[] = {BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_KILL_PROCESS)};
	struct sock_filter endless[] = {BPF_STMT(BPF_LD | BPF_IMM, 0)};
	struct sock_fprog good = {1, kill}, bad = {1, endless}, empty = {0, kill};
	struct {
		unsigned version;
		int pid;
	} header = {0x20080522, 0};
	unsigned none[6] = {0};
	CHECK(prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &empty) == -1 && errno == EINVAL);
	CHECK(syscall(SYS_seccomp, SECCOMP_SET_MODE_FILTER, 0x80000000u, &good) == -1 && errno == EINVAL);
	CHECK(syscall(SYS_capset, &header, none) == 0);
	CHECK(prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &good) == -1 && errno == EACCES);
	CHECK(syscall(SYS_seccomp, SECCOMP_SET_MODE_FILTER, SECCOMP_FILTER_FLAG_TSYNC, &good) == -1 && errno == EACCES);
	CHECK(prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) == 0);
	CHECK(prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &bad) == -1 && errno == EINVAL);
}

/* A child in this process's memory is the one in the sandbox. */
static void send_a_child_into_a_sandbox(int strict)
{
	int status;
	pid_t child = vfork();
	if (child == 0) {
		if (strict) {
			prctl(PR_SET_SECCOMP, SECCOMP_MODE_STRICT);
			syscall(SYS_exit, 0);
		}
		set_filter(SECCOMP_RET_KILL_PROCESS, LAST_OF_LONG_LIST, 0);
		execl("/bin/true", "true", (char *)0);
		_exit(0);
	}
	CHECK(child > 0 && waitpid(child, &status, 0) == child);
	say("child", status);
}

int main(int argc, char **argv)
{
	const char *how = argc > 1 ? argv[1] : "";
	char library[1000] = "";
	sscanf(how, "%*s only %d %999s", &only, library);
	if (!strcmp(how, "strict")) {
		say("before", steps(1, 101));
		CHECK(prctl(PR_SET_SECCOMP, SECCOMP_MODE_STRICT) == 0);
		say("strict", fresh(steps(1, 101)));
		syscall(SYS_exit, 0);
	}
	if (strstr(how, "unseen")) {
		set_filter(result_of(how), LAST_OF_LONG_LIST, 2);
		execv(argv[2], argv + 2);
		_exit(90);
	}
	if (!strcmp(how, "tsc")) {
		say("before", steps(1, 101));
		CHECK(prctl(PR_SET_TSC, PR_TSC_SIGSEGV) == 0);
		say("no counter", fresh(steps(1, 101)));
		if (argc > 2)
			execv(argv[2], argv + 2);
		return 0;
	}
	struct sigaction action = {.sa_sigaction = on_sys, .sa_flags = SA_SIGINFO};
	sigaction(SIGSYS, &action, 0);
	if (!strcmp(how, "dispatch")) {
		say("before", steps(1, 101));
		CHECK(prctl(59 /* PR_SET_SYSCALL_USER_DISPATCH */, 1, 0, 0, &dispatches) == 0);
		dispatches = 1;
		long x = fresh(steps(1, 101));
		dispatches = 0;
		say("dispatched", x);
		say("punished", punished);
		return 0;
	}
	pthread_t thread;
	void *x;
	pthread_barrier_init(&ready, 0, 2);
	pthread_barrier_init(&go, 0, 2);
	CHECK(pthread_create(&thread, 0, early, (void *)3) == 0);
	pthread_barrier_wait(&ready);
	say("before", steps(1, 101));
	if (!strcmp(how, "probe")) {
		/* As libseccomp and others find out what there is. */
		CHECK(prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, 0) == -1 && errno == EFAULT);
		CHECK(syscall(SYS_seccomp, SECCOMP_SET_MODE_FILTER, SECCOMP_FILTER_FLAG_TSYNC, 0) == -1 && errno == EFAULT);
		CHECK(syscall(SYS_seccomp, SECCOMP_SET_MODE_STRICT, 1, 0) == -1 && errno == EINVAL);
	} else if (!strcmp(how, "refused")) {
		ask_for_refusals();
	} else if (strstr(how, "vfork")) {
		send_a_child_into_a_sandbox(!!strstr(how, "strict"));
	} else {
		int count = strstr(how, "long") ? LAST_OF_LONG_LIST : LAST_OF_SHORT_LIST;
		if (strstr(how, "tiny"))
			count = 6;
		set_filter(result_of(how), count, !!strstr(how, "syscall"));
	}
	say("inside", fresh(steps(1, 101)));
	if (library[0])
		CHECK(!dlclose(dlopen(library, RTLD_NOW)));
	if (strstr(how, "tiny"))
		_exit(0);
	pthread_barrier_wait(&go);
	CHECK(pthread_join(thread, &x) == 0);
	say("early", (long)x);
	for (long i = 0; i < 5; i++) {
		CHECK(pthread_create(&thread, 0, late, (void *)i) == 0 && pthread_join(thread, &x) == 0);
		say("late", (long)x);
	}
	for (int i = 0; i < 2; i++) {
		int status;
		pid_t child = fork();
		CHECK(child >= 0);
		if (child == 0) {
			say("child", fresh(steps(i, 101)));
			_exit(0);
		}
		CHECK(syscall(SYS_wait4, child, &status, 0, 0) == child && status == 0);
	}
	if (argc > 2) {
		int status;
		fflush(stdout);
		pid_t child = fork();
		CHECK(child >= 0);
		if (child == 0) {
			execv(argv[2], argv + 2);
			_exit(90);
		}
		CHECK(syscall(SYS_wait4, child, &status, 0, 0) == child);
		say("executed", status);
	}
	say("punished", punished);
	return 0;
}
