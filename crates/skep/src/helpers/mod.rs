//! The helpers programs call: one function each, in files by what they are about, and one row each in `TABLE`.
//!
//! Everything here runs inside traced processes, on the event path. A row says [`HelperCall::Plain`] only when the function
//! uses no vector register and calls nothing outside the section `.text.skep_event`; a test reads the machine code.
//! All others are called with the vector registers saved.

mod format;
mod map;
mod number;
#[cfg(test)]
mod oracle;
mod print;
mod probe;
mod ringbuf;
mod task;
mod time;
mod tracing;

use skep_isa::HelperId;
use skep_isa::ctx::tracing as frame;
use skep_vm::{HelperCall, HelperFn, HelperImpl};

pub(crate) use print::set_log;

/// The kernel's errno values that helpers return, negated.
mod errno {
    pub const EFAULT: i64 = 14;
    pub const EINVAL: i64 = 22;
    pub const ENOSPC: i64 = 28;
    pub const ERANGE: i64 = 34;
    pub const EOPNOTSUPP: i64 = 95;
}

const fn fail(errno: i64) -> u64 {
    (-errno) as u64
}

struct Row {
    id: HelperId,
    func: HelperFn,
    how: HelperCall,
}

const fn row(id: HelperId, func: HelperFn, how: HelperCall) -> Row {
    Row { id, func, how }
}

use HelperCall::{LoadCtx, MapLookup, Plain, SaveVectors, TailCall};

/// Every helper that can be called here, in order of number.
static TABLE: &[Row] = &[
    row(1, map::lookup_elem, MapLookup),
    row(2, map::update_elem, SaveVectors),
    row(3, map::delete_elem, SaveVectors),
    row(4, probe::read, SaveVectors),
    row(5, time::ktime_get_ns, Plain),
    row(6, print::trace_printk, SaveVectors),
    row(7, task::get_prandom_u32, Plain),
    row(8, task::get_smp_processor_id, Plain),
    row(12, crate::tail::tail_call, TailCall),
    row(14, task::get_current_pid_tgid, Plain),
    row(15, task::get_current_uid_gid, SaveVectors),
    row(16, task::get_current_comm, SaveVectors),
    row(45, probe::read_str, SaveVectors),
    row(105, number::strtol, Plain),
    row(106, number::strtoul, Plain),
    row(112, probe::read, SaveVectors),
    row(113, probe::read, SaveVectors),
    row(114, probe::read_str, SaveVectors),
    row(115, probe::read_str, SaveVectors),
    row(118, time::jiffies64, SaveVectors),
    row(125, time::ktime_get_boot_ns, SaveVectors),
    row(130, ringbuf::output, SaveVectors),
    row(131, ringbuf::reserve, SaveVectors),
    row(132, ringbuf::submit, SaveVectors),
    row(133, ringbuf::discard, SaveVectors),
    row(134, ringbuf::query, SaveVectors),
    row(160, time::ktime_get_coarse_ns, SaveVectors),
    row(165, print::snprintf, SaveVectors),
    row(173, tracing::get_func_ip, LoadCtx(frame::IP)),
    row(174, tracing::get_attach_cookie, LoadCtx(frame::COOKIE)),
    row(177, print::trace_vprintk, SaveVectors),
    row(182, number::strncmp, Plain),
    row(183, tracing::get_func_arg, Plain),
    row(184, tracing::get_func_ret, Plain),
    row(185, tracing::get_func_arg_cnt, LoadCtx(frame::NR_ARGS)),
    row(208, time::ktime_get_tai_ns, SaveVectors),
    row(skep_isa::helper::KFUNC_BASE, tracing::session_is_return, LoadCtx(frame::IS_RETURN)),
    row(skep_isa::helper::KFUNC_BASE + 1, tracing::session_cookie, LoadCtx(frame::SESSION)),
    row(skep_isa::helper::KFUNC_BASE + 2, time::get_cpu_time_counter, Plain),
    row(skep_isa::helper::KFUNC_BASE + 3, time::cpu_time_counter_to_ns, Plain),
];

/// Finds what the code generator needs to call a helper; `None` when it cannot be called here.
#[must_use]
pub fn implementation(id: HelperId) -> Option<HelperImpl> {
    let row = TABLE.binary_search_by_key(&id, |r| r.id).ok().and_then(|i| TABLE.get(i))?;
    Some(HelperImpl { func: row.func, how: row.how })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_row_is_a_known_helper_and_rows_are_sorted() {
        assert!(TABLE.is_sorted_by(|a, b| a.id < b.id));
        for row in TABLE {
            assert!(skep_isa::helper::by_id(row.id).is_some(), "helper {}", row.id);
        }
    }
}
