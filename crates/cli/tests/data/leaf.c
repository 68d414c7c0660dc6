/* Calls `work` as often as its argument says, and prints how often. */
#include <stdio.h>
#include <stdlib.h>
static volatile long sink;
__attribute__((noinline, noclone)) long work(long n) {
    for (long i = 0; i < 20; i++) sink += i * n;
    return sink;
}
int main(int argc, char **argv) {
    long n = argc > 1 ? atol(argv[1]) : 1;
    for (long i = 0; i < n; i++) work(i);
    printf("%ld\n", n);
    return 0;
}
