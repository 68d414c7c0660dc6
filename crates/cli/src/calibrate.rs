//! What timing a call adds to the time that is measured: found out once on each machine, and taken
//! off by reports.
//!
//! Between the two readings of the clock lie the end of the entry hook and the beginning of the
//! exit hook, some 15 ns. So this program runs itself under the agent, calls a function that takes
//! nothing, and looks what `bpf/trace.bpf.c` measured. The result stays in the skep directory until
//! the machine starts anew. Where anything of this fails, nothing is taken off.

use std::path::Path;
use std::process::{Command, Stdio};

use skep::Dir;
use skep::dir::{ENV_DIR, ENV_LINKS};
use skep::link::{Cookie, Link, LinkSpec, describe};
use skep::load::Loader;
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
/// The result and the boot it belongs to, in the skep directory.
const FILE: &str = "overhead";

unsafe extern "C" {
    safe fn gnu_dev_minor(dev: u64) -> u32;
}

/// Calls the function and tells that there is nothing else to do, if this process was started for
/// that.
pub fn is_child() -> bool {
    if std::env::var_os(ENV_CALIBRATE).is_none() {
        return false;
    }
    let mut sum = 0_u32;
    for i in 0..CALLS {
        sum = sum.wrapping_add(gnu_dev_minor(std::hint::black_box(i)));
    }
    std::hint::black_box(sum);
    true
}

/// Returns how many ticks timing adds to a call.
pub fn overhead(dir: &Dir, library: &Path, object: &Object) -> u32 {
    let boot = std::fs::read_to_string("/proc/sys/kernel/random/boot_id").unwrap_or_default();
    let path = dir.path().join(FILE);
    let known = std::fs::read_to_string(&path).ok().and_then(|text| {
        let (ticks, of) = text.split_once(' ')?;
        if of == boot { ticks.parse().ok() } else { None }
    });
    if let Some(ticks) = known {
        return ticks;
    }
    let mut least = u32::MAX;
    for _ in 0..TRIES {
        least = least.min(measure(dir, library, object).unwrap_or(u32::MAX));
        if least <= USUAL {
            break;
        }
    }
    let ticks = if least <= MOST { least } else { 0 };
    // Whole or not at all: another process may read it.
    let fresh = path.with_extension(std::process::id().to_string());
    drop(
        std::fs::write(&fresh, format!("{ticks} {boot}"))
            .and_then(|()| std::fs::rename(&fresh, &path)),
    );
    ticks
}

fn measure(dir: &Dir, library: &Path, object: &Object) -> Option<u32> {
    let loaded = Loader::new(dir).max_entries("stats", 1).load(object).ok()?;
    let settings = [63_u32.to_le_bytes(), [0; 4]].concat();
    loaded.map("settings")?.update(&0_u32.to_le_bytes(), &settings, 0).ok()?;
    let spec = describe(loaded.programs().first()?, &[NOTHING.to_owned()]).ok()?;
    let link =
        Link::create(dir, LinkSpec { cookie: Cookie::Index, max_functions: 1, ..spec }, None)
            .ok()?;
    let mut command = Command::new(std::env::current_exe().ok()?);
    command
        .env_clear()
        .env("LD_PRELOAD", library)
        .env(ENV_DIR, dir.path())
        .env(ENV_LINKS, link.id().to_string())
        .env(ENV_CALIBRATE, "1");
    command
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .status()
        .ok()
        .filter(std::process::ExitStatus::success)?;
    let value = loaded.map("stats")?.lookup(&0_u32.to_le_bytes()).ok()?;
    estimate::mean(&value).and_then(|ticks| u32::try_from(ticks).ok())
}
