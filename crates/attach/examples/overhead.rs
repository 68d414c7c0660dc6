//! What a hook costs: nanoseconds added to one call of a tiny function, by kind of hook and site,
//! hot and over many functions; and how long attaching takes.
//!
//! The question: is an entry hook at most 4 ns, entry and exit at most 7, as the prototype
//! promised? The rival is the plain call in the same run. Needs `cc`; run it with `--release`, best
//! of five rounds.
#![allow(clippy::print_stdout, reason = "it is a report")]

use skep_attach::sites::{self, Function};
use skep_attach::{DirectCall, Engine, Hook, Position, mute};
use std::ffi::{CString, c_char, c_int, c_void};
use std::ptr;
use std::sync::Arc;
use std::sync::atomic::AtomicU64;
use std::time::Instant;

unsafe extern "C" {
    fn dlopen(path: *const c_char, flags: c_int) -> *mut c_void;
    fn dlsym(library: *mut c_void, name: *const c_char) -> *mut c_void;
    #[link_name = "skep_overhead_count"]
    fn count(ctx: *mut u64, data: *const ()) -> u64;
    #[link_name = "skep_overhead_count_directly"]
    fn count_directly(ctx: *mut u8) -> u64;
}

std::arch::global_asm!(
    ".globl skep_overhead_count",
    ".hidden skep_overhead_count",
    ".type skep_overhead_count,@function",
    "skep_overhead_count:",
    "inc qword ptr [rsi]",
    "xor eax, eax",
    "ret",
    ".size skep_overhead_count, . - skep_overhead_count",
    ".globl skep_overhead_count_directly",
    ".hidden skep_overhead_count_directly",
    ".type skep_overhead_count_directly,@function",
    "skep_overhead_count_directly:",
    "inc qword ptr [rip + {count}]",
    "xor eax, eax",
    "ret",
    ".size skep_overhead_count_directly, . - skep_overhead_count_directly",
    count = sym COUNT,
);

static ON: AtomicU64 = AtomicU64::new(1);
static COUNT: AtomicU64 = AtomicU64::new(0);
const CHAIN: usize = 1000;
const MANY: usize = 50_000;

type Loop = extern "C" fn(i64) -> i64;

struct Target {
    module: Arc<sites::Module>,
    hot: Loop,
    chain: Loop,
}

fn build(name: &str, flags: &[&str]) -> Target {
    let dir = std::env::temp_dir().join(format!("skep-overhead-{}", std::process::id()));
    std::fs::create_dir_all(&dir).expect("temporary directory");
    let (source, library) = (dir.join(format!("{name}.c")), dir.join(format!("lib{name}.so")));
    let mut text = String::from(
        "#define N __attribute__((noinline, noclone, visibility(\"hidden\")))\nN long t(long a, long b) { return a * 3 + b; }\n",
    );
    for i in 0..MANY {
        text += &format!("N long c{i}(long a, long b) {{ return a * {} + b; }}\n", i % 7 + 2);
    }
    text += "long hot(long n) { long s = 1; for (long i = 0; i < n; i++) s = t(s, i); return s; }\nlong chain(long n) { long s = 1; for (long i = 0; i < n; i++) {";
    for i in 0..CHAIN {
        text += &format!("s = c{}(s, i);", i * 7919 % CHAIN);
    }
    text += "} return s; }\nlong all(void) { return 0";
    for i in CHAIN..MANY {
        text += &format!("+ (long)c{i}");
    }
    text += "; }\n";
    std::fs::write(&source, text).expect("source");
    let done = std::process::Command::new("cc")
        .args(["-O1", "-shared", "-fPIC", "-g0"])
        .args(flags)
        .arg("-o")
        .arg(&library)
        .arg(&source)
        .status();
    assert!(done.is_ok_and(|s| s.success()), "cc failed");
    let path = CString::new(library.to_str().expect("utf-8")).expect("no nul");
    // SAFETY: loads the library just built, whose two functions have these types.
    let (hot, chain) = unsafe {
        let handle = dlopen(path.as_ptr(), 2);
        assert!(!handle.is_null());
        (dlsym(handle, c"hot".as_ptr()), dlsym(handle, c"chain".as_ptr()))
    };
    let module =
        sites::scan().expect("modules").into_iter().find(|m| m.path() == library).expect("library");
    let _ = std::fs::remove_dir_all(&dir);
    // SAFETY: as above.
    unsafe {
        Target {
            module,
            hot: std::mem::transmute::<*mut c_void, Loop>(hot),
            chain: std::mem::transmute::<*mut c_void, Loop>(chain),
        }
    }
}

/// Nanoseconds of one call, best of some rounds.
fn time(f: Loop, rounds: i64, calls: i64) -> f64 {
    let once = || {
        let begin = Instant::now();
        std::hint::black_box(f(rounds));
        begin.elapsed().as_nanos() as f64 / (rounds * calls) as f64
    };
    (0..60).map(|_| once()).fold(f64::MAX, f64::min)
}

fn main() {
    println!(
        "{:<34} {:>9} {:>12} {:>12} {:>12}",
        "hook, site", "hot ns", "chain 1000", "attach ms", "detach ms"
    );
    for (site, flags) in [
        ("inline", &["-fcf-protection=none"][..]),
        ("compiled in", &["-fcf-protection=none", "-fpatchable-function-entry=5"]),
    ] {
        let target = build(if site == "inline" { "inline" } else { "nops" }, flags);
        let functions: Vec<Function> = {
            let _muted = mute();
            target
                .module
                .functions()
                .expect("functions")
                .into_iter()
                .filter(|f| f.name().starts_with(['c', 't']) && f.name() != "chain")
                .collect()
        };
        let targets: Vec<(&Function, u64)> = functions
            .iter()
            .filter(|f| f.name() == "t" || f.name()[1..].parse::<u32>().is_ok())
            .map(|f| (f, f.addr()))
            .collect();
        let plain = (time(target.hot, 300_000, 1), time(target.chain, 300, CHAIN as i64));
        println!("{:<34} {:>9.2} {:>12.2}", format!("none, {site}"), plain.0, plain.1);
        let engine = Engine::get().expect("engine");
        for ((name, positions), direct) in [
            ("entry", &[Position::Entry][..]),
            ("exit", &[Position::Exit]),
            ("entry + exit", &[Position::Entry, Position::Exit]),
            ("session", &[Position::Session]),
            ("modify return", &[Position::ModifyReturn]),
        ]
        .into_iter()
        .flat_map(|kind| [(kind, false), (kind, true)])
        {
            let call = DirectCall {
                run: count_directly,
                changes: 0,
                reads: 0,
                word: (&raw const ON, 1),
                thread_word: None,
            };
            let hook = |p: &Position| {
                // SAFETY: the functions add to that counter, which is static.
                unsafe {
                    let hook = Hook::new(*p, count, ptr::from_ref(&COUNT).cast()).wants_args(6);
                    if direct { hook.calls_directly(call) } else { hook }
                }
            };
            let hooks: Vec<Hook> = positions.iter().map(hook).collect();
            let begin = Instant::now();
            let done = engine.attach(&targets, &hooks);
            let attach = begin.elapsed().as_secs_f64() * 1e3;
            let bad = done.results.iter().filter(|r| r.is_err()).count();
            let hot = time(target.hot, 300_000, 1) - plain.0;
            let chain = time(target.chain, 300, CHAIN as i64) - plain.1;
            let begin = Instant::now();
            let gone = engine.detach(done.id).expect("attached");
            let detach = begin.elapsed().as_secs_f64() * 1e3;
            println!(
                "{:<34} {hot:>9.2} {chain:>12.2} {attach:>12.2} {detach:>12.2}   {} functions, {bad} skipped, drained {}",
                format!("{name}, {site}{}", if direct { ", direct" } else { "" }),
                targets.len(),
                gone.drained
            );
        }
    }
}
