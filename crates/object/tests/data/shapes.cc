// Functions of C++: read by tests/prototypes.rs.
#include <string>
#include <vector>

#define KEEP __attribute__((noinline, used))

namespace geo {
struct Point { int x, y; KEEP int sum(int k) const { return x + y + k; } KEEP static int zero(int k) { return k; } };
struct Copied { long n; Copied(const Copied &o); Copied() : n(1) {} };
KEEP Copied::Copied(const Copied &o) : n(o.n + 1) {}
struct Virtual { virtual ~Virtual() {} KEEP virtual long area(short k) { return k; } long n = 3; };
struct Empty {};
enum class Kind : unsigned char { A, B };
KEEP long by_value(Point p, int k) { return p.x + k; }
KEEP long by_copy(Copied c, int k) { return c.n + k; }
KEEP Copied copy(int k) { Copied c; c.n = k; return c; }
KEEP std::string text(std::string s, int k) { return s + char('0' + k); }
KEEP int reference(const Point &p, Point &&q, Kind k) { return p.x + q.y + int(k); }
KEEP int empty(Empty, int k) { return k; }
template <typename... T> KEEP int pack(int a, T... rest) { return (a + ... + int(rest)); }
KEEP int member(int Point::*m, const Point &p) { return p.*m; }
KEEP int method(int (Point::*m)(int) const, const Point &p) { return (p.*m)(1); }
KEEP auto deduced(short a) { return a * 2L; }
KEEP int null(decltype(nullptr), int k) { return k; }
}

int main()
{
	geo::Point p{1, 2};
	geo::Virtual v;
	geo::Copied c;

	return int(geo::by_value(p, 1) + geo::by_copy(c, 1) + geo::copy(2).n + geo::text("a", 1).size() + geo::reference(p, {3, 4}, geo::Kind::B) +
		   geo::empty({}, 1) + geo::pack(1, 2L, char(3)) + geo::member(&geo::Point::x, p) + geo::method(&geo::Point::sum, p) + v.area(2) +
		   p.sum(1) + geo::Point::zero(2) + geo::deduced(2) + geo::null(nullptr, 1)) == 0;
}
