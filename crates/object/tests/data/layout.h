/* Structures of every kind, and what the compiler itself says of them: included by a C and a C++ program that print a line
 * `TYPE PATH OFFSET SIZE` for each member. */
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>

typedef unsigned int number;
typedef const volatile number *const pointer;
enum color { RED, GREEN = 5, BLUE = 0x7fffffff };
enum sign { COLD = -3, WARM = 3 };
enum wide { SMALL = 1, LARGE = 0x123456789abcLL };

struct forward;

struct inner {
	char c;
	short s;
	double d;
};

struct outer {
	int first;
	struct inner one;
	struct inner many[3];
	int matrix[4][5][2];
	char big[65536];
	union {
		int left;
		float right;
		struct {
			char deep;
			long deeper;
		};
	};
	struct {
		int x, y;
	} named;
	pointer p;
	struct forward *f;
	struct outer *next;
	int (*call)(struct outer *, long);
	enum color color;
	enum sign sign;
	enum wide wide;
	_Bool flag;
	unsigned char byte;
	__int128 huge;
	long double ld;
	char tail[];
};

struct packed {
	char a;
	int b;
	char c;
	long d;
} __attribute__((packed));

struct aligned {
	char a;
	int b __attribute__((aligned(64)));
};

struct bits {
	unsigned a : 3;
	int b : 7;
	unsigned long c : 33;
	char d;
	unsigned e : 1;
	unsigned : 0;
	unsigned f : 32;
	unsigned char g : 2;
	enum color h : 8;
};

struct packed_bits {
	unsigned char a : 5;
	unsigned long b : 50;
	unsigned c : 9;
} __attribute__((packed));

union view {
	uint64_t word;
	uint8_t bytes[8];
	struct inner inner;
};

#define SIZE(type) printf(#type " - 0 %zu\n", sizeof(type))
#define M(type, member) printf(#type " " #member " %zu %zu\n", offsetof(type, member), sizeof(((type *)0)->member))

/* Where a bit field lies: the bits that change when it is filled with ones. */
#define B(type, member)                                                                                \
	do {                                                                                           \
		type v;                                                                                \
		unsigned char *bytes = (unsigned char *)&v;                                            \
		int first = -1, count = 0;                                                             \
		__builtin_memset(&v, 0, sizeof(v));                                                    \
		v.member = (__typeof__(v.member + 0))-1;                                               \
		for (size_t i = 0; i < sizeof(v) * 8; i++)                                             \
			if (bytes[i / 8] >> i % 8 & 1) {                                               \
				if (first < 0)                                                         \
					first = (int)i;                                                \
				count++;                                                               \
			}                                                                              \
		printf(#type " " #member " bit %d %d\n", first, count);                                \
	} while (0)

static void common(void)
{
	SIZE(struct inner);
	M(struct inner, c);
	M(struct inner, s);
	M(struct inner, d);
	SIZE(struct outer);
	M(struct outer, first);
	M(struct outer, one);
	M(struct outer, one.d);
	M(struct outer, many);
	M(struct outer, many[2].s);
	M(struct outer, matrix);
	M(struct outer, matrix[3]);
	M(struct outer, matrix[3][4]);
	M(struct outer, matrix[3][4][1]);
	M(struct outer, big);
	M(struct outer, left);
	M(struct outer, right);
	M(struct outer, deep);
	M(struct outer, deeper);
	M(struct outer, named.y);
	M(struct outer, p);
	M(struct outer, f);
	M(struct outer, next);
	M(struct outer, call);
	M(struct outer, color);
	M(struct outer, sign);
	M(struct outer, wide);
	M(struct outer, flag);
	M(struct outer, byte);
	M(struct outer, huge);
	M(struct outer, ld);
	SIZE(struct packed);
	M(struct packed, b);
	M(struct packed, c);
	M(struct packed, d);
	SIZE(struct aligned);
	M(struct aligned, b);
	SIZE(struct bits);
	M(struct bits, d);
	B(struct bits, a);
	B(struct bits, b);
	B(struct bits, c);
	B(struct bits, e);
	B(struct bits, f);
	B(struct bits, g);
	SIZE(struct packed_bits);
	B(struct packed_bits, a);
	B(struct packed_bits, b);
	B(struct packed_bits, c);
	SIZE(union view);
	M(union view, bytes);
	M(union view, inner.d);
}

struct outer *outer;
struct packed packed;
struct aligned aligned;
struct bits bits;
struct packed_bits packed_bits;
union view view;
