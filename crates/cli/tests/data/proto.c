/* Calls functions of every shape of prototype, and says what they were called with and what they returned. */
#include <stdarg.h>
#include <stdbool.h>
#include <stdio.h>

#ifdef __clang__
#define KEEP __attribute__((noinline, used, optnone)) /* or a constant result makes calls go */
#else
#define KEEP __attribute__((noinline, noclone, noipa, used))
#endif
#define SAY(name, v) printf(#name " %lld\n", (long long)(v))

struct pair { long a, b; };
struct mixed { double d; long n; };
struct big { long a, b, c; };
struct small { int a; short b; };
struct later { long n; };

KEEP int none(void) { return -7; }
KEEP int two(int a, long b) { return a - (int)b; }
KEEP long six(long a, long b, long c, long d, long e, long f) { return a + b + c + d + e - f; }
KEEP long nine(long a, long b, long c, long d, long e, long f, long g, long h, long i) { return a + b + c + d + e + f + g * h - i; }
KEEP signed char narrow(bool a, signed char b, short c, unsigned char d) { return (signed char)(a + b + c + d); }
static volatile int sink;
KEEP void nothing(int a) { sink = a; sink = a; }
KEEP double scale(double x, int n, float y) { return x * n + y; }
KEEP struct pair swap(struct pair p, int k) { return (struct pair){ p.b + k, p.a - k }; }
KEEP struct mixed mix(struct mixed m, int k) { return (struct mixed){ m.d + k, m.n - k }; }
KEEP struct big make(int a, struct big b, int c) { b.a += a - c; return b; }
KEEP int spill(long a, long b, long c, long d, long e, struct pair p, int g) { return (int)(a + b + c + d + e + p.a - p.b + g); }
KEEP int take(struct small s, int k) { return s.a - s.b + k; }
KEEP int decide(int a, int b) { return a * b; }
KEEP int pointer(const struct later *p, int k) { return (int)p->n + k; }
KEEP int other(const struct later *p, int k) { return (int)p->n - k; }
KEEP int variadic(int n, ...)
{
	va_list l;
	int s = 0;

	va_start(l, n);
	for (int i = 0; i < n; i++)
		s += va_arg(l, int);
	va_end(l);
	return s;
}

int main(void)
{
	struct pair p = { -11, 22 }, q;
	struct mixed m = { 1.5, -33 };
	struct big b = { 1, 2, 3 };
	struct small s = { -5, 6 };
	struct later l = { 40 };

	SAY(none_ret, none());
	SAY(two_a, -3);
	SAY(two_b, 1L << 40);
	SAY(two_ret, two(-3, 1L << 40));
	SAY(six_f, -6);
	SAY(six_ret, six(1, 2, 3, 4, 5, -6));
	SAY(nine_a, 1);
	SAY(nine_g, -7);
	SAY(nine_i, 9);
	SAY(nine_ret, nine(1, 2, 3, 4, 5, 6, -7, 8, 9));
	SAY(narrow_a, true);
	SAY(narrow_b, -2);
	SAY(narrow_c, -300);
	SAY(narrow_d, 250);
	SAY(narrow_ret, narrow(true, -2, -300, 250));
	nothing(77);
	SAY(nothing_a, 77);
	SAY(scale_n, 12);
	SAY(scale_got, scale(2.5, 12, 1.0f));
	q = swap(p, 5);
	SAY(swap_a, -11);
	SAY(swap_b, 22);
	SAY(swap_k, 5);
	SAY(swap_ret0, q.a);
	SAY(swap_ret1, q.b);
	m = mix(m, 3);
	SAY(mix_n, -33);
	SAY(mix_k, 3);
	SAY(mix_ret, m.n);
	b = make(100, b, 40);
	SAY(make_a, 100);
	SAY(make_c, 40);
	SAY(make_got, b.a);
	SAY(spill_pa, -11);
	SAY(spill_pb, 22);
	SAY(spill_g, 6);
	SAY(spill_ret, spill(1, 2, 3, 4, 5, p, 6));
	SAY(take_a, -5);
	SAY(take_b, 6);
	SAY(take_k, 9);
	SAY(take_ret, take(s, 9));
	SAY(variadic_n, 3);
	SAY(variadic_ret, variadic(3, 10, 20, -5));
	SAY(decide_a, 6);
	SAY(decide_got, decide(6, 7));
	SAY(pointer_ret, pointer(&l, 2));
	SAY(other_ret, other(&l, 2));
	return 0;
}
