/* The program has its own handlers for the signals a tracer uses, provokes them, and looks at what they are told. */
#include "count.h"
#include <setjmp.h>
#include <signal.h>
#include <ucontext.h>

static sigjmp_buf back;
static volatile long segv, trap, usr;

FN static long step(long x)
{
	COUNT("step");
	return x + 1;
}

FN static void on_segv(int sig, siginfo_t *info, void *context)
{
	COUNT("on_segv");
	(void)context;
	CHECK(sig == SIGSEGV && (long)info->si_addr == 0x18);
	segv = step(segv);
	siglongjmp(back, 1);
}

FN static void on_trap(int sig, siginfo_t *info, void *context)
{
	COUNT("on_trap");
	(void)info;
	ucontext_t *uc = (ucontext_t *)context;
	/* The byte before the instruction pointer is the int3 of ours, not of somebody else. */
	CHECK(sig == SIGTRAP && *(unsigned char *)(uc->uc_mcontext.gregs[REG_RIP] - 1) == 0xcc);
	trap = step(trap);
}

FN static void on_usr(int sig)
{
	COUNT("on_usr");
	CHECK(sig == SIGUSR1);
	usr = step(usr);
}

FN static long provoke(long n)
{
	COUNT("provoke");
	if (n % 3 == 0) {
		if (sigsetjmp(back, 1) == 0)
			*KEEP((volatile long *)0x18) = n;
		return 1;
	}
	if (n % 3 == 1) {
		__asm__ volatile("int3");
		return 2;
	}
	raise(SIGUSR1);
	return 3;
}

int main(void)
{
	COUNT("main");
	static char stack[1 << 16];
	stack_t alternative = {.ss_sp = stack, .ss_size = sizeof stack};
	CHECK(!sigaltstack(&alternative, 0));
	struct sigaction action = {.sa_sigaction = on_segv, .sa_flags = SA_SIGINFO | SA_ONSTACK}, old;
	CHECK(!sigaction(SIGSEGV, &action, 0));
	action.sa_sigaction = on_trap;
	CHECK(!sigaction(SIGTRAP, &action, 0));
	CHECK(signal(SIGUSR1, on_usr) == SIG_DFL);
	/* The program reads back what it has set. */
	CHECK(!sigaction(SIGSEGV, 0, &old) && old.sa_sigaction == on_segv && (old.sa_flags & SA_SIGINFO));
	CHECK(!sigaction(SIGTRAP, 0, &old) && old.sa_sigaction == on_trap);
	CHECK(signal(SIGUSR1, on_usr) == on_usr);
	long sum = 0;
	for (long i = 0; i < 300; i++)
		sum += provoke(i);
	CHECK(segv == 100 && trap == 100 && usr == 100);
	printf("handlers %ld\n", sum);
	return 0;
}
