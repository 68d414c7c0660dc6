/*
 * Functions that begin as compilers seldom do: a tracer either moves their first instructions rightly or leaves them
 * alone and says so. The callers count, since the first bytes must be what stands here.
 */
#include "count.h"

#define BEGIN(name) ".text\n.p2align 4\n.globl " name "\n.type " name ", @function\n" name ":\n.cfi_startproc\n"
#define END(name) ".cfi_endproc\n.size " name ", . - " name "\n"

__asm__(
	/* One byte. */
	BEGIN("odd_ret") "ret\n" END("odd_ret")
	/* Three bytes, and the next function follows without padding. */
	".p2align 4\n.globl odd_short\n.type odd_short, @function\nodd_short: .cfi_startproc\nxorl %eax, %eax\nret\n" END("odd_short")
	".globl odd_after_short\n.type odd_after_short, @function\nodd_after_short: .cfi_startproc\nleaq 1(%rdi), %rax\nret\n" END("odd_after_short")
	/* A loop whose head is the first instruction: rdi + ... + 1. */
	BEGIN("odd_loop_at_entry") "testq %rdi, %rdi\njz 1f\naddq %rdi, %rsi\ndecq %rdi\njmp odd_loop_at_entry\n1: movq %rsi, %rax\nret\n" END("odd_loop_at_entry")
	/* A loop back into the second instruction. */
	BEGIN("odd_loop_into") "xorl %eax, %eax\n1: addq %rdi, %rax\ndecq %rdi\njnz 1b\nret\n" END("odd_loop_into")
	/* The first instruction is a conditional branch. */
	BEGIN("odd_branch_first") "jmp 1f\n.fill 6, 1, 0x90\n1: leaq 3(%rdi), %rax\nret\n" END("odd_branch_first")
	/* Branches with no long form. */
	BEGIN("odd_jrcxz") "movq %rdi, %rcx\njrcxz 1f\nleaq 10(%rcx), %rax\nret\n1: movl $77, %eax\nret\n" END("odd_jrcxz")
	BEGIN("odd_loop_insn") "leaq 5(%rdi), %rcx\nxorl %eax, %eax\n1: incq %rax\nloop 1b\nret\n" END("odd_loop_insn")
	/* Relative to the instruction pointer. */
	BEGIN("odd_rip_load") "movq odd_value(%rip), %rax\naddq %rdi, %rax\nret\n" END("odd_rip_load")
	BEGIN("odd_rip_cmp") "cmpl $41, odd_value(%rip)\njne 1f\nmovl $1, %eax\nret\n1: xorl %eax, %eax\nret\n" END("odd_rip_cmp")
	BEGIN("odd_rip_lea_self") "leaq odd_rip_lea_self(%rip), %rax\nret\n" END("odd_rip_lea_self")
	/* A call first, to a function and to the next instruction. */
	BEGIN("odd_call_first") "subq $8, %rsp\n.cfi_adjust_cfa_offset 8\ncall odd_after_short\naddq $8, %rsp\n.cfi_adjust_cfa_offset -8\nincq %rax\nret\n" END("odd_call_first")
	BEGIN("odd_get_ip") "call 1f\n.cfi_adjust_cfa_offset 8\n1: popq %rax\n.cfi_adjust_cfa_offset -8\nleaq odd_get_ip(%rip), %rdx\nsubq %rdx, %rax\nret\n" END("odd_get_ip")
	/* A jump to another function is the whole body. */
	BEGIN("odd_only_jump") "jmp odd_after_short\n" END("odd_only_jump")
	/* A second entry behind the first instruction. */
	BEGIN("odd_two_doors") "addq $100, %rdi\n.globl odd_second_door\n.type odd_second_door, @function\nodd_second_door: leaq 1(%rdi), %rax\nret\n"
	".size odd_second_door, . - odd_second_door\n" END("odd_two_doors")
	/* endbr64, enter, a prefix before ret, nops. */
	BEGIN("odd_endbr") "endbr64\nleaq 9(%rdi), %rax\nret\n" END("odd_endbr")
	BEGIN("odd_enter") "enter $32, $0\n.cfi_def_cfa rbp, 16\nmovq %rdi, -8(%rbp)\nmovq -8(%rbp), %rax\nleave\n.cfi_def_cfa rsp, 8\nret\n" END("odd_enter")
	BEGIN("odd_nops") "nop\nnop\nnopw 0(%rax,%rax,1)\nmovq %rdi, %rax\nrep ret\n" END("odd_nops")
	/* A long first instruction. */
	BEGIN("odd_long_first") "movabsq $0x1122334455667788, %rax\nxorq %rdi, %rax\nret\n" END("odd_long_first")
	/* Looks at its return address. */
	BEGIN("odd_return_address") "movq (%rsp), %rax\nret\n" END("odd_return_address")
	".section .note.GNU-stack,\"\",@progbits\n.text\n");

long odd_value = 41;

long odd_short(long), odd_after_short(long), odd_loop_at_entry(long, long), odd_loop_into(long), odd_branch_first(long);
long odd_jrcxz(long), odd_loop_insn(long), odd_rip_load(long), odd_rip_cmp(long), odd_rip_lea_self(void), odd_call_first(long);
long odd_get_ip(void), odd_only_jump(long), odd_two_doors(long), odd_second_door(long), odd_endbr(long), odd_enter(long);
long odd_nops(long), odd_long_first(long), odd_return_address(void);
void odd_ret(void);

#define CALL(name, ...)                                                                                                \
	({                                                                                                             \
		COUNT(#name);                                                                                          \
		name(__VA_ARGS__);                                                                                     \
	})

int main(void)
{
	COUNT("main");
	for (long i = 1; i < 102; i++) {
		CALL(odd_ret);
		CHECK(CALL(odd_short, i) == 0);
		CHECK(CALL(odd_after_short, i) == i + 1);
		CHECK(CALL(odd_loop_into, i) == i * (i + 1) / 2);
		CHECK(CALL(odd_branch_first, i) == i + 3);
		CHECK(CALL(odd_jrcxz, i) == i + 10);
		CHECK(CALL(odd_jrcxz, 0) == 77);
		CHECK(CALL(odd_loop_insn, i) == i + 5);
		CHECK(CALL(odd_rip_load, i) == i + 41);
		CHECK(CALL(odd_rip_cmp, i) == 1);
		CHECK(CALL(odd_rip_lea_self) == (long)odd_rip_lea_self);
		CHECK(CALL(odd_get_ip) == 5);
		CHECK(CALL(odd_endbr, i) == i + 9);
		CHECK(CALL(odd_enter, i) == i);
		CHECK(CALL(odd_nops, i) == i);
		CHECK(CALL(odd_long_first, i) == (0x1122334455667788L ^ i));
		CHECK(CALL(odd_return_address) != 0);
		/* These call or fall into counted functions. */
		COUNT("odd_after_short");
		CHECK(CALL(odd_call_first, i) == i + 2);
		COUNT("odd_after_short");
		CHECK(CALL(odd_only_jump, i) == i + 1);
		/* What a tracer counts here depends on how it moved the first instruction: only the result is checked. */
		CHECK(odd_loop_at_entry(i, 0) == i * (i + 1) / 2);
		CHECK(odd_two_doors(i) == i + 101);
		CHECK(odd_second_door(i) == i + 1);
	}
	printf("prologues done\n");
	return 0;
}
