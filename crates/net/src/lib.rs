//! Packets: how they lie in memory with the contexts of packet programs, the helpers of such
//! programs, and their test runs.
//!
//! * [`packet::Packet`]: a packet with room around it, and its context;
//! * [`implementation`]: the table of helpers that only packet programs call;
//! * [`test_run`]: what the kernel's `BPF_PROG_TEST_RUN` does with a packet, its context and the
//!   result.
//!
//! Traced processes do without this crate: no program on functions sees a packet. Internal to
//! skep.

mod csum;
mod dynptr;
pub mod packet;
mod perf;
mod route;
mod skb;
pub mod test_run;
mod xdp;

use skep_helpers::table::{self, Row, row, when};
use skep_isa::helper::LOAD_PACKET;
use skep_isa::{HelperId, ProgramType as P, kfunc};
use skep_vm::HelperCall::SaveVectors;
use skep_vm::HelperImpl;

const XDP: &[P] = &[P::Xdp];
/// Programs of socket buffers that may write.
const WRITERS: &[P] = &[P::SchedCls, P::SchedAct, P::LwtXmit, P::SkSkb];
const PACKETS: &[P] = &[
    P::Xdp,
    P::SchedCls,
    P::SchedAct,
    P::SocketFilter,
    P::CgroupSkb,
    P::LwtIn,
    P::LwtOut,
    P::LwtXmit,
];

/// The helpers of packet programs, in order of number. What the kernel gives other programs under
/// the same number is in `skep_helpers`.
static TABLE: &[Row] = &[
    row(9, skb::store_bytes, SaveVectors),
    row(10, csum::l3_replace, SaveVectors),
    row(11, csum::l4_replace, SaveVectors),
    row(18, skb::vlan_push, SaveVectors),
    row(19, skb::vlan_pop, SaveVectors),
    when(XDP, 23, xdp::redirect),
    row(23, skb::redirect, SaveVectors),
    when(PACKETS, 25, perf::output),
    row(26, skb::load_bytes, SaveVectors),
    row(28, csum::diff, SaveVectors),
    row(32, skb::change_type, SaveVectors),
    row(34, skb::get_hash_recalc, SaveVectors),
    row(38, skb::change_tail, SaveVectors),
    row(39, skb::pull_data, SaveVectors),
    row(40, skb::csum_update, SaveVectors),
    row(41, skb::set_hash_invalid, SaveVectors),
    row(43, skb::change_head, SaveVectors),
    when(XDP, 44, xdp::adjust_head),
    row(48, skb::set_hash, SaveVectors),
    row(50, skb::adjust_room, SaveVectors),
    when(XDP, 51, xdp::redirect_map),
    when(XDP, 54, xdp::adjust_meta),
    when(XDP, 65, xdp::adjust_tail),
    row(68, skb::load_bytes_relative, SaveVectors),
    row(69, route::fib_lookup, SaveVectors),
    row(97, skb::ecn_set_ce, SaveVectors),
    row(135, skb::csum_level, SaveVectors),
    when(XDP, 163, route::xdp_check_mtu),
    row(163, route::skb_check_mtu, SaveVectors),
    when(XDP, 188, xdp::get_buff_len),
    when(XDP, 189, xdp::load_bytes),
    when(XDP, 190, xdp::store_bytes),
    row(192, skb::set_tstamp, SaveVectors),
    when(WRITERS, kfunc::id("bpf_dynptr_from_skb"), dynptr::from_skb),
    row(kfunc::id("bpf_dynptr_from_skb"), dynptr::from_skb_read_only, SaveVectors),
    row(kfunc::id("bpf_dynptr_from_xdp"), dynptr::from_xdp, SaveVectors),
    row(LOAD_PACKET, skb::load_packet, SaveVectors),
];

/// Finds what the code generator needs to call a helper of this crate from a program of type
/// `prog`; `None` when it is not here.
#[must_use]
pub fn implementation(prog: P, id: HelperId) -> Option<HelperImpl> {
    table::find(TABLE, prog, id)
}

/// Tells whether this crate has a helper, for whatever type of program.
#[must_use]
pub fn has(id: HelperId) -> bool {
    TABLE.iter().any(|row| row.id == id)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rows_are_in_order_of_number() {
        assert!(table::is_sorted(TABLE));
    }
}
