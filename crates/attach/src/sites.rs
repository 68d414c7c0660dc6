//! What can be hooked: the modules of the own process and their functions.

use crate::skip::AttachError;
use std::ops::Range;
use std::path::PathBuf;
use std::sync::Arc;

/// One ELF file mapped into the process.
#[derive(Debug)]
pub struct Module {
    /// Its path, as the kernel tells it.
    pub path: PathBuf,
    /// What is added to an address in the file to get the address in memory.
    pub bias: u64,
    /// Executable ranges in memory.
    pub text: Vec<Range<u64>>,
    /// Whether it is the program itself.
    pub main: bool,
}

/// One function in memory.
#[derive(Clone, Debug)]
pub struct Function {
    /// Where it lives.
    pub module: Arc<Module>,
    /// Its best name, as in the symbol table.
    pub name: String,
    /// Its other names.
    pub aliases: Vec<String>,
    /// Address in memory.
    pub addr: u64,
    /// Size in bytes; 0 when nobody knows.
    pub size: u64,
    /// What the symbol table says about it.
    pub kind: Kind,
    /// Number of argument words, when the prototype is known.
    pub nr_args: Option<u8>,
}

/// Sorts functions by what they are.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Kind {
    /// An ordinary function.
    Func,
    /// The resolver of an indirect function; cannot be hooked.
    Resolver,
}

/// Lists the modules of the own process. Symbols are read when [`Module::functions`] asks for them.
pub fn scan() -> Result<Vec<Arc<Module>>, AttachError> {
    Ok(Vec::new())
}

impl Module {
    /// Lists the functions of a module, sorted by address.
    pub fn functions(self: &Arc<Self>) -> Result<Vec<Function>, AttachError> {
        Ok(Vec::new())
    }
}
