// also: clang-14 clang-16
/* The types that `core.bpf.c` is fitted to: the same names, other places, widths and values. */
#include "fixture.h"

enum state { IDLE = 1, BUSY = 20, NEW = 7 };
enum wide { FIRST = 9, LAST = 0x700000000ULL };

struct inner {
	long first;
	int y;
	int x;
};

struct task {
	__u64 flags;
	int pid;
	__u64 grows;
	__u32 shrinks;
	unsigned long changes_sign;
	void *parent;
	struct inner many[8];
	struct inner inner;
	union {
		int other;
		struct {
			long before;
			int moved_into_anonymous;
		};
	};
	int from_anonymous;
	enum state state;
	__u32 pad : 30;
	__u32 bits : 6;
	long long sbits : 9;
	__u64 wbits : 40;
	char comm[32];
	int tail[];
};

struct two_answers {
	int field;
};

struct two_answers___other {
	long before;
	int field;
};

union view {
	__u8 bytes[8];
	__u32 word;
};

typedef struct {
	int z;
	int b;
	int a;
} anon_t;

struct same {
	int extra;
	int (*call)(int, void *);
	struct inner *next;
	int a;
};

struct differs {
	int a;
	int b;
};

typedef int (*call_t)(int, void *);

struct task t;
struct two_answers a;
struct two_answers___other b;
union view v;
anon_t n;
struct same s;
struct differs d;
call_t c;
enum wide w;

SEC("socket")
int nothing(void *ctx)
{
	return t.pid + a.field + b.field + v.word + n.a + s.a + d.a + (c != 0) + w;
}

char _license[] SEC("license") = "GPL";
