//! Memory of the agent that does not depend on its file.
//!
//! The dynamic loader maps the library from its file. Whoever cuts that file off, as cleaners of
//! temporary files do, takes the pages of a private mapping away that were not written to: the next
//! hooked function would be the program's end, by `SIGBUS`. So the agent puts copies in the place
//! of its mappings before it hooks anything: each segment is copied into new memory, which gets the
//! segment's protection, and is moved to the segment's address by one system call.
//!
//! What fails leaves the mapping as it was. The module is not listed with a file in
//! `/proc/PID/maps` any more; the dynamic loader, debuggers and unwinders know it as before, from
//! the loader's own list.

use std::ffi::c_void;
use std::ptr;

use rustix::fs::{MemfdFlags, memfd_create};
use rustix::mm::{
    MapFlags, MprotectFlags, MremapFlags, ProtFlags, mmap, mmap_anonymous, mprotect, mremap_fixed,
    munmap,
};
use skep_runtime::start;

/// The kernel's smallest page, which x86-64's loaders map by.
const PAGE: usize = 4096;
const PT_LOAD: u32 = 1;
const PT_TLS: u32 = 7;
const PT_GNU_EH_FRAME: u32 = 0x6474_e550;
const PT_GNU_RELRO: u32 = 0x6474_e552;
const PF_X: u32 = 1;
const PF_W: u32 = 2;
const PF_R: u32 = 4;

/// `Elf64_Ehdr`.
#[repr(C)]
struct Header {
    _ident: [u8; 16],
    _kind: [u16; 2],
    _version: u32,
    _entry: u64,
    program_headers: u64,
    _sections: u64,
    _flags: u32,
    _size: u16,
    program_header_size: u16,
    program_header_count: u16,
}

/// `Elf64_Phdr`.
#[repr(C)]
struct ProgramHeader {
    kind: u32,
    flags: u32,
    _offset: u64,
    vaddr: u64,
    _paddr: u64,
    file_size: u64,
    memory_size: u64,
    align: u64,
}

unsafe extern "C" {
    /// The linker's: where this library begins. Hidden, so it is not another module's.
    static __ehdr_start: Header;
}

/// A range of pages, from one address to another.
#[derive(Clone, Copy)]
struct Pages {
    start: usize,
    end: usize,
}

impl Pages {
    fn cut(self, start: usize, end: usize) -> Self {
        Self { start: self.start.max(start), end: self.end.min(end) }
    }
}

/// Where this library begins, and its program headers.
fn headers() -> (usize, &'static [ProgramHeader]) {
    // SAFETY: whoever has loaded the library has mapped the header as its first bytes, with the
    // program headers behind it in the same segment, as linkers lay libraries out; both stay.
    unsafe {
        let header = &__ehdr_start;
        let base = ptr::from_ref(header).addr();
        if usize::from(header.program_header_size) != size_of::<ProgramHeader>() {
            return (base, &[]);
        }
        let first = (base + header.program_headers as usize) as *const ProgramHeader;
        (base, std::slice::from_raw_parts(first, usize::from(header.program_header_count)))
    }
}

/// Bytes of this library's thread-local storage, as they lie below a thread pointer.
pub fn storage_len() -> u64 {
    let storage = headers().1.iter().find(|h| h.kind == PT_TLS);
    storage.map_or(0, |h| h.memory_size.next_multiple_of(h.align.max(1)))
}

/// Tells the runtime where this library's code lies.
pub fn tell_own_code() {
    let (base, headers) = headers();
    let at = |vaddr: u64| base as u64 + vaddr;
    let code = headers.iter().find(|h| h.kind == PT_LOAD && h.flags & PF_X != 0);
    let table = headers.iter().find(|h| h.kind == PT_GNU_EH_FRAME);
    if let Some((code, table)) = code.zip(table) {
        let range = at(code.vaddr)..at(code.vaddr + code.memory_size);
        let own = start::OwnImage {
            base: base as u64,
            code: range,
            table: at(table.vaddr),
            headers: headers.as_ptr().addr() as u64,
            header_count: headers.len() as u16,
        };
        start::own_image(&own);
    }
}

/// Replaces all mappings of this library's file by copies of what is there.
///
/// # Safety
/// The library is relocated, which a constructor may rely on. No thread writes to its variables
/// meanwhile, and no signal handler does on this one.
pub unsafe fn detach_from_file() {
    let (base, headers) = headers();
    // A library is linked for address 0: addresses in it are distances from the header.
    let at = |vaddr: u64| base.wrapping_add(vaddr as usize);
    let read_only = headers.iter().find(|h| h.kind == PT_GNU_RELRO).map(|h| Pages {
        start: at(h.vaddr) & !(PAGE - 1),
        end: at(h.vaddr + h.memory_size) & !(PAGE - 1),
    });
    let read_only = read_only.unwrap_or(Pages { start: 0, end: 0 });
    for segment in headers.iter().filter(|h| h.kind == PT_LOAD && h.flags & PF_R != 0) {
        // What is behind the file's bytes has no file anyway.
        let all = Pages {
            start: at(segment.vaddr) & !(PAGE - 1),
            end: at(segment.vaddr + segment.file_size).next_multiple_of(PAGE),
        };
        if segment.flags & PF_W == 0 {
            // SAFETY: mapped, readable, and never written to.
            unsafe { replace(all, segment.flags) };
            continue;
        }
        // The loader has taken the right to write to a part of it away after relocation. A range
        // that has two protections cannot be moved as one.
        for (part, flags) in [
            (all.cut(0, read_only.start), segment.flags),
            (all.cut(read_only.start, read_only.end), PF_R),
            (all.cut(read_only.end.max(read_only.start), usize::MAX), segment.flags),
        ] {
            // SAFETY: mapped and readable; nobody writes meanwhile, by the caller's promise, nor
            // does what copies it: it makes raw system calls only.
            unsafe { replace(part, flags) };
        }
    }
}

/// Puts a copy in the place of pages of one mapping; `flags` are those of the program header.
///
/// # Safety
/// The pages are mapped and readable, and nobody writes to them meanwhile.
unsafe fn replace(pages: Pages, flags: u32) {
    let Some(len) = pages.end.checked_sub(pages.start).filter(|len| *len > 0) else { return };
    let mut protection = MprotectFlags::READ;
    protection.set(MprotectFlags::WRITE, flags & PF_W != 0);
    protection.set(MprotectFlags::EXEC, flags & PF_X != 0);
    let place = pages.start as *mut c_void;
    // SAFETY: as the caller promises; a place that is never written to.
    if flags & PF_W == 0 && unsafe { replace_by_memory_file(place, len, protection) }.is_some() {
        return;
    }
    let write = ProtFlags::READ | ProtFlags::WRITE;
    // SAFETY: new memory is written to, of the size of what is read. Moving it replaces pages by
    // equal ones with the same protection, at once for all who use them: this very code as well.
    unsafe {
        // Populated at once, as a fault for each page takes longer than the copying.
        let flags = MapFlags::PRIVATE | MapFlags::POPULATE;
        let Ok(copy) = mmap_anonymous(ptr::null_mut(), len, write, flags) else { return };
        ptr::copy_nonoverlapping(place.cast::<u8>(), copy.cast::<u8>(), len);
        let moved = mprotect(copy, len, protection)
            .and_then(|()| mremap_fixed(copy, len, len, MremapFlags::MAYMOVE, place));
        if moved.is_err() {
            // Nothing is to be done about memory that stays.
            let _ = munmap(copy, len);
        }
    }
}

/// Puts a private mapping of an unnamed file in memory in the place of pages, which nobody else can
/// open and cut off. Unlike that of anonymous memory, its page table is not copied when the program
/// forks. `None`, and nothing changed, when the kernel does not allow it.
///
/// # Safety
/// The pages are mapped and readable, and never written to; `protection` is theirs.
unsafe fn replace_by_memory_file(
    place: *mut c_void,
    len: usize,
    protection: MprotectFlags,
) -> Option<()> {
    // `MFD_EXEC`, which Linux knows since 6.3.
    let executable = MemfdFlags::CLOEXEC | MemfdFlags::from_bits_retain(0x10);
    let name = c"libskep_preload.so";
    let file =
        memfd_create(name, executable).or_else(|_| memfd_create(name, MemfdFlags::CLOEXEC)).ok()?;
    // SAFETY: readable, by the caller's promise.
    let mut bytes = unsafe { std::slice::from_raw_parts(place.cast::<u8>(), len) };
    while !bytes.is_empty() {
        let written = rustix::io::write(&file, bytes).ok().filter(|n| *n > 0)?;
        bytes = bytes.get(written..)?;
    }
    let protection = ProtFlags::from_bits_retain(protection.bits());
    let flags = MapFlags::PRIVATE | MapFlags::POPULATE;
    // SAFETY: a new mapping of a file of that length takes the place of equal bytes with the same
    // protection, at once for all who use them: this very code as well.
    unsafe {
        let copy = mmap(ptr::null_mut(), len, protection, flags, &file, 0).ok()?;
        if mremap_fixed(copy, len, len, MremapFlags::MAYMOVE, place).is_err() {
            // Nothing is to be done about memory that stays.
            let _ = munmap(copy, len);
            return None;
        }
    }
    Some(())
}
