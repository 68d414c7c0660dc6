/* A server that forgets one of the two blocks that each request takes. */
#include <stdlib.h>

__attribute__((noinline)) char *session(void)
{
	char *kept = malloc(1000);

	__asm__ volatile("" : "+r"(kept));
	return kept;
}

__attribute__((noinline)) void request(void)
{
	char *buffer = malloc(4096);

	__asm__ volatile("" : "+r"(buffer));
	session();
	free(buffer);
}

int main(void)
{
	for (int i = 0; i < 50; i++)
		request();
}
