//! Measures ways to turn addresses into files and offsets; `cargo xtask bench procmap` runs it and
//! makes rows of what it prints: `CASE|SIDE|NANOSECONDS …`, one number for each round. In a round
//! all sides take turns.
//!
//! Sides: `adaptive`, `queries` and `text` are skep's strategies, on a process that is kept open;
//! `opened` is the adaptive one with opening the process in the time, as rivals do each time; `scan`
//! reads and parses the text and searches in it. `blazesym-text` and `blazesym-ioctl` are blazesym
//! without and with its use of the ioctl, `procfs` is that crate's list and a search in it.

mod fixture;

use std::hint::black_box;
use std::sync::Arc;
use std::time::{Duration, Instant};

use blazesym::Pid;
use blazesym::normalize::{NormalizeOpts, Normalizer as Blazesym};
use fixture::{Fixture, Shape};
use skep_proc::maps::{self, BuildIds, Filter, Live, MapSource, Normalizer, Place, Strategy, Vma, Want};

const NONE: Shape = Shape { files: 0, of_one: 0, anonymous: 0, churn: false };

fn main() {
    let args: Vec<String> = std::env::args().skip(1).collect();
    if args.first().is_some_and(|a| a == "fixture") {
        return fixture::run(&args[1..]);
    }
    let quick = args.first().is_some_and(|a| a == "quick");
    // For a look at one case: `quick few`.
    let few = args.get(1).is_some_and(|a| a == "few");
    one_file(quick, if few { &[54] } else { &[54, 1005, 20_005] });
    if few {
        return;
    }
    grid(quick);
    million();
}

/// Whose addresses, and what is measured of them.
struct Case<'a> {
    name: String,
    pid: u32,
    live: &'a Live,
    addresses: &'a [u64],
    build_ids: bool,
    rounds: usize,
}

/// A side: its name, and what a round of it does.
type Side<'a> = (&'static str, Box<dyn FnMut() + 'a>);

impl<'a> Case<'a> {
    fn ours(&'a self, name: &'static str, strategy: Strategy) -> Side<'a> {
        let mut places = Vec::new();
        let normalize = move || {
            // A new one each time: nothing is known from before but build ids of files.
            let mut n = Normalizer::new(self.live).build_ids(self.build_ids).strategy(strategy);
            n.normalize_into(self.addresses, &mut places).expect("the process waits");
            black_box(&places);
        };
        (name, Box::new(normalize))
    }

    fn opened(&'a self) -> Side<'a> {
        let known = Arc::new(BuildIds::default());
        let normalize = move || {
            let live = Live::of(self.pid).expect("the process waits");
            let live = live.with_build_ids(Arc::clone(&known));
            let mut n = Normalizer::new(&live).build_ids(self.build_ids);
            black_box(n.normalize(self.addresses).expect("the process waits"));
        };
        ("opened", Box::new(normalize))
    }

    fn scan(&'a self) -> Side<'a> {
        let scan = move || {
            let text = std::fs::read(format!("/proc/{}/maps", self.pid)).expect("it waits");
            let vmas = maps::parse(&text).expect("the kernel writes it");
            for address in self.addresses {
                black_box(vmas.partition_point(|v| v.end <= *address));
            }
        };
        ("scan", Box::new(scan))
    }

    fn blazesym(&'a self, name: &'static str, ioctl: bool) -> Side<'a> {
        let n = Blazesym::builder()
            .enable_procmap_query(ioctl)
            .enable_build_ids(self.build_ids)
            .enable_build_id_caching(true)
            .enable_vma_caching(false)
            .build();
        let normalize = move || {
            let options = NormalizeOpts { sorted_addrs: true, ..NormalizeOpts::default() };
            let pid = Pid::from(self.pid);
            let out = n.normalize_user_addrs_opts(pid, self.addresses, &options);
            black_box(out.expect("the process waits"));
        };
        (name, Box::new(normalize))
    }

    fn procfs(&'a self) -> Side<'a> {
        let list = move || {
            let process = procfs::process::Process::new(self.pid as i32).expect("it waits");
            let maps = process.maps().expect("the kernel writes it");
            for address in self.addresses {
                black_box(maps.0.partition_point(|m| m.address.1 <= *address));
            }
        };
        ("procfs", Box::new(list))
    }

    /// Runs all sides in turn, and prints a line for each.
    fn measure(&self, mut sides: Vec<Side<'_>>) {
        let mut times = vec![Vec::new(); sides.len()];
        for round in 0..=self.rounds {
            for ((_, run), times) in sides.iter_mut().zip(&mut times) {
                // Once without a clock: the side before has left its own data in the caches.
                run();
                let (start, mut runs) = (Instant::now(), 0u32);
                while runs == 0 || start.elapsed() < Duration::from_micros(300) {
                    run();
                    runs += 1;
                }
                if round > 0 {
                    times.push(start.elapsed().as_nanos() as f64 / f64::from(runs));
                }
            }
        }
        for ((side, _), times) in sides.iter().zip(times) {
            let times: Vec<String> = times.iter().map(|t| format!("{t:.1}")).collect();
            println!("{}|{side}|{}", self.name, times.join(" "));
        }
    }
}

/// Mappings of one file: few and many of them, beside all rivals.
fn one_file(quick: bool, totals: &[usize]) {
    for &total in totals {
        let empty = Fixture::start(NONE);
        let own = code(empty.pid()).0;
        let fixture = Fixture::start(Shape { of_one: total - own, ..NONE });
        let (_, code) = code(fixture.pid());
        let live = Live::of(fixture.pid()).expect("it waits");
        for count in [1, 5, 100, 1000] {
            let addresses = addresses(&code, count, Spread::Uniform);
            for build_ids in [false, true] {
                let case = Case {
                    name: format!("{total} mappings, {count} addresses{}", ids(build_ids)),
                    pid: fixture.pid(),
                    live: &live,
                    addresses: &addresses,
                    build_ids,
                    rounds: if quick || total > 20_000 { 5 } else { 15 },
                };
                case.check();
                let mut sides = vec![
                    case.ours("adaptive", Strategy::Adaptive),
                    case.ours("queries", Strategy::Queries),
                    case.ours("text", Strategy::ReadAll),
                    case.opened(),
                    case.scan(),
                    case.blazesym("blazesym-text", false),
                    case.blazesym("blazesym-ioctl", true),
                ];
                if !build_ids {
                    sides.push(case.procfs());
                }
                case.measure(sides);
            }
        }
    }
}

/// Files and memory without a file in all proportions: adaptive beside what it chooses from.
fn grid(quick: bool) {
    for files in [4, 64, 512] {
        for anonymous in [0, 2000, 20_000] {
            for churn in [false, true] {
                if churn && (anonymous != 2000 || quick) {
                    continue;
                }
                let fixture = Fixture::start(Shape { files, anonymous, churn, ..NONE });
                let (_, code) = code(fixture.pid());
                let live = Live::of(fixture.pid()).expect("it waits");
                for (spread, word) in [(Spread::Uniform, "uniform"), (Spread::Zipf, "zipf")] {
                    for count in [1, 10, 100, 1000] {
                        let addresses = addresses(&code, count, spread);
                        for build_ids in [false, true] {
                            let churn = if churn { ", churn" } else { "" };
                            let case = Case {
                                name: format!(
                                    "grid: {files} files, {anonymous} anonymous{churn}, {count} {word}{}",
                                    ids(build_ids)
                                ),
                                pid: fixture.pid(),
                                live: &live,
                                addresses: &addresses,
                                build_ids,
                                rounds: if quick { 3 } else { 7 },
                            };
                            case.measure(vec![
                                case.ours("adaptive", Strategy::Adaptive),
                                case.ours("queries", Strategy::Queries),
                                case.ours("text", Strategy::ReadAll),
                            ]);
                        }
                    }
                }
            }
        }
    }
}

/// As a profiler has them, not sorted: nanoseconds for each address.
fn million() {
    let fixture = Fixture::start(Shape { files: 64, anonymous: 2000, ..NONE });
    let (_, code) = code(fixture.pid());
    let live = Live::of(fixture.pid()).expect("it waits");
    let count = 1_000_000;
    let sorted = addresses(&code, count, Spread::Zipf);
    let mut shuffled = sorted.clone();
    let mut random = Random(7);
    for i in (1..count).rev() {
        shuffled.swap(i, random.below(i as u64 + 1) as usize);
    }
    for (word, addresses) in [("sorted", &sorted), ("shuffled", &shuffled)] {
        let mut lines = [("kept", Vec::new()), ("adaptive", Vec::new())];
        let mut kept = Normalizer::new(&live).keep_mappings();
        let mut fresh = Normalizer::new(&live);
        let mut places = Vec::new();
        for round in 0..=9 {
            for (n, line) in [&mut kept, &mut fresh].into_iter().zip(&mut lines) {
                let start = Instant::now();
                n.normalize_into(addresses, &mut places).expect("the process waits");
                black_box(&places);
                if round > 0 {
                    line.1.push(start.elapsed().as_nanos() as f64 / count as f64);
                }
            }
        }
        for (side, times) in lines {
            let times: Vec<String> = times.iter().map(|t| format!("{t:.3}")).collect();
            println!("{count} {word}, for each address|{side}|{}", times.join(" "));
        }
    }
}

impl Case<'_> {
    /// Makes sure that what is measured is right: places beside the text.
    fn check(&self) {
        let mut n = Normalizer::new(self.live).build_ids(self.build_ids);
        let places = n.normalize(self.addresses).expect("the process waits");
        let vmas = self.live.all(&Filter::default(), Want::NAME).expect("the process waits");
        for (address, place) in self.addresses.iter().zip(places) {
            let vma = vmas.iter().find(|v| v.contains(*address));
            match (place, vma) {
                (Place::File { offset, .. }, Some(v)) => {
                    assert_eq!(offset, v.file_offset(*address));
                }
                (place, vma) => assert!(vma.is_none(), "{address:#x}: {place:?}"),
            }
        }
    }
}

fn ids(build_ids: bool) -> &'static str {
    if build_ids { ", build ids" } else { "" }
}

/// The number of mappings, and those that can be executed.
fn code(pid: u32) -> (usize, Vec<Vma>) {
    let all = Live::of(pid).and_then(|l| l.all(&Filter::default(), Want::NAME)).expect("it waits");
    let count = all.len();
    (count, all.into_iter().filter(|v| Filter::TEXT.matches(v)).collect())
}

#[derive(Clone, Copy)]
enum Spread {
    Uniform,
    /// The mapping of rank n is hit in proportion to 1/n, as functions are in a profile.
    Zipf,
}

/// Sorted addresses, one of a hundred where nothing is mapped.
fn addresses(code: &[Vma], count: usize, spread: Spread) -> Vec<u64> {
    let mut random = Random(count as u64 + 1);
    let weight = |rank: usize| match spread {
        Spread::Uniform => 1.0,
        Spread::Zipf => 1.0 / (rank as f64 + 1.0),
    };
    let mut sums = Vec::with_capacity(code.len());
    let mut sum = 0.0;
    for rank in 0..code.len() {
        sum += weight(rank);
        sums.push(sum);
    }
    let mut out: Vec<u64> = (0..count)
        .map(|n| {
            if n % 100 == 99 {
                return 0x1000 + random.below(0x10_0000);
            }
            let at = sum * random.below(1 << 30) as f64 / f64::from(1 << 30);
            let vma = &code[sums.partition_point(|s| *s <= at).min(code.len() - 1)];
            vma.start + random.below(vma.end - vma.start)
        })
        .collect();
    out.sort_unstable();
    out
}

struct Random(u64);

impl Random {
    fn below(&mut self, n: u64) -> u64 {
        self.0 =
            self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (self.0 >> 33) % n
    }
}
