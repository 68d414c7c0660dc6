// also: clang-14 clang-16
/* Kernel functions on offer and not, weak and strong; kernel variables. */
#include "fixture.h"

extern _Bool bpf_session_is_return(void *ctx) __ksym __weak;
extern __u64 *bpf_session_cookie(void *ctx) __ksym;
extern int bpf_nowhere(int) __ksym;
extern int bpf_perhaps(int) __ksym __weak;
extern const int kernel_variable __ksym;
extern const int weak_variable __ksym __weak;

SEC("fsession.multi/*")
int session(void *ctx)
{
	if (bpf_session_is_return(ctx))
		return *bpf_session_cookie(ctx) != 0;
	*bpf_session_cookie(ctx) = 1;
	return 0;
}

SEC("fentry.multi/a*")
int guarded(void *ctx)
{
	if (bpf_perhaps)
		return bpf_perhaps(1);
	return bpf_session_is_return ? &weak_variable != 0 : 9;
}

SEC("fentry.multi/a*")
int strong_function(void *ctx)
{
	return bpf_nowhere(1);
}

SEC("fentry.multi/a*")
int strong_variable(void *ctx)
{
	return kernel_variable;
}

SEC("fentry_multi/misspelt")
int unknown_section(void *ctx)
{
	return 0;
}

char _license[] SEC("license") = "GPL";
