// Executes itself as often as the argument says, each time from another thread than the first and
// with some more, which the kernel ends then. Its children end at once.
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/wait.h>
#include <unistd.h>

static char *self;
static int left;

static void *runs(void *p) {
  for (;;) {
  }
  return p;
}

static void *executes(void *p) {
  char text[16];
  snprintf(text, sizeof text, "%d", left - 1);
  execl(self, self, text, NULL);
  _exit(1);
  return p;
}

int main(int argc, char **argv) {
  self = argv[0];
  left = argc > 1 ? atoi(argv[1]) : 0;
  if (left == 0) {
    puts("fine");
    return 0;
  }
  if (left % 10 == 0) {
    pid_t pid = fork();
    if (pid == 0) _exit(3);
    int status;
    if (pid < 0 || waitpid(pid, &status, 0) != pid || WEXITSTATUS(status) != 3) return 1;
  }
  if (argc == 2 && getenv("READY")) {
    puts("ready");
    fflush(stdout);
    unsetenv("READY");
  }
  pthread_t t;
  for (int i = 0; i < 3; i++) {
    if (pthread_create(&t, NULL, i < 2 ? runs : executes, NULL)) return 1;
  }
  pthread_join(t, NULL);
  return 1;
}
