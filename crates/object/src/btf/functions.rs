//! Types of a program's functions for the kernel, which wants them beside the instructions, and the
//! strings of its source lines.

use super::build::Builder;
use super::kind::{Func, FuncProto, Int, Kind, Linkage, TypeId};
use super::{Btf, BtfError};

/// Collects functions and strings for a section `.BTF`.
///
/// ```
/// use skep_object::btf::FunctionTypes;
///
/// let mut types = FunctionTypes::new();
/// let (main, file) = (types.add("main", true), types.string("filter.bpf.c"));
/// let btf = types.finish()?;
/// assert_eq!((btf.name(main), btf.string(file)), ("main", "filter.bpf.c"));
/// # Ok::<(), skep_object::btf::BtfError>(())
/// ```
pub struct FunctionTypes {
    builder: Builder,
    proto: TypeId,
}

impl Default for FunctionTypes {
    fn default() -> Self {
        Self::new()
    }
}

impl FunctionTypes {
    /// Begins without functions.
    #[must_use]
    pub fn new() -> Self {
        let mut builder = Builder::new();
        let name = builder.string("int");
        let int = Int { size: 4, bits: 32, offset: 0, signed: true, char: false, bool: false };
        let ret = builder.add(name, Kind::Int(int));
        let proto = builder.add(0, Kind::FuncProto(FuncProto { ret, params: Box::new([]) }));
        Self { builder, proto }
    }

    /// Adds a function that returns an `int`, and returns its type. Callbacks, and functions that
    /// the kernel is to verify where they are called, are not `global`. What cannot be in a name in
    /// C becomes `_`.
    pub fn add(&mut self, name: &str, global: bool) -> TypeId {
        let valid = |c: char| if c.is_ascii_alphanumeric() { c } else { '_' };
        let mut name: String = name.chars().map(valid).take(127).collect();
        if !name.starts_with(|c: char| c.is_ascii_alphabetic() || c == '_') {
            name.insert(0, '_');
        }
        let name = self.builder.string(&name);
        let linkage = if global { Linkage::Global } else { Linkage::Static };
        self.builder.add(name, Kind::Func(Func { linkage, proto: self.proto }))
    }

    /// Returns where a string stands.
    pub fn string(&mut self, text: &str) -> u32 {
        self.builder.string(text)
    }

    /// Makes the section.
    ///
    /// # Errors
    /// When there is too much of it.
    pub fn finish(self) -> Result<Btf, BtfError> {
        self.builder.finish()
    }
}
