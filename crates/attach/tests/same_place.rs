//! A library is closed, and another one comes to lie at its addresses: what was learnt about the
//! first one's code counts for the second one's no more.

mod support;

use skep_attach::{Engine, Position};
use std::collections::HashMap;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};
use support::{Library, counter};

type F = extern "C" fn(i64) -> i64;

/// Which library lies where is the process's.
static ALONE: Mutex<()> = Mutex::new(());

fn alone() -> MutexGuard<'static, ()> {
    ALONE.lock().unwrap_or_else(PoisonError::into_inner)
}

/// A library with one function, which begins a page of code.
fn library(name: &str, body: &str) -> Library {
    let source = format!(
        ".intel_syntax noprefix\n.p2align 12\n.globl f\n.type f,@function\nf:\n.cfi_startproc\n{body}\n.cfi_endproc\n.size f, . - f\n\
         .section .note.GNU-stack,\"\",@progbits\n"
    );
    Library::new(name, &source, "S", &["-nostdlib"])
}

/// Ends what waits for it, also when a test fails.
struct End<'a>(&'a AtomicBool);

impl Drop for End<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::SeqCst);
    }
}

/// A plugin that was built again: its function begins with the same five bytes, but the instruction
/// at their end has another operand, which was moved once.
#[test]
fn a_library_that_was_built_again() {
    let _alone = alone();
    let engine = Engine::get().expect("engine");
    let mut places: HashMap<u64, i64> = HashMap::new();
    let mut again = 0;
    for round in 0..40 {
        let add = 1000 + round;
        let lib = library("again", &format!("lea eax, [rdi+1]\nlea eax, [rax+rax+{add}]\nret"));
        // SAFETY: the type is that of the assembly.
        let f: F = unsafe { lib.get("f") };
        again += i64::from(places.insert(f as *const () as u64, add).is_some());
        let position = if round % 2 == 0 { Position::Entry } else { Position::Exit };
        let (hook, seen) = counter(position);
        let done = engine.attach(&[(&lib.function("f"), 0)], &[hook]);
        assert_eq!(done.results, [Ok(())], "round {round}");
        assert_eq!((f(4), seen.runs()), (10 + add, 1), "round {round}");
        engine.detach(done.id).expect("attached");
        assert_eq!((f(4), seen.runs()), (10 + add, 1), "round {round}");
        lib.close();
    }
    assert!(again > 10, "libraries came to lie where others had been: {again} of 40");
}

/// Threads that are stopped while code changes go on at the copies of the instructions they were
/// about to run. A thread in a loop of the second library is no such thread, though an instruction
/// of the first one began where its loop does.
#[test]
fn threads_of_the_next_library_go_on_where_they_were() {
    let _alone = alone();
    let engine = Engine::get().expect("engine");
    let other = library("other", "mov rax, rdi\nadd rax, 1\nret");
    let other = other.function("f");
    let end = AtomicBool::new(false);
    let mut again = 0;
    std::thread::scope(|scope| {
        let _end = End(&end);
        // With it the process is not alone.
        scope.spawn(|| {
            while !end.load(Ordering::SeqCst) {
                std::hint::spin_loop();
            }
        });
        for round in 0..8 {
            let (hook, _) = counter(Position::Entry);
            let first = library("first", "mov rax, rdi\nadd rax, 1\nret\n.zero 8");
            // SAFETY: the type is that of the assembly.
            let place = unsafe { first.get::<F>("f") } as *const () as u64;
            let done = engine.attach(&[(&first.function("f"), 0)], &[hook]);
            assert_eq!(done.results, [Ok(())], "round {round}");
            engine.detach(done.id).expect("attached");
            first.close();

            // The thread is stopped before the branch, or before the pair, as the processor has it.
            let before = if round % 2 == 0 { "" } else { "nop dword ptr [rax]" };
            let second = library(
                "second",
                &format!("{before}\n2: dec rdi\njnz 2b\nmov eax, 42\nret\n.zero 8"),
            );
            // SAFETY: the type is that of the assembly.
            let f: F = unsafe { second.get("f") };
            again += i32::from(f as *const () as u64 == place);
            let enough = AtomicBool::new(false);
            std::thread::scope(|scope| {
                let enough_here = End(&enough);
                for _ in 0..2 {
                    scope.spawn(|| {
                        while !enough.load(Ordering::SeqCst) {
                            assert_eq!(f(1000), 42);
                        }
                    });
                }
                for _ in 0..10 {
                    let done = engine.attach(&[(&other, 0)], &[hook]);
                    assert_eq!(done.results, [Ok(())], "round {round}");
                    engine.detach(done.id).expect("attached");
                }
                drop(enough_here);
            });
            second.close();
        }
    });
    assert!(again > 0, "the second library came to lie where the first had been: {again} of 8");
}
