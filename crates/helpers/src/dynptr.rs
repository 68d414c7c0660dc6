//! Dynptrs: sixteen bytes of a program's stack that describe memory whose bounds are known at run
//! time only.
//!
//! ```text
//!  0        8                12      16
//! | address | size and flags | offset |      address 0: there is nothing
//! ```
//!
//! The layout is the kernel's (`struct bpf_dynptr_kern`): 24 bits of size, three of kind from bit
//! 28 on, bit 31 for read-only. The verifier lets nobody but these helpers write there.

use skep_isa::helper::DynptrKind;
use skep_isa::map::DynptrUser;
use skep_maps::Map;

use super::map::map;
use super::memory::{fill, shift};
use super::{errno, fail, int};
use crate::packet::View;

const LOCAL: u32 = DynptrKind::Local as u32;
const RINGBUF: u32 = DynptrKind::Ringbuf as u32;
const SKB: u32 = DynptrKind::Skb as u32;
const XDP: u32 = DynptrKind::Xdp as u32;
const MAX_SIZE: u64 = 0xff_ffff;
const READ_ONLY: u32 = 1 << 31;

/// The packets that there are dynptrs of, as the upper bits of a dynptr's size.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[repr(u32)]
pub enum PacketKind {
    /// Of a socket buffer.
    Skb = SKB << 28,
    /// Of a socket buffer that the program may not write.
    SkbReadOnly = SKB << 28 | READ_ONLY,
    /// Of an XDP program.
    Xdp = XDP << 28,
}

/// A dynptr as it stands on the stack.
#[repr(C, align(8))]
#[derive(Clone, Copy)]
pub(super) struct Dynptr {
    address: u64,
    size: u32,
    offset: u32,
}

impl Dynptr {
    const NOTHING: Self = Self { address: 0, size: 0, offset: 0 };

    pub(super) const fn local(address: u64, size: u32) -> Self {
        Self { address, size: size & MAX_SIZE as u32 | LOCAL << 28, offset: 0 }
    }

    /// A dynptr of memory that the program may only read.
    pub(super) const fn read_only(address: u64, size: u32) -> Self {
        let local = Self::local(address, size);
        Self { size: local.size | READ_ONLY, ..local }
    }

    /// # Safety
    /// `at` is a dynptr.
    unsafe fn load(at: u64) -> Self {
        // SAFETY: the caller's promise; the verifier proved it aligned.
        unsafe { (at as *const Self).read_volatile() }
    }

    /// Stores it word by word: a store of all of it would take a vector register.
    ///
    /// # Safety
    /// `at` is writable for sixteen bytes.
    #[inline(always)]
    unsafe fn store(self, at: u64) {
        let words = at as *mut u64;
        // SAFETY: the caller's promise.
        unsafe {
            words.write_volatile(self.address);
            words.add(1).write_volatile(u64::from(self.offset) << 32 | u64::from(self.size));
        }
    }

    const fn kind(self) -> u32 {
        self.size >> 28 & 7
    }

    const fn is_memory(self) -> bool {
        matches!(self.kind(), LOCAL | RINGBUF)
    }

    /// Finds `len` bytes at an offset.
    fn at(self, offset: u64, len: u64) -> Result<u64, i32> {
        let (size, offset, len) =
            (u64::from(self.size) & MAX_SIZE, offset & 0xffff_ffff, len & 0xffff_ffff);
        if len > size || offset > size - len {
            return Err(errno::E2BIG);
        }
        Ok(u64::from(self.offset) + offset)
    }
}

/// Returns what a dynptr of memory describes, as maps take keys; nothing has no bytes.
///
/// # Safety
/// `at` is a dynptr of memory or of a record.
#[inline(always)]
pub(super) unsafe fn key(at: u64) -> DynptrUser {
    // SAFETY: the caller's promise. It is read word by word, as one load of all of it would take a
    // vector register.
    let (address, rest) = unsafe {
        let words = at as *const u64;
        (words.read_volatile(), words.add(1).read_volatile())
    };
    let (size, offset) = (rest as u32 & MAX_SIZE as u32, rest >> 32);
    DynptrUser { data: address.wrapping_add(offset), size, reserved: 0 }
}

/// Makes a dynptr of memory.
#[unsafe(link_section = ".text.skep_event")]
pub(super) unsafe extern "C" fn from_mem(data: u64, size: u64, flags: u64, to: u64, _: u64) -> u64 {
    let size = size & 0xffff_ffff;
    let (made, r) = match (size > MAX_SIZE, flags != 0) {
        (true, _) => (Dynptr::NOTHING, fail(errno::E2BIG)),
        (_, true) => (Dynptr::NOTHING, fail(errno::EINVAL)),
        _ => (Dynptr::local(data, size as u32), 0),
    };
    // SAFETY: the verifier proved `to` sixteen bytes of the stack.
    unsafe { made.store(to) };
    r
}

/// Reserves a record of a size known at run time only.
pub(super) unsafe extern "C" fn ringbuf_reserve(
    handle: u64,
    size: u64,
    flags: u64,
    to: u64,
    _: u64,
) -> u64 {
    let size = size & 0xffff_ffff;
    // SAFETY: the verifier proved argument 1 a ring buffer and `to` sixteen bytes of the stack.
    unsafe {
        let (made, r) = if flags != 0 {
            (Dynptr::NOTHING, fail(errno::EINVAL))
        } else if size > MAX_SIZE {
            (Dynptr::NOTHING, fail(errno::E2BIG))
        } else {
            match map(handle).ringbuf_reserve(size, 0) as u64 {
                0 => (Dynptr::NOTHING, fail(errno::EINVAL)),
                address => (Dynptr { address, size: size as u32 | RINGBUF << 28, offset: 0 }, 0),
            }
        };
        made.store(to);
        r
    }
}

pub(super) unsafe extern "C" fn ringbuf_submit(
    dynptr: u64,
    flags: u64,
    _: u64,
    _: u64,
    _: u64,
) -> u64 {
    // SAFETY: the verifier proved the argument a dynptr of a record.
    unsafe {
        let d = Dynptr::load(dynptr);
        if d.address != 0 {
            Map::ringbuf_submit(d.address as *mut u8, flags);
            Dynptr::NOTHING.store(dynptr);
        }
    }
    0
}

pub(super) unsafe extern "C" fn ringbuf_discard(
    dynptr: u64,
    flags: u64,
    _: u64,
    _: u64,
    _: u64,
) -> u64 {
    // SAFETY: as above.
    unsafe {
        let d = Dynptr::load(dynptr);
        if d.address != 0 {
            Map::ringbuf_discard(d.address as *mut u8, flags);
            Dynptr::NOTHING.store(dynptr);
        }
    }
    0
}

/// Finds bytes behind a dynptr, wherever they are.
///
/// # Safety
/// What the dynptr describes is there.
unsafe fn bytes(d: Dynptr, offset: u64, len: u64) -> Result<u64, i32> {
    let at = d.at(offset, len)?;
    match d.kind() {
        LOCAL | RINGBUF => Ok(d.address + at),
        // SAFETY: such a dynptr has the context of a packet program as address.
        SKB | XDP => unsafe { View::of(d.address) }
            .at(at, len & 0xffff_ffff)
            .map(|p| p as u64)
            .ok_or(errno::EFAULT),
        _ => Err(errno::EFAULT),
    }
}

pub(super) unsafe extern "C" fn read(
    to: u64,
    len: u64,
    dynptr: u64,
    offset: u64,
    flags: u64,
) -> u64 {
    // SAFETY: the verifier proved `to` writable for `len` bytes and argument 3 a dynptr.
    unsafe {
        let d = Dynptr::load(dynptr);
        if d.address == 0 || flags != 0 {
            return fail(errno::EINVAL);
        }
        match bytes(d, offset, len) {
            Ok(at) => shift(to, at, len & 0xffff_ffff),
            Err(e) => return fail(e),
        }
    }
    0
}

pub(super) unsafe extern "C" fn write(
    dynptr: u64,
    offset: u64,
    from: u64,
    len: u64,
    flags: u64,
) -> u64 {
    // SAFETY: the verifier proved `from` readable for `len` bytes and argument 1 a dynptr.
    unsafe {
        let d = Dynptr::load(dynptr);
        if d.address == 0 || d.size & READ_ONLY != 0 {
            return fail(errno::EINVAL);
        }
        match bytes(d, offset, len) {
            // Those of a socket buffer would be for its checksum, which is nobody's here.
            Ok(_) if flags != 0 && d.is_memory() => return fail(errno::EINVAL),
            Ok(at) => shift(at, from, len & 0xffff_ffff),
            Err(e) => return fail(e),
        }
    }
    0
}

/// Address of a part of known size, when it can be read and written directly.
pub(super) unsafe extern "C" fn data(dynptr: u64, offset: u64, len: u64, _: u64, _: u64) -> u64 {
    // SAFETY: the verifier proved argument 1 a dynptr.
    let d = unsafe { Dynptr::load(dynptr) };
    if d.address == 0 || d.size & READ_ONLY != 0 || !d.is_memory() {
        return 0;
    }
    d.at(offset, len).map_or(0, |at| d.address + at)
}

/// Makes a dynptr of a packet.
///
/// # Safety
/// `ctx` is the context of a packet program, `to` sixteen bytes of its stack.
pub unsafe fn of_packet(ctx: u64, flags: u64, to: u64, kind: PacketKind) -> u64 {
    // SAFETY: the caller's promise.
    unsafe {
        if flags != 0 {
            Dynptr::NOTHING.store(to);
            return int(fail(errno::EINVAL));
        }
        let size = View::of(ctx).len().min(MAX_SIZE) as u32;
        Dynptr { address: ctx, size: size | kind as u32, offset: 0 }.store(to);
    }
    0
}

/// Address of a part of known size, of packets too, or 0. The buffer that the kernel copies
/// fragments to is not needed.
pub(super) unsafe extern "C" fn slice(
    dynptr: u64,
    offset: u64,
    _buffer: u64,
    len: u64,
    _: u64,
) -> u64 {
    // SAFETY: the verifier proved argument 1 a dynptr.
    unsafe {
        let d = Dynptr::load(dynptr);
        if d.address == 0 { 0 } else { bytes(d, offset, len).unwrap_or(0) }
    }
}

/// As [`slice`], for writing.
pub(super) unsafe extern "C" fn slice_rdwr(
    dynptr: u64,
    offset: u64,
    buffer: u64,
    len: u64,
    _: u64,
) -> u64 {
    // SAFETY: as above.
    unsafe {
        if Dynptr::load(dynptr).size & READ_ONLY != 0 {
            0
        } else {
            slice(dynptr, offset, buffer, len, 0)
        }
    }
}

/// Leaves the part from `start` up to `end`.
pub(super) unsafe extern "C" fn adjust(dynptr: u64, start: u64, end: u64, _: u64, _: u64) -> u64 {
    let (start, end) = (int(start), int(end));
    // SAFETY: as above.
    unsafe {
        let d = Dynptr::load(dynptr);
        if d.address == 0 || start > end {
            return int(fail(errno::EINVAL));
        }
        if end > u64::from(d.size) & MAX_SIZE {
            return int(fail(errno::ERANGE));
        }
        let size = d.size & !(MAX_SIZE as u32) | (end - start) as u32;
        Dynptr { size, offset: d.offset + start as u32, ..d }.store(dynptr);
    }
    0
}

pub(super) unsafe extern "C" fn is_null(dynptr: u64, _: u64, _: u64, _: u64, _: u64) -> u64 {
    // SAFETY: as above.
    u64::from(unsafe { Dynptr::load(dynptr) }.address == 0)
}

pub(super) unsafe extern "C" fn is_rdonly(dynptr: u64, _: u64, _: u64, _: u64, _: u64) -> u64 {
    // SAFETY: as above.
    let d = unsafe { Dynptr::load(dynptr) };
    u64::from(d.address != 0 && d.size & READ_ONLY != 0)
}

pub(super) unsafe extern "C" fn size(dynptr: u64, _: u64, _: u64, _: u64, _: u64) -> u64 {
    // SAFETY: as above.
    let d = unsafe { Dynptr::load(dynptr) };
    if d.address == 0 { int(fail(errno::EINVAL)) } else { u64::from(d.size) & MAX_SIZE }
}

pub(super) unsafe extern "C" fn clone(dynptr: u64, to: u64, _: u64, _: u64, _: u64) -> u64 {
    // SAFETY: as above, and `to` is sixteen bytes of the stack.
    unsafe {
        let d = Dynptr::load(dynptr);
        d.store(to);
        if d.address == 0 { int(fail(errno::EINVAL)) } else { 0 }
    }
}

/// Copies `len` bytes from one to another, which may be the same.
pub(super) unsafe extern "C" fn copy(
    to: u64,
    to_offset: u64,
    from: u64,
    from_offset: u64,
    len: u64,
) -> u64 {
    // SAFETY: the verifier proved arguments 1 and 3 dynptrs.
    unsafe {
        let (to, from) = (Dynptr::load(to), Dynptr::load(from));
        if to.at(to_offset, len).is_err() || from.at(from_offset, len).is_err() {
            // One that is there and large enough makes the kernel ask the other, which is then
            // found to be nothing.
            let (good_to, good_from) =
                (writable(to, to_offset, len), readable(from, from_offset, len));
            let nothing = good_to.is_ok() && from.address == 0
                || good_from.is_ok() && (to.address == 0 || to.size & READ_ONLY != 0);
            return int(fail(if nothing { errno::EINVAL } else { errno::E2BIG }));
        }
        match (writable(to, to_offset, len), readable(from, from_offset, len)) {
            (Ok(to), Ok(from)) => shift(to, from, int(len)),
            (Err(_), Err(_)) if int(len) == 0 => {}
            (Err(e), _) | (_, Err(e)) => return int(fail(e)),
        }
    }
    0
}

/// Finds bytes to read.
///
/// # Safety
/// What the dynptr describes is there.
unsafe fn readable(d: Dynptr, offset: u64, len: u64) -> Result<u64, i32> {
    // SAFETY: the caller's promise.
    if d.address == 0 { Err(errno::EINVAL) } else { unsafe { bytes(d, offset, len) } }
}

/// Finds bytes to write.
///
/// # Safety
/// As [`readable`].
unsafe fn writable(d: Dynptr, offset: u64, len: u64) -> Result<u64, i32> {
    // SAFETY: the caller's promise.
    if d.size & READ_ONLY != 0 { Err(errno::EINVAL) } else { unsafe { readable(d, offset, len) } }
}

pub(super) unsafe extern "C" fn memset(
    dynptr: u64,
    offset: u64,
    len: u64,
    value: u64,
    _: u64,
) -> u64 {
    // SAFETY: the verifier proved argument 1 a dynptr.
    unsafe {
        let d = Dynptr::load(dynptr);
        if d.size & READ_ONLY != 0 {
            return int(fail(errno::EINVAL));
        }
        match d.at(offset, len).and_then(|_| writable(d, offset, len)) {
            Ok(at) => fill(at, int(len), value as u8),
            Err(errno::EINVAL) if int(len) == 0 => {}
            Err(e) => return int(fail(e)),
        }
    }
    0
}

#[cfg(test)]
mod tests {
    use crate::oracle::{Numbers, Pair, words};

    /// Makes a dynptr of part of the memory, writes, reads and takes the address of a part of it.
    #[test]
    fn dynptrs_of_memory_are_the_kernels() {
        let asm = "lddw %r6, value 1+0\n\
             mov %r1, %r6\nadd %r1, 128\nldxdw %r2, [%r6+64]\nand %r2, 63\nldxdw %r3, [%r6+72]\nmov %r4, %r10\nadd %r4, -16\n\
             call dynptr_from_mem\nstxdw [%r6+0], %r0\n\
             mov %r1, %r10\nadd %r1, -16\nldxdw %r2, [%r6+80]\nmov %r3, %r6\nadd %r3, 192\nldxdw %r4, [%r6+88]\nand %r4, 31\nldxdw %r5, [%r6+96]\n\
             call dynptr_write\nstxdw [%r6+8], %r0\n\
             mov %r1, %r6\nadd %r1, 224\nldxdw %r2, [%r6+104]\nand %r2, 31\nmov %r3, %r10\nadd %r3, -16\nldxdw %r4, [%r6+80]\nldxdw %r5, [%r6+96]\n\
             call dynptr_read\nstxdw [%r6+16], %r0\n\
             mov %r1, %r10\nadd %r1, -16\nldxdw %r2, [%r6+80]\nmov %r3, 8\ncall dynptr_data\njeq %r0, 0, none\n\
             ldxdw %r1, [%r0+0]\nstxdw [%r6+24], %r1\nnone:\nmov %r0, 0\nexit";
        let Some(pair) = Pair::new(asm, b"", 256) else { return };
        let mut n = Numbers(3);
        for _ in 0..2000 {
            let flags = n.pick(&[0, 0, 0, 0, 1]);
            let mut memory = words(&[
                9,
                9,
                9,
                9,
                0,
                0,
                0,
                0,
                n.next() & 63,
                flags,
                n.pick(&[0, 1, 8, 30, 63, 64, u64::MAX]) % 70,
            ]);
            memory.extend(words(&[n.next() & 31, n.pick(&[0, 0, 0, 2]), n.next() & 31]));
            memory.resize(128, 0);
            memory.extend((0..128).map(|_| n.next() as u8));
            pair.same(&memory, "dynptr");
        }
    }

    /// Makes a dynptr of part of the memory, clones, narrows and asks it, copies and fills, and
    /// takes a slice.
    #[test]
    fn functions_of_dynptrs_are_the_kernels() {
        let at = |reg: u32, off: i32| format!("mov %r{reg}, %r10\nadd %r{reg}, {off}\n");
        let word = |reg: u32, off: i32| format!("ldxdw %r{reg}, [%r6+{off}]\n");
        let keep = |off: i32| format!("stxdw [%r6+{off}], %r0\n");
        let keep_bool = |off: i32| format!("stxb [%r6+{off}], %r0\n");
        let keep_int = |off: i32| format!("stxw [%r6+{off}], %r0\n");
        let asm = [
            "lddw %r6, value 1+0\nmov %r1, %r6\nadd %r1, 256\n".to_owned(),
            word(2, 128)
                + "and %r2, 63\n"
                + &word(3, 136)
                + &at(4, -16)
                + "call dynptr_from_mem\n"
                + &keep(0),
            at(1, -16) + &at(2, -32) + "call bpf_dynptr_clone\n" + &keep_int(8),
            at(1, -32) + &word(2, 144) + &word(3, 152) + "call bpf_dynptr_adjust\n" + &keep_int(16),
            at(1, -32) + "call bpf_dynptr_size\n" + &keep_int(24),
            at(1, -32) + "call bpf_dynptr_is_null\n" + &keep_bool(32),
            at(1, -32) + "call bpf_dynptr_is_rdonly\n" + &keep_bool(40),
            at(1, -16)
                + &word(2, 160)
                + &at(3, -32)
                + &word(4, 168)
                + &word(5, 176)
                + "call bpf_dynptr_copy\n"
                + &keep_int(48),
            at(1, -32)
                + &word(2, 184)
                + &word(3, 192)
                + "mov %r4, 0x7a\ncall bpf_dynptr_memset\n"
                + &keep_int(56),
            at(1, -32)
                + &word(2, 200)
                + "mov %r3, 0\nmov %r4, 8\ncall bpf_dynptr_slice\njeq %r0, 0, none\n",
            "ldxdw %r1, [%r0+0]\nstxdw [%r6+64], %r1\nnone:\nmov %r0, 0\nexit".to_owned(),
        ];
        let Some(pair) = Pair::new(&asm.concat(), b"", 512) else { return };
        let mut n = Numbers(5);
        for _ in 0..5000 {
            let mut memory = vec![0; 128];
            let odd = [0, 1, 8, 40, 63, 64, 0xff_ffff, 1 << 24, u64::from(u32::MAX)];
            let mut some = |most: u64| if n.below(8) == 0 { n.pick(&odd) } else { n.next() % most };
            let (start, end) = (some(20), some(64));
            memory.extend(words(&[
                some(64),
                u64::from(some(8) == 1),
                start,
                end,
                some(40),
                some(20),
                some(24),
                some(20),
                some(30),
                some(50),
                some(64),
            ]));
            memory.resize(256, 0);
            memory.extend((0..256).map(|_| n.next() as u8));
            pair.same(&memory, "dynptr");
        }
    }
}
