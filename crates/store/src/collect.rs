//! Removing what nobody uses.

use crate::chain::{self, Kept};
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

    fn collect_once(&self) -> Result<usize, DirError> {
        let mut removed = 0;
        let mut kept = Kept::default();
        for kind in Kind::ALL {
            if kind == Kind::Link {
                // Chains that stay keep programs, with their maps.
                kept = chain::kept(self);
            }
            if kind == Kind::Btf && !self.ids(Kind::Map)?.is_empty() {
                continue;
            }
            for id in self.ids(kind)? {
                let is_kept = match kind {
                    Kind::Program => kept.programs.contains(&id),
                    Kind::Map => kept.maps.contains(&id),
                    _ => false,
                };
                if is_kept {
                    continue;
                }
                removed += usize::from(self.remove_unused(kind, id));
            }
        }
        Ok(removed)
    }
}
