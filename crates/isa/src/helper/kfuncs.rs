//! The kernel functions skep knows, one row each, under numbers of its own.

use super::ArgType::{Anything, Ctx};
use super::Progs::{All, Only};
use super::RetType::{Integer, Mem};
use super::{Helper, KFUNC_BASE, row};
use crate::prog::ProgramType as P;

const SESSION: &[P] = &[P::Tracing, P::Kprobe];

pub(super) const KFUNCS: &[Helper] = &[
    row(KFUNC_BASE, "bpf_session_is_return", &[Ctx], Integer, Only(SESSION)),
    row(KFUNC_BASE + 1, "bpf_session_cookie", &[Ctx], Mem(8), Only(SESSION)),
    row(KFUNC_BASE + 2, "bpf_get_cpu_time_counter", &[], Integer, All),
    row(KFUNC_BASE + 3, "bpf_cpu_time_counter_to_ns", &[Anything], Integer, All),
    // Not the kernel's.
    row(KFUNC_BASE + 4, "skep_get_func_sp", &[Ctx], Integer, Only(&[P::Tracing])),
    row(KFUNC_BASE + 5, "skep_get_preemptions", &[], Integer, All),
];
