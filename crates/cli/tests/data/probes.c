// Declares probes as sys/sdt.h does, which need not be there: with one `nop`, with `nop` and a longer one (-DLONG), with a semaphore.
// Or with that header itself (-DHEADER).
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>

#ifdef HEADER
#define _SDT_HAS_SEMAPHORES 1
#include <sys/sdt.h>
#endif
#define N __attribute__((noinline, noclone))
#ifdef LONG
#define NOPS "nop\n.byte 0x0f, 0x1f, 0x44, 0, 0\n"
#else
#define NOPS "nop\n"
#endif
#define NOTE(name, semaphore, arguments) \
    "990: " NOPS ".pushsection .note.stapsdt, \"\", \"note\"\n.balign 4\n.4byte 992f-991f, 994f-993f, 3\n" \
    "991: .asciz \"stapsdt\"\n992: .balign 4\n993: .8byte 990b, _.stapsdt.base, " semaphore "\n" \
    ".asciz \"demo\"\n.asciz \"" name "\"\n.asciz \"" arguments "\"\n994: .balign 4\n.popsection\n" \
    ".ifndef _.stapsdt.base\n.pushsection .stapsdt.base, \"aG\", \"progbits\", .stapsdt.base, comdat\n" \
    ".weak _.stapsdt.base\n.hidden _.stapsdt.base\n_.stapsdt.base: .space 1\n.size _.stapsdt.base, 1\n.popsection\n.endif\n"

__extension__ unsigned short demo_request_semaphore __attribute__((section(".probes"), used));
__extension__ unsigned short demo_done_semaphore __attribute__((section(".probes"), used));

static volatile long sink;

N long serve(int id, const char *path, long size, signed char letter) {
    long local = size + 1;
#ifdef HEADER
    DTRACE_PROBE5(demo, request, id, path, local, letter, 1000L);
#else
    __asm__ volatile(NOTE("request", "demo_request_semaphore", "-4@%0 8@%1 -8@%2 -1@%3 -8@%4")
                     : : "nor"(id), "nor"(path), "nor"(local), "nor"(letter), "nor"(1000L));
#endif
    sink += local;
    return local * 2;
}

N long finish(long value) {
    for (int i = 0; i < 3; i++) {
        long n = value + i;
#ifdef HEADER
        DTRACE_PROBE1(demo, done, n);
#else
        __asm__ volatile(NOTE("done", "0", "-8@%0") : : "nor"(n));
#endif
        sink ^= n;
    }
    return sink;
}

// `carry+0x8` is behind the comparison.
__asm__(".text\n.globl carry\n.type carry, @function\ncarry: .cfi_startproc\nnopl 0(%rax)\ncmp $5, %rdi\nmov $7, %eax\nsbb $0, %rax\nret\n"
        ".cfi_endproc\n.size carry, . - carry\n");
long carry(long n);

int main(int argc, char **argv) {
    char word[64];
    long n;
    (void)argc;
    prctl(PR_SET_PTRACER, PR_SET_PTRACER_ANY, 0, 0, 0);
    setvbuf(stdout, 0, _IONBF, 0);
    puts("ready");
    while (scanf("%63s", word) == 1) {
        long total = 0;
        if (!strcmp(word, "go") && scanf("%ld", &n) == 1) {
            for (long i = 0; i < n; i++) total += serve(i, argv[0] ? "/a/path" : 0, i * 10, -3) + finish(i) + carry(i);
        } else if (!strcmp(word, "listened")) {
            printf("%d\n", demo_request_semaphore);
            continue;
        }
        puts("done");
        sink ^= total;
    }
    return 7;
}
