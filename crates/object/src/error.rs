//! Why an object or a program cannot be used.

use crate::KconfigKind;
use crate::btf::BtfError;

/// Says why a file is no usable eBPF object.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ObjectError {
    /// The first bytes are not those of an ELF file.
    #[error("not an ELF file")]
    NotElf,
    /// The file is for another machine.
    #[error("ELF machine is {machine}, not eBPF")]
    Machine {
        /// The machine's name or number.
        machine: String,
    },
    /// The file is of a kind that cannot be linked.
    #[error("ELF file is {what}, not a little-endian 64-bit relocatable object")]
    Kind {
        /// What it is instead.
        what: &'static str,
    },
    /// The ELF structure is damaged.
    #[error("damaged ELF file: {what}")]
    Elf {
        /// What does not fit.
        what: String,
    },
    /// An ELF file that was to give types has none.
    #[error("ELF file without type information: it has no section `.BTF`")]
    NoTypes,
    /// A section's contents are damaged.
    #[error("section `{section}`, offset {offset:#x}: {what}")]
    Section {
        /// The section.
        section: String,
        /// Where in the section.
        offset: u64,
        /// What does not fit.
        what: String,
    },
    /// The type information is damaged.
    #[error("section `{section}`: {source}")]
    Btf {
        /// `.BTF` or `.BTF.ext`.
        section: &'static str,
        /// What does not fit.
        source: BtfError,
    },
    /// A configuration value does not fit its variable.
    #[error("configuration value `{name}`: `{value}` does not fit {kind:?}")]
    Kconfig {
        /// The variable.
        name: String,
        /// The value given.
        value: String,
        /// What the variable takes.
        kind: KconfigKind,
    },
    /// A map definition cannot be understood.
    #[error("map `{map}`: {what}")]
    Map {
        /// The map's name.
        map: String,
        /// What does not fit.
        what: String,
    },
}

/// Says why a program cannot be linked.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
#[non_exhaustive]
pub enum LinkError {
    /// The object has no program with this number.
    #[error("the object has no program number {index}")]
    NoProgram {
        /// The number asked for.
        index: usize,
    },
    /// The section name says nothing about the program type.
    #[error(
        "program `{program}`: section `{section}` is of no known program type{}",
        likely(section)
    )]
    Section {
        /// The program.
        program: String,
        /// Its section.
        section: String,
    },
    /// A program of this kind cannot run outside the kernel.
    #[error("program `{program}`: section `{section}`: {what}")]
    Unsupported {
        /// The program.
        program: String,
        /// Its section.
        section: String,
        /// Why not.
        what: &'static str,
    },
    /// A symbol outside the object is not on offer.
    #[error("program `{program}`, insn {insn}: {kind} `{symbol}` is not available")]
    Extern {
        /// The program.
        program: String,
        /// The instruction that refers to it, counted in its function's section.
        insn: usize,
        /// What it is: kernel function, kernel variable, configuration value.
        kind: &'static str,
        /// Its name.
        symbol: String,
    },
    /// The program needs CO-RE relocations, and no types were given to resolve them against.
    #[error(
        "program `{program}`, insn {insn}: CO-RE relocation ({access}) needs the types of the code it looks at"
    )]
    CoreTarget {
        /// The program.
        program: String,
        /// The first instruction to be relocated, counted in its section.
        insn: usize,
        /// What it reaches for: question, type, access string.
        access: String,
    },
    /// A CO-RE relocation cannot be done.
    #[error("program `{program}`, insn {insn}: CO-RE relocation ({access}): {what}")]
    Core {
        /// The program.
        program: String,
        /// The instruction to be relocated, counted in its section.
        insn: usize,
        /// What it reaches for: question, type, access string.
        access: String,
        /// What does not fit.
        what: String,
    },
    /// A relocation does not fit the instruction it stands at, or leads nowhere.
    #[error("program `{program}`, insn {insn}: {what}")]
    Reloc {
        /// The program.
        program: String,
        /// The instruction, counted in its section.
        insn: usize,
        /// What does not fit.
        what: String,
    },
    /// The program is longer than any verifier accepts.
    #[error("program `{program}` has {insns} instructions, more than {limit}")]
    TooLong {
        /// The program.
        program: String,
        /// Its length.
        insns: usize,
        /// The limit.
        limit: usize,
    },
}

/// Says why a program that comes as instructions cannot be made ready for the verifier.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
#[non_exhaustive]
pub enum RawProgramError {
    /// There are no instructions, or too many.
    #[error("a program of {insns} instructions, not of 1 to {most}")]
    Length {
        /// How many there are.
        insns: usize,
        /// The limit.
        most: usize,
    },
    /// A handle of a map means none.
    #[error("insn {insn}: handle {handle} is no map")]
    Map {
        /// The instruction.
        insn: usize,
        /// The handle.
        handle: i32,
    },
    /// An instruction counts beyond the array of handles.
    #[error("insn {insn}: index {index} into an array of {handles} handles")]
    Index {
        /// The instruction.
        insn: usize,
        /// The index.
        index: i32,
        /// How long the array is.
        handles: usize,
    },
    /// A kernel function is not available.
    #[error("insn {insn}: the kernel function of type {type_id} is not available")]
    Function {
        /// The instruction.
        insn: usize,
        /// The type's number in the kernel's BTF.
        type_id: u32,
    },
    /// There are records that name types, and no types.
    #[error("`{array}` without types")]
    NoTypes {
        /// The array.
        array: &'static str,
    },
    /// The size of records is impossible.
    #[error("`{array}`: {bytes} bytes in records of {size}")]
    RecordSize {
        /// The array.
        array: &'static str,
        /// The size of one record.
        size: usize,
        /// The size of all.
        bytes: usize,
    },
    /// A record does not go with the instructions or the types.
    #[error("`{array}`, record {record}: {what}")]
    Record {
        /// The array.
        array: &'static str,
        /// Which one, from 0.
        record: usize,
        /// What does not fit.
        what: &'static str,
    },
    /// There is not one record for each function.
    #[error("`func_info` has {given} records for {found} functions")]
    FunctionCount {
        /// How many there are.
        given: usize,
        /// How many functions the program has.
        found: usize,
    },
    /// A function begins without a source line.
    #[error("`line_info` has no record for the function at insn {insn}")]
    NoLine {
        /// The function's first instruction.
        insn: usize,
    },
}

pub(crate) fn likely(section: &str) -> String {
    skep_isa::sec::nearest(section)
        .map(|name| format!("; did you mean `{name}`?"))
        .unwrap_or_default()
}
