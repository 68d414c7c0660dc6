//! Links end under running calls: from inside a hook, beside children that share the memory, while
//! the process forks. Every result of every call is checked.

mod support;

use skep_attach::{AttachError, Engine, Hook, Position, Skip, owns_memory};
use std::ffi::c_int;
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};
use support::{Library, counter};

unsafe extern "C" {
    fn fork() -> c_int;
    fn waitpid(pid: c_int, status: *mut c_int, options: c_int) -> c_int;
    fn _exit(status: c_int) -> !;
}

type F = extern "C" fn(i64) -> i64;

/// `work` calls all of them; `children` makes children that share the memory, which call them too,
/// and gives the status of the last one that ended badly.
const C: &str = r"
#define _GNU_SOURCE
#include <signal.h>
#include <spawn.h>
#include <sys/wait.h>
#include <unistd.h>
#define N __attribute__((noinline))
N long zero(long x) { __asm__ volatile(''); return 0 * x; }
N long twice(long x) { return x * 2; }
N long sum(long a, long b, long c, long d, long e, long f, long g, long h) { return a + b + c + d + e + f + g + h; }
long work(long rounds) {
    long bad = 0;
    for (long i = 0; i < rounds; i++) bad += zero(i) != 0 || twice(i) != 2 * i || sum(i, 1, 2, 3, 4, 5, 6, 7) != i + 28;
    return bad;
}
long children(long rounds) {
    long bad = 0;
    int status;
    for (long i = 0; i < rounds; i++) {
        // As posix_spawn does: no handler of ours, every signal blocked in the parent.
        sigset_t all, old;
        sigfillset(&all);
        sigprocmask(SIG_BLOCK, &all, &old);
        pid_t pid = vfork();
        if (pid == 0) { signal(SIGTRAP, SIG_DFL); _exit(work(50) != 0); }
        bad += work(5);
        sigprocmask(SIG_SETMASK, &old, 0);
        if (waitpid(pid, &status, 0) == pid && status != 0) bad = status;
        char *argv[] = {(char *)0}, *envp[] = {(char *)0};
        if (posix_spawn(&pid, '/nowhere/at/all', 0, 0, argv, envp) == 0 && waitpid(pid, &status, 0) == pid && WIFSIGNALED(status)) bad = status;
    }
    return bad;
}
";

fn library(name: &str, flags: &[&str]) -> Library {
    Library::new(
        name,
        &C.replace("''", "\"\"").replace("'/nowhere/at/all'", "\"/nowhere/at/all\""),
        "c",
        flags,
    )
}

const NAMES: [&str; 3] = ["zero", "twice", "sum"];
const POSITIONS: [Position; 3] = [Position::Session, Position::Entry, Position::Exit];
static ALONE: Mutex<()> = Mutex::new(());

/// The attachment that the next run of [`ends_it`] ends; 0: none.
static ENDING: AtomicU64 = AtomicU64::new(0);
static DRAINED: AtomicU64 = AtomicU64::new(0);

/// Takes its own attachment away, as the agent does when the command has ended.
unsafe extern "C" fn ends_it(_: *mut u64, _: *const ()) -> u64 {
    let id = ENDING.swap(0, Ordering::SeqCst);
    if id != 0 {
        let gone = Engine::get().and_then(|e| e.detach(id));
        DRAINED.fetch_add(u64::from(gone.is_ok_and(|d| d.drained)), Ordering::SeqCst);
    }
    1
}

/// The list that a thread walks was freed under it, so that the function was left out and returned
/// 1.
#[test]
fn a_hook_takes_its_own_attachment_away() {
    let _alone = ALONE.lock();
    let lib = library("ends_itself", &["-O2"]);
    // SAFETY: the type is that of the C source.
    let work: F = unsafe { lib.get("work") };
    let functions = NAMES.map(|n| lib.function(n));
    let engine = Engine::get().expect("engine");
    let stop = AtomicBool::new(false);
    std::thread::scope(|scope| {
        let threads: Vec<_> = (0..2)
            .map(|_| {
                scope.spawn(|| {
                    let mut bad = 0;
                    while !stop.load(Ordering::Relaxed) {
                        bad += work(100);
                    }
                    bad
                })
            })
            .collect();
        for round in 0..240 {
            let (beside, seen) = counter(POSITIONS[round % 3]);
            let targets: Vec<_> = functions.iter().map(|f| (f, f.addr())).collect();
            // Sometimes another attachment stays, before it or behind it.
            let first = (round % 3 == 1).then(|| engine.attach(&targets, &[beside]).id);
            let hooks: Vec<Hook> =
                POSITIONS.iter().take(1 + round % 2).map(|p| seen.hook_of(*p, ends_it)).collect();
            let done = engine.attach(&targets, &hooks);
            assert!(
                done.results.iter().all(|r| matches!(r, Ok(()) | Err(Skip::Busy { .. }))),
                "{:?}",
                done.results
            );
            let last = (round % 3 == 2).then(|| engine.attach(&targets, &[beside]).id);
            let any = done.results.iter().any(Result::is_ok);
            ENDING.store(done.id, Ordering::SeqCst);
            let begin = Instant::now();
            while any
                && ENDING.load(Ordering::SeqCst) != 0
                && begin.elapsed() < Duration::from_secs(20)
            {
                std::thread::yield_now();
            }
            if ENDING.swap(0, Ordering::SeqCst) != 0 {
                engine.detach(done.id).expect("attached");
            }
            for id in [first, last].into_iter().flatten() {
                engine.detach(id).expect("attached");
            }
        }
        stop.store(true, Ordering::Relaxed);
        for t in threads {
            assert_eq!(t.join().expect("thread"), 0, "calls with a wrong result");
        }
    });
    assert_eq!(DRAINED.load(Ordering::SeqCst), 0, "a hook cannot be told that nobody is inside");
}

/// Breakpoints killed children of `vfork`, and the thread that waits for one with all signals
/// blocked.
#[test]
fn children_that_share_the_memory_live() {
    let _alone = ALONE.lock();
    for (name, flags) in [("shares", &["-O2"][..]), ("shares0", &["-O0", "-fcf-protection"])] {
        let lib = library(name, flags);
        // SAFETY: the types are those of the C source.
        let (work, children): (F, F) = unsafe { (lib.get("work"), lib.get("children")) };
        let functions = NAMES.map(|n| lib.function(n));
        let engine = Engine::get().expect("engine");
        let targets: Vec<_> = functions.iter().map(|f| (f, f.addr())).collect();
        let stop = AtomicBool::new(false);
        std::thread::scope(|scope| {
            // Code that is hooked for the first time gets breakpoints; from then on, none.
            let (keep, seen) = counter(Position::Entry);
            let done = engine.attach(&targets, &[keep]);
            assert!(done.results.iter().all(Result::is_ok), "{:?}", done.results);
            let spawner = scope.spawn(|| {
                let mut bad = 0;
                while !stop.load(Ordering::Relaxed) {
                    bad += children(5) + work(5);
                }
                bad
            });
            let mut rounds = 0;
            let end = Instant::now() + Duration::from_secs(2);
            // And until the other thread has come by.
            while Instant::now() < end || rounds < 10 || seen.runs() == 0 {
                let (hook, _) = counter(Position::Session);
                let more = engine.attach(&targets, &[hook]);
                assert!(more.results.iter().all(Result::is_ok), "{:?}", more.results);
                engine.detach(more.id).expect("attached");
                rounds += 1;
            }
            let mut gone = engine.detach(done.id).expect("attached");
            assert_eq!(gone.restored + gone.bypassed, 3);
            // The other thread may stand in the middle of a hook.
            assert!(gone.wait(Duration::from_secs(100)));
            let before = seen.runs();
            assert_eq!(work(10), 0);
            assert_eq!(seen.runs(), before);
            stop.store(true, Ordering::Relaxed);
            assert_eq!(spawner.join().expect("thread"), 0, "{name}: a child or a call");
        });
    }
}

/// What a child of `vfork` asks for would happen to its parent.
#[test]
fn a_child_that_shares_the_memory_changes_nothing() {
    let _alone = ALONE.lock();
    static MADE: AtomicU64 = AtomicU64::new(0);
    extern "C" fn child(_: *mut ()) -> c_int {
        let engine = Engine::get().expect("engine");
        let refused =
            matches!(engine.detach(MADE.load(Ordering::SeqCst)), Err(AttachError::SharedMemory));
        MADE.store(u64::from(refused && !owns_memory()), Ordering::SeqCst);
        // SAFETY: ends the child.
        unsafe { _exit(0) }
    }
    unsafe extern "C" {
        fn clone(
            f: extern "C" fn(*mut ()) -> c_int,
            stack: *mut u8,
            flags: c_int,
            arg: *mut (),
        ) -> c_int;
    }
    const VM_VFORK_SIGCHLD: c_int = 0x100 | 0x4000 | 17;
    let lib = library("borrowed", &["-O2"]);
    // SAFETY: the type is that of the C source.
    let work: F = unsafe { lib.get("work") };
    let f = lib.function("twice");
    let engine = Engine::get().expect("engine");
    let (hook, seen) = counter(Position::Session);
    let done = engine.attach(&[(&f, 0)], &[hook]);
    MADE.store(done.id, Ordering::SeqCst);
    let mut stack = vec![0u8; 256 << 10];
    let mut status = 0;
    assert!(owns_memory());
    // SAFETY: the child runs on that stack while this thread waits, and ends.
    unsafe {
        let top = stack.as_mut_ptr().add(stack.len()).map_addr(|a| a & !15);
        let pid = clone(child, top, VM_VFORK_SIGCHLD, std::ptr::null_mut());
        assert_eq!(waitpid(pid, &raw mut status, 0), pid);
    }
    assert_eq!((status, MADE.load(Ordering::SeqCst)), (0, 1));
    assert_eq!((work(3), seen.runs()), (0, 6));
    assert!(engine.detach(done.id).is_ok_and(|d| d.drained));
}

/// The engine's lock is free in a child whatever other threads were doing, also when a signal
/// handler forked.
#[test]
fn children_of_fork_find_everything_in_order() {
    let _alone = ALONE.lock();
    let lib = library("forks", &["-O2"]);
    // SAFETY: the type is that of the C source.
    let work: F = unsafe { lib.get("work") };
    let functions = NAMES.map(|n| lib.function(n));
    let engine = Engine::get().expect("engine");
    let targets: Vec<_> = functions.iter().map(|f| (f, f.addr())).collect();
    let stop = AtomicBool::new(false);
    std::thread::scope(|scope| {
        let changer = scope.spawn(|| {
            while !stop.load(Ordering::Relaxed) {
                let (hook, _) = counter(Position::Session);
                engine.detach(engine.attach(&targets, &[hook]).id).expect("attached");
            }
        });
        for _ in 0..60 {
            // SAFETY: the child runs the code below and ends; an alarm ends it if it hangs.
            match unsafe { fork() } {
                0 => {
                    unsafe extern "C" {
                        fn alarm(seconds: u32) -> u32;
                    }
                    // SAFETY: ends a child that hangs.
                    unsafe { alarm(120) };
                    let (hook, seen) = counter(Position::Exit);
                    let done = engine.attach(&targets, &[hook]);
                    let mut good = owns_memory() && work(7) == 0 && seen.runs() == 21;
                    good &= engine.detach(done.id).is_ok_and(|d| d.drained)
                        && work(7) == 0
                        && seen.runs() == 21;
                    // SAFETY: ends the child.
                    unsafe { _exit(if good { 33 } else { 1 }) }
                }
                pid => {
                    let mut status = 0;
                    // SAFETY: waits for the child made above.
                    assert_eq!(unsafe { waitpid(pid, &raw mut status, 0) }, pid);
                    assert_eq!(status, 33 << 8);
                }
            }
        }
        stop.store(true, Ordering::Relaxed);
        changer.join().expect("thread");
    });
}
