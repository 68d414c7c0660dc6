//! Registers and stacks in the words of the kernel's log (kernel/bpf/log.c).

use crate::reg::{Flags, Kind, Reg};
use crate::scalar::Scalar;
use crate::stack::{Byte, DynptrKind, Slot};
use crate::state::{Frame, State};
use crate::tnum::Tnum;
use skep_isa::kfunc;
use skep_object::{Btf, Linked};
use std::fmt::{Display, Formatter, Result};

/// What the names of maps and types are taken from.
#[derive(Clone, Copy)]
pub(crate) struct Names<'a> {
    pub(crate) prog: &'a Linked,
    /// Types of the target.
    pub(crate) target: Option<&'a Btf>,
}

/// One register, seen from a frame: `scalar(smin=0,smax=umax=7,var_off=(0x0; 0x7))`.
pub(crate) struct Shown<'a> {
    pub(crate) reg: &'a Reg,
    pub(crate) frame: usize,
    pub(crate) names: Names<'a>,
}

/// A signed number: small ones decimal, all others as the bits they are.
pub(crate) struct Signed(pub(crate) i64);

/// An unsigned number, likewise.
struct Unsigned(u64);

impl Display for Signed {
    fn fmt(&self, f: &mut Formatter<'_>) -> Result {
        if i16::try_from(self.0).is_ok() {
            write!(f, "{}", self.0)
        } else {
            write!(f, "{:#x}", self.0)
        }
    }
}

impl Display for Unsigned {
    fn fmt(&self, f: &mut Formatter<'_>) -> Result {
        if u16::try_from(self.0).is_ok() {
            write!(f, "{}", self.0)
        } else {
            write!(f, "{:#x}", self.0)
        }
    }
}

/// List in brackets with commas between them.
struct List<'a, 'b> {
    f: &'a mut Formatter<'b>,
    sep: &'static str,
}

impl List<'_, '_> {
    fn add(&mut self, part: std::fmt::Arguments<'_>) -> Result {
        let sep = std::mem::replace(&mut self.sep, ",");
        write!(self.f, "{sep}{part}")
    }

    fn add_if(&mut self, yes: bool, part: std::fmt::Arguments<'_>) -> Result {
        if yes { self.add(part) } else { Ok(()) }
    }
}

impl Shown<'_> {
    fn type_name(&self) -> &str {
        let name = match self.reg.kind {
            Kind::Btf(id) => self.names.target.map(|t| t.name(id)),
            Kind::Local(id) => self.names.prog.btf.as_deref().map(|t| t.name(id)),
            _ => None,
        };
        name.unwrap_or_default()
    }

    fn map(&self, list: &mut List<'_, '_>) -> Result {
        let (Kind::Map(m) | Kind::Value(m) | Kind::Key(m)) = self.reg.kind else { return Ok(()) };
        let Some(spec) = self.names.prog.maps.get(m as usize).map(|m| &m.spec) else {
            return Ok(());
        };
        list.add_if(!spec.name.is_empty(), format_args!("map={}", spec.name))?;
        list.add(format_args!("ks={},vs={}", spec.key_size(), spec.value_size))
    }
}

impl Display for Shown<'_> {
    fn fmt(&self, f: &mut Formatter<'_>) -> Result {
        let r = self.reg;
        match r.kind {
            Kind::Uninit => return f.write_str("?"),
            Kind::Scalar => {
                if let Some(n) = r.val.as_const() {
                    return write!(f, "{}", Signed(n as i64));
                }
                f.write_str("scalar(")?;
                let mut list = List { f, sep: "" };
                if r.id != 0 {
                    list.add(format_args!("id={}", r.id))?;
                    if r.delta != 0 {
                        write!(list.f, "{:+}", r.delta)?;
                    }
                }
                ranges(&mut list, &r.val)?;
                return f.write_str(")");
            }
            Kind::Stack(frame) => {
                f.write_str("fp")?;
                if usize::from(frame) != self.frame {
                    write!(f, "[{frame}]")?;
                }
                if let Some(n) = r.val.as_const() {
                    return write!(f, "{}", Signed((n as i64).wrapping_add(i64::from(r.off))));
                }
            }
            Kind::Arena => return f.write_str("arena"),
            _ => {
                let flags = [
                    (Flags::RDONLY, "rdonly_"),
                    (Flags::PERCPU, "percpu_"),
                    (Flags::RCU, "rcu_"),
                    (Flags::UNTRUSTED, "untrusted_"),
                    (Flags::TRUSTED, "trusted_"),
                ];
                for (_, word) in flags.into_iter().filter(|(flag, _)| r.flags.has(*flag)) {
                    f.write_str(word)?;
                }
                let object = matches!(r.kind, Kind::Btf(_) | Kind::Local(_));
                let null = match (r.nullable, object) {
                    (false, _) => "",
                    (true, true) => "or_null_",
                    (true, false) => "_or_null",
                };
                write!(f, "{}{null}{}", r.kind.name(), self.type_name())?;
            }
        }
        f.write_str("(")?;
        let mut list = List { f, sep: "" };
        list.add_if(r.id != 0, format_args!("id={}", r.id))?;
        list.add_if(r.reference != 0, format_args!("ref_obj_id={}", r.reference))?;
        list.add_if(r.flags.has(Flags::NON_OWNING), format_args!("non_own_ref"))?;
        self.map(&mut list)?;
        list.add_if(r.off != 0, format_args!("off={}", Signed(r.off.into())))?;
        list.add_if(r.kind.is_packet(), format_args!("r={}", Unsigned(r.range.into())))?;
        match r.kind {
            Kind::Mem(size) | Kind::Record(size) => {
                list.add(format_args!("sz={}", Unsigned(size.into())))?
            }
            Kind::Dynptr(kind) => list.add(format_args!("type={}", dynptr(kind)))?,
            _ => {}
        }
        match r.val.as_const() {
            Some(0) => {}
            Some(n) => list.add(format_args!("imm={}", Signed(n as i64)))?,
            None => ranges(&mut list, &r.val)?,
        }
        f.write_str(")")
    }
}

impl Display for Scalar {
    /// A known number, or the bounds that say something, those that are equal together:
    /// `smin=0,smax=umax=7,var_off=(0x0; 0x7)`.
    fn fmt(&self, f: &mut Formatter<'_>) -> Result {
        match self.as_const() {
            Some(n) => write!(f, "{}", Signed(n as i64)),
            None => ranges(&mut List { f, sep: "" }, self),
        }
    }
}

fn ranges(list: &mut List<'_, '_>, val: &Scalar) -> Result {
    let (a, b) = (&val.r64, &val.r32);
    // The kernel widens small numbers only, so that large ones of 32 and of 64 bits look alike if
    // their bits do.
    let wide =
        |n: i32| if i16::try_from(n).is_ok() { i64::from(n) as u64 } else { u64::from(n as u32) };
    let mut bounds = [
        ("smin", a.smin as u64, a.smin == i64::MIN),
        ("smax", a.smax as u64, a.smax == i64::MAX),
        ("umin", a.umin, a.umin == 0),
        ("umax", a.umax, a.umax == u64::MAX),
        ("smin32", wide(b.smin), b.smin == i32::MIN),
        ("smax32", wide(b.smax), b.smax == i32::MAX),
        ("umin32", b.umin.into(), b.umin == 0),
        ("umax32", b.umax.into(), b.umax == u32::MAX),
    ];
    let negative = |name: &str, n: u64| name.starts_with('s') && (n as i64) < 0;
    for i in 0..bounds.len() {
        let (name, n, said) = bounds[i];
        if said {
            continue;
        }
        list.add(format_args!("{name}="))?;
        for (other, m, said) in bounds.iter_mut().skip(i + 2).step_by(2) {
            if !*said && *m == n && negative(other, *m) == negative(name, n) {
                *said = true;
                write!(list.f, "{other}=")?;
            }
        }
        if name.starts_with('s') {
            write!(list.f, "{}", Signed(n as i64))?
        } else {
            write!(list.f, "{}", Unsigned(n))?
        }
    }
    list.add_if(val.bits != Tnum::UNKNOWN, format_args!("var_off={}", val.bits))
}

fn dynptr(kind: DynptrKind) -> &'static str {
    match kind {
        DynptrKind::Any => "unknown",
        DynptrKind::Local => "local",
        DynptrKind::Ringbuf => "ringbuf",
        DynptrKind::Skb => "skb",
        DynptrKind::Xdp => "xdp",
    }
}

/// Tells whether two registers are described alike, wherever their numbers came from.
fn alike(a: &Reg, b: &Reg) -> bool {
    Reg { node: b.node, ..*a } == *b
}

/// What is known of a frame, on one line: everything, or what `before` held otherwise and what
/// `touched` picks.
pub(crate) struct Contents<'a> {
    pub(crate) state: &'a State,
    /// Which frame.
    pub(crate) frame: usize,
    /// The frame as it was, and the registers and the slot that were looked at; `None` shows
    /// everything.
    pub(crate) before: Option<(&'a Frame, u16, Option<usize>)>,
    pub(crate) names: Names<'a>,
}

impl Contents<'_> {
    fn slot(&self, f: &mut Formatter<'_>, n: usize, slot: &Slot) -> Result {
        let at = -8 * (n as i32 + 1);
        let shown = Shown { reg: &slot.reg, frame: self.frame, names: self.names };
        // Lowest address last, as in the kernel's tables.
        let mark = |b: &Byte| match b {
            Byte::Uninit => '?',
            Byte::Misc => 'm',
            Byte::Zero => '0',
            Byte::Spill => 'r',
            Byte::Special => 'd',
        };
        match (slot.bytes[0], slot.reg.kind) {
            (Byte::Spill, _) => {
                let above: String =
                    slot.bytes.iter().rev().take_while(|b| **b != Byte::Spill).map(mark).collect();
                write!(f, " fp{at}={above}{shown}")
            }
            (Byte::Special, Kind::Dynptr(kind)) if slot.reg.range == 0 => {
                write!(f, " fp{at}=dynptr_{}(", dynptr(kind))?;
                let mut list = List { f, sep: "" };
                list.add_if(slot.reg.id != 0, format_args!("id={}", slot.reg.id))?;
                list.add_if(
                    slot.reg.reference != 0,
                    format_args!("ref_id={}", slot.reg.reference),
                )?;
                f.write_str(")")
            }
            (Byte::Special, Kind::Iter { of, drained }) if slot.reg.range == 0 => {
                let name = kfunc::by_id(of).and_then(kfunc::Kfunc::iterator).map_or("", |i| i.0);
                let state = if drained { "drained" } else { "active" };
                write!(f, " fp{at}={name}(ref_id={},state={state})", slot.reg.reference)
            }
            (Byte::Special, _) => Ok(()),
            _ if slot.bytes.iter().all(|b| *b == Byte::Uninit) => Ok(()),
            _ => write!(f, " fp{at}={}", slot.bytes.iter().rev().map(mark).collect::<String>()),
        }
    }
}

impl Display for Contents<'_> {
    fn fmt(&self, f: &mut Formatter<'_>) -> Result {
        let Some(frame) = self.state.frames.get(self.frame) else { return Ok(()) };
        if self.frame > 0 {
            write!(f, " frame{}:", self.frame)?;
        }
        for (n, reg) in frame.regs.iter().enumerate().filter(|(_, r)| r.kind != Kind::Uninit) {
            let was = |old: &Frame| old.regs.get(n).is_some_and(|r| alike(r, reg));
            if self.before.is_none_or(|(old, touched, _)| touched & (1 << n) != 0 || !was(old)) {
                write!(f, " R{n}={}", Shown { reg, frame: self.frame, names: self.names })?;
            }
        }
        for (n, slot) in frame.stack.slots().iter().enumerate() {
            let was = |old: &Frame| {
                let old = old.stack.slots().get(n).unwrap_or(&Slot::UNINIT);
                old.has_same_bytes(slot) && alike(&old.reg, &slot.reg)
            };
            if self.before.is_none_or(|(old, _, touched)| touched == Some(n) || !was(old)) {
                self.slot(f, n, slot)?;
            }
        }
        for (n, r) in self.state.refs.iter().enumerate() {
            write!(f, "{}{}", if n == 0 { " refs=" } else { "," }, r.id)?;
        }
        if frame.held.is_some() {
            f.write_str(" cb")?;
        }
        if self.state.later {
            f.write_str(" async_cb")?;
        }
        Ok(())
    }
}
