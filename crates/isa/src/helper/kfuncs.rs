//! Kernel functions that take plain arguments, one row each, under numbers of skep's own. All
//! others are rows of [`crate::kfunc`].

use super::ArgType::{Anything, Ctx};
use super::Progs::{All, Only};
use super::RetType::{Integer, Mem};
use super::{AttachRule, helpers, row};
use crate::prog::ProgramType as P;

const SESSION: &[P] = &[P::Tracing, P::Kprobe];

helpers! {
    from crate::helper::KFUNC_BASE;
    0 BPF_SESSION_IS_RETURN "bpf_session_is_return" =>
        row(&[Ctx], Integer, Only(SESSION)).attach(AttachRule::Session);
    1 BPF_SESSION_COOKIE "bpf_session_cookie" =>
        row(&[Ctx], Mem(8), Only(SESSION)).attach(AttachRule::Session);
    2 BPF_GET_CPU_TIME_COUNTER "bpf_get_cpu_time_counter" =>
        row(&[], Integer, All);
    3 BPF_CPU_TIME_COUNTER_TO_NS "bpf_cpu_time_counter_to_ns" =>
        row(&[Anything], Integer, All);
    // Not the kernel's.
    4 SKEP_GET_FUNC_SP "skep_get_func_sp" =>
        row(&[Ctx], Integer, Only(&[P::Tracing])).attach(AttachRule::Trampoline);
    5 SKEP_GET_PREEMPTIONS "skep_get_preemptions" => row(&[], Integer, All);
    6 SKEP_GET_FUNC_VECTOR "skep_get_func_vector" =>
        row(&[Ctx, Anything], Integer, Only(&[P::Tracing])).attach(AttachRule::Trampoline);
    7 SKEP_SET_ERRNO "skep_set_errno" => row(&[Anything], Integer, Only(SESSION));
    8 SKEP_DETACH_FUNC "skep_detach_func" =>
        row(&[Ctx], Integer, Only(&[P::Tracing])).attach(AttachRule::Trampoline);
    9 SKEP_GET_FUNC_RET_WORD "skep_get_func_ret_word" =>
        row(&[Ctx, Anything], Integer, Only(&[P::Tracing])).attach(AttachRule::Trampoline);
}
