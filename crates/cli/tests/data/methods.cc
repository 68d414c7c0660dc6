// Methods and objects of C++, called and told about; with -DLIBRARY a library, with -DPLUGIN one that is opened.
#include <cstdio>
#include <dlfcn.h>
#include <string>

#define KEEP __attribute__((noinline, noclone, used))
#define SAY(name, v) std::printf(#name " %lld\n", (long long)(v))

#if defined(LIBRARY) || defined(PLUGIN)
extern "C" KEEP int LIBRARY_FUNCTION(short a, const char *b) { return a + b[0]; }
#else
extern "C" int library_add(short a, const char *b);

struct Counter {
	long n;
	KEEP long add(int k) { return n += k; }
	KEEP static long twice(int k) { return 2L * k; }
	KEEP virtual double half(int k) { return (n + k) / 2.0; }
};
struct Heavy {
	long n;
	explicit Heavy(long n) : n(n) {}
	Heavy(const Heavy &o) : n(o.n) {}
	~Heavy() { n = 0; }
};
KEEP long weigh(Heavy h, int k) { return h.n + k; }
KEEP std::string label(int k, long m) { return std::string("label ") + char('0' + k + m); }

int main(int argc, char **argv)
{
	Counter c{};

	c.n = 30;
	SAY(add_this, &c);
	SAY(add_k, 12);
	SAY(add_ret, c.add(12));
	SAY(twice_k, -4);
	SAY(twice_ret, Counter::twice(-4));
	SAY(half_this, &c);
	SAY(half_got, c.half(8));
	SAY(weigh_n, 50);
	SAY(weigh_k, 6);
	SAY(weigh_ret, weigh(Heavy(50), 6));
	SAY(label_k, 3);
	SAY(label_m, 4);
	SAY(label_got, label(3, 4).size());
	SAY(lib_a, -20);
	SAY(lib_ret, library_add(-20, "A"));
	if (argc > 1) {
		auto f = reinterpret_cast<int (*)(short, const char *)>(dlsym(dlopen(argv[1], RTLD_NOW), "plugin_add"));

		SAY(plugin_got, f(1, "B"));
	}
	std::fflush(stdout);
	return 0;
}
#endif
