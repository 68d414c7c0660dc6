//! Beginnings of functions that are hard to hook: each is either hooked, and behaves, or left alone
//! for the right reason.

mod support;

use skep_attach::{Engine, Hook, Position, Skip};
use support::{Library, counter};

/// Each function takes a number and returns one.
const ASM: &str = r#"
    .intel_syntax noprefix
    .macro F name
    .p2align 4, 0xcc
    .globl \name
    .hidden \name
    .type \name,@function
\name:
    .cfi_startproc
    .endm
    .macro E name
    .cfi_endproc
    .size \name, . - \name
    .endm
    .text
F jump_back          # a loop whose head is the second instruction
    mov eax, edi
1:  inc rax
    dec rdi
    jns 1b
    ret
E jump_back
F loop_at_entry      # a loop whose head is the first one
    lea rax, [rdi+rdi]
    dec rdi
    jns loop_at_entry
    ret
E loop_at_entry
F jump_from_outside  # another function jumps to its second instruction
    mov eax, edi
    add eax, 5
    ret
E jump_from_outside
F the_outside
    mov eax, 7
    jmp jump_from_outside+2
E the_outside
F only_ret           # shorter than a jump, with padding
    ret
E only_ret
    .p2align 4, 0xcc
F short_nops         # shorter than a jump, padded with no-operations
    mov eax, edi
    ret
E short_nops
    .p2align 4
    .globl crowded
    .hidden crowded
    .type crowded,@function
crowded:
    .cfi_startproc   # shorter than a jump, and the next function follows at once
    mov eax, edi
    ret
E crowded
    .globl crowding
    .hidden crowding
    .type crowding,@function
crowding:
    .cfi_startproc
    lea eax, [rdi+9]
    ret
E crowding
F rip_load           # operands relative to the instruction, with and without an immediate behind them
    mov rax, [rip + value]
    add rax, rdi
    ret
E rip_load
F rip_compare
    cmp dword ptr [rip + value], 1000
    sete al
    movzx eax, al
    add rax, rdi
    ret
E rip_compare
F rip_own            # its own address, taken
    lea rax, [rip + rip_own]
    lea rcx, [rip + rip_own]
    sub rax, rcx
    add rax, rdi
    ret
E rip_own
F call_first         # the callee sees where it returns to
    call where
    add rax, rdi
    ret
E call_first
where:
    mov rax, [rsp]
    lea rcx, [rip + call_first + 5]
    sub rax, rcx
    ret
F call_pointer_first
    call [rip + pointer]
    add rax, rdi
    ret
E call_pointer_first
F call_register      # a short call, which would return among the changed bytes
    push rdi
    call rsi
    pop rdi
    mov rax, rdi
    ret
E call_register
F table_into         # a jump table with an entry in the middle of the first bytes
    mov eax, edi
    inc eax
    inc eax
    cmp edi, 1
    ja 1f
    lea rcx, [rip + table]
    movsxd rdx, dword ptr [rcx + rdi*4]
    add rdx, rcx
    mov edi, 9
    notrack jmp rdx
1:  ret
E table_into
F thunk
    jmp rip_load
E thunk
F short_thunk
    jmp 1f
E short_thunk
    .p2align 4, 0xcc
1:  lea rax, [rdi+2]
    ret
F branch_first
    test edi, edi
    je 1f
    lea rax, [rdi+1]
    ret
1:  mov eax, 100
    ret
E branch_first
F counted_jump       # has no long form
    mov rcx, rdi
    jrcxz 1f
    nop
1:  lea rax, [rdi+1]
    ret
E counted_jump
F breakpoint
    int3
    lea rax, [rdi+1]
    ret
E breakpoint
F endbr_short
    endbr64
    mov eax, edi
    ret
E endbr_short
F behind_endbr       # also reached behind its endbr64
    endbr64
    lea rax, [rdi+4]
    ret
E behind_endbr
F to_behind_endbr
    inc rdi
    jmp behind_endbr+4
E to_behind_endbr
F pushes
    push rbx
    push rbp
    push r12
    pop r12
    pop rbp
    pop rbx
    lea rax, [rdi+3]
    ret
E pushes
F system_call
    push rdi
    mov eax, 39
    syscall
    pop rax
    ret
E system_call
F thread_local
    mov rax, fs:[0]
    mov rcx, fs:[0]
    sub rax, rcx
    add rax, rdi
    ret
E thread_local
F asks_caller
    mov rax, [rsp]
    lea rax, [rdi+8]
    ret
E asks_caller
F undecodable
    .byte 0x06, 0x06, 0x06, 0x06, 0x06
E undecodable
F nop_inside
    .byte 0x0f, 0x1f, 0x44, 0x00, 0x00
    lea rax, [rdi+6]
    ret
E nop_inside
F tail_stack         # hands its stack arguments on by a jump
    mov rax, [rsp+8]
    mov rax, rdi
    ret
E tail_stack
F shares_frame       # leaves a word in the frame of its caller
    mov [rsp+8], rdi
    lea rax, [rdi+1]
    ret
E shares_frame
F frame_owner
    sub rsp, 24
    mov qword ptr [rsp], 50
    call shares_frame
    mov rax, [rsp]
    add rsp, 24
    ret
E frame_owner
F own_convention     # gives its results in registers that others have to keep
    lea rbx, [rdi+1]
    lea rbp, [rdi+20]
    lea r12, [rdi+300]
    lea r13, [rdi+4000]
    lea r14, [rdi+50000]
    lea r15, [rdi+600000]
    ret
E own_convention
F convention_owner
    push rbx
    push rbp
    push r12
    push r13
    push r14
    push r15
    call own_convention
    lea rax, [rbx+rbp]
    add rax, r12
    add rax, r13
    add rax, r14
    add rax, r15
    pop r15
    pop r14
    pop r13
    pop r12
    pop rbp
    pop rbx
    ret
E convention_owner
    .data
value: .quad 1000
pointer: .quad where2
    .text
where2:
    mov rax, [rsp]
    lea rcx, [rip + call_pointer_first + 6]
    sub rax, rcx
    ret
    .section .rodata
    .p2align 2
table: .long table_into + 2 - table, 1b - table
    .section .note.GNU-stack,"",@progbits
"#;

type F = extern "C" fn(i64, extern "C" fn()) -> i64;

extern "C" fn nothing() {}

fn callable(lib: &Library, name: &str) -> F {
    // SAFETY: every function of the text takes a number and perhaps a function.
    unsafe { std::mem::transmute::<u64, F>(lib.function(name).addr()) }
}

/// What each function is expected to give: for entry hooks, and for exit hooks.
fn expected(name: &str, result: &Result<(), Skip>, exit: bool) -> bool {
    match name {
        "jump_back" => matches!(result, Err(Skip::JumpInto { offset: 2, .. })),
        "jump_from_outside" => matches!(result, Err(Skip::JumpInto { offset: 2, .. })),
        "loop_at_entry" => matches!(result, Err(Skip::LoopAtEntry { .. })),
        "crowded" => matches!(result, Err(Skip::TooShort { room: 3 })),
        "call_register" => matches!(result, Err(Skip::Unmovable { offset: 1, .. })),
        "table_into" => matches!(result, Err(Skip::JumpInto { .. })),
        "counted_jump" => matches!(result, Err(Skip::Unmovable { offset: 3, .. })),
        "breakpoint" => matches!(result, Err(Skip::Unmovable { offset: 0, .. })),
        "undecodable" => matches!(result, Err(Skip::Undecodable { offset: 0 })),
        "asks_caller" | "shares_frame" if exit => matches!(result, Err(Skip::NoExit { .. })),
        _ => *result == Ok(()),
    }
}

const NAMES: &[&str] = &[
    "jump_back",
    "loop_at_entry",
    "jump_from_outside",
    "the_outside",
    "only_ret",
    "short_nops",
    "crowded",
    "crowding",
    "rip_load",
    "rip_compare",
    "rip_own",
    "call_first",
    "call_pointer_first",
    "call_register",
    "table_into",
    "thunk",
    "short_thunk",
    "branch_first",
    "counted_jump",
    "breakpoint",
    "endbr_short",
    "behind_endbr",
    "to_behind_endbr",
    "pushes",
    "system_call",
    "thread_local",
    "asks_caller",
    "undecodable",
    "nop_inside",
    "tail_stack",
    "shares_frame",
    "own_convention",
];

/// Functions that only others written for them can call.
const OWNERS: &[(&str, &str)] =
    &[("shares_frame", "frame_owner"), ("own_convention", "convention_owner")];

#[test]
fn each_is_hooked_or_left_alone() {
    let lib = Library::new("hazards", ASM, "S", &["-nostdlib"]);
    let engine = Engine::get().expect("engine");
    let call = |name: &str| -> i64 {
        if name == "breakpoint" || name == "undecodable" || name == "only_ret" {
            return 0;
        }
        let owner = OWNERS.iter().find(|o| o.0 == name).map_or(name, |o| o.1);
        callable(&lib, owner)(1, nothing)
    };
    let plain: Vec<i64> = NAMES.iter().map(|n| call(n)).collect();
    for positions in [
        &[Position::Entry][..],
        &[Position::Exit],
        &[Position::Entry, Position::Exit, Position::Session],
    ] {
        for (name, plain) in NAMES.iter().zip(&plain) {
            let f = lib.function(name);
            let counters: Vec<_> = positions.iter().map(|p| counter(*p)).collect();
            let hooks: Vec<Hook> = counters.iter().map(|c| c.0).collect();
            let done = engine.attach(&[(&f, 0)], &hooks);
            let exit = positions != [Position::Entry];
            assert!(
                expected(name, &done.results[0], exit),
                "{name} with {positions:?}: {:?}",
                done.results[0]
            );
            assert_eq!(call(name), *plain, "{name} with {positions:?}");
            let runs: Vec<u64> = counters.iter().map(|c| c.1.runs()).collect();
            let once = done.results[0].is_ok() && !matches!(*name, "only_ret");
            let want = |p: &Position| u64::from(once) * if *p == Position::Session { 2 } else { 1 };
            assert_eq!(
                runs,
                positions.iter().map(want).collect::<Vec<_>>(),
                "{name} with {positions:?}"
            );
            engine.detach(done.id).expect("attached");
            assert_eq!(call(name), *plain, "{name} after {positions:?}");
        }
    }
}

/// Where a jump is, is told as the file has it: where the library lies differs from run to run.
#[test]
fn places_are_those_of_the_file() {
    let lib = Library::new("places", ASM, "S", &["-nostdlib"]);
    let Ok(out) = std::process::Command::new("nm").arg(&lib.path).output() else {
        return skep_testkit::skip("nm");
    };
    let text = String::from_utf8(out.stdout).expect("names of this file");
    let start = |name: &str| {
        let line = text.lines().find(|line| line.ends_with(&format!(" {name}"))).expect("a symbol");
        u64::from_str_radix(&line[..16], 16).expect("an address")
    };
    let engine = Engine::get().expect("engine");
    let (hook, _) = counter(Position::Entry);
    // The jump, behind how much of which function.
    for (name, owner, behind) in [
        ("jump_back", "jump_back", 8),
        ("loop_at_entry", "loop_at_entry", 7),
        ("jump_from_outside", "the_outside", 5),
    ] {
        let done = engine.attach(&[(&lib.function(name), 0)], &[hook]);
        let from = match done.results[..] {
            [Err(Skip::JumpInto { from, .. } | Skip::LoopAtEntry { from })] => from,
            _ => panic!("{name}: {done:?}"),
        };
        assert_eq!(from, start(owner) + behind, "{name}");
    }
}

/// All at once, as a pattern that matches everything would.
#[test]
fn all_together() {
    let lib = Library::new("together", ASM, "S", &["-nostdlib"]);
    let engine = Engine::get().expect("engine");
    let functions: Vec<_> = NAMES.iter().map(|n| lib.function(n)).collect();
    let targets: Vec<_> = functions.iter().map(|f| (f, f.addr())).collect();
    let (entry, seen) = counter(Position::Entry);
    let (exit, left) = counter(Position::Exit);
    let done = engine.attach(&targets, &[entry]);
    let more = engine.attach(&targets, &[exit]);
    for (n, name) in NAMES.iter().enumerate() {
        assert!(expected(name, &done.results[n], false), "{name}: {:?}", done.results[n]);
        assert!(expected(name, &more.results[n], true), "{name}: {:?}", more.results[n]);
    }
    let jumps = callable(&lib, "to_behind_endbr");
    assert_eq!(jumps(1, nothing), 6);
    assert_eq!((seen.runs(), left.runs()), (2, 2));
    engine.detach(more.id).expect("attached");
    assert_eq!(jumps(1, nothing), 6);
    assert_eq!((seen.runs(), left.runs()), (4, 2));
    assert_eq!(
        engine.attach(&[targets[8], targets[8]], &[entry]).results,
        [Ok(()), Err(Skip::Duplicate)]
    );
    engine.detach(done.id).expect("attached");
}
