/* Opens files: each path in the arguments as often as the argument's place, by four functions in turn. */
#define _GNU_SOURCE
#include <fcntl.h>
#include <stdio.h>
#include <unistd.h>

static int opened(const char *path, int how)
{
	FILE *file;
	int fd;

	if (how % 4 == 3) {
		file = fopen(path, "r");
		return file ? fclose(file) == 0 : 0;
	}
	fd = how % 4 == 0 ? open(path, O_RDONLY) : how % 4 == 1 ? open64(path, O_RDONLY) : openat(AT_FDCWD, path, O_RDONLY);
	return fd >= 0 ? close(fd) == 0 : 0;
}

int main(int argc, char **argv)
{
	int done = 0;

	for (int i = 1; i < argc; i++)
		for (int n = 0; n < i; n++)
			done += opened(argv[i], n);
	return done == 0;
}
