//! Packets: how they lie in memory with the contexts of packet programs, the helpers of such
//! programs, their test runs, and ports for real packets.
//!
//! * [`packet::Packet`]: a packet with room around it, and its context;
//! * [`implementation`]: the table of helpers that only packet programs call;
//! * [`port`]: where packets come from and go to, capture files among them;
//! * [`chain`]: programs in sequence, the next one chosen by verdict;
//! * [`lookahead`]: what programs will look up for the packets of a batch, fetched before they run;
//! * [`test_run`]: what the kernel's `BPF_PROG_TEST_RUN` does with a packet, its context and the
//!   result.
//!
//! Traced processes do without this crate: no program on functions sees a packet. Internal to
//! skep.

pub mod chain;
mod csum;
mod dynptr;
mod fib;
pub mod lookahead;
pub mod packet;
mod perf;
pub mod port;
mod redirect;
mod route;
mod skb;
pub mod test_run;
mod xdp;

use skep_helpers::table::{self, Row, row, when};
use skep_isa::helper::{LOAD_PACKET, LOOK_AHEAD, id};
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
    row(id::SKB_STORE_BYTES, skb::store_bytes, SaveVectors),
    row(id::L3_CSUM_REPLACE, csum::l3_replace, SaveVectors),
    row(id::L4_CSUM_REPLACE, csum::l4_replace, SaveVectors),
    row(id::SKB_VLAN_PUSH, skb::vlan_push, SaveVectors),
    row(id::SKB_VLAN_POP, skb::vlan_pop, SaveVectors),
    when(XDP, id::REDIRECT, xdp::redirect),
    row(id::REDIRECT, skb::redirect, SaveVectors),
    when(PACKETS, id::PERF_EVENT_OUTPUT, perf::output),
    row(id::SKB_LOAD_BYTES, skb::load_bytes, SaveVectors),
    row(id::CSUM_DIFF, csum::diff, SaveVectors),
    row(id::SKB_CHANGE_TYPE, skb::change_type, SaveVectors),
    row(id::GET_HASH_RECALC, skb::get_hash_recalc, SaveVectors),
    row(id::SKB_CHANGE_TAIL, skb::change_tail, SaveVectors),
    row(id::SKB_PULL_DATA, skb::pull_data, SaveVectors),
    row(id::CSUM_UPDATE, skb::csum_update, SaveVectors),
    row(id::SET_HASH_INVALID, skb::set_hash_invalid, SaveVectors),
    row(id::SKB_CHANGE_HEAD, skb::change_head, SaveVectors),
    when(XDP, id::XDP_ADJUST_HEAD, xdp::adjust_head),
    row(id::SET_HASH, skb::set_hash, SaveVectors),
    row(id::SKB_ADJUST_ROOM, skb::adjust_room, SaveVectors),
    when(XDP, id::REDIRECT_MAP, xdp::redirect_map),
    when(XDP, id::XDP_ADJUST_META, xdp::adjust_meta),
    when(XDP, id::XDP_ADJUST_TAIL, xdp::adjust_tail),
    row(id::SKB_LOAD_BYTES_RELATIVE, skb::load_bytes_relative, SaveVectors),
    when(XDP, id::FIB_LOOKUP, fib::xdp),
    row(id::FIB_LOOKUP, fib::skb, SaveVectors),
    row(id::SKB_ECN_SET_CE, skb::ecn_set_ce, SaveVectors),
    row(id::CSUM_LEVEL, skb::csum_level, SaveVectors),
    when(XDP, id::CHECK_MTU, route::xdp_check_mtu),
    row(id::CHECK_MTU, route::skb_check_mtu, SaveVectors),
    when(XDP, id::XDP_GET_BUFF_LEN, xdp::get_buff_len),
    when(XDP, id::XDP_LOAD_BYTES, xdp::load_bytes),
    when(XDP, id::XDP_STORE_BYTES, xdp::store_bytes),
    row(id::SKB_SET_TSTAMP, skb::set_tstamp, SaveVectors),
    when(WRITERS, kfunc::id::BPF_DYNPTR_FROM_SKB, dynptr::from_skb),
    row(kfunc::id::BPF_DYNPTR_FROM_SKB, dynptr::from_skb_read_only, SaveVectors),
    row(kfunc::id::BPF_DYNPTR_FROM_XDP, dynptr::from_xdp, SaveVectors),
    row(LOAD_PACKET, skb::load_packet, SaveVectors),
    when(XDP, LOOK_AHEAD, lookahead::note),
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
