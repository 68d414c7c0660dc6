/* One program that needs CO-RE, one that does not. */
#include "fixture.h"

struct task {
	int a;
	int pid;
} __attribute__((preserve_access_index));

SEC("uprobe")
int needs_core(struct task *t)
{
	return t->pid;
}

SEC("uprobe")
int needs_none(void *ctx)
{
	return 1;
}

char _license[] SEC("license") = "GPL";
