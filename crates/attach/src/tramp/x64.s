# The trampolines. Included by tramp/mod.rs, Intel syntax; names in braces are constants from there.
#
# Nothing here touches a vector, mask, x87 or MMX register, and every general register that the function or its caller can see
# is given back as it was found: gcc's -fipa-ra lets callers rely on registers that the ABI calls clobbered.
#
#   entry trampolines, reached by a call                exit trampolines, reached by a jump after one push
#
#   CFA      ->  arguments on the stack                 CFA      ->  arguments on the stack
#   CFA-8        return address of the function         CFA-8        return address of the function
#   CFA-16       where to go on in the function         CFA-16       metadata of the function
#   ...          Frame, up to `rsp`, FRAME bytes        ...          Frame with `at_return`, at rsp+F
#   rsp      ->                                         ...          our own words X_...
#                                                       ...          N words, copies of the arguments on the stack
#                                                       rsp      ->
#
# F = 8*N + X_SIZE. From CFA-8 to rsp is a multiple of 64 in exit trampolines: a body finds its stack as far from a boundary of 64
# bytes as its caller left it (gcc's -mpreferred-stack-boundary relies on that). A function with exit hooks always has the frame,
# also for a call after which nothing runs: programs compare the addresses of locals from call to call.
#
# All this is for a thread on the comfortable part of its own stack (BLOCK_ZONE), aligned to 16 bytes. What comes from anywhere
# else goes to side_stack/, having touched nothing below the red zone. There an exit hook leaves this instead:
#
#   CFA-16       metadata of the function
#   CFA-24       the SideFrame with everything else (side_stack/)
#   CFA-32       the function's body
#   ...          up to CFA-64: not used
#   ...          N words, copies of the arguments on the stack
#   rsp      ->
#
# Within the walks: rbx the item, r13 the end of the items, rbp the metadata, r12 the thread's block, r15 the hook list. Whoever changes
# a frame changes frame.rs, hook_code.rs and the constants in tramp/mod.rs too.
#
# A trampoline saves rax, rbp and r12, finds block and metadata, marks the thread, and jumps where the hook list says: to its own code
# (hook_code.rs), or to the walk here. Both find rbp and r12 as above, the other registers as the function's caller left them, and rax
# free; the code jumps back with all of them as they were.

    .section .tbss.skep_attach_block,"awT",@nobits
    .p2align 3
    .globl skep_attach_block
    .hidden skep_attach_block
    .type skep_attach_block,@tls_object
    .size skep_attach_block, 8
skep_attach_block:
    .zero 8

    .section .text.skep_event,"ax",@progbits

# The words of the Frame that SKEP_ENTER has not saved.
.macro SKEP_SAVE f, cfa
    mov [rsp+\f+40], rdi
    mov [rsp+\f+48], rsi
    mov [rsp+\f+56], rdx
    mov [rsp+\f+64], rcx
    mov [rsp+\f+72], r8
    mov [rsp+\f+80], r9
    mov [rsp+\f+152], r10
    mov [rsp+\f+160], r11
    mov [rsp+\f+168], rbx
    .cfi_offset rbx, \f+168-(\cfa)
    mov [rsp+\f+192], r13
    .cfi_offset r13, \f+192-(\cfa)
    mov [rsp+\f+200], r14
    mov [rsp+\f+208], r15
    .cfi_offset r15, \f+208-(\cfa)
.endm

# What the unwinder finds where hooks' own registers hold what they held in the function. r14 does everywhere.
.macro SKEP_NOT_SAVED
    .cfi_same_value rbx
    .cfi_same_value r13
    .cfi_same_value r15
.endm

# The same when the function has returned. Hand-written code calls parts of itself that give results in registers which compilers
# expect to be kept.
.macro SKEP_SAVE_RETURN f, cfa
    mov [rsp+\f+152], r10
    mov [rsp+\f+160], r11
    mov [rsp+\f+224], rdi
    mov [rsp+\f+232], rsi
    mov [rsp+\f+240], rdx
    mov [rsp+\f+248], rcx
    mov [rsp+\f+256], r8
    mov [rsp+\f+264], r9
    mov [rsp+\f+168], rbx
    .cfi_offset rbx, \f+168-(\cfa)
    mov [rsp+\f+192], r13
    .cfi_offset r13, \f+192-(\cfa)
    mov [rsp+\f+208], r15
    .cfi_offset r15, \f+208-(\cfa)
.endm

# What the rest of a trampoline changes besides what it has saved before a hook list's own code.
.macro SKEP_RESTORE_FIRST f
    mov rbp, [rsp+\f+176]
    mov rax, [rsp+\f+144]
    mov r12, [rsp+\f+184]
.endm

.macro SKEP_RESTORE_CALLED f
    mov rdi, [rsp+\f+40]
    mov rsi, [rsp+\f+48]
    mov rdx, [rsp+\f+56]
    mov rcx, [rsp+\f+64]
    mov r8, [rsp+\f+72]
    mov r9, [rsp+\f+80]
    mov r10, [rsp+\f+152]
    mov r11, [rsp+\f+160]
.endm

.macro SKEP_RESTORE f
    SKEP_RESTORE_CALLED \f
    mov rax, [rsp+\f+144]
    mov rbx, [rsp+\f+168]
    mov rbp, [rsp+\f+176]
    mov r12, [rsp+\f+184]
    mov r13, [rsp+\f+192]
    mov r15, [rsp+\f+208]
.endm

# r12 = the block that this thread's words name. Where there is no thread-local storage for them (per_thread/area.rs), this becomes a
# jump to \check, a SKEP_CHECK with the same rest of its name, which comes back behind it.
.macro SKEP_BLOCK check
.Lskep_attach_at_\check:
    mov r12, qword ptr [rip + skep_attach_block@GOTTPOFF]
    mov r12, qword ptr fs:[r12]
.Lskep_attach_after_\check:
    .pushsection skep_thread_checks,"aR",@progbits
    .long .Lskep_attach_at_\check - .
    .long .Lskep_attach_check_\check - .
    .popsection
.endm

# The other half: r12 = this thread's block, 0 when the one that its words name is another thread's. \scratch is free.
.macro SKEP_CHECK check, scratch
.Lskep_attach_check_\check:
    mov r12, qword ptr [rip + skep_attach_block@GOTTPOFF]
    mov r12, qword ptr gs:[r12]
    test r12, r12
    jz .Lskep_attach_after_\check
    mov r\scratch, [rip + {tid_at}]
    mov e\scratch, fs:[r\scratch]
    cmp e\scratch, [r12+{BLOCK_TID}]
    je .Lskep_attach_after_\check
    xor r12d, r12d
    jmp .Lskep_attach_after_\check
.endm

# The first thing: r12 = this thread's block; rax, r12 and rbp saved in the Frame to be, \f bytes below rsp, in the red zone. To \new when
# there is no block, to \far from where no frame may be made. An address that is not aligned is rotated out of the zone.
.macro SKEP_ENTER f, check, new, far
    mov [rsp+184-(\f)], r12
    .cfi_offset r12, 184-(\f)-16
    mov [rsp+144-(\f)], rax
    SKEP_BLOCK \check
    test r12, r12
    jz \new
    mov rax, rsp
    sub rax, [r12+{BLOCK_ZONE}]
    ror rax, 4
    cmp rax, [r12+{BLOCK_ZONE_LEN}]
    jae \far
    mov [rsp+176-(\f)], rbp
    .cfi_offset rbp, 176-(\f)-16
.endm

# The check of SKEP_ENTER, where the unwinder finds what it finds there.
.macro SKEP_CHECK_ENTER f, check
    .cfi_def_cfa rsp, 16
    .cfi_same_value rbx
    .cfi_same_value rbp
    .cfi_offset r12, 184-(\f)-16
    .cfi_same_value r13
    .cfi_same_value r14
    .cfi_same_value r15
    SKEP_CHECK \check, ax
.endm

# What the unwinder finds behind SKEP_ENTER and SKEP_SAVE.
.macro SKEP_SAVED f, cfa
    .cfi_def_cfa rsp, \cfa
    .cfi_offset rbx, \f+168-(\cfa)
    .cfi_offset rbp, \f+176-(\cfa)
    .cfi_offset r12, \f+184-(\cfa)
    .cfi_offset r13, \f+192-(\cfa)
    .cfi_offset r15, \f+208-(\cfa)
.endm

# Takes back SKEP_ENTER, where that went to \new or \far: rsp is as it was before.
.macro SKEP_REENTER f
    .cfi_def_cfa rsp, 16
    .cfi_same_value rbx
    .cfi_same_value rbp
    .cfi_offset r12, 184-(\f)-16
    .cfi_same_value r13
    .cfi_same_value r14
    .cfi_same_value r15
    mov rax, [rsp+144-(\f)]
    mov r12, [rsp+184-(\f)]
    .cfi_same_value r12
.endm

# r12 = this thread's block; to \slow when there is none or the thread is inside a hook or muted.
.macro SKEP_GUARD check, slow
    SKEP_BLOCK \check
    test r12, r12
    jz \slow
    cmp qword ptr [r12], 0
    jne \slow
.endm

# All registers, as side_stack/ has them, in 128 bytes below rsp, which is \at below the CFA.
.macro SKEP_SAVE_ALL at
    sub rsp, 128
    .cfi_def_cfa_offset \at+128
    mov [rsp], rdi
    mov [rsp+8], rsi
    mov [rsp+16], rdx
    mov [rsp+24], rcx
    mov [rsp+32], r8
    mov [rsp+40], r9
    mov [rsp+48], rax
    mov [rsp+56], r10
    mov [rsp+64], r11
    mov [rsp+72], rbx
    .cfi_offset rbx, 72-(\at)-128
    mov [rsp+80], rbp
    .cfi_offset rbp, 80-(\at)-128
    mov [rsp+88], r12
    .cfi_offset r12, 88-(\at)-128
    mov [rsp+96], r13
    .cfi_offset r13, 96-(\at)-128
    mov [rsp+104], r14
    .cfi_offset r14, 104-(\at)-128
    mov [rsp+112], r15
    .cfi_offset r15, 112-(\at)-128
.endm

# Of these, the ones that calls change; they lie first.
.macro SKEP_RESTORE_CHANGED
    mov rdi, [rsp]
    mov rsi, [rsp+8]
    mov rdx, [rsp+16]
    mov rcx, [rsp+24]
    mov r8, [rsp+32]
    mov r9, [rsp+40]
    mov rax, [rsp+48]
    mov r10, [rsp+56]
    mov r11, [rsp+64]
.endm

.macro SKEP_RESTORE_ALL at
    SKEP_RESTORE_CHANGED
    mov rbx, [rsp+72]
    mov rbp, [rsp+80]
    mov r12, [rsp+88]
    mov r13, [rsp+96]
    mov r14, [rsp+104]
    mov r15, [rsp+112]
    # The flags stay.
    lea rsp, [rsp+128]
    .cfi_def_cfa_offset \at
    .cfi_same_value rbx
    .cfi_same_value rbp
    .cfi_same_value r12
    .cfi_same_value r13
    .cfi_same_value r14
    .cfi_same_value r15
.endm

# Calls Rust code, which wants an aligned stack, from a stack that may not be. rsp is \at below the CFA.
.macro SKEP_CALL_ALIGNED to, at
    mov rbx, rsp
    .cfi_def_cfa rbx, \at
    and rsp, -16
    call \to
    mov rsp, rbx
    .cfi_def_cfa rsp, \at
.endm

# The words of the frame that are the same for all hooks of a call.
.macro SKEP_HEAD f
    mov rcx, [rbp+{MD_IP}]
    mov rdx, [rbp+{MD_NR_ARGS}]
    mov [rsp+\f+24], rcx
    mov [rsp+\f+32], rdx
    mov qword ptr [rsp+\f+8], 0
.endm

# Arguments 7-12 into the frame. \at: where they are, from rsp.
.macro SKEP_STACK_ARGS f, at
    lea rdi, [rsp+\f+88]
    lea rsi, [rsp+\at]
    mov ecx, 6
    call skep_attach_copy
.endm

# One run: item rbx, metadata rbp.
.macro SKEP_RUN f
    mov rax, [rbx+{ITEM_COOKIE_AT}]
    mov rsi, [rbx+{ITEM_DATA}]
    mov rax, [rbp+rax]
    mov [rsp+\f+16], rax
    lea rdi, [rsp+\f+40]
    call qword ptr [rbx+{ITEM_RUN}]
.endm

# The frame is given up: whoever searches stacks for calls in progress (calls_in_progress.rs) does not take what is left of it for
# one.
.macro SKEP_WIPE n
    mov qword ptr [rsp+8*\n+{X_SIZE}+216], 0
.endm

# A tail call ends: the thread's block has again what it had before.
.macro SKEP_END_TAIL n
    mov rcx, [rsp+8*\n+{X_TAIL}]
    mov rdx, [rsp+8*\n+{X_TAILS}]
    mov [r12+{BLOCK_TAIL}], rcx
    mov [r12+{BLOCK_TAILS}], rdx
.endm

# Copies rcx words (1..=512) from rsi to rdi, but only as far as the source is mapped: the words above a function's return
# address may be beyond the last of its stack. The byte below rsi is mapped. Changes rax rcx rdx rsi rdi r8 r11.
    .p2align 4
    .type skep_attach_copy,@function
skep_attach_copy:
    .cfi_startproc
    lea rdx, [rsi+rcx*8-1]
    lea rax, [rsi-1]
    xor rax, rdx
    cmp rax, 4096
    jae 2f
1:  rep movsq
    ret
2:  and rdx, -4096
    mov rax, qword ptr [rip + skep_attach_block@GOTTPOFF]
771:
    mov rax, qword ptr fs:[rax]
    .pushsection skep_thread_words,"aR",@progbits
    .long 771b - .
    .popsection
    test rax, rax
    jz 4f
    # The thread's own stack is mapped.
    cmp rdx, [rax+{BLOCK_TOP}]
    jae 4f
    cmp rdx, [rax+{BLOCK_LOW}]
    jae 1b
    # In a sandbox (sandbox.rs) nobody can ask.
4:  cmp byte ptr [rip + {sandboxed}], 0
    jne 3f
    # prlimit of a resource that does not exist reads the new limit and changes nothing: EINVAL tells that the page is readable.
    mov r8, rcx
    push rdi
    .cfi_adjust_cfa_offset 8
    push rsi
    .cfi_adjust_cfa_offset 8
    push rdx
    .cfi_adjust_cfa_offset 8
    push r10
    .cfi_adjust_cfa_offset 8
    xor edi, edi
    mov esi, 0x7fffffff
    xor r10d, r10d
    mov eax, 302
    syscall
    pop r10
    .cfi_adjust_cfa_offset -8
    pop rdx
    .cfi_adjust_cfa_offset -8
    pop rsi
    .cfi_adjust_cfa_offset -8
    pop rdi
    .cfi_adjust_cfa_offset -8
    mov rcx, r8
    cmp rax, -22
    je 1b
3:  mov rcx, rdx
    sub rcx, rsi
    shr rcx, 3
    jmp 1b
    .cfi_endproc
    .size skep_attach_copy, . - skep_attach_copy

# Calls rsi(rdx, rcx, r8) on the stack that ends at rdi.
    .p2align 4
    .globl skep_attach_switch
    .hidden skep_attach_switch
    .type skep_attach_switch,@function
skep_attach_switch:
    .cfi_startproc
    push rbp
    .cfi_def_cfa_offset 16
    .cfi_offset rbp, -16
    mov rbp, rsp
    .cfi_def_cfa_register rbp
    mov rsp, rdi
    mov rax, rsi
    mov rdi, rdx
    mov rsi, rcx
    mov rdx, r8
    call rax
    mov rsp, rbp
    pop rbp
    .cfi_def_cfa rsp, 8
    ret
    .cfi_endproc
    .size skep_attach_switch, . - skep_attach_switch

.macro SKEP_ENTRY name, site
    .p2align 6
    .globl \name
    .hidden \name
    .type \name,@function
\name:
    .cfi_startproc
    .cfi_def_cfa rsp, 16
    endbr64
0:  SKEP_ENTER {FRAME}, \name, 11f, 12f
    .if \site == 0
    mov rbp, [rsp]
    mov rbp, [rbp-14]
    .endif
    sub rsp, {FRAME}
    .cfi_def_cfa_offset {FRAME}+16
    cmp qword ptr [r12], 0
    jne 8f
    mov [r12], rsp
1:
    .if \site
    # Open addressing: the key is the return address, an empty item ends the search.
    mov [rsp+64], rcx
    mov [rsp+56], rdx
    mov rbp, [rsp+{FRAME}]
    mov rdx, [rip + skep_attach_table]
    movabs rax, 0x9E3779B97F4A7C15
    imul rax, rbp
    mov rcx, [rdx]
    shr rax, cl
2:  mov rcx, rax
    shl rcx, 4
    cmp [rdx+rcx+16], rbp
    je 3f
    inc rax
    and rax, [rdx+8]
    cmp qword ptr [rdx+rcx+16], 0
    jne 2b
    mov rcx, [rsp+64]
    mov rdx, [rsp+56]
    jmp 6f
3:  mov rbp, [rdx+rcx+24]
    mov rcx, [rsp+64]
    mov rdx, [rsp+56]
    .endif
    mov rax, [rbp+{MD_LIST}]
    jmp qword ptr [rax+{LIST_AT_ENTRY}]
    .if \site == 0
    # Where hook lists go that have no code of their own.
    .globl skep_attach_entry_walk
    .hidden skep_attach_entry_walk
skep_attach_entry_walk:
    SKEP_SAVE 0, {FRAME}+16
    lea rcx, [rsp+{FRAME}+8]
    mov [rsp+216], rcx
    mov r15, [rbp+{MD_LIST}]
    SKEP_HEAD 0
    mov qword ptr [rsp], 0
    cmp dword ptr [rbp+{MD_WANTS}], 0
    jne 7f
4:  lea rbx, [r15+{LIST_ITEMS}]
    mov r13, [r15+{LIST_ENTRY_END}]
    cmp rbx, r13
    je 13f
    .p2align 4
    # A thread may have come here just before the site was changed for a session hook; that hook needs the other frame.
5:  cmp qword ptr [rbx+{ITEM_SESSION}], 0
    jns 10f
    SKEP_RUN 0
10: add rbx, {ITEM_SIZE}
    cmp rbx, r13
    jne 5b
13: mov qword ptr [r12], 0
    jmp 9f
7:  SKEP_STACK_ARGS 0, {FRAME}+16
    jmp 4b
    SKEP_NOT_SAVED
    # Where they go on that have some.
    .globl skep_attach_entry_end
    .hidden skep_attach_entry_end
skep_attach_entry_end:
    .endif
6:  mov qword ptr [r12], 0
    SKEP_RESTORE_FIRST 0
    add rsp, {FRAME}
    .cfi_remember_state
    .cfi_def_cfa_offset 16
    ret
    .cfi_restore_state
8:  SKEP_SAVE 0, {FRAME}+16
    mov rdi, r12
    lea rsi, [rsp+{FRAME}]
    mov rdx, [rsi]
    .if \site
    xor ecx, ecx
    .else
    mov rcx, rbp
    .endif
    call {slow_entry}
    test rax, rax
    jz 9f
    mov r12, rax
    mov [r12], rsp
    SKEP_RESTORE_CALLED 0
    jmp 1b
9:  SKEP_RESTORE 0
    add rsp, {FRAME}
    .cfi_def_cfa_offset 16
    ret
    # A thread without a block gets one and begins anew.
11: SKEP_REENTER {FRAME}
    SKEP_SAVE_ALL 16
    mov rdi, [rsp+128]
    .if \site
    xor esi, esi
    .else
    mov rsi, [rdi-14]
    .endif
    SKEP_CALL_ALIGNED {new_thread}, 144
    test eax, eax
    SKEP_RESTORE_ALL 16
    jnz 0b
    ret
12: SKEP_REENTER {FRAME}
    SKEP_SAVE_ALL 16
    mov rdi, rsp
    lea rsi, [rsp+144]
    mov rdx, [rsp+128]
    .if \site
    xor ecx, ecx
    .else
    mov rcx, [rdx-14]
    .endif
    SKEP_CALL_ALIGNED {side_stack_entry}, 144
    SKEP_RESTORE_ALL 16
    ret
    SKEP_CHECK_ENTER {FRAME}, \name
    .cfi_endproc
    .size \name, . - \name
.endm

SKEP_ENTRY skep_attach_entry_island, 0
SKEP_ENTRY skep_attach_entry_site, 1

# An event inside a function, called from an island that has stepped over the red zone of the code there.
#
#   CFA      ->  the stack pointer of that code
#   CFA-136      where to go on in the island
#   CFA-144  ->  its flags: r14 during the walk
#   ...          rax r12 r14 rbx rbp r13 r15 as they were
#   ...          Frame up to the flags
#   rsp      ->  aligned, as that code's stack pointer may not be
#
# The address of the instruction is in the metadata, whose address lies 19 bytes before where the island goes on.
    .p2align 6
    .globl skep_attach_inside
    .hidden skep_attach_inside
    .type skep_attach_inside,@function
skep_attach_inside:
    .cfi_startproc
    .cfi_signal_frame
    .cfi_def_cfa rsp, 136
    # rip is DW_CFA_val_expression: const1u 136, minus, deref, lit19, minus, deref, plus_uconst MD_IP, deref
    .cfi_escape 0x16, 16, 10, 0x08, 136, 0x1c, 0x06, 0x43, 0x1c, 0x06, 0x23, {MD_IP}, 0x06
    endbr64
    pushfq
    .cfi_def_cfa_offset 144
0:  mov [rsp-8], rax
    mov [rsp-16], r12
    .cfi_offset r12, -160
    SKEP_BLOCK skep_attach_inside
    test r12, r12
    jz 11f
    mov rax, rsp
    sub rax, [r12+{BLOCK_ZONE}]
    and rax, -16
    ror rax, 4
    cmp rax, [r12+{BLOCK_ZONE_LEN}]
    jae 12f
    mov [rsp-24], r14
    .cfi_offset r14, -168
    mov [rsp-32], rbx
    .cfi_offset rbx, -176
    mov [rsp-40], rbp
    .cfi_offset rbp, -184
    mov [rsp-48], r13
    .cfi_offset r13, -192
    mov [rsp-56], r15
    .cfi_offset r15, -200
    mov r14, rsp
    .cfi_def_cfa_register r14
    and rsp, -16
    sub rsp, {IFRAME}
    mov [rsp+40], rdi
    mov [rsp+48], rsi
    mov [rsp+56], rdx
    mov [rsp+64], rcx
    mov [rsp+72], r8
    mov [rsp+80], r9
    mov rax, [r14-8]
    mov [rsp+144], rax
    mov [rsp+152], r10
    mov [rsp+160], r11
    mov [rsp+168], rbx
    mov [rsp+176], rbp
    mov rax, [r14-16]
    mov [rsp+184], rax
    mov [rsp+192], r13
    mov rax, [r14-24]
    mov [rsp+200], rax
    mov [rsp+208], r15
    lea rax, [r14+144]
    mov [rsp+216], rax
    mov rax, [r14]
    mov [rsp+224], rax
    mov rsi, [r14+8]
    mov rbp, [rsi-19]
    test ah, 4
    jnz 4f
2:  cmp qword ptr [r12], 0
    jne 8f
1:  mov [r12], rsp
    mov r15, [rbp+{MD_LIST}]
    SKEP_HEAD 0
    mov qword ptr [rsp], 0
    lea rbx, [r15+{LIST_ITEMS}]
    mov r13, [r15+{LIST_ENTRY_END}]
    cmp rbx, r13
    je 6f
    .p2align 4
5:  SKEP_RUN 0
    add rbx, {ITEM_SIZE}
    cmp rbx, r13
    jne 5b
6:  mov qword ptr [r12], 0
9:  mov rdi, [rsp+40]
    mov rsi, [rsp+48]
    mov rdx, [rsp+56]
    mov rcx, [rsp+64]
    mov r8, [rsp+72]
    mov r9, [rsp+80]
    mov r10, [rsp+152]
    mov r11, [rsp+160]
    mov rbx, [r14-32]
    mov rbp, [r14-40]
    mov r13, [r14-48]
    mov r15, [r14-56]
    mov r12, [r14-16]
    mov rsp, r14
    .cfi_remember_state
    .cfi_def_cfa rsp, 144
    mov r14, [rsp-24]
    .cfi_same_value rbx
    .cfi_same_value rbp
    .cfi_same_value r12
    .cfi_same_value r13
    .cfi_same_value r14
    .cfi_same_value r15
    # The flags, without popfq, which takes 20 cycles and more: overflow by an addition, the rest by sahf. The direction flag is 0
    # but in a few loops of hand-written code.
10: mov eax, [rsp]
    test ah, 4
    jnz 13f
7:  xchg al, ah
    shr al, 3
    and al, 1
    add al, 127
    sahf
    mov rax, [rsp-8]
    lea rsp, [rsp+8]
    .cfi_def_cfa_offset 136
    ret
13: .cfi_def_cfa_offset 144
    std
    jmp 7b
    .cfi_restore_state
4:  cld
    jmp 2b
8:  mov rdi, r12
    mov rdx, rsi
    mov rsi, rsp
    mov rcx, rbp
    call {slow_entry}
    test rax, rax
    jz 9b
    mov r12, rax
    jmp 1b
    # A thread without a block gets one and begins anew.
11: .cfi_def_cfa rsp, 144
    .cfi_same_value rbx
    .cfi_same_value rbp
    .cfi_same_value r13
    .cfi_same_value r14
    .cfi_same_value r15
    mov rax, [rsp-8]
    mov r12, [rsp-16]
    .cfi_same_value r12
    SKEP_SAVE_ALL 144
    cld
    mov rdi, [rsp+136]
    mov rsi, [rdi-19]
    SKEP_CALL_ALIGNED {new_thread}, 272
    test eax, eax
    SKEP_RESTORE_ALL 144
    jnz 0b
    mov [rsp-8], rax
    jmp 10b
12: mov rax, [rsp-8]
    mov r12, [rsp-16]
    SKEP_SAVE_ALL 144
    cld
    mov rdi, rsp
    lea rsi, [rsp+280]
    mov rdx, [rsp+136]
    mov rcx, [rdx-19]
    mov r8, [rsp+128]
    SKEP_CALL_ALIGNED {side_stack_entry}, 272
    SKEP_RESTORE_ALL 144
    mov [rsp-8], rax
    jmp 10b
    .cfi_def_cfa rsp, 144
    .cfi_offset r12, -160
    SKEP_CHECK skep_attach_inside, ax
    .cfi_endproc
    .size skep_attach_inside, . - skep_attach_inside

.macro SKEP_EXIT name, n
    .p2align 6
    .globl \name
    .hidden \name
    .type \name,@function
\name:
    .cfi_startproc
    .cfi_def_cfa rsp, 16
    endbr64
0:  SKEP_ENTER 272, \name, 18f, 19f
    mov rbp, [rsp]
    sub rsp, {XFRAME}+8*\n
    .cfi_def_cfa_offset {XFRAME}+8*\n+16
    # Whoever searches stacks for calls in progress knows the frame by this word and the metadata: they are there before the hook list
    # is read.
    lea rax, [rsp+{XFRAME}+8*\n+8]
    mov [rsp+8*\n+{X_SIZE}+216], rax
    cmp qword ptr [r12], 0
    jne 20f
    mov [r12], rsp
1:
    .if \n <= 8
    # Tail calls, see below, take the long way.
    lea rax, [rip + skep_attach_exit_0]
    cmp [rsp+8*\n+{XFRAME}+8], rax
    jae 31f
    mov rax, [rbp+{MD_LIST}]
    jmp qword ptr [rax+{LIST_AT_CALL}+8*(\n/8)]
    .globl \name\()_walk
    .hidden \name\()_walk
\name\()_walk:
    .endif
31: SKEP_SAVE 8*\n+{X_SIZE}, {XFRAME}+8*\n+16
    mov r15, [rbp+{MD_LIST}]
    SKEP_HEAD 8*\n+{X_SIZE}
    mov qword ptr [rsp+8*\n+{X_SESSIONS}], 0
    # Does the function return to an exit trampoline? Then a hooked function ended in a jump to this one.
    mov rcx, [rsp+8*\n+{XFRAME}+8]
    lea rdx, [rip + skep_attach_exit_0]
    cmp rcx, rdx
    jae 33f
15: cmp dword ptr [rbp+{MD_WANTS}], 0
    jne 22f
2:  lea rbx, [r15+{LIST_ITEMS}]
    mov r13, [r15+{LIST_ENTRY_END}]
    cmp rbx, r13
    je 5f
    .p2align 4
3:  mov rax, [rbx+{ITEM_SESSION}]
    test rax, rax
    js 24f
    # A session hook at entry: its word is zeroed, and whether it wants the return is kept with the attachment's number.
    lea rcx, [rsp+8*\n+rax*8+{X_WORDS}]
    mov qword ptr [rcx], 0
    mov [rsp+8*\n+{X_SIZE}], rcx
    SKEP_RUN 8*\n+{X_SIZE}
    cmp rax, 1
    jne 25f
4:  add rbx, {ITEM_SIZE}
    cmp rbx, r13
    jne 3b
5:  mov r13, [r15+{LIST_MOD_END}]
    cmp rbx, r13
    jne 26f
6:  mov rax, [rsp+8*\n+{X_SESSIONS}]
    mov rdx, [r15+{LIST_SEQ}]
    or rax, [r15+{LIST_EXITS}]
    cmp r13, [r15+{LIST_EXIT_END}]
    # From here on the hook list may be freed.
    mov qword ptr [r12], 0
    # No hook ever runs at this function's return: leave no frame behind.
    je 35f
    mov rcx, [rbp+{MD_BODY}]
    mov [rsp+8*\n+{X_SEQ}], rdx
    # Words of the Frame that are written before each run: whether anything wants this return, and the body.
    mov [rsp+8*\n+{X_SIZE}+16], rax
    mov [rsp+8*\n+{X_SIZE}], rcx
    .if \n == 8
    # The byte below the words is mapped: are they in its page?
    lea rax, [rsp+8*\n+{XFRAME}+15]
    and eax, 4095
    cmp eax, 4095-64
    ja 7f
    .set SKEP_I, 0
    .rept 8
    mov rax, [rsp+8*\n+{XFRAME}+16+8*SKEP_I]
    mov [rsp+8*SKEP_I], rax
    .set SKEP_I, SKEP_I+1
    .endr
    jmp 8f
    .endif
    .if \n
7:  mov rdi, rsp
    lea rsi, [rsp+8*\n+{XFRAME}+16]
    mov ecx, \n
    call skep_attach_copy
    .endif
8:  SKEP_RESTORE 8*\n+{X_SIZE}
    call qword ptr [rsp+8*\n+{X_SIZE}]
    cmp qword ptr [rsp+8*\n+{X_SIZE}+16], 0
    je 17f
9:  SKEP_NOT_SAVED
    mov [rsp+8*\n+{X_SIZE}+144], rax
    mov [rsp+8*\n+{X_SIZE}+176], rbp
    mov [rsp+8*\n+{X_SIZE}+184], r12
    mov rbp, [rsp+8*\n+{XFRAME}]
    SKEP_GUARD \name\()_return, 28f
    mov [r12], rsp
    .if \n <= 8
    mov rax, [rbp+{MD_LIST}]
    jmp qword ptr [rax+{LIST_AT_RETURN}+8*(\n/8)]
    .globl \name\()_walk_back
    .hidden \name\()_walk_back
\name\()_walk_back:
    .endif
    SKEP_SAVE_RETURN 8*\n+{X_SIZE}, {XFRAME}+8*\n+16
10: mov r15, [rbp+{MD_LIST}]
    mov rax, [rsp+8*\n+{X_SIZE}+144]
    mov rcx, [rsp+8*\n+{X_SIZE}+32]
    mov qword ptr [rsp+8*\n+{X_SIZE}], 0
    mov qword ptr [rsp+8*\n+{X_SIZE}+8], 1
    mov [rsp+8*\n+{X_SIZE}+rcx*8+40], rax
    mov rbx, [r15+{LIST_MOD_END}]
    mov r13, [r15+{LIST_EXIT_END}]
    cmp rbx, r13
    je 13f
    .p2align 4
11: mov rax, [rbx+{ITEM_SESSION}]
    test rax, rax
    jns 30f
    mov rax, [rbx+{ITEM_SEQ}]
    cmp rax, [rsp+8*\n+{X_SEQ}]
    ja 12f
    SKEP_RUN 8*\n+{X_SIZE}
12: add rbx, {ITEM_SIZE}
    cmp rbx, r13
    jne 11b
13: cmp dword ptr [rsp+8*\n+{X_SESSIONS}+4], 0
    jne 38f
16: mov qword ptr [r12], 0
14: SKEP_WIPE \n
    mov rax, [rsp+8*\n+{X_SIZE}+144]
    mov r10, [rsp+8*\n+{X_SIZE}+152]
    mov r11, [rsp+8*\n+{X_SIZE}+160]
    mov rbx, [rsp+8*\n+{X_SIZE}+168]
    mov rbp, [rsp+8*\n+{X_SIZE}+176]
    mov r12, [rsp+8*\n+{X_SIZE}+184]
    mov r13, [rsp+8*\n+{X_SIZE}+192]
    mov r15, [rsp+8*\n+{X_SIZE}+208]
    mov rdi, [rsp+8*\n+{X_SIZE}+224]
    mov rsi, [rsp+8*\n+{X_SIZE}+232]
    mov rdx, [rsp+8*\n+{X_SIZE}+240]
    mov rcx, [rsp+8*\n+{X_SIZE}+248]
    mov r8, [rsp+8*\n+{X_SIZE}+256]
    mov r9, [rsp+8*\n+{X_SIZE}+264]
    add rsp, {XFRAME}+8*\n+8
    .cfi_remember_state
    .cfi_def_cfa_offset 8
    ret
    .cfi_restore_state
    SKEP_NOT_SAVED
    .if \n <= 8
    # Where the code of a hook list goes on: to the body, in this frame,
    .globl \name\()_call
    .hidden \name\()_call
\name\()_call:
    mov rax, [rbp+{MD_BODY}]
    mov qword ptr [r12], 0
    mov [rsp+8*\n+{X_SIZE}], rax
    .if \n == 8
    # As above.
    lea rax, [rsp+8*\n+{XFRAME}+15]
    and eax, 4095
    cmp eax, 4095-64
    ja 39f
    .set SKEP_I, 0
    .rept 8
    mov rax, [rsp+8*\n+{XFRAME}+16+8*SKEP_I]
    mov [rsp+8*SKEP_I], rax
    .set SKEP_I, SKEP_I+1
    .endr
    .endif
40: SKEP_RESTORE_FIRST 8*\n+{X_SIZE}
    call qword ptr [rsp+8*\n+{X_SIZE}]
    cmp qword ptr [rsp+8*\n+{X_SIZE}+16], 0
    jne 9b
    .endif
17: SKEP_WIPE \n
    add rsp, {XFRAME}+8*\n+8
    .cfi_remember_state
    .cfi_def_cfa_offset 8
    ret
    .cfi_restore_state
    .if \n <= 8
    # to the body, without a frame,
    .globl \name\()_jump
    .hidden \name\()_jump
\name\()_jump:
    mov rax, [rbp+{MD_BODY}]
    mov qword ptr [r12], 0
    mov [rsp+8*\n+{XFRAME}], rax
    SKEP_WIPE \n
    SKEP_RESTORE_FIRST 8*\n+{X_SIZE}
    add rsp, {XFRAME}+8*\n+8
    .cfi_remember_state
    .cfi_def_cfa_offset 8
    jmp qword ptr [rsp-8]
    .cfi_restore_state
    # to the caller, with rax as the result,
    .globl \name\()_skip
    .hidden \name\()_skip
\name\()_skip:
    mov [rsp+8*\n+{X_SIZE}+144], rax
    xor edx, edx
    # and to the caller after a return.
    .globl \name\()_end
    .hidden \name\()_end
\name\()_end:
    mov qword ptr [r12], 0
    SKEP_WIPE \n
    SKEP_RESTORE_FIRST 8*\n+{X_SIZE}
    add rsp, {XFRAME}+8*\n+8
    .cfi_remember_state
    .cfi_def_cfa_offset 8
    ret
    .cfi_restore_state
    .if \n == 8
39: SKEP_SAVE 8*\n+{X_SIZE}, {XFRAME}+8*\n+16
    mov rdi, rsp
    lea rsi, [rsp+8*\n+{XFRAME}+16]
    mov ecx, 8
    call skep_attach_copy
    SKEP_RESTORE_CALLED 8*\n+{X_SIZE}
    jmp 40b
    .endif
    .endif
    # A call that runs no hooks goes on in the body as if it had not passed here. The word below rsp is in the red zone.
20: SKEP_SAVE 8*\n+{X_SIZE}, {XFRAME}+8*\n+16
    mov rdi, r12
    lea rsi, [rsp+8*\n+{XFRAME}]
    xor edx, edx
    mov rcx, rbp
    call {slow_entry}
    test rax, rax
    jz 21f
    mov r12, rax
    mov [r12], rsp
    SKEP_RESTORE_CALLED 8*\n+{X_SIZE}
    jmp 1b
21: SKEP_WIPE \n
    mov rax, [rbp+{MD_BODY}]
    mov [rsp+8*\n+{XFRAME}], rax
    SKEP_RESTORE 8*\n+{X_SIZE}
    add rsp, {XFRAME}+8*\n+8
    .cfi_remember_state
    .cfi_def_cfa_offset 8
    jmp qword ptr [rsp-8]
    .cfi_restore_state
22: SKEP_STACK_ARGS 8*\n+{X_SIZE}, 8*\n+{XFRAME}+16
    jmp 2b
24: mov qword ptr [rsp+8*\n+{X_SIZE}], 0
    SKEP_RUN 8*\n+{X_SIZE}
    jmp 4b
25: mov rcx, [rbx+{ITEM_SESSION}]
    mov rdx, [rbx+{ITEM_SEQ}]
    mov [rsp+8*\n+rcx*8+{X_IDS}], rdx
    # Through a register: the memory form with a register is microcode.
    mov rdx, [rsp+8*\n+{X_SESSIONS}]
    bts rdx, rcx
    mov [rsp+8*\n+{X_SESSIONS}], rdx
    jmp 4b
    # Hooks that may replace the function; the return value starts as 0, unless a register is still kept in its place.
26: mov rcx, [rsp+8*\n+{X_SIZE}+32]
    mov qword ptr [rsp+8*\n+{X_SIZE}], 0
    cmp rcx, 6
    jb 27f
    mov qword ptr [rsp+8*\n+{X_SIZE}+rcx*8+40], 0
27: SKEP_RUN 8*\n+{X_SIZE}
    test rax, rax
    jnz 32f
    # The hook says that 0 is the result.
    cmp qword ptr [rsp+8*\n+{X_SIZE}], 0
    jne 32f
    add rbx, {ITEM_SIZE}
    cmp rbx, r13
    jne 27b
    jmp 6b
28: .cfi_remember_state
    SKEP_NOT_SAVED
    SKEP_SAVE_RETURN 8*\n+{X_SIZE}, {XFRAME}+8*\n+16
    mov rdi, r12
    mov rsi, rsp
    mov rdx, rbp
    mov rcx, [rsp+8*\n+{X_SEQ}]
    call {slow_exit}
    test rax, rax
    jz 14b
    mov r12, rax
    mov [r12], rsp
    jmp 10b
    .cfi_restore_state
    # A session hook at return: only if its entry ran in this very call.
30: mov rcx, [rsp+8*\n+{X_SESSIONS}]
    bt rcx, rax
    jnc 12b
    mov rcx, [rbx+{ITEM_SEQ}]
    cmp rcx, [rsp+8*\n+rax*8+{X_IDS}]
    jne 12b
    lea rcx, [rsp+8*\n+rax*8+{X_WORDS}]
    mov [rsp+8*\n+{X_SIZE}], rcx
    SKEP_RUN 8*\n+{X_SIZE}
    mov qword ptr [rsp+8*\n+{X_SIZE}], 0
    jmp 12b
    # A tail call. Each leaves a frame behind, so a long chain of them would fill the stack: the thread's block keeps how many
    # there are, and where the next one's CFA would be.
33: lea rdx, [rip + skep_attach_event_end]
    cmp rcx, rdx
    jae 15b
    lea rcx, [rsp+8*\n+{XFRAME}+16]
    xor edx, edx
    mov rax, [r12+{BLOCK_TAIL}]
    mov rsi, [r12+{BLOCK_TAILS}]
    cmp rax, rcx
    cmove rdx, rsi
    inc rdx
    cmp rdx, {MAX_TAILS}
    ja 36f
    mov [rsp+8*\n+{X_TAIL}], rax
    mov [rsp+8*\n+{X_TAILS}], rsi
    mov [r12+{BLOCK_TAIL}], rsp
    mov [r12+{BLOCK_TAILS}], rdx
    mov byte ptr [rsp+8*\n+{X_SESSIONS}+7], 128
    jmp 15b
35: cmp dword ptr [rsp+8*\n+{X_SESSIONS}+4], 0
    je 21b
    SKEP_END_TAIL \n
    jmp 21b
36: mov rdi, rbp
    call {too_deep}
    mov qword ptr [r12], 0
    jmp 21b
38: SKEP_END_TAIL \n
    jmp 16b
    # The body is left out: rax is the return value, the rest as at entry.
32: mov rcx, [r15+{LIST_SEQ}]
    mov [rsp+8*\n+{X_SEQ}], rcx
    mov qword ptr [r12], 0
    mov [rsp+8*\n+{X_SIZE}+144], rax
    SKEP_RESTORE 8*\n+{X_SIZE}
    xor edx, edx
    jmp 9b
    # A thread without a block gets one and begins anew.
18: SKEP_REENTER 272
    SKEP_SAVE_ALL 16
    xor edi, edi
    mov rsi, [rsp+128]
    SKEP_CALL_ALIGNED {new_thread}, 144
    test eax, eax
    SKEP_RESTORE_ALL 16
    jnz 0b
23: # The word at CFA-16 becomes the body's address; from below the return address it is in the red zone.
    push rax
    .cfi_adjust_cfa_offset 8
    mov rax, [rsp+8]
    mov rax, [rax+{MD_BODY}]
    mov [rsp+8], rax
    pop rax
    .cfi_adjust_cfa_offset -8
    add rsp, 8
    .cfi_adjust_cfa_offset -8
    jmp qword ptr [rsp-8]
    .cfi_adjust_cfa_offset 8
19: SKEP_REENTER 272
    SKEP_SAVE_ALL 16
    mov rdi, rsp
    lea rsi, [rsp+144]
    mov rdx, [rsp+128]
    SKEP_CALL_ALIGNED {side_stack_call}, 144
    cmp rax, 1
    .cfi_remember_state
    ja 29f
    SKEP_RESTORE_ALL 16
    jb 23b
    # Left out: the registers are those of the return.
    add rsp, 8
    .cfi_adjust_cfa_offset -8
    ret
    # The SideFrame is at CFA-24 already. The registers come from this stack: whoever is interrupted here, and goes on much later, finds them.
29: .cfi_restore_state
    mov rbp, [rsp+128]
    mov rax, [rbp+{MD_BODY}]
    mov rbx, [rsp+72]
    mov rbp, [rsp+80]
    mov r15, [rsp+112]
    .cfi_same_value rbx
    .cfi_same_value rbp
    .cfi_same_value r12
    .cfi_same_value r13
    .cfi_same_value r14
    .cfi_same_value r15
    mov [rsp+112], rax
    .if \n
    # Where the copies go are the registers that calls change: those move below.
    lea rsp, [rsp+8-8*\n]
    .cfi_def_cfa_offset 136+8*\n
    .set SKEP_I, 0
    .rept 9
    mov rax, [rsp+8*\n-8+8*SKEP_I]
    mov [rsp+8*SKEP_I], rax
    .set SKEP_I, SKEP_I+1
    .endr
    lea rdi, [rsp+72]
    lea rsi, [rsp+136+8*\n]
    mov ecx, \n
    call skep_attach_copy
    .endif
    SKEP_RESTORE_CHANGED
    .if \n
    lea rsp, [rsp+72]
    .else
    lea rsp, [rsp+80]
    .endif
    .cfi_def_cfa_offset 64+8*\n
    call qword ptr [rsp+8*\n+32]
    SKEP_SAVE_ALL 64+8*\n
    mov rdi, rsp
    mov rsi, [rsp+128+8*\n+40]
    mov rdx, [rsp+128+8*\n+48]
    SKEP_CALL_ALIGNED {side_stack_return}, 192+8*\n
    SKEP_RESTORE_ALL 64+8*\n
    lea rsp, [rsp+56+8*\n]
    .cfi_def_cfa_offset 8
    ret
    SKEP_CHECK_ENTER 272, \name
    SKEP_SAVED 8*\n+{X_SIZE}, {XFRAME}+8*\n+16
    SKEP_NOT_SAVED
    SKEP_CHECK \name\()_return, ax
    .cfi_endproc
    .size \name, . - \name
.endm

SKEP_EXIT skep_attach_exit_0, 0
SKEP_EXIT skep_attach_exit_8, 8
SKEP_EXIT skep_attach_exit_32, 32
SKEP_EXIT skep_attach_exit_128, 128
SKEP_EXIT skep_attach_exit_512, 512

    .globl skep_attach_event_end
    .hidden skep_attach_event_end
skep_attach_event_end:

    .section .data.rel.skep_attach_table,"aw",@progbits
    .p2align 3
    .globl skep_attach_table
    .hidden skep_attach_table
    .type skep_attach_table,@object
    .size skep_attach_table, 8
skep_attach_table:
    .quad skep_attach_empty_table
    .p2align 3
skep_attach_empty_table:
    .quad 63, 1, 0, 0, 0, 0
    .text
