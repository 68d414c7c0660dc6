/* Handles the URLs in its arguments. */
#include <stdio.h>

__attribute__((noinline, noclone)) int handle_request(const char *url)
{
	return puts(url) >= 0;
}

int main(int argc, char **argv)
{
	int done = 1;

	for (int i = 1; i < argc; i++)
		done &= handle_request(argv[i]);
	return !done;
}
