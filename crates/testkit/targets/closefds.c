/* A daemon's habit: close every file descriptor from 3 up, those of a tracer too, and take the numbers for itself. */
#include "count.h"

FN static long step(long x)
{
	COUNT("step");
	return x + 1;
}

/* A tracer's files take no numbers of ours. */
static int one_of_theirs(int fd)
{
	char link[64], path[512] = "";
	snprintf(link, sizeof link, "/proc/self/fd/%d", fd);
	return readlink(link, path, sizeof path - 1) > 0 && strstr(path, "/skep/");
}

int main(void)
{
	COUNT("main");
	long x = 0;
	for (int fd = 3; fd < 1024; fd++)
		CHECK(!one_of_theirs(fd));
	for (int i = 0; i < 100; i++)
		x = step(x);
	for (int fd = 3; fd < 1024; fd++)
		close(fd);
	char path[] = "/tmp/skep-target-XXXXXX";
	int fd = mkstemp(path);
	CHECK(fd == 3);
	unlink(path);
	for (int i = 0; i < 100; i++)
		x = step(x);
	CHECK(lseek(fd, 0, SEEK_END) == 0); /* nobody else wrote to our file */
	printf("closefds %ld\n", x);
	return 0;
}
