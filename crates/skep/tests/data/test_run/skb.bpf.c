/* Programs that see a socket buffer. */
#include "test_run.bpf.h"

struct seen {
	__u32 len, pkt_type, mark, queue_mapping, protocol, vlan_present, vlan_tci, vlan_proto;
	__u32 priority, ingress_ifindex, ifindex, tc_index, cb[5], hash;
	__u32 napi_id, gso_segs, gso_size, pad;
};

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__type(key, __u32);
	__type(value, struct seen);
	__uint(max_entries, 1);
} fields SEC(".maps");

static __always_inline int note(struct __sk_buff *skb)
{
	struct seen seen = {};
	__u32 key = 0;

	seen.len = skb->len;
	seen.pkt_type = skb->pkt_type;
	seen.mark = skb->mark;
	seen.queue_mapping = skb->queue_mapping;
	seen.protocol = skb->protocol;
	seen.vlan_present = skb->vlan_present;
	seen.vlan_tci = skb->vlan_tci;
	seen.vlan_proto = skb->vlan_proto;
	seen.priority = skb->priority;
	seen.ingress_ifindex = skb->ingress_ifindex;
	seen.ifindex = skb->ifindex;
	seen.tc_index = skb->tc_index;
	seen.cb[0] = skb->cb[0];
	seen.cb[1] = skb->cb[1];
	seen.cb[2] = skb->cb[2];
	seen.cb[3] = skb->cb[3];
	seen.cb[4] = skb->cb[4];
	seen.hash = skb->hash;
	seen.napi_id = skb->napi_id;
	seen.gso_segs = skb->gso_segs;
	seen.gso_size = skb->gso_size;
	return bpf_map_update_elem(&fields, &key, &seen, 0);
}

SEC("tc")
int tc_fields(struct __sk_buff *skb)
{
	return note(skb);
}

SEC("socket")
int socket_fields(struct __sk_buff *skb)
{
	return note(skb) ? 0 : skb->len;
}

SEC("cgroup_skb/ingress")
int cgroup_fields(struct __sk_buff *skb)
{
	return note(skb) == 0;
}

SEC("action")
int action_fields(struct __sk_buff *skb)
{
	note(skb);
	return TC_ACT_SHOT;
}

/* Parts of fields. */
SEC("tc")
int tc_narrow(struct __sk_buff *skb)
{
	__u8 *raw = (void *)skb;
	__u32 mark = *(volatile __u8 *)(raw + __builtin_offsetof(struct __sk_buff, mark) + 1);
	__u32 proto = *(volatile __u16 *)(raw + __builtin_offsetof(struct __sk_buff, protocol));

	return mark << 16 | proto;
}

/* Everything that may be written. */
SEC("tc")
int tc_write(struct __sk_buff *skb)
{
	int i;

	skb->mark += 7;
	skb->priority = 0x10002;
	skb->tc_index = 3;
	skb->tc_classid = 0x20001;
	skb->queue_mapping = 2;
	skb->tstamp += 1000;
	for (i = 0; i < 5; i++)
		skb->cb[i] = skb->cb[i] * 2 + i;
	return skb->tc_index + skb->tc_classid + skb->queue_mapping;
}

SEC("socket")
int socket_write(struct __sk_buff *skb)
{
	skb->cb[4] = skb->cb[0] + 1;
	return skb->cb[4];
}

SEC("tc")
int tc_numbers(struct __sk_buff *skb)
{
	return skb->wire_len * 3 + skb->gso_segs + (__u32)skb->tstamp;
}

/* Reads and writes through pointers. */
SEC("tc")
int tc_packet(struct __sk_buff *skb)
{
	void *data = (void *)(long)skb->data, *end = (void *)(long)skb->data_end;
	struct ethhdr *eth = data;
	struct iphdr *ip = (void *)(eth + 1);
	struct udphdr *udp = (void *)(ip + 1);

	if ((void *)(udp + 1) > end)
		return TC_ACT_SHOT;
	if (eth->h_proto != bpf_htons(ETH_P_IP) || ip->protocol != IPPROTO_UDP)
		return TC_ACT_UNSPEC;
	udp->dest = bpf_htons(bpf_ntohs(udp->dest) + 1);
	eth->h_dest[5] ^= 1;
	return (long)data - (long)skb->data_meta;
}

SEC("cgroup_skb/egress")
int cgroup_packet(struct __sk_buff *skb)
{
	void *data = (void *)(long)skb->data, *end = (void *)(long)skb->data_end;
	struct iphdr *ip = data;

	if ((void *)(ip + 1) > end)
		return 0;
	return ip->version == 4;
}

/* The socket's addresses, which a test run takes from the packet. */
SEC("cgroup_skb/egress")
int cgroup_addresses(struct __sk_buff *skb)
{
	struct seen seen = {};
	__u32 key = 0;

	seen.len = skb->family;
	seen.pkt_type = skb->remote_ip4;
	seen.mark = skb->local_ip4;
	seen.queue_mapping = skb->remote_port;
	seen.protocol = skb->local_port;
	if (skb->family == 10) {
		seen.cb[0] = skb->remote_ip6[0];
		seen.cb[1] = skb->remote_ip6[3];
		seen.cb[2] = skb->local_ip6[0];
		seen.cb[3] = skb->local_ip6[3];
	}
	bpf_map_update_elem(&fields, &key, &seen, 0);
	return 1;
}

SEC("lwt_xmit")
int lwt_fields(struct __sk_buff *skb)
{
	void *data = (void *)(long)skb->data, *end = (void *)(long)skb->data_end;

	if (data + 20 > end)
		return 0;
	note(skb);
	*(__u8 *)data ^= 1;
	return end - data;
}
