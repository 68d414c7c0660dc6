//! What to do about a fault.

use super::Reason;
use skep_isa::{kfunc, op};
use skep_object::Missing;

/// A call of what a register points to, which no kernel takes.
const CALLX: u8 = op::CALL | op::X;

/// Explains an instruction that asks for what is not there.
pub(crate) fn missing(what: &Missing) -> String {
    match what {
        Missing::Type(what) => {
            format!(
                "the types the program is fitted to (CO-RE) have no answer to {what}; test with `bpf_core_field_exists` before"
            )
        }
        Missing::Function(name) => {
            format!(
                "`{name}` is a weak kernel function that skep does not offer; call it only behind `bpf_ksym_exists`"
            )
        }
    }
}

/// Finds advice for a reason.
pub(crate) fn hint(reason: &Reason) -> Option<String> {
    let text = match reason {
        Reason::NotMemory { kind, .. } if kind == "scalar" => {
            "the verifier takes this for a plain number, not for a pointer; read the traced process's memory with `bpf_probe_read_user`"
        }
        Reason::NotMemory { kind, .. } if kind.ends_with("_or_null") => {
            "test the pointer against NULL before using it"
        }
        Reason::NoArithmetic { nullable: true, .. } => {
            "test the pointer against NULL before using it"
        }
        Reason::UnknownOpcode { code: CALLX } => {
            "this calls a function through a pointer, as clang calls helpers at `-O0`: compile with `-O2`, and call functions by their names"
        }
        Reason::NegativeIndex { .. } => "make the index unsigned, or test it against 0 as well",
        Reason::Unbounded { .. } | Reason::OutsideRange { .. } => {
            "compare the index with the size right before the access, in one variable"
        }
        Reason::OutsidePacket { .. } => "compare the end of the access with `data_end` first",
        Reason::InfiniteLoop { .. } => {
            "an iteration changes nothing that the verifier tracks: count the iterations in a variable, with a constant bound"
        }
        Reason::TooComplex { .. } => {
            "turns of a loop are walked one by one: make them fewer, or use `bpf_loop` or `bpf_for`"
        }
        Reason::Unreleased { .. } => "submit or discard the ring buffer record on every path",
        Reason::NeedsGpl { .. } => "add `char LICENSE[] SEC(\"license\") = \"GPL\";`",
        Reason::UninitStackRead { .. } | Reason::UninitIndirect { .. } => {
            "initialize the whole variable, padding too, with `__builtin_memset`"
        }
        Reason::DynptrKey { .. } => {
            "copy the key into a map's value, and make a dynptr of that with `bpf_dynptr_from_mem`"
        }
        Reason::Misaligned { .. } => "align the field to its size",
        Reason::ExceptionCallback => kfunc::NO_UNWINDING,
        Reason::Unsupported { what } => kfunc::by_name(what).and_then(|(_, k)| k.unsupported)?,
        Reason::BadReturn { .. } => "return a value of that range on every path",
        Reason::Function { why, .. } => why.hint(),
        _ => return None,
    };
    Some(text.to_owned())
}
