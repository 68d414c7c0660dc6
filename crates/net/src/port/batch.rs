//! A batch of frames: one buffer, and where in it each frame lies.
//!
//! ```text
//!  slot 0                                  slot 1
//!  ┌──────────┬───────────────┬───────────┬──────────┬─────────
//!  │ headroom │ frame         │ room      │ headroom │ frame …
//!  │ 256      │ len           │ to 4,096  │          │
//!  └──────────┴───────────────┴───────────┴──────────┴─────────
//! ```
//!
//! A slot is a page and 128 bytes, so that the first bytes of all frames do not compete for
//! the same lines of a cache. A frame that is too large for a page takes as much as it needs, and
//! is followed by fewer others.
//!
//! The room around a frame holds what earlier packets left there, as in a driver's pages. Sources that
//! count on that make their batches themselves ([`Batch::of_pages`]).

/// Bytes of an Ethernet header (`ETH_HLEN`); no frame is shorter.
pub const ETH_HLEN: usize = 14;
/// Bytes before a frame (`XDP_PACKET_HEADROOM`).
pub const HEADROOM: usize = 256;
/// Bytes at the end of a page that the kernel keeps for itself
/// (`SKB_DATA_ALIGN(sizeof(struct skb_shared_info))`).
pub const TAILROOM: usize = 320;
/// What the first part of a frame lies in.
pub const PAGE: usize = 4096;
/// Most bytes of a frame: what libpcap allows a packet of a file (`MAXIMUM_SNAPLEN`).
pub const MAX_FRAME: usize = 262_144;
/// Most frames of a batch.
pub const MAX_FRAMES: usize = 64;

/// Bytes between pages.
const STAGGER: usize = 128;
const SLOT: usize = PAGE + STAGGER;
/// Room for a batch of small frames, or one of the largest.
const SIZE: usize = {
    let (small, large) = (MAX_FRAMES * SLOT, HEADROOM + MAX_FRAME + PAGE + STAGGER);
    if small > large { small } else { large }
};

/// What is known of a frame besides its bytes.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Meta {
    /// When it was received, in nanoseconds since 1970; 0: not known.
    pub ns: u64,
    /// Bytes that it had on the wire: more than there are, when it was cut at capture.
    pub wire_len: u32,
    /// The port it came from.
    pub port: u32,
    /// The receive queue of that port.
    pub queue: u32,
}

impl Meta {
    /// Returns what is known of the frame when it has another length: what it had on the wire grows
    /// or shrinks alike, so that only a frame that was cut at capture looks like one.
    #[must_use]
    pub fn resized(self, from: u32, to: u32) -> Self {
        let wire = i64::from(self.wire_len.max(from)) + i64::from(to) - i64::from(from);
        Self { wire_len: u32::try_from(wire).unwrap_or(u32::MAX), ..self }
    }
}

/// Where a frame lies in its batch, in bytes from the start of the buffer.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Bounds {
    /// First byte of its slot.
    pub slot: u32,
    /// First byte of the frame.
    pub data: u32,
    /// Bytes of the frame.
    pub len: u32,
    /// Bytes of its slot.
    pub size: u32,
}

/// What all frames of a batch have in common.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Layout {
    /// Bytes of metadata right before each frame, of at most [`HEADROOM`].
    pub metadata: u32,
    /// Bytes of the page that the first part of a frame lies in, of which the last [`TAILROOM`] are not
    /// for programs; at most [`PAGE`].
    pub page: u32,
}

impl Default for Layout {
    fn default() -> Self {
        Self { metadata: 0, page: PAGE as u32 }
    }
}

#[derive(Clone, Copy, Debug, Default)]
struct Slot {
    bounds: Bounds,
    meta: Meta,
}

/// A frame of a batch, to read.
#[derive(Clone, Copy, Debug)]
pub struct Frame<'a> {
    /// Its bytes.
    pub bytes: &'a [u8],
    /// What else is known of it.
    pub meta: Meta,
}

/// Frames that are handled together.
///
/// ```
/// use skep_net::port::batch::{Batch, Meta};
///
/// let mut batch = Batch::new();
/// assert!(batch.push(Meta { port: 1, ..Meta::default() }, b"a frame"));
/// assert_eq!(batch.frame(0).map(|f| f.bytes), Some(&b"a frame"[..]));
/// batch.clear();
/// assert!(batch.is_empty());
/// ```
#[derive(Debug)]
pub struct Batch {
    buffer: Box<[u8]>,
    /// Of which the first `len` have frames.
    slots: Box<[Slot]>,
    len: usize,
    /// Where the next slot begins.
    next: usize,
    limit: usize,
    layout: Layout,
}

impl Default for Batch {
    fn default() -> Self {
        Self::new()
    }
}

impl Batch {
    /// Makes an empty batch with all its memory.
    #[must_use]
    pub fn new() -> Self {
        Self::with_limit(MAX_FRAMES)
    }

    /// Makes a batch that takes at most `limit` frames, which is 1 to [`MAX_FRAMES`].
    #[must_use]
    pub fn with_limit(limit: usize) -> Self {
        let mut batch = Self::of_size(SIZE, Layout::default());
        batch.set_limit(limit);
        batch
    }

    /// Makes an empty batch whose memory is that many pages, for frames that fit one. It takes as many
    /// frames as every batch, each on the page that [`Batch::lay_on`] says.
    #[must_use]
    pub fn of_pages(pages: usize, layout: Layout) -> Self {
        let page = layout.page.clamp(TAILROOM as u32, PAGE as u32);
        let metadata = layout.metadata.min(HEADROOM as u32);
        Self::of_size(pages * SLOT, Layout { metadata, page })
    }

    fn of_size(bytes: usize, layout: Layout) -> Self {
        Self {
            buffer: vec![0; bytes].into_boxed_slice(),
            slots: vec![Slot::default(); MAX_FRAMES].into_boxed_slice(),
            len: 0,
            next: 0,
            limit: MAX_FRAMES,
            layout,
        }
    }

    /// Lets the next frame lie on this page, which none of the batch's frames does.
    pub fn lay_on(&mut self, page: usize) {
        self.next = page * SLOT;
    }

    /// Returns what all frames have in common.
    #[inline]
    #[must_use]
    pub fn layout(&self) -> Layout {
        self.layout
    }

    /// Takes at most `limit` frames from now on, which is 1 to [`MAX_FRAMES`].
    pub fn set_limit(&mut self, limit: usize) {
        self.limit = limit.clamp(1, MAX_FRAMES);
    }

    /// Counts the frames.
    #[inline]
    #[must_use]
    pub fn len(&self) -> usize {
        self.len
    }

    /// Tells whether there are no frames.
    #[inline]
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Tells whether a frame of `len` bytes still fits.
    #[inline]
    #[must_use]
    pub fn has_room(&self, len: usize) -> bool {
        self.len < self.limit && self.next + slot_size(len) <= self.buffer.len()
    }

    /// Forgets all frames.
    #[inline]
    pub fn clear(&mut self) {
        self.len = 0;
        self.next = 0;
    }

    /// Adds a frame; `false` when it does not fit, as [`Batch::has_room`] tells before. An empty
    /// batch has room for every frame of at most [`MAX_FRAME`] bytes.
    #[inline(always)]
    #[must_use]
    pub fn push(&mut self, meta: Meta, bytes: &[u8]) -> bool {
        let Some(room) = self.reserve(meta, bytes.len()) else { return false };
        copy(room, bytes);
        true
    }

    /// Adds a frame of `len` bytes and returns where they go; `None` when it does not fit. They are
    /// what an earlier frame left there until they are written.
    //
    // Inlined, as `meta` then comes in registers. To a call it goes through memory, written field by
    // field and read as a whole at once, which a processor cannot forward: 4 ns a frame.
    #[inline(always)]
    pub fn reserve(&mut self, meta: Meta, len: usize) -> Option<&mut [u8]> {
        if !self.has_room(len) {
            return None;
        }
        let (slot, size) = (self.next, slot_size(len));
        let data = slot + HEADROOM;
        let room = self.buffer.get_mut(data..data + len)?;
        let of = self.slots.get_mut(self.len)?;
        of.bounds.slot = slot as u32;
        of.bounds.data = data as u32;
        of.bounds.len = len as u32;
        of.bounds.size = (size - STAGGER) as u32;
        of.meta = meta;
        self.len += 1;
        self.next = slot + size;
        Some(room)
    }

    /// Shortens the last frame to what came, on the wire too: more was reserved than needed.
    pub fn shorten_last(&mut self, len: usize) {
        if let Some(last) = self.used_mut().last_mut() {
            last.bounds.len = last.bounds.len.min(u32::try_from(len).unwrap_or(u32::MAX));
            last.meta.wire_len = last.bounds.len;
        }
    }

    /// Takes the last frame back.
    pub fn pop(&mut self) {
        if let Some(last) = self.used().last() {
            self.next = last.bounds.slot as usize;
            self.len -= 1;
        }
    }

    #[inline]
    fn used(&self) -> &[Slot] {
        self.slots.get(..self.len).unwrap_or_default()
    }

    #[inline]
    fn used_mut(&mut self) -> &mut [Slot] {
        self.slots.get_mut(..self.len).unwrap_or_default()
    }

    /// Returns a frame by its number.
    #[inline]
    #[must_use]
    pub fn frame(&self, index: usize) -> Option<Frame<'_>> {
        let slot = self.used().get(index)?;
        let start = slot.bounds.data as usize;
        let bytes = self.buffer.get(start..start + slot.bounds.len as usize)?;
        Some(Frame { bytes, meta: slot.meta })
    }

    /// Returns all frames in order.
    pub fn frames(&self) -> impl Iterator<Item = Frame<'_>> {
        (0..self.len()).filter_map(|index| self.frame(index))
    }

    /// Counts the bytes of all frames.
    #[inline]
    #[must_use]
    pub fn bytes(&self) -> u64 {
        self.used().iter().map(|slot| u64::from(slot.bounds.len)).sum()
    }

    /// Returns what is known of a frame besides its bytes.
    #[inline]
    #[must_use]
    pub fn meta(&self, index: usize) -> Option<Meta> {
        self.used().get(index).map(|slot| slot.meta)
    }

    /// Returns where a frame lies.
    #[inline]
    #[must_use]
    pub fn bounds(&self, index: usize) -> Option<Bounds> {
        self.used().get(index).map(|slot| slot.bounds)
    }

    /// Returns where a frame lies, and what else is known of it.
    #[inline]
    pub(super) fn place(&self, index: usize) -> Option<(Bounds, Meta)> {
        self.used().get(index).map(|slot| (slot.bounds, slot.meta))
    }

    /// Says where a frame lies now that a program has moved its ends; `false` when that is not
    /// inside its slot, and the frame stays as it was.
    #[inline]
    #[must_use]
    pub fn set_bounds(&mut self, index: usize, data: u32, len: u32) -> bool {
        let Some(slot) = self.used_mut().get_mut(index) else { return false };
        let end = u64::from(data) + u64::from(len);
        let of = slot.bounds;
        let fits = data >= of.slot && end <= u64::from(of.slot) + u64::from(of.size);
        if fits {
            slot.meta = slot.meta.resized(of.len, len);
            slot.bounds.data = data;
            slot.bounds.len = len;
        }
        fits
    }

    /// Returns the whole buffer, for a program that runs on a frame of it.
    #[inline]
    pub fn buffer_mut(&mut self) -> &mut [u8] {
        &mut self.buffer
    }
}

/// Copies a frame. Small ones without a call: as two parts of a fixed length, which may overlap.
#[inline]
fn copy(to: &mut [u8], from: &[u8]) {
    fn parts<const N: usize>(to: &mut [u8], from: &[u8]) -> bool {
        let first = to.first_chunk_mut::<N>().zip(from.first_chunk());
        let is_done = first.map(|(to, from)| *to = *from).is_some();
        if let Some((to, from)) = to.last_chunk_mut::<N>().zip(from.last_chunk()) {
            *to = *from;
        }
        is_done
    }
    let is_done = match from.len() {
        32..=64 => parts::<32>(to, from),
        65..=128 => parts::<64>(to, from),
        _ => false,
    };
    if !is_done {
        to.copy_from_slice(from);
    }
}

/// Bytes that a frame of this length takes of the buffer.
#[inline]
fn slot_size(len: usize) -> usize {
    if len <= PAGE - HEADROOM - TAILROOM {
        return SLOT;
    }
    // The part behind the first page is followed by the room of a last page, as fragments are.
    (HEADROOM + len + TAILROOM).next_multiple_of(PAGE).max(2 * PAGE) + STAGGER
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn small_frames_fill_a_batch_and_large_ones_fewer() {
        let mut batch = Batch::new();
        let mut n = 0;
        while batch.push(Meta::default(), &[n as u8; 64]) {
            n += 1;
        }
        assert_eq!((n, batch.len()), (MAX_FRAMES, MAX_FRAMES));
        assert_eq!(batch.bytes(), 64 * MAX_FRAMES as u64);
        assert_eq!(batch.frame(7).map(|f| f.bytes.to_vec()), Some(vec![7; 64]));
        assert!(batch.frame(MAX_FRAMES).is_none());
        batch.clear();
        assert!(batch.push(Meta::default(), &[1; MAX_FRAME]));
        assert!(!batch.has_room(MAX_FRAME));
        batch.clear();
        assert!(!batch.push(Meta::default(), &[1; MAX_FRAME + PAGE]));
        assert!(batch.is_empty());
    }

    #[test]
    fn frames_of_every_length_are_copied() {
        let bytes: Vec<u8> = (0..2000).map(|n| (n * 7 + n / 256) as u8).collect();
        let mut batch = Batch::new();
        for len in 0..=2000 {
            batch.clear();
            assert!(batch.push(Meta::default(), &[0xee; 2000]));
            batch.clear();
            assert!(batch.push(Meta::default(), &bytes[..len]));
            assert_eq!(batch.frame(0).map(|f| f.bytes), Some(&bytes[..len]));
            let behind = batch.buffer.get(HEADROOM + len..HEADROOM + 2000);
            assert!(behind.is_some_and(|behind| behind.iter().all(|b| *b == 0xee)), "{len}");
        }
    }

    #[test]
    fn no_two_frames_overlap_whatever_their_lengths() {
        let mut batch = Batch::new();
        for len in [0, 1, 64, 1514, 3520, 3521, 9000, 65_536, 0, 4096, 100] {
            if !batch
                .push(Meta { wire_len: len, ..Meta::default() }, &vec![len as u8; len as usize])
            {
                assert!(batch.len() > 8);
                break;
            }
        }
        for frame in batch.frames() {
            assert_eq!(frame.bytes.len(), frame.meta.wire_len as usize);
            assert!(frame.bytes.iter().all(|b| *b == frame.meta.wire_len as u8));
        }
        let all: Vec<_> = (0..batch.len()).filter_map(|i| batch.bounds(i)).collect();
        for pair in all.windows(2) {
            assert!(pair[0].slot + pair[0].size <= pair[1].slot, "{pair:?}");
        }
    }

    #[test]
    fn a_frame_moves_inside_its_slot_only() {
        let mut batch = Batch::new();
        assert!(batch.push(Meta::default(), &[1; 60]) && batch.push(Meta::default(), &[2; 60]));
        let at = batch.bounds(1).expect("it is there");
        assert!(batch.set_bounds(1, at.slot, 316));
        assert_eq!(batch.frame(1).map(|f| f.bytes.len()), Some(316));
        assert!(batch.set_bounds(1, at.data, 4096 - 256));
        assert!(!batch.set_bounds(1, at.data, 4096 - 255));
        assert!(!batch.set_bounds(1, at.slot - 1, 60));
        assert!(!batch.set_bounds(1, u32::MAX, u32::MAX));
        assert!(!batch.set_bounds(2, at.data, 60));
        assert_eq!(batch.frame(1).map(|f| f.bytes.len()), Some(4096 - 256));
    }
}
