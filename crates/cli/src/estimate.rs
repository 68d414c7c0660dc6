//! What the program behind `skep trace` wrote of one function, added up over all threads: counts as
//! they are, times as measured and, for calls that were not timed, as estimated, with the error of
//! that.
//!
//! `docs/estimates.md` has the formulas; `bpf/trace.bpf.c` is the other half.

/// Buckets of the histogram.
const BUCKETS: usize = 40;
/// Words of one thread's `struct stat` before the histogram (`bpf/trace.bpf.c`).
const WORDS: usize = 28;
/// Bytes of one thread's `struct stat`: with the histogram, and up to whole cache lines.
pub const STAT_SIZE: usize = (8 * WORDS + 4 * BUCKETS).next_multiple_of(64);
/// Variances are in units of 2^this.
const VARIANCE_SHIFT: i32 = 16;
/// Fewer timed calls in a block say too little of its others.
const FEW: u64 = 16;
/// 95 % of a normal distribution lie within 1.96 standard deviations. Those here are estimates
/// themselves, and times are skewed.
const CONFIDENCE: f64 = 2.2;

/// What turns the program's times into nanoseconds.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Clock {
    /// Nanoseconds in a tick.
    pub tick: f64,
    /// Ticks that a timed call takes when the function does nothing.
    pub overhead: u32,
}

/// Calls that have not returned.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Running {
    /// How many.
    pub calls: u64,
    /// Ticks they ran, of outermost ones.
    pub total: u64,
    /// The same without callees.
    pub own: u64,
}

/// The statistics of one function over all threads.
#[derive(Clone, Debug, PartialEq)]
pub struct Stat {
    /// How often it was entered.
    pub calls: u64,
    /// Time between entry and return; of outermost calls only, where it recurses.
    pub total_ns: u64,
    /// The same without the time in other traced functions.
    pub self_ns: u64,
    /// Half the width of the interval in which the total is with 95 % confidence; `None`: all
    /// calls were timed.
    pub error_ns: Option<u64>,
    /// Calls that have not returned; they are in the times.
    pub running: u64,
    /// `hist[i]`: calls that took 2^i up to 2^(i+1) ticks, the first from 0; only proportions
    /// count.
    hist: [u64; BUCKETS],
    clock: Clock,
}

/// What one thread wrote. Counters come from memory that the traced process can write: no sum of
/// theirs may fail.
struct Thread<'a> {
    head: &'a [u8],
    hist: &'a [u8],
}

/// Estimated ticks of the calls that were not timed, without overhead.
#[derive(Default)]
struct Untimed {
    calls: u64,
    total: f64,
    own: f64,
    /// Of the total.
    variance: f64,
    /// A pause that may have been one of them.
    pending: f64,
}

impl<'a> Thread<'a> {
    fn new(value: &'a [u8]) -> Self {
        let (head, rest) = value.split_at(8 * WORDS);
        Self { head, hist: rest.get(..4 * BUCKETS).unwrap_or_default() }
    }

    fn word(&self, i: usize) -> u64 {
        self.head
            .chunks_exact(8)
            .nth(i)
            .and_then(|b| b.try_into().ok())
            .map_or(0, u64::from_le_bytes)
    }

    fn calls(&self) -> u64 {
        self.word(0)
    }

    fn timed(&self) -> u64 {
        self.word(6)
    }

    fn outermost(&self) -> u64 {
        self.word(7)
    }

    fn total(&self) -> u64 {
        self.word(8)
    }

    fn own(&self) -> i64 {
        // An untimed call's share of its caller may be more than it took: sums of self times may be
        // below zero for a while.
        self.word(9).cast_signed()
    }

    /// When the last timed call returned.
    fn last(&self) -> u64 {
        self.word(10)
    }

    /// The estimates of finished blocks, and that of the current one from what was timed of it so
    /// far.
    fn untimed(&self, overhead: f64) -> Untimed {
        let guessed = self.word(24);
        let open = self.calls().saturating_sub(self.word(4)).saturating_sub(guessed);
        let mut all = Untimed {
            calls: guessed,
            total: self.word(25) as f64,
            own: self.word(26) as f64,
            variance: (self.word(27) as f64 + self.word(12) as f64)
                * f64::from(VARIANCE_SHIFT).exp2(),
            pending: 0.0,
        };
        if open > 0 {
            let (sum, own_sum, squares) =
                (self.word(14) as f64, self.word(15).cast_signed() as f64, self.word(16) as f64);
            let (n, before, spread) = (
                self.word(17) & 0xffff,
                (self.word(19) & 0xffff_ffff) as f64,
                self.word(20) as f64,
            );
            let known = n >= FEW;
            let count = n.max(1) as f64;
            let mean = if known { sum / count } else { before };
            let net = (mean - overhead).max(0.0);
            let own = if known { own_sum / count - overhead } else { self.word(3) as f64 };
            let within = (squares / count - (mean - before).powi(2)).max(0.0);
            let spread = if known { within } else { within.max(spread) };
            let open = open as f64;
            all.calls = all.calls.saturating_add(open as u64);
            all.total += open * net;
            all.own += open * own.max(0.0);
            all.variance += spread * open * (open + count) / count;
        }
        let pending = self.word(22) as f64;
        // A longer one than all calls together is taken for a pause of the caller.
        if pending <= self.total() as f64 + all.total {
            all.pending = pending;
        }
        all
    }
}

/// What calls of one thread took on average in the last finished block, in ticks as measured.
pub fn mean(value: &[u8]) -> Option<u64> {
    value
        .chunks_exact(STAT_SIZE)
        .map(|v| Thread::new(v).word(19) & 0xffff_ffff)
        .find(|mean| *mean > 0)
}

impl Stat {
    /// Adds up a per-CPU value: one `struct stat` after the other. An incomplete one at the end is
    /// left out.
    pub fn sum(value: &[u8], clock: Clock, running: Running) -> Self {
        let overhead = f64::from(clock.overhead);
        let (mut total, mut own, mut variance, mut pending, mut untimed) =
            (0.0, 0.0, 0.0, 0.0, 0_u64);
        let mut sum = Self {
            calls: 0,
            total_ns: 0,
            self_ns: 0,
            error_ns: None,
            running: running.calls,
            hist: [0; BUCKETS],
            clock,
        };
        for thread in value.chunks_exact(STAT_SIZE).map(Thread::new).filter(|t| t.calls() > 0) {
            sum.calls = sum.calls.saturating_add(thread.calls());
            let guess = thread.untimed(overhead);
            untimed = untimed.saturating_add(guess.calls);
            variance += guess.variance;
            pending += guess.pending;
            total += (thread.total() as f64 - overhead * thread.outermost() as f64).max(0.0)
                + guess.total;
            own += thread.own() as f64 + guess.own - overhead * thread.timed() as f64;
            for (to, from) in sum.hist.iter_mut().zip(thread.hist.chunks_exact(4)) {
                *to = to.saturating_add(from.try_into().map_or(0, u32::from_le_bytes).into());
            }
        }
        sum.total_ns = ((total + running.total as f64) * clock.tick) as u64;
        // Estimates of callees may make a function's own time a little more than its whole time, or
        // less than nothing.
        sum.self_ns = (((own + running.own as f64) * clock.tick) as u64).min(if sum.total_ns > 0 {
            sum.total_ns.max(1)
        } else {
            u64::MAX
        });
        sum.error_ns =
            (untimed > 0).then(|| ((CONFIDENCE * variance.sqrt() + pending) * clock.tick) as u64);
        sum
    }

    /// When a timed call returned last, on any thread, in ticks.
    pub fn last(value: &[u8]) -> u64 {
        value.chunks_exact(STAT_SIZE).map(|v| Thread::new(v).last()).max().unwrap_or(0)
    }

    /// Tells below which time the `percent` fastest calls stayed; `None` when no call has returned.
    ///
    /// The histogram knows the bucket; inside it calls are taken to be spread evenly. No call took
    /// longer than all outermost ones together.
    pub fn percentile(&self, percent: f64) -> Option<u64> {
        let count: u64 = self.hist.iter().fold(0, |a, n| a.saturating_add(*n));
        let rank = percent / 100.0 * count as f64;
        let mut before = 0.0;
        let nanos =
            |ticks: f64| (ticks - f64::from(self.clock.overhead)).max(0.0) * self.clock.tick;
        for (i, n) in self.hist.iter().enumerate().filter(|(_, n)| **n > 0) {
            let n = *n as f64;
            if before + n >= rank {
                let low = if i == 0 { 0.0 } else { (i as f64).exp2() };
                let high = (i as f64 + 1.0).exp2();
                let value =
                    nanos(low + (high - low) * ((rank - before) / n).clamp(0.0, 1.0)) as u64;
                return Some(value.min(self.total_ns.max(nanos(low) as u64)));
            }
            before += n;
        }
        None
    }
}

#[cfg(test)]
pub mod tests {
    use super::*;

    /// Ticks are nanoseconds, and cost nothing.
    pub const CLOCK: Clock = Clock { tick: 1.0, overhead: 0 };

    /// A `struct stat` as the program writes it.
    fn value(words: [u64; WORDS], hist: &[(usize, u32)]) -> Vec<u8> {
        let mut out: Vec<u8> = words.iter().flat_map(|w| w.to_le_bytes()).collect();
        let mut buckets = [0_u32; BUCKETS];
        for (i, n) in hist {
            buckets[*i] = *n;
        }
        out.extend(buckets.iter().flat_map(|n| n.to_le_bytes()));
        out.resize(STAT_SIZE, 0);
        out
    }

    /// The same for a function whose calls were all timed.
    pub fn bytes(calls: u64, total: u64, own: u64, hist: &[(usize, u32)]) -> Vec<u8> {
        let mut words = [0; WORDS];
        (words[0], words[1], words[4], words[6], words[7]) = (calls, 7, calls, calls, calls);
        (words[8], words[9]) = (total, own);
        value(words, hist)
    }

    fn sum(value: &[u8], tick: f64) -> Stat {
        Stat::sum(value, Clock { tick, overhead: 0 }, Running::default())
    }

    #[test]
    fn threads_are_added_up() {
        let value =
            [bytes(2, 10, 6, &[(2, 2)]), bytes(0, 0, 0, &[]), bytes(3, 50, 40, &[(2, 1), (4, 2)])]
                .concat();
        let stat = sum(&value, 1.0);
        assert_eq!((stat.calls, stat.total_ns, stat.self_ns), (5, 60, 46));
        assert_eq!((stat.hist[2], stat.hist[4], stat.hist.iter().sum::<u64>()), (3, 2, 5));
        assert_eq!(sum(&value[..STAT_SIZE + 3], 1.0).calls, 2, "half a value is none");
        assert_eq!(
            sum(&[bytes(u64::MAX, 0, 0, &[]), bytes(u64::MAX, 0, 0, &[])].concat(), 1.0).calls,
            u64::MAX
        );
    }

    #[test]
    fn estimates_of_finished_and_open_blocks_come_with_their_error() {
        // 1,000 calls: 300 timed, 500 in finished blocks, 200 in the open one, of which 20 timed
        // ones took 10 ticks on average.
        let mut words = [0_u64; WORDS];
        (words[0], words[4], words[6], words[7]) = (1000, 300, 300, 300);
        (words[8], words[9]) = (3000, 2000);
        (words[14], words[15], words[16], words[17]) = (200, 120, 20 * 9, 20);
        words[19] = 10;
        (words[24], words[25], words[26], words[27]) = (500, 5000, 3000, 4);
        let stat = Stat::sum(
            &value(words, &[(3, 300)]),
            Clock { tick: 1.0, overhead: 2 },
            Running::default(),
        );
        assert_eq!((stat.calls, stat.total_ns), (1000, 3000 - 300 * 2 + 5000 + 200 * (10 - 2)));
        // Estimates have no overhead in them.
        assert_eq!(stat.self_ns, 2000 - 300 * 2 + 3000 + 200 * 4);
        let variance = 4.0 * 65536.0 + 9.0 * 200.0 * 220.0 / 20.0;
        assert_eq!(stat.error_ns, Some((CONFIDENCE * f64::sqrt(variance)) as u64));
        // A pause that may have been a call is part of the error; one longer than all calls
        // together is none.
        words[22] = 5000;
        let with =
            |words| Stat::sum(&value(words, &[]), CLOCK, Running::default()).error_ns.unwrap();
        let pending = with(words);
        words[22] = 50_000;
        assert_eq!(pending - with(words), 5000);
    }

    #[test]
    fn what_runs_is_added_and_nothing_overflows() {
        let running = Running { calls: 1, total: 500, own: 400 };
        let stat = Stat::sum(&bytes(2, 10, 6, &[(2, 2)]), CLOCK, running);
        assert_eq!((stat.total_ns, stat.self_ns, stat.running, stat.error_ns), (510, 406, 1, None));
        let odd = Stat::sum(
            &[value([u64::MAX; WORDS], &[]), value([1; WORDS], &[])].concat(),
            CLOCK,
            running,
        );
        assert_eq!(odd.calls, u64::MAX);
        assert_eq!(
            sum(&bytes(9, 0, u64::MAX, &[]), 1.0).self_ns,
            0,
            "less than nothing is nothing"
        );
    }

    #[test]
    fn percentiles_stay_within_a_factor_of_two_of_the_sorted_times() {
        // An odd linear congruential generator is as good as any here.
        let mut seed = 12345_u64;
        let mut times: Vec<u64> = (0..5000)
            .map(|_| {
                seed = seed
                    .wrapping_mul(6_364_136_223_846_793_005)
                    .wrapping_add(1_442_695_040_888_963_407);
                (seed >> 33) % (1 << (seed >> 61 << 1).max(1))
            })
            .collect();
        let mut hist = [0_u32; BUCKETS];
        for t in &times {
            hist[t.max(&1).ilog2() as usize] += 1;
        }
        let pairs: Vec<_> = hist.iter().copied().enumerate().collect();
        let stat = sum(&bytes(5000, times.iter().sum(), 0, &pairs), 1.0);
        times.sort_unstable();
        for percent in [1.0, 10.0, 25.0, 50.0, 75.0, 90.0, 99.0, 99.9] {
            let exact =
                times[((percent / 100.0 * 5000.0) as usize).clamp(1, 5000) - 1].max(1) as f64;
            let ours = stat.percentile(percent).unwrap().max(1) as f64;
            assert!(
                ours / exact <= 2.001 && exact / ours <= 2.001,
                "p{percent}: {ours} for {exact}"
            );
        }
    }

    #[test]
    fn a_percentile_never_exceeds_the_total_and_needs_a_finished_call() {
        assert_eq!(sum(&bytes(1, 1100, 1100, &[(10, 1)]), 1.0).percentile(99.0), Some(1100));
        assert_eq!(
            sum(&bytes(1, 0, 0, &[(10, 1)]), 1.0).percentile(99.0),
            Some(1024),
            "a call inside one that still runs"
        );
        assert_eq!(sum(&bytes(1, 0, 0, &[]), 1.0).percentile(50.0), None);
        let edge = sum(&bytes(1, u64::MAX, 0, &[(BUCKETS - 1, 1)]), 1.0).percentile(100.0).unwrap();
        assert_eq!(edge, 1 << BUCKETS);
    }
}

/// The program itself, run on calls whose times are made up: what it estimates is compared with the
/// truth.
#[cfg(test)]
mod simulated {
    use std::cell::Cell;
    use std::sync::Arc;

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

    /// A thread that calls traced functions.
    struct Traced {
        code: Code,
        stats: Arc<Map>,
        frames: Box<[u64; FRAME * DEPTH]>,
        sessions: Box<[u64; DEPTH]>,
        depth: usize,
        functions: u64,
        _maps: Vec<Arc<Map>>,
        _dir: TempDir,
    }

    impl Traced {
        fn new() -> Self {
            let temp = TempDir::in_memory();
            let dir = Dir::create(&temp.join("skep")).unwrap();
            let object = Object::parse(include_bytes!("../bpf/trace.bpf.o")).unwrap();
            let loaded = Loader::new(&dir).max_entries("stats", FUNCTIONS).load(&object).unwrap();
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
                frames: Box::new([0; FRAME * DEPTH]),
                sessions: Box::new([0; DEPTH]),
                depth: 0,
                functions: 0,
                _maps: maps,
                _dir: temp,
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
            let value = self.stats.lookup(&(function as u32).to_le_bytes()).unwrap();
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
        ("a caller that pauses", |_| {
            (200 + below(100), if below(5000) == 0 { 3_000_000 } else { 50 })
        }),
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
                let one = if name.contains("extremely") || name.contains("burst") {
                    7_000_000
                } else {
                    0
                };
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
}
