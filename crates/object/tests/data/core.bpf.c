// also: clang-16
/* Every question CO-RE can ask, about types that `core_target.bpf.c` has differently. One program needs none. */
#include "fixture.h"

#pragma clang attribute push(__attribute__((preserve_access_index)), apply_to = record)

enum state { IDLE = 1, BUSY = 2, GONE = 3 };
enum wide { FIRST = 1, LAST = 0x100000000ULL };

struct inner {
	int x;
	int y;
};

struct task {
	int pid;
	__u32 grows;
	__u64 shrinks;
	int changes_sign;
	void *parent;
	struct inner inner;
	struct inner many[4];
	int moved_into_anonymous;
	int gone;
	enum state state;
	struct {
		int from_anonymous;
	};
	__u32 bits : 5;
	int sbits : 7;
	__u64 wbits : 33;
	char comm[16];
	int tail[];
};

struct task___old {
	int pid_before;
	int pid;
};

struct two_answers {
	int field;
};

struct missing {
	int field;
};

union view {
	__u32 word;
	__u8 bytes[4];
};

typedef struct {
	int a;
	int b;
} anon_t;

struct same {
	int a;
	struct inner *next;
	int (*call)(int, void *);
};

struct differs {
	int a;
	long b;
};

#pragma clang attribute pop

typedef int (*call_t)(int, void *);

#define reloc(kind, field) __builtin_preserve_field_info(field, kind)
#define OFFSET 0
#define SIZE 1
#define EXISTS 2
#define SIGNED 3
#define LSHIFT 4
#define RSHIFT 5

SEC("socket")
int loads(struct task *t)
{
	__u64 sum = t->pid;

	sum += t->grows;
	sum += t->shrinks;
	sum += (__u64)t->parent;
	sum += t->inner.y;
	sum += t->many[2].y;
	sum += t->moved_into_anonymous;
	sum += t->from_anonymous;
	sum += t->comm[3];
	sum += t->tail[5];
	return sum;
}

SEC("socket")
int element(struct task *t)
{
	return (&t[2])->pid;
}

SEC("socket")
int flavoured(struct task___old *t)
{
	if (reloc(EXISTS, t->pid_before))
		return t->pid_before;
	return t->pid;
}

SEC("socket")
int sign_change(struct task *t)
{
	return t->changes_sign;
}

SEC("socket")
int gone(struct task *t)
{
	if (reloc(EXISTS, t->gone))
		return t->gone;
	return reloc(EXISTS, t->pid);
}

SEC("socket")
int stores(struct task *t)
{
	t->inner.x = 1;
	t->grows = 2;
	return 0;
}

SEC("socket")
int sizes(struct task *t)
{
	return reloc(SIZE, t->grows) + (reloc(SIZE, t->inner) << 4) + (reloc(SIZE, t->comm) << 10) + (reloc(SIZE, t->many[1]) << 20) +
	       reloc(SIGNED, t->changes_sign) + reloc(SIGNED, t->pid) + reloc(SIGNED, t->state);
}

SEC("socket")
int bitfields(struct task *t)
{
	return reloc(OFFSET, t->bits) + reloc(SIZE, t->bits) + reloc(LSHIFT, t->bits) + reloc(RSHIFT, t->bits) + reloc(SIGNED, t->sbits) +
	       reloc(OFFSET, t->sbits) + reloc(LSHIFT, t->sbits) + reloc(RSHIFT, t->sbits) + reloc(OFFSET, t->wbits) +
	       reloc(SIZE, t->wbits) + reloc(LSHIFT, t->wbits) + reloc(RSHIFT, t->wbits);
}

SEC("socket")
int missing_type(struct missing *m)
{
	return reloc(EXISTS, m->field) ? m->field : 7;
}

#define type_info(type, kind) __builtin_preserve_type_info(*(typeof(type) *)0, kind)

SEC("socket")
int types(void *ctx)
{
	return type_info(struct task, 0) + (type_info(struct missing, 0) << 1) + (type_info(struct task, 1) << 2) + type_info(union view, 1) +
	       type_info(struct missing, 1) + type_info(anon_t, 1) + (type_info(enum state, 0) << 20) + (type_info(call_t, 0) << 21) +
	       (type_info(struct same, 2) << 22) + (type_info(struct differs, 2) << 23) + (type_info(struct inner, 2) << 24) +
	       (type_info(enum state, 2) << 25) + (type_info(struct missing, 2) << 26) + (type_info(union view, 2) << 27);
}

SEC("socket")
int type_ids(void *ctx)
{
	return __builtin_btf_type_id(*(struct task *)0, 0) + __builtin_btf_type_id(*(struct inner *)0, 1) +
	       __builtin_btf_type_id(*(struct missing *)0, 1);
}

#define enum_value(type, value, kind) __builtin_preserve_enum_value(*(typeof(type) *)value, kind)

SEC("socket")
int enums(void *ctx)
{
	return enum_value(enum state, BUSY, 1) + enum_value(enum state, BUSY, 0) + (enum_value(enum state, GONE, 0) << 4) +
	       (enum_value(enum wide, LAST, 1) >> 8) + enum_value(enum wide, FIRST, 1);
}

SEC("socket")
int enum_gone(void *ctx)
{
	return enum_value(enum state, GONE, 1);
}

SEC("socket")
int view(union view *v)
{
	return v->word + v->bytes[2];
}

static __noinline int helper(struct task *t)
{
	return t->inner.y;
}

SEC("socket")
int through_function(struct task *t)
{
	return helper(t) + 1;
}

SEC("uprobe")
int needs_none(void *ctx)
{
	return 1;
}

SEC("uprobe")
int bad_ambiguous(struct two_answers *t)
{
	return t->field;
}

char _license[] SEC("license") = "GPL";
