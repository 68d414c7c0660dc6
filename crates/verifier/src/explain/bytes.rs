//! Which bytes of what an access means.

use skep_isa::ctx::{self, Layout};
use skep_isa::{AttachType, op};
use skep_object::btf::Kind as Type;

use super::Fault;
use super::access::{Access, Size};
use super::index::{self, Index};
use crate::check::spec;
use crate::reg::{Kind, Reg};
use crate::reject::{Reason, Step};
use crate::stack::Byte;

/// What an address leads into.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) struct Region {
    /// `a value`, `.bss`.
    pub name: String,
    /// As the kernel's log calls it, and its size.
    logged: Option<(&'static str, &'static str)>,
    pub size: u32,
    /// The variable that the constant part of the address lies in, when the region holds several,
    /// and where it ends.
    pub variable: Option<(String, u32)>,
}

/// Where a number of the byte says nothing any more.
const FAR: u64 = 1 << 29;

/// An access that was looked into.
#[derive(Clone, Debug)]
pub(super) struct FaultyAccess {
    pub access: Access,
    pub base: Reg,
    /// Where the first byte may be.
    pub first: (i64, i64),
    pub region: Option<Region>,
    pub index: Option<Index>,
}

impl FaultyAccess {
    pub fn of(fault: &Fault<'_>, step: &Step) -> Option<Self> {
        let reg = match fault.reason {
            Reason::OutOfBounds { .. } => based(step, fault)?,
            Reason::UnboundedSize { reg }
            | Reason::NegativeSize { reg }
            | Reason::ZeroSize { reg, .. } => reg.checked_sub(1)?,
            reason => reason.register().or_else(|| based(step, fault))?,
        };
        let base = *fault.state.reg(reg);
        if base.nullable {
            return None;
        }
        let access = Access::of(fault.prog, fault.state, step.code, reg)?;
        let fixed = i64::from(base.off) + access.off;
        let (low, high) = reach(&base);
        let last = fault.steps.len() - 1;
        Some(Self {
            access,
            first: (fixed.saturating_add(low), fixed.saturating_add(high)),
            region: region(fault, &base),
            index: index::of_pointer(fault.steps, last, reg),
            base,
        })
    }

    /// Where the first byte is when the index is 0.
    pub fn fixed(&self) -> i64 {
        let known = self.index.as_ref().and_then(|i| i.known).unwrap_or(0);
        (i64::from(self.base.off) + self.access.off).saturating_sub(known)
    }

    /// What the index may be at its end, and what to call it.
    fn may_be(&self, upper: bool) -> String {
        let (low, high) = reach(&self.base);
        let n = self.index.as_ref().and_then(|i| i.known).unwrap_or(if upper { high } else { low });
        let verb = if low == high { "is" } else { "may be" };
        let (what, n) = match &self.index {
            Some(index) if index.scale <= i64::MAX as u64 && n % index.scale as i64 == 0 => {
                ("index", n / index.scale as i64)
            }
            _ => ("offset", n),
        };
        if n == i64::MAX || n == i64::MIN {
            return format!("nothing bounds the {what}");
        }
        match self.region.as_ref().and_then(|r| r.variable.as_ref()) {
            Some((variable, _)) => format!("the {what} into `{variable}` {verb} {n}"),
            None => format!("the {what} {verb} {n}"),
        }
    }

    /// `bytes 128..136 of a value of 128: the index may be 16`.
    fn span(&self, fault: &Fault<'_>, upper: bool) -> Option<String> {
        let region = self.region.as_ref()?;
        let first = if upper { self.first.1 } else { self.first.0 };
        let mut why = self.access.why_so_many(fault.state);
        if self.base.val.as_const().is_none()
            || self.index.is_some() && matches!(self.access.size, Size::Insn)
        {
            let moved = self.may_be(upper);
            why = Some(why.map_or(moved.clone(), |size| format!("{moved}, and {size}")));
        }
        let of = format!("{} of {}", region.name, region.size);
        let why = why.map_or(String::new(), |why| format!(": {why}"));
        if first.unsigned_abs() >= FAR {
            return Some(format!(
                "bytes {} {of}{why}",
                if first < 0 { "before" } else { "behind" }
            ));
        }
        Some(format!(
            "bytes {first}..{} of {of}{why}",
            first.saturating_add_unsigned(self.access.bytes)
        ))
    }

    /// The line that the kernel prints before the register's.
    pub fn logged(&self, reason: &Reason) -> Option<String> {
        let (what, size_name) = self.region.as_ref()?.logged?;
        let Reason::OutsideRange { side, .. } = reason else { return None };
        let off = if *side == "max" { self.first.1 } else { self.first.0 };
        Some(format!(
            "invalid access to {what}, {size_name}={} off={off} size={}",
            self.region.as_ref()?.size,
            self.access.bytes
        ))
    }
}

/// The smallest and largest variable part of an address, the ends of the number line where there is
/// none.
fn reach(r: &Reg) -> (i64, i64) {
    let high = if r.val.r64.smin < 0 {
        r.val.r64.smax
    } else {
        i64::try_from(r.val.r64.umax).unwrap_or(i64::MAX)
    };
    (r.val.r64.smin, high)
}

/// The register that a load or store goes by, or the argument of a call that does not fit its size.
fn based(step: &Step, fault: &Fault<'_>) -> Option<u8> {
    let code = step.code;
    match code.class() {
        op::LDX => Some(code.src()),
        op::ST | op::STX if code.imm == op::ATOMIC_LOAD_ACQ && code.code & 0xe0 == op::ATOMIC => {
            Some(code.src())
        }
        op::ST | op::STX => Some(code.dst()),
        _ => (1..=5).find(|reg| {
            let Some(access) = Access::of(fault.prog, fault.state, code, *reg) else {
                return false;
            };
            let base = fault.state.reg(*reg);
            let first = i64::from(base.off).saturating_add(reach(base).0);
            let fits = |r: Region| {
                first >= 0 && first.saturating_add_unsigned(access.bytes) <= i64::from(r.size)
            };
            !base.nullable && region(fault, base).is_some_and(|r| !fits(r))
        }),
    }
}

fn region(fault: &Fault<'_>, r: &Reg) -> Option<Region> {
    let plain = |name: &str, logged, size| {
        Some(Region { name: name.to_owned(), logged, size, variable: None })
    };
    match r.kind {
        Kind::Value(map) => {
            let spec = spec(fault.prog, map)?;
            let logged = Some(("map value", "value_size"));
            if !spec.is_global_data() {
                return plain("a value", logged, spec.value_size);
            }
            let name =
                format!("`{}`", if spec.section.is_empty() { &spec.name } else { &spec.section });
            let variable = variable(fault, spec.value_type_id, r.off);
            Some(Region { name, logged, size: spec.value_size, variable })
        }
        Kind::Key(map) => {
            plain("a key", Some(("map key", "key_size")), spec(fault.prog, map)?.key_size())
        }
        Kind::Mem(n) => plain("memory", Some(("memory", "mem_size")), n),
        Kind::Record(n) => plain("a record", Some(("memory", "mem_size")), n),
        Kind::FlowKeys => plain("the flow keys", None, ctx::FLOW_KEYS_SIZE),
        _ => None,
    }
}

/// The variable of a section that a byte belongs to.
fn variable(fault: &Fault<'_>, section: u32, off: i32) -> Option<(String, u32)> {
    let btf = fault.prog.btf.as_ref()?;
    let Type::DataSec(section) = &btf.get(section).ok()?.kind else { return None };
    let off = u32::try_from(off).ok()?;
    let var = section.vars.iter().find(|v| v.offset <= off && off - v.offset < v.size)?;
    let name = btf.name(var.type_id);
    (!name.is_empty()).then(|| (name.to_owned(), var.offset.saturating_add(var.size)))
}

/// What goes on after the kernel's words.
pub(super) fn detail(
    fault: &Fault<'_>,
    step: &Step,
    found: Option<&FaultyAccess>,
) -> Option<String> {
    match fault.reason {
        Reason::OutOfBounds { what, off, size, region, .. } => {
            let told = found.and_then(|f| f.span(fault, true));
            told.or_else(|| {
                Some(format!(
                    "bytes {off}..{} of {what} of {region}",
                    off.saturating_add((*size).into())
                ))
            })
        }
        Reason::OutsideRange { side, .. } => found?.span(fault, *side == "max"),
        Reason::Unbounded { .. } => found?.span(fault, true),
        Reason::NegativeIndex { .. } => match found {
            Some(f) if f.region.is_some() => f.span(fault, false),
            f => Some(f?.may_be(false)),
        },
        Reason::OutsidePacket { .. } => Some(packet(found?, fault)),
        Reason::BadStackAccess { off, size, .. } => {
            let why = found
                .and_then(|f| f.access.why_so_many(fault.state))
                .map_or(String::new(), |why| format!(": {why}"));
            Some(format!(
                "bytes {}..{} of a stack from fp-512 to fp+0{why}",
                fp(*off),
                fp(off.saturating_add((*size).into()))
            ))
        }
        Reason::BadVariableStackAccess { .. } | Reason::VariableStack { .. } => {
            let f = found?;
            let end = f.first.1.saturating_add_unsigned(f.access.bytes);
            Some(format!(
                "bytes {}..{} of a stack from fp-512 to fp+0: {}",
                fp(f.first.0),
                fp(end),
                f.may_be(true)
            ))
        }
        Reason::UnboundedStack { .. } => Some(found?.may_be(true)),
        Reason::MakesOutOfBounds { .. } | Reason::UnboundedStep { .. } => step_size(fault, step),
        Reason::UninitStackRead { off, at, size }
        | Reason::UninitIndirect { off, at, size, .. } => unwritten(fault, found, *off, *at, *size),
        Reason::UnboundedSize { .. } | Reason::NegativeSize { .. } | Reason::ZeroSize { .. } => {
            size(fault)
        }
        Reason::BadContext { off, size } => {
            let (kind, attach) = (fault.prog.prog_type, fault.prog.attach_type);
            let of = format!("the context of {} programs", kind.name());
            if fault.layout.size == 0 {
                return Some(if attach == Some(AttachType::TraceIter) {
                    "iterators are given objects of the kernel".to_owned()
                } else if ctx::kernel_layout(kind, attach).is_some() {
                    format!("{of} exists in the kernel only")
                } else {
                    format!("{of} is not known to skep")
                });
            }
            let layout = fault.layout;
            Some(field(&layout, &of, *off, *size, step))
        }
        Reason::BadSockAccess { off, size, .. } => {
            let (layout, of) = match fault.state.reg(fault.reason.register()?).kind {
                Kind::SockCommon => (ctx::SOCK_COMMON, "`struct bpf_sock` that may be a request"),
                Kind::Socket => (ctx::SOCK, "`struct bpf_sock`"),
                Kind::TcpSock => (ctx::TCP_SOCK, "`struct bpf_tcp_sock`"),
                Kind::XdpSock => (ctx::XDP_SOCK, "`struct bpf_xdp_sock`"),
                _ => return None,
            };
            Some(field(&layout, of, *off, *size, step))
        }
        _ => None,
    }
}

fn packet(f: &FaultyAccess, fault: &Fault<'_>) -> String {
    let first = i64::from(f.base.off) + f.access.off;
    let end = first.saturating_add_unsigned(f.access.bytes);
    let why = f.access.why_so_many(fault.state).map_or(String::new(), |why| format!(" ({why})"));
    let of = match f.base.kind {
        Kind::PacketMeta => "metadata",
        _ => "packet",
    };
    let from = if f.base.id == 0 {
        format!("of the {of}")
    } else {
        "from a variable place in the packet".to_owned()
    };
    let end_name = if f.base.kind == Kind::PacketMeta { "data" } else { "data_end" };
    match f.base.range {
        _ if first < 0 => format!("bytes {first}..{end} {from}: before its beginning{why}"),
        0 => {
            format!("bytes {first}..{end} {from}: no comparison with `{end_name}` covers them{why}")
        }
        n => {
            format!("bytes {first}..{end} {from}: the comparison with `{end_name}` covers {n}{why}")
        }
    }
}

/// `fp-16`, `fp+8`.
fn fp(off: i64) -> String {
    format!("fp{off:+}")
}

/// Which of the bytes that are read were never written.
fn unwritten(
    fault: &Fault<'_>,
    found: Option<&FaultyAccess>,
    off: i64,
    at: u32,
    size: u32,
) -> Option<String> {
    let frame = match found?.base.kind {
        Kind::Stack(frame) => fault.state.frames.get(usize::from(frame))?,
        _ => return None,
    };
    let byte = |n: u32| {
        i32::try_from(off.saturating_add(n.into()))
            .map_or(Byte::Misc, |o| if o < 0 { frame.stack.byte(o) } else { Byte::Misc })
    };
    if at >= size {
        // At another place of several.
        return None;
    }
    if byte(at) == Byte::Special {
        return Some(format!("byte {at} belongs to an object of the kernel"));
    }
    let end = (at..size).find(|n| byte(*n) != Byte::Uninit).unwrap_or(size);
    let more = if (end..size).any(|n| byte(n) == Byte::Uninit) { " and more" } else { "" };
    let of =
        found?.access.why_so_many(fault.state).map_or(String::new(), |why| format!(" ({why})"));
    Some(match (end - at, size) {
        (n, size) if n == size => format!("none of the {size} bytes was written{of}"),
        (1, _) => format!("byte {at} of {size} was never written{more}{of}"),
        _ => format!("bytes {at}..{end} of {size} were never written{more}{of}"),
    })
}

/// How far a pointer is moved.
fn step_size(fault: &Fault<'_>, step: &Step) -> Option<String> {
    let reg = index::added(step)?;
    let index = index::of_number(fault.steps, fault.steps.len() - 1, reg);
    let val = &fault.state.reg(reg).val.r64;
    let scale = i64::try_from(index.scale).ok()?;
    let verb = if val.smin == val.smax { "is" } else { "may be" };
    Some(match (val.smin, val.smax) {
        (i64::MIN, high) if high > i64::MAX / 2 => "nothing bounds the index".to_owned(),
        (i64::MIN, _) => "the index may be negative".to_owned(),
        (low, _) if low < 0 => format!("the index {verb} {}", low / scale),
        (_, high) => format!("the index {verb} {}", high / scale),
    })
}

/// A size that has no proper end.
fn size(fault: &Fault<'_>) -> Option<String> {
    let reg = fault.reason.register()?;
    let val = &fault.state.reg(reg).val.r64;
    let may = match fault.reason {
        Reason::NegativeSize { .. } if val.smin == i64::MIN => "any number".to_owned(),
        Reason::NegativeSize { .. } => val.smin.to_string(),
        Reason::ZeroSize { .. } => "0".to_owned(),
        _ if val.umax == u64::MAX => "any number".to_owned(),
        _ => val.umax.to_string(),
    };
    let is = if val.umin == val.umax { "is" } else { "may be" };
    Some(format!("the size {is} {may}"))
}

/// Why bytes are no field of a structure that programs see.
fn field(layout: &Layout, of: &str, off: i64, size: u32, step: &Step) -> String {
    let writes = step.code.class() != op::LDX;
    let end = off.saturating_add(size.into());
    let (first, last) = (i64::from(layout.first), i64::from(layout.size));
    if off < first || end > last {
        return format!("bytes {off}..{end} of {of}, which has {first}..{last}");
    }
    if !off.unsigned_abs().is_multiple_of(size.into()) {
        return format!("{size} bytes are read and written at multiples of {size} only");
    }
    if layout.fields.is_empty() {
        return format!("{of} cannot be written");
    }
    let ends = |f: &ctx::Field| i64::from(f.off) + i64::from(f.size);
    let Some(f) = layout.fields.iter().find(|f| i64::from(f.off) <= off && off < ends(f)) else {
        return format!("{of} has no field at {off}");
    };
    if f.kind == ctx::FieldKind::Words {
        let what = if writes { "can only be read" } else { "are numbers of 4 bytes" };
        return format!("bytes {}..{} of {of} {what}", f.off, ends(f));
    }
    let (name, whole) = (f.name, f.size);
    if end > ends(f) {
        return format!(
            "bytes {off}..{end} are more than `{name}` of {of}, which has {}..{}",
            f.off,
            ends(f)
        );
    }
    if writes && !f.writable {
        return format!("`{name}` of {of} can only be read");
    }
    if step.code.code & 0xe0 == op::MEMSX && step.code.class() == op::LDX {
        return format!("`{name}` of {of} is an address, which is not loaded with a sign");
    }
    let verb = if writes { "written" } else { "read" };
    if size != whole {
        format!("`{name}` of {of} is {verb} as a whole, {whole} bytes")
    } else {
        format!("`{name}` of {of} cannot be {verb} here")
    }
}
