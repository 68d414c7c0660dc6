/* What the fixtures need of linux/bpf.h and bpf_helpers.h, so that they build with clang alone. */
#pragma once

typedef unsigned char __u8;
typedef unsigned short __u16;
typedef unsigned int __u32;
typedef unsigned long long __u64;
typedef signed char __s8;
typedef short __s16;
typedef int __s32;
typedef long long __s64;

#define SEC(name) __attribute__((section(name), used))
#define __uint(name, val) int(*name)[val]
#define __type(name, val) typeof(val) *name
#define __array(name, val) typeof(val) *name[]
#define __ulong(name, val) enum { ___cat(__unique_value, __COUNTER__) = val } name
#define ___cat2(a, b) a##b
#define ___cat(a, b) ___cat2(a, b)
#define __ksym __attribute__((section(".ksyms")))
#define __kconfig __attribute__((section(".kconfig")))
#define __weak __attribute__((weak))
#define __hidden __attribute__((visibility("hidden")))
#define __noinline __attribute__((noinline))

enum {
	HASH = 1,
	ARRAY = 2,
	PROG_ARRAY = 3,
	PERCPU_ARRAY = 6,
	ARRAY_OF_MAPS = 12,
	HASH_OF_MAPS = 13,
	BLOOM_FILTER = 30,
	RINGBUF = 27,
};

static void *(*const bpf_map_lookup_elem)(void *map, const void *key) = (void *)1;
static long (*const bpf_map_update_elem)(void *map, const void *key, const void *value, __u64 flags) = (void *)2;
static __u64 (*const bpf_ktime_get_ns)(void) = (void *)5;
static __u64 (*const bpf_get_current_pid_tgid)(void) = (void *)14;
static long (*const bpf_tail_call)(void *ctx, void *map, __u32 index) = (void *)12;
static long (*const bpf_map_peek_elem)(void *map, void *value) = (void *)89;
static void *(*const bpf_ringbuf_reserve)(void *ringbuf, __u64 size, __u64 flags) = (void *)131;
static void (*const bpf_ringbuf_submit)(void *data, __u64 flags) = (void *)132;
static long (*const bpf_loop)(__u32 n, void *callback, void *ctx, __u64 flags) = (void *)181;
