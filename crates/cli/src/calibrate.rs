//! What timing a call adds to the time that is measured: found out once on each machine, and taken
//! off by reports.
//!
//! Between the two readings of the clock lie the end of the entry hook and the beginning of the
//! exit hook, some 15 ns. So this program runs itself under the agent, calls a function that takes
//! nothing, and looks what `bpf/trace.bpf.c` measured. The result stays in the skep directory until
//! the machine starts anew. Where anything of this fails, nothing is taken off.
//!
//! The rest of the hooks runs outside of the readings, in the caller's time. Where calls are counted by
//! path (`bpf/tree.bpf.c`), it is known how many calls each caller made, and that is taken off, too.

use std::path::Path;
use std::process::{Command, Stdio};

use skep::Dir;
use skep::dir::{ENV_DIR, ENV_LINKS};
use skep::link::{Cookie, Link, LinkSpec, describe};
use skep::load::{Loaded, Loader};
use skep::object::Object;

use crate::estimate;

/// Set in the environment of the process that calls the function.
const ENV_CALIBRATE: &str = "SKEP_CALIBRATE";
/// A function of the C library that moves bits in registers; no compiler knows what it does.
const NOTHING: &str = "libc.so.6:gnu_dev_minor";
/// Seven blocks of the program in which all calls are timed; of these the last one counts.
const CALLS: u64 = 7 * 512 + 100;
/// How often it is tried: an interrupted process measures too much.
const TRIES: usize = 3;
/// Less than this is believed at once, in ticks; what is more than the second is not believed at
/// all.
const USUAL: u32 = 120;
const MOST: u32 = 2000;
/// The result and the boot it belongs to, in the skep directory; and the same of call paths.
const FILE: &str = "overhead";
const PATHS_FILE: &str = "overhead-paths";
/// What the child is told for call paths.
const PATHS: &str = "paths";
/// A function of the C library that calls another one for each element.
const SEARCH: &str = "libc.so.6:lfind";
/// Bytes of `struct stat` in `bpf/tree.bpf.c`.
const PATH_SIZE: usize = 64;

unsafe extern "C" {
    safe fn gnu_dev_minor(dev: u64) -> u32;
    fn lfind(
        key: *const (),
        base: *const (),
        count: *mut usize,
        size: usize,
        compare: extern "C" fn(u64) -> u32,
    ) -> *const ();
}

/// Calls the function and tells that there is nothing else to do, if this process was started for
/// that.
pub fn is_child() -> bool {
    let Some(what) = std::env::var_os(ENV_CALIBRATE) else { return false };
    if what == PATHS {
        std::hint::black_box(search());
        return true;
    }
    let mut sum = 0_u32;
    for i in 0..CALLS {
        sum = sum.wrapping_add(gnu_dev_minor(std::hint::black_box(i)));
    }
    std::hint::black_box(sum);
    true
}

/// A function of the C library that does nothing but call another: it looks for an element that is
/// not there, and the other one always says that this is not it.
fn search() -> usize {
    let mut count = CALLS as usize;
    let key = std::ptr::without_provenance(1);
    // SAFETY: elements without a size are not read, and the comparison reads only its first
    // argument, which is a number to it, and not 0.
    unsafe { lfind(key, key, &raw mut count, 0, gnu_dev_minor) }.addr()
}

/// Returns how many ticks timing adds to a call.
pub fn overhead(dir: &Dir, library: &Path, object: &Object) -> u32 {
    let [ticks] = known(dir, FILE, |[ticks]| *ticks <= USUAL, || measure(dir, library, object));
    ticks
}

/// Returns how many ticks timing adds to a call, and how many to its caller, where calls are counted
/// by path.
pub fn of_paths(dir: &Dir, library: &Path, object: &Object) -> [u32; 2] {
    known(dir, PATHS_FILE, |[inside, _]| *inside <= USUAL, || measure_paths(dir, library, object))
}

/// Reads what is known of this machine since it started, or measures it.
fn known<const N: usize>(
    dir: &Dir,
    file: &str,
    usual: impl Fn(&[u32; N]) -> bool,
    measure: impl Fn() -> Option<[u32; N]>,
) -> [u32; N] {
    let boot = std::fs::read_to_string("/proc/sys/kernel/random/boot_id").unwrap_or_default();
    let path = dir.path().join(file);
    let read = || {
        let text = std::fs::read_to_string(&path).ok()?;
        let mut words = text.splitn(N + 1, ' ');
        let mut ticks = [0; N];
        for word in &mut ticks {
            *word = words.next()?.parse().ok()?;
        }
        (words.next()? == boot).then_some(ticks)
    };
    if let Some(ticks) = read() {
        return ticks;
    }
    let mut least = [u32::MAX; N];
    for _ in 0..TRIES {
        let measured = measure().unwrap_or([u32::MAX; N]);
        least.iter_mut().zip(measured).for_each(|(least, new)| *least = new.min(*least));
        if usual(&least) {
            break;
        }
    }
    let ticks = least.map(|ticks| if ticks <= MOST { ticks } else { 0 });
    // Another process may read it meanwhile. It takes the numbers only with the whole of `boot` behind
    // them, so no other file is written first, which would stay if this process were killed.
    let words: String = ticks.iter().map(|t| format!("{t} ")).collect();
    drop(std::fs::write(&path, format!("{words}{boot}")));
    ticks
}

fn measure(dir: &Dir, library: &Path, object: &Object) -> Option<[u32; 1]> {
    let loader = Loader::new(dir).max_entries("stats", 1).max_entries("blocks", 1);
    let loaded = loader.load(object).ok()?;
    let settings = [63_u32.to_le_bytes(), [0; 4]].concat();
    run(dir, library, &loaded, &settings, &[NOTHING], "1")?;
    let value = loaded.map("blocks")?.lookup(&0_u32.to_le_bytes()).ok()?;
    estimate::mean(&value).and_then(|ticks| Some([u32::try_from(ticks).ok()?]))
}

/// One function calls the other, which does nothing: what that one has beyond what both take
/// untraced is what timing adds to a caller.
fn measure_paths(dir: &Dir, library: &Path, object: &Object) -> Option<[u32; 2]> {
    let loaded = Loader::new(dir).sparse("stats").load(object).ok()?;
    let settings = [u32::MAX.to_le_bytes(), [0; 4], [0; 4], [0; 4], [0; 4]].concat();
    run(dir, library, &loaded, &settings, &[NOTHING, SEARCH], PATHS)?;
    let plain = (0..TRIES).map(|_| {
        // SAFETY: reads a clock.
        let begin = unsafe { core::arch::x86_64::_rdtsc() };
        std::hint::black_box(search());
        // SAFETY: reads a clock.
        unsafe { core::arch::x86_64::_rdtsc() }.wrapping_sub(begin)
    });
    let plain = plain.min()?;
    let stats = loaded.map("stats")?;
    let (mut inside, mut outside) = (None, None);
    for node in 1..=2_u32 {
        let value = stats.lookup(&node.to_le_bytes()).ok()?;
        let sum = |at: usize| {
            let words = value.chunks_exact(PATH_SIZE).filter_map(|thread| {
                thread.get(8 * at..8 * at + 8)?.try_into().ok().map(u64::from_le_bytes)
            });
            words.sum::<u64>()
        };
        match sum(1) {
            1 => outside = Some(sum(2).saturating_sub(plain) / CALLS),
            CALLS => inside = Some(sum(2) / CALLS),
            _ => return None,
        }
    }
    Some([u32::try_from(inside?).ok()?, u32::try_from(outside?).ok()?])
}

/// Runs the child under the program.
fn run(
    dir: &Dir,
    library: &Path,
    loaded: &Loaded,
    settings: &[u8],
    functions: &[&str],
    what: &str,
) -> Option<()> {
    loaded.map("settings")?.update(&0_u32.to_le_bytes(), settings, 0).ok()?;
    let functions: Vec<String> = functions.iter().map(|f| (*f).to_owned()).collect();
    let spec = describe(loaded.programs().first()?, &functions).ok()?;
    let max_functions = functions.len() as u32;
    let link =
        Link::create(dir, LinkSpec { cookie: Cookie::Index, max_functions, ..spec }, None).ok()?;
    let mut command = Command::new(std::env::current_exe().ok()?);
    command
        .env_clear()
        .env("LD_PRELOAD", library)
        .env(ENV_DIR, dir.path())
        .env(ENV_LINKS, link.id().to_string())
        .env(ENV_CALIBRATE, what);
    command
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .status()
        .ok()
        .filter(std::process::ExitStatus::success)
        .map(drop)
}

#[cfg(test)]
mod tests {
    use super::*;
    use skep_testkit::TempDir;

    /// A file `overhead.PID` stayed beside it when `skep` was killed, or could not replace the old one.
    #[test]
    fn what_was_measured_is_in_one_file_or_measured_again() -> Result<(), Box<dyn std::error::Error>>
    {
        let temp = TempDir::new();
        let dir = Dir::create(&temp.join("skep"))?;
        let path = dir.path().join(FILE);
        let names = || -> std::io::Result<Vec<_>> {
            let names = std::fs::read_dir(dir.path())?.map(|e| e.map(|e| e.file_name()));
            Ok(names
                .collect::<Result<Vec<_>, _>>()?
                .into_iter()
                .filter(|n| n.to_string_lossy().starts_with(FILE))
                .collect())
        };
        let ask = |ticks: u32| known(&dir, FILE, |_| true, || Some([ticks]));
        std::fs::create_dir(&path)?;
        assert_eq!(ask(7), [7]);
        assert_eq!(names()?, [FILE]);
        std::fs::remove_dir(&path)?;
        assert_eq!([ask(8), ask(9)], [[8], [8]]);
        let whole = std::fs::read(&path)?;
        for len in 0..whole.len() {
            std::fs::write(&path, &whole[..len])?;
            assert_eq!(ask(10), [10], "{len}");
        }
        std::fs::write(&path, [&whole[..], b"x"].concat())?;
        assert_eq!(ask(11), [11]);
        assert_eq!(names()?, [FILE]);
        Ok(())
    }
}
