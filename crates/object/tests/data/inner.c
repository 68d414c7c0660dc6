// Functions in functions, as GCC has them; read by tests/prototypes.rs.
volatile int sink;

int main(int argc, char **argv)
{
	int k = argc;
	__attribute__((noinline, noclone)) int inner(int a, const char *b)
	{
		__attribute__((noinline, noclone)) long innermost(long c) { sink++; return c + k; }

		sink++;
		return innermost(a) + *b;
	}

	return inner(4, argv[0]) == 7;
}
