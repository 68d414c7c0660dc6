/* One source a program, for three compilers: clang makes the object that skep and the kernel run, gcc the native rival.
 * A program works on `mem`, leaves it as it was, and returns 32 bits of what it found; all engines must agree on that. */
#ifndef PROG_H
#define PROG_H

typedef unsigned char u8;
typedef unsigned short u16;
typedef unsigned int u32;
typedef unsigned long long u64;
typedef long long s64;

#ifdef __bpf__
#include <linux/bpf.h>
#include <bpf/bpf_helpers.h>
#define PROGRAM SEC("socket")
#else
#define PROGRAM __attribute__((noinline))
#endif

#define MEM_SIZE 2048
u8 mem[MEM_SIZE] __attribute__((aligned(8)));

static inline __attribute__((always_inline)) u32 rol32(u32 v, int n)
{
	return v << n | v >> (32 - n);
}

static inline __attribute__((always_inline)) u64 rol64(u64 v, int n)
{
	return v << n | v >> (64 - n);
}

#ifdef __bpf__
char LICENSE[] SEC("license") = "GPL";
#endif
#endif
