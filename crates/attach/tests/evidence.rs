//! Which hooks a function gets is decided by what says that it is a function, and by the runtime
//! whose code it is.
//!
//! Programs of Go, OCaml, GHC, mono and V8 used to die of exit hooks in their own code. The
//! libraries here have the marks of those runtimes; the real ones are run by the tests of the
//! command.

mod support;

use skep_attach::{Engine, Position, Skip};
use support::{Library, Seen};

/// Attaches at the entry only, and at both ends.
fn attach(lib: &Library, name: &str) -> [Result<(), Skip>; 2] {
    let engine = Engine::get().unwrap();
    let function = lib.function(name);
    [Position::Entry, Position::Session].map(|position| {
        let attachment = engine.attach(&[(&function, 0)], &[Seen::leaked().hook(position)]);
        engine.detach(attachment.id).unwrap();
        attachment.results.into_iter().next().unwrap()
    })
}

fn all(lib: &Library, name: &str) {
    assert_eq!(attach(lib, name), [Ok(()), Ok(())], "{name}");
}

fn entry_only(lib: &Library, name: &str, reason: &str) {
    let [entry, both] = attach(lib, name);
    assert_eq!(entry, Ok(()), "{name}");
    assert!(matches!(both, Err(Skip::NoExit { why }) if why.contains(reason)), "{name}: {both:?}");
}

fn nothing(lib: &Library, name: &str, reason: &str) {
    for result in attach(lib, name) {
        assert!(
            matches!(result, Err(Skip::Denied { why }) if why.contains(reason)),
            "{name}: {result:?}"
        );
    }
}

/// `F`: a symbol with a type; `C`: one with unwind information as compilers write it.
const MACROS: &str = "
    .intel_syntax noprefix
    .macro F name
    .p2align 4, 0xcc
    .type \\name,@function
\\name:
    .endm
    .macro E name
    .size \\name, . - \\name
    .endm
    .macro C name
    F \\name
    .cfi_startproc
    lea rax, [rdi+1]
    ret
    .cfi_endproc
    E \\name
    .endm
    .macro A name
    F \\name
    lea rax, [rdi+2]
    ret
    E \\name
    .endm
    .section .note.GNU-stack,\"\",@progbits
    .text
";

fn library(name: &str, text: &str) -> Library {
    Library::new(name, &format!("{MACROS}{text}\n"), "S", &["-nostdlib"])
}

#[test]
fn a_frame_needs_unwind_information_and_a_hook_a_size() {
    let lib = library(
        "evidence",
        "
        C compiled
        A assembly
    F label
        lea rax, [rdi+3]
        ret
        .p2align 4
    F unsized
        .cfi_startproc
        lea rax, [rdi+4]
        ret
        .cfi_endproc
        .p2align 4
    F whole
        .cfi_startproc
        add rdi, 100000
    F second
        push rbx
        .cfi_adjust_cfa_offset 8
        lea rax, [rdi+5]
    F inside
        pop rbx
        .cfi_adjust_cfa_offset -8
        nop
        nop
        nop
        nop
        ret
    E inside
        .cfi_endproc
    E second
    E whole
    F handler
        .cfi_startproc
        .cfi_def_cfa_offset 80
        lea rax, [rdi+6]
        jmp rbx
        .cfi_endproc
    E handler
    F thread_start
        .cfi_startproc
        .cfi_undefined rip
        xor ebp, ebp
        lea rax, [rdi+6]
        hlt
        .cfi_endproc
    E thread_start
    F restorer
        .cfi_startproc
        .cfi_signal_frame
        mov eax, 15
        syscall
        .cfi_endproc
    E restorer",
    );
    all(&lib, "compiled");
    entry_only(&lib, "assembly", "no unwind information");
    nothing(&lib, "label", "neither a size nor unwind information");
    all(&lib, "unsized");
    assert_eq!(lib.function("unsized").size(), 5, "the unwind information knows it");
    all(&lib, "whole");
    all(&lib, "second");
    nothing(&lib, "inside", "inside of another function");
    for name in ["handler", "thread_start", "restorer"] {
        nothing(&lib, name, "not entered by a call");
    }
}

/// Parts that the compiler moved away have no names in a stripped file. One was taken to reach to
/// the next function, and what the parts of other functions do to their frames, for use of the
/// return address.
#[test]
fn nameless_parts_of_functions_end_where_the_next_begins() {
    let lib = library(
        "parts",
        "
    F shallow
        .cfi_startproc
        push rbx
        .cfi_def_cfa_offset 16
        test rdi, rdi
        js .Lshallow
        lea rax, [rdi+1]
.Lback: pop rbx
        .cfi_def_cfa_offset 8
        ret
        .cfi_endproc
    E shallow
    F deep
        .cfi_startproc
        sub rsp, 56
        .cfi_def_cfa_offset 64
        test rdi, rdi
        js .Ldeep
        cmp rdi, 5
        je .Ldeep2
        lea rax, [rdi+1]
        add rsp, 56
        .cfi_def_cfa_offset 8
        ret
        .cfi_endproc
    E deep
        .p2align 4, 0xcc
.Lshallow:
        .cfi_startproc
        .cfi_def_cfa_offset 16
        .cfi_offset rbx, -16
        xor eax, eax
        jmp .Lback
        .cfi_endproc
.Ldeep: .cfi_startproc
        .cfi_def_cfa_offset 64
        pop rcx
        pop rcx
        add rsp, 40
        .cfi_def_cfa_offset 8
        ret
        .cfi_def_cfa_offset 64
.Ldeep2:
        mov rax, [rsp+56]   # the return address indeed
        add rsp, 56
        .cfi_def_cfa_offset 8
        ret
        .cfi_endproc
        C after",
    );
    all(&lib, "shallow");
    entry_only(&lib, "deep", "uses its own return address");
}

#[test]
fn runtimes_are_known_by_their_marks_and_their_c_code_is_not_theirs() {
    let ocaml = |version: &str| {
        let text = format!(
            "
            C c_before
        camlUnit__code_begin:
            C camlUnit__f_7
        camlUnit__code_end:
        camlEmpty__code_begin:
        camlEmpty__code_end:
            C caml_alloc_string
        caml_system__code_begin:
            C caml_call_gc
            C {version}
        caml_system__code_end:"
        );
        library(version, &text)
    };
    let four = ocaml("caml_c_call");
    for name in ["camlUnit__f_7", "caml_call_gc"] {
        entry_only(&four, name, "OCaml");
    }
    let five = ocaml("caml_runstack");
    for name in ["camlUnit__f_7", "caml_call_gc"] {
        nothing(&five, name, "OCaml 5");
    }
    for lib in [&four, &five] {
        all(lib, "c_before");
        all(lib, "caml_alloc_string");
    }

    let v8 =
        library("v8", "A Builtins_LdaZeroHandler\nA Builtins_Abort\nA padlock\nC v8_Initialize");
    nothing(&v8, "Builtins_LdaZeroHandler", "V8");
    nothing(&v8, "Builtins_Abort", "V8");
    entry_only(&v8, "padlock", "no unwind information");
    all(&v8, "v8_Initialize");

    let haskell = library("haskell", "A Main_main_info\nA stg_ap_v_fast\nA stg_yieldzh\nC hs_init");
    for name in ["Main_main_info", "stg_ap_v_fast", "stg_yieldzh"] {
        nothing(&haskell, name, "Haskell");
    }
    all(&haskell, "hs_init");
    let package = library("package", "A base_GHCziBase_map_info\nA assembly\nC get_info");
    nothing(&package, "base_GHCziBase_map_info", "Haskell");
    entry_only(&package, "assembly", "no unwind information");
    all(&package, "get_info");

    let mono =
        library("mono", "jit_code_start:\nA System_Object_ToString\nC wrapper\njit_code_end:");
    nothing(&mono, "System_Object_ToString", "mono");
    nothing(&mono, "wrapper", "mono");

    let net = library(
        "net",
        "C RhpNewFast\n.section __managedcode,\"ax\",@progbits\nC Program__Main\n.text",
    );
    nothing(&net, "Program__Main", ".NET");
    all(&net, "RhpNewFast");
}

/// A function that begins with a check of the stack begins again when there is room: one call
/// passes its first instruction twice. The hook stands behind the check.
#[test]
fn a_call_that_grows_its_stack_counts_once() {
    let lib = library(
        "go",
        "
        .section .go.buildinfo,\"aw\"
limit:  .quad -1
        .quad 0
        .text
        # As Go's compiler writes them, with the limit in a place of its own; r14 holds the thread's in Go.
    F main.small
        cmp rsp, [rip+limit]
        jbe 1f
        push rbp
        mov rbp, rsp
        sub rsp, 16
        lea rax, [rdi+1]
        add rsp, 16
        pop rbp
        ret
1:      mov [rsp+8], rax
        call runtime.morestack
        mov rax, [rsp+8]
        jmp main.small
    E main.small
    F main.medium
        lea r12, [rsp-300]
        cmp r12, [rip+limit]
        jbe 1f
        push rbp
        mov rbp, rsp
        lea rax, [rdi+1]
        pop rbp
        ret
1:      call runtime.morestack
        jmp main.medium
    E main.medium
    F main.large
        mov r12, rsp
        sub r12, 70000
        jb 1f
        cmp r12, [rip+limit]
        jbe 1f
        push rbp
        mov rbp, rsp
        lea rax, [rdi+1]
        pop rbp
        ret
1:      call runtime.morestack
        jmp main.large
    E main.large
    F main.loop        # jumps to where the hook would stand
        cmp rsp, [rip+limit]
        jbe 1f
2:      lea rax, [rdi+1]
        dec rdi
        cmp rdi, 0
        jg 2b
        ret
1:      call runtime.morestack
        jmp main.loop
    E main.loop
    F main.leaf
        lea rax, [rdi+1]
        test rdi, rdi
        jns 1f
        xor eax, eax
1:      ret
    E main.leaf
    F main.padded      # reaches to the next function, where nobody says how long it is
        lea rax, [rdi+1]
        ret
        .fill 27, 1, 0xcc
    E main.padded
    F main.short
        ret
        .fill 31, 1, 0xcc
    E main.short
    F main.trap        # a breakpoint between instructions is none of padding
        lea rax, [rdi+1]
        int3
        ret
        .fill 8, 1, 0xcc
    E main.trap
    F main.nosplit     # calls, and nobody knows how deep it is
        call main.leaf
        nop
        ret
    E main.nosplit
    F main.frame       # a frame too large for what is left
        sub rsp, 500
        lea rax, [rdi+1]
        add rsp, 500
        ret
    E main.frame
    A runtime.leaf
    A main.assembly.abi0
    F runtime.morestack
        mov qword ptr [rip+limit], 0
        ret
    E runtime.morestack
    F main.lookalike   # a comparison and a branch, but what it leads to does not begin again
        cmp rdi, [rip+limit]
        jbe 1f
        lea rax, [rdi+1]
        ret
1:      call runtime.morestack
        ret
    E main.lookalike
        C x_cgo_init
    # Go's functions keep no register, and write to the words above their return address.
    .globl enter
    .type enter,@function
enter:  .cfi_startproc
        push rbp
        push rbx
        push r12
        push r13
        push r14
        push r15
        sub rsp, 40
        mov rax, rdi
        mov rdi, rsi
        call rax
        add rsp, 40
        pop r15
        pop r14
        pop r13
        pop r12
        pop rbx
        pop rbp
        ret
        .cfi_endproc
        .size enter, . - enter
    .globl shrink
    .type shrink,@function
shrink: .cfi_startproc
        mov qword ptr [rip+limit], -1
        ret
        .cfi_endproc
        .size shrink, . - shrink",
    );
    let engine = Engine::get().unwrap();
    // SAFETY: the function takes and gives nothing.
    let shrink: extern "C" fn() = unsafe { lib.get("shrink") };
    // SAFETY: calls a function that takes a number and gives one.
    let enter: extern "C" fn(u64, i64) -> i64 = unsafe { lib.get("enter") };
    for name in ["main.small", "main.medium", "main.large", "main.leaf", "main.padded"] {
        entry_only(&lib, name, "Go moves its stacks");
        let function = lib.function(name);
        let call = |n: i64| enter(function.addr(), n);
        let seen = Seen::leaked();
        let attachment = engine.attach(&[(&function, 0)], &[seen.hook(Position::Entry)]);
        for n in 0..10 {
            if n % 3 == 0 {
                shrink();
            }
            assert_eq!(call(n), n + 1, "{name}");
        }
        assert_eq!(seen.runs(), 10, "{name}");
        engine.detach(attachment.id).unwrap();
        assert_eq!((call(41), seen.runs()), (42, 10), "{name}");
    }
    for name in [
        "main.nosplit",
        "main.trap",
        "main.frame",
        "main.lookalike",
        "runtime.leaf",
        "runtime.morestack",
        "main.assembly.abi0",
    ] {
        assert_eq!(attach(&lib, name)[0], Err(Skip::NoStackCheck), "{name}");
    }
    entry_only(&lib, "main.short", "Go moves its stacks");
    assert!(matches!(attach(&lib, "main.loop")[0], Err(Skip::LoopAtEntry { .. })));
    all(&lib, "x_cgo_init");
}
