//! The programs of an object, and the code they are made of.

use crate::btf::{CoreRelo, LineInfo, TypeId};
use skep_isa::Insn;
use skep_isa::sec::{self, SecDef};
use std::collections::BTreeMap;

/// Describes one program of an object: a function that somebody can load.
#[derive(Clone, Debug)]
pub struct Program {
    /// The function's name.
    pub name: String,
    /// The ELF section's name without a leading `?`.
    pub section: String,
    /// Load it unless told otherwise; `?` before the section's name turns this off.
    pub autoload: bool,
    /// What the section's name means; `None` when no known family has this name.
    pub def: Option<&'static SecDef>,
    /// The section's text after the slash.
    pub target: Option<String>,
    /// Its BTF function type (`BTF_KIND_FUNC`), 0 when there is none.
    pub type_id: TypeId,
    /// The section's name that counts in place of its own; see [`Program::take_as`].
    pub(crate) taken_as: Option<String>,
    pub(crate) function: FunctionId,
}

/// Names a function: which code section, which function in it.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub(crate) struct FunctionId {
    pub code: usize,
    pub function: usize,
}

/// One section of instructions.
#[derive(Clone, Debug)]
pub(crate) struct Code {
    pub section: String,
    pub insns: Vec<Insn>,
    /// What relocations say, by instruction.
    pub refs: BTreeMap<usize, Ref>,
    /// In order of `start`.
    pub functions: Vec<Function>,
    /// In order of offset.
    pub lines: Vec<LineInfo>,
    /// In order of offset.
    pub core: Vec<CoreSite>,
}

/// A CO-RE relocation of a section.
#[derive(Clone, Copy, Debug)]
pub(crate) struct CoreSite {
    pub relo: CoreRelo,
    /// Its number among those of the whole object, in the order they are recorded, which is the
    /// order they are done in.
    pub number: usize,
}

/// One function of a section.
#[derive(Clone, Debug)]
pub(crate) struct Function {
    pub name: String,
    pub start: usize,
    pub len: usize,
    pub global: bool,
    pub type_id: TypeId,
}

/// What an instruction refers to.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) enum Ref {
    /// A map by its definition.
    Map(usize),
    /// A place in a global-data map.
    Data { map: usize, offset: u32 },
    /// A function, by its first instruction.
    Code { code: usize, insn: i64 },
    /// Something outside the object.
    Extern { name: String, weak: bool },
    /// Nothing that could be used; loading a program with it fails, the rest of the object is fine.
    Bad(String),
}

impl Program {
    pub(crate) fn new(name: &str, section: &str, function: FunctionId, type_id: TypeId) -> Self {
        let bare = section.strip_prefix('?').unwrap_or(section);
        let parsed = sec::parse(bare);
        Self {
            name: name.to_owned(),
            section: bare.to_owned(),
            autoload: bare.len() == section.len(),
            def: parsed.map(|p| p.def),
            target: parsed.and_then(|p| p.target).map(str::to_owned),
            type_id,
            taken_as: None,
            function,
        }
    }

    /// Takes the program as if its section had this name, for one whose own says nothing.
    /// [`Program::section`] stays what it is.
    ///
    /// # Errors
    /// When no family has this name. The program is then as before.
    pub fn take_as(&mut self, section: &str) -> Result<(), UnknownSection> {
        let parsed =
            sec::parse(section).ok_or_else(|| UnknownSection { name: section.to_owned() })?;
        self.def = Some(parsed.def);
        self.target = parsed.target.map(str::to_owned);
        self.taken_as = Some(section.to_owned());
        Ok(())
    }

    /// Returns the section's name that counts.
    #[must_use]
    pub fn section_meant(&self) -> &str {
        self.taken_as.as_deref().unwrap_or(&self.section)
    }
}

/// Says that no family of programs has this section name.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
#[error("section `{name}` is of no known program type{}", crate::error::likely(name))]
pub struct UnknownSection {
    /// The name.
    pub name: String,
}

impl Code {
    /// Finds the function that starts at an instruction.
    pub fn function_at(&self, insn: i64) -> Option<usize> {
        let insn = usize::try_from(insn).ok()?;
        self.functions.binary_search_by_key(&insn, |f| f.start).ok()
    }

    /// Returns the instructions of a function.
    pub fn body(&self, f: &Function) -> &[Insn] {
        self.insns.get(f.start..f.start + f.len).unwrap_or(&[])
    }

    /// Returns the records of `all` (in order of offset) that lie in a function, with instructions
    /// counted from its start.
    pub fn records<'a, T>(
        &self,
        all: &'a [T],
        f: &Function,
        offset: impl Fn(&T) -> u32,
    ) -> impl Iterator<Item = (usize, &'a T)> {
        let slot = Insn::SIZE;
        let from = all.partition_point(|r| (offset(r) as usize) < f.start * slot);
        let to = all.partition_point(|r| (offset(r) as usize) < (f.start + f.len) * slot);
        all.get(from..to)
            .unwrap_or(&[])
            .iter()
            .map(move |r| ((offset(r) as usize / slot).saturating_sub(f.start), r))
    }
}
