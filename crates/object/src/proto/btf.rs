//! Prototypes out of BTF.

use super::{Class, Leaf, Prototype, Type, ValueKind};
use crate::Btf;
use crate::btf::{Kind, TypeId};

/// Deepest nesting of structures that is followed.
const MAX_DEPTH: u32 = 32;
/// Most members of a structure and of what is in it that are looked at.
const MAX_PARTS: u32 = 1 << 14;
/// Most elements of an array that are looked at; 16 bytes have no more.
const MAX_ELEMENTS: u64 = 16;

impl Prototype {
    /// Finds a function by name; `None` when the types do not have it, or have it more than once
    /// with different prototypes.
    ///
    /// ```no_run
    /// # use skep_object::{CoreTarget, Prototype};
    /// let target = CoreTarget::parse(&std::fs::read("program")?)?;
    /// let add = Prototype::from_btf(target.btf(), "add");
    /// assert_eq!(add.map(|p| p.words().len()), Some(2));
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    #[must_use]
    pub fn from_btf(btf: &Btf, name: &str) -> Option<Self> {
        let is_it = |(_, t): &(TypeId, &crate::btf::Type)| {
            matches!(t.kind, Kind::Func(_)) && btf.string(t.name_off) == name
        };
        let mut all = btf.types().filter(is_it).map(|(_, t)| of_function(btf, name, &t.kind));
        let first = all.next()??;
        all.all(|other| other.is_some_and(|o| o.same_words(&first))).then_some(first)
    }
}

fn of_function(btf: &Btf, name: &str, kind: &Kind) -> Option<Prototype> {
    let Kind::Func(f) = kind else { return None };
    let Kind::FuncProto(proto) = &btf.get(f.proto).ok()?.kind else { return None };
    let is_rest = |p: &crate::btf::Param| p.type_id == 0 && p.name_off == 0;
    let variadic = proto.params.last().is_some_and(is_rest);
    let named = proto.params.get(..proto.params.len() - usize::from(variadic))?;
    let params = named
        .iter()
        .map(|p| Some((btf.string(p.name_off).to_owned(), of_type(btf, p.type_id)?)))
        .collect::<Option<_>>()?;
    Prototype::new(name, params, of_type(btf, proto.ret)?, variadic)
}

fn of_type(btf: &Btf, id: TypeId) -> Option<Type> {
    let (id, t) = btf.resolve(id).ok()?;
    let text = btf.describe(id);
    let size = || btf.size_of(id).ok();
    Some(match &t.kind {
        Kind::Void => Type::void(),
        Kind::Int(_) => Type::scalar(&text, ValueKind::Int, size()?, Class::Integer),
        Kind::Enum(_) | Kind::Enum64(_) => {
            Type::scalar(&text, ValueKind::Enum, size()?, Class::Integer)
        }
        Kind::Ptr(to) => {
            let (to, target) = btf.resolve(*to).ok()?;
            let named = matches!(target.kind, Kind::Struct(_) | Kind::Union(_) | Kind::Fwd { .. });
            let name = named.then(|| btf.name(to).to_owned()).filter(|n| !n.is_empty());
            let target = btf.describe(to);
            let star = if target.ends_with('*') { "*" } else { " *" };
            Type::scalar(&format!("{target}{star}"), ValueKind::Pointer(name), 8, Class::Integer)
        }
        Kind::Float(n) => float(&text, u64::from(*n)),
        Kind::Struct(_) | Kind::Union(_) => {
            let size = size()?;
            let mut members = Members { whole: size, leaves: Vec::new(), left: MAX_PARTS };
            let align = flatten(btf, id, 0, 0, &mut members)?;
            let kind = if matches!(t.kind, Kind::Struct(_)) {
                ValueKind::Struct
            } else {
                ValueKind::Union
            };
            Type {
                size,
                align,
                leaves: members.leaves,
                ..Type::scalar(&text, kind, 0, Class::Integer)
            }
        }
        _ => return None,
    })
}

fn float(text: &str, size: u64) -> Type {
    let class = if size > 8 && !text.contains("128") { Class::X87 } else { Class::Sse };
    Type::scalar(text, ValueKind::Float, size, class)
}

/// What a structure consists of.
struct Members {
    /// Bytes of the whole.
    whole: u64,
    leaves: Vec<Leaf>,
    /// Members that may still be looked at.
    left: u32,
}

/// Adds the parts of a type that begins at a bit of the whole, and returns its alignment.
fn flatten(btf: &Btf, id: TypeId, at: u64, depth: u32, out: &mut Members) -> Option<u64> {
    let (id, t) = btf.resolve(id).ok()?;
    out.left = out.left.checked_sub(1).filter(|_| depth <= MAX_DEPTH)?;
    match &t.kind {
        Kind::Struct(c) | Kind::Union(c) => {
            let mut align = 1;
            for m in &c.members {
                let bit_offset = at.checked_add(m.bit_offset.into())?;
                if m.bitfield == 0 {
                    align = flatten(btf, m.type_id, bit_offset, depth + 1, out)?.max(align);
                } else if out.whole <= 16 {
                    out.leaves.push(Leaf {
                        bit_offset,
                        bits: m.bitfield.into(),
                        class: Class::Integer,
                        align: 1,
                    });
                }
            }
            Some(align)
        }
        Kind::Array(a) => {
            let size = btf.size_of(a.elem).ok()?;
            let shown = if out.whole > 16 { 1 } else { u64::from(a.len).min(MAX_ELEMENTS) };
            let (mut align, before) = (1, out.leaves.len());
            for i in 0..shown.max(1) {
                align = flatten(
                    btf,
                    a.elem,
                    at.checked_add(i.checked_mul(size)?.checked_mul(8)?)?,
                    depth + 1,
                    out,
                )?;
            }
            // An array without elements has an alignment and no members.
            if a.len == 0 {
                out.leaves.truncate(before);
            }
            Some(align)
        }
        _ => {
            let part = of_type(btf, id)?;
            if out.whole <= 16 {
                out.leaves.extend(
                    part.leaves
                        .iter()
                        .map(|l| Leaf { bit_offset: at.saturating_add(l.bit_offset), ..*l }),
                );
            }
            Some(part.align)
        }
    }
}
