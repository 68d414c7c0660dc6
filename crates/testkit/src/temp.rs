//! Folders that vanish when dropped.

use std::fs::DirBuilder;
use std::os::unix::fs::DirBuilderExt;
use std::path::{Path, PathBuf};
use std::sync::OnceLock;
use std::sync::atomic::{AtomicU32, Ordering};

/// A new, empty folder that only its owner can enter. Dropping it removes it with everything
/// inside.
#[derive(Debug)]
pub struct TempDir {
    path: PathBuf,
}

impl TempDir {
    /// Makes a folder in the system's place for temporary files.
    pub fn new() -> Self {
        Self::below(&std::env::temp_dir())
    }

    /// Makes a folder on tmpfs when there is one, as skep's own folder is.
    pub fn in_memory() -> Self {
        let shm = Path::new("/dev/shm");
        let probe = shm.join(format!("skep-test-probe-{}-{}", std::process::id(), next()));
        if DirBuilder::new().create(&probe).is_ok() {
            std::fs::remove_dir(&probe).ok();
            return Self::below(shm);
        }
        Self::new()
    }

    /// The folder that all tests of this process share, on tmpfs when there is one. It goes when the
    /// process ends.
    pub fn of_process() -> &'static Self {
        /// With the process that made it: others are forked from that one.
        static DIR: OnceLock<(TempDir, u32)> = OnceLock::new();
        extern "C" fn remove() {
            if let Some((dir, pid)) = DIR.get()
                && *pid == std::process::id()
            {
                dir.remove();
            }
        }
        let made = DIR.get_or_init(|| {
            skep_kernel::at_exit(remove);
            (Self::in_memory(), std::process::id())
        });
        &made.0
    }

    fn below(parent: &Path) -> Self {
        Self::within(parent).unwrap_or_else(|error| {
            panic!("cannot make a folder in `{}`: {error}", parent.display())
        })
    }

    /// Makes a folder in another.
    pub(crate) fn within(parent: &Path) -> std::io::Result<Self> {
        loop {
            let path = parent.join(format!("skep-test-{}-{}", std::process::id(), next()));
            match DirBuilder::new().mode(0o700).create(&path) {
                Ok(()) => return Ok(Self { path }),
                // Left behind by a killed process that had our number.
                Err(error) if error.kind() == std::io::ErrorKind::AlreadyExists => {}
                Err(error) => return Err(error),
            }
        }
    }

    /// Where it is.
    pub fn path(&self) -> &Path {
        &self.path
    }

    fn remove(&self) {
        // A failed test keeps its files for the person who looks.
        if std::env::var_os("SKEP_KEEP").is_none() {
            std::fs::remove_dir_all(&self.path).ok();
        }
    }

    /// The path of something in it.
    pub fn join(&self, name: impl AsRef<Path>) -> PathBuf {
        self.path.join(name)
    }
}

impl Default for TempDir {
    fn default() -> Self {
        Self::new()
    }
}

impl Drop for TempDir {
    fn drop(&mut self) {
        self.remove();
    }
}

fn next() -> u32 {
    static NEXT: AtomicU32 = AtomicU32::new(0);
    NEXT.fetch_add(1, Ordering::Relaxed)
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt;

    use super::TempDir;

    #[test]
    fn it_is_private_and_goes_away_with_its_contents() {
        let dir = TempDir::new();
        let path = dir.path().to_owned();
        std::fs::write(dir.join("file"), "x").unwrap();
        assert_eq!(std::fs::metadata(&path).unwrap().permissions().mode() & 0o777, 0o700);
        drop(dir);
        assert!(!path.exists());
    }
}
