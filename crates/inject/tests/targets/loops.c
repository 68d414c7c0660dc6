// Threads in two loops that only a tracer can end, by moving them to what stands at the same
// distance from the other label: one executes nothing but jumps, one sleeps. Prints the addresses.
#define _GNU_SOURCE
#include <pthread.h>
#include <stdio.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

extern char loops[], loops_end[], ends[];
__asm__(
    ".text\n"
    ".p2align 4\n"
    "loops: jmp loops\n"            // 2 bytes
    "nop\n nop\n"
    "again: syscall\n"             // at 4; goes on at 6, and again at 4
    "test %eax, %eax\n"             // at 6
    "mov $35, %eax\n"               // at 8
    "jmp again\n"                  // at 13
    "loops_end:\n"
    ".p2align 4\n"
    "ends: jmp 2f\n"
    "nop\n nop\n"
    "syscall\n"                     // at 4
    "2: ret\n"                      // at 6
    ".skip 16, 0xc3\n");

static void *runs(void *p) {
  __asm__ volatile("sub $128, %%rsp\n call loops\n add $128, %%rsp" ::: "memory", "cc");
  return p;
}

static void *sleeps(void *p) {
  struct timespec hour = {3600, 0};
  __asm__ volatile("sub $128, %%rsp\n call loops + 4\n add $128, %%rsp"
                   :
                   : "a"(SYS_nanosleep), "D"(&hour), "S"(0)
                   : "rcx", "r11", "memory", "cc");
  return p;
}

int main(void) {
  pthread_t a, b;
  if (pthread_create(&a, NULL, runs, NULL) || pthread_create(&b, NULL, sleeps, NULL)) return 1;
  puts("ready");
  printf("%lx %lx %lx\n", (long)loops, (long)loops_end, (long)ends);
  fflush(stdout);
  char c;
  if (read(0, &c, 1) != 1) return 1;
  if (pthread_join(a, NULL)) return 1;
  puts("moved");
  fflush(stdout);
  while (read(0, &c, 1) == 1) {
  }
  puts("fine");
  return 0;
}
