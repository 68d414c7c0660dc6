//! Hooked functions on every kind of stack: small, foreign, nearly used up, not aligned, aligned to
//! more than the convention asks. Results are what they are without hooks, every call is counted,
//! and the stack that hooks take is bounded.

mod support;

use skep_attach::sites::Function;
use skep_attach::{Engine, Missed, Position};
use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, Ordering};
use support::{Library, Seen, counter};

type F = extern "C" fn(i64) -> i64;
/// An attach test changes what other tests of the process run.
static ALONE: Mutex<()> = Mutex::new(());

const C: &str = r"
#define _GNU_SOURCE
#include <pthread.h>
#include <sched.h>
#include <setjmp.h>
#include <signal.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <ucontext.h>
#include <unistd.h>
#define N __attribute__((noinline))
N long leaf(long x) { __asm__ volatile('' : '+r'(x)); return x + 1; }
N long many(long a, long b, long c, long d, long e, long f, long g, long h) { return leaf(a) + b * 2 + c * 3 + d * 4 + e * 5 + f * 6 + g * 7 + h * 8; }
N long nest(long n) { return n == 0 ? leaf(0) : nest(n - 1) * 1 + 1; }

static ucontext_t back, there;
static long result;
static void start(void) { result = nest(8) * 1000 + many(1, 2, 3, 4, 5, 6, 7, 8); }
// On a stack of `size` bytes with nothing below it; how much of it was left at the lowest.
long coroutine(long size, long *left) {
    char *map = mmap(0, 0x20000, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0), *stack = map + 0x10000 - size;
    mprotect(map, 0x10000 - ((size + 4095) & -4096), PROT_NONE);
    for (long i = 0; i < size; i++) stack[i] = 0x5a;
    getcontext(&there);
    there.uc_stack.ss_sp = stack, there.uc_stack.ss_size = size, there.uc_link = &back;
    makecontext(&there, start, 0);
    swapcontext(&back, &there);
    for (*left = 0; *left < size && stack[*left] == 0x5a; ++*left) {}
    munmap(map, 0x20000);
    return result;
}

static sigjmp_buf out;
static long jumps;
static void jump(void) { if (jumps-- > 0) { leaf(1); siglongjmp(out, 1); } }
N long leaves(long n) { jump(); return n; }
static void leaving(void) { sigsetjmp(out, 0); leaves(3); }
// Calls on a foreign stack that are left by longjmp.
long jumper(long n) {
    char *stack = malloc(1 << 16);
    jumps = n;
    getcontext(&there);
    there.uc_stack.ss_sp = stack, there.uc_stack.ss_size = 1 << 16, there.uc_link = &back;
    makecontext(&there, leaving, 0);
    swapcontext(&back, &there);
    free(stack);
    return jumps;
}

static long handled;
static void on_signal(int s) { handled += nest(5) + many(1, 1, 1, 1, 1, 1, 1, 1); }
long on_signal_stack(long n) {
    size_t size = 16384;
    char *stack = mmap(0, size, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    stack_t s = {.ss_sp = stack, .ss_size = size}, none = {.ss_flags = SS_DISABLE}, before;
    struct sigaction a = {.sa_handler = on_signal, .sa_flags = SA_ONSTACK}, old;
    sigaltstack(&s, &before), sigaction(SIGUSR1, &a, &old);
    handled = 0;
    for (long i = 0; i < n; i++) raise(SIGUSR1);
    sigaction(SIGUSR1, &old, 0), sigaltstack(before.ss_sp ? &before : &none, 0), munmap(stack, size);
    return handled;
}

static char *level;
static long moved;
N long where(long x) { char c; __asm__ volatile('' :: 'r'(&c) : 'memory'); if (!level) level = &c; moved += level != &c; return x; }
long moves(long n) { level = 0, moved = 0; for (long i = 0; i < n; i++) where(i); return moved; }

static void *nests(void *n) { return (void *)nest((long)n); }
// A thread on 16 KiB in the middle of other memory: how much of the memory below was changed.
long given_stack(long n) {
    size_t size = 1 << 20;
    char *map = mmap(0, size, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0), *stack = map + size / 2;
    pthread_attr_t a;
    pthread_t t;
    void *r = 0;
    memset(map, 0x5a, size / 2);
    pthread_attr_init(&a), pthread_attr_setstack(&a, stack, 16384), pthread_create(&t, &a, nests, (void *)n), pthread_join(t, &r);
    long changed = (long)r != n + 1;
    for (char *p = map; p < stack; p++) changed += *p != 0x5a;
    munmap(map, size);
    return changed;
}
static pthread_barrier_t all;
static void *beside(void *n) {
    volatile long mark[64];
    for (int i = 0; i < 64; i++) mark[i] = 0x5a5a;
    pthread_barrier_wait(&all);
    long bad = n && nest((long)n) != (long)n + 1;
    pthread_barrier_wait(&all);
    for (int i = 0; i < 64; i++) bad += mark[i] != 0x5a5a;
    return (void *)bad;
}
// Threads whose stacks lie side by side in one mapping; every other one calls deeply.
long without_guards(long n) {
    enum { THREADS = 8 };
    pthread_attr_t a;
    pthread_t t[THREADS];
    long bad = 0;
    pthread_barrier_init(&all, 0, THREADS);
    pthread_attr_init(&a), pthread_attr_setstacksize(&a, 256 << 10), pthread_attr_setguardsize(&a, 0);
    for (long i = 0; i < THREADS; i++) pthread_create(&t[i], &a, beside, (void *)(i % 2 * n));
    for (long i = 0; i < THREADS; i++) { void *r; pthread_join(t[i], &r), bad += (long)r; }
    return bad;
}
static __thread ucontext_t t_back, t_there;
static void small(void) { nest(8); }
static void *on_coroutine(void *stack) {
    getcontext(&t_there);
    t_there.uc_stack.ss_sp = stack, t_there.uc_stack.ss_size = 2048, t_there.uc_link = &t_back;
    makecontext(&t_there, small, 0);
    swapcontext(&t_back, &t_there);
    return (void *)nest(100);
}
// A thread that is first seen on a small stack of somebody else: how much below that was changed.
long first_seen_elsewhere(long n) {
    char *map = malloc(1 << 16), *stack = map + (1 << 15);
    pthread_t t;
    void *r = 0;
    memset(map, 0x5a, 1 << 15);
    pthread_create(&t, 0, on_coroutine, stack), pthread_join(t, &r);
    long changed = (long)r != 101;
    for (char *p = map; p < stack; p++) changed += *p != 0x5a;
    free(map);
    return changed;
}

static int end(void *a) { _exit(leaf((long)a) == 8 ? 33 : 1); }
int (*volatile last)(void *) = end;
// Ends in a jump to code that is not known, so that words above its return address are copied; there are none.
N int at_the_top(void *a) { return last(a); }
long child_on_a_fresh_stack(long room) {
    char *map = mmap(0, 0x20000, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    mprotect(map + 0x4000, 0x10000, PROT_READ | PROT_WRITE);
    int status = 0, pid = clone(at_the_top, map + 0x14000 - room, CLONE_VM | CLONE_VFORK | SIGCHLD, (void *)7);
    waitpid(pid, &status, 0);
    munmap(map, 0x20000);
    return status;
}
";

const NAMES: [&str; 7] = ["leaf", "many", "nest", "leaves", "where", "at_the_top", "start"];

fn library(name: &str) -> Library {
    Library::new(
        name,
        &C.replace('\'', "\""),
        "c",
        &["-O1", "-pthread", "-fno-optimize-sibling-calls"],
    )
}

fn functions(lib: &Library) -> Vec<Function> {
    NAMES.iter().map(|n| lib.function(n)).collect()
}

/// Attaches hooks of every kind, one after the other, and hands over a counter for each function.
/// No call may be missed.
fn each_kind(lib: &Library, mut test: impl FnMut(Position, &[&'static Seen])) {
    each_kind_that_may_miss(lib, |position, counters| {
        test(position, counters);
        assert!(counters.iter().all(|s| s.missed() == 0), "{position:?}");
    });
}

fn each_kind_that_may_miss(lib: &Library, mut test: impl FnMut(Position, &[&'static Seen])) {
    let functions = functions(lib);
    let engine = Engine::get().expect("engine");
    for position in [Position::Entry, Position::Exit, Position::Session, Position::ModifyReturn] {
        let seen: Vec<_> =
            functions.iter().map(|_| Seen::leaked()).map(|s| (s.hook(position), s)).collect();
        let ids: Vec<u64> = functions
            .iter()
            .zip(&seen)
            .map(|(f, (hook, _))| {
                let done = engine.attach(&[(f, 7)], &[*hook]);
                assert_eq!(done.results, [Ok(())], "{}", f.name());
                done.id
            })
            .collect();
        let counters: Vec<&Seen> = seen.iter().map(|s| s.1).collect();
        test(position, &counters);
        for id in ids {
            assert!(engine.detach(id).expect("attached").drained);
        }
    }
}

const fn runs(position: Position) -> u64 {
    if matches!(position, Position::Session) { 2 } else { 1 }
}

#[test]
fn small_stacks_of_coroutines() {
    let _alone = ALONE.lock();
    let lib = library("coroutine");
    // SAFETY: the type is that of the C source.
    let coroutine: extern "C" fn(i64, &mut i64) -> i64 = unsafe { lib.get("coroutine") };
    let mut plain = 0;
    assert_eq!(coroutine(4096, &mut plain), 9205);
    each_kind(&lib, |position, seen| {
        for (n, size) in [(1, 2048), (2, 4096), (3, 65536)] {
            let mut left = 0;
            assert_eq!(coroutine(size, &mut left), 9205, "{position:?} on {size} bytes");
            assert_eq!(
                seen[..3].iter().map(|s| s.runs()).collect::<Vec<_>>(),
                [2, 1, 9].map(|calls| calls * n * runs(position))
            );
            // Code that is not optimized takes more.
            if size == 4096 && !cfg!(debug_assertions) {
                // Ten calls deep: for each 64 bytes and copies of arguments, and what one event
                // needs at the bottom.
                assert!(
                    plain - left < 10 * 144 + 512,
                    "{position:?}: {plain} bytes were left, now {left}"
                );
            }
        }
        let last = seen[0];
        assert_eq!((last.word(0), last.word(-3)), (1, 7), "the last call of `leaf`, by `many`");
        if position != Position::Entry && position != Position::ModifyReturn {
            assert_eq!((last.word(6), last.word(-4)), (2, 1));
        }
        // Code of hook lists is for hooks that read no more than six.
        if position == Position::Exit && !support::DIRECT {
            assert_eq!(
                (6..12).map(|n| seen[1].word(n)).collect::<Vec<_>>()[1..2],
                [8],
                "words of the caller's stack"
            );
        }
    });
}

/// Where a thread's stack ends cannot be told from mappings when somebody else's memory is right
/// below: frames and events were too large for such stacks, and changed that memory.
#[test]
fn stacks_with_somebody_elses_memory_below() {
    let _alone = ALONE.lock();
    let lib = library("below");
    // SAFETY: the types are those of the C source.
    let calls = ["given_stack", "without_guards", "first_seen_elsewhere"]
        .map(|name| unsafe { lib.get::<F>(name) });
    each_kind_that_may_miss(&lib, |position, seen| {
        let changed = calls.map(|f| f(100));
        assert_eq!(changed, [0; 3], "{position:?}");
        // In each thread that calls `nest`, `leaf` is called once; too deep on small stacks for its
        // return to be seen.
        let all = 7 * runs(position);
        assert!(
            (all - 7..=all).contains(&seen[0].runs()) && seen[0].runs() + seen[0].missed() >= 7,
            "{position:?}"
        );
    });
}

#[test]
fn signal_stacks() {
    let _alone = ALONE.lock();
    let lib = library("altstack");
    // SAFETY: the type is that of the C source.
    let on_signal_stack: F = unsafe { lib.get("on_signal_stack") };
    let plain = on_signal_stack(3);
    each_kind(&lib, |position, seen| {
        assert_eq!(on_signal_stack(50), plain / 3 * 50);
        assert_eq!(
            seen[..3].iter().map(|s| s.runs()).collect::<Vec<_>>(),
            [100, 50, 300].map(|n| n * runs(position))
        );
    });
}

/// What waits for the return of calls that never return is found and used again.
#[test]
fn calls_on_foreign_stacks_that_are_left_by_longjmp() {
    let _alone = ALONE.lock();
    let lib = library("jumper");
    // SAFETY: the type is that of the C source.
    let jumper: F = unsafe { lib.get("jumper") };
    each_kind(&lib, |position, seen| {
        const N: i64 = 120_000;
        assert_eq!(jumper(N), -1);
        let (leaf, leaves) = (seen[0].runs(), seen[3].runs());
        assert_eq!(leaf, N as u64 * runs(position));
        let returned = if position == Position::Exit {
            1
        } else {
            N as u64 + 1 + u64::from(position == Position::Session)
        };
        assert_eq!(leaves, returned, "{position:?}");
    });
}

#[test]
fn a_function_finds_its_locals_where_they_were() {
    let _alone = ALONE.lock();
    let lib = library("moves");
    // SAFETY: the type is that of the C source.
    let moves: F = unsafe { lib.get("moves") };
    static CALLS: AtomicU64 = AtomicU64::new(0);
    /// Declines its return in three of four calls.
    unsafe extern "C" fn sometimes(_: *mut u64, _: *const ()) -> u64 {
        u64::from(!CALLS.fetch_add(1, Ordering::Relaxed).is_multiple_of(4))
    }
    let engine = Engine::get().expect("engine");
    let hook = Seen::leaked().hook_of(Position::Session, sometimes);
    let done = engine.attach(&[(&lib.function("where"), 0)], &[hook]);
    assert_eq!((&done.results[..], moves(1000)), (&[Ok(())][..], 0));
    engine.detach(done.id).expect("attached");
    assert!(CALLS.load(Ordering::Relaxed) > 1000);
}

/// `clone3` starts the child of `posix_spawn` at the very end of its stack: nothing is mapped above
/// the return address.
#[test]
fn children_at_the_end_of_their_stack() {
    let _alone = ALONE.lock();
    let lib = library("fresh");
    // SAFETY: the type is that of the C source.
    let child: F = unsafe { lib.get("child_on_a_fresh_stack") };
    each_kind(&lib, |position, seen| {
        let mut calls = 0;
        for room in [0, 16, 64, 4096] {
            for _ in 0..3 {
                calls += 1;
                assert_eq!(child(room), 33 << 8, "{position:?}, {room} bytes above");
                assert_eq!(seen[0].runs(), calls * runs(position));
            }
        }
    });
}

/// A recursion that takes nearly all of a stack: hooks take at most half of it, and every call is
/// counted.
#[test]
fn deep_recursion() {
    let _alone = ALONE.lock();
    let lib = library("deep");
    let nest: usize = {
        // SAFETY: an address.
        unsafe { lib.get("nest") }
    };
    let run = |n: i64| {
        let thread = std::thread::Builder::new().stack_size(8 << 20).spawn(move || {
            // SAFETY: the type is that of the C source.
            let nest: F = unsafe { std::mem::transmute(nest) };
            nest(n)
        });
        thread.expect("thread").join().expect("thread")
    };
    let engine = Engine::get().expect("engine");
    let f = lib.function("nest");
    // 16 or 32 bytes a call: three or seven megabytes of eight.
    let n = 110_000;
    assert_eq!(run(n), n + 1);
    for position in [Position::Entry, Position::Exit, Position::Session, Position::ModifyReturn] {
        for without_return in [0, 1 << 63] {
            let (hook, seen) = counter(position);
            let done = engine.attach(&[(&f, 5)], &[hook.without_return(without_return)]);
            assert_eq!((&done.results[..], run(n)), (&[Ok(())][..], n + 1));
            let (runs, missed, calls) = (seen.runs(), seen.missed(), n as u64 + 1);
            let stack = seen.missed[Missed::Stack as usize].load(Ordering::SeqCst);
            match position {
                Position::Entry | Position::ModifyReturn => assert_eq!((runs, missed), (calls, 0)),
                Position::Exit => assert_eq!((runs + missed, stack), (calls, missed)),
                // Both runs of some, one run or none of the others.
                Position::Session if without_return == 0 => {
                    assert_eq!((runs % 2, runs / 2 + missed, stack), (0, calls, missed))
                }
                Position::Session => assert!(
                    missed == 0 && runs > calls && runs < 2 * calls,
                    "{runs} runs, {missed} missed"
                ),
            }
            if position != Position::Entry && position != Position::ModifyReturn {
                assert!(runs > 10_000, "{position:?}: {runs} runs");
            }
            engine.detach(done.id).expect("attached");
        }
    }
}

/// Parts of one large function in assembly that call each other read the frame they share: padding
/// between the code told nothing of the stack, and that was believed. (libcrypto's `bn_mulx4x`
/// computed nonsense.)
#[test]
fn a_shared_frame_is_read_behind_padding() {
    const ASM: &str = r"
    .text
    .globl shares, part
    .type part,@function
part: .cfi_startproc
    mov ecx, 3
    jmp 1f
    .p2align 6
1:  add rax, [rsp+0x88]
    dec ecx
    jne 1b
    ret
    .cfi_endproc
    .size part, . - part
    .type shares,@function
shares: .cfi_startproc
    sub rsp, 0x108
    .cfi_adjust_cfa_offset 0x108
    mov [rsp+0x80], rdi
    xor eax, eax
    call part
    add rsp, 0x108
    .cfi_adjust_cfa_offset -0x108
    ret
    .cfi_endproc
    .size shares, . - shares
";
    let _alone = ALONE.lock();
    let source =
        format!(".intel_syntax noprefix\n{ASM}\n.section .note.GNU-stack,\"\",@progbits\n");
    let lib = Library::new("shares", &source, "S", &["-nostdlib"]);
    // SAFETY: takes and gives a number.
    let shares: F = unsafe { lib.get("shares") };
    let engine = Engine::get().expect("engine");
    for position in [Position::Entry, Position::ModifyReturn, Position::Exit, Position::Session] {
        let (hook, seen) = counter(position);
        let done = engine.attach(&[(&lib.function("part"), 0)], &[hook]);
        assert_eq!(
            (&done.results[..], shares(14), seen.runs()),
            (&[Ok(())][..], 42, runs(position))
        );
        engine.detach(done.id).expect("attached");
    }
}

/// gcc's `-mpreferred-stack-boundary=6`, and assembly that calls with a stack that is not aligned
/// at all.
#[test]
fn alignments() {
    const ASM: &str = r"
    .text
    .globl rest, odd
    .type rest,@function
rest: lea rax, [rsp]
    and eax, 63
    ret
    .size rest, . - rest
    .type odd,@function
odd: push rbx
    lea rbx, [rsp]
    sub rsp, rdi
    call rest
    mov rsp, rbx
    pop rbx
    ret
    .size odd, . - odd
";
    let _alone = ALONE.lock();
    let source =
        format!(".intel_syntax noprefix\n{ASM}\n.section .note.GNU-stack,\"\",@progbits\n");
    let lib = Library::new("alignments", &source, "S", &["-nostdlib"]);
    // SAFETY: takes and gives a number.
    let odd: F = unsafe { lib.get("odd") };
    let call = |by: i64| odd(by);
    let plain: Vec<i64> = (0..64).map(call).collect();
    let engine = Engine::get().expect("engine");
    let f = lib.function("rest");
    for position in [Position::Entry, Position::ModifyReturn, Position::Session] {
        let (hook, seen) = counter(position);
        let done = engine.attach(&[(&f, 0)], &[hook]);
        // It looks at its return address, so that only its entry can be hooked; where it can, the
        // result is the same.
        if done.results == [Ok(())] {
            assert_eq!((0..64).map(call).collect::<Vec<_>>(), plain, "{position:?}");
            assert_eq!(seen.runs(), 64 * runs(position));
        }
        engine.detach(done.id).expect("attached");
    }
    let c = "__attribute__((noinline)) long rest(long x) { int a[16] __attribute__((aligned(64))); __asm__ volatile(\"\" :: \"r\"(a) : \"memory\"); return ((long)a & 63) + x; }\n\
             __attribute__((force_align_arg_pointer)) long all(long n) { long bad = 0; for (long i = 0; i < n; i++) bad += rest(i) != i; return bad; }\n";
    let lib = Library::new("aligned64", c, "c", &["-O2", "-mpreferred-stack-boundary=6"]);
    // SAFETY: the type is that of the C source.
    let all: F = unsafe { lib.get("all") };
    for position in [Position::Entry, Position::ModifyReturn, Position::Exit, Position::Session] {
        let (hook, seen) = counter(position);
        let done = engine.attach(&[(&lib.function("rest"), 0)], &[hook]);
        assert_eq!(
            (&done.results[..], all(100), seen.runs()),
            (&[Ok(())][..], 0, 100 * runs(position))
        );
        engine.detach(done.id).expect("attached");
    }
}
