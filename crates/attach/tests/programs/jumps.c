// Control flow that leaves frames behind: longjmp, signal handlers, alternate stacks, coroutines, processes.
#define _GNU_SOURCE
#include <setjmp.h>
#include <signal.h>
#include <spawn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/time.h>
#include <sys/wait.h>
#include <ucontext.h>
#include <unistd.h>
#define N __attribute__((noinline, noclone))
static jmp_buf env; static sigjmp_buf senv; extern char **environ;
N void deep(int n) { if (n == 0) longjmp(env, 5); deep(n - 1); __asm__ volatile(""); }
N int catch(int n) { int r = setjmp(env); if (r == 0) { deep(n); return -1; } return r + n; }
N void boom(void) { raise(SIGUSR1); }
N void handler(int s) { (void)s; siglongjmp(senv, 3); }
N int scatch(void) { int r = sigsetjmp(senv, 1); if (r == 0) { boom(); return -1; } return r; }
static volatile long ticks, work;
N long busy(long x) { return x * 31 + (x >> 3); }
N void tick(int s) { (void)s; ticks++; work += busy(ticks) & 1; }
static ucontext_t main_ctx, co[2]; static int trace[64], at;
N void note(int x) { trace[at++] = x; }
N void body(int id) { for (int i = 0; i < 5; i++) { note(id * 10 + i); swapcontext(&co[id], &main_ctx); } }
static char stacks[2][65536], alt[65536];
N int child(int x) { return x + 1; }
int main(void) {
    printf("%d %d\n", catch(10), catch(100));
    signal(SIGUSR1, handler);
    for (int i = 0; i < 3; i++) printf("%d\n", scatch());
    stack_t ss = {.ss_sp = alt, .ss_size = sizeof alt}; sigaltstack(&ss, 0);
    struct sigaction sa = {.sa_handler = handler, .sa_flags = SA_ONSTACK}; sigaction(SIGUSR1, &sa, 0);
    for (int i = 0; i < 3; i++) printf("%d\n", scatch());
    sa.sa_handler = tick; sa.sa_flags = SA_RESTART; sigaction(SIGPROF, &sa, 0);
    struct itimerval it = {{0, 100}, {0, 100}}; setitimer(ITIMER_PROF, &it, 0);
    long x = 1; for (int i = 0; i < 3000000; i++) x = busy(x) + i;
    while (ticks < 3) x = busy(x);
    memset(&it, 0, sizeof it); setitimer(ITIMER_PROF, &it, 0);
    long y = 1; for (int i = 0; i < 3000000; i++) y = y * 31 + (y >> 3) + i;
    printf("%d\n", ticks > 0 && (x == y || ticks == 3));
    for (int i = 0; i < 2; i++) { getcontext(&co[i]); co[i].uc_stack.ss_sp = stacks[i]; co[i].uc_stack.ss_size = sizeof stacks[i]; co[i].uc_link = &main_ctx; makecontext(&co[i], (void (*)(void))body, 1, i); }
    for (int i = 0; i < 10; i++) swapcontext(&main_ctx, &co[i & 1]);
    for (int i = 0; i < at; i++) printf("%d ", trace[i]);
    puts(""); fflush(stdout);
    int st; pid_t p = fork(); if (p == 0) { printf("child %d\n", child(41)); fflush(stdout); _exit(child(8)); }
    waitpid(p, &st, 0); printf("%d\n", WEXITSTATUS(st)); fflush(stdout);
    p = vfork(); if (p == 0) _exit(child(9));
    waitpid(p, &st, 0); printf("%d\n", WEXITSTATUS(st)); fflush(stdout);
    char *args[] = {"sh", "-c", "echo spawned; exit 3", 0}; posix_spawn(&p, "/bin/sh", 0, 0, args, environ);
    waitpid(p, &st, 0); printf("%d\n", WEXITSTATUS(st)); fflush(stdout);
    printf("%d\n", WEXITSTATUS(system("exit 4")));
    FILE *f = popen("echo piped", "r"); char line[64]; if (fgets(line, sizeof line, f)) printf("%s", line); pclose(f);
    return 0;
}
