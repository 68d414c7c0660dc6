/* A structure that programs know by other layouts: this build's own is in its debug information. */
struct person {
	char name[24];
	int age;
};

#ifdef WIDER
struct account {
	double rates[7];
	struct person *holder;
	long history[3];
	struct {
		char kind;
		int balance;
	};
	unsigned flags : 3, level : 6;
};
#else
struct account {
	int balance;
	unsigned level : 6;
	struct person *holder;
};
#endif

static struct person person = { "somebody", 41 };

__attribute__((noinline, noclone)) int deposit(struct account *a, int amount)
{
	a->balance += amount;
	__asm__ volatile("" ::: "memory");
	return a->balance;
}

int main(void)
{
	struct account a = { .holder = &person, .balance = 5, .level = 37 };

	for (int i = 1; i <= 10; i++)
		deposit(&a, i);
	return a.balance == 60 ? 0 : 99;
}
