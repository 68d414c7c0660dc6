//! The helpers that programs of all types call: one function each, in files by what they are about,
//! and one row each in `TABLE`. Those of packet programs are in `skep_net`; tail calls are the
//! business of who runs programs, `skep_runtime`.
//!
//! Everything here runs inside traced processes, on the event path. A row says
//! [`HelperCall::Plain`] only when the function uses no vector register and calls nothing outside
//! the section `.text.skep_event`; a test reads the machine code. All others are called with the
//! vector registers saved.
//!
//! Internal to skep.

mod callback;
mod cgroup;
pub mod clock;
pub mod dynptr;
mod format;
mod iter;
pub mod map;
pub mod memory;
mod number;
#[cfg(test)]
mod oracle;
pub mod packet;
pub mod perf;
mod print;
mod probe;
mod ringbuf;
mod stack;
mod string;
pub mod table;
pub mod task;
mod time;
mod tracing;

use skep_isa::ctx::tracing as frame;
use skep_isa::helper::KFUNC_BASE;
use skep_isa::{HelperId, ProgramType as P, kfunc};
use skep_vm::{HelperCall, HelperImpl};

pub use print::set_log;
pub use table::{Lookup, Row};
use table::{find, row, when};

/// The kernel's errno values that helpers return, negated.
#[allow(missing_docs, reason = "the names are the kernel's")]
pub mod errno {
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

/// Returns what a helper leaves in the result register when it fails.
#[must_use]
pub const fn fail(errno: i64) -> u64 {
    (-errno) as u64
}

/// Returns what a kernel function of type `int` leaves in the result register.
#[must_use]
pub const fn int(r: u64) -> u64 {
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

use HelperCall::{LoadCtx, MapLookup, Plain, SaveVectors};

/// Every helper of this crate, in order of number.
static TABLE: &[Row] = &[
    row(1, map::lookup_elem, MapLookup),
    row(2, map::update_elem, Plain),
    row(3, map::delete_elem, Plain),
    row(4, probe::read, SaveVectors),
    row(5, time::ktime_get_ns, Plain),
    row(6, print::trace_printk, SaveVectors),
    row(7, task::get_prandom_u32, Plain),
    row(8, task::get_smp_processor_id, Plain),
    row(14, task::get_current_pid_tgid, Plain),
    row(15, task::get_current_uid_gid, SaveVectors),
    row(16, task::get_current_comm, SaveVectors),
    row(25, perf::output, Plain),
    when(&[P::Tracing], 27, stack::id_of_frame),
    when(&[P::Kprobe], 27, stack::id_of_probe),
    when(&[P::PerfEvent], 27, stack::id_of_registers),
    row(27, stack::id_of_nothing, SaveVectors),
    row(35, task::get_current_task, Plain),
    row(36, probe::write_user, SaveVectors),
    row(37, cgroup::current_task_under_cgroup, SaveVectors),
    row(42, task::get_numa_node_id, Plain),
    row(45, probe::read_str, SaveVectors),
    when(&[P::Tracing], 67, stack::get_of_frame),
    when(&[P::Kprobe], 67, stack::get_of_probe),
    when(&[P::PerfEvent], 67, stack::get_of_registers),
    row(67, stack::get_of_nothing, SaveVectors),
    row(80, cgroup::get_current_cgroup_id, SaveVectors),
    row(87, map::push_elem, Plain),
    row(88, map::pop_elem, Plain),
    row(89, map::peek_elem, Plain),
    row(93, map::spin_lock, Plain),
    row(94, map::spin_unlock, Plain),
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
    row(148, probe::read, SaveVectors),
    row(160, time::ktime_get_coarse_ns, SaveVectors),
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
];

/// Finds what the code generator needs to call a helper of this crate from a program of type
/// `prog`; `None` when it is not here.
#[must_use]
pub fn implementation(prog: P, id: HelperId) -> Option<HelperImpl> {
    find(TABLE, prog, id)
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
