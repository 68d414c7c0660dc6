//! After an attachment was taken away: when can no thread be inside any more?

mod support;

use skep_attach::sites::Function;
use skep_attach::{Engine, Position};
use std::fs::File;
use std::io::{Read, Write};
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};
use std::sync::Mutex;
use std::time::Duration;
use support::{Library, counter};

/// Tells on `ready` that it was called, and sleeps until something comes from `go`. `bytes`: how
/// far down the stack.
const C: &str = r"
#include <unistd.h>
__attribute__((noinline)) int waits(int ready, int go) {
    char c = 0;
    return write(ready, &c, 1) == 1 && read(go, &c, 1) == 1 ? 7 : -1;
}
int deep(int ready, int go, long bytes) {
    volatile char room[bytes];
    room[0] = room[bytes - 1] = 0;
    return waits(ready, go) + room[0];
}
";

type Deep = unsafe extern "C" fn(i32, i32, i64) -> i32;

const STACK: usize = 1 << 20;
/// Where on the stack a trampoline makes the frame, and where it is a side frame.
const DEPTHS: [i64; 2] = [64, 384 << 10];
/// Nothing is waited for as long as that.
const LONG: Duration = Duration::from_secs(300);

/// There is one engine.
static ALONE: Mutex<()> = Mutex::new(());

fn pipe() -> (File, File) {
    unsafe extern "C" {
        fn pipe(ends: *mut i32) -> i32;
    }
    let mut ends = [0; 2];
    // SAFETY: there is room for two descriptors, which are nobody's yet.
    let [read, write] = unsafe {
        assert_eq!(pipe(ends.as_mut_ptr()), 0);
        ends.map(|fd| OwnedFd::from_raw_fd(fd))
    };
    (read.into(), write.into())
}

/// Calls `inside` while a thread sleeps in the function, and `after` when the function has
/// returned, and the thread sleeps in something else.
fn with_sleeper(lib: &Library, depth: i64, inside: impl FnOnce(), after: impl FnOnce()) {
    // SAFETY: the type is that of the C source.
    let deep: Deep = unsafe { lib.get("deep") };
    let (mut is_ready, ready) = pipe();
    let (go, mut goes) = pipe();
    let (mut is_back, mut back) = pipe();
    let (mut end, ends) = pipe();
    let work = move || {
        // SAFETY: both descriptors are open, and the stack has the room.
        assert_eq!(unsafe { deep(ready.as_raw_fd(), go.as_raw_fd(), depth) }, 7);
        back.write_all(&[1]).expect("a pipe");
        assert_eq!(end.read(&mut [0]).expect("a pipe"), 0);
    };
    let thread = std::thread::Builder::new().stack_size(STACK).spawn(work).expect("a thread");
    is_ready.read_exact(&mut [0]).expect("a pipe");
    inside();
    goes.write_all(&[1]).expect("a pipe");
    is_back.read_exact(&mut [0]).expect("a pipe");
    after();
    drop(ends);
    thread.join().expect("no assertion");
}

fn library(name: &str) -> (Library, Function) {
    let lib = Library::new(name, C, "c", &["-O2"]);
    let waits = lib.function("waits");
    (lib, waits)
}

/// A thread that sleeps in a function with an exit hook will return through the trampoline.
#[test]
fn a_sleeper_in_the_function_keeps_it_unfinished() {
    let _alone = ALONE.lock();
    let (lib, waits) = library("sleeper");
    let engine = Engine::get().expect("engine");
    for position in [Position::Exit, Position::Session] {
        for depth in DEPTHS {
            let (hook, seen) = counter(position);
            let done = engine.attach(&[(&waits, 0)], &[hook]);
            assert_eq!(done.results, [Ok(())]);
            let before = seen.runs();
            let detached = std::cell::OnceCell::new();
            with_sleeper(
                &lib,
                depth,
                || {
                    let mut gone = engine.detach(done.id).expect("attached");
                    assert!(gone.drained, "nobody is in a hook");
                    assert!(!gone.is_quiescent(), "{position:?} {depth}");
                    assert!(!gone.wait(Duration::ZERO));
                    detached.set(std::cell::RefCell::new(gone)).expect("once");
                },
                || {
                    let gone = detached.get().expect("set before");
                    assert!(gone.borrow_mut().wait(LONG), "{position:?} {depth}");
                    assert!(gone.borrow_mut().is_quiescent());
                },
            );
            assert_eq!(seen.runs() - before, u64::from(position == Position::Session));
        }
    }
}

/// A frame on the stack is not in the way of those who did not ask for it.
#[test]
fn only_exit_hooks_that_nobody_else_needs_count() {
    let _alone = ALONE.lock();
    let (lib, waits) = library("others");
    let engine = Engine::get().expect("engine");
    for depth in DEPTHS {
        let ids = [Position::Entry, Position::Exit, Position::Exit].map(|position| {
            let done = engine.attach(&[(&waits, 0)], &[counter(position).0]);
            assert_eq!(done.results, [Ok(())]);
            done.id
        });
        let last = std::cell::OnceCell::new();
        with_sleeper(
            &lib,
            depth,
            || {
                let [entry, first, second] = ids.map(|id| engine.detach(id).expect("attached"));
                let [mut entry, mut first, mut second] = [entry, first, second];
                assert!(entry.is_quiescent());
                // The function has no exit hook any more, so the call counts for both.
                assert!(!first.is_quiescent() && !second.is_quiescent());
                let done = engine.attach(&[(&waits, 0)], &[counter(Position::Exit).0]);
                assert_eq!(done.results, [Ok(())]);
                assert!(first.is_quiescent(), "the call returns through it for another one");
                assert!(engine.detach(done.id).is_ok_and(|mut d| !d.is_quiescent()));
                assert!(first.is_quiescent(), "it stays true");
                assert!(!second.is_quiescent());
                last.set(std::cell::RefCell::new(second)).expect("once");
            },
            || assert!(last.get().expect("set before").borrow_mut().wait(LONG)),
        );
    }
}
