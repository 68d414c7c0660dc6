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
pub use skep_isa::errno;
use skep_isa::helper::id;
use skep_isa::{HelperId, ProgramType as P, kfunc};
use skep_vm::{HelperCall, HelperImpl};

pub use print::set_log;
pub use stack::{set_modules, set_own_code};
pub use table::{Lookup, Row};
use table::{find, row, when};
pub use task::set_errno_location;

/// Whether this crate is compiled with so much optimization that its part of the event path uses no
/// vector registers.
pub const IS_OPTIMIZED: bool = matches!(env!("SKEP_OPT_LEVEL").as_bytes(), b"2" | b"3");

/// Returns what a helper leaves in the result register when it fails with an error number.
#[must_use]
pub const fn fail(errno: i32) -> u64 {
    -(errno as i64) as u64
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
    row(id::MAP_LOOKUP_ELEM, map::lookup_elem, MapLookup),
    row(id::MAP_UPDATE_ELEM, map::update_elem, Plain),
    row(id::MAP_DELETE_ELEM, map::delete_elem, Plain),
    row(id::PROBE_READ, probe::read, SaveVectors),
    row(id::KTIME_GET_NS, time::ktime_get_ns, Plain),
    row(id::TRACE_PRINTK, print::trace_printk, SaveVectors),
    row(id::GET_PRANDOM_U32, task::get_prandom_u32, Plain),
    row(id::GET_SMP_PROCESSOR_ID, task::get_smp_processor_id, Plain),
    row(id::GET_CURRENT_PID_TGID, task::get_current_pid_tgid, Plain),
    row(id::GET_CURRENT_UID_GID, task::get_current_uid_gid, SaveVectors),
    row(id::GET_CURRENT_COMM, task::get_current_comm, SaveVectors),
    row(id::PERF_EVENT_OUTPUT, perf::output, Plain),
    when(&[P::Tracing], id::GET_STACKID, stack::id_of_frame),
    when(&[P::Kprobe], id::GET_STACKID, stack::id_of_probe),
    when(&[P::PerfEvent], id::GET_STACKID, stack::id_of_registers),
    row(id::GET_STACKID, stack::id_of_nothing, SaveVectors),
    row(id::GET_CURRENT_TASK, task::get_current_task, Plain),
    row(id::PROBE_WRITE_USER, probe::write_user, SaveVectors),
    row(id::CURRENT_TASK_UNDER_CGROUP, cgroup::current_task_under_cgroup, SaveVectors),
    row(id::GET_NUMA_NODE_ID, task::get_numa_node_id, Plain),
    row(id::PROBE_READ_STR, probe::read_str, SaveVectors),
    row(id::OVERRIDE_RETURN, tracing::override_return, Plain),
    when(&[P::Tracing], id::GET_STACK, stack::get_of_frame),
    when(&[P::Kprobe], id::GET_STACK, stack::get_of_probe),
    when(&[P::PerfEvent], id::GET_STACK, stack::get_of_registers),
    row(id::GET_STACK, stack::get_of_nothing, SaveVectors),
    row(id::GET_CURRENT_CGROUP_ID, cgroup::get_current_cgroup_id, SaveVectors),
    row(id::MAP_PUSH_ELEM, map::push_elem, Plain),
    row(id::MAP_POP_ELEM, map::pop_elem, Plain),
    row(id::MAP_PEEK_ELEM, map::peek_elem, Plain),
    row(id::SPIN_LOCK, map::spin_lock, Plain),
    row(id::SPIN_UNLOCK, map::spin_unlock, Plain),
    row(id::STRTOL, number::strtol, Plain),
    row(id::STRTOUL, number::strtoul, Plain),
    row(id::PROBE_READ_USER, probe::read_user, SaveVectors),
    row(id::PROBE_READ_KERNEL, probe::read_kernel, SaveVectors),
    row(id::PROBE_READ_USER_STR, probe::read_str, SaveVectors),
    row(id::PROBE_READ_KERNEL_STR, probe::read_kernel_str, SaveVectors),
    row(id::JIFFIES64, time::jiffies64, SaveVectors),
    row(id::GET_NS_CURRENT_PID_TGID, task::get_ns_current_pid_tgid, SaveVectors),
    row(id::GET_CURRENT_ANCESTOR_CGROUP_ID, cgroup::get_current_ancestor_cgroup_id, SaveVectors),
    row(id::KTIME_GET_BOOT_NS, time::ktime_get_boot_ns, SaveVectors),
    row(id::RINGBUF_OUTPUT, ringbuf::output, Plain),
    row(id::RINGBUF_RESERVE, ringbuf::reserve, Plain),
    row(id::RINGBUF_SUBMIT, ringbuf::submit, Plain),
    row(id::RINGBUF_DISCARD, ringbuf::discard, Plain),
    row(id::RINGBUF_QUERY, ringbuf::query, Plain),
    row(id::COPY_FROM_USER, probe::read, SaveVectors),
    row(id::KTIME_GET_COARSE_NS, time::ktime_get_coarse_ns, SaveVectors),
    row(id::FOR_EACH_MAP_ELEM, callback::for_each_map_elem, SaveVectors),
    row(id::SNPRINTF, print::snprintf, SaveVectors),
    row(id::GET_FUNC_IP, tracing::get_func_ip, LoadCtx(frame::IP)),
    row(id::GET_ATTACH_COOKIE, tracing::get_attach_cookie, LoadCtx(frame::COOKIE)),
    row(id::TRACE_VPRINTK, print::trace_vprintk, SaveVectors),
    row(id::LOOP, callback::repeat, Plain),
    row(id::STRNCMP, number::strncmp, Plain),
    row(id::GET_FUNC_ARG, tracing::get_func_arg, Plain),
    row(id::GET_FUNC_RET, tracing::get_func_ret, Plain),
    row(id::GET_FUNC_ARG_CNT, tracing::get_func_arg_cnt, LoadCtx(frame::NR_ARGS)),
    row(id::MAP_LOOKUP_PERCPU_ELEM, map::lookup_percpu_elem, Plain),
    row(id::DYNPTR_FROM_MEM, dynptr::from_mem, Plain),
    row(id::RINGBUF_RESERVE_DYNPTR, dynptr::ringbuf_reserve, SaveVectors),
    row(id::RINGBUF_SUBMIT_DYNPTR, dynptr::ringbuf_submit, SaveVectors),
    row(id::RINGBUF_DISCARD_DYNPTR, dynptr::ringbuf_discard, SaveVectors),
    row(id::DYNPTR_READ, dynptr::read, SaveVectors),
    row(id::DYNPTR_WRITE, dynptr::write, SaveVectors),
    row(id::DYNPTR_DATA, dynptr::data, SaveVectors),
    row(id::KTIME_GET_TAI_NS, time::ktime_get_tai_ns, SaveVectors),
    row(id::USER_RINGBUF_DRAIN, callback::user_ringbuf_drain, SaveVectors),
    row(id::BPF_SESSION_IS_RETURN, tracing::session_is_return, LoadCtx(frame::IS_RETURN)),
    row(id::BPF_SESSION_COOKIE, tracing::session_cookie, LoadCtx(frame::SESSION)),
    row(id::BPF_GET_CPU_TIME_COUNTER, time::get_cpu_time_counter, Plain),
    row(id::BPF_CPU_TIME_COUNTER_TO_NS, time::cpu_time_counter_to_ns, Plain),
    row(id::SKEP_GET_FUNC_SP, tracing::get_func_sp, LoadCtx(frame::SP)),
    row(id::SKEP_GET_PREEMPTIONS, time::get_preemptions, Plain),
    row(id::SKEP_GET_FUNC_VECTOR, tracing::get_func_vector, SaveVectors),
    row(id::SKEP_SET_ERRNO, task::set_errno, SaveVectors),
    row(id::SKEP_GET_FUNC_RET_WORD, tracing::get_func_ret_word, Plain),
    row(kfunc::id::BPF_RDONLY_CAST, first, Plain),
    row(kfunc::id::BPF_RCU_READ_LOCK, nothing, Plain),
    row(kfunc::id::BPF_RCU_READ_UNLOCK, nothing, Plain),
    row(kfunc::id::BPF_PREEMPT_DISABLE, nothing, Plain),
    row(kfunc::id::BPF_PREEMPT_ENABLE, nothing, Plain),
    row(kfunc::id::BPF_LOCAL_IRQ_SAVE, nothing, Plain),
    row(kfunc::id::BPF_LOCAL_IRQ_RESTORE, nothing, Plain),
    row(kfunc::id::BPF_DYNPTR_SLICE, dynptr::slice, SaveVectors),
    row(kfunc::id::BPF_DYNPTR_SLICE_RDWR, dynptr::slice_rdwr, SaveVectors),
    row(kfunc::id::BPF_DYNPTR_ADJUST, dynptr::adjust, SaveVectors),
    row(kfunc::id::BPF_DYNPTR_IS_NULL, dynptr::is_null, SaveVectors),
    row(kfunc::id::BPF_DYNPTR_IS_RDONLY, dynptr::is_rdonly, SaveVectors),
    row(kfunc::id::BPF_DYNPTR_SIZE, dynptr::size, SaveVectors),
    row(kfunc::id::BPF_DYNPTR_CLONE, dynptr::clone, SaveVectors),
    row(kfunc::id::BPF_DYNPTR_COPY, dynptr::copy, SaveVectors),
    row(kfunc::id::BPF_DYNPTR_MEMSET, dynptr::memset, SaveVectors),
    row(kfunc::id::BPF_ITER_NUM_NEW, iter::num_new, Plain),
    row(kfunc::id::BPF_ITER_NUM_NEXT, iter::num_next, Plain),
    row(kfunc::id::BPF_ITER_NUM_DESTROY, iter::num_destroy, Plain),
    row(kfunc::id::BPF_ITER_BITS_NEW, iter::bits_new, SaveVectors),
    row(kfunc::id::BPF_ITER_BITS_NEXT, iter::bits_next, SaveVectors),
    row(kfunc::id::BPF_ITER_BITS_DESTROY, iter::bits_destroy, SaveVectors),
    row(kfunc::id::BPF_COPY_FROM_USER_STR, probe::copy_from_user_str, SaveVectors),
    row(kfunc::id::BPF_STRCMP, string::strcmp, SaveVectors),
    row(kfunc::id::BPF_STRCASECMP, string::strcasecmp, SaveVectors),
    row(kfunc::id::BPF_STRLEN, string::strlen, SaveVectors),
    row(kfunc::id::BPF_STRNLEN, string::strnlen, SaveVectors),
    row(kfunc::id::BPF_STRCHR, string::strchr, SaveVectors),
    row(kfunc::id::BPF_STRCHRNUL, string::strchrnul, SaveVectors),
    row(kfunc::id::BPF_STRNCHR, string::strnchr, SaveVectors),
    row(kfunc::id::BPF_STRRCHR, string::strrchr, SaveVectors),
    row(kfunc::id::BPF_STRSPN, string::strspn, SaveVectors),
    row(kfunc::id::BPF_STRCSPN, string::strcspn, SaveVectors),
    row(kfunc::id::BPF_STRSTR, string::strstr, SaveVectors),
    row(kfunc::id::BPF_STRNSTR, string::strnstr, SaveVectors),
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
