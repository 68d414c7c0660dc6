// A library without a C library, as tests load it: a thread that answers numbers on a socket with
// what only right relocations give, and ends when the socket is closed.
#include <asm/unistd.h>

typedef long (*step)(long);

extern long imported(long);
extern long missing(void) __attribute__((weak));

static long twice(long n) { return 2 * n; }
long plus_three(long n) { return n + 3; }
long seven_times(long n) { return 7 * n; }

// R_X86_64_RELATIVE, R_X86_64_64 and, of what is imported, R_X86_64_GLOB_DAT.
static const step steps[] = {twice, plus_three, imported};
static __thread __attribute__((tls_model("initial-exec"))) long seed = 1000;
static __thread __attribute__((tls_model("initial-exec"))) long calls;
static long zeros[1024];
static int constructed;

__attribute__((constructor)) static void construct(void) { constructed = 1; }

static long call(long number, long a, long b, long c) {
  long result;
  __asm__ volatile("syscall" : "=a"(result) : "a"(number), "D"(a), "S"(b), "d"(c) : "rcx", "r11", "memory");
  return result;
}

void entry(long socket) {
  // Faults unless the stack is as the ABI has it.
  float aligned[4] __attribute__((aligned(16))) = {0};
  __asm__ volatile("movaps %0, %%xmm0" : : "m"(aligned) : "xmm0");
  for (long n; call(__NR_read, socket, (long)&n, sizeof n) == sizeof n;) {
    for (unsigned i = 0; i < sizeof steps / sizeof *steps; i++) n = steps[i](n);
    long answer[] = {n + seed + zeros[n & 1023], ++calls, constructed, missing != 0, call(__NR_gettid, 0, 0, 0)};
    if (call(__NR_write, socket, (long)answer, sizeof answer) != sizeof answer) break;
  }
  call(__NR_close, socket, 0, 0);
  for (;;) call(__NR_exit, 0, 0, 0);
}
