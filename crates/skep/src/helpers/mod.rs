//! The helpers programs call: one function each, in files by what they are about, and one row each
//! in `TABLE`.
//!
//! Everything here runs inside traced processes, on the event path. A row says
//! [`HelperCall::Plain`] only when the function uses no vector register and calls nothing outside
//! the section `.text.skep_event`; a test reads the machine code. All others are called with the
//! vector registers saved.

mod callback;
mod cgroup;
#[cfg(feature = "loader")]
mod csum;
mod dynptr;
mod format;
mod iter;
mod map;
mod memory;
#[cfg(feature = "loader")]
mod net;
mod number;
#[cfg(test)]
mod oracle;
mod perf;
mod print;
mod probe;
mod ringbuf;
#[cfg(feature = "loader")]
mod skb;
mod stack;
mod string;
mod task;
mod time;
mod tracing;
#[cfg(feature = "loader")]
mod xdp;

use skep_isa::ctx::tracing as frame;
use skep_isa::helper::KFUNC_BASE;
#[cfg(feature = "loader")]
use skep_isa::helper::LOAD_PACKET;
use skep_isa::{HelperId, ProgramType as P, kfunc};
use skep_vm::{HelperCall, HelperFn, HelperImpl};

pub(crate) use print::set_log;

/// The kernel's errno values that helpers return, negated.
#[cfg_attr(
    not(feature = "loader"),
    allow(dead_code, reason = "those of packet helpers, which targets do without")
)]
mod errno {
    pub const ENOENT: i64 = 2;
    pub const E2BIG: i64 = 7;
    pub const EAGAIN: i64 = 11;
    pub const ENOMEM: i64 = 12;
    pub const EACCES: i64 = 13;
    pub const EFAULT: i64 = 14;
    pub const ENODEV: i64 = 19;
    pub const EINVAL: i64 = 22;
    pub const ENOSPC: i64 = 28;
    pub const ERANGE: i64 = 34;
    pub const EOPNOTSUPP: i64 = 95;
    pub const EAFNOSUPPORT: i64 = 97;
    pub const EALREADY: i64 = 114;
    pub const ENOTSUPP: i64 = 524;
}

const fn fail(errno: i64) -> u64 {
    (-errno) as u64
}

/// What a kernel function of type `int` leaves in the result register.
const fn int(r: u64) -> u64 {
    r & 0xffff_ffff
}

/// For what there is nothing to do outside the kernel.
#[unsafe(link_section = ".text.skep_event")]
unsafe extern "C" fn nothing(_: u64, _: u64, _: u64, _: u64, _: u64) -> u64 {
    0
}

/// Its first argument.
#[unsafe(link_section = ".text.skep_event")]
unsafe extern "C" fn first(a: u64, _: u64, _: u64, _: u64, _: u64) -> u64 {
    a
}

struct Row {
    id: HelperId,
    func: HelperFn,
    how: HelperCall,
    /// The program types it is for; no others when empty.
    only: &'static [P],
}

const fn row(id: HelperId, func: HelperFn, how: HelperCall) -> Row {
    Row { id, func, how, only: &[] }
}

/// A row for some program types. Those of one helper stand together, the first that fits is taken.
const fn when(only: &'static [P], id: HelperId, func: HelperFn) -> Row {
    Row { id, func, how: SaveVectors, only }
}

use HelperCall::{LoadCtx, MapLookup, Plain, SaveVectors, TailCall};

#[cfg(feature = "loader")]
const XDP: &[P] = &[P::Xdp];
/// Packet programs that may write.
#[cfg(feature = "loader")]
const WRITERS: &[P] = &[P::SchedCls, P::SchedAct, P::LwtXmit, P::SkSkb];
#[cfg(feature = "loader")]
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

/// Every helper that can be called here, in order of number. What is for packet programs only,
/// targets do without.
static TABLE: &[Row] = &[
    row(1, map::lookup_elem, MapLookup),
    row(2, map::update_elem, Plain),
    row(3, map::delete_elem, Plain),
    row(4, probe::read, SaveVectors),
    row(5, time::ktime_get_ns, Plain),
    row(6, print::trace_printk, SaveVectors),
    row(7, task::get_prandom_u32, Plain),
    row(8, task::get_smp_processor_id, Plain),
    #[cfg(feature = "loader")]
    row(9, skb::store_bytes, SaveVectors),
    #[cfg(feature = "loader")]
    row(10, csum::l3_replace, SaveVectors),
    #[cfg(feature = "loader")]
    row(11, csum::l4_replace, SaveVectors),
    row(12, crate::tail::tail_call, TailCall),
    row(14, task::get_current_pid_tgid, Plain),
    row(15, task::get_current_uid_gid, SaveVectors),
    row(16, task::get_current_comm, SaveVectors),
    #[cfg(feature = "loader")]
    row(18, skb::vlan_push, SaveVectors),
    #[cfg(feature = "loader")]
    row(19, skb::vlan_pop, SaveVectors),
    #[cfg(feature = "loader")]
    when(XDP, 23, xdp::redirect),
    #[cfg(feature = "loader")]
    row(23, skb::redirect, SaveVectors),
    #[cfg(feature = "loader")]
    when(PACKETS, 25, perf::output_packet),
    row(25, perf::output, Plain),
    #[cfg(feature = "loader")]
    row(26, skb::load_bytes, SaveVectors),
    when(&[P::Tracing], 27, stack::id_of_frame),
    when(&[P::Kprobe], 27, stack::id_of_probe),
    when(&[P::PerfEvent], 27, stack::id_of_registers),
    row(27, stack::id_of_nothing, SaveVectors),
    #[cfg(feature = "loader")]
    row(28, csum::diff, SaveVectors),
    #[cfg(feature = "loader")]
    row(32, skb::change_type, SaveVectors),
    #[cfg(feature = "loader")]
    row(34, skb::get_hash_recalc, SaveVectors),
    row(35, task::get_current_task, Plain),
    row(36, probe::write_user, SaveVectors),
    row(37, cgroup::current_task_under_cgroup, SaveVectors),
    #[cfg(feature = "loader")]
    row(38, skb::change_tail, SaveVectors),
    #[cfg(feature = "loader")]
    row(39, skb::pull_data, SaveVectors),
    #[cfg(feature = "loader")]
    row(40, skb::csum_update, SaveVectors),
    #[cfg(feature = "loader")]
    row(41, skb::set_hash_invalid, SaveVectors),
    row(42, task::get_numa_node_id, Plain),
    #[cfg(feature = "loader")]
    row(43, skb::change_head, SaveVectors),
    #[cfg(feature = "loader")]
    when(XDP, 44, xdp::adjust_head),
    row(45, probe::read_str, SaveVectors),
    #[cfg(feature = "loader")]
    row(48, skb::set_hash, SaveVectors),
    #[cfg(feature = "loader")]
    row(50, skb::adjust_room, SaveVectors),
    #[cfg(feature = "loader")]
    when(XDP, 51, xdp::redirect_map),
    #[cfg(feature = "loader")]
    when(XDP, 54, xdp::adjust_meta),
    #[cfg(feature = "loader")]
    when(XDP, 65, xdp::adjust_tail),
    when(&[P::Tracing], 67, stack::get_of_frame),
    when(&[P::Kprobe], 67, stack::get_of_probe),
    when(&[P::PerfEvent], 67, stack::get_of_registers),
    row(67, stack::get_of_nothing, SaveVectors),
    #[cfg(feature = "loader")]
    row(68, skb::load_bytes_relative, SaveVectors),
    #[cfg(feature = "loader")]
    row(69, net::fib_lookup, SaveVectors),
    row(80, cgroup::get_current_cgroup_id, SaveVectors),
    row(87, map::push_elem, Plain),
    row(88, map::pop_elem, Plain),
    row(89, map::peek_elem, Plain),
    row(93, map::spin_lock, Plain),
    row(94, map::spin_unlock, Plain),
    #[cfg(feature = "loader")]
    row(97, skb::ecn_set_ce, SaveVectors),
    row(105, number::strtol, Plain),
    row(106, number::strtoul, Plain),
    row(112, probe::read_user, SaveVectors),
    row(113, probe::read_kernel, SaveVectors),
    row(114, probe::read_str, SaveVectors),
    row(115, probe::read_kernel_str, SaveVectors),
    row(118, time::jiffies64, SaveVectors),
    row(120, task::get_ns_current_pid_tgid, SaveVectors),
    row(123, cgroup::get_current_ancestor_cgroup_id, SaveVectors),
    row(125, time::ktime_get_boot_ns, SaveVectors),
    row(130, ringbuf::output, Plain),
    row(131, ringbuf::reserve, Plain),
    row(132, ringbuf::submit, Plain),
    row(133, ringbuf::discard, Plain),
    row(134, ringbuf::query, Plain),
    #[cfg(feature = "loader")]
    row(135, skb::csum_level, SaveVectors),
    row(148, probe::read, SaveVectors),
    row(160, time::ktime_get_coarse_ns, SaveVectors),
    #[cfg(feature = "loader")]
    when(XDP, 163, net::xdp_check_mtu),
    #[cfg(feature = "loader")]
    row(163, net::skb_check_mtu, SaveVectors),
    row(164, callback::for_each_map_elem, SaveVectors),
    row(165, print::snprintf, SaveVectors),
    row(173, tracing::get_func_ip, LoadCtx(frame::IP)),
    row(174, tracing::get_attach_cookie, LoadCtx(frame::COOKIE)),
    row(177, print::trace_vprintk, SaveVectors),
    row(181, callback::repeat, Plain),
    row(182, number::strncmp, Plain),
    row(183, tracing::get_func_arg, Plain),
    row(184, tracing::get_func_ret, Plain),
    row(185, tracing::get_func_arg_cnt, LoadCtx(frame::NR_ARGS)),
    #[cfg(feature = "loader")]
    when(XDP, 188, xdp::get_buff_len),
    #[cfg(feature = "loader")]
    when(XDP, 189, xdp::load_bytes),
    #[cfg(feature = "loader")]
    when(XDP, 190, xdp::store_bytes),
    #[cfg(feature = "loader")]
    row(192, skb::set_tstamp, SaveVectors),
    row(195, map::lookup_percpu_elem, Plain),
    row(197, dynptr::from_mem, SaveVectors),
    row(198, dynptr::ringbuf_reserve, SaveVectors),
    row(199, dynptr::ringbuf_submit, SaveVectors),
    row(200, dynptr::ringbuf_discard, SaveVectors),
    row(201, dynptr::read, SaveVectors),
    row(202, dynptr::write, SaveVectors),
    row(203, dynptr::data, SaveVectors),
    row(208, time::ktime_get_tai_ns, SaveVectors),
    row(209, callback::user_ringbuf_drain, SaveVectors),
    row(KFUNC_BASE, tracing::session_is_return, LoadCtx(frame::IS_RETURN)),
    row(KFUNC_BASE + 1, tracing::session_cookie, LoadCtx(frame::SESSION)),
    row(KFUNC_BASE + 2, time::get_cpu_time_counter, Plain),
    row(KFUNC_BASE + 3, time::cpu_time_counter_to_ns, Plain),
    row(KFUNC_BASE + 4, tracing::get_func_sp, LoadCtx(frame::SP)),
    row(KFUNC_BASE + 5, time::get_preemptions, Plain),
    row(kfunc::id("bpf_rdonly_cast"), first, Plain),
    row(kfunc::id("bpf_rcu_read_lock"), nothing, Plain),
    row(kfunc::id("bpf_rcu_read_unlock"), nothing, Plain),
    row(kfunc::id("bpf_preempt_disable"), nothing, Plain),
    row(kfunc::id("bpf_preempt_enable"), nothing, Plain),
    row(kfunc::id("bpf_local_irq_save"), nothing, Plain),
    row(kfunc::id("bpf_local_irq_restore"), nothing, Plain),
    #[cfg(feature = "loader")]
    when(WRITERS, kfunc::id("bpf_dynptr_from_skb"), dynptr::from_skb),
    #[cfg(feature = "loader")]
    row(kfunc::id("bpf_dynptr_from_skb"), dynptr::from_skb_read_only, SaveVectors),
    #[cfg(feature = "loader")]
    row(kfunc::id("bpf_dynptr_from_xdp"), dynptr::from_xdp, SaveVectors),
    row(kfunc::id("bpf_dynptr_slice"), dynptr::slice, SaveVectors),
    row(kfunc::id("bpf_dynptr_slice_rdwr"), dynptr::slice_rdwr, SaveVectors),
    row(kfunc::id("bpf_dynptr_adjust"), dynptr::adjust, SaveVectors),
    row(kfunc::id("bpf_dynptr_is_null"), dynptr::is_null, SaveVectors),
    row(kfunc::id("bpf_dynptr_is_rdonly"), dynptr::is_rdonly, SaveVectors),
    row(kfunc::id("bpf_dynptr_size"), dynptr::size, SaveVectors),
    row(kfunc::id("bpf_dynptr_clone"), dynptr::clone, SaveVectors),
    row(kfunc::id("bpf_dynptr_copy"), dynptr::copy, SaveVectors),
    row(kfunc::id("bpf_dynptr_memset"), dynptr::memset, SaveVectors),
    row(kfunc::id("bpf_iter_num_new"), iter::num_new, Plain),
    row(kfunc::id("bpf_iter_num_next"), iter::num_next, Plain),
    row(kfunc::id("bpf_iter_num_destroy"), iter::num_destroy, Plain),
    row(kfunc::id("bpf_iter_bits_new"), iter::bits_new, SaveVectors),
    row(kfunc::id("bpf_iter_bits_next"), iter::bits_next, SaveVectors),
    row(kfunc::id("bpf_iter_bits_destroy"), iter::bits_destroy, SaveVectors),
    row(kfunc::id("bpf_copy_from_user_str"), probe::copy_from_user_str, SaveVectors),
    row(kfunc::id("bpf_strcmp"), string::strcmp, SaveVectors),
    row(kfunc::id("bpf_strcasecmp"), string::strcasecmp, SaveVectors),
    row(kfunc::id("bpf_strlen"), string::strlen, SaveVectors),
    row(kfunc::id("bpf_strnlen"), string::strnlen, SaveVectors),
    row(kfunc::id("bpf_strchr"), string::strchr, SaveVectors),
    row(kfunc::id("bpf_strchrnul"), string::strchrnul, SaveVectors),
    row(kfunc::id("bpf_strnchr"), string::strnchr, SaveVectors),
    row(kfunc::id("bpf_strrchr"), string::strrchr, SaveVectors),
    row(kfunc::id("bpf_strspn"), string::strspn, SaveVectors),
    row(kfunc::id("bpf_strcspn"), string::strcspn, SaveVectors),
    row(kfunc::id("bpf_strstr"), string::strstr, SaveVectors),
    row(kfunc::id("bpf_strnstr"), string::strnstr, SaveVectors),
    #[cfg(feature = "loader")]
    row(LOAD_PACKET, skb::load_packet, SaveVectors),
];

/// Finds what the code generator needs to call a helper from a program of type `prog`; `None` when
/// it cannot be called here.
#[must_use]
pub fn implementation(prog: P, id: HelperId) -> Option<HelperImpl> {
    let first = TABLE.partition_point(|r| r.id < id);
    let mut rows = TABLE.get(first..)?.iter().take_while(|r| r.id == id);
    let row = rows.find(|r| r.only.is_empty() || r.only.contains(&prog))?;
    Some(HelperImpl { func: row.func, how: row.how })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rows_are_in_order_and_agree_with_what_is_offered() {
        assert!(TABLE.is_sorted_by(|a, b| a.id < b.id || (a.id == b.id && !a.only.is_empty())));
        for h in skep_isa::helper::HELPERS.iter().chain(skep_isa::helper::KFUNCS) {
            let here = TABLE.iter().any(|r| r.id == h.id);
            assert_eq!(here, h.refused.is_none(), "{} ({}): {:?}", h.name, h.id, h.refused);
        }
        for k in kfunc::KFUNCS {
            assert_eq!(TABLE.iter().any(|r| r.id == kfunc::id(k.name)), k.offered, "{}", k.name);
        }
        for row in TABLE {
            let known = skep_isa::helper::by_id(row.id).is_some()
                || kfunc::by_id(row.id).is_some()
                || row.id == LOAD_PACKET;
            assert!(known, "helper {}", row.id);
        }
    }
}
