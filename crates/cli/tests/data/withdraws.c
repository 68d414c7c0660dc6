/* Takes away from a tracer's thread in this process what it needs, as it is told: descriptors, their
   number, system calls. And looks whether its own messages come through. */
#define _GNU_SOURCE
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <pthread.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>
#define N __attribute__((noinline, noclone))
static volatile long sink, naps;
N long work(long n) { for (long i = 0; i < 20; i++) sink += i * n; return sink; }

static int numbers[1024], others[1024], count;

/* Every descriptor but the first three becomes a socket of the program's own. */
static void take_numbers(void) {
    count = 0;
    DIR *dir = opendir("/proc/self/fd");
    for (struct dirent *e; (e = readdir(dir));)
        if (atoi(e->d_name) > 2 && atoi(e->d_name) != dirfd(dir)) numbers[count++] = atoi(e->d_name);
    closedir(dir);
    int all = count;
    count = 0;
    for (int i = 0; i < all; i++) {
        close(numbers[i]);
        // Those from 300 on are the other ends of a former time.
        if (numbers[i] < 300 || numbers[i] >= 700) numbers[count++] = numbers[i];
    }
    for (int i = 0; i < count; i++) {
        int pair[2];
        if (socketpair(AF_UNIX, SOCK_SEQPACKET, 0, pair)) puts("no sockets");
        others[i] = fcntl(pair[1], F_DUPFD, 300);
        close(pair[1]);
        if (pair[0] != numbers[i]) { dup2(pair[0], numbers[i]); close(pair[0]); }
    }
}

static void exchange(void) {
    char got[300];
    for (int i = 0; i < count; i++)
        for (int turn = 0; turn < 2; turn++) {
            int from = turn ? numbers[i] : others[i], to = turn ? others[i] : numbers[i];
            for (long n; (n = recv(to, got, sizeof got, MSG_DONTWAIT)) > 0;)
                printf("%ld bytes of somebody else's\n", n);
            send(from, "abc", 3, 0);
            usleep(20000);
            if (recv(to, got, sizeof got, MSG_DONTWAIT) != 3) printf("a message to %d is lost\n", to);
        }
}

#define STATEMENT(code, k) {code, 0, 0, k}
#define IF(code, k, yes, no) {code, yes, no, k}
/* With -1 everything but what this program does. */
static void sandbox(long number, unsigned action, unsigned flags, int unseen) {
    static const int own[] = {SYS_read, SYS_write, SYS_exit, SYS_exit_group, SYS_clock_nanosleep, SYS_rt_sigreturn,
                              SYS_futex, SYS_madvise, SYS_munmap, SYS_rseq, SYS_rt_sigprocmask, SYS_newfstatat, SYS_lseek};
    struct sock_filter code[64] = {STATEMENT(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, nr))};
    unsigned short n = 1;
    for (unsigned i = 0; number < 0 && i < sizeof own / sizeof *own; i++) {
        code[n++] = (struct sock_filter)IF(BPF_JMP | BPF_JEQ | BPF_K, own[i], 0, 1);
        code[n++] = (struct sock_filter)STATEMENT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW);
    }
    if (number >= 0) {
        code[n++] = (struct sock_filter)IF(BPF_JMP | BPF_JEQ | BPF_K, number, 1, 0);
        code[n++] = (struct sock_filter)STATEMENT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW);
    }
    code[n++] = (struct sock_filter)STATEMENT(BPF_RET | BPF_K, action);
    struct sock_fprog program = {n, code};
    long r;
    prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0);
    if (unseen)
        __asm__ volatile("syscall" : "=a"(r) : "a"(SYS_seccomp), "D"(1L), "S"((long)flags), "d"(&program)
                         : "rcx", "r11", "memory");
    else
        r = syscall(SYS_seccomp, 1, flags, &program);
    if (r) puts("no sandbox");
}

static void *sleeper(void *p) {
    long *filter = p;
    sandbox(filter[0], (unsigned)filter[1], 0, 0);
    for (;;) { nanosleep(&(struct timespec){0, 30000000}, 0); naps++; }
}

static void *worker(void *p) {
    for (int i = 0; i < 10; i++) work(i);
    return p;
}

/* A thread and a child that work. */
static void work_by_others(void) {
    pthread_t t;
    int status;
    pthread_create(&t, 0, worker, 0);
    pthread_join(t, 0);
    pid_t child = fork();
    if (child == 0) { worker(0); _exit(0); }
    if (waitpid(child, &status, 0) != child || status) puts("a child has died");
}

int main(void) {
    char word[64];
    long a, b, c;
    pthread_t t;
    prctl(PR_SET_PTRACER, PR_SET_PTRACER_ANY, 0, 0, 0);
    setvbuf(stdout, 0, _IONBF, 0);
    puts("ready");
    while (scanf("%63s", word) == 1) {
        if (!strcmp(word, "work") && scanf("%ld", &a) == 1) { while (a-- > 0) work(a); }
        else if (!strcmp(word, "take")) take_numbers();
        else if (!strcmp(word, "exchange")) exchange();
        else if (!strcmp(word, "others")) work_by_others();
        else if (!strcmp(word, "limit") && scanf("%ld", &a) == 1) setrlimit(RLIMIT_NOFILE, &(struct rlimit){a, a});
        else if (!strcmp(word, "sandbox") && scanf("%ld %li %ld", &a, &b, &c) == 3) sandbox(a, b, c, 0);
        else if (!strcmp(word, "unseen") && scanf("%ld %li %ld", &a, &b, &c) == 3) sandbox(a, b, c, 1);
        else if (!strcmp(word, "sleeper") && scanf("%ld %li", &a, &b) == 2) {
            static long filter[2];
            filter[0] = a; filter[1] = b;
            pthread_create(&t, 0, sleeper, filter);
            while (naps < 2) usleep(1000);
        } else if (!strcmp(word, "naps")) { for (long before = naps; naps < before + 2;) usleep(1000); }
        puts("done");
    }
    return 7;
}
