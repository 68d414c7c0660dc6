// Waits for its input with as many threads as the argument says, and answers each byte.
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

static void *rest(void *p) {
  for (;;) pause();
  return p;
}

int main(int argc, char **argv) {
  int n = argc > 1 ? atoi(argv[1]) : 0;
  for (int i = 0; i < n; i++) {
    pthread_t t;
    if (pthread_create(&t, NULL, rest, NULL)) return 1;
  }
  puts("ready");
  fflush(stdout);
  for (char c; read(0, &c, 1) == 1; fflush(stdout)) puts("here");
  puts("fine");
  return 0;
}
