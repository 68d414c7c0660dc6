// also: clang-14 clang-16
/* Types of every kind, as values of maps: what typed printing has to deal with. */
#include "fixture.h"

enum color { RED, GREEN = 5, BLUE = 0x80000000 };
enum signed_color { COLD = -1, WARM };
enum big { SMALL = 1, LARGE = 0x123456789abcULL };

typedef __u32 pid_type;
typedef const pid_type const_pid;
struct forward;

struct bits {
	__u32 low : 3;
	__s32 neg : 5;
	enum color c : 8;
	_Bool yes : 1;
	__u64 wide : 40;
	__u64 : 7;
	__u64 tail : 60;
};

union view {
	__u32 word;
	__u8 bytes[4];
	struct {
		__u16 lo, hi;
	};
};

struct all {
	__s8 s8;
	__u8 u8;
	__s16 s16;
	__u16 u16;
	__s32 s32;
	__u32 u32;
	__s64 s64;
	__u64 u64;
	__int128 s128;
	unsigned __int128 u128;
	_Bool flag;
	char letter;
	char text[12];
	unsigned char raw[4];
	float f;
	double d;
	enum color color;
	enum signed_color signed_color;
	enum big big;
	const_pid pid;
	void *pointer;
	struct forward *opaque;
	int (*function)(int *restrict, ...);
	union view view;
	struct {
		int inside;
		union {
			int left;
			int right;
		};
	};
	struct bits bits;
	int matrix[2][3];
	volatile int last;
	struct {} empty;
	int flexible[];
};

struct {
	__uint(type, HASH);
	__uint(max_entries, 4);
	__type(key, union view);
	__type(value, struct all);
} all SEC(".maps");

struct all first = {
	.s8 = -1,
	.u8 = 255,
	.s16 = -32768,
	.u16 = 65535,
	.s32 = -7,
	.u32 = 4000000000,
	.s64 = -0x7fffffffffffffffLL - 1,
	.u64 = ~0ULL,
	.s128 = -((__int128)1 << 100),
	.u128 = ~(unsigned __int128)0,
	.flag = 1,
	.letter = 'x',
	.text = "hello\n",
	.raw = { 1, 2, 3, 4 },
	.f = 1.5,
	.d = -0.1,
	.color = BLUE,
	.signed_color = COLD,
	.big = LARGE,
	.pid = 77,
	.pointer = (void *)0xffff800012345678,
	.view = { .word = 0x04030201 },
	.inside = 5,
	.right = 6,
	.bits = { .low = 5, .neg = -3, .c = GREEN, .yes = 1, .wide = 0xabcdef0123, .tail = 1ULL << 59 },
	.matrix = { { 1, 2, 3 }, { 4, 5, -6 } },
	.last = -1,
};
__u32 after = 0xabcd;
static volatile const __u16 quiet = 9;
const char *const words[2] = { "one", "two" };

static int tagged __attribute__((btf_decl_tag("a tag")));
int __attribute__((btf_type_tag("user"))) *typed;

SEC("socket")
int use(void *ctx)
{
	union view k = { .word = 1 };
	struct all *v = bpf_map_lookup_elem(&all, &k);

	tagged += quiet + (typed != 0) + (words[after & 1] != 0);
	return v ? v->s32 + first.s32 + after : 0;
}

char _license[] SEC("license") = "GPL";
