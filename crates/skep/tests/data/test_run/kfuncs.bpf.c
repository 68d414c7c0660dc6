/* Kernel functions: loops over numbers and bits, packets behind dynptrs, strings. */
#include "test_run.bpf.h"

struct bpf_iter_bits {
	__u64 __opaque[2];
} __attribute__((aligned(8)));

struct bpf_iter_num {
	__u64 __opaque[1];
} __attribute__((aligned(8)));

struct words {
	__u64 a[4];
};

extern int bpf_iter_num_new(struct bpf_iter_num *it, int start, int end) __ksym;
extern int *bpf_iter_num_next(struct bpf_iter_num *it) __ksym;
extern void bpf_iter_num_destroy(struct bpf_iter_num *it) __ksym;
extern int bpf_iter_bits_new(struct bpf_iter_bits *it, const __u64 *words, __u32 nr) __ksym;
extern int *bpf_iter_bits_next(struct bpf_iter_bits *it) __ksym;
extern void bpf_iter_bits_destroy(struct bpf_iter_bits *it) __ksym;
extern int bpf_dynptr_from_skb(struct __sk_buff *skb, __u64 flags, struct bpf_dynptr *ptr) __ksym;
extern int bpf_dynptr_from_xdp(struct xdp_md *xdp, __u64 flags, struct bpf_dynptr *ptr) __ksym;
extern void *bpf_dynptr_slice(const struct bpf_dynptr *ptr, __u32 offset, void *buffer, __u32 size) __ksym;
extern void *bpf_dynptr_slice_rdwr(const struct bpf_dynptr *ptr, __u32 offset, void *buffer, __u32 size) __ksym;
extern int bpf_dynptr_adjust(const struct bpf_dynptr *ptr, __u32 start, __u32 end) __ksym;
extern _Bool bpf_dynptr_is_rdonly(const struct bpf_dynptr *ptr) __ksym;
extern __u32 bpf_dynptr_size(const struct bpf_dynptr *ptr) __ksym;
extern int bpf_dynptr_clone(const struct bpf_dynptr *ptr, struct bpf_dynptr *to) __ksym;
extern int bpf_dynptr_copy(struct bpf_dynptr *to, __u32 to_off, struct bpf_dynptr *from, __u32 from_off, __u32 size) __ksym;
extern int bpf_dynptr_memset(struct bpf_dynptr *ptr, __u32 offset, __u32 size, __u8 value) __ksym;
extern void bpf_rcu_read_lock(void) __ksym;
extern void bpf_rcu_read_unlock(void) __ksym;
extern void bpf_preempt_disable(void) __ksym;
extern void bpf_preempt_enable(void) __ksym;
extern int bpf_strcmp(const char *a, const char *b) __ksym;
extern int bpf_strstr(const char *text, const char *what) __ksym;
extern int bpf_never(void) __ksym __weak;

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__type(key, __u32);
	__type(value, __u64);
	__uint(max_entries, 4);
} out SEC(".maps");

/* A loop over numbers, as libbpf's `bpf_for`: the iterator is destroyed wherever the loop is left. */
#define for_each(i, start, end)                                                                                                  \
	for (struct bpf_iter_num it_##i __attribute__((aligned(8), cleanup(bpf_iter_num_destroy))),                              \
	     *begun_##i __attribute__((unused)) = (bpf_iter_num_new(&it_##i, start, end), (void)bpf_iter_num_destroy, &it_##i);  \
	     ({                                                                                                                  \
		     int *next = bpf_iter_num_next(&it_##i);                                                                     \
		     next && (i = *next, 1);                                                                                     \
	     });)

static __always_inline void note(__u32 word, __u64 value)
{
	__u64 *sum = bpf_map_lookup_elem(&out, &word);

	if (sum)
		*sum = *sum * 31 + value;
}

/* Sums bytes up to one that the packet names; skips, breaks, and counts down inside. */
SEC("tc")
int tc_loops(struct __sk_buff *skb)
{
	__u8 *p = (void *)(long)skb->data, *end = (void *)(long)skb->data_end;
	__u64 sum = 0;
	int i, j, k, n;

	if (p + 14 > end)
		return -1;
	for_each(i, 0, p[0]) {
		if (i == p[1])
			break;
		if ((__u32)i % 5 == 3)
			continue;
		for_each(j, -3, i & 3)
			sum += i * j;
		sum = sum * 3 + i;
	}
	for_each(k, 0, p[2])
		sum++;
	for_each(n, 5, 2)
		sum = 0;
	note(0, sum);
	return sum;
}

SEC("tc")
int tc_bits(struct __sk_buff *skb)
{
	struct words words = {};
	struct bpf_iter_bits it;
	__u64 sum = 0;
	int *bit;

	bpf_skb_load_bytes(skb, 0, &words, sizeof(words));
	bpf_iter_bits_new(&it, words.a, skb->len % 5);
	while ((bit = bpf_iter_bits_next(&it)))
		sum = sum * 7 + *bit;
	bpf_iter_bits_destroy(&it);
	note(0, sum);
	return 0;
}

static __always_inline int through(struct bpf_dynptr *packet, __u32 len)
{
	struct bpf_dynptr part;
	__u8 buffer[16] = {};
	__u64 *word;
	int r;

	note(0, bpf_dynptr_size(packet));
	note(0, bpf_dynptr_is_rdonly(packet));
	word = bpf_dynptr_slice(packet, 6, buffer, 8);
	note(1, word ? *word : 1);
	word = bpf_dynptr_slice(packet, len - 8, 0, 8);
	note(1, word ? *word : 2);
	bpf_dynptr_clone(packet, &part);
	r = bpf_dynptr_adjust(&part, 3, 33);
	note(2, r);
	word = bpf_dynptr_slice(&part, 22, buffer, 8);
	note(2, word ? *word : 3);
	word = bpf_dynptr_slice(&part, 23, buffer, 8);
	note(2, word ? *word : 4);
	note(3, bpf_dynptr_copy(packet, 20, &part, 1, 12));
	note(3, bpf_dynptr_memset(&part, 0, 2, 0xee));
	note(3, bpf_dynptr_memset(&part, 29, 2, 0xee));
	return r;
}

static __always_inline int change(struct bpf_dynptr *packet)
{
	__u8 buffer[14] = {}, *p;

	p = bpf_dynptr_slice_rdwr(packet, 40, buffer, sizeof(buffer));
	if (!p)
		return 1;
	p[13] = p[0] + 1;
	if (p == buffer)
		bpf_dynptr_write(packet, 40, buffer, sizeof(buffer), 0);
	return 2;
}

SEC("tc")
int tc_dynptr(struct __sk_buff *skb)
{
	struct bpf_dynptr packet;

	if (bpf_dynptr_from_skb(skb, 0, &packet))
		return -1;
	through(&packet, skb->len);
	return change(&packet);
}

SEC("xdp")
int xdp_dynptr(struct xdp_md *ctx)
{
	struct bpf_dynptr packet;

	if (bpf_dynptr_from_xdp(ctx, 0, &packet))
		return -1;
	through(&packet, ctx->data_end - ctx->data);
	return change(&packet);
}

SEC("cgroup_skb/egress")
int cgroup_dynptr(struct __sk_buff *skb)
{
	struct bpf_dynptr packet;

	note(0, bpf_dynptr_from_skb(skb, 1, &packet));
	note(0, bpf_dynptr_from_skb(skb, 0, &packet));
	through(&packet, skb->len);
	return 1;
}

SEC("tc")
int tc_sections(struct __sk_buff *skb)
{
	char text[32] = "", what[3] = "";
	int r;

	bpf_rcu_read_lock();
	bpf_preempt_disable();
	bpf_skb_load_bytes(skb, 0, text, 24);
	bpf_skb_load_bytes(skb, 5, what, 2);
	bpf_preempt_enable();
	bpf_rcu_read_unlock();
	r = bpf_strcmp(text, what);
	note(0, r);
	note(0, bpf_strstr(text, what));
	if (bpf_never)
		return bpf_never();
	return r;
}
