//! A library for `LD_PRELOAD` that hooks everything it can and counts: what the tests put into real
//! programs.
//!
//! `SKEP_AGENT` says what: words separated by commas. `entry`, `exit`, `session`, `modify`: the
//! kind of hooks (several: several attachments). `inside`: entry hooks at every instruction that can be
//! moved, but for those too near to one that was hooked before. `main`: functions of the program only; `lib=NAME`:
//! of modules whose file name contains NAME as well; else all. `report`: print one line at the end.
//! `skips`: print every function that was skipped, and why.

use skep_attach::sites::{self, Function};
use skep_attach::{Engine, Hook, Missed, Position, mute};
use std::collections::BTreeMap;
use std::io::Write;
use std::os::fd::FromRawFd;
use std::ptr;
use std::sync::atomic::{AtomicI32, AtomicU64, AtomicUsize, Ordering};
use std::time::{Duration, Instant};

/// Counters of one kind of hook, on a cache line of their own.
#[repr(C, align(64))]
struct Counter {
    runs: AtomicU64,
    missed: [AtomicU64; Missed::REASONS],
}

static COUNTERS: [Counter; 4] = [const {
    Counter { runs: AtomicU64::new(0), missed: [const { AtomicU64::new(0) }; Missed::REASONS] }
}; 4];
static ATTACHED: AtomicUsize = AtomicUsize::new(0);
static OUT: AtomicI32 = AtomicI32::new(2);
static SKIPPED: AtomicUsize = AtomicUsize::new(0);

std::arch::global_asm!(
    ".globl skep_agent_count",
    ".hidden skep_agent_count",
    ".type skep_agent_count,@function",
    "skep_agent_count:",
    "lock inc qword ptr [rsi]",
    // A hook may leave any of these changed.
    "mov r11, -1",
    "mov r10, -1",
    "mov r9, -1",
    "mov r8, -1",
    "mov rcx, -1",
    "mov rdx, -1",
    "mov rsi, -1",
    "mov rdi, -1",
    "xor eax, eax",
    "ret",
    ".size skep_agent_count, . - skep_agent_count",
);

unsafe extern "C" {
    #[link_name = "skep_agent_count"]
    fn count(ctx: *mut u64, data: *const ()) -> u64;
    fn atexit(f: extern "C" fn()) -> i32;
    fn dup(fd: i32) -> i32;
}

#[used]
#[unsafe(link_section = ".init_array")]
static START: extern "C" fn() = start;

extern "C" fn start() {
    let Ok(wanted) = std::env::var("SKEP_AGENT") else { return };
    let _muted = mute();
    let words: Vec<&str> = wanted.split(',').collect();
    let begin = Instant::now();
    let mut functions: Vec<Function> = Vec::new();
    for module in sites::scan().expect("modules") {
        let file =
            module.path().file_name().map(|n| n.to_string_lossy().into_owned()).unwrap_or_default();
        let only_main = words.contains(&"main");
        let named = words.iter().any(|w| w.strip_prefix("lib=").is_some_and(|n| file.contains(n)));
        let any_lib = words.iter().any(|w| w.starts_with("lib="));
        if module.is_main() || named || !(only_main || any_lib) {
            functions.extend(module.functions().unwrap_or_default());
        }
    }
    let listed = begin.elapsed();
    let engine = Engine::get().expect("engine");
    let kinds = [
        ("entry", Position::Entry),
        ("exit", Position::Exit),
        ("session", Position::Session),
        ("modify", Position::ModifyReturn),
    ];
    if words.contains(&"inside") {
        let within = |f: &Function| (1..f.size()).map(|n| f.at(n)).collect::<Vec<_>>();
        functions = functions.iter().flat_map(within).collect();
    }
    let mut skips: BTreeMap<String, usize> = BTreeMap::new();
    let mut attach = Duration::ZERO;
    for ((name, position), counter) in kinds.into_iter().zip(&COUNTERS) {
        if !words.contains(&name) {
            continue;
        }
        // SAFETY: the function adds to such a counter, which is static.
        let hook = unsafe { Hook::new(position, count, ptr::from_ref(&counter.runs).cast()) }
            .counts_missed(&counter.missed)
            .wants_args(6);
        let targets: Vec<(&Function, u64)> = functions.iter().map(|f| (f, f.addr())).collect();
        let begin = Instant::now();
        let done = engine.attach(&targets, &[hook]);
        attach += begin.elapsed();
        for ((f, _), result) in targets.iter().zip(&done.results) {
            match result {
                Ok(()) => _ = ATTACHED.fetch_add(1, Ordering::Relaxed),
                Err(skip) => {
                    SKIPPED.fetch_add(1, Ordering::Relaxed);
                    *skips.entry(kind_of(skip)).or_default() += 1;
                    if words.contains(&"skips") {
                        let _ = writeln!(
                            std::io::stderr(),
                            "agent: {:#x} {} ({}): {skip}",
                            f.addr(),
                            f.name(),
                            f.module().path().display()
                        );
                    }
                }
            }
        }
    }
    if words.contains(&"report") {
        let _ =
            writeln!(std::io::stderr(), "agent: list {listed:?} attach {attach:?} skips {skips:?}");
        // SAFETY: registers a function that stays; and keeps standard error, which careful programs
        // close before they end.
        unsafe {
            OUT.store(dup(2), Ordering::Relaxed);
            atexit(report);
        }
    }
}

fn kind_of(skip: &skep_attach::Skip) -> String {
    let text = format!("{skip:?}");
    let name: String = text.chars().take_while(|c| c.is_alphanumeric()).collect();
    match skip {
        skep_attach::Skip::NoExit { why } => format!("{name}: {why}"),
        _ => name,
    }
}

extern "C" fn report() {
    let _muted = mute();
    let n = |c: &AtomicU64| c.load(Ordering::Relaxed);
    let mut line = format!(
        "agent: attached {} skipped {}",
        ATTACHED.load(Ordering::Relaxed),
        SKIPPED.load(Ordering::Relaxed)
    );
    for (name, c) in ["entry", "exit", "session", "modify"].iter().zip(&COUNTERS) {
        line += &format!(" {name} {} missed {}", n(&c.runs), c.missed.iter().map(n).sum::<u64>());
    }
    line.push('\n');
    // SAFETY: the descriptor was made for this and is not closed here.
    let mut out = std::mem::ManuallyDrop::new(unsafe {
        std::fs::File::from_raw_fd(OUT.load(Ordering::Relaxed))
    });
    let _ = out.write_all(line.as_bytes());
}
