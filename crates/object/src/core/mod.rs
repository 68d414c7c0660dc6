//! CO-RE: code compiled against one set of types, made to fit another (tools/lib/bpf/relo_core.c).
//!
//! A relocation names a local type, a path into it and a question: where is that member, how large,
//! is it there? The answer is looked up in the target's types by *name* ([`spec`], [`compat`]) and
//! written into one instruction ([`patch`]). What the target does not have makes the instruction
//! poison: a call that the verifier refuses where it can be reached.

mod answer;
mod compat;
mod patch;
mod spec;

use crate::btf::{CoreRelo, Kind, TypeId};
use crate::program::CoreSite;
use crate::{Btf, ObjectError, elf};
use answer::Answer;
use skep_isa::Insn;
use spec::Spec;
use std::cell::Cell;
use std::sync::Arc;

/// Helper number of an instruction that asks for something the target does not have; libbpf's
/// number.
pub const POISON_CORE: i32 = 0x0bad_2310;

/// Steps of comparing types that one program may cost: types may refer to each other in any number
/// of paths.
const BUDGET: u64 = 50_000_000;

/// Holds the types a program is fitted to: those of the code it looks at.
#[derive(Clone, Debug)]
pub struct CoreTarget {
    btf: Arc<Btf>,
    /// All named types, in order of name without flavour.
    by_name: Vec<TypeId>,
}

impl CoreTarget {
    /// Takes types and sorts them by name: some 50 ms for all types of a kernel.
    #[must_use]
    pub fn new(btf: Arc<Btf>) -> Self {
        let mut by_name: Vec<TypeId> = btf
            .types()
            .filter(|(_, t)| !btf.string(t.name_off).is_empty())
            .map(|(id, _)| id)
            .collect();
        by_name.sort_by_key(|id| (essential(btf.name(*id)), *id));
        Self { btf, by_name }
    }

    /// Reads the types in a file: BTF as it is (`/sys/kernel/btf/vmlinux`), or in the `.BTF`
    /// section of an ELF file of any machine (an object, a kernel, a program treated with
    /// `pahole -J`).
    ///
    /// ```no_run
    /// # use skep_object::{CoreTarget, LinkOptions, Object};
    /// let object = Object::parse(&std::fs::read("opens.bpf.o")?)?;
    /// let kernel = CoreTarget::parse(&std::fs::read("/sys/kernel/btf/vmlinux")?)?;
    /// let options = LinkOptions { target: Some(&kernel), ..LinkOptions::default() };
    /// let linked = object.link_with(0, &options)?;
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    /// When the file is neither, when it has no types, or when they are damaged.
    pub fn parse(bytes: &[u8]) -> Result<Self, ObjectError> {
        let raw = if bytes.starts_with(&::object::elf::ELFMAG) {
            elf::btf_section(bytes)?
        } else {
            bytes
        };
        let btf = Btf::parse(raw).map_err(|source| ObjectError::Btf { section: ".BTF", source })?;
        Ok(Self::new(Arc::new(btf)))
    }

    /// Returns the types.
    #[must_use]
    pub fn btf(&self) -> &Arc<Btf> {
        &self.btf
    }

    /// Names the types that disagree.
    fn ambiguous(&self, ids: &[TypeId]) -> CoreError {
        let one = |id: &TypeId| {
            let size = self.btf.size_of(*id).map(|n| format!(" of {n} bytes")).unwrap_or_default();
            format!("`{}` (type {id}{size})", self.btf.describe(*id))
        };
        let names: Vec<String> = ids.iter().map(one).collect();
        format!("several types of this name give different answers: {}", names.join(", ")).into()
    }

    /// Finds the types a local one may mean: equal in name but for the flavour, and in kind.
    fn candidates<'a>(
        &'a self,
        name: &'a str,
        kind: &'a Kind,
    ) -> impl Iterator<Item = TypeId> + 'a {
        let name = essential(name);
        let from = self.by_name.partition_point(|id| essential(self.btf.name(*id)) < name);
        let rest = self.by_name.get(from..).unwrap_or(&[]).iter().copied();
        let same = rest.take_while(move |id| essential(self.btf.name(*id)) == name);
        same.filter(move |id| self.btf.get(*id).is_ok_and(|t| compat::kinds(kind, &t.kind)))
    }
}

/// Cuts the flavour off a name: `task_struct___v5` means `task_struct`.
fn essential(name: &str) -> &str {
    let b = name.as_bytes();
    let is_mark = |w: &[u8]| matches!(w, [a, b'_', b'_', b'_', z] if *a != b'_' && *z != b'_');
    let cut = b.windows(5).rposition(is_mark);
    cut.and_then(|at| name.get(..at + 1)).unwrap_or(name)
}

/// The questions (`enum bpf_core_relo_kind`).
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Question {
    ByteOffset,
    ByteSize,
    FieldExists,
    Signed,
    LeftShift,
    RightShift,
    LocalTypeId,
    TargetTypeId,
    TypeExists,
    TypeSize,
    EnumValueExists,
    EnumValue,
    TypeMatches,
}

const QUESTIONS: &[(Question, &str)] = &[
    (Question::ByteOffset, "byte_off"),
    (Question::ByteSize, "byte_sz"),
    (Question::FieldExists, "field_exists"),
    (Question::Signed, "signed"),
    (Question::LeftShift, "lshift_u64"),
    (Question::RightShift, "rshift_u64"),
    (Question::LocalTypeId, "local_type_id"),
    (Question::TargetTypeId, "target_type_id"),
    (Question::TypeExists, "type_exists"),
    (Question::TypeSize, "type_size"),
    (Question::EnumValueExists, "enumval_exists"),
    (Question::EnumValue, "enumval_value"),
    (Question::TypeMatches, "type_matches"),
];

impl Question {
    fn of(relo: &CoreRelo) -> Option<Self> {
        QUESTIONS.get(relo.kind as usize).map(|(q, _)| *q)
    }

    fn is_type(self) -> bool {
        matches!(
            self,
            Self::LocalTypeId
                | Self::TargetTypeId
                | Self::TypeExists
                | Self::TypeSize
                | Self::TypeMatches
        )
    }

    fn is_enum(self) -> bool {
        matches!(self, Self::EnumValueExists | Self::EnumValue)
    }
}

/// Says what a relocation asks, for messages.
pub(crate) fn describe(btf: &Btf, relo: &CoreRelo) -> String {
    let question = QUESTIONS.get(relo.kind as usize).map_or("unknown", |(_, name)| name);
    let access: String = btf.string(relo.access_off).chars().take(80).collect();
    format!("{question} of `{}`, {access}", btf.describe(relo.type_id))
}

/// Tells whether a relocation asks something of the target's types.
pub(crate) fn needs_target(relo: &CoreRelo) -> bool {
    Question::of(relo) != Some(Question::LocalTypeId)
}

/// Why a relocation cannot be done.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) enum CoreError {
    /// There are no types to fit to.
    NoTarget,
    /// Anything else.
    Other(String),
}

impl<T: Into<String>> From<T> for CoreError {
    fn from(what: T) -> Self {
        Self::Other(what.into())
    }
}

impl From<crate::btf::BtfError> for CoreError {
    fn from(e: crate::btf::BtfError) -> Self {
        Self::Other(e.to_string())
    }
}

/// Fits the instructions of one program.
pub(crate) struct Relocator<'a> {
    local: &'a Btf,
    target: Option<&'a CoreTarget>,
    /// All relocations of the object that are done, in their order.
    all: Vec<CoreSite>,
    left: Cell<u64>,
}

impl<'a> Relocator<'a> {
    pub fn new(local: &'a Btf, target: Option<&'a CoreTarget>, all: Vec<CoreSite>) -> Self {
        Self { local, target, all, left: Cell::new(BUDGET) }
    }

    /// Returns the object's types.
    pub fn local(&self) -> &'a Btf {
        self.local
    }

    /// Answers a relocation and writes the answer into the first instruction of `insns`.
    pub fn relocate(&self, site: &CoreSite, insns: &mut [Insn]) -> Result<(), CoreError> {
        let answer = self.answer(site)?;
        patch::write(&answer, insns)
    }

    fn answer(&self, site: &CoreSite) -> Result<Answer, CoreError> {
        let relo = &site.relo;
        let question = Question::of(relo).ok_or_else(|| format!("unknown kind {}", relo.kind))?;
        let local = Spec::parse(self.local, relo, question)?;
        if question == Question::LocalTypeId {
            return Ok(Answer::unchecked(u64::from(relo.type_id)));
        }
        let target = self.target.ok_or(CoreError::NoTarget)?;
        let (name, kind) = (self.local.name(relo.type_id), &self.local.get(relo.type_id)?.kind);
        if name.is_empty() {
            return Err("the type has no name".into());
        }
        let mut candidates: Vec<TypeId> = target.candidates(name, kind).collect();
        if candidates.len() > 1 {
            self.narrow(site, target, &mut candidates)?;
        }
        match self.choose(question, &local, target, &mut candidates)? {
            Some(answer) => Ok(answer),
            None => Answer::of(question, self.local, &local, None),
        }
    }

    /// Drops the candidates that earlier relocations of the same type have ruled out: where only
    /// some lead where one of those wanted to go, libbpf takes the others to be something else
    /// of the same name, once and for all.
    fn narrow(
        &self,
        site: &CoreSite,
        target: &CoreTarget,
        candidates: &mut Vec<TypeId>,
    ) -> Result<(), CoreError> {
        let same = |s: &&CoreSite| s.relo.type_id == site.relo.type_id;
        for CoreSite { relo: before, .. } in
            self.all.iter().take_while(|s| s.number < site.number).filter(same)
        {
            self.step()?;
            let Some(question) = Question::of(before).filter(|q| *q != Question::LocalTypeId)
            else {
                continue;
            };
            if let Ok(local) = Spec::parse(self.local, before, question) {
                // What cannot be answered has been said where it was asked.
                let _ = self.choose(question, &local, target, candidates);
            }
        }
        Ok(())
    }

    /// Asks all candidates; those that lead somewhere must agree, and they alone stay.
    fn choose(
        &self,
        question: Question,
        local: &Spec,
        target: &CoreTarget,
        candidates: &mut Vec<TypeId>,
    ) -> Result<Option<Answer>, CoreError> {
        let mut found: Option<(Answer, u64)> = None;
        let mut good = Vec::new();
        for id in candidates.iter().copied() {
            let Some(spec) = self.matching(local, target, id)? else { continue };
            let answer = Answer::of(question, self.local, local, Some((&target.btf, &spec)))?;
            good.push(id);
            match &found {
                None => found = Some((answer, spec.bit_offset)),
                Some((before, at)) if *at == spec.bit_offset && before.same(&answer) => {}
                Some(_) => return Err(target.ambiguous(&good)),
            }
        }
        if !good.is_empty() {
            *candidates = good;
        }
        Ok(found.map(|(answer, _)| answer))
    }

    /// Counts a step of comparing.
    fn step(&self) -> Result<(), CoreError> {
        let left =
            self.left.get().checked_sub(1).ok_or("the types are too entangled to be compared")?;
        self.left.set(left);
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn flavours_are_cut_off_and_nothing_else() {
        assert_eq!(essential("task_struct___v5"), "task_struct");
        assert_eq!(essential("a___b___c"), "a___b");
        assert_eq!(essential("plain"), "plain");
        assert_eq!(essential("two__under"), "two__under");
        assert_eq!(essential("four____under"), "four____under");
        assert_eq!(essential("___lead"), "___lead");
        assert_eq!(essential("tail___"), "tail___");
    }
}
