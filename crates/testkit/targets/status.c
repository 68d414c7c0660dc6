/* Ends with the status it is told: 0 to 255 by returning from main, 1000+n by signal n. */
#include "count.h"
#include <signal.h>

FN static long step(long x)
{
	COUNT("step");
	return x + 1;
}

int main(int argc, char **argv)
{
	COUNT("main");
	int status = argc > 1 ? atoi(argv[1]) : 0;
	for (int i = 0; i < 19; i++)
		step(i);
	if (status >= 1000)
		raise(status - 1000);
	return status;
}
