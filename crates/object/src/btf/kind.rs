//! The nineteen kinds of BTF types (include/uapi/linux/btf.h, Documentation/bpf/btf.rst).

/// Number of a type; 0 is `void`.
pub type TypeId = u32;

/// One type.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Type {
    /// Where the name stands in the string section; see [`Btf::string`](super::Btf::string).
    pub name_off: u32,
    /// What it is.
    pub kind: Kind,
}

/// What a type is.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Kind {
    /// `void`, type 0.
    Void,
    /// An integer.
    Int(Int),
    /// A pointer to a type.
    Ptr(TypeId),
    /// An array.
    Array(Array),
    /// A structure.
    Struct(Composite),
    /// A union.
    Union(Composite),
    /// An enumeration of up to 32 bits.
    Enum(Enum),
    /// A structure or union that is only declared.
    Fwd {
        /// A union, not a structure.
        union: bool,
    },
    /// Another name for a type.
    Typedef(TypeId),
    /// `volatile`.
    Volatile(TypeId),
    /// `const`.
    Const(TypeId),
    /// `restrict`.
    Restrict(TypeId),
    /// A function.
    Func(Func),
    /// What a function takes and returns.
    FuncProto(FuncProto),
    /// A global variable.
    Var(Var),
    /// A section with the variables in it.
    DataSec(DataSec),
    /// A floating-point number of this many bytes.
    Float(u32),
    /// An attribute of a declaration (`btf_decl_tag`); the type's name is the attribute's text.
    DeclTag(DeclTag),
    /// An attribute of a type (`btf_type_tag`); the type's name is the attribute's text.
    TypeTag(TypeId),
    /// An enumeration of up to 64 bits.
    Enum64(Enum),
}

/// An integer.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Int {
    /// Bytes of storage, 1 to 16.
    pub size: u32,
    /// Value bits.
    pub bits: u8,
    /// First value bit in the storage.
    pub offset: u8,
    /// It has a sign.
    pub signed: bool,
    /// It is a character.
    pub char: bool,
    /// It is a truth value.
    pub bool: bool,
}

/// An array.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Array {
    /// Type of an element.
    pub elem: TypeId,
    /// Type of the index.
    pub index: TypeId,
    /// Number of elements.
    pub len: u32,
}

/// A structure or a union.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Composite {
    /// Bytes.
    pub size: u32,
    /// The members in order.
    pub members: Box<[Member]>,
}

/// A member of a structure or a union.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Member {
    /// Where the name stands; empty for anonymous members.
    pub name_off: u32,
    /// Its type.
    pub type_id: TypeId,
    /// Its first bit in the structure.
    pub bit_offset: u32,
    /// Width of a bit field, 0 for ordinary members.
    pub bitfield: u8,
}

/// An enumeration.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Enum {
    /// Bytes: 1, 2, 4 or 8.
    pub size: u32,
    /// Values have a sign.
    pub signed: bool,
    /// The names and values; unsigned values as their bits.
    pub values: Box<[EnumValue]>,
}

/// One name of an enumeration.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct EnumValue {
    /// Where the name stands.
    pub name_off: u32,
    /// The value, sign-extended when the enumeration has a sign.
    pub value: i64,
}

/// A function.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Func {
    /// Who sees it.
    pub linkage: Linkage,
    /// Its prototype.
    pub proto: TypeId,
}

/// What a function takes and returns.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct FuncProto {
    /// The result.
    pub ret: TypeId,
    /// The parameters; a last one of type 0 without name means `...`.
    pub params: Box<[Param]>,
}

/// A parameter of a function.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Param {
    /// Where the name stands.
    pub name_off: u32,
    /// Its type.
    pub type_id: TypeId,
}

/// A global variable.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Var {
    /// Who sees it.
    pub linkage: Linkage,
    /// Its type.
    pub type_id: TypeId,
}

/// Tells who sees a function or variable.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Linkage {
    /// This object alone.
    Static,
    /// Everybody.
    Global,
    /// It is defined elsewhere.
    Extern,
}

/// A section with the variables in it.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct DataSec {
    /// Bytes.
    pub size: u32,
    /// The variables in order of offset.
    pub vars: Box<[SecVar]>,
}

/// One variable of a section.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct SecVar {
    /// The variable ([`Kind::Var`]), or the function in `.ksyms`.
    pub type_id: TypeId,
    /// Where it starts.
    pub offset: u32,
    /// Bytes.
    pub size: u32,
}

/// An attribute of a declaration.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct DeclTag {
    /// What it belongs to.
    pub type_id: TypeId,
    /// The member or parameter it belongs to, or `None` for the whole.
    pub component: Option<u32>,
}

impl Kind {
    /// Returns the kind's name in lower case, as bpftool prints it in upper case.
    #[must_use]
    pub fn name(&self) -> &'static str {
        match self {
            Self::Void => "void",
            Self::Int(_) => "int",
            Self::Ptr(_) => "ptr",
            Self::Array(_) => "array",
            Self::Struct(_) => "struct",
            Self::Union(_) => "union",
            Self::Enum(_) => "enum",
            Self::Fwd { .. } => "fwd",
            Self::Typedef(_) => "typedef",
            Self::Volatile(_) => "volatile",
            Self::Const(_) => "const",
            Self::Restrict(_) => "restrict",
            Self::Func(_) => "func",
            Self::FuncProto(_) => "func_proto",
            Self::Var(_) => "var",
            Self::DataSec(_) => "datasec",
            Self::Float(_) => "float",
            Self::DeclTag(_) => "decl_tag",
            Self::TypeTag(_) => "type_tag",
            Self::Enum64(_) => "enum64",
        }
    }

    /// Returns the type behind a modifier or a typedef.
    #[must_use]
    pub fn behind(&self) -> Option<TypeId> {
        match self {
            Self::Typedef(t)
            | Self::Volatile(t)
            | Self::Const(t)
            | Self::Restrict(t)
            | Self::TypeTag(t) => Some(*t),
            _ => None,
        }
    }

    /// Calls `f` with every type this one refers to.
    pub(super) fn each_reference(&self, mut f: impl FnMut(TypeId)) {
        match self {
            Self::Void
            | Self::Int(_)
            | Self::Enum(_)
            | Self::Enum64(_)
            | Self::Fwd { .. }
            | Self::Float(_) => {}
            Self::Ptr(t)
            | Self::Typedef(t)
            | Self::Volatile(t)
            | Self::Const(t)
            | Self::Restrict(t)
            | Self::TypeTag(t) => f(*t),
            Self::Array(a) => {
                f(a.elem);
                f(a.index);
            }
            Self::Struct(c) | Self::Union(c) => c.members.iter().for_each(|m| f(m.type_id)),
            Self::Func(x) => f(x.proto),
            Self::FuncProto(p) => {
                f(p.ret);
                p.params.iter().for_each(|p| f(p.type_id));
            }
            Self::Var(v) => f(v.type_id),
            Self::DataSec(d) => d.vars.iter().for_each(|v| f(v.type_id)),
            Self::DeclTag(d) => f(d.type_id),
        }
    }
}

/// The numbers of kinds (include/uapi/linux/btf.h `BTF_KIND_*`).
pub(super) mod number {
    pub const INT: u32 = 1;
    pub const PTR: u32 = 2;
    pub const ARRAY: u32 = 3;
    pub const STRUCT: u32 = 4;
    pub const UNION: u32 = 5;
    pub const ENUM: u32 = 6;
    pub const FWD: u32 = 7;
    pub const TYPEDEF: u32 = 8;
    pub const VOLATILE: u32 = 9;
    pub const CONST: u32 = 10;
    pub const RESTRICT: u32 = 11;
    pub const FUNC: u32 = 12;
    pub const FUNC_PROTO: u32 = 13;
    pub const VAR: u32 = 14;
    pub const DATASEC: u32 = 15;
    pub const FLOAT: u32 = 16;
    pub const DECL_TAG: u32 = 17;
    pub const TYPE_TAG: u32 = 18;
    pub const ENUM64: u32 = 19;
}
