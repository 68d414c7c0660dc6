/* The types that cases refer to by name: values of maps, objects, prototypes of global functions. Nothing here is run. */
#include "fixture.bpf.h"

#define __tag(x) __attribute__((btf_type_tag(#x)))
#define __decl(x) __attribute__((btf_decl_tag(x)))
#define __contains(type, field) __decl("contains:" #type ":" #field)
#define __arg(x) __decl("arg:" #x)

struct bpf_spin_lock { u32 val; };
struct bpf_timer { u64 opaque[2]; };
struct bpf_wq { u64 opaque[2]; };
struct bpf_list_head { u64 opaque[2]; };
struct bpf_list_node { u64 opaque[3]; };
struct bpf_rb_root { u64 opaque[2]; };
struct bpf_rb_node { u64 opaque[4]; };
struct bpf_refcount { u32 opaque[1]; };
struct bpf_dynptr { u64 opaque[2]; };
struct task_struct { u32 pid; };
struct bpf_cpumask { u32 usage; };
struct bpf_crypto_ctx { u32 usage; };
struct __sk_buff { u32 len; };
struct xdp_md { u32 data; };

/* Values of maps. */
struct plain { u64 a; u64 b; };
struct locked { struct bpf_spin_lock lock; u32 n; u64 x; };
struct late_lock { u64 x; struct bpf_spin_lock lock; u32 n; };
struct timed { u64 n; struct bpf_timer timer; };
struct queued { u64 n; struct bpf_wq work; };
struct keeper { u64 n; struct task_struct __tag(kptr) * task; struct task_struct __tag(kptr_untrusted) * loose; u64 x; };
struct masks { struct bpf_cpumask __tag(kptr) * mask; u64 n; };
struct sealed { u64 n; struct bpf_crypto_ctx __tag(kptr) * ctx; };
struct item { u64 n; struct bpf_list_node l; struct bpf_rb_node r; struct bpf_refcount count; };
struct single { u64 n; struct bpf_rb_node r; };
struct lists { struct bpf_spin_lock lock; u32 n; struct bpf_list_head head __contains(item, l); struct bpf_rb_root root __contains(single, r); };
struct trees { struct bpf_spin_lock lock; u32 n; struct bpf_rb_root root __contains(item, r); };
struct own { u64 n; struct single __tag(kptr) * one; struct plain __tag(kptr) * two; };
struct locked_own { struct bpf_spin_lock lock; u32 n; struct single __tag(kptr) * one; };
struct percpu_own { u64 n; struct plain __tag(percpu_kptr) * each; };

/* Objects. */
struct guarded { u64 n; struct bpf_spin_lock lock; struct bpf_list_head head __contains(item, l); };
struct huge { u64 n[65]; };
struct empty {};
struct pointing { u64 *p; };

struct inner { u32 n; struct bpf_timer timer; };
struct outer { u64 n; struct inner in[2]; struct plain __tag(kptr) * p; u32 bits : 3; };
struct eleven { struct plain __tag(kptr) * p[11]; };
struct twelve { struct plain __tag(kptr) * p[12]; };
/* As deep as fields are looked for, and one deeper. */
struct nested { struct bpf_timer in[2][1][1][1][1][1][1][1]; struct bpf_timer deeper[2][1][1][1][1][1][1][1][1]; struct inner far[1][1][1][1][1][1][1][1]; };
struct arrays { u32 n[4]; struct plain in[2]; };
struct pointers { u64 *p[2]; };

struct brim { u64 n[64]; };
struct holder { u64 n; struct item __tag(kptr) * item; };

enum number { ONE = 1 };
typedef u32 word;

/* What main programs and functions look like. */
int main_prog(void *ctx) { return 0; }
int main_throws(void *ctx) __decl("exception_callback:s_number") { return 0; }
static __noinline int s_number(u32 n) { asm volatile(""); return n; }
static __noinline void s_void(u32 n) { asm volatile(""); }
int g_none(void) { return 0; }
int g_number(u32 n, word w) { s_void(n); return s_number(w); }
int g_enum(enum number n) { return n; }
int g_five(u64 a, u64 b, u64 c, u64 d, u64 e) { return a + b + c + d + e; }
int g_skb(struct __sk_buff *ctx) { return 0; }
int g_xdp(struct xdp_md *ctx) { return 0; }
int g_xdp_plain(struct xdp_md *ctx, struct plain *p __arg(nonnull)) { return 0; }
int g_regs(struct pt_regs *ctx) { return 0; }
int g_tagged(void *ctx __arg(ctx)) { return 0; }
int g_tagged_twice(void *ctx __arg(ctx) __arg(nonnull)) { return 0; }
int g_ctx_nonnull(struct __sk_buff *ctx __arg(nonnull)) { return 0; }
int g_plain(struct plain *p) { return 0; }
int g_nonnull(struct plain *p __arg(nonnull)) { return 0; }
int g_nullable(struct plain *p __arg(nullable)) { return 0; }
int g_dynptr(const struct bpf_dynptr *p) { return 0; }
int g_dynptr_nonnull(struct bpf_dynptr *p __arg(nonnull)) { return 0; }
int g_trusted(struct task_struct *t __arg(trusted)) { return 0; }
int g_trusted_null(struct task_struct *t __arg(trusted) __arg(nullable)) { return 0; }
int g_trusted_nonnull(struct task_struct *t __arg(trusted) __arg(nonnull)) { return 0; }
int g_arena(struct plain *p __arg(arena)) { return 0; }
int g_untrusted(struct task_struct *t __arg(untrusted)) { return 0; }
int g_empty(struct empty *p) { return 0; }
int g_anything(void *p) { return 0; }
int g_number_tagged(u32 n __arg(nonnull)) { return n; }
void g_void(void) {}
int *g_pointer(void) { return 0; }
int g_struct(struct plain p) { return p.a; }

/* LLVM keeps what functions take. */
int keep1(struct plain *a, struct locked *b, struct late_lock *c, struct timed *d, struct queued *e) { return 0; }
int keep2(struct keeper *a, struct item *b, struct single *c, struct lists *d, struct own *e) { return 0; }
int keep3(struct percpu_own *a, struct guarded *b, struct huge *c, struct empty *d, struct pointing *e) { return 0; }
int keep4(struct masks *a, struct task_struct *b, struct bpf_cpumask *c, struct outer *d, struct eleven *e) { return 0; }
int keep5(struct twelve *a, struct arrays *b, struct pointers *c, struct brim *d, struct holder *e) { return 0; }
int keep6(struct locked_own *a, struct nested *b, struct sealed *c, struct trees *d) { return 0; }
