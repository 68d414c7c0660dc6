// Functions in functions and in classes of functions; read by tests/prototypes.rs.
#define KEEP __attribute__((noinline, used))

volatile int sink;

auto outside = [](short a, const char *text) KEEP { sink++; return a + *text; };

namespace space {
KEEP long around(long n)
{
	struct Local {
		int m;
		KEEP int method(int a) { sink++; return a + m; }
		KEEP static long fixed(long b) { sink++; return b; }
		struct Inner { KEEP int deep(char c) { sink++; return c; } };
	} local{3};
	Local::Inner inner;

	for (int i = 0; i < 2; i++) {
		auto block = [&](int q, const char *t) KEEP { sink++; return q + *t + local.m; };
		struct InBlock { KEEP static int at(unsigned u) { sink++; return u; } };
		n += block(7, "x") + InBlock::at(i);
	}
	return local.method(4) + Local::fixed(5) + inner.deep('a') + n;
}
}

int main(int argc, char **argv)
{
	return space::around(argc) + outside(1, argv[0]) == 0;
}
