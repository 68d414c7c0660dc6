/* Two rings: one says itself what is in it, the other's records may be of two types. */
typedef unsigned char __u8;
typedef unsigned int __u32;
typedef unsigned long long __u64;

#define SEC(name) __attribute__((section(name), used))
#define __uint(name, val) int(*name)[val]
#define __type(name, val) typeof(val) *name

static long (*const bpf_ringbuf_output)(void *ringbuf, void *data, __u64 size, __u64 flags) = (void *)130;

struct call {
	__u64 n;
	_Bool even;
};

struct twice {
	__u64 twice;
};

struct pair {
	__u64 a, b;
};

struct {
	__uint(type, 27);
	__uint(max_entries, 4096);
	__type(value, struct call);
} defined SEC(".maps");

struct {
	__uint(type, 27);
	__uint(max_entries, 4096);
} several SEC(".maps");

const struct twice *unused_twice __attribute__((unused));
const struct pair *unused_pair __attribute__((unused));

__u64 calls;

SEC("fentry/target:leaf")
int leaf(__u64 *ctx)
{
	__u64 n = calls++;
	struct call call = {};
	struct {
		__u64 n;
		__u8 more;
	} __attribute__((packed)) record = { n, 0xff };

	if (n > 1)
		return 0;
	call.n = n;
	call.even = n % 2 == 0;
	bpf_ringbuf_output(&defined, &call, sizeof(call), 0);
	bpf_ringbuf_output(&several, &record, n ? sizeof(record) : 8, 0);
	return 0;
}

char _license[] SEC("license") = "Dual MIT/GPL";
