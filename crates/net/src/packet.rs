//! A packet in memory, and the context that packet programs get with it.
//!
//! ```text
//!  hard start        meta      data                data end        hard end
//!      │  headroom    │ metadata │  bytes by pointer   │ fragments…     │
//!      └──────────────┴──────────┴─────────────────────┴────────────────┘
//! ```
//!
//! The context is the UAPI structure (`struct xdp_md`, `struct __sk_buff`), the addresses stand in
//! words below it ([`skep_isa::ctx::packet`]). Fragments lie right behind the bytes that pointers
//! reach, so the whole packet is one run of bytes from data on; only helpers get beyond data end.
//!
//! [`Packet`] owns such a packet; [`View`] is what a helper makes of its context argument: nothing
//! but loads and stores of words, fit for the event path.

use std::cell::UnsafeCell;

pub use skep_helpers::packet::View;
use skep_isa::ctx::{SOCK, packet as word, sk_buff};

const WORDS_BELOW: usize = word::BELOW as usize / 8;
const WORDS_CTX: usize = sk_buff::SIZE as usize / 8;

/// Words of what the context points to besides the packet: a `struct bpf_sock`, or `struct
/// bpf_flow_keys`.
const WORDS_BESIDE: usize = SOCK.size as usize / 8;

/// The words below the context, the context, and what it points to.
#[repr(C, align(64))]
struct Frame {
    below: [UnsafeCell<u64>; WORDS_BELOW],
    ctx: [UnsafeCell<u64>; WORDS_CTX],
    beside: [UnsafeCell<u64>; WORDS_BESIDE],
}

/// A packet with room around it, and its context.
pub struct Packet {
    frame: Box<Frame>,
    /// Never moved: the frame has its address. Zero where nothing was put.
    room: Box<[UnsafeCell<u64>]>,
}

// SAFETY: plain memory that this value owns; the addresses in it are of its own boxes.
unsafe impl Send for Packet {}

impl std::fmt::Debug for Packet {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Packet").field("room", &(self.room.len() * 8)).finish_non_exhaustive()
    }
}

/// Where the parts of a new packet lie, in bytes from the start of the buffer.
#[derive(Clone, Copy, Debug)]
pub struct Shape {
    /// Which context it has: [`word::XDP`] or [`word::SKB`], perhaps with [`word::MAY_FRAGMENT`].
    pub kind: u64,
    /// First byte of the metadata.
    pub meta: usize,
    /// First byte of the packet.
    pub data: usize,
    /// Bytes of the packet that pointers reach; what else is given are fragments.
    pub linear: usize,
    /// End of the room that the packet may grow into.
    pub hard_end: usize,
    /// Bytes of the buffer.
    pub size: usize,
}

impl Packet {
    /// Makes a packet: `bytes` are the metadata and then the packet. `None` when they do not fit
    /// the shape.
    #[must_use]
    pub fn new(shape: &Shape, bytes: &[u8]) -> Option<Self> {
        let end = shape.meta.checked_add(bytes.len())?;
        let data_end = shape.data.checked_add(shape.linear)?;
        let ordered = shape.meta <= shape.data && data_end <= end && data_end <= shape.hard_end;
        if !ordered || end > shape.size || shape.hard_end > shape.size {
            return None;
        }
        let words = vec![0u64; shape.size.div_ceil(8)].into_boxed_slice();
        // SAFETY: `UnsafeCell<u64>` has the layout of `u64`.
        let room = unsafe { Box::from_raw(Box::into_raw(words) as *mut [UnsafeCell<u64>]) };
        let zero = || UnsafeCell::new(0);
        let frame = Box::new(Frame {
            below: std::array::from_fn(|_| zero()),
            ctx: std::array::from_fn(|_| zero()),
            beside: std::array::from_fn(|_| zero()),
        });
        let packet = Self { frame, room };
        let base = packet.room.as_ptr().expose_provenance() as u64;
        let view = packet.view();
        view.set(word::KIND, shape.kind);
        view.set(word::HARD_START, base);
        view.set(word::HARD_END, base + shape.hard_end as u64);
        view.set(word::ROOM_END, base + shape.size as u64);
        view.set(word::DATA_META, base + shape.meta as u64);
        view.set(word::DATA, base + shape.data as u64);
        view.set(word::DATA_END, base + data_end as u64);
        view.set(word::FRAGMENTS, (end - data_end) as u64);
        // SAFETY: `meta` to `end` is inside the room (checked above), which nobody else has yet.
        unsafe {
            std::ptr::copy_nonoverlapping(
                bytes.as_ptr(),
                (base as *mut u8).add(shape.meta),
                bytes.len(),
            )
        };
        Some(packet)
    }

    /// Returns the context: what goes into r1.
    #[must_use]
    pub fn ctx(&self) -> *mut u8 {
        let _ = std::ptr::from_ref(&*self.frame).expose_provenance();
        // SAFETY: the context begins that many bytes into the frame; the pointer is made from the
        // whole frame, so that it also reaches the words below.
        unsafe {
            std::ptr::from_ref(&*self.frame).cast_mut().cast::<u8>().add(word::BELOW as usize)
        }
    }

    /// Returns what helpers see.
    #[must_use]
    pub fn view(&self) -> View<'_> {
        // SAFETY: this packet's context; the view borrows the packet.
        unsafe { View::of(self.ctx() as u64) }
    }

    /// Makes the eight-byte context field at `off` point to these bytes, of which there are at most
    /// those of a `struct bpf_sock`.
    pub fn point(&self, off: u32, bytes: &[u8]) {
        for (word, chunk) in self.frame.beside.iter().zip(bytes.chunks(8)) {
            let mut whole = [0; 8];
            whole.iter_mut().zip(chunk).for_each(|(to, from)| *to = *from);
            // SAFETY: as for `context`.
            unsafe { word.get().write_volatile(u64::from_ne_bytes(whole)) };
        }
        if let Some(field) = self.frame.ctx.get(off as usize / 8) {
            // SAFETY: as above.
            unsafe {
                field.get().write_volatile(self.frame.beside.as_ptr().expose_provenance() as u64)
            };
        }
    }

    /// Copies the first of these bytes out.
    pub fn pointed(&self, len: usize) -> Vec<u8> {
        // SAFETY: as for `context`.
        let words = self.frame.beside.iter().map(|w| unsafe { w.get().read_volatile() });
        let mut bytes: Vec<u8> = words.flat_map(u64::to_ne_bytes).collect();
        bytes.truncate(len);
        bytes
    }

    /// Copies the first bytes of the context out.
    #[must_use]
    pub fn context(&self, len: usize) -> Vec<u8> {
        let words = self.frame.ctx.iter().map(|w| {
            // SAFETY: no program runs while `self` is borrowed here: running takes the context
            // pointer's owner along.
            unsafe { w.get().read_volatile() }
        });
        let mut bytes: Vec<u8> = words.flat_map(u64::to_ne_bytes).collect();
        bytes.truncate(len);
        bytes
    }

    /// Copies metadata and packet out, with the fragments.
    #[must_use]
    pub fn bytes(&self) -> Vec<u8> {
        let view = self.view();
        self.copy(view.data_meta(), view.end())
    }

    /// Copies the packet out, without metadata and with the fragments.
    #[must_use]
    pub fn payload(&self) -> Vec<u8> {
        let view = self.view();
        self.copy(view.data(), view.end())
    }

    /// Copies bytes out of the room; what lies outside of it is left away.
    fn copy(&self, from: u64, to: u64) -> Vec<u8> {
        let base = self.room.as_ptr().addr() as u64;
        let end = base + self.room.len() as u64 * 8;
        let (from, to) = (from.clamp(base, end), to.clamp(base, end));
        let len = to.saturating_sub(from) as usize;
        let mut out = vec![0; len];
        // SAFETY: `from` and `from + len` are inside the room; the vector has `len` bytes.
        unsafe { std::ptr::copy_nonoverlapping(from as *const u8, out.as_mut_ptr(), len) };
        out
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn packet() -> Packet {
        let shape =
            Shape { kind: word::XDP, meta: 252, data: 256, linear: 4, hard_end: 300, size: 400 };
        Packet::new(&shape, b"metaABCDefgh").expect("it fits")
    }

    #[test]
    fn a_packet_lies_where_its_shape_says() {
        let packet = packet();
        let view = packet.view();
        assert_eq!(packet.bytes(), b"metaABCDefgh");
        assert_eq!(packet.payload(), b"ABCDefgh");
        assert_eq!(
            (view.data() - view.data_meta(), view.data_end() - view.data(), view.len()),
            (4, 4, 8)
        );
        assert_eq!(
            (view.data() - view.get(word::HARD_START), view.get(word::HARD_END) - view.data()),
            (256, 44)
        );
        assert!(view.is_xdp());
        assert_eq!(view.at(4, 4).map(|p| p as u64), Some(view.data_end()));
        assert_eq!((view.at(5, 4), view.at(9, 0), view.at(0, u64::MAX)), (None, None, None));
    }

    #[test]
    fn the_context_is_zero_and_keeps_what_is_stored() {
        let packet = packet();
        assert_eq!(packet.context(24), [0; 24]);
        packet.view().set_field(12, 7);
        packet.view().set_field(4000, 9);
        assert_eq!((packet.view().field(12), packet.context(16)[12]), (7, 7));
    }

    #[test]
    fn a_shape_that_its_bytes_do_not_fit_is_refused() {
        let fits = |meta, data, linear, hard_end, size| {
            Packet::new(&Shape { kind: word::XDP, meta, data, linear, hard_end, size }, &[1; 20])
                .is_some()
        };
        assert!(fits(0, 0, 20, 20, 20));
        assert!(!fits(0, 0, 20, 20, 19));
        assert!(!fits(0, 0, 21, 40, 40));
        assert!(!fits(8, 4, 20, 40, 40));
        assert!(!fits(usize::MAX, 4, 20, 40, 40));
        assert!(!fits(0, 0, 20, 41, 40));
    }
}
