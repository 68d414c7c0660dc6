/* Programs that the verifier accepts as Linux does, and that cannot run here: each for a reason of its own. Those called `runs_…` can. */
struct __sk_buff;
typedef unsigned char u8;
typedef unsigned int u32;
typedef unsigned long long u64;

#define SEC(name) __attribute__((section(name), used))
#define __uint(name, val) int(*name)[val]
#define __type(name, val) typeof(val) *name
#define __array(name, val) typeof(val) *name[]
#define __ksym __attribute__((section(".ksyms")))

static void *(*const bpf_map_lookup_elem)(void *map, const void *key) = (void *)1;
static long (*const bpf_map_delete_elem)(void *map, const void *key) = (void *)3;
static long (*const bpf_tail_call)(void *ctx, void *map, u32 index) = (void *)12;
static u32 (*const bpf_get_cgroup_classid)(void *ctx) = (void *)17;
static long (*const bpf_timer_init)(void *timer, void *map, u64 flags) = (void *)169;
static long (*const bpf_timer_start)(void *timer, u64 nsecs, u64 flags) = (void *)171;
static long (*const bpf_sk_release)(void *sock) = (void *)86;
struct bpf_cpumask *bpf_cpumask_create(void) __ksym;
void bpf_cpumask_release(struct bpf_cpumask *mask) __ksym;

struct bpf_timer { u64 opaque[2]; } __attribute__((aligned(8)));
struct elem { struct bpf_timer timer; u64 n; };
struct key { u64 ip; u8 kind; };

struct { __uint(type, 2); __uint(max_entries, 4); __type(key, u32); __type(value, struct elem); } timers SEC(".maps");
struct { __uint(type, 2); __uint(max_entries, 4); __type(key, u32); __type(value, u64); } counts SEC(".maps");
struct { __uint(type, 1); __uint(max_entries, 4); __type(key, struct key); __type(value, u64); } keyed SEC(".maps");
struct { __uint(type, 15); __uint(max_entries, 4); __type(key, u32); __type(value, u32); } sockets SEC(".maps");


int wants_class(struct __sk_buff *skb);
int runs_alone(struct __sk_buff *skb);

struct { __uint(type, 3); __uint(max_entries, 2); __type(key, u32); __array(values, int(void *)); } next SEC(".maps") = {
	.values = { [0] = (void *)&wants_class },
};

struct { __uint(type, 3); __uint(max_entries, 2); __type(key, u32); __array(values, int(void *)); } fine SEC(".maps") = {
	.values = { [0] = (void *)&runs_alone },
};

SEC("tc")
int wants_timer(struct __sk_buff *skb)
{
	u32 k = 0;
	struct elem *e = bpf_map_lookup_elem(&timers, &k);

	if (e && !bpf_timer_init(&e->timer, &timers, 1))
		bpf_timer_start(&e->timer, 1000, 0);
	return 0;
}

SEC("tc")
int wants_class(struct __sk_buff *skb)
{
	return bpf_get_cgroup_classid(skb);
}

SEC("tc")
int wants_sockets(struct __sk_buff *skb)
{
	u32 k = 0;
	void *sock = bpf_map_lookup_elem(&sockets, &k);

	if (sock)
		bpf_sk_release(sock);
	return 0;
}

SEC("syscall")
int wants_cpumask(void *ctx)
{
	struct bpf_cpumask *mask = bpf_cpumask_create();

	if (mask)
		bpf_cpumask_release(mask);
	return 0;
}

SEC("uprobe")
int wants_padding(u64 *ctx)
{
	struct key k = { .ip = ctx[0], .kind = 1 };

	bpf_map_delete_elem(&keyed, &k);
	return 0;
}

SEC("uprobe")
int wants_no_test(void *ctx)
{
	u32 k = 0;
	u64 *n = bpf_map_lookup_elem(&counts, &k);

	*n += 1;
	return 0;
}

SEC("tc")
int wants_what_follows(struct __sk_buff *skb)
{
	bpf_tail_call(skb, &next, 0);
	return 0;
}

SEC("mystery/section")
int wants_a_type(void *ctx)
{
	return 0;
}

SEC("tc")
int runs_with_what_follows(struct __sk_buff *skb)
{
	bpf_tail_call(skb, &fine, 0);
	return 0;
}

SEC("?tc")
int runs_alone(struct __sk_buff *skb)
{
	return 1;
}

SEC("kprobe/vfs_read")
int runs_on_given_registers(void *ctx)
{
	return 0;
}

char LICENSE[] SEC("license") = "GPL";
