// A server of 64 threads and a client process that keeps it busy: each request must come back right. It answers each byte of its input
// when 50 more requests were; at the end of its input it says how many there were, and how many came back wrong.
#define _GNU_SOURCE
#include <errno.h>
#include <pthread.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#define N __attribute__((noinline, noclone))
enum { THREADS = 64, CLIENTS = 8 };
struct message { uint64_t words[8]; };

static int pairs[THREADS][2];
static volatile int ended;
static uint64_t requests, bad, answered;

N uint64_t mix(uint64_t n, uint64_t by) { n ^= by; n *= 0x9e3779b97f4a7c15; return n ^ n >> 29; }
N void handle(struct message *m) {
    for (int round = 0; round < 4; round++)
        for (int i = 0; i < 8; i++) m->words[i] = mix(m->words[i], m->words[(i + 1) & 7] + round);
}
// No call may fail because of who looks on.
N int whole(int fd, void *at, size_t len, int out) {
    for (size_t done = 0; done < len;) {
        ssize_t n = out ? write(fd, (char *)at + done, len - done) : read(fd, (char *)at + done, len - done);
        if (n <= 0) return 0;
        done += n;
    }
    return 1;
}
static void *serve(void *p) {
    int fd = pairs[(long)p][0];
    struct message m;
    while (whole(fd, &m, sizeof m, 0)) {
        handle(&m);
        if (!whole(fd, &m, sizeof m, 1)) break;
        __atomic_fetch_add(&answered, 1, __ATOMIC_RELAXED);
    }
    close(fd);
    return p;
}
static void *ask(void *p) {
    uint64_t seed = (long)p + 1;
    for (long n = 0; !ended; n++) {
        int fd = pairs[(n * CLIENTS + (long)p) % THREADS][1];
        struct message m, want;
        for (int i = 0; i < 8; i++) m.words[i] = seed = seed * 6364136223846793005 + 1442695040888963407;
        want = m;
        handle(&want);
        int good = whole(fd, &m, sizeof m, 1) && whole(fd, &m, sizeof m, 0) && !memcmp(&m, &want, sizeof m);
        __atomic_fetch_add(&requests, 1, __ATOMIC_RELAXED);
        __atomic_fetch_add(&bad, !good, __ATOMIC_RELAXED);
        if (n % 16 == 0) usleep(200);
    }
    return p;
}
int main(void) {
    pthread_t threads[THREADS];
    int end[2], status = 1;
    char c;
    prctl(PR_SET_PTRACER, PR_SET_PTRACER_ANY, 0, 0, 0);
    for (int i = 0; i < THREADS; i++)
        if (socketpair(AF_UNIX, SOCK_STREAM, 0, pairs[i])) return 2;
    if (pipe(end)) return 2;
    pid_t client = fork();
    if (!client) {
        for (int i = 0; i < THREADS; i++) close(pairs[i][0]);
        close(end[1]);
        for (long i = 0; i < CLIENTS; i++) pthread_create(&threads[i], 0, ask, (void *)i);
        while (read(end[0], &c, 1) > 0) {}
        ended = 1;
        for (int i = 0; i < CLIENTS; i++) pthread_join(threads[i], 0);
        printf("requests %lu bad %lu\n", (unsigned long)requests, (unsigned long)bad);
        fflush(stdout);
        _exit(0);
    }
    for (int i = 0; i < THREADS; i++) close(pairs[i][1]);
    close(end[0]);
    for (long i = 0; i < THREADS; i++) pthread_create(&threads[i], 0, serve, (void *)i);
    puts("ready");
    fflush(stdout);
    while (read(0, &c, 1) > 0) {
        // A request in each thread may be answered, and its client not back yet.
        uint64_t until = __atomic_load_n(&answered, __ATOMIC_RELAXED) + 50 + THREADS;
        while (__atomic_load_n(&answered, __ATOMIC_RELAXED) < until) usleep(1000);
        puts("done");
        fflush(stdout);
    }
    close(end[1]);
    waitpid(client, &status, 0);
    for (int i = 0; i < THREADS; i++) pthread_join(threads[i], 0);
    return status ? 1 : 7;
}
