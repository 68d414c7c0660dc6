// Calls of every kind: many arguments, variadic, structures by value, floating point, callbacks, nested functions.
#include <complex.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#define N __attribute__((noinline, noclone))
struct big { long words[50]; };
struct pair { long a, b; };
struct mixed { double d; long l; };
struct small { char c[3]; };
N long sum(int n, ...) { va_list l; va_start(l, n); long s = 0; for (int i = 0; i < n; i++) s += (i + 1) * va_arg(l, long); va_end(l); return s; }
N double sumd(int n, ...) { va_list l; va_start(l, n); double s = 0; for (int i = 0; i < n; i++) s += (i + 1) * va_arg(l, double); va_end(l); return s; }
N long vsum(int n, va_list l) { long s = 0; for (int i = 0; i < n; i++) s = s * 3 + va_arg(l, int); return s; }
N long vhand(int n, ...) { va_list l; va_start(l, n); long s = vsum(n, l); va_end(l); return s; }
N struct big make(long x) { struct big b; for (int i = 0; i < 50; i++) b.words[i] = x * i; return b; }
N long use(struct big b, long k) { return b.words[k] + b.words[49]; }
N long pass(long k, struct big b) { return use(b, k) + k; }
N long walk(struct big b) { long s = 0; for (long *p = b.words; p < b.words + 50; p++) s = s * 7 + *p; return s; }
N struct pair swap(struct pair p) { return (struct pair){p.b, p.a}; }
N struct mixed mix(struct mixed m, double x) { return (struct mixed){m.l * x, (long)m.d}; }
N struct small tiny(struct small s) { s.c[0]++; return s; }
N long double ld(long double a, long double b) { return a * b + 1; }
N float _Complex cf(float _Complex a) { return a * a; }
N double _Complex cd(double _Complex a, double _Complex b) { return a * b; }
N double many(double a, double b, double c, double d, double e, double f, double g, double h, double i, double j, int k, int l) { return a + 2 * b + 3 * c + 4 * d + 5 * e + 6 * f + 7 * g + 8 * h + 9 * i + 10 * j + k * l; }
N static long chain(long a, long b, long c, long d, long e, long f, long g, long h) { return a - b + c - d + e - f + g - h; }
N long tail(long a, long b, long c, long d, long e, long f, long g, long h) { return chain(h, g, f, e, d, c, b, a); }
N long same(long a, long b, long c, long d, long e, long f, long g, long h) { return chain(a, b, c, d, e, f, g, h); }
N int compare(const void *a, const void *b) { return *(const int *)a - *(const int *)b; }
N long fib(long n) { return n < 2 ? n : fib(n - 1) + fib(n - 2); }
N long ack(long m, long n) { return m == 0 ? n + 1 : n == 0 ? ack(m - 1, 1) : ack(m - 1, ack(m, n - 1)); }
N long apply(long (*f)(long), long x) { return f(x) + f(x + 1); }
N long nested(long y) { long inner(long x) { return x * y + y; } return apply(inner, 3); }
N long ring2(long n, long s);
N long ring1(long n, long s) { return n == 0 ? s : ring2(n - 1, s + n); }
N long ring3(long n, long s) { return n == 0 ? s : ring1(n - 1, s ^ n); }
N long ring2(long n, long s) { return n == 0 ? s : ring3(n - 1, s * 3); }
N void vla(int n, char *out) { char text[n]; memset(text, 'a' + n % 26, n); memcpy(out, text, n); }
N int ret0(void) { return 0; }
N static int leaf(int x) { return x * 5; }
N int ipa(int a, int b) { int r = leaf(a); return r + leaf(b) + a + b; }
#ifdef __AVX__
typedef double v4 __attribute__((vector_size(32)));
N v4 vadd(v4 a, v4 b, v4 c) { return a * b + c; }
#endif
int main(void) {
    char text[4096], *p = text;
    p += sprintf(p, "%d %d %d %d %d %d %d %d %d %d %d %d %d %d %d %d %d %d %d %d %d %d %d %d %d %d %d %d %d %d %d %d %d %d %d %d %d %d %d %g\n", 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15, 16, 17, 18, 19, 20, 21, 22, 23, 24, 25, 26, 27, 28, 29, 30, 31, 32, 33, 34, 35, 36, 37, 38, 39, 0.25);
    printf("%s", text);
    printf("%ld\n", sum(20, 1L, 2L, 3L, 4L, 5L, 6L, 7L, 8L, 9L, 10L, 11L, 12L, 13L, 14L, 15L, 16L, 17L, 18L, 19L, 20L));
    printf("%g\n", sumd(14, 1., 2., 3., 4., 5., 6., 7., 8., 9., 10., 11., 12., 13., 14.));
    printf("%ld\n", vhand(12, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12));
    struct big b = make(7);
    printf("%ld %ld %ld\n", use(b, 3), pass(4, b), walk(b));
    struct pair q = swap((struct pair){1, 2});
    struct mixed m = mix((struct mixed){2.5, 4}, 1.5);
    struct small s = tiny((struct small){{1, 2, 3}});
    printf("%ld %ld %g %ld %d\n", q.a, q.b, m.d, m.l, s.c[0]);
    float _Complex c = cf(1 + 2 * I); double _Complex d = cd(1 + 2 * I, 3 - I);
    printf("%Lg %g %g %g %g\n", ld(1.5L, 3.0L), crealf(c), cimagf(c), creal(d), cimag(d));
    printf("%g %ld %ld\n", many(1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12), tail(1, 2, 3, 4, 5, 6, 7, 80), same(1, 2, 3, 4, 5, 6, 7, 80));
    int v[100]; for (int i = 0; i < 100; i++) v[i] = (i * 37) % 101;
    qsort(v, 100, sizeof *v, compare);
    for (int i = 1; i < 100; i++) if (v[i] < v[i - 1]) puts("not sorted");
    printf("%ld %ld %ld %ld\n", fib(20), ack(2, 9), nested(5), ring1(100000, 1));
    char out[100]; for (int i = 1; i < 100; i++) vla(i, out);
    printf("%.5s %d %d\n", out, ret0(), ipa(3, 4));
#ifdef __AVX__
    v4 r = vadd((v4){1, 2, 3, 4}, (v4){5, 6, 7, 8}, (v4){9, 10, 11, 12});
    printf("%g %g %g %g\n", r[0], r[1], r[2], r[3]);
#endif
    return 7;
}
