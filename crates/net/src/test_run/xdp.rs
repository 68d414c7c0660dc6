//! Test runs of XDP programs: `struct xdp_md` in and out, and the packet with its metadata.

use skep_isa::AttachType;
use skep_isa::ctx::packet as word;

use super::interface::{self, LOOPBACK};
use super::{Cause, Errno, Input, Outcome, Program, check_packet, context, field, set_field};
use crate::packet::{Packet, Shape};
use crate::port::batch::{ETH_HLEN, HEADROOM, PAGE, TAILROOM};

/// Offsets in `struct xdp_md`.
mod md {
    pub const DATA: u32 = 0;
    pub const DATA_END: u32 = 4;
    pub const DATA_META: u32 = 8;
    pub const INGRESS_IFINDEX: u32 = 12;
    pub const RX_QUEUE_INDEX: u32 = 16;
    pub const EGRESS_IFINDEX: u32 = 20;
    pub const SIZE: usize = 24;
}

/// Most metadata.
const MAX_META: u32 = 216;
/// Most fragments (`MAX_SKB_FRAGS`).
const MAX_FRAGMENTS: usize = 17;

/// What a run is given, taken apart.
pub(super) struct Given {
    /// The context, as long as the kernel's.
    pub ctx: Option<Vec<u8>>,
    /// Bytes of metadata that the data begin with.
    pub meta: usize,
    /// Bytes of the data, metadata included, that are on the first page.
    pub linear: usize,
    /// The interface and its queue that the packet comes from.
    pub queue: (u32, u32),
}

impl Given {
    /// Checks what a run is given, where the first page has so many bytes.
    pub(super) fn new(
        attach_type: Option<AttachType>,
        input: &Input<'_>,
        page: usize,
    ) -> Result<Self, Errno> {
        // Programs of device and CPU maps run behind a redirect, which a test run is not.
        if matches!(attach_type, Some(AttachType::XdpDevmap | AttachType::XdpCpumap)) {
            return Err(Errno::EINVAL.because(Cause::Entry));
        }
        let data = input.data.unwrap_or_default();
        let ctx = input.ctx.map(|ctx| context(ctx, md::SIZE)).transpose()?;
        let (mut meta, mut linear) = (0, data.len());
        if let Some(ctx) = &ctx {
            // There is nothing before the metadata, and it comes first in what is given.
            let (begin, end) = (field(ctx, md::DATA), field(ctx, md::DATA_END));
            let fits = usize::try_from(end).is_ok_and(|end| end <= data.len()) && begin <= end;
            let is_metadata = begin.is_multiple_of(4) && begin <= MAX_META;
            if field(ctx, md::DATA_META) != 0 || !fits || !is_metadata {
                return Err(Errno::EINVAL.because(Cause::Bounds));
            }
            (meta, linear) = (begin as usize, end as usize);
        }
        // The first page holds what is left of it, metadata included.
        linear = linear.min(page - (HEADROOM - meta) - TAILROOM);
        check_packet(data.len() - meta, ETH_HLEN..=usize::MAX)?;
        let queue = receive_queue(ctx.as_deref())?;
        Ok(Self { ctx, meta, linear, queue })
    }
}

/// Runs an XDP program.
pub(super) fn test_run(program: &dyn Program, input: &Input<'_>) -> Result<Outcome, Errno> {
    let Given { mut ctx, meta, linear, queue } = Given::new(program.attach_type(), input, PAGE)?;
    let data = input.data.unwrap_or_default();
    let fragments = data.len() - linear;
    if fragments.div_ceil(PAGE) > MAX_FRAGMENTS {
        let (len, most) = (data.len() as u32, (linear + MAX_FRAGMENTS * PAGE) as u32);
        return Err(Errno::ENOMEM.because(Cause::LongPacket { len, most }));
    }
    let may_fragment =
        if program.section().starts_with("xdp.frags") { word::MAY_FRAGMENT } else { 0 };
    let shape = Shape {
        kind: word::XDP | may_fragment,
        meta: HEADROOM - meta,
        data: HEADROOM,
        linear: linear.checked_sub(meta).ok_or(Errno::EINVAL.because(Cause::Bounds))?,
        hard_end: PAGE - TAILROOM,
        size: PAGE + fragments.next_multiple_of(PAGE) + PAGE,
    };
    let packet = Packet::new(&shape, data).ok_or(Errno::EINVAL)?;
    let view = packet.view();
    view.set_field(md::INGRESS_IFINDEX, queue.0);
    view.set_field(md::RX_QUEUE_INDEX, queue.1);
    // SAFETY: the packet's context is what XDP programs are verified for.
    let (retval, duration_ns) = unsafe { program.run(packet.ctx(), input.repeat) }?;
    if let Some(ctx) = &mut ctx {
        let from_meta = |address: u64| {
            u32::try_from(address.saturating_sub(view.data_meta())).unwrap_or(u32::MAX)
        };
        set_field(ctx, md::DATA, from_meta(view.data()));
        set_field(ctx, md::DATA_END, from_meta(view.data_end()));
    }
    Ok(Outcome { retval, duration_ns, data_out: Some(packet.bytes()), ctx_out: ctx })
}

/// Tells which interface and queue the packet came from (`xdp_convert_md_to_buff`).
fn receive_queue(ctx: Option<&[u8]>) -> Result<(u32, u32), Errno> {
    let Some(ctx) = ctx else { return Ok((LOOPBACK, 0)) };
    let (index, queue) = (field(ctx, md::INGRESS_IFINDEX), field(ctx, md::RX_QUEUE_INDEX));
    if field(ctx, md::EGRESS_IFINDEX) != 0 || (index == 0 && queue != 0) {
        return Err(Errno::EINVAL.because(Cause::Field));
    }
    if index == 0 {
        return Ok((LOOPBACK, 0));
    }
    let found = interface::find(index).ok_or(Errno::ENODEV.because(Cause::Interface(index)))?;
    if queue >= found.receive_queues() {
        return Err(Errno::EINVAL.because(Cause::Field));
    }
    Ok((index, queue))
}
