//! Test runs of flow dissectors: a packet in, `struct bpf_flow_keys` out.

use crate::port::batch::ETH_HLEN;
use skep_isa::ctx::{FLOW_KEYS_SIZE, packet as word, sk_buff as o};

use super::{
    Cause, Errno, Input, Outcome, Program, check_packet, context, field, is_zero, set_field,
};
use crate::packet::{Packet, Shape};

const PAGE: usize = 4096;
/// Offsets in `struct bpf_flow_keys`.
const NHOFF: usize = 0;
const THOFF: usize = 2;
const N_PROTO: usize = 10;
const FLAGS: u32 = 48;

/// Runs a flow dissector.
pub(super) fn test_run(program: &dyn Program, input: &Input<'_>) -> Result<Outcome, Errno> {
    let data = input.data.unwrap_or_default();
    check_packet(data.len(), ETH_HLEN..=PAGE)?;
    let ctx = input.ctx.map(|ctx| context(ctx, FLOW_KEYS_SIZE as usize)).transpose()?;
    let flags = match &ctx {
        Some(ctx) if !is_zero(ctx, 0, FLAGS) || !is_zero(ctx, FLAGS + 4, FLOW_KEYS_SIZE) => {
            return Err(Errno::EINVAL.because(Cause::Field));
        }
        Some(ctx) => field(ctx, FLAGS),
        None => 0,
    };
    let shape = Shape {
        kind: word::SKB,
        meta: 0,
        data: 0,
        linear: data.len(),
        hard_end: data.len(),
        size: data.len(),
    };
    let packet = Packet::new(&shape, data).ok_or(Errno::EINVAL)?;
    let view = packet.view();
    view.set(word::MAC_HEADER, view.data());
    view.set(word::NETWORK_HEADER, view.data() + ETH_HLEN as u64);
    let mut keys = vec![0; FLOW_KEYS_SIZE as usize];
    set_half(&mut keys, NHOFF, ETH_HLEN as u16);
    set_half(&mut keys, THOFF, ETH_HLEN as u16);
    set_half(&mut keys, N_PROTO, half(data, 12));
    set_field(&mut keys, FLAGS, flags);
    let (mut retval, mut time) = (0, 0);
    let rounds = input.repeat.max(1);
    for _ in 0..rounds {
        packet.point(o::FLOW_KEYS, &keys);
        // SAFETY: the packet's context is what flow dissectors are verified for, and points to flow
        // keys.
        let (r, ns) = unsafe { program.run(packet.ctx(), 1) }?;
        (retval, time) = (r, time + ns);
    }
    let mut out = packet.pointed(FLOW_KEYS_SIZE as usize);
    // As the kernel's own caller does: inside the packet, and in order.
    let end = data.len() as u16;
    let network = half(&out, NHOFF).max(ETH_HLEN as u16).min(end);
    let transport = half(&out, THOFF).max(network).min(end);
    set_half(&mut out, NHOFF, network);
    set_half(&mut out, THOFF, transport);
    Ok(Outcome { retval, duration_ns: time / u64::from(rounds), data_out: Some(out), ctx_out: ctx })
}

fn half(bytes: &[u8], at: usize) -> u16 {
    bytes.get(at..).and_then(<[u8]>::first_chunk).map_or(0, |b| u16::from_ne_bytes(*b))
}

fn set_half(bytes: &mut [u8], at: usize, value: u16) {
    if let Some(to) = bytes.get_mut(at..).and_then(<[u8]>::first_chunk_mut) {
        *to = value.to_ne_bytes();
    }
}
