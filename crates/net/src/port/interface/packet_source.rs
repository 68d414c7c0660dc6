//! `AF_PACKET` as a source: blocks of frames in memory that is shared with the kernel.
//!
//! ```text
//! ring    block 0 │ block 1 │ …                                      BLOCKS blocks of BLOCK bytes
//! block   version(4)  offset of what is private(4)  status(4)  frames(4)  offset of the first(4) …
//! frame   offset of the next(4)  seconds(4)  nanoseconds(4)  captured(4)  on the wire(4)  status(4)
//!         offset of the bytes(2)  …  VLAN TCI(4, at 32)  TPID(2) …                 (tpacket3_hdr)
//! ```
//!
//! The kernel fills a block, or waits for [`RETIRE_MS`], and sets a bit of its status; whoever reads
//! it sets the status to 0 and so gives it back.
//!
//! An interface that goes down is an error of the socket at once, while frames that came before lie
//! in a block that the kernel gives out when its timer ends. So the error waits until as many frames
//! were taken as the socket has counted.

use std::os::fd::{AsFd, OwnedFd};
use std::sync::atomic::Ordering::{Acquire, Release};
use std::time::{Duration, Instant};

use super::failed;
use super::sys::{self, Mapping};
use crate::port::batch::{Batch, MAX_FRAME, Meta};
use crate::port::error::PortError;
use crate::port::source::{Lost, Received, Source};

/// Bytes of a block: the largest frame fits.
const BLOCK: usize = 1 << 19;
const BLOCKS: usize = 16;
/// After so many milliseconds a block is given out though it is not full.
const RETIRE_MS: u32 = 4;
/// How long frames of an interface that went down may take to come: the kernel's timer, on a machine
/// that has much else to do. What has not come by then is lost.
const DRAIN: Duration = Duration::from_secs(1);

/// Offsets in a block.
mod block {
    pub(super) const STATUS: usize = 8;
    pub(super) const FRAMES: usize = 12;
    pub(super) const FIRST: usize = 16;
}

/// Offsets in the header of a frame.
mod frame {
    pub(super) const NEXT: usize = 0;
    pub(super) const SECONDS: usize = 4;
    pub(super) const NANOSECONDS: usize = 8;
    pub(super) const CAPTURED: usize = 12;
    pub(super) const WIRE: usize = 16;
    pub(super) const STATUS: usize = 20;
    pub(super) const BYTES: usize = 24;
    pub(super) const VLAN_TCI: usize = 32;
    pub(super) const VLAN_TPID: usize = 36;
}

const TP_STATUS_USER: u32 = 1;
const TP_STATUS_VLAN_VALID: u32 = 1 << 4;
const TP_STATUS_VLAN_TPID_VALID: u32 = 1 << 6;
const ETH_P_8021Q: u16 = 0x8100;
/// Bytes before a VLAN tag: the addresses.
const ADDRESSES: usize = 12;

/// Receives what comes in on an interface, whoever it is for.
///
/// Frames that the own machine sends there are not received. A VLAN tag that the kernel took off a
/// frame is put back. Checksums that the other side left to the hardware are not there, as between
/// veth devices.
#[derive(Debug)]
pub struct PacketSource {
    fd: OwnedFd,
    ring: Mapping,
    name: String,
    index: u32,
    /// The block that is read, or comes next.
    block: usize,
    /// Frames of it that are left, and where the next one begins in the ring.
    left: u32,
    next: usize,
    /// Frames that were taken out of blocks.
    taken: u64,
    /// Frames that the kernel put into blocks, as far as it was asked.
    filled: u64,
    /// Since when the interface is down.
    down: Option<Instant>,
    lost: Lost,
}

impl PacketSource {
    /// Begins to receive from an interface of the thread's network namespace.
    ///
    /// # Errors
    /// When there is no such interface, it is down, or packet sockets are not allowed.
    pub fn open(name: &str) -> Result<Self, PortError> {
        let index =
            sys::index_of(name).ok_or_else(|| PortError::NoInterface { name: name.to_owned() })?;
        // Without a protocol, until everything is set.
        let fd = sys::socket(libc::AF_PACKET, libc::SOCK_RAW, 0).map_err(failed(name, "socket"))?;
        let set = |option, value: i32| {
            let done = sys::set_option(fd.as_fd(), libc::SOL_PACKET, option, &value);
            done.map_err(failed(name, "setsockopt"))
        };
        set(libc::PACKET_VERSION, libc::tpacket_versions::TPACKET_V3 as i32)?;
        // Linux 4.20; before, the own machine's frames are seen too.
        let _ = set(libc::PACKET_IGNORE_OUTGOING, 1);
        let request = libc::tpacket_req3 {
            tp_block_size: BLOCK as u32,
            tp_block_nr: BLOCKS as u32,
            tp_frame_size: 2048,
            tp_frame_nr: (BLOCK / 2048 * BLOCKS) as u32,
            tp_retire_blk_tov: RETIRE_MS,
            tp_sizeof_priv: 0,
            tp_feature_req_word: 0,
        };
        sys::set_option(fd.as_fd(), libc::SOL_PACKET, libc::PACKET_RX_RING, &request)
            .map_err(failed(name, "setsockopt"))?;
        let ring = Mapping::new(fd.as_fd(), BLOCK * BLOCKS, 0).map_err(failed(name, "mmap"))?;
        let promiscuous = libc::packet_mreq {
            mr_ifindex: index as i32,
            mr_type: libc::PACKET_MR_PROMISC as u16,
            mr_alen: 0,
            mr_address: [0; 8],
        };
        sys::set_option(fd.as_fd(), libc::SOL_PACKET, libc::PACKET_ADD_MEMBERSHIP, &promiscuous)
            .map_err(failed(name, "setsockopt"))?;
        sys::bind(fd.as_fd(), index, libc::ETH_P_ALL as u16).map_err(failed(name, "bind"))?;
        let (name, lost) = (name.to_owned(), Lost::default());
        let (taken, filled, down) = (0, 0, None);
        Ok(Self { fd, ring, name, index, block: 0, left: 0, next: 0, taken, filled, down, lost })
    }

    /// Returns the number of the interface.
    #[must_use]
    pub fn index(&self) -> u32 {
        self.index
    }

    fn status_offset(&self) -> usize {
        self.block * BLOCK + block::STATUS
    }

    /// Takes the next block, if the kernel has given it out.
    fn take_block(&mut self) -> bool {
        let status = self.ring.atomic(self.status_offset());
        // Pairs with the kernel's release of a block that it has filled.
        if status.is_none_or(|status| status.load(Acquire) & TP_STATUS_USER == 0) {
            return false;
        }
        let start = self.block * BLOCK;
        self.left = self.ring.u32(start + block::FRAMES);
        self.next = start + self.ring.u32(start + block::FIRST) as usize;
        if self.left == 0 {
            self.give_block_back();
        }
        true
    }

    fn give_block_back(&mut self) {
        if let Some(status) = self.ring.atomic(self.status_offset()) {
            // The frames have been copied out.
            status.store(0, Release);
        }
        self.left = 0;
        self.block = (self.block + 1) % BLOCKS;
    }

    /// Copies the next frame of the block into the batch; `false` when that is full.
    #[inline]
    fn take_frame(&mut self, batch: &mut Batch) -> bool {
        let (at, ring) = (self.next, &self.ring);
        let status = ring.u32(at + frame::STATUS);
        let captured = ring.u32(at + frame::CAPTURED) as usize;
        let tag = status & TP_STATUS_VLAN_VALID != 0 && captured >= ADDRESSES;
        let len = captured + if tag { 4 } else { 0 };
        let wire = ring.u32(at + frame::WIRE) as usize + len - captured;
        if len > MAX_FRAME {
            self.lost.too_large += 1;
        } else {
            let ns = u64::from(ring.u32(at + frame::SECONDS)) * 1_000_000_000
                + u64::from(ring.u32(at + frame::NANOSECONDS));
            let meta = Meta { ns, wire_len: wire as u32, port: self.index, queue: 0 };
            let bytes = at + usize::from(ring.u16(at + frame::BYTES));
            let Some(room) = batch.reserve(meta, len) else { return false };
            let (head, tail) = room.split_at_mut(if tag { ADDRESSES } else { 0 });
            let (vlan, rest) = tail.split_at_mut(if tag { 4 } else { 0 });
            let whole = ring.copy_out(bytes, head) && ring.copy_out(bytes + head.len(), rest);
            if let Some(vlan) = vlan.first_chunk_mut::<4>() {
                let known = status & TP_STATUS_VLAN_TPID_VALID != 0;
                let tpid = if known { ring.u16(at + frame::VLAN_TPID) } else { ETH_P_8021Q };
                let [a, b] = tpid.to_be_bytes();
                let [c, d] = (ring.u32(at + frame::VLAN_TCI) as u16).to_be_bytes();
                *vlan = [a, b, c, d];
            }
            if !whole {
                batch.pop();
                self.lost.too_large += 1;
            }
            self.lost.shortened += u64::from(captured < ring.u32(at + frame::WIRE) as usize);
        }
        self.left -= 1;
        self.taken += 1;
        self.next = at + ring.u32(at + frame::NEXT) as usize;
        if self.left == 0 {
            self.give_block_back();
        }
        true
    }

    /// The socket is ready with an error, which this takes: what it is, unless the interface is down.
    fn note_error(&mut self) -> Result<(), PortError> {
        match sys::take_error(self.fd.as_fd()).map_err(failed(&self.name, "poll")) {
            Ok(()) | Err(PortError::Down { .. }) => {
                self.down.get_or_insert_with(Instant::now);
                Ok(())
            }
            Err(e) => Err(e),
        }
    }

    /// How long to wait for what came before the interface went down; the error when all of it was
    /// taken, or took too long.
    fn drain(&mut self, since: Instant, wait: Duration) -> Result<Duration, PortError> {
        self.ask_counters()?;
        let left = DRAIN.saturating_sub(since.elapsed());
        let missing = self.filled.saturating_sub(self.taken);
        if missing > 0 && !left.is_zero() {
            return Ok(wait.min(left));
        }
        self.lost.ring_full += missing;
        self.taken += missing;
        Err(PortError::Down { name: self.name.clone() })
    }

    /// Adds what the kernel has counted since it was asked last: it begins at 0 then.
    fn ask_counters(&mut self) -> Result<(), PortError> {
        let mut stats = libc::tpacket_stats_v3 { tp_packets: 0, tp_drops: 0, tp_freeze_q_cnt: 0 };
        let fd = self.fd.as_fd();
        sys::option(fd, libc::SOL_PACKET, libc::PACKET_STATISTICS, &mut stats)
            .map_err(failed(&self.name, "getsockopt"))?;
        // The packets are all, those that were dropped among them.
        self.filled += u64::from(stats.tp_packets.saturating_sub(stats.tp_drops));
        self.lost.ring_full += u64::from(stats.tp_drops);
        Ok(())
    }
}

impl Source for PacketSource {
    fn receive(&mut self, batch: &mut Batch, wait: Duration) -> Result<Received, PortError> {
        let before = batch.len();
        loop {
            while self.left > 0 {
                if !self.take_frame(batch) {
                    return Ok(Received::Frames);
                }
            }
            if self.take_block() {
                continue;
            }
            if batch.len() > before {
                return Ok(Received::Frames);
            }
            let wait = self.down.map_or(Ok(wait), |since| self.drain(since, wait))?;
            let ready = sys::wait(self.fd.as_fd(), libc::POLLIN, wait);
            let ready = ready.map_err(failed(&self.name, "poll"))?;
            if ready & (libc::POLLERR | libc::POLLHUP | libc::POLLNVAL) != 0 {
                self.note_error()?;
                continue;
            }
            if ready == 0 || !self.take_block() {
                return Ok(Received::Nothing);
            }
        }
    }

    fn lost(&mut self) -> Result<Lost, PortError> {
        self.ask_counters()?;
        Ok(self.lost)
    }
}
