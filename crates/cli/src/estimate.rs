//! What the program behind `skep trace` wrote of one function, added up over all threads: counts as
//! they are, times as measured and, for calls that were not timed, as estimated, with the error of
//! that.
//!
//! `docs/estimates.md` has the formulas; `bpf/trace.bpf.c` is the other half.

/// Buckets of the histogram.
const BUCKETS: usize = 40;
/// Words of one thread's `struct stat` before the buckets of the first calls (`bpf/trace.bpf.c`).
pub const WORDS: usize = 12;
/// How many calls these are.
const FEW: usize = 16;
/// Words of its `struct block` before the histogram.
pub const BLOCK_WORDS: usize = 16;
/// Bytes of one thread's `struct stat`: up to whole cache lines.
pub const STAT_SIZE: usize = (8 * WORDS + FEW).next_multiple_of(64);
/// Bytes of one thread's `struct block`: with the histogram, and up to whole cache lines.
pub const BLOCK_SIZE: usize = (8 * BLOCK_WORDS + 4 * BUCKETS).next_multiple_of(64);
/// Variances are in units of 2^this.
const VARIANCE_SHIFT: i32 = 16;
/// Fewer timed calls in a block say too little of its others.
const TOO_FEW: u64 = 16;
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
    head: &'a [[u8; 8]],
    /// Buckets of the first calls.
    first: &'a [u8],
    /// Nothing, where there were no more calls.
    block: &'a [[u8; 8]],
    hist: &'a [[u8; 4]],
}

/// What one thread wrote of a function.
#[derive(Clone, Copy, Debug)]
pub struct Part<'a> {
    /// Its `struct stat`.
    pub stat: &'a [u8],
    /// Its `struct block`; nothing, where it has none.
    pub block: &'a [u8],
}

/// Estimated ticks of the calls that were not timed, without overhead.
#[derive(Default)]
struct Untimed {
    calls: u64,
    total: f64,
    own: f64,
    /// Of the total.
    variance: f64,
    /// A pause that may have been one of them; and all of what nothing is known of.
    pending: f64,
}

impl<'a> Thread<'a> {
    /// `None`: it is not whole.
    fn new(part: &Part<'a>) -> Option<Self> {
        let (head, first) = part.stat.get(..STAT_SIZE)?.split_at_checked(8 * WORDS)?;
        let (block, hist) = part.block.split_at_checked(8 * BLOCK_WORDS).unwrap_or_default();
        let hist = hist.as_chunks().0;
        Some(Self {
            head: head.as_chunks().0,
            first: first.get(..FEW)?,
            block: block.as_chunks().0,
            hist: hist.get(..BUCKETS).unwrap_or_default(),
        })
    }

    /// All threads that wrote of a function. Incomplete ones are left out.
    fn all(value: &[Part<'a>]) -> impl Iterator<Item = Self> {
        value.iter().filter_map(Self::new)
    }

    fn word(&self, i: usize) -> u64 {
        self.head.get(i).map_or(0, |word| u64::from_le_bytes(*word))
    }

    /// A word of the block.
    fn learned(&self, i: usize) -> u64 {
        self.block.get(i).map_or(0, |word| u64::from_le_bytes(*word))
    }

    /// Adds its calls to a histogram.
    fn add_times(&self, hist: &mut [u64; BUCKETS]) {
        let first = usize::try_from(self.timed()).unwrap_or(FEW).min(FEW);
        for bucket in self.first.iter().take(first) {
            if let Some(to) = hist.get_mut(usize::from(*bucket)) {
                *to = to.saturating_add(1);
            }
        }
        for (to, from) in hist.iter_mut().zip(self.hist) {
            *to = to.saturating_add(u32::from_le_bytes(*from).into());
        }
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
        let guessed = self.learned(12);
        let open = self.calls().saturating_sub(self.word(4)).saturating_sub(guessed);
        if open == 0 && self.block.is_empty() {
            // As of most functions, which are called a few times.
            return Untimed::default();
        }
        let mut all = Untimed {
            calls: guessed,
            total: self.learned(13) as f64,
            own: self.learned(14) as f64,
            variance: (self.learned(15) as f64 + self.learned(0) as f64)
                * f64::from(VARIANCE_SHIFT).exp2(),
            pending: 0.0,
        };
        if open > 0 {
            let (sum, own_sum, squares) = (
                self.learned(2) as f64,
                self.learned(3).cast_signed() as f64,
                self.learned(4) as f64,
            );
            let (n, before, spread) = (
                self.learned(5) & 0xffff,
                (self.learned(7) & 0xffff_ffff) as f64,
                self.learned(8) as f64,
            );
            let known = n >= TOO_FEW;
            let count = n.max(1) as f64;
            // Before calls go by, a block is finished. Where there was no memory for that, the calls may
            // have taken anything.
            let is_lost = self.timed() > FEW as u64 && self.learned(1) == 0 && before == 0.0;
            let mean = match known {
                true => sum / count,
                false if is_lost => self.total() as f64 / self.outermost().max(1) as f64,
                false => before,
            };
            let net = (mean - overhead).max(0.0);
            let own = if known { own_sum / count - overhead } else { self.word(3) as f64 };
            let within = (squares / count - (mean - before).powi(2)).max(0.0);
            let spread = if known { within } else { within.max(spread) };
            let open = open as f64;
            all.calls = all.calls.saturating_add(open as u64);
            all.total += open * net;
            all.own += open * own.max(0.0);
            all.variance += spread * open * (open + count) / count;
            all.pending = if is_lost && !known { open * net } else { 0.0 };
        }
        let pending = self.learned(10) as f64;
        // A longer one than all calls together is taken for a pause of the caller.
        if pending <= self.total() as f64 + all.total {
            all.pending += pending;
        }
        all
    }
}

/// What calls of one thread took on average in the last finished block, in ticks as measured: by the
/// `struct block` of all threads.
pub fn mean(blocks: &[u8]) -> Option<u64> {
    let all = blocks.as_chunks::<BLOCK_SIZE>().0.iter();
    let means = all.filter_map(|block| block.as_chunks::<4>().0.get(14));
    means.map(|mean| u32::from_le_bytes(*mean).into()).find(|mean| *mean > 0)
}

/// How many calls were timed.
pub fn timed_calls(value: &[Part<'_>]) -> u64 {
    Thread::all(value).map(|thread| thread.timed()).fold(0, u64::saturating_add)
}

impl Stat {
    /// Adds up what threads wrote. What is incomplete is left out.
    pub fn sum(value: &[Part<'_>], clock: Clock, running: Running) -> Self {
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
        for thread in Thread::all(value).filter(|t| t.calls() > 0) {
            sum.calls = sum.calls.saturating_add(thread.calls());
            let guess = thread.untimed(overhead);
            untimed = untimed.saturating_add(guess.calls);
            variance += guess.variance;
            pending += guess.pending;
            total += (thread.total() as f64 - overhead * thread.outermost() as f64).max(0.0)
                + guess.total;
            own += thread.own() as f64 + guess.own - overhead * thread.timed() as f64;
            thread.add_times(&mut sum.hist);
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
    pub fn last(value: &[Part<'_>]) -> u64 {
        Thread::all(value).map(|thread| thread.last()).max().unwrap_or(0)
    }

    /// Tells below which time the fastest calls stayed, for each of these percentages, which ascend;
    /// `None` when no call has returned.
    ///
    /// The histogram knows the bucket; inside it calls are taken to be spread evenly. No call took
    /// longer than all outermost ones together, and a single one took just that.
    pub fn percentiles<const N: usize>(&self, percents: [f64; N]) -> [Option<u64>; N] {
        let count: u64 = self.hist.iter().fold(0, |a, n| a.saturating_add(*n));
        let nanos =
            |ticks: f64| (ticks - f64::from(self.clock.overhead)).max(0.0) * self.clock.tick;
        let single = self.calls == 1 && self.running == 0 && self.error_ns.is_none();
        let mut buckets = self.hist.iter().enumerate().filter(|(_, n)| **n > 0).peekable();
        let mut before = 0.0;
        percents.map(|percent| {
            let rank = percent / 100.0 * count as f64;
            let (i, n) = loop {
                let (i, n) = buckets.peek()?;
                let n = **n as f64;
                if before + n >= rank {
                    break (*i, n);
                }
                before += n;
                buckets.next();
            };
            let low = if i == 0 { 0.0 } else { (1_u64 << i) as f64 };
            let high = (2_u64 << i) as f64;
            if single && (nanos(low) as u64..=nanos(high) as u64).contains(&self.total_ns) {
                return Some(self.total_ns);
            }
            let value = nanos(low + (high - low) * ((rank - before) / n).clamp(0.0, 1.0)) as u64;
            Some(value.min(self.total_ns.max(nanos(low) as u64)))
        })
    }
}

#[cfg(test)]
mod simulated;

#[cfg(test)]
pub mod tests {
    use super::*;

    /// Ticks are nanoseconds, and cost nothing.
    pub const CLOCK: Clock = Clock { tick: 1.0, overhead: 0 };

    /// A `struct stat` and a `struct block` as the program writes them.
    pub struct Written([Vec<u8>; 2]);

    impl Written {
        pub fn part(&self) -> Part<'_> {
            let [stat, block] = &self.0;
            Part { stat, block }
        }
    }

    /// Words of both, the block's behind the others.
    const ALL: usize = WORDS + BLOCK_WORDS;

    fn value(words: [u64; ALL], hist: &[(usize, u32)]) -> Written {
        let bytes = |words: &[u64]| words.iter().flat_map(|w| w.to_le_bytes()).collect::<Vec<_>>();
        let (mut stat, mut block) = (bytes(&words[..WORDS]), bytes(&words[WORDS..]));
        let mut buckets = [0_u32; BUCKETS];
        for (i, n) in hist {
            buckets[*i] = *n;
            // The first calls are not in the histogram.
            while buckets[*i] > 0 && stat.len() < 8 * WORDS + FEW {
                stat.push(*i as u8);
                buckets[*i] -= 1;
            }
        }
        stat.resize(STAT_SIZE, u8::MAX);
        block.extend(buckets.iter().flat_map(|n| n.to_le_bytes()));
        block.resize(BLOCK_SIZE, 0);
        Written([stat, block])
    }

    /// The same for a function whose calls were all timed.
    pub fn bytes(calls: u64, total: u64, own: u64, hist: &[(usize, u32)]) -> Written {
        let mut words = [0; ALL];
        (words[0], words[1], words[4], words[6], words[7]) = (calls, 7, calls, calls, calls);
        (words[8], words[9]) = (total, own);
        value(words, hist)
    }

    fn sum(value: &Written, tick: f64) -> Stat {
        Stat::sum(&[value.part()], Clock { tick, overhead: 0 }, Running::default())
    }

    #[test]
    fn threads_are_added_up() {
        let mut written =
            [bytes(2, 10, 6, &[(2, 2)]), bytes(0, 0, 0, &[]), bytes(3, 50, 40, &[(2, 1), (4, 2)])];
        let of = |written: &[Written]| {
            let value: Vec<_> = written.iter().map(Written::part).collect();
            Stat::sum(&value, CLOCK, Running::default())
        };
        let stat = of(&written);
        assert_eq!((stat.calls, stat.total_ns, stat.self_ns), (5, 60, 46));
        assert_eq!((stat.hist[2], stat.hist[4], stat.hist.iter().sum::<u64>()), (3, 2, 5));
        written[2].0[0].pop();
        assert_eq!(of(&written).calls, 2, "half a value is none");
        written[0].0[1].clear();
        assert_eq!(of(&written), sum(&bytes(2, 10, 6, &[(2, 2)]), 1.0), "few calls have no block");
        assert_eq!(of(&[bytes(u64::MAX, 0, 0, &[]), bytes(u64::MAX, 0, 0, &[])]).calls, u64::MAX);
    }

    #[test]
    fn estimates_of_finished_and_open_blocks_come_with_their_error() {
        // 1,000 calls: 300 timed, 500 in finished blocks, 200 in the open one, of which 20 timed
        // ones took 10 ticks on average.
        let mut words = [0_u64; ALL];
        (words[0], words[4], words[6], words[7]) = (1000, 300, 300, 300);
        (words[8], words[9]) = (3000, 2000);
        words[WORDS + 2..WORDS + 6].copy_from_slice(&[200, 120, 20 * 9, 20]);
        words[WORDS + 7] = 10;
        words[WORDS + 12..].copy_from_slice(&[500, 5000, 3000, 4]);
        let stat = Stat::sum(
            &[value(words, &[(3, 300)]).part()],
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
        words[WORDS + 10] = 5000;
        let with = |words| sum(&value(words, &[]), 1.0).error_ns.unwrap();
        let pending = with(words);
        words[WORDS + 10] = 50_000;
        assert_eq!(pending - with(words), 5000);
    }

    /// As on a full file system.
    #[test]
    fn where_blocks_are_lost_the_error_is_as_large_as_the_estimate() {
        let mut words = [0_u64; ALL];
        (words[0], words[3], words[4], words[6], words[7]) = (1000, 4, 300, 300, 300);
        (words[8], words[9]) = (3000, 2000);
        let mut written = value(words, &[(3, 300)]);
        for size in [BLOCK_SIZE, 0] {
            written.0[1] = vec![0; size];
            let stat = sum(&written, 1.0);
            assert_eq!((stat.calls, stat.total_ns, stat.error_ns), (1000, 10_000, Some(7000)));
            assert_eq!(stat.self_ns, 2000 + 700 * 4);
        }
    }

    #[test]
    fn what_runs_is_added_and_nothing_overflows() {
        let running = Running { calls: 1, total: 500, own: 400 };
        let stat = Stat::sum(&[bytes(2, 10, 6, &[(2, 2)]).part()], CLOCK, running);
        assert_eq!((stat.total_ns, stat.self_ns, stat.running, stat.error_ns), (510, 406, 1, None));
        let odd = Stat::sum(
            &[value([u64::MAX; ALL], &[]).part(), value([1; ALL], &[]).part()],
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
        let percents = [1.0, 10.0, 25.0, 50.0, 75.0, 90.0, 99.0, 99.9];
        for (percent, ours) in percents.into_iter().zip(stat.percentiles(percents)) {
            assert_eq!(stat.percentiles([percent]), [ours]);
            let exact =
                times[((percent / 100.0 * 5000.0) as usize).clamp(1, 5000) - 1].max(1) as f64;
            let ours = ours.unwrap().max(1) as f64;
            assert!(
                ours / exact <= 2.001 && exact / ours <= 2.001,
                "p{percent}: {ours} for {exact}"
            );
        }
    }

    #[test]
    fn a_percentile_never_exceeds_the_total_and_needs_a_finished_call() {
        assert_eq!(sum(&bytes(1, 1100, 1100, &[(10, 1)]), 1.0).percentiles([99.0]), [Some(1100)]);
        assert_eq!(
            sum(&bytes(1, 0, 0, &[(10, 1)]), 1.0).percentiles([99.0]),
            [Some(1024)],
            "a call inside one that still runs"
        );
        assert_eq!(sum(&bytes(1, 0, 0, &[]), 1.0).percentiles([50.0, 99.0]), [None, None]);
        let edge = sum(&bytes(1, u64::MAX, 0, &[(BUCKETS - 1, 1)]), 1.0);
        assert_eq!(edge.percentiles([100.0]), [Some(1 << BUCKETS)]);
        let one = sum(&bytes(1, 1500, 1500, &[(10, 1)]), 1.0);
        assert_eq!(one.percentiles([50.0, 99.0]), [Some(1500); 2], "what the one call took");
    }
}
