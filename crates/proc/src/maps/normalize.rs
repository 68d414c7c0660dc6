//! Addresses to files: what a profiler stores instead of addresses, which mean nothing once the
//! process has ended.
//!
//! Each address becomes a file and an offset in it, or the reason why not. A mapping is asked for
//! once, at the first address in it, and so is each gap between mappings; the answers are kept
//! sorted, so the other addresses cost a search in memory: few addresses take few queries, and many
//! take about as many as there are mappings with addresses. Where a single question costs as much as
//! reading everything, everything is read once.

use std::collections::HashMap;
use std::ops::Range;

use super::filter::{Filter, Want};
use super::ranges::Ranges;
use super::vma::{Dev, Perms, Vma};
use super::{MapSource, MapsError, NoBuildId};
use crate::elf::BuildId;

/// Where an address lies.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Place {
    /// In a mapped file.
    File {
        /// Its index in [`Normalizer::files`].
        file: u32,
        /// Offset in the file, in bytes; of the vDSO, in its image in memory.
        offset: u64,
    },
    /// In no file.
    Other(Reason),
}

/// Why an address lies in no file.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Reason {
    /// Nothing is mapped there.
    Unmapped,
    /// The mapping is not executable; see [`Normalizer::data`].
    NotExecutable,
    /// Memory without a file and without a name: generated code, usually.
    Anonymous,
    /// The program's heap (`[heap]`).
    Heap,
    /// The stack of the main thread (`[stack]`).
    Stack,
    /// The page of old system calls (x86-64).
    Vsyscall,
    /// Memory of another name: `[anon:…]`, `[uprobes]`, `[vvar]`.
    Special,
}

impl Reason {
    /// Says it in one or two words.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Unmapped => "unmapped",
            Self::NotExecutable => "not executable",
            Self::Anonymous => "anonymous",
            Self::Heap => "heap",
            Self::Stack => "stack",
            Self::Vsyscall => "vsyscall",
            Self::Special => "special",
        }
    }
}

/// A file that addresses lie in, or the vDSO.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct MappedFile {
    /// Its path as the mapping has it, with ` (deleted)` if that is there; `[vdso]` for the vDSO.
    pub name: Vec<u8>,
    /// Device, as mappings show it.
    pub dev: Dev,
    /// Inode; 0 for the vDSO, and where the source does not know it.
    pub inode: u64,
    /// Build id; `None` if it was not wanted, or the file has none or cannot be read.
    pub build_id: Option<BuildId>,
    /// Why it is not there, if it was wanted and the source knows.
    pub no_build_id: Option<NoBuildId>,
    /// Addresses of one of its mappings: `map_files` of `/proc/PID` has a file of that name.
    pub mapping: Range<u64>,
}

/// Whether an answer was asked for now or is from before.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Freshness {
    /// Each mapping was asked for by this call.
    Validated,
    /// Some mappings were asked for by earlier calls, and may have changed since.
    Assumed,
}

/// Normalizes addresses of one source. Keeps nothing between calls, unless
/// [told so](Self::keep_mappings), except that [files](Self::files) keep their numbers.
///
/// ```
/// use skep_proc::maps::{Live, Normalizer, Place};
/// let maps = Live::own()?;
/// let mut normalizer = Normalizer::new(&maps);
/// let function = std::process::exit as *const () as u64;
/// let places = normalizer.normalize(&[function, 0])?;
/// let Place::File { file, offset } = places[0] else { panic!("it is in this program") };
/// println!("{} + {offset:#x}", String::from_utf8_lossy(&normalizer.files()[file as usize].name));
/// assert_eq!(places[1], Place::Other(skep_proc::maps::Reason::Unmapped));
/// # Ok::<(), skep_proc::maps::MapsError>(())
/// ```
pub struct Normalizer<'a> {
    source: &'a dyn MapSource,
    build_ids: bool,
    data: bool,
    keep: bool,
    strategy: Strategy,
    ranges: Ranges<Target>,
    complete: bool,
    files: Vec<MappedFile>,
    /// By device, inode, and name where these are not known.
    numbers: HashMap<(Dev, u64, Vec<u8>), u32>,
    /// Files whose name and build id were asked for since the mappings were forgotten.
    fresh: HashMap<(Dev, u64), u32>,
    /// How often a mapping was of a file that was known already, and how often not.
    repeated: (u32, u32),
    /// How many queries of this call found nothing.
    gaps: usize,
    /// How many found a mapping.
    found: usize,
    freshness: Freshness,
    generation: u64,
}

/// How mappings are asked for.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum Strategy {
    /// By queries, unless these cost as much as reading everything.
    #[default]
    Adaptive,
    /// By queries.
    Queries,
    /// By reading everything.
    ReadAll,
}

/// What is in a range of addresses.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Target {
    /// The offset of address 0 in the file, wrapping.
    File {
        file: u32,
        bias: u64,
    },
    Other(Reason),
}

/// Where x86-64 has its page of old system calls.
const VSYSCALL: Range<u64> = 0xffff_ffff_ff60_0000..0xffff_ffff_ff60_1000;

impl<'a> Normalizer<'a> {
    /// Prepares to normalize addresses of executable mappings, with build ids.
    pub fn new(source: &'a dyn MapSource) -> Self {
        Self {
            source,
            build_ids: true,
            data: false,
            keep: false,
            strategy: Strategy::Adaptive,
            ranges: Ranges::default(),
            complete: false,
            files: Vec::new(),
            numbers: HashMap::new(),
            fresh: HashMap::new(),
            repeated: (0, 0),
            gaps: 0,
            found: 0,
            freshness: Freshness::Validated,
            generation: source.generation(),
        }
    }

    /// Leaves build ids out, or not.
    #[must_use]
    pub fn build_ids(self, wanted: bool) -> Self {
        Self { build_ids: wanted, ..self }
    }

    /// Takes addresses of mappings that are not executable too.
    #[must_use]
    pub fn data(self, wanted: bool) -> Self {
        Self { data: wanted, ..self }
    }

    /// Chooses how mappings are asked for.
    #[must_use]
    pub fn strategy(self, strategy: Strategy) -> Self {
        Self { strategy, ..self }
    }

    /// Keeps mappings from call to call, until [`refresh`](Self::refresh) or a change that the source
    /// [hears of](MapSource::generation): the own process's `dlopen` and `dlclose`.
    #[must_use]
    pub fn keep_mappings(self) -> Self {
        Self { keep: true, ..self }
    }

    /// Forgets all mappings, as after `dlopen` or `dlclose` of the process.
    pub fn refresh(&mut self) {
        self.ranges.clear();
        self.fresh.clear();
        self.complete = false;
    }

    /// The files that places name, in the order in which they were found. One whose name or build
    /// id changes is another file.
    pub fn files(&self) -> &[MappedFile] {
        &self.files
    }

    /// Whether all mappings of the last call were asked for by it.
    pub fn freshness(&self) -> Freshness {
        self.freshness
    }

    /// Finds the places of addresses, sorted or not, in their order.
    ///
    /// # Errors
    /// As the source's: the process has ended, for one.
    pub fn normalize(&mut self, addresses: &[u64]) -> Result<Vec<Place>, MapsError> {
        let mut places = Vec::new();
        self.normalize_into(addresses, &mut places)?;
        Ok(places)
    }

    /// The same, into a vector whose memory is used again.
    ///
    /// # Errors
    /// As [`normalize`](Self::normalize); the vector is empty then.
    pub fn normalize_into(
        &mut self,
        addresses: &[u64],
        places: &mut Vec<Place>,
    ) -> Result<(), MapsError> {
        places.clear();
        (self.gaps, self.found) = (0, 0);
        self.freshness = Freshness::Validated;
        let generation = self.source.generation();
        if !self.keep || generation != self.generation {
            self.generation = generation;
            self.refresh();
        } else if !self.ranges.is_empty() {
            self.freshness = Freshness::Assumed;
        }
        let read_all = match self.strategy {
            Strategy::Adaptive => self.source.reads_all(),
            Strategy::Queries => false,
            Strategy::ReadAll => true,
        };
        if read_all && !self.complete {
            self.read_all()?;
        }
        places.reserve(addresses.len());
        let mut rest = addresses;
        loop {
            let done = self.ranges.resolve(rest, |target, address| {
                places.push(match target {
                    Target::File { file, bias } => {
                        Place::File { file, offset: address.wrapping_add(bias) }
                    }
                    Target::Other(reason) => Place::Other(reason),
                });
            });
            rest = rest.get(done..).unwrap_or_default();
            let Some(&address) = rest.first() else { return Ok(()) };
            let found = self.discover(address).and_then(|()| {
                let learned = self.strategy == Strategy::Adaptive && self.source.reads_all();
                if learned && !self.complete { self.read_all() } else { Ok(()) }
            });
            if let Err(error) = found {
                places.clear();
                return Err(error);
            }
        }
    }

    /// Asks for what is at an address, and makes it known.
    fn discover(&mut self, address: u64) -> Result<(), MapsError> {
        if VSYSCALL.contains(&address) {
            self.ranges.insert(VSYSCALL.start, VSYSCALL.end - 1, Target::Other(Reason::Vsyscall));
            return Ok(());
        }
        if self.complete {
            let first = self.ranges.gap(address).0;
            self.insert_gap(first, address, u64::MAX);
            return Ok(());
        }
        // A name costs nearly as much as another query. It is asked for at once if most mappings so
        // far were of new files, and if their build ids do not take another query anyway.
        let named = !self.build_ids && self.repeated.0 <= self.repeated.1;
        let filter = Filter::default().or_next();
        let want = Want { name: named, ..Want::default() };
        let mut vma = match self.source.query(address, &filter, want)? {
            Some(vma) if vma.contains(address) => vma,
            other => {
                self.gaps += 1;
                self.insert_gap(
                    address,
                    address,
                    other.map_or(u64::MAX, |next| next.start.saturating_sub(1)),
                );
                // Addresses that go down through gaps take a query each.
                let many = self.gaps > 64 + 2 * self.found && self.strategy == Strategy::Adaptive;
                return if many { self.read_all() } else { Ok(()) };
            }
        };
        self.found += 1;
        let target = match self.known(&vma) {
            Some(target) => target,
            None => {
                if !named || self.build_ids {
                    let want = Want { name: true, build_id: self.build_ids, page_size: false };
                    // What is there by now, which may be another mapping.
                    match self.source.query(address, &Filter::default(), want)? {
                        Some(again) if again.contains(address) => vma = again,
                        _ => {
                            self.insert_gap(address, address, address);
                            return Ok(());
                        }
                    }
                }
                self.target(&vma)
            }
        };
        self.ranges.insert(vma.start, vma.end - 1, target);
        Ok(())
    }

    /// Makes known that nothing is mapped from `first` to `last`, or to the next range after
    /// `address` if that comes before.
    fn insert_gap(&mut self, mut first: u64, address: u64, last: u64) {
        let mut last = last.min(self.ranges.gap(address).1);
        if address < VSYSCALL.start {
            last = last.min(VSYSCALL.start - 1);
        } else {
            first = first.max(VSYSCALL.end);
        }
        // Whatever a source says, the address itself is known then.
        self.ranges.insert(first, last.max(address), Target::Other(Reason::Unmapped));
    }

    /// What is in a mapping, if that needs neither its name nor its build id.
    fn known(&mut self, vma: &Vma) -> Option<Target> {
        if !self.data && !vma.perms.intersects(Perms::EXEC | Perms::UNKNOWN) {
            return Some(Target::Other(Reason::NotExecutable));
        }
        if vma.inode == 0 {
            return None;
        }
        let file = self.fresh.get(&(vma.dev, vma.inode)).copied();
        let count = if file.is_some() { &mut self.repeated.0 } else { &mut self.repeated.1 };
        *count = count.saturating_add(1);
        Some(Target::File { file: file?, bias: vma.offset.wrapping_sub(vma.start) })
    }

    /// What is in a mapping whose name is known.
    fn target(&mut self, vma: &Vma) -> Target {
        if !self.data && !vma.perms.intersects(Perms::EXEC | Perms::UNKNOWN) {
            return Target::Other(Reason::NotExecutable);
        }
        let name = vma.name.as_deref().unwrap_or_default();
        let vdso = name == b"[vdso]";
        if !vma.file_backed() && !vdso {
            return Target::Other(match name {
                b"" => Reason::Anonymous,
                b"[heap]" => Reason::Heap,
                b"[stack]" => Reason::Stack,
                _ => Reason::Special,
            });
        }
        Target::File { file: self.number(vma), bias: vma.offset.wrapping_sub(vma.start) }
    }

    /// The number of a mapping's file.
    fn number(&mut self, vma: &Vma) -> u32 {
        let name = vma.name.clone().unwrap_or_default();
        let build_id = vma.build_id.clone().map(BuildId);
        let next = u32::try_from(self.files.len()).unwrap_or(u32::MAX);
        let number = *self.numbers.entry((vma.dev, vma.inode, name.clone())).or_insert(next);
        let known = self.files.get(number as usize);
        let same = known.is_some_and(|f| f.build_id == build_id || !self.build_ids);
        let number = if same { number } else { next };
        if !same {
            // New, or the file was written since.
            self.numbers.insert((vma.dev, vma.inode, name.clone()), number);
            let (dev, inode, mapping) = (vma.dev, vma.inode, vma.range());
            let missing = self.build_ids && build_id.is_none();
            let no_build_id = missing.then(|| self.source.no_build_id(vma)).flatten();
            self.files.push(MappedFile { name, dev, inode, build_id, no_build_id, mapping });
        }
        if vma.inode != 0 {
            self.fresh.insert((vma.dev, vma.inode), number);
        }
        number
    }

    /// Learns all mappings by one reading; build ids only of files that have code, or all with
    /// [`data`](Self::data).
    fn read_all(&mut self) -> Result<(), MapsError> {
        self.refresh();
        for mut vma in self.source.all(&Filter::default(), Want::NAME)? {
            let target = match self.known(&vma) {
                Some(target) => target,
                None => {
                    if self.build_ids && vma.name.is_some() {
                        vma.build_id = self.source.build_id(&vma)?;
                    }
                    self.target(&vma)
                }
            };
            self.ranges.insert(vma.start, vma.end - 1, target);
        }
        self.complete = true;
        Ok(())
    }
}
