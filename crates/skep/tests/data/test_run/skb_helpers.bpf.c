/* Helpers of programs that see a socket buffer. Their arguments are the words of `cb`. */
#include "test_run.bpf.h"

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__type(key, __u32);
	__type(value, __u64);
	__uint(max_entries, 8);
} out SEC(".maps");

/* Adds to a word of the result. */
static __always_inline void note(__u32 word, __u64 value)
{
	__u64 *sum = bpf_map_lookup_elem(&out, &word);

	if (sum)
		*sum = *sum * 31 + value;
}

static __always_inline void note_shape(struct __sk_buff *skb)
{
	note(1, skb->len);
	note(2, (long)skb->data_end - (long)skb->data);
	note(3, skb->protocol);
	note(4, skb->vlan_present);
	note(4, skb->vlan_tci);
	note(5, skb->pkt_type);
}

#define LOAD(name, section)                                                                                                      \
	SEC(section)                                                                                                             \
	int name(struct __sk_buff *skb)                                                                                          \
	{                                                                                                                        \
		__u32 buf[6] = { 1, 2, 3, 4, 5, 6 };                                                                             \
		long r = bpf_skb_load_bytes(skb, skb->cb[0], buf, sizeof(buf));                                                  \
		note(0, r);                                                                                                      \
		for (int i = 0; i < 6; i++)                                                                                      \
			note(1, buf[i]);                                                                                         \
		note(0, bpf_skb_load_bytes_relative(skb, skb->cb[1], buf, 9, skb->cb[2]));                                       \
		for (int i = 0; i < 6; i++)                                                                                      \
			note(2, buf[i]);                                                                                         \
		return r == 0;                                                                                                        \
	}
LOAD(tc_load, "tc")
LOAD(socket_load, "socket")
LOAD(cgroup_load, "cgroup_skb/ingress")

SEC("tc")
int tc_store(struct __sk_buff *skb)
{
	__u8 bytes[] = "stored bytes";
	long r = bpf_skb_store_bytes(skb, skb->cb[0], bytes, 11, skb->cb[1]);

	note(0, r);
	note_shape(skb);
	return r;
}

SEC("tc")
int tc_l3(struct __sk_buff *skb)
{
	long r = bpf_l3_csum_replace(skb, skb->cb[0], skb->cb[1], skb->cb[2], skb->cb[3]);

	note(0, r);
	return r;
}

SEC("tc")
int tc_l4(struct __sk_buff *skb)
{
	long r = bpf_l4_csum_replace(skb, skb->cb[0], skb->cb[1], skb->cb[2], skb->cb[3]);

	note(0, r);
	return r;
}

/* One digit of cb[2] after the other: 1 pushes a tag, 2 takes one away. */
SEC("tc")
int tc_vlan(struct __sk_buff *skb)
{
	__u32 todo = skb->cb[2], tci = skb->cb[1];

	for (int i = 0; i < 6 && todo; i++) {
		if (todo % 10 == 1)
			note(0, bpf_skb_vlan_push(skb, skb->cb[0], tci++));
		else
			note(0, bpf_skb_vlan_pop(skb));
		note_shape(skb);
		todo /= 10;
	}
	return 0;
}

SEC("tc")
int tc_tail(struct __sk_buff *skb)
{
	long r = bpf_skb_change_tail(skb, skb->cb[0], skb->cb[1]);

	note(0, r);
	note_shape(skb);
	return r;
}

SEC("tc")
int tc_head(struct __sk_buff *skb)
{
	long r = bpf_skb_change_head(skb, skb->cb[0], skb->cb[1]);

	note(0, r);
	note_shape(skb);
	return r;
}

SEC("tc")
int tc_room(struct __sk_buff *skb)
{
	__u64 flags = skb->cb[2] | (__u64)skb->cb[3] << 32;
	long r = bpf_skb_adjust_room(skb, skb->cb[0], skb->cb[1], flags);

	note(0, r);
	note_shape(skb);
	if (skb->cb[4]) {
		note(0, bpf_skb_adjust_room(skb, skb->cb[4], skb->cb[1], flags));
		note_shape(skb);
	}
	return r;
}

SEC("tc")
int tc_pull(struct __sk_buff *skb)
{
	long r = bpf_skb_pull_data(skb, skb->cb[0]);

	note(0, r);
	note_shape(skb);
	return r;
}

/* One digit of cb[0] after the other, as level. */
SEC("tc")
int tc_csum(struct __sk_buff *skb)
{
	__u32 todo = skb->cb[0];

	for (int i = 0; i < 8; i++) {
		note(0, bpf_csum_level(skb, todo % 10));
		note(0, bpf_csum_level(skb, 0));
		todo /= 10;
	}
	note(1, bpf_csum_update(skb, skb->cb[1]));
	return 0;
}

SEC("tc")
int tc_fields(struct __sk_buff *skb)
{
	note(0, bpf_skb_change_type(skb, skb->cb[0]));
	note_shape(skb);
	bpf_set_hash(skb, skb->cb[1]);
	note(1, bpf_get_hash_recalc(skb));
	note(1, skb->hash);
	bpf_set_hash_invalid(skb);
	note(1, skb->hash);
	note(0, bpf_skb_ecn_set_ce(skb));
	note(2, bpf_skb_set_tstamp(skb, skb->cb[2], skb->cb[3]));
	note(2, skb->tstamp);
	note(2, skb->tstamp_type);
	note(3, bpf_redirect(skb->cb[0], skb->cb[4]));
	return bpf_redirect(skb->cb[0], skb->cb[4]);
}

SEC("tc")
int tc_mtu(struct __sk_buff *skb)
{
	__u32 len = skb->cb[1];
	long r = bpf_check_mtu(skb, skb->cb[0], &len, skb->cb[2], skb->cb[3]);

	note(0, r);
	note(1, len);
	return r;
}

