// Constructors and destructors, each of which is compiled in several forms; read by tests/prototypes.rs.
#define KEEP __attribute__((noinline, used))

volatile int sink;
struct Plain { int n; KEEP Plain(int k) : n(k) { sink++; } KEEP ~Plain() { sink++; } };
struct Base { int n; KEEP Base(int k) : n(k) { sink++; } KEEP virtual ~Base() { sink++; } };
struct Middle : virtual Base { int m; KEEP Middle(int k, int l) : Base(k), m(l) { sink++; } KEEP ~Middle() { sink++; } };
struct Last : Middle { KEEP Last(int k) : Base(k), Middle(k, k) { sink++; } KEEP ~Last() { sink++; } };

int main()
{
	Last l(3);
	Middle m(4, 5);
	Plain p(6);
	Base *b = new Last(7);

	delete b;
}
