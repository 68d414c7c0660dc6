// also: clang-14 clang-16
/* A type of which the target has two: each question leaves the candidates that could answer it. */
#include "fixture.h"

#pragma clang attribute push(__attribute__((preserve_access_index)), apply_to = record)
struct twin {
	int a;
	int b;
	int c;
};
#pragma clang attribute pop

#define exists(field) __builtin_preserve_field_info(field, 2)

SEC("socket")
int alike(struct twin *t)
{
	return exists(t->a) + (exists(t->c) << 1);
}

SEC("socket")
int other(struct twin *t)
{
	return exists(t->b) + (exists(t->c) << 1) + (exists(t->a) << 2);
}

char _license[] SEC("license") = "GPL";
