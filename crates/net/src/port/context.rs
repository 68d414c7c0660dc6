//! The context of XDP programs that run on frames of a batch, where these lie.
//!
//! The layout is that of [`crate::packet`]; this context owns no packet, it is pointed at one frame
//! after the other.

use std::cell::UnsafeCell;

use skep_helpers::packet::View;
use skep_isa::ctx::{packet as word, sk_buff};

use super::batch::{Batch, Layout, TAILROOM};
use crate::redirect::{self, Entry, Redirect};

const WORDS_BELOW: usize = word::BELOW as usize / 8;
/// Helpers take any packet context for the largest.
const WORDS_CTX: usize = sk_buff::SIZE as usize / 8;

/// Offsets in `struct xdp_md`.
mod md {
    pub(super) const INGRESS_IFINDEX: u32 = 12;
    pub(super) const RX_QUEUE_INDEX: u32 = 16;
    pub(super) const EGRESS_IFINDEX: u32 = 20;
}

#[repr(C, align(64))]
struct Words {
    below: [UnsafeCell<u64>; WORDS_BELOW],
    ctx: [UnsafeCell<u64>; WORDS_CTX],
}

/// A context for one program after the other, and one frame after the other.
pub struct Context {
    words: Box<Words>,
    egress: u32,
    layout: Layout,
}

// SAFETY: plain memory that this value owns.
unsafe impl Send for Context {}

impl std::fmt::Debug for Context {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Context").finish_non_exhaustive()
    }
}

impl Default for Context {
    fn default() -> Self {
        Self::new()
    }
}

impl Context {
    /// Makes a context that points at nothing yet.
    #[must_use]
    pub fn new() -> Self {
        let words = Box::new(Words {
            below: std::array::from_fn(|_| UnsafeCell::new(0)),
            ctx: std::array::from_fn(|_| UnsafeCell::new(0)),
        });
        let _ = std::ptr::from_ref(&*words).expose_provenance();
        Self { words, egress: 0, layout: Layout::default() }
    }

    fn ctx(&self) -> *mut u8 {
        let words = std::ptr::from_ref(&*self.words).cast_mut().cast::<u8>();
        words.wrapping_add(word::BELOW as usize)
    }

    /// Says which interface frames go to, from now on: for programs in the entries of device maps.
    pub fn set_egress(&mut self, ifindex: u32) {
        self.egress = ifindex;
    }

    /// Says what frames have in common, from now on. Programs behind a redirect get no metadata.
    pub fn set_layout(&mut self, layout: Layout) {
        self.layout = layout;
    }

    /// Points the context at a frame, calls `run` with it (what goes into r1), and notes in the
    /// batch where the frame lies then. Returns what `run` did; `None` when there is no such frame.
    ///
    /// `may_fragment` says that the program takes packets of several pages; of larger frames, other
    /// programs reach what is on the first.
    #[inline]
    pub fn with<R>(
        &mut self,
        batch: &mut Batch,
        index: usize,
        may_fragment: bool,
        run: impl FnOnce(*mut u8) -> R,
    ) -> Option<R> {
        let (at, meta) = batch.place(index)?;
        let base = batch.buffer_mut().as_mut_ptr().expose_provenance() as u64;
        let slot = base + u64::from(at.slot);
        let data = base + u64::from(at.data);
        let hard_end = slot + u64::from(self.layout.page) - TAILROOM as u64;
        let end = data + u64::from(at.len);
        let data_end = end.min(hard_end.max(data));
        let fragments = if may_fragment { word::MAY_FRAGMENT } else { 0 };
        // SAFETY: this context, whose words and fields are all there, and which nobody else uses
        // during the call.
        let view = unsafe { View::of(self.ctx() as u64) };
        view.set(word::KIND, word::XDP | fragments);
        view.set(word::HARD_START, slot);
        view.set(word::HARD_END, hard_end);
        view.set(word::ROOM_END, slot + u64::from(at.size));
        view.set(word::DATA_META, data - u64::from(self.layout.metadata));
        view.set(word::DATA, data);
        view.set(word::DATA_END, data_end);
        view.set(word::FRAGMENTS, end - data_end);
        view.set_field(md::INGRESS_IFINDEX, meta.port);
        view.set_field(md::RX_QUEUE_INDEX, meta.queue);
        view.set_field(md::EGRESS_IFINDEX, self.egress);
        redirect::forget();
        let done = run(self.ctx());
        let (start, len) = (view.data().wrapping_sub(base), view.len());
        if start != u64::from(at.data) || len != u64::from(at.len) {
            let narrow = |n| u32::try_from(n).unwrap_or(u32::MAX);
            let moved = batch.set_bounds(index, narrow(start), narrow(len));
            debug_assert!(moved, "helpers keep a packet inside its room");
        }
        Some(done)
    }

    /// Returns what the map's entry has that the program that ran last redirected to; `None` when it
    /// redirected to no entry.
    #[must_use]
    #[inline]
    pub fn entry(&self) -> Option<Entry> {
        redirect::entry()
    }

    /// Tells where the program that ran last asked to send its packet; `None` when it did not ask.
    ///
    /// # Safety
    /// It ran on this thread, and its maps are still there.
    #[must_use]
    #[inline]
    pub unsafe fn redirect(&self) -> Option<Redirect<'_>> {
        // SAFETY: the caller's promise.
        unsafe { redirect::asked() }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::port::batch::{HEADROOM, Meta};

    /// Looks at the packet as a helper does.
    fn view<'a>(ctx: *mut u8) -> View<'a> {
        // SAFETY: only called inside `Context::with`.
        unsafe { View::of(ctx as u64) }
    }

    #[test]
    fn a_context_points_at_the_frame_and_its_changes_are_kept() {
        let (mut batch, mut context) = (Batch::new(), Context::new());
        let meta = Meta { port: 7, queue: 2, ..Meta::default() };
        assert!(batch.push(Meta::default(), &[1; 64]) && batch.push(meta, b"0123456789abcdefgh"));
        let seen = context.with(&mut batch, 1, false, |ctx| {
            let p = view(ctx);
            let seen = (p.len(), p.data() - p.get(word::HARD_START), p.field(12), p.field(16));
            p.set(word::DATA, p.data() + 4);
            p.set(word::DATA_END, p.data_end() + 2);
            seen
        });
        assert_eq!(seen, Some((18, HEADROOM as u64, 7, 2)));
        assert_eq!(batch.frame(1).map(|f| f.bytes.to_vec()), Some(b"456789abcdefgh\0\0".to_vec()));
        assert_eq!(batch.frame(0).map(|f| f.bytes.len()), Some(64));
        assert_eq!(context.with(&mut batch, 2, false, |_| ()), None);
    }

    #[test]
    fn a_large_frame_has_fragments_behind_its_first_page() {
        let (mut batch, mut context) = (Batch::new(), Context::new());
        assert!(batch.push(Meta::default(), &[9; 9000]));
        let seen = context.with(&mut batch, 0, true, |ctx| {
            let p = view(ctx);
            (p.data_end() - p.data(), p.get(word::FRAGMENTS), p.len(), p.at(8999, 1).is_some())
        });
        assert_eq!(seen, Some((3520, 5480, 9000, true)));
    }
}
