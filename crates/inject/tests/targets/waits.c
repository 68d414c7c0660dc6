// Waits for its input, and answers each byte. Arguments: how many threads more there are; and, for
// a seccomp filter that ends the process at `mmap` and `getpid`, `main` or `all` threads.
#include <linux/audit.h>
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <pthread.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <unistd.h>

static void *rest(void *p) {
  for (;;) pause();
  return p;
}

static int filter(unsigned flags) {
  struct sock_filter code[] = {
      BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, nr)),
      BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, SYS_mmap, 1, 0),
      BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, SYS_getpid, 0, 1),
      BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_KILL_PROCESS),
      BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW),
  };
  struct sock_fprog program = {sizeof code / sizeof code[0], code};
  if (prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0)) return 1;
  return syscall(SYS_seccomp, SECCOMP_SET_MODE_FILTER, flags, &program) != 0;
}

int main(int argc, char **argv) {
  int n = argc > 1 ? atoi(argv[1]) : 0;
  for (int i = 0; i < n; i++) {
    pthread_t t;
    if (pthread_create(&t, NULL, rest, NULL)) return 1;
  }
  puts("ready");
  fflush(stdout);
  if (argc > 2 && filter(strcmp(argv[2], "all") ? 0 : SECCOMP_FILTER_FLAG_TSYNC)) return 1;
  for (char c; read(0, &c, 1) == 1; fflush(stdout)) puts("here");
  puts("fine");
  return 0;
}
