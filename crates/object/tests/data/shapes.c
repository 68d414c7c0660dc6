/* Functions of every shape of prototype: read by tests/prototypes.rs. */
#include <stdarg.h>
#include <stdbool.h>
#include <stddef.h>

#define KEEP __attribute__((noinline, noclone, used))

struct pair { long a, b; };
struct small { int a; short b; };
struct mixed { double d; long n; };
struct floats { double x, y; };
struct big { long a, b, c; };
struct three { int a, b, c; };
struct bits { unsigned a : 3, b : 20; unsigned long c : 50; };
struct nested { struct small s; union { float f; int i; } u; };
struct array { short v[7]; };
struct __attribute__((packed)) packed { char c; long n; };
struct empty {};
union word { int i; float f; };
enum color { RED, GREEN };
typedef unsigned char byte;
typedef struct pair pair_t;
typedef float vec __attribute__((vector_size(16)));
struct wide { long double d; };
struct unknown;

KEEP int two(int a, long b) { return a + (int)b; }
KEEP void nothing(int a) { __asm__ volatile("" ::"r"(a)); }
KEEP int none(void) { return 7; }
KEEP long nine(long a, long b, long c, long d, long e, long f, long g, long h, long i) { return a + b + c + d + e + f + g + h + i; }
KEEP int narrow(bool a, char b, short c, byte d) { return a + b + c + d; }
KEEP double scale(double x, int n, float y) { return x * n + y; }
KEEP pair_t swap(pair_t p, int k) { return (pair_t){ p.b + k, p.a }; }
KEEP int take_small(struct small s, int k) { return s.a + s.b + k; }
KEEP struct mixed mix(struct mixed m, int k) { return (struct mixed){ m.d + k, m.n + k }; }
KEEP struct floats both(struct floats f, int k) { f.x += k; return f; }
KEEP struct big make(int a, struct big b) { b.a += a; return b; }
KEEP int spill(long a, long b, long c, long d, long e, struct pair p, int g) { return (int)(a + b + c + d + e + p.a + p.b + g); }
KEEP int take_bits(struct bits b, int k) { return (int)(b.a + b.b + b.c) + k; }
KEEP int take_nested(struct nested n, int k) { return n.s.a + n.u.i + k; }
KEEP int take_array(struct array v, int k) { return v.v[0] + v.v[6] + k; }
KEEP int take_packed(struct packed p, int k) { return (int)p.n + p.c + k; }
KEEP int take_empty(struct empty e, int k) { (void)e; return k; }
KEEP int take_union(union word w, int k) { return w.i + k; }
KEEP enum color paint(enum color c, const char *name) { return name ? c : RED; }
KEEP const struct unknown *opaque(const struct unknown *u, void *v, int (*f)(int), struct pair **p) { return f && p && v ? u : NULL; }
KEEP long double x87(long double x, int k) { return x + k; }
KEEP int take_wide(struct wide w, int k) { return (int)w.d + k; }
KEEP vec vector(vec v, int k) { return v + (float)k; }
KEEP __int128 huge(__int128 x, int k) { return x + k; }
KEEP _Complex double turn(_Complex double z, int k) { return z + k; }
KEEP int variadic(int n, ...)
{
	va_list l;
	int s = 0;

	va_start(l, n);
	while (n--)
		s += va_arg(l, int);
	va_end(l);
	return s;
}
KEEP int old(a, b) char a; float b; { return a + (int)b; }

static int __attribute__((noinline)) partial(int a, int unused, struct pair *p) { return a + (int)p->a; }

int main(int argc, char **argv)
{
	struct pair p = { argc, 2 };

	return argv && partial(argc, 3, &p) == 0;
}
