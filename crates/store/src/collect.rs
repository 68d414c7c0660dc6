//! Removing what nobody uses.

use std::fs::File;
use std::os::unix::fs::MetadataExt;

use rustix::fs::{FlockOperation, flock};

use crate::chain::Kept;
use crate::dir::{Dir, DirError, Kind};

impl Dir {
    /// Removes objects that no process uses and nobody pinned. Returns how many.
    ///
    /// Type information goes when no map is left that could refer to it.
    ///
    /// # Errors
    /// When a sub-directory cannot be read; a file that cannot be removed is left.
    pub fn collect(&self) -> Result<usize, DirError> {
        let mut removed = 0;
        // A map that goes may have been all that kept others.
        loop {
            removed += self.collect_once()?;
            if skep_maps::drop_references(self.path()).unwrap_or(0) == 0 {
                return Ok(removed);
            }
        }
    }

    /// Tells whether a process uses an object, somebody pinned it, or a chain keeps it: what
    /// [`Dir::collect`] leaves. While it is asked, what nobody uses cannot be opened.
    #[must_use]
    pub fn is_used(&self, kind: Kind, id: u32) -> bool {
        let Ok(file) = File::open(self.object(kind, id)) else { return false };
        file.metadata().is_ok_and(|m| m.nlink() > 1)
            || flock(&file, FlockOperation::NonBlockingLockExclusive).is_err()
            || Kept::of(self).has(kind, id)
    }

    fn collect_once(&self) -> Result<usize, DirError> {
        let mut removed = 0;
        let mut kept = Kept::default();
        for kind in Kind::ALL {
            if kind == Kind::Link {
                // Chains that stay keep programs, with their maps.
                kept = Kept::of(self);
            }
            if kind == Kind::Btf && !self.ids(Kind::Map)?.is_empty() {
                continue;
            }
            for id in self.ids(kind)? {
                if !kept.has(kind, id) {
                    // Whoever made it may have put it into a chain since, and ended.
                    let is_kept = || kept.has_now(self, kind, id);
                    removed += usize::from(self.remove_unused_but(kind, id, is_kept));
                }
            }
        }
        Ok(removed)
    }
}
