//! Programs that fork and execute in odd moments: they end as without skep.

use std::path::PathBuf;
use std::process::Command;
use std::time::Duration;

use skep_testkit::TempDir;
use skep_testkit::cc::{Build, Cc};
use skep_testkit::run;
use skep_testkit::trace::skep_bin;

const LIMIT: Duration = Duration::from_secs(300);

/// Compiles a program and compares a traced run of it with one without skep.
fn ends_the_same(name: &str, source: &str, patterns: &[&str]) {
    let dir = TempDir::in_memory();
    let file: PathBuf = dir.join(name).with_extension("c");
    std::fs::write(&file, source).expect("the folder is ours");
    let program =
        Cc::c().build(Build::O2).arg("-pthread").arg("-w").compile(&[&file], &dir.join(name));
    let alone = run::run(&mut Command::new(&program), b"", LIMIT);
    assert_eq!(alone.shell_status(), 0, "{}", alone.transcript());
    for pattern in patterns {
        let mut skep = Command::new(skep_bin());
        skep.args(["trace", pattern, "-q", "-o"]).arg(dir.join("report")).arg("--").arg(&program);
        let ended = run::run(skep.env("SKEP_DIR", dir.join("skep")), b"", LIMIT);
        assert_eq!(ended.shell_status(), 0, "{pattern}: {}", ended.transcript());
        assert_eq!(
            String::from_utf8_lossy(&ended.stdout),
            String::from_utf8_lossy(&alone.stdout),
            "{pattern}: {}",
            ended.transcript()
        );
    }
}

/// A server that starts a new worker in its SIGCHLD handler forks while it forks. It waited for
/// itself, for a lock that is held then.
#[test]
fn forks_in_a_handler_that_interrupts_a_fork() {
    let source = r#"
#include <errno.h>
#include <signal.h>
#include <stdio.h>
#include <sys/time.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>
static volatile int handled;
static void child(void)
{
	pid_t p = fork();
	if (p == 0)
		_exit(0);
	while (p > 0 && waitpid(p, 0, 0) < 0 && errno == EINTR)
		;
}
static void on_alarm(int signal)
{
	int saved = errno;
	child();
	handled++;
	errno = saved;
}
int main(void)
{
	struct sigaction action = {.sa_handler = on_alarm, .sa_flags = SA_RESTART};
	sigaction(SIGALRM, &action, 0);
	/* Often, and not so often that the handler alone takes all the time. */
	struct timespec begin, end;
	clock_gettime(CLOCK_MONOTONIC, &begin);
	for (int i = 0; i < 50; i++)
		child();
	clock_gettime(CLOCK_MONOTONIC, &end);
	long us = (end.tv_sec - begin.tv_sec) * 1000000 + (end.tv_nsec - begin.tv_nsec) / 1000;
	us = 300 + us / 50 * 2;
	struct itimerval timer = {{0, us}, {0, us}};
	setitimer(ITIMER_REAL, &timer, 0);
	for (int i = 0; i < 4000 || !handled; i++)
		child();
	timer = (struct itimerval){{0, 0}, {0, 0}};
	setitimer(ITIMER_REAL, &timer, 0);
	sigset_t set;
	sigprocmask(SIG_SETMASK, 0, &set);
	printf("signals are let through: %d\n", !sigismember(&set, SIGALRM));
	return 0;
}
"#;
    ends_the_same("forks", source, &["main"]);
}

/// What is no string or no environment is answered by the kernel, in this process and in a child of
/// `vfork`. The hook read it.
#[test]
fn bad_pointers_to_execve() {
    let source = r#"
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>
static void try(const char *what, const char *path, char **envp)
{
	char *argv[] = {"true", 0};
	errno = 0;
	execve(path, argv, envp);
	printf("execve %s %d\n", what, errno);
	execveat(AT_FDCWD, path, argv, envp, 0);
	printf("execveat %s %d\n", what, errno);
	volatile int seen = 0;
	pid_t p = vfork();
	if (p == 0) {
		execve(path, argv, envp);
		seen = errno;
		_exit(0);
	}
	int status;
	waitpid(p, &status, 0);
	printf("vfork %s %d %d\n", what, seen, status);
}
int main(void)
{
	char *bad = (char *)8;
	char *end = (char *)mmap(0, 8192, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0) + 4096;
	munmap(end, 4096);
	memcpy(end - 4, "A=12", 4);
	char *entry[] = {bad, 0}, *second[] = {"A=1", bad, 0}, *endless[] = {end - 4, 0};
	try("path", bad, environ);
	try("path without an end", end - 4, environ);
	try("environment", "/bin/true", (char **)bad);
	try("entry", "/bin/true", entry);
	try("second entry", "/bin/true", second);
	try("entry without an end", "/bin/true", endless);
	((char **)end)[-1] = "B=1";
	((char **)end)[-2] = "C=1";
	try("list without an end", "/bin/true", (char **)end - 2);
	int fd = openat(AT_FDCWD, "/bin/true", O_RDONLY);
	fexecve(fd, (char *[]){"true", 0}, entry);
	printf("fexecve %d\n", errno);
	return 0;
}
"#;
    ends_the_same("pointers", source, &["main", "*"]);
}

/// A handler of ours is on `SIGBUS`: the program sees its own action, gets the signal where it
/// wants it, and what it ignores stays ignored in what it executes.
#[test]
fn the_action_for_a_kept_signal_is_the_programs() {
    let source = r#"
#define _GNU_SOURCE
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <unistd.h>
static char alt[1 << 16];
static volatile int fixed;
static char *page;
static void on_bus(int s)
{
	char x;
	printf("on the alternate stack: %d\n", &x >= alt && &x < alt + sizeof alt);
	mmap(page, 4096, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED, -1, 0);
}
static void fault(int flags)
{
	struct sigaction action = {.sa_handler = on_bus, .sa_flags = flags};
	sigaction(SIGBUS, &action, 0);
	int fd = memfd_create("m", 0);
	page = mmap(0, 4096, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
	*page = 1;
}
static void show(const char *what)
{
	struct sigaction action;
	sigaction(SIGBUS, 0, &action);
	printf("%s: handler %d flags %x restorer %d masked %d\n", what, action.sa_handler == SIG_IGN ? 1 : action.sa_handler == SIG_DFL ? 0 : 2,
	       action.sa_flags, action.sa_restorer != 0, sigismember(&action.sa_mask, SIGBUS));
}
int main(void)
{
	stack_t stack = {.ss_sp = alt, .ss_size = sizeof alt};
	sigaltstack(&stack, 0);
	fault(0);
	show("sigaction");
	fault(SA_ONSTACK);
	fault(SA_NODEFER);
	sigset(SIGBUS, on_bus);
	show("sigset");
	sigignore(SIGBUS);
	show("sigignore");
	signal(SIGBUS, on_bus);
	show("signal");
	siginterrupt(SIGBUS, 1);
	show("siginterrupt");
	sysv_signal(SIGBUS, on_bus);
	show("sysv_signal");
	raise(SIGBUS);
	show("after it");
	signal(SIGBUS, SIG_IGN);
	fflush(stdout);
	const char *look = "grep SigIgn /proc/self/status";
	system(look);
	pclose(popen(look, "w"));
	execl("/bin/sh", "sh", "-c", "exec grep SigIgn /proc/self/status", (char *)0);
	return 1;
}
"#;
    ends_the_same("actions", source, &["main"]);
}
