//! The types of the functions that programs are going to be attached to: found before the command
//! starts, so that a program that does not fit is refused, and targets need to read no debug
//! information.
//!
//! A [`Catalog`] knows the files that a command will be made of: the program and the libraries it
//! is linked with. Only files with functions that are asked for are looked into, and nothing is
//! when no program reads arguments. `resolve` compares what a program reads with each function that
//! its patterns mean, and says which of them it fits, and where their words are
//! ([`Types`](skep_store::link::Types)).

mod command;
mod listed;
mod module;
mod program;
mod resolve;

pub use listed::{Listed, hidden_word};
pub(crate) use program::{Asked, Proved};
use resolve::Ask;
pub use resolve::Resolved;

use std::cell::OnceCell;
use std::ffi::OsStr;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use skep_object::Btf;
use skep_proc::elf::Elf;
use skep_proc::launch::{self, LaunchError};
use skep_verifier::{Options, Rejection, Verified};

use module::ModuleFile;

/// Types that the user names.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub enum Given {
    /// A program, a library, or the debug file of one.
    Program(PathBuf),
    /// BTF of the program.
    Btf(Arc<Btf>),
}

/// The files that a command will be made of.
#[derive(Debug, Default)]
pub struct Catalog {
    program: Option<PathBuf>,
    given: Option<Given>,
    modules: OnceCell<Vec<ModuleFile>>,
}

impl Catalog {
    /// Describes a command that is called by this name: the program that the kernel will run for
    /// it, which is the interpreter of a script. Nothing is read yet.
    #[must_use]
    pub fn of_command(name: &OsStr, given: Option<Given>) -> Self {
        let found =
            launch::find(name, std::env::var_os("PATH").as_deref()).and_then(launch::inspect);
        Self { program: found.ok().map(|l| l.program), given, modules: OnceCell::new() }
    }

    /// Describes a program, or a library, that must be there.
    ///
    /// # Errors
    /// When there is no such file, or it is no program, library or script.
    pub fn of_program(name: &OsStr) -> Result<Self, LaunchError> {
        let path = std::env::var_os("PATH");
        let found = launch::find(name, path.as_deref()).and_then(launch::inspect);
        let program = match found.map(|l| l.program) {
            // Libraries need not be executable.
            Err(LaunchError::NotExecutable { path }) if Elf::open(&path).is_ok() => path,
            found => found?,
        };
        Ok(Self { program: Some(program), given: None, modules: OnceCell::new() })
    }

    /// Describes one file without what it is linked with.
    #[must_use]
    pub fn of_file(path: &Path) -> Self {
        let modules = OnceCell::new();
        drop(modules.set(vec![ModuleFile::new(path, true, None)]));
        Self { program: Some(path.to_owned()), given: None, modules }
    }

    /// Judges a proved program beside the functions that its section names, whatever modules it
    /// names: for those who do not load it.
    ///
    /// # Errors
    /// When the program does not fit.
    #[allow(clippy::result_large_err, reason = "as for `skep_verifier::verify`")]
    pub fn judge(&self, proof: &Verified, options: &Options) -> Result<(), Rejection> {
        let linked = proof.linked();
        let reads: Vec<_> = proof.info().ctx_reads.iter().copied().collect();
        let attach =
            skep_store::link::attach_type::on_functions_of(linked.prog_type, linked.attach_type)
                .filter(|_| !reads.is_empty());
        let Some(attach) = attach else { return Ok(()) };
        let include = crate::targets::functions(linked.target.as_deref());
        let ask = Ask { reads: &reads, attach, include: &include, exclude: &[] };
        let Ok(Err(refusal)) = self.resolve(&ask) else { return Ok(()) };
        let mut options = options.clone();
        options.attached = refusal.attached;
        skep_verifier::verify(linked, &options).map(drop)
    }

    /// The paths of the program and its libraries, and which of them is the program.
    pub(crate) fn files(&self) -> impl Iterator<Item = (&Path, bool)> {
        self.modules().iter().map(|module| (module.path.as_path(), module.main))
    }

    /// The program, and then its libraries.
    fn modules(&self) -> &[ModuleFile] {
        self.modules.get_or_init(|| {
            let Some(program) = &self.program else { return Vec::new() };
            let files = std::iter::once((program.clone(), true))
                .chain(command::libraries(program).into_iter().map(|l| (l, false)));
            files.map(|(path, main)| ModuleFile::new(&path, main, self.given.as_ref())).collect()
        })
    }
}
