// Threads in every kind of system call that a stop interrupts, each of which checks that the call
// does what it always does; a thread that makes threads; and threads with known values in all
// registers. Status 99 and a message when something is wrong. Prints `ready`, goes on until its
// input ends, then prints how often each thread did its work.
#define _GNU_SOURCE
#include <errno.h>
#include <linux/futex.h>
#include <linux/io_uring.h>
#include <poll.h>
#include <pthread.h>
#include <signal.h>
#include <spawn.h>
#include <stdatomic.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/time.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#ifndef sigev_notify_thread_id
#define sigev_notify_thread_id _sigev_un._tid
#endif

static atomic_int over, begun;
// With the argument `few`: only some of the threads, and calls that a stop interrupts may say so.
static int few;
#define STOPPED (few && errno == EINTR)

static void fail(const char *what) {
  char text[128];
  int len = snprintf(text, sizeof text, "wrong: %s (%s)\n", what, strerror(errno));
  if (write(2, text, len) != len) _exit(98);
  _exit(99);
}
#define CHECK(x) do { if (!(x)) fail(#x); } while (0)

static int64_t now(void) {
  struct timespec t;
  clock_gettime(CLOCK_MONOTONIC, &t);
  return t.tv_sec * 1000000000ll + t.tv_nsec;
}

static int ends[2];  // a pipe that nobody writes to
enum { MS = 1000000 };

static void sleeps(void) {
  int64_t begin = now();
  struct timespec t = {0, 20 * MS};
  CHECK(nanosleep(&t, NULL) == 0);
  CHECK(now() - begin >= 20 * MS);
}
static void sleeps_until(void) {
  int64_t end = now() + 20 * MS;
  struct timespec t = {end / 1000000000, end % 1000000000};
  CHECK(clock_nanosleep(CLOCK_MONOTONIC, TIMER_ABSTIME, &t, NULL) == 0);
  CHECK(now() >= end);
}
static void polls(void) {
  struct pollfd p = {ends[0], POLLIN, 0};
  int64_t begin = now();
  CHECK(poll(&p, 1, 20) == 0);
  CHECK(now() - begin >= 20 * MS);
}
static sigset_t only(int signal) {
  sigset_t set;
  sigemptyset(&set);
  sigaddset(&set, signal);
  return set;
}
static void ppolls(void) {
  struct pollfd p = {ends[0], POLLIN, 0};
  struct timespec t = {0, 20 * MS};
  sigset_t few_blocked = only(SIGCHLD);
  CHECK(ppoll(&p, 1, &t, &few_blocked) == 0);
  sigset_t mask;
  CHECK(pthread_sigmask(SIG_BLOCK, NULL, &mask) == 0 && sigismember(&mask, SIGUSR1) == 1);
}
static void epolls(void) {
  static __thread int fd = -1;
  if (fd < 0) {
    struct epoll_event e = {EPOLLIN, {0}};
    CHECK((fd = epoll_create1(EPOLL_CLOEXEC)) >= 0);
    CHECK(epoll_ctl(fd, EPOLL_CTL_ADD, ends[0], &e) == 0);
  }
  struct epoll_event e;
  CHECK(epoll_wait(fd, &e, 1, 20) == 0 || STOPPED);
  sigset_t few_blocked = only(SIGCHLD);
  CHECK(epoll_pwait(fd, &e, 1, 20, &few_blocked) == 0 || STOPPED);
  sigset_t mask;
  CHECK(pthread_sigmask(SIG_BLOCK, NULL, &mask) == 0 && sigismember(&mask, SIGUSR1) == 1);
}
static void waits_on_futex(void) {
  static uint32_t word;
  struct timespec t = {0, 20 * MS};
  long r = syscall(SYS_futex, &word, FUTEX_WAIT_PRIVATE, 0, &t, NULL, 0);
  CHECK(r == -1 && errno == ETIMEDOUT);
}
static void takes_signals(void) {
  sigset_t set = only(SIGUSR2);
  struct timespec t = {0, 20 * MS};
  CHECK(sigtimedwait(&set, NULL, &t) == -1 && errno == EAGAIN);
}
// Where the system has no rings, the thread sleeps.
static void waits_on_ring(void) {
  static int fd = -2;
  struct timespec t = {0, 20 * MS};
  if (fd == -2) {
    struct io_uring_params p = {0};
    fd = syscall(SYS_io_uring_setup, 2, &p);
    if (fd >= 0 && !(p.features & IORING_FEAT_EXT_ARG)) fd = -1;
  }
  if (fd < 0) {
    CHECK(nanosleep(&t, NULL) == 0);
    return;
  }
  struct io_uring_getevents_arg arg = {.ts = (uintptr_t)&t};
  unsigned flags = IORING_ENTER_GETEVENTS | IORING_ENTER_EXT_ARG;
  long r = syscall(SYS_io_uring_enter, fd, 0, 1, flags, &arg, sizeof arg);
  CHECK(r == -1 && errno == ETIME);
}
static void receives(void) {
  static __thread int pair[2] = {-1, -1};
  if (pair[0] < 0) {
    struct timeval t = {0, 20000};
    CHECK(socketpair(AF_UNIX, SOCK_STREAM, 0, pair) == 0);
    CHECK(setsockopt(pair[0], SOL_SOCKET, SO_RCVTIMEO, &t, sizeof t) == 0);
  }
  char c;
  CHECK(recv(pair[0], &c, 1, 0) == -1 && errno == EAGAIN);
}
// Most threads are made with the signals of `main` blocked, and leave it so.
static void keeps_signal_mask(void) {
  sigset_t mask;
  CHECK(pthread_sigmask(SIG_BLOCK, NULL, &mask) == 0);
  CHECK(sigismember(&mask, SIGUSR1) == 1 && sigismember(&mask, SIGUSR2) == 1);
  CHECK(sigismember(&mask, SIGTERM) == 0 && sigismember(&mask, SIGTRAP) == 0);
}

static int there[2], back[2];
static void asks(void) {
  static unsigned char n;
  unsigned char got;
  n++;
  CHECK(write(there[1], &n, 1) == 1);
  CHECK(read(back[0], &got, 1) == 1);
  CHECK(got == n);
  keeps_signal_mask();
}
static void *answers(void *unused) {
  for (char c; read(there[0], &c, 1) == 1; keeps_signal_mask()) CHECK(write(back[1], &c, 1) == 1);
  return unused;
}
static atomic_int handled;
// A child of `vfork`, for which the thread waits in the kernel.
static void spawns(void) {
  extern char **environ;
  char *argv[] = {"true", NULL};
  pid_t pid;
  int status;
  CHECK(posix_spawnp(&pid, "true", NULL, NULL, argv, environ) == 0);
  CHECK(waitpid(pid, &status, 0) == pid && status == 0);
}
// A child that the kernel traces like a new thread, and that is none.
static void clones(void) {
  long pid = syscall(SYS_clone, 0, NULL, NULL, NULL, NULL);
  if (pid == 0) syscall(SYS_exit, 7);
  int status;
  CHECK(pid > 0 && waitpid(pid, &status, __WCLONE) == pid);
  CHECK(WIFEXITED(status) && WEXITSTATUS(status) == 7);
}
static _Thread_local volatile int ticks;
static void on_tick(int s) { (void)s; ticks++; }
static void keeps_registers(void);
// Signals come all the time.
static void ticks_away(void) {
  static int made;
  if (!made) {
    struct sigaction action = {.sa_handler = on_tick};
    CHECK(sigaction(SIGRTMIN, &action, NULL) == 0);
    struct sigevent e = {.sigev_notify = SIGEV_THREAD_ID, .sigev_signo = SIGRTMIN};
    e.sigev_notify_thread_id = gettid();
    timer_t timer;
    CHECK(timer_create(CLOCK_MONOTONIC, &e, &timer) == 0);
    struct itimerspec often = {{0, MS / 5}, {0, MS / 5}};
    CHECK(timer_settime(timer, 0, &often, NULL) == 0);
    made = 1;
  }
  int before = ticks;
  do keeps_registers();
  while (ticks == before);
}
static void on_signal(int s) { (void)s; handled++; }
// A signal that comes while its thread waits for it.
static void waits_for_signals(void) {
  static __thread timer_t timer;
  static __thread int made;
  if (!made) {
    struct sigevent e = {.sigev_notify = SIGEV_THREAD_ID, .sigev_signo = SIGUSR1};
    e.sigev_notify_thread_id = gettid();
    CHECK(timer_create(CLOCK_MONOTONIC, &e, &timer) == 0);
    made = 1;
  }
  struct itimerspec soon = {{0, 0}, {0, 2 * MS}};
  int before = handled;
  CHECK(timer_settime(timer, 0, &soon, NULL) == 0);
  sigset_t but;
  sigfillset(&but);
  sigdelset(&but, SIGUSR1);
  CHECK(sigsuspend(&but) == -1 && errno == EINTR);
  CHECK(handled == before + 1);
}
static void *nothing(void *p) { return p; }
static void makes_threads(void) {
  pthread_t t;
  void *r;
  CHECK(pthread_create(&t, NULL, nothing, &over) == 0);
  CHECK(pthread_join(t, &r) == 0 && r == &over);
}

#ifdef __AVX__
#define WIDE 1
#endif

// All registers hold known values, and are compared again and again, also the flags, the bytes
// below the stack pointer, and the control word of vector arithmetic.
static void keeps_registers(void) {
  unsigned long bad;
  __asm__ volatile(
      "push %%rbp\n push %%rbx\n"
      "mov $0x1111, %%rbx\n mov $0x2222, %%rcx\n mov $0x3333, %%rdx\n mov $0x4444, %%rsi\n"
      "mov $0x5555, %%rdi\n mov $0x6666, %%rbp\n mov $0x7777, %%r8\n mov $0x8888, %%r9\n"
      "mov $0x9999, %%r10\n mov $0xaaaa, %%r11\n mov $0xbbbb, %%r12\n mov $0xcccc, %%r13\n"
      "mov $0xdddd, %%r14\n"
      "movq %%rbx, %%xmm0\n movq %%rcx, %%xmm7\n movq %%rdx, %%xmm15\n"
#ifdef WIDE
      "vinsertf128 $1, %%xmm7, %%ymm0, %%ymm0\n"
#endif
      "fld1\n"
      "movq $0x1234, -8(%%rsp)\n movq $0x5678, -128(%%rsp)\n"
      "mov $200000, %%r15\n"
      "1: stc\n"
      "mov $0xeeee, %%rax\n"
      "jnc 9f\n"
      "cmp $0xeeee, %%rax\n jne 9f\n"
      "cmp $0x1111, %%rbx\n jne 9f\n cmp $0x2222, %%rcx\n jne 9f\n cmp $0x3333, %%rdx\n jne 9f\n"
      "cmp $0x4444, %%rsi\n jne 9f\n cmp $0x5555, %%rdi\n jne 9f\n cmp $0x6666, %%rbp\n jne 9f\n"
      "cmp $0x7777, %%r8\n jne 9f\n cmp $0x8888, %%r9\n jne 9f\n cmp $0x9999, %%r10\n jne 9f\n"
      "cmp $0xaaaa, %%r11\n jne 9f\n cmp $0xbbbb, %%r12\n jne 9f\n cmp $0xcccc, %%r13\n jne 9f\n"
      "cmp $0xdddd, %%r14\n jne 9f\n"
      "movq %%xmm0, %%rax\n cmp %%rax, %%rbx\n jne 9f\n"
      "movq %%xmm7, %%rax\n cmp %%rax, %%rcx\n jne 9f\n"
      "movq %%xmm15, %%rax\n cmp %%rax, %%rdx\n jne 9f\n"
#ifdef WIDE
      "vextractf128 $1, %%ymm0, %%xmm1\n movq %%xmm1, %%rax\n cmp %%rax, %%rcx\n jne 9f\n"
#endif
      "cmpq $0x1234, -8(%%rsp)\n jne 9f\n cmpq $0x5678, -128(%%rsp)\n jne 9f\n"
      "dec %%r15\n jnz 1b\n"
      "xor %%eax, %%eax\n jmp 2f\n"
      "9: mov $1, %%eax\n"
      "2: fstp %%st(0)\n pop %%rbx\n pop %%rbp\n"
      : "=a"(bad)
      :
      : "rcx", "rdx", "rsi", "rdi", "r8", "r9", "r10", "r11", "r12", "r13", "r14", "r15", "xmm0",
        "xmm1", "xmm7", "xmm15", "memory", "cc");
  errno = 0;
  CHECK(bad == 0);
}

static struct work {
  const char *name;
  void (*once)(void);
  long done;
  int rare;
} works[] = {
    {"sleeps", sleeps, 0, 0},
    {"sleeps_until", sleeps_until, 0, 1},
    {"polls", polls, 0, 1},
    {"ppolls", ppolls, 0, 1},
    {"epolls", epolls, 0, 0},
    {"waits_on_futex", waits_on_futex, 0, 1},
    {"takes_signals", takes_signals, 0, 1},
    {"waits_on_ring", waits_on_ring, 0, 1},
    {"receives", receives, 0, 1},
    {"asks", asks, 0, 0},
    {"waits_for_signals", waits_for_signals, 0, 0},
    {"makes_threads", makes_threads, 0, 1},
    {"keeps_registers", keeps_registers, 0, 0},
    {"ticks_away", ticks_away, 0, 0},
    {"spawns", spawns, 0, 1},
    {"clones", clones, 0, 1},
};
enum { WORKS = sizeof works / sizeof works[0] };

static void *repeats(void *arg) {
  struct work *work = arg;
  do {
    work->once();
    if (!work->done++) begun++;
  } while (!over);
  return NULL;
}

int main(int argc, char **argv) {
  few = argc > 1 && strcmp(argv[1], "few") == 0;
  // Those that keep a processor busy let tracers, which are many, have it first.
  errno = 0;
  if (few) CHECK(nice(5) != -1 || errno == 0);
  sigset_t blocked;
  sigemptyset(&blocked);
  sigaddset(&blocked, SIGUSR1);
  sigaddset(&blocked, SIGUSR2);
  // It could interrupt calls of any thread while `posix_spawn` has it blocked.
  sigaddset(&blocked, SIGCHLD);
  CHECK(pthread_sigmask(SIG_BLOCK, &blocked, NULL) == 0);
  struct sigaction action = {.sa_handler = on_signal};
  CHECK(sigaction(SIGUSR1, &action, NULL) == 0);
  CHECK(pipe(ends) == 0 && pipe(there) == 0 && pipe(back) == 0);
  pthread_t threads[WORKS], other;
  CHECK(pthread_create(&other, NULL, answers, NULL) == 0);
  int all = 0;
  for (int i = 0; i < WORKS; i++) {
    if (few && works[i].rare) continue;
    all++;
    CHECK(pthread_create(&threads[i], NULL, repeats, &works[i]) == 0);
  }
  while (begun < all) usleep(1000);
  puts("ready");
  fflush(stdout);
  char c;
  ssize_t r;
  while ((r = read(0, &c, 1)) == 1) {
    keeps_signal_mask();
    puts("here");
    fflush(stdout);
  }
  CHECK(r == 0);
  over = 1;
  for (int i = 0; i < WORKS; i++) {
    if (few && works[i].rare) continue;
    CHECK(pthread_join(threads[i], NULL) == 0);
    printf("%s %ld\n", works[i].name, works[i].done);
    CHECK(works[i].done > 0);
  }
  puts("fine");
  return 0;
}
