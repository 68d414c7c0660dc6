//! Executable memory near a module: where moved instructions and the paths to the trampolines live.
//!
//! ```text
//! chunk   +0   addresses of the trampolines, then veneers: one `jmp [address]` for each
//! entry   +0   address of the function's Meta
//!         +8   call [entry trampoline]          a site with entry hooks jumps here; the trampoline finds Meta at -14
//!         +14  moved instructions, jmp back     exit trampolines call this, the function's body
//! inside  +0   address of the place's Meta
//!         +8   lea rsp, [rsp-128]               a place inside a function jumps here; its red zone stays
//!         +13  call [inside trampoline]         which finds Meta at -19
//!         +19  lea rsp, [rsp+128]
//!         +27  moved instructions, jmp back
//! early   +0   address of the place's Meta      instructions before the place were moved, too
//!         +8   jmp event
//!         +13  moved instructions, jmp back
//!         event: those before the place; jmp over the next 8 bytes; address of Meta; as from +8 above;
//!              those from the place on, jmp back
//! exit    +0   address of the function's Meta
//!         +8   push [Meta]; jmp [exit trampoline]      a site with exit hooks jumps here
//! ```
//!
//! A chunk is written while it is plain data and made executable, and no longer writable, before
//! anything jumps there. Later only the five bytes that sites jump to are changed, by one store:
//! they lie in an aligned word, and are redirected where a site's own bytes cannot be changed.
//! Islands are never freed: a thread may sleep in a system call whose instruction was moved.

use crate::hook_list::Meta;
use crate::jump::{PATCH, jump};
use crate::skip::Skip;
use crate::sys;
use crate::tramp::entry_points as tramp;
use skep_proc::maps::{self, Vma};
use std::ops::Range;

/// Distance that 32-bit operands in a chunk must be able to bridge, with room to spare.
const REACH: u64 = (1 << 31) - (1 << 24);
const HEAD: u64 = 128;
const PAGE: u64 = 4096;

/// Memory being filled; becomes executable by [`Builder::finish`].
#[derive(Debug)]
pub(crate) struct Builder {
    base: u64,
    size: u64,
    used: u64,
    /// The island that is being made.
    bytes: Vec<u8>,
}

impl Builder {
    /// Maps memory within reach of everything in `span` for `n` functions. `used`: what is mapped, as
    /// far as known, sorted; this is added.
    pub(crate) fn new(
        span: &Range<u64>,
        n: usize,
        used: &mut Vec<Range<u64>>,
    ) -> Result<Self, Skip> {
        let size = (HEAD + n as u64 * MOST).next_multiple_of(PAGE);
        let base = map_near(span, size, used)?;
        let out = Self { base, size, used: HEAD, bytes: Vec::with_capacity(MOST as usize) };
        let mut head = Vec::with_capacity(HEAD as usize);
        for t in tramp::TRAMPOLINES {
            head.extend_from_slice(&(t as usize as u64).to_le_bytes());
        }
        for n in 0..tramp::TRAMPOLINES.len() {
            // jmp [rip - distance to the address]
            let back = 8 * n as i64 - (head.len() as i64 + 6);
            head.extend_from_slice(&[0xff, 0x25]);
            head.extend_from_slice(&(back as i32).to_le_bytes());
        }
        out.write(base, &head);
        Ok(out)
    }

    /// Where compiled-in sites call the entry trampoline.
    pub(crate) fn veneer(&self) -> u64 {
        self.base + 8 * tramp::TRAMPOLINES.len() as u64 + 6 * tramp::ENTRY_SITE as u64
    }

    /// Address of the next island.
    fn next(&self) -> u64 {
        self.base + self.used
    }

    /// Address of the moved instructions of the next island.
    pub(crate) fn next_body(&self) -> u64 {
        self.next() + 14
    }

    /// Adds an island with the moved instructions of a function and the jump back, made for
    /// [`next_body`](Self::next_body). Returns where sites with entry hooks jump, and where the
    /// moved instructions begin.
    pub(crate) fn entry(&mut self, meta: &'static Meta, code: &[u8]) -> (u64, u64) {
        let start = self.begin(meta);
        self.through(start, CALL, tramp::ENTRY_ISLAND);
        self.bytes.extend_from_slice(code);
        self.push();
        (start + 8, start + 14)
    }

    /// Adds a path to an exit trampoline, an index in [`tramp::TRAMPOLINES`], and returns its
    /// address.
    pub(crate) fn exit(&mut self, meta: &'static Meta, trampoline: usize) -> u64 {
        let start = self.begin(meta);
        self.bytes.extend_from_slice(&PUSH_META);
        self.through(start, [0xff, 0x25], trampoline);
        self.push();
        start + 8
    }

    /// Adds an island for a place inside a function. `early`: instructions before the place were moved
    /// as well. `relocate` makes a part of the moved instructions, with the jump back where it is
    /// the last, for an address.
    pub(crate) fn inside(
        &mut self,
        meta: &'static Meta,
        early: bool,
        relocate: impl Fn(Part, u64) -> Result<Vec<u8>, Skip>,
    ) -> Result<Inside, Skip> {
        let start = self.begin(meta);
        let entry = start + 8;
        let here = |bytes: &Vec<u8>| start + bytes.len() as u64;
        if early {
            self.bytes.extend_from_slice(&[0; PATCH]);
            self.bytes.extend(relocate(Part::All, body_of(start))?);
            let jump = jump(0xe9, entry, here(&self.bytes)).ok_or(Skip::NoRoom)?;
            self.bytes.splice(8..8 + PATCH, jump);
            self.bytes.extend(relocate(Part::Before, here(&self.bytes))?);
            self.bytes.extend_from_slice(&[0xeb, 8]);
            self.bytes.extend_from_slice(&(std::ptr::from_ref(meta) as u64).to_le_bytes());
        }
        self.bytes.extend_from_slice(&OVER_RED_ZONE);
        self.through(start, CALL, tramp::INSIDE);
        self.bytes.extend_from_slice(&BACK_TO_RED_ZONE);
        let rest = here(&self.bytes);
        self.bytes.extend(relocate(if early { Part::After } else { Part::All }, rest)?);
        let head = *self.bytes.get(8..).and_then(|b| b.first_chunk()).ok_or(Skip::NoRoom)?;
        self.push();
        Ok(Inside { entry, body: if early { body_of(start) } else { rest }, head })
    }

    /// The memory that the islands are in.
    pub(crate) fn range(&self) -> Range<u64> {
        self.base..self.base + self.size
    }

    /// Begins an island; returns its address.
    fn begin(&mut self, meta: &'static Meta) -> u64 {
        self.bytes.clear();
        self.bytes.extend_from_slice(&(std::ptr::from_ref(meta) as u64).to_le_bytes());
        self.next()
    }

    /// Puts the island into the chunk.
    fn push(&mut self) {
        self.write(self.next(), &self.bytes);
        self.used += (self.bytes.len() as u64).next_multiple_of(16);
    }

    /// Appends an instruction that goes through the address of a trampoline at the chunk's start.
    fn through(&mut self, start: u64, opcode: [u8; 2], n: usize) {
        let at = start + self.bytes.len() as u64;
        self.bytes.extend_from_slice(&through(self.base, at, opcode, n));
    }

    fn write(&self, at: u64, bytes: &[u8]) {
        // By the size computed in `new`: a function's islands are at most MOST bytes.
        assert!(
            at >= self.base && at + bytes.len() as u64 <= self.base + self.size,
            "the chunk has room for all its islands"
        );
        // SAFETY: inside the chunk, which nobody else knows yet.
        unsafe { std::ptr::copy_nonoverlapping(bytes.as_ptr(), at as *mut u8, bytes.len()) };
    }

    /// Gives all of it back: nothing leads there.
    pub(crate) fn abandon(self) {
        // SAFETY: nobody else knows the chunk.
        unsafe { sys::unmap(self.base, self.size) };
    }

    /// Makes the islands executable and gives back what was not needed.
    pub(crate) fn finish(self) -> Result<(), Skip> {
        let keep = self.used.next_multiple_of(PAGE);
        // SAFETY: the end of the chunk was never used; the rest is not written again.
        unsafe {
            if keep < self.size {
                sys::unmap(self.base + keep, self.size - keep);
            }
            sys::protect(self.base, keep, sys::PROT_READ | sys::PROT_EXEC)
                .map_err(|errno| Skip::Protected { errno: errno as i32 })?;
        }
        Ok(())
    }
}

/// Makes a jump to an address anywhere, within reach of everything in `span`. It is never freed. `used`: as
/// for [`Builder::new`].
pub(crate) fn bridge(span: &Range<u64>, to: u64, used: &mut Vec<Range<u64>>) -> Result<u64, Skip> {
    let at = map_near(span, PAGE, used)?;
    // jmp [rip+0], and the address
    let mut bytes = vec![0xff, 0x25, 0, 0, 0, 0];
    bytes.extend_from_slice(&to.to_le_bytes());
    // SAFETY: a page that nobody else knows yet.
    unsafe {
        std::ptr::copy_nonoverlapping(bytes.as_ptr(), at as *mut u8, bytes.len());
        sys::protect(at, PAGE, sys::PROT_READ | sys::PROT_EXEC)
            .map_err(|errno| Skip::Protected { errno: errno as i32 })?;
    }
    Ok(at)
}

/// An instruction at `at` that goes through the address of a trampoline at the start of the chunk
/// at `base`.
fn through(base: u64, at: u64, opcode: [u8; 2], n: usize) -> [u8; 6] {
    let to = base + 8 * n as u64;
    let [a, b, c, d] = (to.wrapping_sub(at + 6) as i32).to_le_bytes();
    let [x, y] = opcode;
    [x, y, a, b, c, d]
}

/// `push [rip - 14]`: the address of Meta, in front of an exit island.
const PUSH_META: [u8; 6] = [0xff, 0x35, 0xf2, 0xff, 0xff, 0xff];
const CALL: [u8; 2] = [0xff, 0x15];

/// The first five bytes of the island that sites jump to at `at`, in `chunk`, as they were made.
pub(crate) fn head(exit: bool, at: u64, chunk: &Range<u64>) -> [u8; PATCH] {
    let [a, b, c, d, e, _] =
        if exit { PUSH_META } else { through(chunk.start, at, CALL, tramp::ENTRY_ISLAND) };
    [a, b, c, d, e]
}

/// Most bytes of a function's two islands: address, call, moved instructions (at most 4 + 15 bytes,
/// each branch grown by 10, or a moved call), jump back; address, push, jump; both rounded up.
const MOST: u64 = 192;

/// Part of the instructions that were moved from a place inside a function.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Part {
    All,
    /// Those before the place, without a jump back.
    Before,
    /// Those from the place on.
    After,
}

/// The island of a place inside a function.
#[derive(Debug)]
pub(crate) struct Inside {
    /// Where the place jumps to.
    pub(crate) entry: u64,
    /// Where its instructions run without hooks.
    pub(crate) body: u64,
    /// The five bytes at `entry`.
    pub(crate) head: [u8; PATCH],
}

/// `lea rsp, [rsp-128]`, and `lea rsp, [rsp+128]`: flags stay.
const OVER_RED_ZONE: [u8; PATCH] = [0x48, 0x8d, 0x64, 0x24, 0x80];
const BACK_TO_RED_ZONE: [u8; 8] = [0x48, 0x8d, 0xa4, 0x24, 0x80, 0, 0, 0];

/// Where an early island has its moved instructions.
const fn body_of(start: u64) -> u64 {
    start + 8 + PATCH as u64
}

/// How many islands of functions that of a place inside one takes at most.
pub(crate) const INSIDE: usize = 3;

/// More bytes than the island of a place or a function has.
pub(crate) const LARGEST: u64 = INSIDE as u64 * MOST;

fn reaches(chunk: &Range<u64>, span: &Range<u64>) -> bool {
    chunk.end.max(span.end) - chunk.start.min(span.start) < REACH
}

/// Maps `size` bytes within reach of everything in `span`. `used`: what is mapped, as far as known, sorted;
/// this is added.
fn map_near(span: &Range<u64>, size: u64, used: &mut Vec<Range<u64>>) -> Result<u64, Skip> {
    let at = match near(span, size, used) {
        Some(at) => at,
        None => {
            // Others may have given up what seemed used.
            *used = maps::own().map_err(|_| Skip::NoRoom)?.iter().map(Vma::range).collect();
            near(span, size, used).ok_or(Skip::NoRoom)?
        }
    };
    used.insert(used.partition_point(|r| r.start < at), at..at + size);
    Ok(at)
}

/// Maps `size` bytes in the free gap between what is used that is nearest to `span`.
fn near(span: &Range<u64>, size: u64, used: &[Range<u64>]) -> Option<u64> {
    let mut candidates = Vec::new();
    // The lowest page that programs can usually map, and the end of user space.
    let mut free_from = 0x10000;
    for r in used.iter().chain(std::iter::once(&(0x7fff_ffff_f000..u64::MAX))) {
        let gap = free_from..r.start;
        free_from = free_from.max(r.end);
        if gap.end < gap.start || gap.end - gap.start < size {
            continue;
        }
        // Close to the module, but a little away from what may want to grow: the heap above a
        // program, stacks below a mapping.
        for slack in [1u64 << 24, 0] {
            if gap.end <= span.start {
                candidates.push(gap.end.saturating_sub(size + slack).max(gap.start) & !(PAGE - 1));
            } else {
                candidates.push((gap.start.max(span.end) + slack).next_multiple_of(PAGE));
            }
        }
    }
    candidates.retain(|c| reaches(&(*c..*c + size), span));
    // A few, by a number: such sorts share their code.
    candidates.sort_by_cached_key(|c| c.abs_diff(span.start));
    candidates.into_iter().find_map(|c| sys::map(c, size, sys::PROT_READ | sys::PROT_WRITE).ok())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn own_code() -> Range<u64> {
        let here = own_code as *const () as u64 & !(PAGE - 1);
        here..here + PAGE
    }

    /// What was looked at before may not be so any more.
    #[test]
    fn memory_is_found_whatever_was_mapped_before() {
        let span = own_code();
        let all = || -> Vec<Range<u64>> {
            maps::own().expect("mappings").iter().map(Vma::range).collect()
        };
        let now = all();
        // Nothing is mapped; all is; what is there now.
        for known in [Vec::new(), vec![0..1 << 46, 1 << 46..u64::MAX], now.clone()] {
            let mut used = known;
            let at = map_near(&span, 3 * PAGE, &mut used).expect("there is room");
            let new = at..at + 3 * PAGE;
            assert!(reaches(&new, &span));
            assert!(used.contains(&new) && used.is_sorted_by_key(|range| range.start));
            assert!(now.iter().all(|range| range.end <= new.start || new.end <= range.start));
            // SAFETY: nobody else knows it.
            unsafe {
                (at as *mut u8).write_volatile(1);
                sys::unmap(at, 3 * PAGE);
            }
        }
    }

    /// Islands of several modules are made one after the other, by one look.
    #[test]
    fn what_was_just_mapped_is_used() {
        let (span, mut used) = (own_code(), Vec::new());
        let mut made: Vec<u64> = Vec::new();
        for _ in 0..4 {
            let at = map_near(&span, PAGE, &mut used).expect("there is room");
            assert!(!made.contains(&at));
            made.push(at);
        }
        for at in made {
            // SAFETY: nobody else knows it.
            unsafe { sys::unmap(at, PAGE) };
        }
    }
}
