/* A daemon's habit: close every file descriptor from 3 up, those of a tracer too, and take the numbers for itself. */
#include "count.h"

FN static long step(long x)
{
	COUNT("step");
	return x + 1;
}

int main(void)
{
	COUNT("main");
	long x = 0;
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
