//! Removing what nobody uses.

use std::fs::File;
use std::os::unix::fs::MetadataExt;

use rustix::fs::{FlockOperation, flock};

use crate::btf::Referred;
use crate::chain::Kept;
use crate::dir::{Dir, DirError, Kind};

impl Dir {
    /// Removes objects that no process uses and nobody pinned. Returns how many.
    ///
    /// Type information goes when no map refers to it.
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
    /// [`Dir::collect`] leaves. While it is asked, who opens what nobody uses waits.
    #[must_use]
    pub fn is_used(&self, kind: Kind, id: u32) -> bool {
        let Ok(file) = File::open(self.object(kind, id)) else { return false };
        // The lock comes last: who reads chains opens their programs.
        file.metadata().is_ok_and(|m| m.nlink() > 1)
            || Kept::of(self).has(kind, id)
            || flock(&file, FlockOperation::NonBlockingLockExclusive).is_err()
    }

    /// Removes an object if no process uses it and nobody pinned it; tells whether it did.
    pub fn remove_unused(&self, kind: Kind, id: u32) -> bool {
        self.remove_unused_but(kind, id, None)
    }

    /// Does the same if no chain keeps the object.
    ///
    /// Who reads chains opens their programs, so they are read before the object is locked: two that did
    /// it then would wait for each other, and one for itself.
    fn remove_unused_but(&self, kind: Kind, id: u32, mut chains: Option<&mut Kept>) -> bool {
        if chains.as_mut().is_some_and(|kept| kept.has_now(self, kind, id)) {
            return false;
        }
        // Whoever made it may have put it into a chain meanwhile, and ended. If so, it is looked at the
        // next time.
        let has_changed = || chains.is_some_and(|kept| kept.is_outdated(self));
        skep_maps::remove_unless(&self.object(kind, id), has_changed).unwrap_or(false)
    }

    fn collect_once(&self) -> Result<usize, DirError> {
        let mut removed = 0;
        let mut kept = Kept::default();
        for kind in Kind::ALL {
            if kind == Kind::Link {
                // Chains that stay keep programs, with their maps.
                kept = Kept::of(self);
            }
            if kind == Kind::Btf {
                // After the maps that refer to it.
                removed += self.collect_types()?;
                continue;
            }
            for id in self.ids(kind)? {
                if !kept.has(kind, id) {
                    let chains = Some(&mut kept);
                    removed += usize::from(self.remove_unused_but(kind, id, chains));
                }
            }
        }
        Ok(removed)
    }

    /// Removes type information that no map refers to.
    fn collect_types(&self) -> Result<usize, DirError> {
        let ids = self.ids(Kind::Btf)?;
        if ids.is_empty() {
            return Ok(0);
        }
        let mut referred = Referred::of(self)?;
        let mut removed = 0;
        for id in ids {
            if referred.has(id) {
                continue;
            }
            // Whoever stored it may have made a map meanwhile, and ended.
            let is_kept = || referred.has_now(self, id).unwrap_or(true);
            let gone = skep_maps::remove_unless(&self.object(Kind::Btf, id), is_kept);
            removed += usize::from(gone.unwrap_or(false));
        }
        Ok(removed)
    }
}
