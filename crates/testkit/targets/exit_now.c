/* _exit from deep inside: no destructor runs, the open calls never return. */
#include "count.h"

FN static long deep(int depth)
{
	COUNT("deep");
	if (depth == 0)
		_exit(7);
	return KEEP(deep(depth - 1)) + 1;
}

int main(void)
{
	COUNT("main");
	if (write(1, "exit_now\n", 9) != 9)
		return 1;
	return (int)deep(37);
}
