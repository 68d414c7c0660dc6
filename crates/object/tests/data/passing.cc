// Classes of C++ that are passed in registers or as the address of a copy; the program says which, by
// calling its own functions with an address. Read by tests/prototypes.rs.
#include <atomic>
#include <cstdio>
#include <cstring>
#include <functional>
#include <initializer_list>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <tuple>
#include <utility>
#include <variant>

#define KEEP __attribute__((noinline, used))

const long MARK = 0x5a5a123456789abc;
static long marked[8] = {MARK};

#define TAKE(name, ...) \
	extern "C" KEEP long take_##name(__VA_ARGS__ a, int k) { long n = 0; memcpy(&n, (void *)&a, sizeof a < 8 ? sizeof a : 8); return n; } \
	static struct Say_##name { \
		Say_##name() { auto f = (int (*)(void *, int))take_##name; printf("take_%s %d\n", #name, f(marked, 1) == int(MARK)); } \
	} say_##name;

// Constructors that copy nothing.
struct FromInt { long v; FromInt(const int &x) : v(x) {} };
struct FromView { const char *p; unsigned long n; FromView(const std::string_view &v) : p(v.data()), n(v.size()) {} };
struct FromArray { const char *p; unsigned long n; template <unsigned long K> FromArray(const char (&a)[K]) : p(a), n(K) {} };
struct FromPointer { long v; FromPointer(const FromPointer *p) : v(p->v) {} };
template <typename T> struct Refers { T *p; Refers(T &r) : p(&r) {} };
template <typename T> struct FromOther { T v; FromOther(T x) : v(x) {} FromOther(const FromOther &) = default; template <typename U> FromOther(const FromOther<U> &o) : v(o.v) {} };
template <typename T> struct FromAny { T v; FromAny(T x) : v(x) {} template <typename U> FromAny(U &&o) : v(o.v) {} };
namespace other { struct Twin { long v; }; }
struct Twin { long v; Twin(const other::Twin &t) : v(t.v) {} };
struct Assigned { long v; Assigned &operator=(const Assigned &o) { v = o.v + 1; return *this; } };
TAKE(from_int, FromInt)
TAKE(from_view, FromView)
TAKE(from_array, FromArray)
TAKE(from_pointer, FromPointer)
TAKE(refers, Refers<int>)
TAKE(from_other, FromOther<long>)
TAKE(from_any, FromAny<long>)
TAKE(twin, Twin)
TAKE(assigned, Assigned)

// Constructors that copy or move, and destructors.
struct Copies { long v; Copies(long x) : v(x) {} Copies(const Copies &o) : v(o.v) {} };
struct CopiesAny { long v; CopiesAny(CopiesAny &o) : v(o.v) {} };
struct CopiesVolatile { long v; CopiesVolatile(const volatile CopiesVolatile &o) : v(o.v) {} };
struct Moves { long v; Moves(Moves &&o) : v(o.v) {} };
struct Destroyed { long v; ~Destroyed() { v = 0; } };
template <typename T> struct Template { T v; Template(T x) : v(x) {} Template(const Template &o) : v(o.v) {} };
template <typename T> struct TemplateMoves { T v; TemplateMoves(TemplateMoves<T> &&o) : v(o.v) {} };
struct CopiesRest { long v; CopiesRest(const CopiesRest &o, ...) : v(o.v) {} };
struct Named { long v; using Self = const Named; typedef Self &Reference; Named(Reference o) : v(o.v) {} };
TAKE(copies, Copies)
TAKE(copies_any, CopiesAny)
TAKE(copies_volatile, CopiesVolatile)
TAKE(moves, Moves)
TAKE(destroyed, Destroyed)
TAKE(template, Template<long>)
TAKE(template_twice, Template<Template<int>>)
TAKE(template_moves, TemplateMoves<long>)
TAKE(copies_rest, CopiesRest)
TAKE(named, Named)

// Whether these copy, depends on a default argument.
struct WithDefault { long v; WithDefault(long x) : v(x) {} WithDefault(const WithDefault &o, int k = 0) : v(o.v + k) {} };
struct NeedsMore { long v; NeedsMore(long x) : v(x) {} NeedsMore(const NeedsMore &o, int k) : v(o.v + k) {} };
struct HasBoth { long v; HasBoth(const HasBoth &) = default; HasBoth(const HasBoth &o, int k) : v(o.v + k) {} };
TAKE(with_default, WithDefault)
TAKE(needs_more, NeedsMore)
TAKE(has_both, HasBoth)

// What is defaulted or deleted.
struct Defaulted { long v; Defaulted(const Defaulted &) = default; Defaulted(Defaulted &&) = default; ~Defaulted() = default; };
struct DefaultedLater { long v; DefaultedLater(const DefaultedLater &); };
DefaultedLater::DefaultedLater(const DefaultedLater &) = default;
struct DestroyedLater { long v; ~DestroyedLater(); };
DestroyedLater::~DestroyedLater() = default;
struct Deleted { long v; Deleted(const Deleted &) = delete; Deleted(Deleted &&) = delete; };
struct CopyDeleted { long v; CopyDeleted(const CopyDeleted &) = delete; };
struct MoveDeleted { long v; MoveDeleted(MoveDeleted &&) = delete; };
struct OnlyCopied { long v; OnlyCopied(const OnlyCopied &) = default; OnlyCopied(OnlyCopied &&) = delete; };
struct OnlyMoved { long v; OnlyMoved(OnlyMoved &&) = default; };
struct MoveAssigned { long v; MoveAssigned &operator=(MoveAssigned &&) = default; };
struct HasOnlyMoved { OnlyMoved m; };
struct DestroysOnlyMoved { OnlyMoved m; ~DestroysOnlyMoved() = default; };
struct CopiesOnlyMoved { OnlyMoved m; CopiesOnlyMoved(const CopiesOnlyMoved &) = default; };
struct HasDeleted { Deleted m; };
struct HasRvalue { int &&r; };
struct CopiesRvalue { int &&r; CopiesRvalue(const CopiesRvalue &) = default; };
TAKE(defaulted, Defaulted)
TAKE(defaulted_later, DefaultedLater)
TAKE(destroyed_later, DestroyedLater)
TAKE(deleted, Deleted)
TAKE(copy_deleted, CopyDeleted)
TAKE(move_deleted, MoveDeleted)
TAKE(only_copied, OnlyCopied)
TAKE(only_moved, OnlyMoved)
TAKE(move_assigned, MoveAssigned)
TAKE(has_only_moved, HasOnlyMoved)
TAKE(destroys_only_moved, DestroysOnlyMoved)
TAKE(copies_only_moved, CopiesOnlyMoved)
TAKE(has_deleted, HasDeleted)
TAKE(has_rvalue, HasRvalue)
TAKE(copies_rvalue, CopiesRvalue)

// Members, base classes, virtual ones.
struct HasCopies { Copies c; };
struct HasArray { Template<int> c[2]; HasArray(const HasArray &) = default; };
struct Derived : Copies { Derived(const Derived &) = default; };
struct DerivedPlain : FromInt { using FromInt::FromInt; };
struct Virtual { virtual int f() { return 1; } };
struct DefaultedVirtual { virtual ~DefaultedVirtual() = default; };
struct VirtualBase : virtual Assigned {};
struct DerivedVirtual : Virtual { int f() override { return 2; } };
union Either { long l; Copies c; Either() {} Either(const Either &) = default; };
union Plain { long l; double d; };
struct Outer { struct Inner; long v; };
struct Outer::Inner { long v; Inner(const Inner &o) : v(o.v) {} };
TAKE(has_copies, HasCopies)
TAKE(has_array, HasArray)
TAKE(derived, Derived)
TAKE(derived_plain, DerivedPlain)
TAKE(virtual, Virtual)
TAKE(defaulted_virtual, DefaultedVirtual)
TAKE(virtual_base, VirtualBase)
TAKE(derived_virtual, DerivedVirtual)
TAKE(either, Either)
TAKE(plain, Plain)
TAKE(inner, Outer::Inner)

// The library's.
TAKE(string, std::string)
TAKE(string_view, std::string_view)
TAKE(optional, std::optional<int>)
TAKE(optional_string, std::optional<std::string>)
TAKE(tuple, std::tuple<int, char, double>)
TAKE(tuple_longs, std::tuple<long, long>)
TAKE(pair, std::pair<int, int>)
TAKE(pair_copies, std::pair<int, Template<int>>)
TAKE(reference_wrapper, std::reference_wrapper<int>)
TAKE(unique_ptr, std::unique_ptr<int>)
TAKE(shared_ptr, std::shared_ptr<int>)
TAKE(function, std::function<int(int)>)
TAKE(atomic, std::atomic<long>)
TAKE(variant, std::variant<int, float>)
TAKE(variant_string, std::variant<int, std::string>)
TAKE(initializer_list, std::initializer_list<int>)

int main()
{
	// GCC only declares classes with virtual functions where it makes none of their objects.
	Virtual v; DefaultedVirtual d; VirtualBase b; DerivedVirtual e;
	(void)v, (void)d, (void)b, (void)e;
}
