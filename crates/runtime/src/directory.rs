//! The directory whose programs this process runs: threads claim their slots in one.
//!
//! Before they run anything, links and test runs say which directory they use ([`use_for_link`],
//! [`use_for_run`]); they use it until they drop what they got. Asking and installing the table of
//! slots is one step under one lock. A link stays, so another directory is refused meanwhile; a
//! test run ends, so another directory waits for it. Whoever waits keeps the lock, so all that come
//! later wait behind it, and nobody waits for ever.
//!
//! A child of `fork` has its parent's links, but none of its other threads' runs, and perhaps the
//! lock in the state of a thread that it does not have. So the lock and the number of runs bear the
//! id of their process.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{
    AtomicPtr, AtomicU32, AtomicU64, AtomicUsize, Ordering::AcqRel, Ordering::Acquire,
    Ordering::Relaxed, Ordering::Release,
};
use std::time::Duration;

use skep_maps::{MapError, SlotTable};
use skep_store::Dir;

/// Why programs of a directory cannot run in this process now.
#[derive(Debug, thiserror::Error)]
pub enum UseError {
    /// Those of another directory do.
    #[error(transparent)]
    Other(#[from] OtherDirectory),
    /// The table of slots cannot be used.
    #[error(transparent)]
    Slots(#[from] MapError),
}

/// Says that a process runs the programs of another directory.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
#[error(
    "this process runs programs of links in `{}`, and can run none of `{}` before they are \
     detached", self.path.display(), self.wanted.display()
)]
pub struct OtherDirectory {
    /// The directory of the links.
    pub path: PathBuf,
    /// The one that was asked for.
    pub wanted: PathBuf,
}

/// The directory that this process runs programs of.
struct Current {
    table: Arc<SlotTable>,
    path: PathBuf,
    /// Who installed the table.
    process: u32,
}

/// Its table is installed; null before the first. Who has the lock looks at it and replaces it.
static CURRENT: AtomicPtr<Current> = AtomicPtr::new(std::ptr::null_mut());
/// The process of the thread that has the lock; 0 if nobody has it.
static LOCK: AtomicU32 = AtomicU32::new(0);
/// Links of the current directory.
static LINKS: AtomicUsize = AtomicUsize::new(0);
/// Test runs in progress in the lower half, the process that they are of in the upper.
static RUNS: AtomicU64 = AtomicU64::new(0);

/// A link of the current directory.
#[derive(Debug)]
#[must_use]
pub struct LinkUse(());

/// A test run of the current directory, in progress.
#[derive(Debug)]
#[must_use]
pub struct RunUse {
    process: u32,
}

/// Makes a directory the current one for as long as the result lives. Waits for test runs of
/// another one to end.
///
/// # Errors
/// When the process has links of another directory, or the table of slots cannot be used.
pub fn use_for_link(dir: &Dir) -> Result<LinkUse, UseError> {
    let table = SlotTable::open_or_create(dir.path())?;
    let lock = lock();
    install(&lock, &table, dir.path())?;
    LINKS.fetch_add(1, Relaxed);
    Ok(LinkUse(()))
}

/// Makes a directory the current one for a test run, which is short: waits for those of another
/// directory to end.
///
/// # Errors
/// As for [`use_for_link`].
pub fn use_for_run(table: &Arc<SlotTable>, path: &Path) -> Result<RunUse, OtherDirectory> {
    let lock = lock();
    install(&lock, table, path)?;
    let process = lock.process;
    let own = |runs: u64| (runs >> 32) as u32 == process;
    let add = |runs| Some(if own(runs) { runs } else { u64::from(process) << 32 } + 1);
    let _ = RUNS.fetch_update(AcqRel, Relaxed, add);
    Ok(RunUse { process })
}

/// Makes sure that programs of a directory can be run, as of now.
///
/// # Errors
/// As for [`use_for_link`].
pub fn check(table: &Arc<SlotTable>, path: &Path) -> Result<(), OtherDirectory> {
    may_install(&lock(), table, path)
}

impl Drop for LinkUse {
    fn drop(&mut self) {
        // Pairs with the Acquire of who installs another table.
        LINKS.fetch_sub(1, Release);
    }
}

impl Drop for RunUse {
    fn drop(&mut self) {
        let _ = RUNS.fetch_update(AcqRel, Relaxed, |runs| {
            // A forked child counts anew.
            let same = (runs >> 32) as u32 == self.process && runs as u32 > 0;
            same.then(|| runs - 1)
        });
    }
}

/// Installs a table unless it is.
fn install(lock: &Locked, table: &Arc<SlotTable>, path: &Path) -> Result<(), OtherDirectory> {
    may_install(lock, table, path)?;
    let before = current(lock);
    if before.is_some_and(|current| Arc::ptr_eq(&current.table, table)) {
        return Ok(());
    }
    wait_for_runs();
    let process = lock.process;
    if before.is_some_and(|current| current.process == process) {
        // SAFETY: threads run programs, and claim slots for that, for links and in test runs. There is
        // no link, and the last one went when no thread could be inside of its hooks any more; the test
        // runs of this process have ended, and others begin when this thread gives back the lock.
        unsafe { table.replace() };
    } else {
        // This thread may have been forked in the middle of one of its parent's runs.
        table.install();
    }
    let new = Current { table: Arc::clone(table), path: path.to_owned(), process };
    let before = CURRENT.swap(Box::into_raw(Box::new(new)), AcqRel);
    if !before.is_null() {
        // SAFETY: it came from a box, here, and references to it end with the lock at the latest.
        drop(unsafe { Box::from_raw(before) });
    }
    Ok(())
}

/// Fails if links keep another table.
fn may_install(lock: &Locked, table: &Arc<SlotTable>, wanted: &Path) -> Result<(), OtherDirectory> {
    let other = current(lock).filter(|current| !Arc::ptr_eq(&current.table, table));
    match other {
        Some(current) if LINKS.load(Acquire) > 0 => {
            Err(OtherDirectory { path: current.path.clone(), wanted: wanted.to_owned() })
        }
        _ => Ok(()),
    }
}

fn current(_: &Locked) -> Option<&Current> {
    // SAFETY: null, or from a box that stays as long as the lock is not given back, but for the end of
    // `install`, which has no reference any more. Pairs with the swap there.
    unsafe { CURRENT.load(Acquire).as_ref() }
}

/// Waits until no test run of this process is in progress. The caller holds the lock, so none
/// begins.
fn wait_for_runs() {
    let process = process();
    let mut pause = Pause::default();
    loop {
        let runs = RUNS.load(Acquire);
        if (runs >> 32) as u32 != process || runs as u32 == 0 {
            return;
        }
        pause.wait();
    }
}

struct Locked {
    process: u32,
}

/// Returns the id of this process, by a system call only where the thread's token has none: at its
/// first use, after a fork, in another PID namespace.
fn process() -> u32 {
    match (skep_maps::slots::pid_tgid() >> 32) as u32 {
        0 => std::process::id(),
        process => process,
    }
}

fn lock() -> Locked {
    let process = process();
    let mut pause = Pause::default();
    loop {
        match LOCK.compare_exchange(0, process, Acquire, Relaxed) {
            Ok(_) => return Locked { process },
            Err(holder) if holder == process => pause.wait(),
            // A thread of the process that this one was forked by. Each of its stores leaves all in
            // order.
            Err(holder) => {
                if LOCK.compare_exchange(holder, process, Acquire, Relaxed).is_ok() {
                    return Locked { process };
                }
            }
        }
    }
}

impl Drop for Locked {
    fn drop(&mut self) {
        LOCK.store(0, Release);
    }
}

/// Longer and longer pauses.
#[derive(Default)]
struct Pause(u32);

impl Pause {
    fn wait(&mut self) {
        const SPINS: u32 = 64;
        const LONGEST: Duration = Duration::from_millis(1);
        if self.0 < SPINS {
            std::thread::yield_now();
        } else {
            let long = Duration::from_micros(u64::from(self.0 - SPINS + 1) * 10);
            std::thread::sleep(long.min(LONGEST));
        }
        self.0 += 1;
    }
}
