//! Dynptrs of packets.

use skep_helpers::dynptr::{PacketKind, of_packet};

/// For programs that may write packets.
pub(super) unsafe extern "C" fn from_skb(ctx: u64, flags: u64, to: u64, _: u64, _: u64) -> u64 {
    // SAFETY: the verifier proved argument 1 the context and `to` sixteen bytes of the stack.
    unsafe { of_packet(ctx, flags, to, PacketKind::Skb) }
}

/// For programs that may not.
pub(super) unsafe extern "C" fn from_skb_read_only(
    ctx: u64,
    flags: u64,
    to: u64,
    _: u64,
    _: u64,
) -> u64 {
    // SAFETY: the verifier proved argument 1 the context and `to` sixteen bytes of the stack.
    unsafe { of_packet(ctx, flags, to, PacketKind::SkbReadOnly) }
}

pub(super) unsafe extern "C" fn from_xdp(ctx: u64, flags: u64, to: u64, _: u64, _: u64) -> u64 {
    // SAFETY: the verifier proved argument 1 the context and `to` sixteen bytes of the stack.
    unsafe { of_packet(ctx, flags, to, PacketKind::Xdp) }
}
