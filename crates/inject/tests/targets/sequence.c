// Its first thread is always in a restartable sequence, from which it returns when its input ends.
// The other thread has a seccomp filter; it answers when the sequence has begun anew for a signal,
// which it does not where the kernel has forgotten that the thread is in it.
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <sys/prctl.h>
#include <sys/rseq.h>
#include <sys/syscall.h>
#include <unistd.h>

static volatile int over, begun;
static volatile long aborted;
static pthread_t first;

static void nothing(int s) { (void)s; }

static void *reads(void *p) {
  struct sock_filter code[] = {BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW)};
  struct sock_fprog program = {1, code};
  if (prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0)) return NULL;
  if (syscall(SYS_seccomp, SECCOMP_SET_MODE_FILTER, 0, &program)) return NULL;
  while (!begun) sched_yield();
  write(1, "ready\n", 6);
  char c;
  while (read(0, &c, 1) == 1) {
    long before = aborted;
    for (int i = 0; aborted == before; i++) {
      if (i == 100000) _exit(2);
      pthread_kill(first, SIGUSR1);
      usleep(1000);
    }
    write(1, "here\n", 5);
  }
  over = 1;
  return p;
}

int main(void) {
  if (!__rseq_size) {
    puts("none");
    return 0;
  }
  pthread_t t;
  first = pthread_self();
  signal(SIGUSR1, nothing);
  if (pthread_create(&t, NULL, reads, NULL)) return 1;
  struct rseq *area = (struct rseq *)((char *)__builtin_thread_pointer() + __rseq_offset);
  __asm__ volatile(
      ".pushsection .data\n"
      ".balign 32\n"
      "descriptor: .long 0, 0\n .quad 1f, 2f - 1f, 4f\n"
      ".popsection\n"
      "3: lea descriptor(%%rip), %%rax\n"
      "mov %%rax, %[cs]\n"
      "1: movl $1, %[begun]\n"
      "cmpl $0, %[over]\n"
      "je 1b\n"
      "2: jmp 5f\n"
      ".byte 0x0f, 0xb9, 0x3d\n .long %c[signature]\n"
      "4: incq %[aborted]\n"
      "jmp 3b\n"
      "5:\n"
      : [cs] "=m"(area->rseq_cs), [begun] "+m"(begun), [aborted] "+m"(aborted)
      : [over] "m"(over), [signature] "i"(RSEQ_SIG)
      : "rax", "memory", "cc");
  pthread_join(t, NULL);
  printf("aborted %ld\nfine\n", aborted);
  return aborted == 0;
}
