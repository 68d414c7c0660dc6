//! Hooks see a call as it was made, and the call does not notice.

mod support;

use skep_attach::{Engine, Position};
use std::sync::atomic::Ordering;
use support::{Library, Seen};

const C: &str = r"
long add(long a, long b) { return a * 3 + b; }
long sum12(long a, long b, long c, long d, long e, long f, long g, long h, long i, long j, long k, long l)
{ return a + 2*b + 3*c + 4*d + 5*e + 6*f + 7*g + 8*h + 9*i + 10*j + 11*k + 12*l; }
double mix(int a, double b, float c, long d, double e) { return a + b * c - d / e; }
";

type Add = extern "C" fn(i64, i64) -> i64;
type Sum12 = extern "C" fn(i64, i64, i64, i64, i64, i64, i64, i64, i64, i64, i64, i64) -> i64;

fn every_position(flags: &[&str], name: &str) {
    let lib = Library::new(name, C, "c", flags);
    // SAFETY: the types are those of the C source.
    let (add, sum12, mix): (Add, Sum12, extern "C" fn(i32, f64, f32, i64, f64) -> f64) =
        unsafe { (lib.get("add"), lib.get("sum12"), lib.get("mix")) };
    let functions = [lib.function("add"), lib.function("sum12"), lib.function("mix")];
    let engine = Engine::get().expect("engine");
    let calls = || {
        assert_eq!(add(5, 7), 22);
        assert_eq!(sum12(1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12), 650);
        assert_eq!(mix(3, 2.5, 4.0, 9, 2.0), 8.5);
    };
    for position in [Position::Entry, Position::Exit, Position::Session, Position::ModifyReturn] {
        let seen: Vec<_> = functions.iter().map(|_| Seen::leaked()).collect();
        let mut ids = Vec::new();
        for (f, s) in functions.iter().zip(&seen) {
            let done = engine.attach(&[(f, f.addr() ^ 99)], &[s.hook(position)]);
            assert_eq!(done.results, [Ok(())], "{position:?} {}", f.name());
            ids.push(done.id);
        }
        calls();
        for (f, s) in functions.iter().zip(&seen) {
            assert_eq!(
                s.runs(),
                if position == Position::Session { 2 } else { 1 },
                "{position:?} {}",
                f.name()
            );
            assert_eq!(s.word(-2), f.addr());
            assert_eq!(s.word(-3), f.addr() ^ 99);
            assert_eq!(s.word(-1), 6);
            assert_eq!(
                s.word(-4),
                u64::from(matches!(position, Position::Exit | Position::Session))
            );
            assert_eq!(s.missed(), 0);
        }
        assert_eq!((seen[0].word(0), seen[0].word(1)), (5, 7));
        let at_entry = matches!(position, Position::Entry);
        for n in 0..12 {
            let want = if n == 6 && !at_entry {
                if position == Position::ModifyReturn { 0 } else { 650 }
            } else {
                n as u64 + 1
            };
            assert_eq!(seen[1].word(n), want, "{position:?} word {n}");
        }
        for id in ids {
            let gone = engine.detach(id).expect("attached");
            assert_eq!((gone.restored + gone.bypassed, gone.drained), (1, true));
        }
        calls();
        assert!(seen.iter().all(|s| s.runs() <= 2));
    }
}

#[test]
fn plain_code_every_position() {
    every_position(&["-O2"], "plain");
    every_position(&["-O0"], "plain0");
    every_position(&["-O2", "-fcf-protection"], "cet");
}

#[test]
fn compiled_in_sites_every_position() {
    every_position(&["-O2", "-fpatchable-function-entry=5"], "pfe");
    every_position(&["-O2", "-fpatchable-function-entry=5", "-fcf-protection"], "pfecet");
}

#[test]
fn modify_return_skips_the_body() {
    let lib = Library::new("modify", C, "c", &["-O2"]);
    // SAFETY: the type is that of the C source.
    let add: Add = unsafe { lib.get("add") };
    let f = lib.function("add");
    let engine = Engine::get().expect("engine");
    let (first, second, exit) = (Seen::leaked(), Seen::leaked(), Seen::leaked());
    first.give.store(-22i64 as u64, Ordering::SeqCst);
    let hooks = [
        exit.hook(Position::Exit),
        first.hook(Position::ModifyReturn),
        second.hook(Position::ModifyReturn),
    ];
    let done = engine.attach(&[(&f, 0)], &hooks);
    assert_eq!(done.results, [Ok(())]);
    assert_eq!(add(1, 2), -22);
    assert_eq!((first.runs(), second.runs(), exit.runs()), (1, 0, 1));
    assert_eq!(exit.word(6), -22i64 as u64);
    first.give.store(0, Ordering::SeqCst);
    assert_eq!(add(1, 2), 5);
    assert_eq!((first.runs(), second.runs(), exit.runs()), (2, 1, 2));
    assert_eq!(exit.word(6), 5);
    engine.detach(done.id).expect("attached");
}

/// A function may be known by its types only after something else was attached to it; what is in
/// registers stays what it was, also where the slot of the result lies over one of them.
#[test]
fn the_result_stands_behind_the_arguments_that_are_known() {
    const THIRD: &str = r#"
    long add(long a, long b) { return a * 3 + b; }
    __attribute__((naked)) long third(long a, long b) { __asm__("mov %rdx, %rax\n nop\n nop\n nop\n ret"); }
    "#;
    let lib = Library::new("known", THIRD, "c", &["-O2"]);
    // SAFETY: the types are those of the C source; the other reads a register that it is given as
    // well.
    let (add, third): (Add, extern "C" fn(i64, i64, i64) -> i64) =
        unsafe { (lib.get("add"), lib.get("third")) };
    let engine = Engine::get().expect("engine");
    for position in [Position::Exit, Position::Session, Position::ModifyReturn] {
        for name in ["add", "third"] {
            let unknown = lib.function(name);
            let known = |n| {
                let mut known = unknown.clone();
                known.set_nr_args(Some(n));
                known
            };
            let (before, seen, after) = (Seen::leaked(), Seen::leaked(), Seen::leaked());
            let first = engine.attach(&[(&unknown, 0)], &[before.hook(position)]);
            let second = engine.attach(&[(&known(2), 0)], &[seen.hook(position)]);
            assert_eq!((&first.results[..], &second.results[..]), (&[Ok(())][..], &[Ok(())][..]));
            let third_one = engine.attach(&[(&known(3), 0)], &[after.hook(position)]);
            assert_eq!(
                third_one.results,
                [Err(skep_attach::Skip::Arguments)],
                "who is attached was told of two"
            );
            let result = if name == "add" { add(5, 7) } else { third(5, 7, 77) };
            assert_eq!(result, if name == "add" { 22 } else { 77 }, "{position:?} {name}");
            for s in [before, seen] {
                assert_eq!((s.word(-1), s.word(0), s.word(1)), (2, 5, 7), "{position:?} {name}");
                let returned = position != Position::ModifyReturn;
                assert!(
                    !returned || s.word(2) == result as u64,
                    "{position:?} {name}: {}",
                    s.word(2)
                );
            }
            for id in [first.id, second.id] {
                engine.detach(id).expect("attached");
            }
            // Nobody is left to whom it matters.
            let again = engine.attach(&[(&known(3), 0)], &[after.hook(Position::Exit)]);
            assert_eq!(again.results, [Ok(())]);
            assert_eq!(
                (if name == "add" { add(1, 2) } else { third(1, 2, 3) }, after.word(-1)),
                (if name == "add" { 5 } else { 3 }, 3)
            );
            engine.detach(again.id).expect("attached");
        }
    }
}

/// Functions that end in jumps to each other have arguments of each other: `even` reads none on the
/// stack itself, and hands on those of `odd`, by which it was come to first.
#[test]
fn functions_in_a_circle_have_each_others_arguments() {
    const CIRCLE: &str = r#"
    __asm__(".text\n"
    ".macro function name, other, result\n"
    " .globl \\name\n .type \\name, @function\n"
    "\\name: .cfi_startproc\n sub $1, %rdi\n js 1f\n jmp \\other\n"
    "1: mov \\result, %rax\n ret\n .cfi_endproc\n"
    " .size \\name, .-\\name\n .p2align 4\n"
    ".endm\n"
    "function odd, third, 32(%rsp)\n"
    "function third, even, $7\n"
    "function even, odd, $5\n"
    "function lone, lone_target, $1\n"
    "function lone_target, odd, $2\n");
    "#;
    let lib = Library::new("circle", CIRCLE, "c", &["-O2", "-Wl,-Bsymbolic"]);
    let names = ["odd", "third", "even", "lone", "lone_target"];
    let functions = names.map(|name| lib.function(name));
    let all: Vec<_> = functions.iter().map(|f| (f, 0)).collect();
    let engine = Engine::get().expect("engine");
    let seen = Seen::leaked();
    let done = engine.attach(&all, &[seen.hook(Position::Exit)]);
    assert_eq!(done.results, [const { Ok(()) }; 5]);
    // SAFETY: it takes ten words, and those that it leads to as many.
    let calls: [Sum12; 5] = unsafe { names.map(|name| lib.get(name)) };
    let mut results = Vec::new();
    for call in calls {
        for steps in 0..5 {
            results.push(call(steps, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12));
        }
    }
    engine.detach(done.id).expect("attached");
    assert_eq!(
        results,
        [10, 7, 5, 10, 7, 7, 5, 10, 7, 5, 5, 10, 7, 5, 10, 1, 2, 10, 7, 5, 2, 10, 7, 5, 10]
    );
}
