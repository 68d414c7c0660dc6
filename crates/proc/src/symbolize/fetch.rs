//! Debug files that are neither beside a file nor installed: somebody else brings them.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use crate::elf::{BuildId, Elf};

/// Brings the debug file of a build id, such as from a debuginfod server: a function that returns its
/// path. It is asked once for each file that has no debug file on this machine, and what it brings
/// counts only if it has the same build id.
///
/// ```
/// use skep_proc::symbolize::{Fetch, SymbolFile};
/// let fetch = Fetch::new(|id| {
///     let path = std::path::PathBuf::from(format!("/srv/debug/{id}"));
///     path.exists().then_some(path)
/// });
/// let file = SymbolFile::open(&std::env::current_exe()?)?.with_fetch(fetch);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone)]
pub struct Fetch(Arc<Bring>);

type Bring = dyn Fn(&BuildId) -> Option<PathBuf> + Send + Sync;

impl Fetch {
    /// Takes the function.
    pub fn new(fetch: impl Fn(&BuildId) -> Option<PathBuf> + Send + Sync + 'static) -> Self {
        Self(Arc::new(fetch))
    }

    /// Brings the debug file of `elf`, if it has a build id.
    pub(super) fn of(&self, elf: &Elf) -> Option<(PathBuf, Elf)> {
        let id = elf.build_id()?;
        let path = (self.0)(&id)?;
        let found = Elf::open(Path::new(&path)).ok()?;
        (found.build_id() == Some(id)).then_some((path, found))
    }
}

impl std::fmt::Debug for Fetch {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Fetch")
    }
}
