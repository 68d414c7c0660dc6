//! Prototypes of functions: which word of a tracing program's context holds which argument, and
//! where the result stands.
//!
//! A context shows what the kernel's shows: a word for each argument in order, a word for each
//! eight bytes of a structure of up to 16 bytes, and the result behind the last of them. A process
//! knows arguments that the kernel has not; the rules for those:
//!
//! * numbers with a decimal point and vectors take no word: they are in vector registers, or on the
//!   x87 stack;
//! * structures of more than 16 bytes take no word either; the kernel does not attach to functions
//!   that have them;
//! * a part of a structure that is in a vector register keeps its word, so that what follows stands
//!   where the kernel has it, but the word cannot be read;
//! * a result that is returned through memory takes no word, nor does the hidden argument that says
//!   where.
//!
//! Where the words come from is worked out by the System V ABI (`sysv`): six registers, then the
//! caller's stack; for functions of Rust as rustc does it (`rust`). Contexts have room for [`MAX_WORDS`]; what is behind them is not shown.
//!
//! [`Prototype`]s come from debug information (feature `dwarf`) or from BTF
//! ([`Prototype::from_btf`]).

mod btf;
mod mismatch;
#[cfg_attr(not(feature = "dwarf"), allow(dead_code))]
mod rust;
mod sysv;
mod text;

pub use mismatch::{Access, Mismatch};
#[cfg(feature = "dwarf")]
pub(crate) use rust::{
    Field, Passed, Scalar, ScalarKind, Variant, of_structure, of_union, of_variants,
};
pub(crate) use sysv::{Class, Leaf, Type};
pub use sysv::{Composite, Part, Place};

use sysv::Layout;

/// Words of arguments in a context.
pub const MAX_WORDS: usize = skep_isa::ctx::tracing::MAX_ARGS;
/// Words of a context that are there for functions whose types are not known: the registers.
const UNTYPED_WORDS: usize = skep_isa::ctx::tracing::UNTYPED_ARGS;

/// What kind of value an argument or a result is, as far as two prototypes are compared.
#[derive(Clone, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub enum ValueKind {
    /// Nothing: the result of a `void` function.
    Void,
    /// An integer, a character or a truth value.
    Int,
    /// An enumeration.
    Enum,
    /// A pointer or a reference; the name of the structure behind it, if it is one.
    Pointer(Option<String>),
    /// A structure or a class.
    Struct,
    /// A union.
    Union,
    /// A number with a decimal point, or a vector.
    Float,
}

/// An argument or a result.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Value {
    /// The parameter's name; empty for results and where there is none.
    pub name: String,
    /// Its type in C, without qualifiers and behind all typedefs.
    pub text: String,
    /// What kind of type that is.
    pub kind: ValueKind,
    /// Bytes.
    pub size: u64,
    /// Where the debug information describes the structure, union or enumeration that it is or points to
    /// ([`Btf::described_at`](crate::Btf::described_at)): names may be those of several.
    pub described_at: Option<u64>,
}

/// A word of arguments in a context.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Word {
    /// Index of the argument.
    pub param: usize,
    /// The byte of the argument that the word begins with.
    pub at: u64,
    /// Where it is when the function is entered.
    pub place: Place,
}

/// A function's prototype, and the words of a context that it makes.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Prototype {
    /// The function's name.
    pub name: String,
    /// Its arguments, `this` included.
    pub params: Vec<Value>,
    /// Its result.
    pub ret: Value,
    /// Further arguments follow that nobody knows.
    pub variadic: bool,
    layout: Layout,
}

impl Prototype {
    /// Works the words out; `None` when it cannot be told where they are.
    pub(crate) fn new(
        name: &str,
        params: Vec<(String, Type)>,
        ret: Type,
        variadic: bool,
    ) -> Option<Self> {
        let layout = sysv::layout(params.iter().map(|(_, t)| t), &ret)?;
        Some(Self::with(layout, name, params, ret, variadic))
    }

    /// The same of a function with Rust's own convention.
    #[cfg(feature = "dwarf")]
    pub(crate) fn of_rust(name: &str, params: Vec<(String, Type)>, ret: Type) -> Option<Self> {
        let layout = rust::layout(params.iter().map(|(_, t)| t), &ret)?;
        Some(Self::with(layout, name, params, ret, false))
    }

    fn with(
        layout: Layout,
        name: &str,
        params: Vec<(String, Type)>,
        ret: Type,
        variadic: bool,
    ) -> Self {
        let value = |name: String, t: Type| Value {
            name,
            text: t.text,
            kind: t.kind,
            size: t.size,
            described_at: t.described_at,
        };
        Self {
            name: name.to_owned(),
            params: params.into_iter().map(|(name, t)| value(name, t)).collect(),
            ret: value(String::new(), ret),
            variadic,
            layout,
        }
    }

    /// The words of the arguments, in the order of a context.
    #[must_use]
    pub fn words(&self) -> &[Word] {
        &self.layout.words
    }

    /// The vector register, 0 to 7, that an argument of up to eight bytes with a decimal point is in
    /// when the function is entered; a result is in 0.
    #[must_use]
    pub fn vector(&self, param: usize) -> Option<u8> {
        self.layout.vectors.iter().find(|(p, _)| *p == param).map(|(_, register)| *register)
    }

    /// Where an argument is, if its words do not show all of it.
    #[must_use]
    pub fn composite(&self, param: usize) -> Option<&Composite> {
        self.layout.composites.iter().find(|(p, _)| *p == param).map(|(_, place)| place)
    }

    /// The same of the result, when the function has returned.
    #[must_use]
    pub fn ret_composite(&self) -> Option<&Composite> {
        self.layout.ret_composite.as_ref()
    }

    /// Where the words of the result are when the function has returned: [`Place::Register`] 0 is
    /// rax, 1 is rdx.
    #[must_use]
    pub fn ret_words(&self) -> &[Place] {
        &self.layout.ret
    }

    /// Tells whether words are where a function without floating point and structures has them: the
    /// first six in registers, the others on the stack, the result in rax.
    #[must_use]
    pub fn is_plain(&self) -> bool {
        let at = |i: usize| {
            if i < UNTYPED_WORDS {
                Place::Register(i as u8)
            } else {
                Place::Stack((i - UNTYPED_WORDS) as u8)
            }
        };
        self.words().iter().enumerate().all(|(i, w)| w.place == at(i))
            && self.ret_words().iter().all(|p| *p == Place::Register(0))
    }

    /// Tells whether two prototypes make the same words, whatever the types.
    #[must_use]
    pub fn same_words(&self, other: &Self) -> bool {
        let places = |p: &Self| p.words().iter().map(|w| w.place).collect::<Vec<_>>();
        places(self) == places(other) && self.ret_words() == other.ret_words()
    }
}
