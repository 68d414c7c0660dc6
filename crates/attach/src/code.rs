//! The branches of a module: who jumps where.
//!
//! All executable bytes are decoded once, from each function's start to the next one's, and every
//! direct branch whose target could be among the first bytes of a function is kept. Indirect jumps
//! through tables are looked at when a function that has one is about to be changed.

use crate::code_cache::{self, Contents, Kept, Key};
use crate::cursor::Cursor;
use crate::flow::{Flow, flow};
use crate::jump::PATCH;
use crate::predecode::{Instructions, Kind, Pass, Predecoded};
use crate::signals::gone::Looking;
use crate::stack_arguments::Uses;
use iced_x86::{Code as Op, DecoderOptions, OpKind, Register};
use skep_proc::maps::{self, Perms, Vma};
use std::borrow::Cow;
use std::ops::Range;
use std::sync::OnceLock;

use tables::{Place, places};

/// Bytes at the start of a function that branches into are kept for: `endbr64`, a jump, and an
/// instruction that is cut.
const ENTRY_BYTES: u64 = 24;

/// What was found in a module's code.
#[derive(Debug)]
pub(crate) struct Code {
    /// Starts of functions, sorted.
    starts: Vec<u64>,
    /// Branches and calls near a function's start, sorted; to a start itself only jumps, and of calls of
    /// one other place the first.
    branches: Vec<Branch>,
    /// Addresses in branches count from here: the first of the text.
    base: u64,
    /// Indirect jumps that are not through the linkage table, sorted.
    indirect: Vec<u64>,
    text: Vec<Range<u64>>,
    /// All addresses of the module,
    span: Range<u64>,
    /// and what of them can be read, once somebody has asked.
    data: OnceLock<Vec<Range<u64>>>,
    /// It went while it was read: nothing is known of it.
    is_lost: bool,
    /// What functions use of their callers' stack, in the order of `starts`.
    uses: Uses,
    /// Where all this is kept for other processes.
    pub(crate) kept: Option<Kept>,
    /// In `starts`: functions are usually asked for in order.
    cursor: Cursor,
}

/// Where a branch leads, and where it is: the upper and the lower half of a word, which is sorted
/// sooner than two.
type Branch = u64;

/// The bytes of mapped code.
///
/// # Safety
///
/// The range was found mapped and readable, and the thread is [`Looking`], as it may be unmapped
/// since; it may be changed by the engine only, under its lock.
pub(crate) unsafe fn bytes<'a>(range: &Range<u64>) -> &'a [u8] {
    // SAFETY: by the caller's promise.
    unsafe {
        std::slice::from_raw_parts(range.start as *const u8, (range.end - range.start) as usize)
    }
}

/// Tells what the linker left where code is changed now: for all changes in a range.
pub(crate) type Originals<'a> = &'a dyn Fn(&Range<u64>) -> Vec<(u64, [u8; PATCH])>;

/// The bytes of mapped code as the linker left them.
///
/// # Safety
/// As for [`bytes`].
pub(crate) unsafe fn original_bytes<'a>(
    range: &Range<u64>,
    originals: Originals<'_>,
) -> Cow<'a, [u8]> {
    // SAFETY: the caller's promise.
    let mut bytes = Cow::Borrowed(unsafe { bytes(range) });
    for (at, original) in originals(range) {
        for (place, byte) in (at..).zip(original).filter(|(place, _)| range.contains(place)) {
            if let Some(to) = bytes.to_mut().get_mut((place - range.start) as usize) {
                *to = byte;
            }
        }
    }
    bytes
}

/// A hash of all bytes of a module's code as they are now; `None`: it went meanwhile.
///
/// # Safety
/// The code was found mapped there. It may go meanwhile.
unsafe fn hash(text: &[Range<u64>]) -> Option<u64> {
    let looking = Looking::begin();
    // SAFETY: the caller's promise; the thread looks.
    let all = text.iter().fold(0, |hash, range| code_cache::hash(hash, unsafe { bytes(range) }));
    (!looking.is_lost()).then_some(all)
}

impl Code {
    /// Finds the code of a module where it is kept ([`code_cache`]), or else [reads](Self::read) it.
    /// `sizes`: how long its functions are, as far as known.
    ///
    /// # Safety
    /// As for that.
    pub(crate) unsafe fn find_or_read(
        starts: Vec<u64>,
        sizes: impl Iterator<Item = u64>,
        text: &[Range<u64>],
        span: &Range<u64>,
    ) -> Self {
        let size = text.iter().map(|range| range.end - range.start).sum();
        let directory = code_cache::directory_for(size);
        // SAFETY: the caller's promise.
        let hash = directory.as_ref().and_then(|_| unsafe { hash(text) });
        let key = hash.map(|hash| Key::new(hash, text, &starts, sizes));
        if let (Some(directory), Some(key)) = (directory, key)
            && let Some((found, kept)) = code_cache::find(&directory, key, starts.len())
        {
            return Self::found(starts, text, span, found, kept);
        }
        // SAFETY: the caller's promise.
        let read = unsafe { Self::read(starts, text, span) };
        Self { kept: key.map(Kept::new), ..read }
    }

    /// Decodes the code of a module: the starts of its functions, sorted, its executable ranges,
    /// and all its addresses.
    ///
    /// # Safety
    /// The module was found mapped there. It may go meanwhile.
    pub(crate) unsafe fn read(starts: Vec<u64>, text: &[Range<u64>], span: &Range<u64>) -> Self {
        let looking = Looking::begin();
        let mut out = Self::unread(starts, text, span);
        for range in &out.text.clone() {
            // SAFETY: executable ranges of a mapped module, which the caller says it was, are
            // readable; execute-only code does not exist on this system's x86-64, where PROT_EXEC
            // implies reading.
            let code = unsafe { bytes(range) };
            let mut starts = Starts::new(&out.starts, range);
            let mut at = range.start;
            let first = out.starts.partition_point(|s| *s <= range.start);
            for k in first..=out.starts.len() {
                let end = out.starts.get(k).copied().unwrap_or(range.end).min(range.end);
                let own = out.starts.get(k.wrapping_sub(1)).copied().unwrap_or(range.start);
                out.sweep(code, &mut starts, at..end, own);
                at = end;
                if end == range.end || looking.is_lost() {
                    break;
                }
            }
        }
        out.branches.sort_unstable();
        out.branches.shrink_to_fit();
        if looking.is_lost() {
            out.text.clear();
            out.is_lost = true;
        }
        out
    }

    /// The code of a module that was read by another process, which found this.
    pub(crate) fn found(
        starts: Vec<u64>,
        text: &[Range<u64>],
        span: &Range<u64>,
        contents: Contents,
        kept: Kept,
    ) -> Self {
        let Contents { branches, indirect, uses } = contents;
        let unread = Self::unread(starts, text, span);
        let indirect = indirect.iter().map(|at| unread.base + u64::from(*at)).collect();
        Self { branches, indirect, uses, kept: Some(kept), ..unread }
    }

    fn unread(starts: Vec<u64>, text: &[Range<u64>], span: &Range<u64>) -> Self {
        let base = text.iter().map(|range| range.start).min().unwrap_or(0);
        let end = text.iter().map(|range| range.end).max().unwrap_or(0);
        // Halves of words tell no more; nobody has more than two GiB.
        let text = if end - base > u64::from(u32::MAX) { &[] } else { text };
        Self {
            uses: Uses::none(starts.len()),
            starts,
            branches: Vec::new(),
            base,
            indirect: Vec::new(),
            text: text.to_vec(),
            span: span.clone(),
            data: OnceLock::new(),
            is_lost: false,
            kept: None,
            cursor: Cursor::default(),
        }
    }

    /// What it takes long to find: branches, and indirect jumps, from the first address of the text.
    pub(crate) fn parts(&self) -> (&[Branch], impl ExactSizeIterator<Item = u32> + '_) {
        (&self.branches, self.indirect.iter().map(|at| (at - self.base) as u32))
    }

    /// Tells whether the module went while this was read. Nothing is code then.
    pub(crate) fn is_lost(&self) -> bool {
        self.is_lost
    }

    fn sweep(&mut self, code: &[u8], starts: &mut Starts, part: Range<u64>, own: u64) {
        let Some(rest) = code.get((part.start - starts.range.start) as usize..) else { return };
        let size = (part.end - part.start) as usize;
        let options = DecoderOptions::NO_INVALID_CHECK;
        let mut all = Instructions::within(rest, size, part.start, options);
        loop {
            all.pass_over(Pass::Onward, part.end);
            let Some(found) = all.next() else { break };
            let (target, is_call) = match found.kind {
                Kind::Jump | Kind::Branch => (found.target(all.next_ip()), false),
                Kind::Call => (found.target(all.next_ip()), true),
                Kind::IndirectJump => {
                    self.indirect.push(all.ip());
                    continue;
                }
                Kind::Unknown => {
                    let i = all.full();
                    match flow(i) {
                        Flow::Next | Flow::Return | Flow::IndirectCall => continue,
                        Flow::IndirectBranch => {
                            if !i.is_ip_rel_memory_operand() {
                                self.indirect.push(i.ip());
                            }
                            continue;
                        }
                        _ if !matches!(i.op0_kind(), OpKind::NearBranch64) => continue,
                        flow => (i.near_branch_target(), flow == Flow::Call),
                    }
                }
                _ => continue,
            };
            let near = target.wrapping_sub(own) < ENTRY_BYTES;
            let inside = part.contains(&target) && !near;
            if inside || is_call && self.is_start_of(starts, target) {
                continue;
            }
            if is_call {
                // The next call of the same place, as of a stub in the linkage table, tells no more.
                starts.insert(target);
            }
            self.branches.extend(self.branch(target, all.ip()));
        }
    }

    /// `None`: it leads out of the text.
    fn branch(&self, target: u64, from: u64) -> Option<Branch> {
        let half = |addr: u64| u32::try_from(addr.checked_sub(self.base)?).ok();
        Some(u64::from(half(target)?) << 32 | u64::from(half(from)?))
    }

    /// As [`is_start`](Self::is_start), for many addresses that are likely to be in the range of `starts`.
    fn is_start_of(&self, starts: &Starts, addr: u64) -> bool {
        starts.contains(addr).unwrap_or_else(|| self.is_start(addr))
    }

    /// Tells whether a function is known to begin at `addr`.
    fn is_start(&self, addr: u64) -> bool {
        self.number(addr).is_some()
    }

    /// The number of the function that is known to begin at `addr`.
    pub(crate) fn number(&self, addr: u64) -> Option<usize> {
        let before = self.after(addr).checked_sub(1)?;
        (self.starts.get(before) == Some(&addr)).then_some(before)
    }

    /// How many functions begin at `addr` or before.
    fn after(&self, addr: u64) -> usize {
        self.cursor.partition_point(&self.starts, |start| *start <= addr)
    }

    /// What is known of each function, by its number, since it was followed.
    pub(crate) fn uses(&self) -> &Uses {
        &self.uses
    }

    /// The start of the first function behind `addr`, or the end of its text.
    pub(crate) fn next_start(&self, addr: u64) -> u64 {
        self.around(addr).map_or(addr, |(_, next)| next)
    }

    /// The executable range around `addr`, and the start of the first function behind `addr` or the end
    /// of that range.
    pub(crate) fn around(&self, addr: u64) -> Option<(Range<u64>, u64)> {
        let text = self.text_of(addr)?;
        let next = self.starts.get(self.after(addr));
        let next = next.map_or(text.end, |next| text.end.min(*next));
        Some((text, next))
    }

    /// The executable range around `addr`.
    pub(crate) fn text_of(&self, addr: u64) -> Option<Range<u64>> {
        self.text.iter().find(|r| r.contains(&addr)).cloned()
    }

    /// Direct branches into `range`, `(target, from)`.
    pub(crate) fn branches_into(
        &self,
        range: Range<u64>,
    ) -> impl Iterator<Item = (u64, u64)> + use<'_> {
        let base = self.base;
        let addresses = move |b: Branch| (base + (b >> 32), base + u64::from(b as u32));
        let low = self.branches.partition_point(|b| addresses(*b).0 < range.start);
        let rest = self.branches.get(low..).unwrap_or_default().iter();
        rest.map(move |b| addresses(*b)).take_while(move |(target, _)| *target < range.end)
    }

    /// Tells whether a function jumps where a register or memory says, other than through the
    /// linkage table.
    pub(crate) fn has_indirect_jump(&self, function: &Range<u64>) -> bool {
        let low = self.indirect.partition_point(|i| *i < function.start);
        self.indirect.get(low).is_some_and(|i| *i < function.end)
    }

    /// Finds in the module's data, by words, the addresses in `range` that are inside functions: labels of
    /// code that a program keeps (`goto *table[n]`). Sorted.
    pub(crate) fn labels(&self, range: &Range<u64>) -> Vec<u64> {
        let mut found = Vec::new();
        for data in self.data() {
            let start = data.start.next_multiple_of(8).min(data.end);
            // SAFETY: a readable mapping of the module, which stays as long as the module.
            let bytes = unsafe { bytes(&(start..data.end)) };
            for word in bytes.as_chunks::<8>().0.iter().map(|word| u64::from_le_bytes(*word)) {
                if range.contains(&word) && !self.is_start(word) {
                    found.push(word);
                }
            }
        }
        found.sort_unstable();
        found
    }

    /// Looks for an entry of a jump table of `function` (its code given in `code`) that leads into
    /// `range`.
    ///
    /// A table is whatever a rip-relative `lea` of the function points at, read as 32-bit distances
    /// from itself (gcc and clang for position-independent code), or the absolute displacement
    /// of an indirect jump, read as addresses, for as long as the entries stay inside the
    /// function.
    pub(crate) fn table_into(
        &self,
        function: &Range<u64>,
        code: &[u8],
        range: &Range<u64>,
    ) -> Option<u64> {
        if !self.has_indirect_jump(function) || !self.may_lead_into(function, code, range) {
            return None;
        }
        let mut all = Instructions::new(code, function.start, DecoderOptions::NO_INVALID_CHECK);
        while let Some(found) = all.next() {
            let at = all.ip();
            let (distances, addresses) = tables(found, &mut all);
            let distances = distances.map(Place::Distances);
            let addresses = addresses.map(Place::Addresses);
            if distances.into_iter().chain(addresses).any(|p| self.leads_into(p, function, range)) {
                return Some(at);
            }
        }
        None
    }

    fn data(&self) -> &[Range<u64>] {
        self.data.get_or_init(|| readable(&self.span))
    }

    /// Tells whether an instruction of the function may name a table that leads into the range, whatever
    /// its instructions are.
    fn may_lead_into(&self, function: &Range<u64>, code: &[u8], range: &Range<u64>) -> bool {
        places(code, function.start).any(|place| self.leads_into(place, function, range))
    }

    /// Tells whether a table has an entry that leads into the range, before one out of the function.
    fn leads_into(&self, place: Place, function: &Range<u64>, range: &Range<u64>) -> bool {
        let (table, size) = match place {
            Place::Distances(table) => (table, 4),
            Place::Addresses(table) => (table, 8),
            Place::Anywhere => return true,
        };
        let target = |entry: u64| match size {
            4 => table.wrapping_add(entry as i32 as u64),
            _ => entry,
        };
        let targets = entries(table, self.data(), size).map(target);
        let mut in_it = targets.take_while(|target| function.contains(target));
        in_it.any(|target| range.contains(&target))
    }
}

/// Where the instruction that was looked at last says that a table of distances may be, and one of
/// addresses.
fn tables(found: Predecoded, all: &mut Instructions<'_>) -> (Option<u64>, Option<u64>) {
    match found.kind {
        Kind::Relative => match *all.bytes() {
            [.., 0x48..=0x4f, 0x8d, _, a, b, c, d] => {
                let by = i32::from_le_bytes([a, b, c, d]);
                (Some(all.next_ip().wrapping_add_signed(by.into())), None)
            }
            _ => (None, None),
        },
        Kind::IndirectJump | Kind::Unknown => {
            let i = all.full();
            let is_lea = i.code() == Op::Lea_r64_m && i.is_ip_rel_memory_operand();
            let is_jump = flow(i) == Flow::IndirectBranch
                && i.memory_base() == Register::None
                && i.memory_index() != Register::None;
            let address = is_lea.then(|| i.ip_rel_memory_address());
            (address, is_jump.then(|| i.memory_displacement64()))
        }
        _ => (None, None),
    }
}

/// Starts of functions in a range, and other places that were called: a bit for each byte, as calls are
/// many.
struct Starts {
    range: Range<u64>,
    bits: Vec<u64>,
}

impl Starts {
    /// `sorted`: all starts.
    fn new(sorted: &[u64], range: &Range<u64>) -> Self {
        let mut bits = vec![0; (range.end - range.start).div_ceil(64) as usize];
        let first = sorted.partition_point(|start| *start < range.start);
        let here = sorted.get(first..).unwrap_or_default().iter();
        for offset in here.take_while(|start| **start < range.end).map(|at| at - range.start) {
            if let Some(word) = bits.get_mut((offset / 64) as usize) {
                *word |= 1 << (offset % 64);
            }
        }
        Self { range: range.clone(), bits }
    }

    /// Has an address in the range be one of them.
    fn insert(&mut self, addr: u64) {
        if let Some(offset) = addr.checked_sub(self.range.start)
            && let Some(word) = self.bits.get_mut((offset / 64) as usize)
        {
            *word |= 1 << (offset % 64);
        }
    }

    /// `None`: it is not in the range.
    fn contains(&self, addr: u64) -> Option<bool> {
        let offset = self.range.contains(&addr).then(|| addr - self.range.start)?;
        let word = self.bits.get((offset / 64) as usize)?;
        Some(word >> (offset % 64) & 1 != 0)
    }
}

/// Reads little-endian words of data, as far as it is mapped.
fn entries<'a>(at: u64, data: &'a [Range<u64>], size: u64) -> impl Iterator<Item = u64> + use<'a> {
    let end = data.iter().find(|r| r.contains(&at)).map_or(at, |r| r.end);
    // SAFETY: inside a readable mapping of the module, which stays as long as the module.
    let bytes = unsafe { bytes(&(at..end)) };
    bytes
        .chunks_exact(size as usize)
        .take(1 << 16)
        .map(|c| c.iter().rev().fold(0, |word, b| word << 8 | u64::from(*b)))
}

/// The readable mappings in a range of addresses.
fn readable(span: &Range<u64>) -> Vec<Range<u64>> {
    let inside =
        |v: &Vma| v.perms.contains(Perms::READ) && v.start < span.end && v.end > span.start;
    let mappings = maps::own().unwrap_or_default();
    mappings.into_iter().filter(inside).map(|v| v.range()).collect()
}

mod tables;

#[cfg(test)]
mod tests {
    use super::*;
    use crate::predecode::{WINDOW, tests::each_encoding};
    use iced_x86::Decoder;

    /// Whether iced is asked about an instruction or not, the tables are the same.
    #[test]
    fn tables_are_where_iced_says() {
        const HERE: u64 = 0x7f00_1234_5678;
        let (mut distances, mut addresses) = (0, 0);
        let mut same = |bytes: &[u8; WINDOW]| {
            let options = DecoderOptions::NO_INVALID_CHECK;
            let i = Decoder::with_ip(64, bytes, HERE, options).decode();
            let is_lea = i.code() == Op::Lea_r64_m && i.is_ip_rel_memory_operand();
            let is_jump = flow(&i) == Flow::IndirectBranch
                && i.memory_base() == Register::None
                && i.memory_index() != Register::None;
            let wanted = (
                is_lea.then(|| i.ip_rel_memory_address()),
                is_jump.then(|| i.memory_displacement64()),
            );
            let mut all = Instructions::new(bytes, HERE, options);
            let found = all.next().expect("there is one");
            assert_eq!(tables(found, &mut all), wanted, "{bytes:x?}");
            distances += usize::from(is_lea);
            addresses += usize::from(is_jump);
        };
        each_encoding(&mut same);
        // jmp [rax*8+0x12345678], jmp [r15*8-16], with `notrack`, and over an index without a scale
        for jump in [
            &[0xff, 0x24, 0xc5, 0x78, 0x56, 0x34, 0x12][..],
            &[0x42, 0xff, 0x24, 0xfd, 0xf0, 0xff, 0xff, 0xff],
            &[0x3e, 0xff, 0x24, 0xcd, 0x78, 0x56, 0x34, 0x12],
            &[0xff, 0x24, 0x0d, 0x78, 0x56, 0x34, 0x12],
        ] {
            let mut bytes = [0x90; WINDOW];
            bytes.iter_mut().zip(jump).for_each(|(to, from)| *to = *from);
            same(&bytes);
        }
        assert!(distances > 0 && addresses > 0, "{distances} {addresses}");
    }
}
