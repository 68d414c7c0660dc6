/* A small library comes and goes, at whatever address; its functions are called while it is there. */
#include "count.h"
#include <dlfcn.h>

FN static long use(const char *path, long x)
{
	COUNT("use");
	void *library = dlopen(path, RTLD_NOW | RTLD_LOCAL);
	if (!library)
		fprintf(stderr, "%s\n", dlerror());
	CHECK(library);
	long (*twice)(long) = (long (*)(long))dlsym(library, "plugin_twice");
	CHECK(twice);
	for (int i = 0; i < 7; i++)
		x = twice(x) % 1000003;
	CHECK(!dlclose(library));
	return x;
}

int main(int argc, char **argv)
{
	COUNT("main");
	CHECK(argc == 2);
	long x = 1;
	for (int i = 0; i < 50; i++)
		x = use(argv[1], x);
	printf("dlopen %ld\n", x);
	return 0;
}
