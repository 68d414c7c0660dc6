// Threads that sleep, then block all signals and run hundreds of functions, as the C library does while it
// makes threads and children; and some that make threads and children all the time. It answers each byte of its input when the
// former have come round a hundred times more.
#define _GNU_SOURCE
#include <errno.h>
#include <pthread.h>
#include <signal.h>
#include <spawn.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#define N __attribute__((noinline, noclone))
#define F(n) N long f##n(long x) { return x * 3 + n; }
#define TEN(M, n) M(n##0) M(n##1) M(n##2) M(n##3) M(n##4) M(n##5) M(n##6) M(n##7) M(n##8) M(n##9)
#define ALL(M) TEN(M, 1) TEN(M, 2) TEN(M, 3) TEN(M, 4) TEN(M, 5) TEN(M, 6) TEN(M, 7) TEN(M, 8) TEN(M, 9) \
    TEN(M, 10) TEN(M, 11) TEN(M, 12) TEN(M, 13) TEN(M, 14) TEN(M, 15) TEN(M, 16) TEN(M, 17) TEN(M, 18) TEN(M, 19)
ALL(F)

static volatile int ended;
static volatile long rounds;

static void *block(void *seed) {
    sigset_t all, old;
    sigfillset(&all);
    for (unsigned n = (long)seed; !ended; n = n * 1103515245 + 12345) {
        nanosleep(&(struct timespec){0, n >> 8 & 0x3ffff}, 0);
        pthread_sigmask(SIG_SETMASK, &all, &old);
        long x = n;
        for (int i = 0; i < 20; i++) {
#define CALL(n) x = f##n(x);
            ALL(CALL)
        }
        __atomic_add_fetch(&rounds, x != 0, __ATOMIC_RELAXED);
        pthread_sigmask(SIG_SETMASK, &old, 0);
    }
    return 0;
}

static void *nothing(void *p) { return p; }

static void *make(void *p) {
    extern char **environ;
    while (!ended) {
        pthread_t t;
        if (!pthread_create(&t, 0, nothing, 0)) pthread_join(t, 0);
        pid_t child;
        int status = 1;
        char *args[] = {"true", 0};
        int error = posix_spawnp(&child, "true", 0, 0, args, environ);
        if (!error && waitpid(child, &status, 0) != child) error = errno;
        if (error || status) {
            fprintf(stderr, "a child: error %d, status 0x%x\n", error, status);
            exit(3);
        }
        usleep(2000);
    }
    return p;
}

int main(void) {
    enum { BLOCK = 4 };
    pthread_t t[BLOCK + 1];
    prctl(PR_SET_PTRACER, PR_SET_PTRACER_ANY, 0, 0, 0); // Where Yama wants it.
    for (long i = 0; i < BLOCK; i++) pthread_create(&t[i], 0, block, (void *)(i * 7919 + 1));
    pthread_create(&t[BLOCK], 0, make, 0);
    setvbuf(stdout, 0, _IONBF, 0);
    puts("ready");
    while (getchar() != EOF) {
        for (long before = rounds; rounds <= before + 100;) usleep(1000);
        puts("done");
    }
    ended = 1;
    for (int i = 0; i <= BLOCK; i++) pthread_join(t[i], 0);
    printf("%ld rounds\n", rounds);
    return 7;
}
