/* Contexts that point to more than a packet, and types of their own. */
#include "test_run.bpf.h"

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__type(key, __u32);
	__type(value, __u32);
	__uint(max_entries, 16);
} seen SEC(".maps");

static __always_inline void see(__u32 key, __u32 value)
{
	bpf_map_update_elem(&seen, &key, &value, BPF_ANY);
}

static __always_inline int socket_of(struct __sk_buff *skb)
{
	struct bpf_sock *sk = skb->sk;

	if (!sk)
		return 0;
	see(0, sk->family);
	see(1, sk->src_ip4);
	see(2, sk->dst_ip4);
	see(3, sk->src_port);
	see(4, sk->dst_port);
	see(5, sk->state);
	see(6, sk->rx_queue_mapping);
	see(7, sk->bound_dev_if);
	if (sk->family == 10) {
		see(8, sk->src_ip6[1]);
		see(9, sk->dst_ip6[2]);
	}
	return 1;
}

SEC("socket")
int socket_socket(struct __sk_buff *skb)
{
	return socket_of(skb);
}

SEC("tc")
int tc_socket(struct __sk_buff *skb)
{
	return socket_of(skb);
}

SEC("cgroup_skb/egress")
int cgroup_socket(struct __sk_buff *skb)
{
	return socket_of(skb);
}

SEC("flow_dissector")
int dissect(struct __sk_buff *skb)
{
	void *data = (void *)(long)skb->data, *end = (void *)(long)skb->data_end;
	struct bpf_flow_keys *keys = skb->flow_keys;
	struct iphdr *ip = data + 14;

	see(0, keys->nhoff);
	see(1, keys->thoff);
	see(2, keys->n_proto);
	see(3, keys->flags);
	keys->thoff += 3000;
	if (keys->n_proto != bpf_htons(ETH_P_IP))
		return BPF_DROP;
	if ((void *)(ip + 1) > end)
		return BPF_DROP;
	keys->addr_proto = ETH_P_IP;
	keys->ip_proto = ip->protocol;
	keys->ipv4_src = ip->saddr;
	keys->ipv4_dst = ip->daddr;
	keys->thoff = keys->nhoff + ip->ihl * 4;
	keys->nhoff = 2;
	return BPF_OK;
}

SEC("sk_lookup")
int look_up(struct bpf_sk_lookup *ctx)
{
	see(0, ctx->family);
	see(1, ctx->protocol);
	see(2, ctx->remote_ip4);
	see(3, ctx->remote_port);
	see(4, ctx->local_ip4);
	see(5, ctx->local_port);
	see(6, ctx->remote_ip6[0]);
	see(7, ctx->remote_ip6[3]);
	see(8, ctx->local_ip6[1]);
	see(9, ctx->ingress_ifindex);
	see(10, !!ctx->sk);
	return ctx->local_port == 7 ? SK_PASS : SK_DROP;
}

SEC("xdp/devmap")
int behind_devmap(struct xdp_md *ctx)
{
	return ctx->egress_ifindex;
}
