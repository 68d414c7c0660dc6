/* What the guides trace: a program that draws, counts, reads a file and talks to nobody. `app serve`
 * goes on until it is ended. */
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

/* A function of less than five bytes can be traced only if there is room behind it. */
#define KEEP __attribute__((noinline, noclone, aligned(16)))
#define USE(x) __asm__ volatile("" ::"g"(x) : "memory")

enum color { RED, GREEN, BLUE };

struct point {
	int x, y;
};

struct user {
	int id;
	char name[16];
	struct point at;
};

KEEP int paint(enum color c, const char *what, struct point p)
{
	USE(what);
	return 5 + c + p.x - p.y;
}

KEEP double mix(float a, int n, double b)
{
	USE(&a);
	return a * n + b;
}

/* Has no room for more than 8000 bytes. */
KEEP long fill(char *buffer, size_t size)
{
	if (size > 8000)
		return -1;
	memset(buffer, 'x', size);
	USE(buffer);
	return size;
}

KEEP void greet(const struct user *user)
{
	USE(user);
}

KEEP int leaf(int n)
{
	USE(n);
	return n + 1;
}

KEEP int left(int n)
{
	return leaf(n) + leaf(n + 1);
}

KEEP int right(int n)
{
	return left(n) + leaf(n) * 2;
}

KEEP int fact(int n)
{
	return n < 2 ? 1 : n * fact(n - 1);
}

KEEP long send_all(int fd, const char *text, size_t n)
{
	USE(text);
	return fd + n;
}

KEEP int connect_db(const char *host)
{
	USE(host);
	return 3;
}

KEEP void report_error(const char *why)
{
	USE(why);
}

KEEP int read_config(const char *path)
{
	int fd = open(path, O_RDONLY);

	if (fd >= 0)
		close(fd);
	return fd < 0 ? -errno : 0;
}

static void draw(int i)
{
	char *buffer = malloc(8000);
	struct user user = { i, "ada", { i, -i } };

	if (!buffer) {
		report_error("no memory");
		return;
	}
	paint(i % 3, i % 2 ? "window" : "door", user.at);
	mix(1.5, i, 0.25);
	fill(buffer, (i + 1) * 1024);
	greet(&user);
	free(buffer);
}

int main(int argc, char **argv)
{
	int goes_on = argc > 1 && !strcmp(argv[1], "serve"), failed = 0;

	for (int i = 0; i < 1000; i++)
		failed += read_config("/etc/passwd") < 0;
	printf("%d of 1000 reads of the configuration failed\n", failed);
	fflush(stdout);
	do {
		for (int i = 0; i < 10; i++) {
			draw(i);
			USE(left(i));
			USE(right(i));
		}
		USE(fact(4));
		if (connect_db("db.example") < 0)
			report_error("no database");
		send_all(1, "hello", 5);
		if (!goes_on)
			report_error("a made-up one");
		else
			usleep(1000);
	} while (goes_on);
}
