//! What else happens in a process: libraries go, the process forks, other signals arrive, several
//! attachments share a function.

mod support;

use skep_attach::signals::{KernelAction, program_action};
use skep_attach::{Engine, Group, Position, Skip, mute, sites};
use std::ffi::{c_int, c_void};
use std::os::fd::AsRawFd;
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use support::{Library, Seen, counter};

unsafe extern "C" {
    fn fork() -> c_int;
    fn waitpid(pid: c_int, status: *mut c_int, options: c_int) -> c_int;
    fn _exit(status: c_int) -> !;
    fn raise(signal: c_int) -> c_int;
    fn mmap(
        at: *mut c_void,
        len: usize,
        prot: c_int,
        flags: c_int,
        fd: c_int,
        offset: i64,
    ) -> *mut c_void;
}

type F = extern "C" fn(i64) -> i64;

const C: &str = "long twice(long x) { return x * 2; }\nlong thrice(long x) { long s = 0; for (int i = 0; i < 3; i++) s += x; return s; }\n";

/// These tests change what the whole process has: signal actions, children.
static ALONE: Mutex<()> = Mutex::new(());

#[test]
fn a_library_goes_while_it_is_hooked() {
    let _alone = ALONE.lock();
    let engine = Engine::get().expect("engine");
    let mut old = Vec::new();
    for round in 0..20 {
        let flags: &[&str] =
            if round % 2 == 0 { &["-O2"] } else { &["-O2", "-fpatchable-function-entry=5"] };
        let lib = Library::new(&format!("goes{}", round % 4), C, "c", flags);
        // SAFETY: the type is that of the C source.
        let twice: F = unsafe { lib.get("twice") };
        let (hook, seen) = counter(if round % 3 == 0 { Position::Exit } else { Position::Entry });
        let done =
            engine.attach(&[(&lib.function("twice"), 0), (&lib.function("thrice"), 0)], &[hook]);
        assert_eq!(done.results, [Ok(()), Ok(())], "round {round}");
        assert_eq!((twice(4), seen.runs()), (8, 1), "round {round}");
        old.push(done.id);
        lib.close();
        if round % 5 == 4 {
            for id in old.drain(..) {
                assert_eq!(engine.detach(id).expect("attached").restored, 0);
            }
        }
    }
}

/// As V8 does with the code of its built-in functions.
#[test]
fn a_part_of_a_library_is_mapped_once_more() {
    let flags = &["-O2", "-falign-functions=4096"];
    let lib = Library::new("part", C, "c", flags);
    let thrice = lib.function("thrice");
    let maps = std::fs::read_to_string("/proc/self/maps").expect("mappings");
    let offset = maps.lines().find_map(|line| {
        let mut words = line.split_ascii_whitespace();
        let (start, end) = words.next()?.split_once('-')?;
        let [start, end] = [start, end].map(|a| u64::from_str_radix(a, 16).unwrap_or(0));
        let offset = u64::from_str_radix(words.nth(1)?, 16).ok()?;
        (start..end).contains(&thrice.addr()).then(|| offset + thrice.addr() - start)
    });
    let file = std::fs::File::open(thrice.module().path()).expect("the library");
    let (read_and_run, private) = (5, 2);
    let offset = offset.expect("its mapping") as i64;
    // SAFETY: a new mapping of code that is never written.
    let at = unsafe {
        mmap(std::ptr::null_mut(), 4096, read_and_run, private, file.as_raw_fd(), offset)
    };
    assert_ne!(at as isize, -1);
    let modules = sites::scan().expect("modules");
    let both: Vec<_> = modules.iter().filter(|m| m.path() == thrice.module().path()).collect();
    assert_eq!(both.len(), 2, "{both:?}");
    let names = |bias: bool| {
        let module = both.iter().find(|m| (m.bias() == thrice.module().bias()) == bias);
        let functions = module.expect("two modules").functions().expect("functions");
        functions.iter().map(|f| (f.name().to_owned(), f.addr())).collect::<Vec<_>>()
    };
    assert_eq!(names(false), [("thrice".to_owned(), at as u64)]);
    assert!(names(true).iter().any(|(name, _)| name == "twice"), "{:?}", names(true));
    // Both can be hooked, each for itself.
    let copy = both.iter().flat_map(|m| m.functions().expect("functions"));
    let copy = copy.into_iter().find(|f| f.addr() == at as u64).expect("just seen");
    let (hook, seen) = counter(Position::Exit);
    let engine = Engine::get().expect("engine");
    let done = engine.attach(&[(&copy, 0)], &[hook]);
    assert_eq!(done.results, [Ok(())]);
    // SAFETY: the same function once more, which names nothing by its place.
    let again: F = unsafe { std::mem::transmute(at) };
    // SAFETY: the type is that of the C source.
    let first: F = unsafe { lib.get("thrice") };
    assert_eq!((again(4), first(5), seen.runs()), (12, 15, 1));
    engine.detach(done.id).expect("attached");
}

#[test]
fn attachments_share_a_function() {
    let lib = Library::new("share", C, "c", &["-O2", "-fpatchable-function-entry=5"]);
    // SAFETY: the type is that of the C source.
    let twice: F = unsafe { lib.get("twice") };
    let f = lib.function("twice");
    let engine = Engine::get().expect("engine");
    let kinds = [Position::Entry, Position::Exit, Position::Session, Position::ModifyReturn];
    // Every subset of four attachments, put on in order and taken off in another: each counter
    // rises by what it should.
    for set in 0u32..16 {
        let mut live = Vec::new();
        for (n, position) in kinds.iter().enumerate().filter(|(n, _)| set >> n & 1 == 1) {
            let (hook, seen) = counter(*position);
            let done = engine.attach(&[(&f, n as u64)], &[hook]);
            assert_eq!(done.results, [Ok(())]);
            live.push((done.id, seen, if *position == Position::Session { 2 } else { 1 }));
        }
        let mut calls = 0;
        while !live.is_empty() {
            calls += 1;
            assert_eq!(twice(21), 42);
            assert!(live.iter().all(|(_, seen, each)| seen.runs() == calls * each), "set {set:#b}");
            let (id, ..) = live.remove(live.len() / 2);
            let gone = engine.detach(id).expect("attached");
            assert_eq!(gone.restored + gone.bypassed, usize::from(live.is_empty()));
        }
        assert_eq!(twice(21), 42);
    }
    assert!(engine.detach(u64::MAX).is_err());
}

#[test]
fn groups_get_their_own_hooks_in_one_attachment() {
    // Who uses its own return address has no return that could be hooked.
    const ASKS: &str = "void *asks(void) { return __builtin_return_address(0); }\n";
    let lib = Library::new("groups", &format!("{C}{ASKS}"), "c", &["-O2"]);
    // SAFETY: the types are those of the C source.
    let (twice, thrice): (F, F) = unsafe { (lib.get("twice"), lib.get("thrice")) };
    // SAFETY: as above.
    let asks: extern "C" fn() -> usize = unsafe { lib.get("asks") };
    let of = |name| lib.function(name);
    let engine = Engine::get().expect("engine");
    let (entry, entered) = counter(Position::Entry);
    let (exit, returned) = counter(Position::Exit);
    let (third, others) = counter(Position::Session);
    let done = engine.attach_groups(&[
        Group { targets: &[(&of("twice"), 1), (&of("asks"), 2)], hooks: &[entry] },
        Group { targets: &[], hooks: &[third] },
        Group { targets: &[(&of("thrice"), 3), (&of("twice"), 4)], hooks: &[exit, entry] },
        Group { targets: &[(&of("asks"), 5)], hooks: &[exit] },
    ]);
    let twice_there = Err(Skip::Duplicate);
    assert_eq!(done.results, [Ok(()), Ok(()), Ok(()), twice_there.clone(), twice_there]);
    assert_eq!((twice(4), thrice(4)), (8, 12));
    assert_ne!(asks(), 0);
    assert_eq!((entered.runs(), returned.runs(), others.runs()), (3, 1, 0));
    engine.detach(done.id).expect("attached");
    assert_eq!((twice(4), thrice(4), entered.runs(), returned.runs()), (8, 12, 3, 1));
    // What one group cannot have takes nothing from another of the same module.
    let done = engine.attach_groups(&[
        Group { targets: &[(&of("asks"), 0)], hooks: &[exit] },
        Group { targets: &[(&of("twice"), 0)], hooks: &[entry] },
        Group { targets: &[(&of("thrice"), 0)], hooks: &[exit] },
    ]);
    assert!(matches!(done.results[..], [Err(Skip::NoExit { .. }), Ok(()), Ok(())]), "{done:?}");
    assert_eq!((twice(4), thrice(4), entered.runs(), returned.runs()), (8, 12, 4, 2));
    engine.detach(done.id).expect("attached");
}

#[test]
fn an_excerpt_has_the_functions_that_are_asked_for() {
    let lib = Library::new("excerpt", C, "c", &["-O2"]);
    let (twice, thrice) = (lib.function("twice"), lib.function("thrice"));
    let at = |f: &sites::Function| f.addr()..f.addr() + f.size();
    let outside = twice.module().file().span.end;
    // SAFETY: two functions of C that loop nowhere to their beginnings; the others are left out.
    let excerpt = unsafe {
        twice.module().excerpt(&[
            ("thrice", at(&thrice)),
            ("empty", twice.addr()..twice.addr()),
            ("outside", outside..outside + 8),
            ("twice", at(&twice)),
            ("inside", at(&twice).start + 1..at(&twice).end),
            ("alias", at(&twice)),
        ])
    };
    let named = |name| excerpt.function_named(name).expect("listed").map(|f| at(&f));
    assert_eq!((named("twice"), named("thrice")), (Some(at(&twice)), Some(at(&thrice))));
    for name in ["empty", "outside", "inside", "alias"] {
        assert_eq!(named(name), None, "{name}");
    }
    // SAFETY: the types are those of the C source.
    let (call_twice, call_thrice): (F, F) = unsafe { (lib.get("twice"), lib.get("thrice")) };
    let [one, other] = ["twice", "thrice"].map(|name| excerpt.function_named(name).unwrap());
    let (hook, seen) = counter(Position::Entry);
    let engine = Engine::get().expect("engine");
    let done = engine.attach(&[(&one.unwrap(), 0), (&other.unwrap(), 0)], &[hook]);
    assert_eq!(done.results, [Ok(()), Ok(())]);
    assert_eq!((call_twice(2), call_thrice(2), seen.runs()), (4, 6, 2));
    assert_eq!(engine.detach(done.id).expect("attached").restored, 2);
}

#[test]
fn sessions_keep_a_word_each() {
    let lib = Library::new("session", C, "c", &["-O2"]);
    // SAFETY: the type is that of the C source.
    let twice: F = unsafe { lib.get("twice") };
    let f = lib.function("twice");
    unsafe extern "C" fn remember(ctx: *mut u64, data: *const ()) -> u64 {
        // SAFETY: `data` is the number that the test counts in; the words below `ctx` are those of
        // the frame.
        unsafe {
            let (word, is_return) = (*ctx.sub(5) as *mut u64, *ctx.sub(4));
            let seen = &*data.cast::<AtomicU64>();
            if is_return == 0 {
                assert_eq!(*word, 0);
                *word = *ctx * 1000 + *ctx.sub(3);
                return u64::from(*ctx == 13);
            }
            seen.store(*word, Ordering::SeqCst);
            0
        }
    }
    let numbers: &'static [AtomicU64; 4] = Box::leak(Box::default());
    let engine = Engine::get().expect("engine");
    // SAFETY: the function takes such a number, which is never freed.
    let hook = |n: &'static AtomicU64| unsafe {
        skep_attach::Hook::new(Position::Session, remember, std::ptr::from_ref(n).cast())
    };
    let ids: Vec<u64> = numbers
        .iter()
        .zip(1..)
        .map(|(n, cookie)| engine.attach(&[(&f, cookie)], &[hook(n)]).id)
        .collect();
    let fifth = engine.attach(&[(&f, 0)], &[hook(&numbers[0])]);
    assert!(matches!(fifth.results[..], [Err(Skip::Sessions { max: 4 })]));
    assert_eq!(twice(7), 14);
    let now = || numbers.iter().map(|n| n.load(Ordering::SeqCst)).collect::<Vec<_>>();
    assert_eq!(now(), [7001, 7002, 7003, 7004]);
    // Returning 1 before the function leaves out the run after it.
    assert_eq!(twice(13), 26);
    assert_eq!(now(), [7001, 7002, 7003, 7004]);
    for id in ids.into_iter().chain([fifth.id]) {
        engine.detach(id).expect("attached");
    }
}

#[test]
fn recursion_is_missed_and_muting_is_not() {
    let lib = Library::new("recursion", C, "c", &["-O2"]);
    // SAFETY: the type is that of the C source.
    let twice: F = unsafe { lib.get("twice") };
    static CALL: AtomicU64 = AtomicU64::new(0);
    unsafe extern "C" fn calls_it(_: *mut u64, data: *const ()) -> u64 {
        // SAFETY: the address of a function of that type.
        let f: F = unsafe { std::mem::transmute(CALL.load(Ordering::SeqCst)) };
        assert_eq!(f(5), 10);
        // SAFETY: what the test gave.
        unsafe { (*data.cast::<Seen>()).runs.fetch_add(1, Ordering::SeqCst) };
        0
    }
    CALL.store(twice as *const () as u64, Ordering::SeqCst);
    let f = lib.function("twice");
    let engine = Engine::get().expect("engine");
    for position in [Position::Entry, Position::Exit] {
        let seen = Seen::leaked();
        let hook = seen.hook_of(position, calls_it);
        let done = engine.attach(&[(&f, 0)], &[hook]);
        assert_eq!(twice(1), 2);
        assert_eq!((seen.runs(), seen.missed()), (1, 1));
        let muted = mute();
        let again = mute();
        assert_eq!(twice(1), 2);
        drop(again);
        assert_eq!(twice(1), 2);
        drop(muted);
        assert_eq!((seen.runs(), seen.missed()), (1, 1));
        assert_eq!(twice(1), 2);
        assert_eq!((seen.runs(), seen.missed()), (2, 2));
        engine.detach(done.id).expect("attached");
    }
}

/// A hook that does the tracer's own work, such as attaching to a library that was just opened, is
/// not missing events.
#[test]
fn what_a_muted_hook_calls_is_not_missed() {
    let _alone = ALONE.lock();
    let lib = Library::new("own_work", C, "c", &["-O2"]);
    // SAFETY: the types are those of the C source.
    let (twice, thrice): (F, F) = unsafe { (lib.get("twice"), lib.get("thrice")) };
    static CALL: AtomicU64 = AtomicU64::new(0);
    unsafe extern "C" fn works(_: *mut u64, _: *const ()) -> u64 {
        // SAFETY: the address of a function of that type.
        let f: F = unsafe { std::mem::transmute(CALL.load(Ordering::SeqCst)) };
        let _muted = mute();
        let again = mute();
        assert_eq!(f(5), 15);
        drop(again);
        assert_eq!(f(5), 15);
        0
    }
    CALL.store(thrice as *const () as u64, Ordering::SeqCst);
    let (f, g) = (lib.function("twice"), lib.function("thrice"));
    let engine = Engine::get().expect("engine");
    let seen = Seen::leaked();
    let counted = engine.attach(&[(&g, 0)], &[seen.hook(Position::Entry)]);
    let hook = Seen::leaked().hook_of(Position::Entry, works);
    let working = engine.attach(&[(&f, 0)], &[hook]);
    assert_eq!((twice(1), thrice(1)), (2, 3));
    assert_eq!((seen.runs(), seen.missed()), (1, 0));
    engine.detach(working.id).expect("attached");
    engine.detach(counted.id).expect("attached");
}

#[test]
fn a_child_goes_on_by_itself() {
    let _alone = ALONE.lock();
    let lib = Library::new("child", C, "c", &["-O2"]);
    // SAFETY: the type is that of the C source.
    let (twice, thrice): (F, F) = unsafe { (lib.get("twice"), lib.get("thrice")) };
    let (f, g) = (lib.function("twice"), lib.function("thrice"));
    let engine = Engine::get().expect("engine");
    let (hook, seen) = counter(Position::Session);
    let (other, seen2) = counter(Position::Entry);
    let done = engine.attach(&[(&f, 0)], &[hook]);
    assert_eq!((twice(1), seen.runs()), (2, 2));
    // SAFETY: the child runs the code below and ends.
    match unsafe { fork() } {
        0 => {
            let mut good = twice(3) == 6 && seen.runs() == 4;
            let more = engine.attach(&[(&g, 0)], &[other]);
            good &= more.results == [Ok(())] && thrice(2) == 6 && seen2.runs() == 1;
            good &= engine.detach(done.id).is_ok_and(|d| d.restored == 1 && d.drained);
            good &= twice(3) == 6 && seen.runs() == 4;
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
    assert_eq!((twice(1), seen.runs(), thrice(1), seen2.runs()), (2, 4, 3, 0));
    engine.detach(done.id).expect("attached");
}

#[test]
fn other_traps_go_to_the_program() {
    let _alone = ALONE.lock();
    static TRAPS: AtomicU64 = AtomicU64::new(0);
    static INFO: AtomicU64 = AtomicU64::new(0);
    extern "C" fn on_trap(signal: c_int, info: *const i32, _: *mut ()) {
        TRAPS.fetch_add(1, Ordering::SeqCst);
        // SAFETY: a SA_SIGINFO handler gets a siginfo_t, which begins with the signal's number.
        INFO.store(u64::from(signal == 5 && unsafe { *info } == 5), Ordering::SeqCst);
    }
    // SAFETY: `on_trap` can handle a trap; the others are ignored or put back.
    let action = |signal, new: Option<&KernelAction>| unsafe { program_action(signal, new) };
    let mine = KernelAction {
        handler: on_trap as *const () as usize,
        flags: 4,
        ..KernelAction::default()
    };
    // Without the restorer the kernel could not return from a handler, so the one that libc uses is
    // borrowed.
    let with_restorer = |mine: KernelAction| {
        let any = action(11, None).expect("read");
        KernelAction {
            restorer: any.restorer,
            flags: mine.flags | (any.flags & 0x0400_0000),
            ..mine
        }
    };
    let before = action(5, Some(&with_restorer(mine))).expect("set");
    // SAFETY: the handler above takes it.
    unsafe { raise(5) };
    assert_eq!(TRAPS.load(Ordering::SeqCst), 1);
    // Another thread lives, so attaching installs the engine's handlers. The program's stays behind
    // them.
    let stop = AtomicBool::new(false);
    std::thread::scope(|scope| {
        let _stop = skep_testkit::run::SetOnDrop(&stop);
        scope.spawn(|| {
            while !stop.load(Ordering::SeqCst) {
                std::thread::yield_now()
            }
        });
        let lib = Library::new("traps", C, "c", &["-O2"]);
        let (hook, _) = counter(Position::Entry);
        let done = Engine::get().expect("engine").attach(&[(&lib.function("twice"), 0)], &[hook]);
        assert_eq!(done.results, [Ok(())]);
        assert_eq!(action(5, None).expect("read").handler, mine.handler);
        // SAFETY: taken by the handler, as a breakpoint and as a signal that was sent.
        unsafe {
            std::arch::asm!("int3");
            raise(5);
        }
        Engine::get().expect("engine").detach(done.id).expect("attached");
    });
    assert_eq!((TRAPS.load(Ordering::SeqCst), INFO.load(Ordering::SeqCst)), (3, 1));
    assert_eq!(action(5, Some(&before)).expect("reset").handler, mine.handler);
    // A signal that the engine has nothing to do with is the kernel's.
    let ignored = KernelAction { handler: 1, ..KernelAction::default() };
    let old = action(12, Some(&ignored)).expect("set");
    assert_eq!(action(12, Some(&old)).expect("reset").handler, 1);
    assert_eq!(action(9, Some(&ignored)), Err(22));
}

/// The engine's handler comes while the signal comes and the program sets its own: what the program
/// wants to happen happens, also in the moment in which the handler is there. That moment is once a
/// process, so there are many.
#[test]
fn a_handler_comes_while_the_program_uses_the_signal() {
    const SIGBUS: c_int = 7;
    const CHILD: &str = "SKEP_TEST_HANDLER_COMES";
    static CALLS: AtomicU64 = AtomicU64::new(0);
    extern "C" fn on_bus(_: c_int, _: *const i32, _: *mut ()) {
        CALLS.fetch_add(1, Ordering::SeqCst);
    }
    if std::env::var_os(CHILD).is_none() {
        let name = "a_handler_comes_while_the_program_uses_the_signal";
        for _ in 0..40 {
            let mut child = std::process::Command::new(std::env::current_exe().expect("a path"));
            let done = child.args(["--exact", name]).env(CHILD, "1").output().expect("runs");
            assert!(
                done.status.success(),
                "{}: {}",
                done.status,
                String::from_utf8_lossy(&done.stdout)
            );
        }
        return;
    }
    // SAFETY: only asks.
    let any = unsafe { program_action(11, None) }.expect("read");
    let handler = on_bus as *const () as usize;
    let action = KernelAction {
        handler,
        flags: 4 | (any.flags & 0x0400_0000),
        restorer: any.restorer,
        mask: 0,
    };
    // SAFETY: the handler can handle any signal.
    let set = || unsafe { program_action(SIGBUS, Some(&action)) }.expect("set");
    set();
    let (stop, mut sent) = (AtomicBool::new(false), 0);
    std::thread::scope(|scope| {
        for _ in 0..2 {
            scope.spawn(|| {
                while CALLS.load(Ordering::SeqCst) < 100 {
                    std::hint::spin_loop();
                }
                // SAFETY: it repairs nothing.
                unsafe { skep_attach::signals::on_memory_full(|_| false) }.expect("installed");
                stop.store(true, Ordering::SeqCst);
            });
        }
        // More than there are processors: some stand still in the middle of a call when the handler
        // comes.
        for _ in 0..3 {
            scope.spawn(|| {
                while !stop.load(Ordering::SeqCst) {
                    assert_eq!(set().handler, handler);
                }
            });
        }
        while !stop.load(Ordering::SeqCst) {
            // SAFETY: the handler takes it.
            unsafe { raise(SIGBUS) };
            sent += 1;
        }
    });
    // SAFETY: as above.
    unsafe { raise(SIGBUS) };
    assert_eq!(CALLS.load(Ordering::SeqCst), sent + 1);
}
