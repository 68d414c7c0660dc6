//! Type information: the BTF format, read, resolved and used to print and parse values.
//!
//! [`Btf::parse`] checks bytes from anywhere; after it every type id that a type refers to exists,
//! but types may still refer to themselves, so whatever follows references has a depth limit (the
//! kernel's, 32).

mod build;
mod decode;
mod encode;
mod ext;
mod functions;
mod kind;
mod long_double;
mod parse;
mod subset;
mod text;
mod value;

#[cfg(feature = "dwarf")]
pub(crate) use build::{Builder, MAX_VLEN};
pub(crate) use encode::Bits;
pub use ext::{BtfExt, CoreRelo, FuncInfo, LineInfo, SectionInfo};
pub use functions::FunctionTypes;
pub use kind::{
    Array, Composite, DataSec, DeclTag, Enum, EnumValue, Func, FuncProto, Int, Kind, Linkage,
    Member, Param, SecVar, Type, TypeId, Var,
};
pub use long_double::LongDouble;
pub use value::{Member as ValueMember, Value, ValueError};

use std::hash::{Hash, Hasher};

/// Longest chain of references that is followed (kernel/bpf/btf.c `MAX_RESOLVE_DEPTH`).
pub const MAX_DEPTH: usize = 32;

/// Holds the types of one object, or of one map or program file.
///
/// ```
/// use skep_object::Btf;
/// assert!(Btf::parse(b"\x7fELF").is_err());
/// ```
#[derive(Clone, PartialEq, Eq)]
pub struct Btf {
    raw: Vec<u8>,
    /// The string section, other bytes than UTF-8 replaced one by one so that offsets stay.
    strings: String,
    /// Type 0 is `void`.
    types: Vec<Type>,
    /// Of types out of debug information: where that describes them, in order.
    places: Vec<(u64, TypeId)>,
}

impl Hash for Btf {
    /// The rest is what these bytes say, also where a loader has filled in where variables are.
    fn hash<H: Hasher>(&self, state: &mut H) {
        self.raw.hash(state);
    }
}

/// The member of a structure that says which of the others is there: those are the variants of an
/// enumeration of Rust. Its type has their names and numbers, and one may have none.
pub const DISCRIMINANT: &str = "__discriminant";

/// Says why bytes are no valid type information, or why a type cannot be used.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
#[non_exhaustive]
pub enum BtfError {
    /// The data ends too early.
    #[error("BTF ends at offset {offset:#x}")]
    Truncated {
        /// Where more was expected.
        offset: usize,
    },
    /// The header is damaged or of an unknown kind.
    #[error("BTF header: {what}")]
    Header {
        /// What does not fit.
        what: &'static str,
    },
    /// A type is damaged.
    #[error("BTF type {id}: {what}")]
    Type {
        /// The type.
        id: TypeId,
        /// What does not fit.
        what: &'static str,
    },
    /// There is no such type.
    #[error("there is no BTF type {id}")]
    NoType {
        /// The type asked for.
        id: TypeId,
    },
    /// References go on for too long, or round in a circle.
    #[error("BTF type {id}: more than {MAX_DEPTH} references deep")]
    Depth {
        /// Where it began.
        id: TypeId,
    },
    /// The type has no size: functions, forward declarations.
    #[error("BTF type {id} ({kind}) has no size")]
    NoSize {
        /// The type.
        id: TypeId,
        /// Its kind.
        kind: &'static str,
    },
}

impl Btf {
    /// Returns the bytes: what [`parse`](Self::parse) was given, with sizes and offsets of sections
    /// filled in when it came from an object.
    #[must_use]
    pub fn raw(&self) -> &[u8] {
        &self.raw
    }

    /// Returns the number of types, `void` included: ids are below it.
    #[must_use]
    #[allow(clippy::len_without_is_empty, reason = "void is always there")]
    pub fn len(&self) -> usize {
        self.types.len()
    }

    /// Returns a type.
    ///
    /// # Errors
    /// When there is no such type.
    pub fn get(&self, id: TypeId) -> Result<&Type, BtfError> {
        self.types.get(id as usize).ok_or(BtfError::NoType { id })
    }

    /// Returns the string at an offset of the string section; empty when there is none.
    #[must_use]
    pub fn string(&self, offset: u32) -> &str {
        let rest = self.strings.get(offset as usize..).unwrap_or("");
        rest.split('\0').next().unwrap_or("")
    }

    /// Tells whether an offset lies in the string section.
    #[must_use]
    pub fn has_string(&self, offset: u32) -> bool {
        self.strings.is_char_boundary(offset as usize) && (offset as usize) < self.strings.len()
    }

    /// Returns a type's name; empty for anonymous types and unknown ids.
    #[must_use]
    pub fn name(&self, id: TypeId) -> &str {
        self.types.get(id as usize).map_or("", |t| self.string(t.name_off))
    }

    /// Walks all types with their ids, beginning with 1.
    pub fn types(&self) -> impl Iterator<Item = (TypeId, &Type)> {
        (0..).zip(&self.types).skip(1)
    }

    /// Finds the structure, union or enumeration that debug information describes at a place
    /// ([`Value::described_at`](crate::Value::described_at)).
    ///
    /// `None` also for one that is only declared there, if several definitions have its name.
    #[must_use]
    pub fn described_at(&self, place: u64) -> Option<TypeId> {
        let at = self.places.binary_search_by_key(&place, |(place, _)| *place).ok()?;
        self.places.get(at).map(|(_, id)| *id)
    }

    #[cfg(feature = "dwarf")]
    pub(crate) fn with_places(mut self, mut places: Vec<(u64, TypeId)>) -> Self {
        places.sort_unstable();
        self.places = places;
        self
    }

    /// Finds the first type with this name for which `accept` says yes.
    pub fn find(&self, name: &str, accept: impl Fn(&Kind) -> bool) -> Option<TypeId> {
        self.types()
            .find(|(_, t)| accept(&t.kind) && self.string(t.name_off) == name)
            .map(|(id, _)| id)
    }

    /// Follows typedefs and modifiers to the type that says what the bits mean.
    ///
    /// # Errors
    /// When the type does not exist or the chain is too long.
    pub fn resolve(&self, id: TypeId) -> Result<(TypeId, &Type), BtfError> {
        let mut at = id;
        for _ in 0..MAX_DEPTH {
            let t = self.get(at)?;
            match t.kind.behind() {
                Some(next) => at = next,
                None => return Ok((at, t)),
            }
        }
        Err(BtfError::Depth { id })
    }

    /// Returns the size of a type in bytes.
    ///
    /// # Errors
    /// When the type does not exist, has no size, or refers to itself without end.
    pub fn size_of(&self, id: TypeId) -> Result<u64, BtfError> {
        let mut count: u64 = 1;
        let mut at = id;
        for _ in 0..MAX_DEPTH {
            let t = self.get(at)?;
            let one = match &t.kind {
                Kind::Int(i) => u64::from(i.size),
                Kind::Ptr(_) => 8,
                Kind::Struct(c) | Kind::Union(c) => u64::from(c.size),
                Kind::Enum(e) | Kind::Enum64(e) => u64::from(e.size),
                Kind::Float(size) => u64::from(*size),
                Kind::DataSec(d) => u64::from(d.size),
                Kind::Array(a) => {
                    count = count
                        .checked_mul(u64::from(a.len))
                        .ok_or(BtfError::Type { id, what: "larger than 64 bits can count" })?;
                    at = a.elem;
                    continue;
                }
                Kind::Var(v) => {
                    at = v.type_id;
                    continue;
                }
                Kind::Void
                | Kind::Fwd { .. }
                | Kind::Func(_)
                | Kind::FuncProto(_)
                | Kind::DeclTag(_) => {
                    return Err(BtfError::NoSize { id: at, kind: t.kind.name() });
                }
                Kind::Typedef(t)
                | Kind::Volatile(t)
                | Kind::Const(t)
                | Kind::Restrict(t)
                | Kind::TypeTag(t) => {
                    at = *t;
                    continue;
                }
            };
            return count
                .checked_mul(one)
                .ok_or(BtfError::Type { id, what: "larger than 64 bits can count" });
        }
        Err(BtfError::Depth { id })
    }

    /// Writes a type's name for people: `struct thread`, `u32 *`, `char[16]`.
    #[must_use]
    pub fn describe(&self, id: TypeId) -> String {
        let mut after = String::new();
        let mut at = id;
        for _ in 0..MAX_DEPTH {
            let Ok(t) = self.get(at) else { return format!("type {at}{after}") };
            let name = self.string(t.name_off);
            let tagged = |word: &str| {
                if name.is_empty() {
                    format!("{word} (anonymous)")
                } else {
                    format!("{word} {name}")
                }
            };
            let before = match &t.kind {
                Kind::Ptr(to) => {
                    after.insert_str(0, if after.starts_with('*') { "*" } else { " *" });
                    at = *to;
                    continue;
                }
                Kind::Array(a) => {
                    after.insert_str(0, &format!("[{}]", a.len));
                    at = a.elem;
                    continue;
                }
                Kind::Volatile(to) | Kind::Const(to) | Kind::Restrict(to) | Kind::TypeTag(to) => {
                    at = *to;
                    continue;
                }
                Kind::Void => "void".to_owned(),
                Kind::Struct(_) | Kind::Fwd { union: false } => tagged("struct"),
                Kind::Union(_) | Kind::Fwd { union: true } => tagged("union"),
                Kind::Enum(_) | Kind::Enum64(_) => tagged("enum"),
                Kind::FuncProto(_) => "function".to_owned(),
                _ => name.to_owned(),
            };
            return before + &after;
        }
        format!("type {id}")
    }
}

impl std::fmt::Debug for Btf {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Btf")
            .field("types", &self.types.len())
            .field("strings", &self.strings.len())
            .finish_non_exhaustive()
    }
}
