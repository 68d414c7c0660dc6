/* Loads of the packet filter of old: they end the function with 0 where the packet is too short. */
#include "test_run.bpf.h"

unsigned long long load_byte(void *skb, unsigned long long off) asm("llvm.bpf.load.byte");
unsigned long long load_half(void *skb, unsigned long long off) asm("llvm.bpf.load.half");
unsigned long long load_word(void *skb, unsigned long long off) asm("llvm.bpf.load.word");

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__type(key, __u32);
	__type(value, __u64);
	__uint(max_entries, 1);
} sums SEC(".maps");

static __always_inline void note(__u64 value)
{
	__u32 zero = 0;
	__u64 *sum = bpf_map_lookup_elem(&sums, &zero);

	if (sum)
		*sum = *sum * 31 + value;
}

static __always_inline __u64 fields(struct __sk_buff *skb)
{
	__u64 sum = 0, proto, i;

	note(1);
	sum += load_byte(skb, 0);
	sum = sum * 3 + load_half(skb, 12);
	note(sum);
	sum = sum * 3 + load_word(skb, 26);
	proto = load_byte(skb, 23);
	sum = sum * 3 + load_half(skb, 14 + (proto & 15) * 2);
	for (i = 0; i < 3; i++)
		sum = sum * 3 + load_byte(skb, (sum & 63) + i);
	note(sum);
	return sum;
}

SEC("tc")
int tc_old(struct __sk_buff *skb)
{
	return fields(skb);
}

SEC("socket")
int socket_old(struct __sk_buff *skb)
{
	return fields(skb);
}

/* Headers, by what the filters of old call negative offsets. */
SEC("socket")
int socket_headers(struct __sk_buff *skb)
{
	__u64 sum = load_half(skb, -0x200000 + 12);

	note(sum);
	sum = sum * 3 + load_byte(skb, -0x100000);
	note(sum);
	sum = sum * 3 + load_word(skb, -0x100000 + 16);
	note(sum);
	sum = sum * 3 + load_word(skb, -0x200000 + 40);
	note(sum);
	return sum;
}

SEC("tc")
int tc_headers(struct __sk_buff *skb)
{
	__u64 sum = load_half(skb, -0x200000 + 12);

	note(sum);
	sum = sum * 3 + load_word(skb, -0x100000 - 4);
	note(sum);
	return sum + load_byte(skb, -0x300000);
}

/* Only the function ends. */
static __noinline int inner(struct __sk_buff *skb)
{
	return load_word(skb, 60) | 1;
}

SEC("tc")
int tc_inner(struct __sk_buff *skb)
{
	int r = inner(skb);

	note(r);
	return r + 7;
}
