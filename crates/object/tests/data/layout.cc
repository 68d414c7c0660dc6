#define _Bool bool
#include "layout.h"

namespace space {
struct Base {
	int base_first;
	long base_last;
	virtual ~Base() {}
	static int shared;
};
struct Other {
	char other;
};
class Derived : public Base, public Other {
public:
	int own;
	enum class Kind : unsigned char { A = 1, B = 200 } kind;
	int &reference;
	int Derived::*member;
	int (Derived::*method)(int);
	struct Nested {
		short in_nested;
	} nested;
	Derived(int &r) : reference(r) {}
	int call(int n) { return n; }
};
struct Virtual : virtual Base {
	int in_virtual;
};
template <typename T> struct Box {
	char before;
	T value;
};
int Base::shared;
} // namespace space

static int zero;
space::Derived derived(zero);
space::Virtual with_virtual;
space::Box<int> box;

int main()
{
	common();
#pragma GCC diagnostic push
#pragma GCC diagnostic ignored "-Winvalid-offsetof"
#define Derived space::Derived
	printf("Derived - 0 %zu\n", sizeof(Derived));
	printf("Derived base_first %zu 4\n", offsetof(Derived, base_first));
	printf("Derived base_last %zu 8\n", offsetof(Derived, base_last));
	printf("Derived other %zu 1\n", offsetof(Derived, other));
	printf("Derived own %zu 4\n", offsetof(Derived, own));
	printf("Derived Base.base_last %zu 8\n", offsetof(Derived, base_last));
	printf("space__Derived kind %zu 1\n", offsetof(Derived, kind));
	printf("space__Derived member %zu 8\n", offsetof(Derived, member));
	printf("space__Derived method %zu 16\n", offsetof(Derived, method));
	printf("space__Derived__Nested in_nested 0 2\n");
	printf("Derived nested.in_nested %zu 2\n", offsetof(Derived, nested.in_nested));
	printf("Virtual - 0 %zu\n", sizeof(space::Virtual));
	printf("Virtual in_virtual %zu 4\n", offsetof(space::Virtual, in_virtual));
	printf("Box<int> value %zu 4\n", offsetof(space::Box<int>, value));
	return derived.own + with_virtual.in_virtual + box.before + (outer != 0);
}
