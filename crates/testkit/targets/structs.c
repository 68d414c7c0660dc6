/* Structures by value, in registers and in memory, as arguments and as results. */
#include "count.h"

struct small { int a, b; };
struct pair { long a, b; };
struct mixed { double d; long l; };
struct doubles { double a, b; };
struct large { long v[9]; };
struct huge { long v[200]; };

FN static struct small make_small(int a, int b) { COUNT("make_small"); return (struct small){a, b}; }
FN static struct pair make_pair(struct small s) { COUNT("make_pair"); return (struct pair){s.b, s.a}; }
FN static struct mixed make_mixed(struct pair p) { COUNT("make_mixed"); return (struct mixed){(double)p.a, p.b}; }
FN static struct doubles make_doubles(struct mixed m) { COUNT("make_doubles"); return (struct doubles){m.d, (double)m.l}; }

FN static struct large make_large(long first, struct doubles d)
{
	COUNT("make_large");
	struct large made;
	for (int i = 0; i < 9; i++)
		made.v[i] = first + i + (long)d.a - (long)d.b;
	return made;
}

FN static long sum_large(long before, struct large by_value, struct small s, struct large second)
{
	COUNT("sum_large");
	long sum = before + s.a;
	for (int i = 0; i < 9; i++)
		sum += by_value.v[i] * second.v[8 - i];
	by_value.v[0] = -1; /* the callee's copy */
	__asm__ volatile("" : : "r"(&by_value) : "memory");
	return sum;
}

/* 1,600 bytes of arguments on the stack: more than a tracer would copy by guessing. */
FN static long sum_huge(struct huge h, int step)
{
	COUNT("sum_huge");
	long sum = 0;
	for (int i = 0; i < 200; i += step)
		sum += h.v[i];
	return sum;
}

int main(void)
{
	COUNT("main");
	struct huge h;
	for (int i = 0; i < 200; i++)
		h.v[i] = i;
	long total = 0;
	for (int i = 0; i < 503; i++) {
		struct pair p = make_pair(make_small(i, i + 1));
		CHECK(p.a == i + 1 && p.b == i);
		struct doubles d = make_doubles(make_mixed(p));
		CHECK(d.a == i + 1 && d.b == i);
		struct large l = make_large(i, d);
		CHECK(l.v[0] == i + 1 && l.v[8] == i + 9);
		struct large before = l;
		total += sum_large(1, l, (struct small){2, 3}, l);
		CHECK(!memcmp(&before, &l, sizeof l));
		CHECK(sum_huge(h, 1) == 19900);
		CHECK(sum_huge(h, 2) == 9900);
	}
	printf("structs %ld\n", total);
	return 0;
}
