/* The map types of skep that Linux does not have. Include it behind <linux/bpf.h> or vmlinux.h, and <bpf/bpf_helpers.h>. */
#pragma once

/*
 * A map in the order of its keys, which are byte strings of any length up to map_extra:
 *
 *	struct {
 *		__uint(type, BPF_MAP_TYPE_QP_TRIE);
 *		__type(key, struct bpf_dynptr);
 *		__type(value, __u64);
 *		__uint(max_entries, 10000);
 *		__uint(map_extra, 255);
 *		__uint(map_flags, BPF_F_NO_PREALLOC);
 *	} paths SEC(".maps");
 *
 * A program passes the address of a dynptr of memory or of a ring buffer's record as key. Without map_extra, keys have one size
 * between 1 and 256 bytes, and are passed as those of a hash.
 */
#define BPF_MAP_TYPE_QP_TRIE 0x03630001

/* In map_flags: no cache of leaves, which takes 7 bytes a key and makes lookups of single keys about as fast as a hash's. */
#define SKEP_F_NO_LEAF_CACHE (1U << 30)

#ifndef __BPF_HELPERS__ /* libbpf's bpf_helpers.h has them */
/* Memory of a size that is known at run time only (include/uapi/linux/bpf.h). */
struct bpf_dynptr {
	__u64 opaque[2];
} __attribute__((aligned(8)));

static long (*const bpf_probe_read_user_str)(void *to, __u32 size, const void *from) = (void *)114;
static long (*const bpf_dynptr_from_mem)(void *mem, __u32 size, __u64 flags, struct bpf_dynptr *to) = (void *)197;

enum { BPF_F_NO_PREALLOC = 1 };
#endif
