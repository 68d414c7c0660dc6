//! Memory of a stopped process: reading, writing whatever the protection, finding free addresses.

use std::fs::File;
use std::ops::Range;
use std::os::unix::fs::FileExt;

use rustix::io::Errno;
use rustix::thread::{CapabilitySet, CapabilitySets, capabilities, set_capabilities};
use skep_proc::maps::{Filter, Live, MapSource, MapsError, Perms, Vma, Want};

use crate::error::Error;
use crate::stop::not_opened;
use crate::sys;

/// Lowest address that is ever used: `vm.mmap_min_addr` of all distributions.
const LOWEST: u64 = 0x1_0000;
/// End of the addresses of programs, with four levels of page tables.
const HIGHEST: u64 = 0x7fff_ffff_f000;
/// What is left free beside mappings that may grow: the heap and stacks.
const MARGIN: u64 = 16 << 20;
/// So much is read at once at most. A process says how long its lists are, and may say anything.
const MOST: usize = 128 << 20;
/// Reach of a jump, less what the memory itself takes.
const REACH: u64 = (2 << 30) - (16 << 20);

/// The open memory of a process.
#[derive(Debug)]
pub(crate) struct Memory {
    pid: u32,
    file: File,
}

/// Does something with the right to all files in effect, where the calling thread may have it and has not;
/// `None`: it has it, or may not. The memory of a process that has changed its user is root's.
fn with_override<T>(f: impl FnOnce() -> T) -> Option<T> {
    let sets = capabilities(None).ok()?;
    let all = CapabilitySet::DAC_OVERRIDE;
    if !sets.permitted.contains(all) || sets.effective.contains(all) {
        return None;
    }
    let effective = sets.effective.union(all);
    set_capabilities(None, CapabilitySets { effective, ..sets }).ok()?;
    let done = f();
    // Nothing is in the way of giving a right up.
    let _ = set_capabilities(None, sets);
    Some(done)
}

impl Memory {
    /// Opens the memory that a stopped process has now.
    pub(crate) fn open(pid: u32, tid: u32) -> Result<Self, Error> {
        // By the thread: the one that leads may have ended, and has no memory then.
        let path = format!("/proc/{pid}/task/{tid}/mem");
        let open = || File::options().read(true).write(true).open(&path);
        open()
            .or_else(|error| with_override(open).unwrap_or(Err(error)))
            .map(|file| Self { pid, file })
            .map_err(|error| Error::Os { pid, call: "open `/proc/PID/mem`", errno: errno(&error) })
    }

    pub(crate) fn read(&self, address: u64, len: usize) -> Result<Vec<u8>, Error> {
        let failed = |errno| Error::Memory { pid: self.pid, what: "read", address, len, errno };
        if len > MOST {
            return Err(failed(Errno::NOMEM));
        }
        let mut bytes = vec![0; len];
        self.file.read_exact_at(&mut bytes, address).map_err(|error| failed(errno(&error)))?;
        Ok(bytes)
    }

    /// Writes bytes, also into code. Where the system forbids that for `/proc/PID/mem`
    /// (`proc_mem.force_override`, Linux 6.12), by ptrace, for which `tid` must stand.
    pub(crate) fn write(&self, tid: u32, address: u64, bytes: &[u8]) -> Result<(), Error> {
        let Err(error) = self.file.write_all_at(bytes, address) else { return Ok(()) };
        self.poke(tid, address, bytes).map_err(|_| Error::Memory {
            pid: self.pid,
            what: "write",
            address,
            len: bytes.len(),
            errno: errno(&error),
        })
    }

    fn poke(&self, tid: u32, address: u64, bytes: &[u8]) -> Result<(), Errno> {
        let end = address + bytes.len() as u64;
        let mut at = address & !7;
        while at < end {
            let mut word = [0; 8];
            self.file.read_exact_at(&mut word, at).map_err(|error| errno(&error))?;
            for (offset, byte) in (at..).zip(&mut word) {
                if (address..end).contains(&offset) {
                    *byte = bytes[(offset - address) as usize];
                }
            }
            sys::poke(tid, at, u64::from_le_bytes(word))?;
            at += 8;
        }
        Ok(())
    }
}

fn errno(error: &std::io::Error) -> Errno {
    Errno::from_io_error(error).unwrap_or(Errno::IO)
}

/// All mappings of a process, in order of address, with their names.
pub(crate) fn mappings(pid: u32) -> Result<Vec<Vma>, Error> {
    Live::of(pid).and_then(|live| live.all(&Filter::default(), Want::NAME)).map_err(|e| match e {
        MapsError::Os { errno, .. } => not_opened(pid, Some(errno)),
        _ => Error::NoProcess { pid },
    })
}

/// Ends of mapped code, that of the vDSO first: places that may have unused bytes.
pub(crate) fn ends_of_code(mappings: &[Vma]) -> Vec<u64> {
    let is_code = |vma: &&Vma| {
        vma.perms.contains(Perms::READ | Perms::EXEC) && !vma.perms.contains(Perms::SHARED)
    };
    let named = |vma: &Vma, name: &[u8]| vma.name.as_deref() == Some(name);
    let mut code: Vec<&Vma> =
        mappings.iter().filter(is_code).filter(|vma| !named(vma, b"[vsyscall]")).collect();
    code.sort_by_cached_key(|vma| u64::from(!named(vma, b"[vdso]")));
    code.iter().map(|vma| vma.end).collect()
}

/// Finds `len` free bytes as near to `address` as can be, and not farther than a jump reaches.
/// Places beside the heap and below stacks are left alone, since those grow.
pub(crate) fn find_room(mappings: &[Vma], address: u64, len: u64) -> Option<u64> {
    let len = len.checked_next_multiple_of(4096)?;
    let near =
        address.saturating_sub(REACH).max(LOWEST)..address.saturating_add(REACH).min(HIGHEST);
    let grows = |vma: &Vma| {
        vma.name.as_deref().is_none_or(|name| name.starts_with(b"[") && name != b"[vdso]")
    };
    let mut best: Option<u64> = None;
    let mut consider = |gap: Range<u64>| {
        let (start, end) = (gap.start.max(near.start), gap.end.min(near.end));
        let Some(last) = end.checked_sub(len).filter(|&last| last >= start) else { return };
        let place = address.clamp(start, last) & !4095;
        let place = if place < start { place + 4096 } else { place };
        if place <= last && best.is_none_or(|best| place.abs_diff(address) < best.abs_diff(address))
        {
            best = Some(place);
        }
    };
    let mut start = LOWEST;
    for vma in mappings {
        let end = if grows(vma) { vma.start.saturating_sub(MARGIN) } else { vma.start };
        consider(start..end);
        start = start.max(if grows(vma) { vma.end.saturating_add(MARGIN) } else { vma.end });
    }
    consider(start..HIGHEST);
    best
}

#[cfg(test)]
mod tests {
    use super::*;

    fn vma(start: u64, end: u64, name: Option<&str>) -> Vma {
        let text =
            format!("{start:x}-{end:x} r-xp 00000000 00:00 0 {}\n", name.unwrap_or_default());
        skep_proc::maps::parse(text.as_bytes()).unwrap().remove(0)
    }

    #[test]
    fn room_is_near_and_not_where_something_grows() {
        let text = vma(0x40_0000, 0x50_0000, Some("/bin/x"));
        assert_eq!(find_room(std::slice::from_ref(&text), 0x48_0000, 0x1000), Some(0x50_0000));
        assert_eq!(find_room(std::slice::from_ref(&text), 0x41_0000, 0x1000), Some(0x3f_f000));
        let heap = vma(0x50_0000, 0x60_0000, Some("[heap]"));
        assert_eq!(find_room(&[text.clone(), heap.clone()], 0x4f_f000, 0x1000), Some(0x3f_f000));
        let low = vma(0x1_0000, 0x40_0000, Some("/bin/y"));
        assert_eq!(
            find_room(&[low.clone(), text.clone(), heap], 0x4f_f000, 0x1000),
            Some(0x60_0000 + MARGIN)
        );
        // Nothing within reach.
        let much = vma(0x50_0000, 0x2_0000_0000, Some("/dev/zero"));
        assert_eq!(find_room(&[low, text, much], 0x48_0000, 0x1000), None);
        assert_eq!(find_room(&[], 0x48_0000, u64::MAX), None);
    }

    #[test]
    fn the_vdso_is_the_first_choice() {
        let all = [vma(0x1000, 0x2000, Some("/bin/x")), vma(0x5000, 0x7000, Some("[vdso]"))];
        assert_eq!(ends_of_code(&all), [0x7000, 0x2000]);
    }
}
