//! Mappings in memory: made up, or read from a file.

use super::filter::{Filter, Knows, Want};
use super::vma::Vma;
use super::{MapSource, MapsError};

/// Mappings in memory, sorted by address, with an index: the source of tests and of whoever knows
/// mappings from elsewhere, and what all files with mappings are read into.
///
/// ```
/// use skep_proc::maps::{Filter, MapSource, Mappings, Vma, Want};
/// let code = Vma { start: 0x1000, end: 0x3000, ..Vma::default() };
/// let made_up = Mappings::new(vec![code.clone()])?;
/// assert_eq!(made_up.query(0x2fff, &Filter::default(), Want::NAME)?, Some(code));
/// assert_eq!(made_up.query(0x3000, &Filter::default(), Want::NAME)?, None);
/// # Ok::<(), skep_proc::maps::MapsError>(())
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Mappings {
    vmas: Vec<Vma>,
    /// Their ends, close together: a search touches few cache lines.
    ends: Vec<u64>,
    knows: Knows,
}

impl Default for Mappings {
    fn default() -> Self {
        Self { vmas: Vec::new(), ends: Vec::new(), knows: Knows::ALL }
    }
}

impl Mappings {
    /// Takes mappings of which everything is known; sorts them by address.
    ///
    /// # Errors
    /// [`MapsError::Malformed`] with the number of one that is empty or overlaps another.
    pub fn new(vmas: Vec<Vma>) -> Result<Self, MapsError> {
        Self::knowing(vmas, Knows::ALL)
    }

    /// Takes mappings of which only some facts are known.
    ///
    /// # Errors
    /// As [`new`](Self::new).
    pub fn knowing(mut vmas: Vec<Vma>, knows: Knows) -> Result<Self, MapsError> {
        vmas.sort_by_cached_key(|v| v.start);
        let mut end = 0;
        for (i, v) in vmas.iter().enumerate() {
            if v.start < end || v.end <= v.start {
                return Err(MapsError::Malformed { line: i + 1, what: "address range" });
            }
            end = v.end;
        }
        let ends = vmas.iter().map(|v| v.end).collect();
        Ok(Self { vmas, ends, knows })
    }

    /// All mappings, in order of address.
    pub fn vmas(&self) -> &[Vma] {
        &self.vmas
    }
}

impl MapSource for Mappings {
    fn query(&self, addr: u64, filter: &Filter, want: Want) -> Result<Option<Vma>, MapsError> {
        self.knows.check(filter)?;
        let first = self.ends.partition_point(|end| *end <= addr);
        let found = filter.find_from(&self.vmas, first, addr).and_then(|at| self.vmas.get(at));
        Ok(found.map(|v| {
            let mut v = v.clone();
            want.trim(&mut v);
            v
        }))
    }

    fn all(&self, filter: &Filter, want: Want) -> Result<Vec<Vma>, MapsError> {
        self.knows.check(filter)?;
        let mut out: Vec<Vma> =
            self.vmas.iter().filter(|v| !v.is_vsyscall() && filter.matches(v)).cloned().collect();
        out.iter_mut().for_each(|v| want.trim(v));
        Ok(out)
    }

    fn knows(&self) -> Knows {
        self.knows
    }
}
