/* Parent, children and a grandchild call the same functions; their counts add up. */
#include "count.h"
#include <sys/wait.h>

FN static long shared(long x)
{
	COUNT("shared");
	return x * 5 + 1;
}

FN static long in_child(long x)
{
	COUNT("in_child");
	for (int i = 0; i < 211; i++)
		x = shared(x);
	return x;
}

FN static long in_parent(long x)
{
	COUNT("in_parent");
	for (int i = 0; i < 101; i++)
		x = shared(x);
	return x;
}

int main(void)
{
	COUNT("main");
	long before = in_parent(1);
	for (int i = 0; i < 5; i++) {
		pid_t pid = fork();
		CHECK(pid >= 0);
		if (pid == 0) {
			long x = in_child(i);
			pid_t grandchild = i == 3 ? fork() : 0;
			if (i == 3 && grandchild == 0)
				x += in_child(x);
			if (i == 3 && grandchild > 0) {
				int status;
				CHECK(waitpid(grandchild, &status, 0) == grandchild && WIFEXITED(status));
			}
			if (i & 1)
				_exit(x == 0);
			exit(x == 0);
		}
		in_parent(i);
	}
	for (int i = 0; i < 5; i++) {
		int status;
		CHECK(wait(&status) > 0);
		CHECK(WIFEXITED(status) && WEXITSTATUS(status) == 0);
	}
	printf("fork %ld\n", in_parent(before));
	return 0;
}
