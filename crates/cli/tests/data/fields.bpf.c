/* Reads structures of the traced program by name; none of the layouts here is that of a build. */
#include "../../bpf/skep.bpf.h"

#pragma clang attribute push(__attribute__((preserve_access_index)), apply_to = record)
struct person {
	int age;
};

struct account {
	char not_this_one;
	unsigned level : 6;
	struct person *holder;
	int balance;
};

struct account___older {
	int money;
};
#pragma clang attribute pop

const volatile struct {
	int min;
	_Bool on;
} limit = { .min = -1000, .on = 1 };

int calls;
int sum;
int age;
int level;
int has_money;

SEC("uprobe/fields:deposit")
int on_deposit(struct pt_regs *regs)
{
	struct account *a = (struct account *)regs->di;
	struct person *holder = 0;
	int balance = 0, years = 0;
	__u64 bits = 0;

	bpf_probe_read_user(&balance, sizeof(balance), &a->balance);
	if (!limit.on || balance < limit.min)
		return 0;
	bpf_probe_read_user(&holder, sizeof(holder), &a->holder);
	bpf_probe_read_user(&years, sizeof(years), &holder->age);
	bpf_probe_read_user(&bits, __builtin_preserve_field_info(a->level, 1) & 7 ?: 4, (char *)a + __builtin_preserve_field_info(a->level, 0));
	bits <<= __builtin_preserve_field_info(a->level, 4) & 63;
	bits >>= __builtin_preserve_field_info(a->level, 5) & 63;
	calls++;
	sum += balance;
	age = years;
	level = bits;
	has_money = __builtin_preserve_field_info(((struct account___older *)a)->money, 2);
	return 0;
}

char _license[] SEC("license") = "GPL";
