//! Live frames (`BPF_F_TEST_XDP_LIVE_FRAMES`): one packet again and again, as if a driver received it, and
//! each goes where the program sends it.

use std::ops::RangeInclusive;
use std::time::Duration;

use skep_isa::AttachType;

use super::xdp::Given;
use super::{Cause, Errno, Input, check_packet};
use crate::port::batch::{ETH_HLEN, HEADROOM, Layout, Meta, PAGE, TAILROOM};
use crate::port::{Batch, PortError, Received, Source};

/// Frames of a batch, unless told otherwise (`NAPI_POLL_WEIGHT`).
pub const DEFAULT_BATCH: u32 = 64;
/// Most frames of a batch (`TEST_XDP_MAX_BATCH`).
pub const MAX_BATCH: u32 = 256;
/// Bytes at the beginning of a page that are the kernel's own (`sizeof(struct xdp_page_head)`).
const PAGE_HEAD: usize = 112;
/// What is left of a page (`TEST_XDP_FRAME_SIZE`).
const FRAME: usize = PAGE - PAGE_HEAD;
/// Bytes of a live frame, behind its metadata.
pub const SIZES: RangeInclusive<usize> = ETH_HLEN..=FRAME - HEADROOM - TAILROOM;
/// Pages that the kernel's pool takes at first (`PP_ALLOC_CACHE_REFILL`).
const PAGES: usize = 64;

/// A source of one packet, as often as [`Input::repeat`] says.
///
/// As in the kernel, frames lie on pages that are used again. Only where a frame begins and ends is as it was
/// each time; what a program wrote is still there. The first 64 frames have a page each; after that, as many
/// pages as are in a batch, but at most 64, are used in turn, to and fro, as those of dropped frames are in
/// the kernel.
///
/// ```
/// use skep_net::port::{Outputs, Until, Verdict, pump};
/// use skep_net::test_run::{Input, LiveFrames};
///
/// let input = Input { repeat: 1000, ..Input::data(&[0; 64]) };
/// let mut frames = LiveFrames::new(&input, 0)?;
/// let stats = pump(&mut frames, &mut Outputs::new(), &Until::default(), |batch, verdicts| {
///     (0..batch.len()).for_each(|n| verdicts.set(n, Verdict::Drop));
///     std::ops::ControlFlow::Continue(())
/// })?;
/// assert_eq!(stats.packets, 1000);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[doc(alias = "BPF_F_TEST_XDP_LIVE_FRAMES")]
#[derive(Debug)]
pub struct LiveFrames {
    /// Metadata and packet.
    data: Vec<u8>,
    layout: Layout,
    meta: Meta,
    /// Frames of a batch, and pages that are used again.
    batch: usize,
    /// Frames so far, and in all.
    next: u64,
    end: u64,
}

impl LiveFrames {
    /// Takes the packet, its context and how often it comes; 0 is once. A batch of 0 frames has
    /// [`DEFAULT_BATCH`].
    ///
    /// # Errors
    /// With [`Errno::E2BIG`] when a batch has more frames than [`MAX_BATCH`], with [`Errno::EINVAL`] when
    /// the packet does not fit a page, and otherwise as a test run of an XDP program.
    pub fn new(input: &Input<'_>, batch_size: u32) -> Result<Self, Errno> {
        Self::of(None, input, batch_size)
    }

    /// Does the same for a program of an attach type: those of map entries have no test run.
    ///
    /// # Errors
    /// As [`LiveFrames::new`].
    pub fn of(
        attach_type: Option<AttachType>,
        input: &Input<'_>,
        batch_size: u32,
    ) -> Result<Self, Errno> {
        let batch = if batch_size == 0 { DEFAULT_BATCH } else { batch_size };
        if batch > MAX_BATCH {
            return Err(Errno::E2BIG.because(Cause::Batch));
        }
        let given = Given::new(attach_type, input, FRAME)?;
        let data = input.data.unwrap_or_default();
        check_packet(data.len(), 0..=given.linear)?;
        let (port, queue) = given.queue;
        let wire_len = (data.len() - given.meta) as u32;
        Ok(Self {
            data: data.to_vec(),
            layout: Layout { metadata: given.meta as u32, page: FRAME as u32 },
            meta: Meta { ns: 0, wire_len, port, queue },
            batch: PAGES.min(batch as usize),
            next: 0,
            end: u64::from(input.repeat.max(1)),
        })
    }

    /// Returns the number of the interface that the packets come from.
    #[must_use]
    pub fn port(&self) -> u32 {
        self.meta.port
    }
}

impl LiveFrames {
    /// Tells which page a frame lies on, and how many frames have pages one after the other from there on.
    fn page(&self, frame: u64) -> (usize, usize) {
        let all = PAGES as u64;
        if frame < all {
            return (frame as usize, (all - frame) as usize);
        }
        let (round, at) = ((frame - all) / self.batch as u64, (frame - all) % self.batch as u64);
        let at = at as usize;
        (if round.is_multiple_of(2) { self.batch - 1 - at } else { at }, self.batch - at)
    }

    /// Writes metadata and packet where the last frame of a batch lies.
    fn fill(&self, batch: &mut Batch) {
        let Some(at) = batch.len().checked_sub(1).and_then(|last| batch.bounds(last)) else {
            return;
        };
        let begin = (at.data - self.layout.metadata) as usize;
        if let Some(room) = batch.buffer_mut().get_mut(begin..begin + self.data.len()) {
            room.copy_from_slice(&self.data);
        }
    }
}

impl Source for LiveFrames {
    fn receive(&mut self, batch: &mut Batch, _: Duration) -> Result<Received, PortError> {
        let left = usize::try_from(self.end - self.next).unwrap_or(usize::MAX);
        let (_, in_round) = self.page(self.next);
        let mut received = if left == 0 { Received::End } else { Received::Nothing };
        for _ in 0..self.batch.min(in_round).min(left) {
            batch.lay_on(self.page(self.next).0);
            if batch.reserve(self.meta, self.meta.wire_len as usize).is_none() {
                break;
            }
            if self.next < PAGES as u64 {
                self.fill(batch);
            }
            self.next += 1;
            received = Received::Frames;
        }
        Ok(received)
    }

    fn batch(&self) -> Batch {
        Batch::of_pages(PAGES, self.layout)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Receives all frames, and changes the byte `at` of each; returns what it was.
    fn seen(input: &Input<'_>, batch_size: u32, at: usize) -> Vec<u8> {
        let mut frames = LiveFrames::new(input, batch_size).unwrap_or_else(|e| panic!("{e}"));
        let (mut batch, mut seen) = (frames.batch(), Vec::new());
        loop {
            batch.clear();
            if frames.receive(&mut batch, Duration::ZERO).ok() == Some(Received::End) {
                return seen;
            }
            for index in 0..batch.len() {
                let begin = batch.bounds(index).map_or(0, |of| of.data as usize);
                seen.push(batch.buffer_mut()[begin + at]);
                batch.buffer_mut()[begin + at] += 1;
                assert!(batch.set_bounds(index, begin as u32 + 4, 20));
            }
        }
    }

    #[test]
    fn what_was_written_is_there_when_the_page_comes_again() {
        let packet: Vec<u8> = (0..60).collect();
        for (batch, again) in [(0, 64), (1, 1), (40, 40), (64, 64), (65, 64), (256, 64)] {
            let input = Input { repeat: 300, ..Input::data(&packet) };
            // The first 64 frames are new.
            let times = |n: usize| if n < 64 { 0 } else { (n - 64) / again + 1 };
            let expected: Vec<u8> = (0..300).map(|n| 7 + times(n) as u8).collect();
            assert_eq!(seen(&input, batch, 7), expected, "{batch}");
        }
        assert_eq!(seen(&Input::data(&packet), 0, 7), [7]);
    }

    #[test]
    fn metadata_lies_before_the_frame() {
        let packet: Vec<u8> = (0..60).collect();
        let mut ctx = [0; 24];
        (ctx[0], ctx[4]) = (8, 60);
        let input = Input { ctx: Some(&ctx), ..Input::data(&packet) };
        let mut frames = LiveFrames::new(&input, 1).unwrap_or_else(|e| panic!("{e}"));
        let mut batch = frames.batch();
        assert_eq!(frames.receive(&mut batch, Duration::ZERO).ok(), Some(Received::Frames));
        assert_eq!(batch.layout(), Layout { metadata: 8, page: 3984 });
        let begin = batch.bounds(0).map_or(0, |of| of.data as usize);
        assert_eq!(batch.frame(0).map(|f| f.bytes.len()), Some(52));
        assert_eq!(batch.buffer_mut()[begin - 8..begin + 52], packet);
    }

    #[test]
    fn what_the_kernel_refuses_is_refused() {
        let refused = |len: usize, batch| {
            LiveFrames::new(&Input::data(&vec![0; len]), batch).map(|_| ()).err()
        };
        assert_eq!(refused(64, 256), None);
        assert_eq!(refused(64, 257), Some(Errno::E2BIG));
        assert_eq!(refused(13, 0), Some(Errno::EINVAL));
        assert_eq!((refused(3408, 0), refused(3409, 0)), (None, Some(Errno::EINVAL)));
        assert_eq!(SIZES, 14..=3408);
        let of_entries =
            LiveFrames::of(Some(AttachType::XdpDevmap), &Input::data(&[0; 64]), 0).map(|_| ());
        assert_eq!(of_entries.err(), Some(Errno::EINVAL));
    }
}
