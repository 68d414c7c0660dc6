//! Options on how object files are read.

use std::path::PathBuf;

use clap::Args;
use skep::isa::ProgramType;

/// How object files are read.
#[derive(Args, Debug, Clone, Default)]
pub struct ObjectArgs {
    /// Set a global variable, or a part of one, before loading; can be repeated
    #[arg(long, value_name = "NAME=VALUE", value_parser = assignment)]
    pub set: Vec<(String, String)>,
    /// Set the type of programs whose section name is unknown: a section name (`xdp`,
    /// `fentry/FUNCTION`) or a program type (`sched_cls`). If all section names are known, it
    /// applies to every program; with PROGRAM=, only to that one. Can be repeated
    #[arg(long = "type", value_name = "[PROGRAM=]TYPE", value_parser = typed)]
    pub types: Vec<(Option<String>, String)>,
    /// Relocate programs (CO-RE) against the types in FILE: BTF, or an ELF file with BTF
    #[arg(long, value_name = "FILE")]
    pub btf: Option<PathBuf>,
    /// Relocate programs (CO-RE) against the types in PROGRAM's debug information (DWARF)
    #[arg(long, value_name = "PROGRAM", conflicts_with = "btf")]
    pub btf_from: Option<PathBuf>,
    /// The type of programs whose section name is unknown, if nothing else says it.
    #[arg(skip)]
    pub others: Option<ProgramType>,
}

/// What object files of chains are read with.
#[derive(Args, Debug, Clone, Default)]
pub struct SetArgs {
    /// Set a global variable, or a part of one, before loading, in all objects that have it; can be
    /// repeated
    #[arg(long, value_name = "NAME=VALUE", value_parser = assignment)]
    pub set: Vec<(String, String)>,
}

impl SetArgs {
    /// Says how objects are read for a chain of programs of a type: whoever puts a program into one
    /// says by that what it is, whatever its section is called.
    pub fn reading(&self, prog_type: ProgramType) -> ObjectArgs {
        let (set, others) = (self.set.clone(), Some(prog_type));
        ObjectArgs { set, others, ..ObjectArgs::default() }
    }
}

fn typed(text: &str) -> Result<(Option<String>, String), String> {
    match text.split_once('=') {
        Some((program, named)) if !program.is_empty() && !named.is_empty() => {
            Ok((Some(program.to_owned()), named.to_owned()))
        }
        None if !text.is_empty() => Ok((None, text.to_owned())),
        _ => Err("expected TYPE or PROGRAM=TYPE".to_owned()),
    }
}

fn assignment(text: &str) -> Result<(String, String), String> {
    match text.split_once('=') {
        Some((name, value)) if !name.is_empty() => Ok((name.to_owned(), value.to_owned())),
        _ => Err("expected NAME=VALUE".to_owned()),
    }
}
