/* Types of a target that stands for the kernel: what pointers in tracing programs lead to. Nothing here is run. */
#include "fixture.bpf.h"

#define __tag(x) __attribute__((btf_type_tag(#x)))

struct cgroup { u64 id; struct kernfs_node *kn; };
struct kernfs_node { u64 id; };
struct css_set { struct cgroup *dfl_cgrp; u64 n; };
struct cgroup_subsys_state { struct cgroup *cgroup; };
struct inode { u64 ino; };
struct file { u64 flags; struct inode *f_inode; };
struct mm_struct { struct file *exe_file; u64 n; };
struct vm_area_struct { struct mm_struct *vm_mm; struct file *vm_file; u64 start; };
struct cpumask { u64 bits[4]; };
struct bpf_cpumask { struct cpumask mask; u32 usage; };
struct kmem_cache { u64 size; };
struct small { u16 a; u8 b; u32 c; };
struct tail { u32 len; struct small rest[]; };
struct numbers { u32 len; u32 rest[]; };

union either { u64 number; struct small part; };
struct task_struct {
	u32 pid; /* 0 */
	u32 low : 3, high : 5; /* 4 */
	struct task_struct *real_parent; /* 8 */
	struct css_set *cgroups; /* 16 */
	struct mm_struct *mm; /* 24 */
	struct mm_struct __tag(rcu) * rcu_mm; /* 32 */
	struct small __tag(percpu) * each; /* 40 */
	struct small __tag(user) * far; /* 48 */
	char comm[6]; /* 56 */
	struct small in; /* 64 */
	struct small many[3]; /* 72 */
	struct small *table[2]; /* 96 */
	u64 (*call)(void); /* 112 */
	union either u; /* 120 */
	u32 grid[2][2]; /* 128 */
	struct small *rows[2][2]; /* 144 */
	u64 last; /* 176 */
};
struct sock_common { u64 n; };
struct bpf_iter__tcp { struct bpf_iter_meta *meta; struct sock_common *sk_common; };
struct sock { struct sock_common common; };
struct tcp_sock { struct sock sk; };
struct socket { u64 n; struct sock *sk; };
struct seq_file { u64 n; };
struct bpf_iter_meta { struct seq_file *seq; u64 session; };
struct bpf_iter__task { struct bpf_iter_meta *meta; struct task_struct *task; };
struct xdp_buff { u64 n; };
struct sk_buff { struct sock *sk; u64 n; };
struct bpf_map { u64 n; struct small *ops; };
struct bpf_crypto_ctx { u64 n; };

/* What tracing programs hang on. */
int traced(struct task_struct *t, int n, void *p, struct small __tag(user) * s) { return 0; }
struct task_struct *gives_task(u64 n) { return 0; }
int bpf_iter_task(struct bpf_iter_meta *meta, struct task_struct *task) { return 0; }
int bpf_iter_tcp(struct bpf_iter_meta *meta, struct sock_common *sk, u32 uid) { return 0; }
typedef void (*btf_trace_waking)(void *data, struct task_struct *t, int n);
typedef void (*btf_trace_kfree_skb)(void *data, struct sk_buff *skb, void *where, struct sock *sk);

struct masked { u64 n; struct cpumask mask; struct cpumask masks[2]; u64 m; };
struct bits { u8 first; u32 : 0; u32 wide : 20, rest : 12; u64 last; };
struct one { u32 len; u32 rest[1]; };
struct two { u32 len; u32 rest[2]; };
typedef void (*btf_trace_masking)(void *data, struct masked *m);
int keep6(btf_trace_masking a, struct one *b, struct two *c, struct bits *d) { return 0; }

/* LLVM keeps what functions take. */
int keep1(struct cgroup *a, struct kernfs_node *b, struct css_set *c, struct cgroup_subsys_state *d, struct inode *e) { return 0; }
int keep2(struct file *a, struct mm_struct *b, struct vm_area_struct *c, struct cpumask *d, struct bpf_cpumask *e) { return 0; }
int keep3(struct kmem_cache *a, struct small *b, struct tail *c, struct numbers *d, struct sock *e) { return 0; }
int keep4(struct tcp_sock *a, struct socket *b, struct seq_file *c, struct bpf_iter__task *d, struct xdp_buff *e) { return 0; }
int keep5(struct sk_buff *a, struct bpf_map *b, struct bpf_crypto_ctx *c, btf_trace_waking d, btf_trace_kfree_skb e) { return 0; }
