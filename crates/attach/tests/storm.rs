//! Code is changed under running threads, again and again, and the threads compute what they always
//! computed.

#![allow(clippy::print_stderr, reason = "says how much was done")]

mod support;

use skep_attach::{Engine, Position, Skip, mute};
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};
use support::{Library, counter};

/// Functions of many shapes: leaf, with a frame, with stack arguments, calling, rip-relative,
/// looping.
fn source(n: usize) -> String {
    let mut text = String::from(
        "#define N __attribute__((noinline))\nlong global[64]; static long table[4] = {1, 2, 3, 4};\n",
    );
    for i in 0..n {
        text += &match i % 6 {
            0 => format!("N long f{i}(long a, long b) {{ return a * 3 + b + {i}; }}\n"),
            1 => format!(
                "N long f{i}(long a, long b) {{ return a + b + table[(a ^ b) & 3] + {i}; }}\n"
            ),
            2 => format!(
                "N long f{i}(long a, long b) {{ long s = {i}; for (long k = 0; k < (a & 7); k++) s += b ^ k; return s; }}\n"
            ),
            3 => format!(
                "N static long g{i}(long a, long b, long c, long d, long e, long f, long g, long h) {{ return a+b+c+d+e+f+g*2+h*3; }}\nN long f{i}(long a, long b) {{ return g{i}(a, b, 1, 2, 3, 4, a, b) + {i}; }}\n"
            ),
            4 => format!(
                "N long f{i}(long a, long b) {{ long x[8]; for (int k = 0; k < 8; k++) x[k] = a + k; return x[b & 7] + f{}(a, b) + {i}; }}\n",
                i - 4
            ),
            _ => format!(
                "N long f{i}(long a, long b) {{ if (a > b) return f{}(b, a) - {i}; return b - a + {i}; }}\n",
                i - 5
            ),
        };
    }
    text += "typedef long (*fn)(long, long); fn all[] = {";
    for i in 0..n {
        text += &format!("f{i},");
    }
    text += "}; long run(long rounds, long seed) { long s = seed; for (long r = 0; r < rounds; r++) for (unsigned i = 0; i < sizeof all / sizeof *all; i++) s = all[i](s & 0xfff, i + r) ^ (s << 1); return s; }\n";
    text
}

unsafe extern "C" {
    fn signal(signal: i32, handler: extern "C" fn(i32)) -> usize;
    fn setitimer(which: i32, new: *const [i64; 4], old: *mut [i64; 4]) -> i32;
    fn pthread_sigmask(how: i32, set: *const [u64; 16], old: *mut [u64; 16]) -> i32;
}

const SIGPROF: i32 = 27;
const ITIMER_PROF: i32 = 2;

/// What the handler of the profiling signal calls: a function that is being hooked and unhooked.
static IN_HANDLER: AtomicU64 = AtomicU64::new(0);
static TICKS: AtomicU64 = AtomicU64::new(0);
/// Tests in this file change the whole process.
static ALONE: Mutex<()> = Mutex::new(());

extern "C" fn tick(_: i32) {
    let f = IN_HANDLER.load(Ordering::Relaxed);
    if f != 0 {
        // SAFETY: the address of a function of this type.
        let f: extern "C" fn(i64, i64) -> i64 = unsafe { std::mem::transmute(f) };
        assert_eq!(f(5, 2), 17);
    }
    TICKS.fetch_add(1, Ordering::Relaxed);
}

fn profile(micros: i64) {
    // SAFETY: sets a handler that calls nothing but a test function, and a timer.
    unsafe {
        signal(SIGPROF, tick);
        setitimer(ITIMER_PROF, &[0, micros, 0, micros], std::ptr::null_mut());
    }
}

fn storm(name: &str, flags: &[&str], seconds: f64) {
    let _alone = ALONE.lock();
    let lib = Library::new(name, &source(96), "c", flags);
    // SAFETY: the type is that of the C source.
    let run: extern "C" fn(i64, i64) -> i64 = unsafe { lib.get("run") };
    let functions: Vec<_> = (0..96).map(|i| lib.function(&format!("f{i}"))).collect();
    let engine = Engine::get().expect("engine");
    let expected: Vec<i64> = (0..8).map(|t| run(50, t)).collect();
    let (stop, calls, spawned) = (AtomicBool::new(false), AtomicU64::new(0), AtomicU64::new(0));
    // SAFETY: the type is that of the C source.
    IN_HANDLER.store(unsafe { lib.get::<usize>("f0") } as u64, Ordering::Relaxed);
    profile(70);
    let (never, blocked) = std::sync::mpsc::channel::<()>();
    let mut attached = 0u64;
    let (mut times, mut rounds) = ((Duration::ZERO, Duration::ZERO), 0);
    std::thread::scope(|scope| {
        let _stop = skep_testkit::run::SetOnDrop(&stop);
        for t in 0..3 {
            let (stop, calls, expected) = (&stop, &calls, &expected);
            scope.spawn(move || {
                while !stop.load(Ordering::Relaxed) {
                    assert_eq!(run(50, t), expected[t as usize]);
                    calls.fetch_add(50 * 96, Ordering::Relaxed);
                }
            });
        }
        // One that sleeps with all signals blocked, as daemons keep for `sigwait`.
        scope.spawn(move || {
            // SAFETY: the mask is this thread's own.
            unsafe { pthread_sigmask(2, &[u64::MAX; 16], std::ptr::null_mut()) };
            let _ = blocked.recv();
        });
        // Threads that come and go.
        scope.spawn(|| {
            while !stop.load(Ordering::Relaxed) {
                let t = spawned.fetch_add(1, Ordering::Relaxed) % 8;
                let expected = expected[t as usize];
                std::thread::spawn(move || assert_eq!(run(50, t as i64), expected))
                    .join()
                    .expect("short thread");
            }
        });
        let mut random = 88172645463325252u64;
        let mut next = move || {
            random ^= random << 13;
            random ^= random >> 7;
            random ^= random << 17;
            random
        };
        let end = Instant::now() + Duration::from_secs_f64(seconds);
        let mut live = Vec::new();
        // Something is attached in the end, however busy the machine is.
        while Instant::now() < end || attached == 0 {
            let _muted = mute();
            let pick = next();
            if live.len() < 4 && pick & 1 == 0 {
                let position =
                    [Position::Entry, Position::Exit, Position::Session, Position::Entry]
                        [(pick >> 8) as usize % 4];
                let (hook, _) = counter(position);
                let targets: Vec<_> =
                    functions.iter().filter(|_| next() & 1 == 0).map(|f| (f, f.addr())).collect();
                let begin = Instant::now();
                let done = engine.attach(&targets, &[hook]);
                times.0 += begin.elapsed();
                for ((f, _), r) in targets.iter().zip(&done.results) {
                    assert!(matches!(r, Ok(()) | Err(Skip::Busy { .. })), "{}: {r:?}", f.name());
                    attached += u64::from(r.is_ok());
                }
                live.push(done.id);
            } else if !live.is_empty() {
                let id = live.swap_remove((pick >> 16) as usize % live.len());
                let begin = Instant::now();
                engine.detach(id).expect("attached");
                times.1 += begin.elapsed();
                rounds += 1;
            }
        }
        for id in live {
            engine.detach(id).expect("attached");
        }
        stop.store(true, Ordering::Relaxed);
        drop(never);
    });
    profile(0);
    IN_HANDLER.store(0, Ordering::Relaxed);
    eprintln!(
        "{name}: {rounds} rounds, {times:?} in attach and detach, {attached} sites attached, {} calls, {} short threads, {} ticks",
        calls.load(Ordering::Relaxed),
        spawned.load(Ordering::Relaxed),
        TICKS.load(Ordering::Relaxed)
    );
}

fn seconds() -> f64 {
    if std::env::var_os("SKEP_STRESS").is_some() { 60.0 } else { 1.5 }
}

#[test]
fn plain_code() {
    storm("storm", &["-O2"], seconds());
}

#[test]
fn unoptimized_code_with_endbr() {
    storm("storm0", &["-O0", "-fcf-protection"], seconds());
}

#[test]
fn five_one_byte_nops() {
    storm("stormpfe", &["-O2", "-fpatchable-function-entry=5"], seconds());
}
