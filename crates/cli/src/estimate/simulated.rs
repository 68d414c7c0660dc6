//! Tests: the program behind `skep trace` on calls whose times are made up. What it estimates is
//! compared with the truth.

use std::cell::Cell;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use skep::Dir;
use skep::isa::ctx::tracing;
use skep::isa::helper::id;
use skep::load::Loader;
use skep::maps::{Map, SlotTable, slots};
use skep::object::Object;
use skep_testkit::temp::TempDir;
use skep_vm::{Code, Env, HelperCall, HelperImpl, MapRef};

use super::*;

thread_local! {
    static NOW: Cell<u64> = const { Cell::new(1 << 40) };
    static SEED: Cell<u64> = const { Cell::new(0) };
    static PREEMPTIONS: Cell<u64> = const { Cell::new(0) };
}

extern "C" fn counter(_: u64, _: u64, _: u64, _: u64, _: u64) -> u64 {
    NOW.get()
}

extern "C" fn preemptions(_: u64, _: u64, _: u64, _: u64, _: u64) -> u64 {
    PREEMPTIONS.get()
}

extern "C" fn random(_: u64, _: u64, _: u64, _: u64, _: u64) -> u64 {
    next_random() & 0xffff_ffff
}

extern "C" fn number(_: u64, _: u64, _: u64, _: u64, _: u64) -> u64 {
    7 << 32 | 7
}

/// splitmix64
fn next_random() -> u64 {
    SEED.set(SEED.get().wrapping_add(0x9e37_79b9_7f4a_7c15));
    let mut z = SEED.get();
    z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    z ^ (z >> 31)
}

fn helper(helper: u32) -> Option<HelperImpl> {
    let load = |at| HelperImpl { func: number, how: HelperCall::LoadCtx(at) };
    Some(match helper {
        id::MAP_LOOKUP_ELEM => HelperImpl { func: number, how: HelperCall::MapLookup },
        id::GET_PRANDOM_U32 => HelperImpl::plain(random),
        id::GET_CURRENT_PID_TGID => HelperImpl::plain(number),
        id::GET_ATTACH_COOKIE => load(tracing::COOKIE),
        id::BPF_SESSION_IS_RETURN => load(tracing::IS_RETURN),
        id::BPF_SESSION_COOKIE => load(tracing::SESSION),
        id::BPF_GET_CPU_TIME_COUNTER => HelperImpl::plain(counter),
        id::SKEP_GET_FUNC_SP => load(SP as i32 * 8),
        id::SKEP_GET_PREEMPTIONS => HelperImpl::plain(preemptions),
        id::SKEP_DETACH_FUNC => HelperImpl::plain(number),
        _ => return None,
    })
}

/// Ticks that pass in the hook of an untimed call, and between the two readings of the clock
/// beside the function's own.
const HOOK: u64 = 20;
const OVERHEAD: u64 = 38;

/// Words of a context, with the hidden ones below it; counted from the context, where it has
/// the stack pointer.
const FRAME: usize = 5 + SP + 1;
const SP: usize = 22;
const DEPTH: usize = 4;
const FUNCTIONS: u32 = 512;

/// A process has one table of slots: with that of another test a thread would get another slot in the
/// middle, and statistics that begin anew.
static TABLE: Mutex<()> = Mutex::new(());

/// A thread that calls traced functions.
struct Traced {
    code: Code,
    stats: Arc<Map>,
    blocks: Arc<Map>,
    frames: Box<[u64; FRAME * DEPTH]>,
    sessions: Box<[u64; DEPTH]>,
    depth: usize,
    functions: u64,
    _maps: Vec<Arc<Map>>,
    _dir: TempDir,
    _alone: MutexGuard<'static, ()>,
}

impl Traced {
    fn new() -> Self {
        let alone = TABLE.lock().unwrap_or_else(PoisonError::into_inner);
        let temp = TempDir::in_memory();
        let dir = Dir::create(&temp.join("skep")).unwrap();
        let object = Object::parse(include_bytes!("../../bpf/trace.bpf.o")).unwrap();
        let loader = Loader::new(&dir).max_entries("stats", FUNCTIONS);
        let loaded = loader.max_entries("blocks", FUNCTIONS).load(&object).unwrap();
        SlotTable::open_or_create(dir.path()).unwrap().install();
        let settings = [63_u32.to_le_bytes(), (OVERHEAD as u32).to_le_bytes()].concat();
        loaded.map("settings").unwrap().update(&[0; 4], &settings, 0).unwrap();
        let program = &loaded.programs()[0];
        let maps = loaded.maps_of(program);
        let reference = |m: &Arc<Map>| MapRef {
            handle: Arc::as_ptr(m) as u64,
            value: m.value_base(),
            shape: m.shape(),
        };
        let refs: Vec<MapRef> = maps.iter().map(reference).collect();
        // SAFETY: the loader has verified the program with these maps, which live as long as
        // the code.
        let code = unsafe {
            Code::compile(program.program().insns(), &Env { maps: &refs, helper: &helper })
        }
        .unwrap();
        Self {
            code,
            stats: Arc::clone(loaded.map("stats").unwrap()),
            blocks: Arc::clone(loaded.map("blocks").unwrap()),
            frames: Box::new([0; FRAME * DEPTH]),
            sessions: Box::new([0; DEPTH]),
            depth: 0,
            functions: 0,
            _maps: maps,
            _dir: temp,
            _alone: alone,
        }
    }

    fn event(&mut self, function: u64, is_return: bool) -> u64 {
        // Contexts of inner calls lie lower.
        let at = (DEPTH - self.depth) * FRAME;
        self.frames[at] = &raw mut self.sessions[self.depth - 1] as u64;
        self.frames[at + 1] = is_return.into();
        self.frames[at + 2] = function;
        let context: *mut u8 = self.frames[at + 5..].as_mut_ptr().cast();
        self.frames[at + 5 + SP] = context as u64;
        let entered = slots::enter();
        // SAFETY: the context is one of a session program, and the thread has a slot.
        let answer = unsafe { self.code.entry()(context) };
        slots::exit(entered);
        answer
    }

    /// Calls a function that does `body`. Returns whether the call was timed.
    fn call(&mut self, function: u64, body: impl FnOnce(&mut Self)) -> bool {
        self.depth += 1;
        let timed = self.event(function, false) == 0;
        pass(if timed { OVERHEAD / 2 } else { HOOK });
        body(self);
        if timed {
            pass(OVERHEAD - OVERHEAD / 2);
            self.event(function, true);
            pass(HOOK);
        }
        self.depth -= 1;
        timed
    }

    /// A function that was not called yet.
    fn function(&mut self) -> u64 {
        self.functions += 1;
        self.functions - 1
    }

    fn stat(&self, function: u64) -> Stat {
        let of = |map: &Map| map.lookup(&(function as u32).to_le_bytes()).unwrap();
        let (stats, blocks) = (of(&self.stats), of(&self.blocks));
        let parts = stats.chunks(STAT_SIZE).zip(blocks.chunks(BLOCK_SIZE));
        let value: Vec<Part<'_>> = parts.map(|(stat, block)| Part { stat, block }).collect();
        Stat::sum(&value, Clock { tick: 1.0, overhead: OVERHEAD as u32 }, Running::default())
    }
}

/// In a number of ticks: in some of them another thread ran.
const PREEMPTED: u64 = 1 << 40;

fn pass(ticks: u64) {
    NOW.set(NOW.get() + (ticks & !PREEMPTED));
    PREEMPTIONS.set(PREEMPTIONS.get() + (ticks & PREEMPTED) / PREEMPTED);
}

fn below(n: u64) -> u64 {
    next_random() % n
}

/// Another thread runs for 3 ms, every so many ticks on average.
fn interrupted(every: u64, ticks: u64) -> u64 {
    if below(every) >= ticks {
        return 0;
    }
    PREEMPTED + 8_000_000
}

const CALLS: u64 = 200_000;

/// What the calls of a function take, and what passes between two of them.
type Times = fn(u64) -> (u64, u64);

const CASES: [(&str, Times); 20] = [
    ("steady", |_| (140 + below(20), 5)),
    ("nothing", |_| (2 + below(3), 5)),
    ("1 % slow", |i| (if i % 100 == 0 { 52_000 } else { 3 }, 5)),
    ("1 % slow at random", |_| (if below(100) == 0 { 52_000 } else { 3 }, 5)),
    ("another phase", |i| (if i < 100_000 { 100 } else { 2000 }, 5)),
    ("phases", |i| (if i / 7000 % 2 == 0 { 100 } else { 900 } + below(30), 5)),
    ("a short burst of slow calls", |i| {
        (if (120_000..121_500).contains(&i) { 30_000 } else { 100 }, 5)
    }),
    ("each 32nd slow", |i| (if i % 32 == 5 { 5200 } else { 3 }, 5)),
    ("each 33rd slow", |i| (if i % 33 == 5 { 2000 } else { 300 }, 5)),
    ("each second slow", |i| (if i % 2 == 0 { 900 } else { 100 }, 5)),
    ("1 of 1000 very slow", |i| (if i % 1000 == 999 { 780_000 } else { 3 }, 5)),
    ("1 of 1000 very slow at random", |_| (if below(1000) == 0 { 780_000 } else { 3 }, 5)),
    ("1 of 20,000 extremely slow", |i| (if i % 20_000 == 19_999 { 12_000_000 } else { 40 }, 5)),
    ("1 of 30,000 extremely slow at random", |_| {
        (if below(30_000) == 0 { 12_000_000 } else { 40 }, 5)
    }),
    ("uniform", |_| (below(400), 5)),
    ("powers of two", |_| (20 << below(8), 5)),
    ("slower and slower", |i| (100 + i / 200, 5)),
    ("a caller that pauses", |_| (200 + below(100), if below(5000) == 0 { 3_000_000 } else { 50 })),
    ("a caller with other work", |_| (200 + below(100), below(20_000))),
    ("long", |_| (20_000 + below(20_000), 5)),
];

/// Runs one case and returns its report, the truth, and how many calls were timed.
fn run(traced: &mut Traced, times: Times, calls: u64) -> (Stat, u64, u64) {
    let function = traced.function();
    let (mut truth, mut timed) = (0, 0);
    for i in 0..calls {
        let (took, then) = times(i);
        timed += u64::from(traced.call(function, |_| pass(took)));
        truth += took & !PREEMPTED;
        pass(then);
    }
    (traced.stat(function), truth, timed)
}

/// Of functions that take less than reading the clock, one call in 128 is timed when there were
/// a million.
const TINY: [(&str, Times); 9] = [
    ("nothing", |_| (below(2), 5)),
    ("nothing, then something", |i| (if i < 2_000_000 { 3 } else { 300 }, 5)),
    ("a burst of slow calls", |i| {
        (if (1_500_000..1_501_500).contains(&i) { 30_000 } else { 3 }, 5)
    }),
    ("each 127th slow", |i| (if i % 127 == 0 { 400 } else { 3 }, 5)),
    ("1 of 10,000 slow", |_| (if below(10_000) == 0 { 20_000 } else { 3 }, 5)),
    ("slow calls late", |i| (if i > 1_500_000 && i % 1000 == 0 { 50_000 } else { 3 }, 5)),
    ("a caller that pauses", |_| (below(6), if below(5000) == 0 { 3_000_000 } else { 5 })),
    ("preempted", |_| (3 + interrupted(1_000_000, 3), 8 + interrupted(1_000_000, 28))),
    ("preempted all the time", |_| (3 + interrupted(100_000, 3), 8 + interrupted(100_000, 28))),
];

#[test]
fn what_takes_nothing_is_seldom_timed() {
    const CALLS: u64 = 3_000_000;
    let mut traced = Traced::new();
    for (name, times) in TINY {
        SEED.set(0x1234_5678_9abc);
        let (stat, truth, timed) = run(&mut traced, times, CALLS);
        let (error, off) = (stat.error_ns.unwrap(), stat.total_ns.abs_diff(truth));
        let share = 100.0 * timed as f64 / CALLS as f64;
        let text = format!(
            "{name}: {} of {truth}, error {error}, {off} off, {share:.1} % timed",
            stat.total_ns
        );
        let measured = truth + CALLS * OVERHEAD;
        assert_eq!(stat.calls, CALLS, "{text}");
        // A slow call of which one of 128 was seen makes the error large until there were more
        // of them.
        let preempted = name.contains("preempted");
        assert!(
            preempted || error <= measured / if name.contains("slow") { 10 } else { 20 },
            "{text}"
        );
        assert!(off <= error + measured / 200, "{text}");
        assert!(share < if name == "nothing" || preempted { 3.0 } else { 100.0 }, "{text}");
    }
}

/// Buckets of the first calls are somewhere else than those of others.
#[test]
fn times_of_a_few_calls_are_told() {
    let mut traced = Traced::new();
    for calls in [1, 2, 15, 16, 17, 18, 100] {
        let (stat, ..) = run(&mut traced, |_| (1500, 5), calls);
        let percentiles = stat.percentiles([1.0, 50.0, 99.0]);
        let usual = 1024 - OVERHEAD..2048;
        assert!(
            percentiles.iter().all(|p| p.is_some_and(|p| usual.contains(&p))),
            "{calls}: {percentiles:?}"
        );
        let (stat, ..) = run(&mut traced, |i| (if i == 0 { 90_000 } else { 1500 }, 5), calls);
        let first = if calls < 100 { 32_000.. } else { 1000.. };
        assert!(
            stat.percentiles([99.0])[0].is_some_and(|p| first.contains(&p)),
            "{calls}: {stat:?}"
        );
    }
}

#[test]
fn totals_are_within_the_error_that_is_told() {
    let mut traced = Traced::new();
    let (mut estimated, mut outside) = (0, Vec::new());
    for seed in 1..=4 {
        SEED.set(seed * 0x1234_5678_9abc);
        for (name, times) in CASES {
            let (stat, truth, timed) = run(&mut traced, times, CALLS);
            assert_eq!(stat.calls, CALLS, "{name}");
            let off = stat.total_ns.abs_diff(truth);
            let share = 100.0 * timed as f64 / CALLS as f64;
            let text = format!(
                "{name}: {} of {truth}, error {:?}, {off} off, {share:.1} % timed",
                stat.total_ns, stat.error_ns
            );
            let Some(error) = stat.error_ns else {
                assert_eq!((stat.total_ns, timed), (truth, CALLS), "{name}");
                continue;
            };
            estimated += 1;
            // What a call takes is known as well as the clock can be read.
            let measured = truth + CALLS * OVERHEAD;
            // One very long call that was seen as a pause counts as half an error for good; and
            // after a burst there was no time for more.
            let one =
                if name.contains("extremely") || name.contains("burst") { 7_000_000 } else { 0 };
            assert!(error <= one.max(measured / 20), "{text}");
            // Three of them in all can be missed; most are not.
            assert!(
                off <= 3 * error + measured / 200 || name.contains("extremely slow at random"),
                "{text}"
            );
            if off > error + CALLS / 50 {
                outside.push(text.clone());
            }
            if name == "steady" || name == "nothing" || name == "slower and slower" {
                assert!(share < 10.0, "{text}");
            }
        }
    }
    // A caller keeps what its callees did not take: 30 ticks, and the hooks of ten calls.
    let (caller, callee) = (traced.function(), traced.function());
    for _ in 0..CALLS / 10 {
        traced.call(caller, |t| {
            (0..10).for_each(|_| {
                t.call(callee, |_| pass(140 + below(20)));
            });
            pass(30);
        });
        pass(5);
    }
    let (stat, callees) = (traced.stat(caller), traced.stat(callee));
    let own = (30 + 10 * HOOK) * CALLS / 10;
    let (off, error) =
        (stat.self_ns.abs_diff(own), stat.error_ns.unwrap() + callees.error_ns.unwrap());
    assert!(
        off <= error + own / 50,
        "{own} of its own, not {}: {off} off, error {error}",
        stat.self_ns
    );
    assert!(
        callees.self_ns == callees.total_ns && stat.total_ns > callees.total_ns,
        "{stat:?} {callees:?}"
    );
    // What recurses is timed, all of it.
    let function = traced.function();
    for _ in 0..CALLS / 10 {
        let timed = traced.call(function, |t| {
            pass(100);
            t.call(function, |_| pass(10));
        });
        assert!(timed);
    }
    let stat = traced.stat(function);
    assert_eq!(
        (stat.calls, stat.error_ns, stat.self_ns),
        (CALLS / 5, None, (100 + HOOK + 10) * CALLS / 10)
    );
    assert!(
        estimated > 20 && outside.len() * 10 <= estimated,
        "{} of {estimated}: {outside:#?}",
        outside.len()
    );
}
