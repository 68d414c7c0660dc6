// Exceptions pass through 1 to 100 traced frames; destructors run on the way, rethrown ones go on.
#include "count.h"
#include <execinfo.h>
#include <stdexcept>

static long destroyed;

struct Guard {
	FN ~Guard();
};

// Out of line, so that it is one symbol.
Guard::~Guard()
{
	destroyed++;
}

extern "C" {
FN long throw_deep(int depth, int original)
{
	COUNT("throw_deep");
	Guard guard;
	if (depth == 0)
		throw std::runtime_error(std::to_string(original));
	return KEEP(throw_deep(depth - 1, original)) + 1;
}

FN long rethrow(int depth)
{
	COUNT("rethrow");
	Guard guard;
	try {
		return KEEP(throw_deep(depth, depth)) + 1;
	} catch (const std::exception &) {
		throw;
	}
}

FN long translate(int depth)
{
	COUNT("translate");
	try {
		return KEEP(rethrow(depth));
	} catch (const std::runtime_error &error) {
		throw long(atoi(error.what()));
	}
}

FN int frames(int depth)
{
	COUNT("frames");
	void *list[256];
	if (depth == 0)
		return backtrace(list, 256);
	return KEEP(frames(depth - 1));
}

FN void never_throws(int depth) noexcept
{
	COUNT("never_throws");
	try {
		translate(depth);
		CHECK(!"no exception");
	} catch (long value) {
		CHECK(value == depth);
	}
}
}

int main()
{
	COUNT("main");
	long expect = 0;
	for (int depth = 1; depth <= 100; depth++) {
		never_throws(depth);
		expect += depth + 2;
		CHECK(destroyed == expect);
		CHECK(frames(depth) > depth);
	}
	printf("exceptions %ld\n", destroyed);
	return 0;
}
