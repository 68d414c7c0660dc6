//! A program made ready for the verifier.

use crate::btf::LineInfo;
use crate::{Btf, MapSpec};
use skep_isa::{AttachType, Insn, ProgramType};
use std::sync::Arc;

/// Holds one program with everything it refers to.
///
/// * Maps are referred to by `ld_imm64` with [`PSEUDO_MAP_IDX`](skep_isa::op::PSEUDO_MAP_IDX) or
///   [`PSEUDO_MAP_IDX_VALUE`](skep_isa::op::PSEUDO_MAP_IDX_VALUE) and an index into
///   [`maps`](Self::maps) as immediate.
/// * Functions of the program are called with [`PSEUDO_CALL`](skep_isa::op::PSEUDO_CALL) and a
///   distance, and passed as callbacks by `ld_imm64` with
///   [`PSEUDO_FUNC`](skep_isa::op::PSEUDO_FUNC) and a distance; their code stands behind the main
///   function.
/// * Kernel functions that skep offers are helper calls with numbers from
///   [`KFUNC_BASE`](skep_isa::helper::KFUNC_BASE) on.
#[derive(Clone, Hash, Debug)]
pub struct Linked {
    /// The function's name.
    pub name: String,
    /// The section it was found in, without a leading `?`; empty when it comes as instructions.
    pub section: String,
    /// What the program is for.
    pub prog_type: ProgramType,
    /// Where it hangs, when the section says so.
    pub attach_type: Option<AttachType>,
    /// The section's text after the slash.
    pub target: Option<String>,
    /// The program may sleep.
    pub sleepable: bool,
    /// The object's license is compatible with the GPL.
    pub gpl: bool,
    /// The main function and then the functions it calls.
    pub insns: Vec<Insn>,
    /// The maps the instructions refer to.
    pub maps: Vec<LinkedMap>,
    /// The functions, the main one first, in order of `start`.
    pub subprogs: Vec<Subprog>,
    /// Source lines in order of `insn`; empty without line information.
    pub lines: Vec<Line>,
    /// The object's types.
    pub btf: Option<Arc<Btf>>,
    /// What is not there, by instruction; see [`missing`](Self::missing).
    pub(crate) misses: Vec<(usize, Missing)>,
}

/// What an instruction asks for that is not there.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub enum Missing {
    /// The target's types have no answer to this (``byte_off of `struct task`, 0:5``): a call of
    /// [`POISON_CORE`](crate::POISON_CORE).
    Type(String),
    /// The name of a weak kernel function: a call of [`POISON_KFUNC`](crate::POISON_KFUNC).
    Function(String),
}

/// One map a program refers to.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub struct LinkedMap {
    /// Index into the object's list of maps; of a program that comes as instructions, what
    /// [`Handles::map`](crate::Handles::map) said.
    pub index: usize,
    /// A copy of the map's description.
    pub spec: MapSpec,
}

/// One function of a linked program.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub struct Subprog {
    /// Its first instruction.
    pub start: usize,
    /// Its name.
    pub name: String,
    /// It is visible outside the object: verified by its prototype alone.
    pub global: bool,
    /// Its BTF function type (`BTF_KIND_FUNC`), 0 when there is none.
    pub type_id: u32,
}

/// Says where instructions come from; it is valid up to the next line's `insn`.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub struct Line {
    /// The first instruction.
    pub insn: usize,
    /// The source file as the compiler named it.
    pub file: String,
    /// The line, from 1.
    pub line: u32,
    /// The column, from 1; 0 when unknown.
    pub column: u32,
    /// The source text of the line; may be empty.
    pub text: String,
}

/// Longest source line that is kept, in characters; a line may be a whole generated file.
const MAX_TEXT: usize = 240;

impl Line {
    pub(crate) fn new(btf: &Btf, insn: usize, info: &LineInfo) -> Self {
        let short = |offset: u32| btf.string(offset).trim().chars().take(MAX_TEXT).collect();
        Self {
            insn,
            file: short(info.file_off),
            line: info.line,
            column: info.column,
            text: short(info.text_off),
        }
    }
}

impl Linked {
    /// Makes a program of plain instructions that refers to nothing.
    #[must_use]
    pub fn from_insns(name: &str, prog_type: ProgramType, insns: Vec<Insn>) -> Self {
        Self {
            name: name.to_owned(),
            section: String::new(),
            prog_type,
            attach_type: None,
            target: None,
            sleepable: false,
            gpl: true,
            insns,
            maps: Vec::new(),
            subprogs: vec![Subprog { start: 0, name: name.to_owned(), global: true, type_id: 0 }],
            lines: Vec::new(),
            btf: None,
            misses: Vec::new(),
        }
    }

    /// Finds the source line of an instruction.
    #[must_use]
    pub fn line(&self, insn: usize) -> Option<&Line> {
        let after = self.lines.partition_point(|l| l.insn <= insn);
        self.lines.get(after.checked_sub(1)?)
    }

    /// Returns what an instruction asks for that is not there. It is a call of a helper that does
    /// not exist, which is refused where it can be reached.
    #[must_use]
    pub fn missing(&self, insn: usize) -> Option<&Missing> {
        self.misses.iter().find(|(at, _)| *at == insn).map(|(_, what)| what)
    }

    /// Finds the function an instruction belongs to.
    #[must_use]
    pub fn subprog(&self, insn: usize) -> Option<&Subprog> {
        let after = self.subprogs.partition_point(|s| s.start <= insn);
        self.subprogs.get(after.checked_sub(1)?)
    }
}
