//! Write access to code, while it is changed.

use super::change::{Change, current, in_one_word, word};
use crate::jump::PATCH;
use crate::skip::Skip;
use crate::sys::{self, Fd};
use skep_proc::maps::{self, Dev, Filter, Live, MapSource, MapsError, Perms, Vma, Want};
use std::ops::Range;
use std::sync::atomic::{AtomicU64, Ordering};

/// Patch sites closer than this share one range of writable memory.
const GAP: u64 = 1 << 18;

const PAGE: u64 = 4096;
/// Some of the memory is not mapped, or may not be written to: that would be more than the process may
/// have (`RLIMIT_DATA`, `vm.max_map_count`, `vm.overcommit_memory`).
const ENOMEM: i64 = 12;
/// There is no `/proc`.
const ENOENT: i32 = 2;

/// Writable access to code, held while it is changed.
///
/// Usually the pages become writable for that time, and stay executable, as other threads and this
/// very code may need them. Where the kernel refuses that (SELinux,
/// `MemoryDenyWriteExecute`, limits of memory), every byte goes through `/proc/self/mem`.
///
/// Where other threads run, one of them may close the library meanwhile, and something else be mapped
/// there: that keeps its protection, if it is no code of the same file.
#[derive(Debug)]
pub(crate) struct WritableCode {
    opened: Vec<Opened>,
    memory: Option<Fd>,
    unwatched: bool,
}

/// Pages that were made writable.
#[derive(Debug)]
struct Opened {
    range: Range<u64>,
    /// Of the first and the last page; `None`: nobody has looked.
    code: Option<[Place; 2]>,
}

/// What code is mapped somewhere: a file and the offset in it.
type Place = (Dev, u64, u64);

/// What code is mapped in the first page of a range and in the last, where `live` can be asked; else by
/// what was `read`.
fn code(live: Option<&Live>, read: &[Vma], range: &Range<u64>) -> Option<[Place; 2]> {
    let at = |page: u64| {
        let asked = live.map(|live| live.query(page, &Filter::default(), Want::default()));
        let vma = match &asked {
            Some(answer) => answer.as_ref().ok()?.as_ref(),
            None => read.get(read.partition_point(|vma| vma.end <= page)),
        };
        let vma = vma.filter(|vma| vma.start <= page)?;
        let offset = vma.offset.wrapping_add(page - vma.start);
        let is_code = vma.perms.contains(Perms::EXEC);
        // Of memory without a file only the place counts.
        is_code.then_some((vma.dev, vma.inode, if vma.inode == 0 { page } else { offset }))
    };
    Some([at(range.start)?, at(range.end - PAGE)?])
}

impl WritableCode {
    /// Opens the pages around all changes, which are sorted by address. `unwatched`: nobody unmaps them
    /// meanwhile, or it takes no time. What is not there any more is not opened.
    ///
    /// # Safety
    /// They lie in code that was found mapped, which is readable and executable, and not writable.
    pub(crate) unsafe fn open(changes: &[Change], unwatched: bool) -> Result<Self, Skip> {
        let mut out = Self { opened: Vec::new(), memory: None, unwatched };
        let mut ranges: Vec<(Range<u64>, Range<u64>)> = Vec::new();
        for c in changes {
            let pages = c.at & !(PAGE - 1)..(c.at + PATCH as u64).next_multiple_of(PAGE);
            match ranges.last_mut() {
                Some((r, text)) if *text == c.text && pages.start <= r.end + GAP => {
                    r.end = r.end.max(pages.end)
                }
                _ => ranges.push((pages, c.text.clone())),
            }
        }
        let unknown = |e| match e {
            MapsError::Os { errno, .. } => Skip::Protected { errno: errno.raw_os_error() },
            _ => Skip::Protected { errno: ENOENT },
        };
        let mappings = if unwatched { Vec::new() } else { maps::own().map_err(unknown)? };
        let has_gone = |range: &Range<u64>, before: &Option<[Place; 2]>| {
            maps::own().is_ok_and(|now| code(None, &now, range) != *before)
        };
        for (r, _) in ranges {
            let place = code(None, &mappings, &r);
            if !unwatched && place.is_none() {
                continue;
            }
            // SAFETY: the pages gain a right and lose none.
            match unsafe {
                sys::protect(
                    r.start,
                    r.end - r.start,
                    sys::PROT_READ | sys::PROT_WRITE | sys::PROT_EXEC,
                )
            } {
                Ok(()) => out.opened.push(Opened { range: r, code: place }),
                Err(ENOMEM) if !unwatched && has_gone(&r, &place) => {}
                Err(errno) => {
                    let file = Fd::open_rw(b"/proc/thread-self/mem\0");
                    out.memory = Some(file.map_err(|_| Skip::Protected { errno: errno as i32 })?);
                    break;
                }
            }
        }
        Ok(out)
    }

    /// Writes bytes of code. Single bytes are written with one store.
    ///
    /// # Safety
    /// They lie in one of the changes that this was opened for, and whoever runs into them
    /// can run them.
    pub(crate) unsafe fn write(&self, at: u64, bytes: &[u8]) -> Result<(), Skip> {
        if let Some(memory) = &self.memory {
            let got = memory.write_at(bytes, at);
            return if got == bytes.len() as i64 {
                Ok(())
            } else {
                Err(Skip::Protected { errno: (-got).max(0) as i32 })
            };
        }
        for (i, b) in bytes.iter().enumerate() {
            // SAFETY: inside an opened range of mapped code, by the caller's promise.
            unsafe { ((at as usize + i) as *mut u8).write_volatile(*b) };
        }
        Ok(())
    }
}

impl WritableCode {
    /// Makes a change that lies in one aligned word, for threads that run.
    ///
    /// # Safety
    /// It is one of the changes that this was opened for, and whoever runs into the new bytes can
    /// run them.
    pub(super) unsafe fn store(&self, change: &Change) -> Result<(), Skip> {
        match self.memory {
            // The kernel does not say how it copies.
            Some(_) => Err(Skip::Protected { errno: 0 }),
            // SAFETY: the caller's promise.
            None => unsafe { self.swap(change.at, change.old, change.new) },
        }
    }

    /// Changes five bytes of code where they are `from`: other code may be there by now. Those of two words
    /// are changed one word after the other.
    ///
    /// # Safety
    /// As for [`write`](Self::write).
    #[inline(never)]
    pub(crate) unsafe fn swap(
        &self,
        at: u64,
        from: [u8; PATCH],
        to: [u8; PATCH],
    ) -> Result<(), Skip> {
        if self.memory.is_some() {
            // SAFETY: the caller's promise.
            return unsafe {
                if current(at) == from { self.write(at, &to) } else { Err(Skip::Foreign) }
            };
        }
        let shift = 8 * (at % 8);
        let [mask, from, to] = [[0xff; PATCH], from, to].map(word);
        let mut result = Ok(());
        let mut part = |at: u64, [mask, from, to]: [u64; 3]| {
            // SAFETY: an aligned word inside an opened range of mapped code. Readers are the
            // processors' instruction fetches.
            let word = unsafe { &*(at as *const AtomicU64) };
            let mut now = word.load(Ordering::Relaxed);
            while now & mask == from {
                match word.compare_exchange(
                    now,
                    now & !mask | to,
                    Ordering::SeqCst,
                    Ordering::Relaxed,
                ) {
                    Ok(_) => return,
                    Err(other) => now = other,
                }
            }
            result = Err(Skip::Foreign);
        };
        part(at & !7, [mask, from, to].map(|w| w << shift));
        if !in_one_word(at) {
            part((at & !7) + 8, [mask, from, to].map(|w| w >> (64 - shift)));
        }
        result
    }
}

impl Drop for WritableCode {
    fn drop(&mut self) {
        // Each is looked at just before: what has come there in between would be code from now on.
        let live = if self.unwatched { None } else { Live::own().ok().filter(Live::has_ioctl) };
        let is_read = !self.unwatched && live.is_none();
        let mappings = if is_read { maps::own().unwrap_or_default() } else { Vec::new() };
        for Opened { range: r, code: before } in &self.opened {
            if !self.unwatched && code(live.as_ref(), &mappings, r) != *before {
                continue;
            }
            // SAFETY: gives the pages the protection that code has.
            let _ =
                unsafe { sys::protect(r.start, r.end - r.start, sys::PROT_READ | sys::PROT_EXEC) };
        }
    }
}

#[cfg(test)]
impl WritableCode {
    /// Of memory that is writable.
    pub(crate) fn of_memory() -> Self {
        Self { opened: Vec::new(), memory: None, unwatched: true }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bytes_are_swapped_where_they_are_what_they_were() {
        const AT: usize = 16;
        let code = WritableCode::of_memory();
        let before: [u8; 32] = std::array::from_fn(|n| n as u8);
        for at in AT..AT + 8 {
            let old: [u8; PATCH] = std::array::from_fn(|n| (at + n) as u8);
            for wrong in 0..=PATCH {
                let mut words = [0_u64; 4];
                words
                    .iter_mut()
                    .zip(before.as_chunks().0)
                    .for_each(|(w, b)| *w = u64::from_le_bytes(*b));
                let mut from = old;
                if let Some(byte) = from.get_mut(wrong) {
                    *byte ^= 1;
                }
                let place = words.as_mut_ptr() as u64 + at as u64;
                // SAFETY: memory of this test.
                let done = unsafe { code.swap(place, from, [0xe9; PATCH]) };
                let after = words.map(u64::to_le_bytes);
                let after = after.as_flattened();
                assert_eq!(done.is_ok(), wrong == PATCH, "{at} {wrong}");
                // Of a word with another byte nothing is changed, and nothing around the five.
                for (n, (now, was)) in after.iter().zip(before).enumerate() {
                    let is_of = |n: usize| (at..at + PATCH).contains(&n);
                    let changes = is_of(n) && (wrong == PATCH || (at + wrong) / 8 != n / 8);
                    assert_eq!(*now, if changes { 0xe9 } else { was }, "{at} {wrong} {n}");
                }
            }
        }
    }
}
