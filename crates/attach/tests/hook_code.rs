//! The tests of the engine once more, with hooks for which hook lists get code of their own; and what only
//! such code can do wrong.

#![expect(clippy::duplicate_mod, reason = "each of the files is a test of its own, too")]

#[path = "hazards.rs"]
mod hazards;
#[path = "life.rs"]
mod life;
#[path = "quiescence.rs"]
mod quiescence;
#[path = "registers.rs"]
mod registers;
#[path = "stacks.rs"]
mod stacks;
#[path = "storm.rs"]
mod storm;
mod support;
#[path = "switches.rs"]
mod switches;

use skep_attach::{DirectCall, Engine, Hook, Position};
use std::ptr;
use std::sync::atomic::{AtomicU64, Ordering};
use support::{Library, Seen, record};

unsafe extern "C" {
    fn setenv(name: *const std::ffi::c_char, value: *const std::ffi::c_char, replace: i32) -> i32;
    #[link_name = "skep_test_destroyers"]
    fn destroyers(ctx: *mut u8) -> u64;
    #[link_name = "skep_test_session"]
    fn session(ctx: *mut u8) -> u64;
    #[link_name = "skep_test_never"]
    fn never(ctx: *mut u64, data: *const ()) -> u64;
    #[link_name = "skep_test_give"]
    static GIVE: AtomicU64;
    #[link_name = "skep_test_session_runs"]
    static SESSION_RUNS: [AtomicU64; 4];
}

/// Runs before anything else of the process: each file counts on it that no test of another file runs
/// beside its own.
#[used]
#[unsafe(link_section = ".init_array")]
static ONE_BY_ONE: extern "C" fn() = one_by_one;

extern "C" fn one_by_one() {
    // SAFETY: the process has one thread.
    assert_eq!(unsafe { setenv(c"RUST_TEST_THREADS".as_ptr(), c"1".as_ptr(), 1) }, 0);
}

std::arch::global_asm!(
    // Functions 32 bytes apart; number n destroys rax, and of the other eight those that n has bits for.
    ".p2align 5",
    "skep_test_destroyers:",
    ".set skep_test_n, 0",
    ".rept 256",
    ".p2align 5",
    "xor eax, eax",
    ".if skep_test_n & 1",
    "mov cl, 77",
    ".endif",
    ".if skep_test_n & 2",
    "mov dl, 77",
    ".endif",
    ".if skep_test_n & 4",
    "mov sil, 77",
    ".endif",
    ".if skep_test_n & 8",
    "mov dil, 77",
    ".endif",
    ".if skep_test_n & 16",
    "mov r8b, 77",
    ".endif",
    ".if skep_test_n & 32",
    "mov r9b, 77",
    ".endif",
    ".if skep_test_n & 64",
    "mov r10b, 77",
    ".endif",
    ".if skep_test_n & 128",
    "mov r11b, 77",
    ".endif",
    "ret",
    ".set skep_test_n, skep_test_n+1",
    ".endr",
    ".p2align 4",
    // Counts its runs before and after, adds up the words that it finds, keeps 77 in its word, and gives a number.
    "skep_test_session:",
    "mov rax, [rdi-32]",
    "lea rdx, [rip + skep_test_session_runs]",
    "inc qword ptr [rdx+rax*8]",
    "mov rcx, [rdi-40]",
    "mov rsi, [rcx]",
    "add [rdx+rax*8+16], rsi",
    "mov qword ptr [rcx], 77",
    "mov rax, [rip + skep_test_give]",
    "ret",
    "skep_test_never: ud2",
    ".pushsection .bss.skep_test_words, \"aw\", @nobits",
    ".p2align 3",
    "skep_test_give: .zero 8",
    "skep_test_session_runs: .zero 32",
    ".popsection",
);

/// Numbers of the registers that the bits of a destroyer's number mean.
const REGISTERS: [u16; 8] = [1, 2, 6, 7, 8, 9, 10, 11];
const ALL: u16 = 0b1111_1100_0110;
static ON: AtomicU64 = AtomicU64::new(1);

/// A hook that has no code but what is called directly.
fn direct(position: Position, run: unsafe extern "C" fn(*mut u8) -> u64, changes: u16) -> Hook {
    let reads = (1 << 18) - 1;
    let call = DirectCall { run, changes, reads, word: (&raw const ON, 1), thread_word: None };
    // SAFETY: the functions of this file, which change what the caller says; the walk is never led to the
    // one that fails, as the word never changes.
    unsafe { Hook::new(position, never, ptr::null()).calls_directly(call) }
}

/// Whatever a hook changes, and only if it says so, is as it was for the program.
#[test]
fn every_register_survives_hooks_that_destroy_some() {
    for n in [0, 255, 1, 2, 4, 8, 16, 32, 64, 128, 0b0101_1010] {
        let changes = REGISTERS.iter().enumerate().filter(|(bit, _)| n >> bit & 1 != 0);
        let changes = changes.fold(0, |sum, (_, register)| sum | 1 << register);
        let run = (destroyers as *const ()).wrapping_byte_add(n * 32);
        // SAFETY: a function of that type begins there.
        let run =
            unsafe { std::mem::transmute::<*const (), unsafe extern "C" fn(*mut u8) -> u64>(run) };
        for position in [Position::Entry, Position::Exit, Position::Session, Position::ModifyReturn]
        {
            registers::check(&[direct(position, run, changes)], &format!("{position:?} {n:#x}"));
        }
        let both = [Position::Session, Position::Exit, Position::Session, Position::Entry];
        registers::check(&both.map(|p| direct(p, run, changes)), &format!("four, {n:#x}"));
    }
}

const C: &str = "long add(long a, long b) { return a * 3 + b; }
long stack(long a, long b, long c, long d, long e, long f, long g, long h) { return a + g * h; }";

/// The words of a frame are the same by either way.
#[test]
fn hooks_read_what_the_walk_would_show_them() {
    type Stack = extern "C" fn(i64, i64, i64, i64, i64, i64, i64, i64) -> i64;
    for (flags, name) in
        [(&["-O2"][..], "words"), (&["-O2", "-fpatchable-function-entry=5"], "nops")]
    {
        let lib = Library::new(name, C, "c", flags);
        // SAFETY: the types of the C source.
        let (add, stack): (extern "C" fn(i64, i64) -> i64, Stack) =
            unsafe { (lib.get("add"), lib.get("stack")) };
        let engine = Engine::get().expect("engine");
        for position in [Position::Entry, Position::Exit, Position::Session, Position::ModifyReturn]
        {
            for (function, args) in [("add", None), ("add", Some(2)), ("stack", None)] {
                let mut f = lib.function(function);
                f.set_nr_args(args);
                let [one, other] = [Seen::leaked(), Seen::leaked()];
                let mut results = Vec::new();
                for hook in [one.hook(position), other.hook_of(position, record).wants_args(6)] {
                    let done = engine.attach(&[(&f, 1234)], &[hook]);
                    assert_eq!(done.results, [Ok(())]);
                    results.push(match function {
                        "add" => add(5, 7),
                        _ => stack(1, 2, 3, 4, 5, 6, 7, 8),
                    });
                    engine.detach(done.id).expect("attached");
                }
                assert_eq!(results[0], results[1]);
                assert_eq!(one.runs(), other.runs());
                let what = format!("{name} {position:?} {function} {args:?}");
                for n in -4..6 {
                    assert_eq!(one.word(n), other.word(n), "{what}: word {n}");
                }
                // The word's address, where there is one.
                assert_eq!(one.word(-5) == 0, other.word(-5) == 0, "{what}");
                if matches!(position, Position::Exit | Position::Session) {
                    let at = args.map_or(6, i32::from);
                    assert_eq!(one.word(at), results[0] as u64, "{what}: result");
                }
            }
        }
    }
}

/// Sessions see their own word again, and only if they wanted the return.
#[test]
fn sessions_keep_their_word() {
    let lib = Library::new("session", C, "c", &["-O2"]);
    // SAFETY: the type of the C source.
    let add: extern "C" fn(i64, i64) -> i64 = unsafe { lib.get("add") };
    let engine = Engine::get().expect("engine");
    let f = lib.function("add");
    let hook = || direct(Position::Session, session, ALL);
    let counter = || support::counter(Position::Exit).0;
    // SAFETY: words that are only used as atomics.
    let (give, runs) = unsafe { (&GIVE, &SESSION_RUNS) };
    for (hooks, sessions) in [
        (vec![hook()], 1),
        (vec![hook(), hook(), hook(), hook()], 4),
        (vec![hook(), counter(), hook()], 2),
    ] {
        for skips in [0, 1] {
            give.store(skips, Ordering::Relaxed);
            runs.iter().for_each(|word| word.store(0, Ordering::Relaxed));
            let done = engine.attach(&[(&f, 0)], &hooks);
            assert_eq!(done.results, [Ok(())]);
            for n in 0..1000 {
                assert_eq!(add(n, 1), n * 3 + 1);
            }
            engine.detach(done.id).expect("attached");
            let calls = 1000 * sessions;
            let after = calls * (1 - skips);
            let seen = runs.each_ref().map(|word| word.load(Ordering::Relaxed));
            assert_eq!(seen, [calls, after, 0, after * 77], "{sessions} sessions, {skips}");
        }
    }
}

/// Where a condition does not hold, the hook's own code runs.
#[test]
fn the_walk_runs_hooks_whose_conditions_do_not_hold() {
    static WORD: AtomicU64 = AtomicU64::new(0);
    static OWNER: AtomicU64 = AtomicU64::new(0);
    let lib = Library::new("conditions", C, "c", &["-O2"]);
    // SAFETY: the type of the C source.
    let add: extern "C" fn(i64, i64) -> i64 = unsafe { lib.get("add") };
    let engine = Engine::get().expect("engine");
    let f = lib.function("add");
    let thread: u64;
    // The first word that the thread pointer leads to is the pointer itself.
    // SAFETY: reads it.
    unsafe { std::arch::asm!("mov {}, fs:[0]", out(reg) thread, options(nostack, readonly)) };
    for position in [Position::Entry, Position::Exit, Position::Session, Position::ModifyReturn] {
        let seen = Seen::leaked();
        let call = DirectCall {
            run: destroyers,
            changes: ALL,
            reads: 0,
            word: (&raw const WORD, 5),
            thread_word: Some((&raw const OWNER, 0)),
        };
        // SAFETY: the code is a test hook's; the function that is called directly does nothing.
        let hook = unsafe { seen.hook_of(position, record).wants_args(6).calls_directly(call) };
        let done = engine.attach(&[(&f, 0)], &[hook]);
        assert_eq!(done.results, [Ok(())]);
        for (word, owner, direct) in
            [(0, thread, false), (5, 0, false), (5, thread + 1, false), (5, thread, true)]
        {
            WORD.store(word, Ordering::Relaxed);
            OWNER.store(owner, Ordering::Relaxed);
            let before = seen.runs();
            assert_eq!(add(5, 7), 22);
            assert_eq!(seen.runs() == before, direct, "{position:?} {word} {owner:#x}");
        }
        engine.detach(done.id).expect("attached");
    }
}

/// A function is left out with the result, the second word of which is 0.
#[test]
fn a_result_in_the_place_of_the_function() {
    let lib = Library::new("skips", C, "c", &["-O2"]);
    // SAFETY: the type of the C source, but for a second word of the result.
    let add: extern "C" fn(i64, i64, i64) -> i128 = unsafe { lib.get("add") };
    let engine = Engine::get().expect("engine");
    let (seen, entry) = (Seen::leaked(), Seen::leaked());
    seen.give.store(-22_i64 as u64, Ordering::Relaxed);
    let hooks = [entry.hook(Position::Entry), seen.hook(Position::ModifyReturn)];
    let done = engine.attach(&[(&lib.function("add"), 0)], &hooks);
    assert_eq!(done.results, [Ok(())]);
    assert_eq!(add(1, 2, 3) as u128, u128::from(-22_i64 as u64));
    assert_eq!((seen.runs(), entry.runs()), (1, 1));
    seen.give.store(0, Ordering::Relaxed);
    assert_eq!(add(1, 2, 3) as i64, 5);
    engine.detach(done.id).expect("attached");
}
