/* The library that dlopen.c loads. */
#include "count.h"

FN static long plugin_inner(long x)
{
	COUNT("plugin_inner");
	return x * 2;
}

FN long plugin_twice(long x)
{
	COUNT("plugin_twice");
	return plugin_inner(x) + 1;
}
