//! Addresses to names, source lines and inlined functions.
//!
//! [`Symbolizer`] names single addresses of a process. With the feature `symbolize` there is
//! [`SymbolFile`] for many addresses of one file: it reads the symbol table once for all of them,
//! and debug information unit by unit, in an amount of memory that does not grow with the file.

#[cfg(feature = "symbolize")]
mod answers;
#[cfg(feature = "symbolize")]
mod compressed;
#[cfg(feature = "symbolize")]
mod dwarf;
#[cfg(feature = "symbolize")]
mod fetch;
#[cfg(feature = "symbolize")]
mod file;
#[cfg(feature = "symbolize")]
mod functions;
#[cfg(feature = "symbolize")]
mod image;
#[cfg(feature = "symbolize")]
mod jitdump;
#[cfg(feature = "symbolize")]
mod lines;
#[cfg(feature = "symbolize")]
mod names;
#[cfg(feature = "symbolize")]
mod order;
#[cfg(feature = "symbolize")]
mod outside;
#[cfg(feature = "symbolize")]
mod pclntab;
#[cfg(feature = "symbolize")]
mod relocated;
#[cfg(feature = "symbolize")]
mod space;

#[cfg(feature = "symbolize")]
pub use answers::{Answer, Answers, NearSymbol, SourceFrame};
#[cfg(feature = "symbolize")]
pub use fetch::Fetch;
#[cfg(feature = "symbolize")]
pub use file::{SymbolFile, Want};
#[cfg(feature = "symbolize")]
pub use outside::{OutsideNames, OutsideSymbol};
#[cfg(feature = "symbolize")]
pub use space::{AddressSpace, Place, SpaceAnswers};

use crate::elf::{Functions, Symbol};
use crate::maps::MapsError;
use crate::module::{self, Module};

/// Names addresses of one process; reads a module's symbols when its first address comes.
#[derive(Debug)]
pub struct Symbolizer {
    modules: Vec<(Module, Option<Functions>, bool)>,
}

/// What is known of an address.
#[derive(Clone, Debug)]
pub struct Frame<'a> {
    /// The address itself.
    pub addr: u64,
    /// The module it lies in; `None` for generated code and nonsense.
    pub module: Option<&'a Module>,
    /// Raw name of the function it lies in; `None` if no symbol covers it.
    pub function: Option<Symbol<'a>>,
    /// Distance from the function's start, else from the module's link-time zero, else from 0.
    pub offset: u64,
}

impl Symbolizer {
    /// Takes the modules of the own process.
    pub fn own() -> Result<Self, MapsError> {
        Ok(Self::new(module::own()?))
    }

    /// Takes the modules of another process. They are kept: what it loads later stays without
    /// names.
    pub fn of(pid: u32) -> Result<Self, MapsError> {
        Ok(Self::new(module::of(pid)?))
    }

    /// Takes modules, such as those of a snapshot.
    pub fn new(modules: Vec<Module>) -> Self {
        Self { modules: modules.into_iter().map(|m| (m, None, false)).collect() }
    }

    /// The modules known.
    pub fn modules(&self) -> impl Iterator<Item = &Module> {
        self.modules.iter().map(|(m, ..)| m)
    }

    /// Names one address. For a return address pass the byte before it, it may be the first of the
    /// next function.
    ///
    /// ```
    /// let mut names = skep_proc::symbolize::Symbolizer::own()?;
    /// let frame = names.resolve(std::process::exit as *const () as u64);
    /// assert!(frame.module.is_some() && frame.function.is_some());
    /// # Ok::<(), skep_proc::maps::MapsError>(())
    /// ```
    pub fn resolve(&mut self, addr: u64) -> Frame<'_> {
        let Some((module, functions, tried)) =
            self.modules.iter_mut().find(|(m, ..)| m.text_contains(addr))
        else {
            return Frame { addr, module: None, function: None, offset: addr };
        };
        if !*tried {
            // A file that cannot be read leaves its frames unnamed; that is not worth failing for.
            *functions = module.functions().ok();
            *tried = true;
        }
        let vaddr = module.vaddr(addr);
        match functions.as_ref().and_then(|f| f.covering(vaddr)) {
            Some(f) => Frame {
                addr,
                module: Some(module),
                function: f.symbols().next(),
                offset: vaddr.wrapping_sub(f.vaddr),
            },
            None => Frame { addr, module: Some(module), function: None, offset: vaddr },
        }
    }
}
