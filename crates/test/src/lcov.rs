//! Which source lines of programs ran, over all tests of a process.

use std::path::PathBuf;
use std::sync::{LazyLock, Mutex, PoisonError};

use skep::load::Loaded;
use skep::test_run::{Coverage, Runner};

/// Names the directory for files of `genhtml` and its like.
const VARIABLE: &str = "SKEP_TEST_LCOV";

static DIRECTORY: LazyLock<Option<PathBuf>> =
    LazyLock::new(|| std::env::var_os(VARIABLE).filter(|d| !d.is_empty()).map(PathBuf::from));

static COUNTED: Mutex<Option<Coverage>> = Mutex::new(None);

/// Tells whether lines are to be counted.
pub(crate) fn is_wanted() -> bool {
    DIRECTORY.is_some()
}

fn change(change: impl FnOnce(&mut Coverage)) {
    if is_wanted() {
        change(COUNTED.lock().unwrap_or_else(PoisonError::into_inner).get_or_insert_default());
    }
}

/// Notes programs that may never run.
pub(crate) fn expect(loaded: &Loaded) {
    change(|counted| loaded.programs().iter().for_each(|program| counted.expect_loaded(program)));
}

/// Adds what ran.
pub(crate) fn add(runner: &Runner) {
    change(|counted| counted.add(runner));
}

/// Writes what this process has counted so far. A file that cannot be written is told on stderr, as
/// tests go on.
pub(crate) fn write() {
    let Some(directory) = &*DIRECTORY else { return };
    let counted = COUNTED.lock().unwrap_or_else(PoisonError::into_inner);
    let Some(counted) = &*counted else { return };
    let program = std::env::current_exe().ok();
    let name = program.as_deref().and_then(|p| p.file_name()).map(|n| n.to_string_lossy());
    let name = name.as_deref().unwrap_or("test");
    // Each process has a file of its own, which is replaced as a whole.
    let path = directory.join(format!("{name}-{}.info", std::process::id()));
    let part = path.with_extension("part");
    let written = std::fs::create_dir_all(directory)
        .and_then(|()| std::fs::write(&part, counted.lcov(name)))
        .and_then(|()| std::fs::rename(&part, &path));
    if let Err(e) = written {
        #[allow(clippy::print_stderr, reason = "a test has no other way to tell")]
        {
            eprintln!("warning: coverage cannot be written to `{}`: {e}", path.display());
        }
    }
}
