/* Makes processes in unusual ways, as it is told; `argv[1]` is the program that they execute. */
#define _GNU_SOURCE
#include <pthread.h>
#include <signal.h>
#include <spawn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>
extern char **environ;
static char *program;
static volatile long sink;
__attribute__((noinline, noclone)) long work(long n) {
    for (long i = 0; i < 20; i++) sink += i * n;
    return sink;
}
static void *execute(void *arg) {
    execl(program, program, (char *)arg, (char *)0);
    return 0;
}
static void *idle(void *arg) { pause(); return arg; }
static void expect(pid_t child) {
    int status = 1;
    if (child < 0 || waitpid(child, &status, 0) != child || status) printf("child failed: %x\n", status);
}
int main(int argc, char **argv) {
    char word[64], n[64];
    pthread_t t;
    program = argv[argc - 1];
    prctl(PR_SET_PTRACER, PR_SET_PTRACER_ANY, 0, 0, 0);
    setvbuf(stdout, 0, _IONBF, 0);
    puts("ready");
    while (scanf("%63s %63s", word, n) == 2) {
        char *args[] = {program, n, 0};
        pid_t child = 0;
        if (!strcmp(word, "spawn")) {
            if (posix_spawn(&child, program, 0, 0, args, environ)) child = -1;
            expect(child);
        } else if (!strcmp(word, "slow")) {
            /* The parent waits longer than a tracer has patience. */
            child = vfork();
            if (!child) { usleep(1300000); execl(program, program, n, (char *)0); _exit(9); }
            expect(child);
        } else if (!strcmp(word, "thread")) {
            /* Another thread than the first executes the program. */
            child = fork();
            if (!child) {
                for (int i = 0; i < 3; i++) pthread_create(&t, 0, idle, 0);
                pthread_create(&t, 0, execute, n);
                pause();
            }
            expect(child);
        } else if (!strcmp(word, "daemon")) {
            int ends[2];
            char c;
            if (pipe(ends)) return 3;
            child = fork();
            if (!child) {
                setsid();
                if (fork()) _exit(0);
                close(ends[0]);
                execl(program, program, n, (char *)0);
                _exit(9);
            }
            expect(child);
            close(ends[1]);
            while (read(ends[0], &c, 1) > 0) ;
            close(ends[0]);
        } else if (!strcmp(word, "forks")) {
            for (long i = atol(n); i > 0; i--) {
                child = fork();
                if (!child) { work(1); work(2); work(3); _exit(0); }
                expect(child);
            }
        } else if (!strcmp(word, "wait")) {
            /* A signal that is ignored does not end the wait. */
            struct epoll_event event;
            int epoll = epoll_create1(0);
            child = fork();
            if (!child) { usleep(atol(n) * 1000 / 4); _exit(0); }
            int got = epoll_wait(epoll, &event, 1, (int)atol(n));
            if (got) perror("epoll_wait"), printf("epoll_wait: %d\n", got);
            close(epoll);
            expect(child);
        } else if (!strcmp(word, "lives")) {
            child = fork();
            if (!child) for (;;) { work(1); usleep(1000); }
            printf("%d\n", child);
        }
        puts("done");
    }
    return 7;
}
