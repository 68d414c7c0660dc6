//! What a program finds behind r1: the context of each program type, as offsets, widths and rights.

use crate::prog::{AttachType, ProgramType};

/// One field of a context.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Field {
    /// The C name.
    pub name: &'static str,
    /// Offset in bytes from the context pointer.
    pub off: u32,
    /// Size in bytes.
    pub size: u32,
    /// The program may store to it.
    pub writable: bool,
    /// What a load yields.
    pub kind: FieldKind,
}

/// Tells what a load of a context field yields.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub enum FieldKind {
    /// A number; narrower aligned loads are allowed.
    Scalar,
    /// Start of the packet.
    Packet,
    /// End of the packet.
    PacketEnd,
    /// Start of the metadata before the packet.
    PacketMeta,
}

/// A context layout.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Layout {
    /// Size in bytes; no access may pass it.
    pub size: u32,
    /// The fields in order of offset, or empty when every aligned eight-byte word is a readable scalar.
    pub fields: &'static [Field],
}

/// The tracing frame (fentry, fexit, fmod_ret, fsession and their multi forms): eight-byte words around the pointer
/// that programs get in r1. Words below it are reached through helpers only.
pub mod tracing {
    /// Argument words in the frame; further arguments are not shown.
    pub const MAX_ARGS: usize = 12;
    /// Argument words shown when the function's prototype is not known: the integer registers.
    pub const UNTYPED_ARGS: usize = 6;
    /// Bytes of the frame a program may read: [`MAX_ARGS`] arguments and the return value behind the last of them.
    pub const SIZE: u32 = (MAX_ARGS as u32 + 1) * 8;
    /// Number of arguments shown, `bpf_get_func_arg_cnt` (the kernel's place, ctx\[-1\]).
    pub const NR_ARGS: i32 = -8;
    /// Address of the function, `bpf_get_func_ip` (the kernel's place, ctx\[-2\]).
    pub const IP: i32 = -16;
    /// Attach cookie of the running program, `bpf_get_attach_cookie`.
    pub const COOKIE: i32 = -24;
    /// 0 at entry, 1 at return, `bpf_session_is_return`.
    pub const IS_RETURN: i32 = -32;
    /// Address of the running program's session cookie, eight bytes kept from entry to return, `bpf_session_cookie`.
    pub const SESSION: i32 = -40;
}

/// `struct pt_regs` of x86-64 (arch/x86/include/asm/ptrace.h), the context of uprobe-style programs.
pub mod pt_regs {
    #![allow(missing_docs, reason = "register names")]
    pub const R15: u32 = 0;
    pub const R14: u32 = 8;
    pub const R13: u32 = 16;
    pub const R12: u32 = 24;
    pub const BP: u32 = 32;
    pub const BX: u32 = 40;
    pub const R11: u32 = 48;
    pub const R10: u32 = 56;
    pub const R9: u32 = 64;
    pub const R8: u32 = 72;
    pub const AX: u32 = 80;
    pub const CX: u32 = 88;
    pub const DX: u32 = 96;
    pub const SI: u32 = 104;
    pub const DI: u32 = 112;
    pub const ORIG_AX: u32 = 120;
    pub const IP: u32 = 128;
    pub const CS: u32 = 136;
    pub const FLAGS: u32 = 144;
    pub const SP: u32 = 152;
    pub const SS: u32 = 160;
    pub const SIZE: u32 = 168;
}

const fn f(name: &'static str, off: u32, size: u32, writable: bool, kind: FieldKind) -> Field {
    Field { name, off, size, writable, kind }
}

/// `struct xdp_md` (include/uapi/linux/bpf.h).
pub const XDP_MD: Layout = Layout {
    size: 24,
    fields: &[
        f("data", 0, 4, false, FieldKind::Packet),
        f("data_end", 4, 4, false, FieldKind::PacketEnd),
        f("data_meta", 8, 4, false, FieldKind::PacketMeta),
        f("ingress_ifindex", 12, 4, false, FieldKind::Scalar),
        f("rx_queue_index", 16, 4, false, FieldKind::Scalar),
        f("egress_ifindex", 20, 4, false, FieldKind::Scalar),
    ],
};

/// The context of uprobe-style programs: any aligned word of `struct pt_regs`.
pub const PT_REGS: Layout = Layout { size: pt_regs::SIZE, fields: &[] };

/// The context of tracing programs.
pub const TRACING: Layout = Layout { size: tracing::SIZE, fields: &[] };

/// Finds the context layout of a program type, when skep offers that type.
#[must_use]
pub fn layout(prog: ProgramType, attach: Option<AttachType>) -> Option<Layout> {
    match (prog, attach) {
        (ProgramType::Kprobe, _) => Some(PT_REGS),
        (ProgramType::Tracing, Some(AttachType::TraceIter)) => None,
        (ProgramType::Tracing | ProgramType::RawTracepoint, _) => Some(TRACING),
        (ProgramType::Xdp, _) => Some(XDP_MD),
        (ProgramType::Syscall, _) => Some(Layout { size: u16::MAX as u32, fields: &[] }),
        _ => None,
    }
}
