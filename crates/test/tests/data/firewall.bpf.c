/* Programs that the tests and examples of `skep-test` run. */
// clang: -D__TARGET_ARCH_x86
#include <linux/bpf.h>
#include <linux/if_ether.h>
#include <linux/ip.h>
#include <linux/ptrace.h>
#include <bpf/bpf_helpers.h>
#include <bpf/bpf_endian.h>
#include <bpf/bpf_tracing.h>

char _license[] SEC("license") = "GPL";

/* Sources whose packets are dropped, and how many were. */
struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__type(key, __u8[4]);
	__type(value, __u32);
	__uint(max_entries, 64);
} blocked SEC(".maps");

/* Packets that passed, by the protocol of IPv4. */
struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__type(key, __u32);
	__type(value, __u64);
	__uint(max_entries, 256);
} protocols SEC(".maps");

struct event {
	__u32 source;
	__u32 length;
};

struct {
	__uint(type, BPF_MAP_TYPE_RINGBUF);
	__uint(max_entries, 4096);
} events SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_QUEUE);
	__type(value, __u32);
	__uint(max_entries, 4);
} sizes SEC(".maps");

/* Larger packets are dropped. */
const volatile __u32 max_size = 1514;

__u64 malformed;

/* Returns the IPv4 header if all of the packet that it speaks of is there. */
static __always_inline struct iphdr *header(void *data, void *end)
{
	struct iphdr *ip = data + sizeof(struct ethhdr);

	if ((void *)(ip + 1) > end || ip->version != 4 || ip->ihl < 5)
		return 0;
	__u32 length = bpf_ntohs(ip->tot_len), headers = ip->ihl * 4;
	if (length < headers || length > end - (void *)ip)
		return 0;
	return ip;
}

SEC("xdp")
int firewall(struct xdp_md *ctx)
{
	void *data = (void *)(long)ctx->data, *end = (void *)(long)ctx->data_end;
	struct ethhdr *eth = data;

	if ((void *)(eth + 1) > end)
		return XDP_DROP;
	if (end - data > max_size)
		return XDP_DROP;
	if (eth->h_proto != bpf_htons(ETH_P_IP))
		return XDP_PASS;
	struct iphdr *ip = header(data, end);
	if (!ip) {
		malformed++;
		return XDP_DROP;
	}
	__u32 *times = bpf_map_lookup_elem(&blocked, &ip->saddr);
	if (times) {
		struct event event = { ip->saddr, end - data };

		(*times)++;
		bpf_printk("dropped %u bytes", event.length);
		bpf_ringbuf_output(&events, &event, sizeof(event), 0);
		return XDP_DROP;
	}
	__u32 protocol = ip->protocol;
	__u64 *n = bpf_map_lookup_elem(&protocols, &protocol);
	if (n)
		(*n)++;
	return XDP_PASS;
}

/* One hop less, with the checksum that belongs to it. */
SEC("tc")
int hop(struct __sk_buff *skb)
{
	void *data = (void *)(long)skb->data, *end = (void *)(long)skb->data_end;
	struct iphdr *ip = data + sizeof(struct ethhdr);

	if ((void *)(ip + 1) > end || skb->protocol != bpf_htons(ETH_P_IP))
		return 0;
	if (ip->ttl <= 1)
		return 2;
	ip->ttl--;
	__u32 check = bpf_ntohs(ip->check) + 0x100;
	ip->check = bpf_htons(check + (check >> 16));
	return 0;
}

SEC("uprobe")
int BPF_KPROBE(asked, unsigned long size, const char *name)
{
	char text[8] = {};
	__u32 value = size;

	if (bpf_probe_read_user_str(text, sizeof(text), name) > 0 && text[0] == 'a')
		bpf_map_push_elem(&sizes, &value, 0);
	return 0;
}

SEC("uretprobe")
int BPF_KRETPROBE(answered, unsigned long result)
{
	return result > 100;
}
