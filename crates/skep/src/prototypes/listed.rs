//! Functions by name, with what is known of their types: for those who print arguments.

use std::path::Path;
use std::sync::Arc;

use skep_object::{Btf, Composite, MAX_WORDS, Prototype};
use skep_store::link::types::{Layout, NUMBERS, Types};
use skep_store::link::{PatternError, Selection};

use super::resolve::{Table, layout};
use super::{Catalog, Given};

/// A function that patterns mean.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct Listed {
    /// Its file, by number: see [`Catalog::path`] and [`Catalog::types`].
    pub module: usize,
    /// Its address in the file.
    pub vaddr: u64,
    /// Its symbol.
    pub name: String,
    /// Its other symbols.
    pub aliases: Vec<String>,
    /// Its prototype, or why none is known.
    pub prototype: Result<Arc<Prototype>, String>,
}

/// The register of the hidden argument that says where the result goes.
const HIDDEN: u8 = 0;

/// The word of a context that says where the result is of a function that returns it in memory, for
/// functions that [`Catalog::number`] told targets of. (At return `rax` says it only in functions that
/// others than the compiler know of.)
#[must_use]
pub fn hidden_word(p: &Prototype) -> Option<usize> {
    let words = p.words().len();
    (matches!(p.ret_composite(), Some(Composite::Behind)) && words < MAX_WORDS).then_some(words)
}

impl Catalog {
    /// Describes files that a process has mapped, its program first.
    #[must_use]
    pub fn of_files<P: AsRef<Path>>(
        files: impl IntoIterator<Item = P>,
        given: Option<Given>,
    ) -> Self {
        let modules = std::cell::OnceCell::new();
        let file =
            |(at, path): (usize, P)| super::ModuleFile::new(path.as_ref(), at == 0, given.as_ref());
        drop(modules.set(files.into_iter().enumerate().map(file).collect()));
        Self { program: None, given, modules }
    }

    /// Lists the functions that patterns mean, as links do; none whose code only says which function
    /// is meant (indirect functions).
    ///
    /// # Errors
    /// When a pattern cannot be read.
    pub fn list(
        &self,
        include: &[String],
        exclude: &[String],
    ) -> Result<Vec<Listed>, PatternError> {
        let selection = Selection::of(include, exclude)?;
        let mut all = Vec::new();
        for (index, module) in self.modules().iter().enumerate() {
            let path = module.path.to_string_lossy();
            let Some(patterns) = selection.module(&path, module.main, false) else { continue };
            let meant = |f: &&super::module::Function| {
                let aliases = f.aliases.iter().map(String::as_str);
                !f.resolver && patterns.function(&f.name, aliases).is_some()
            };
            let wanted: Vec<_> = module.functions().iter().filter(meant).collect();
            if wanted.is_empty() {
                continue;
            }
            let mut answers = module.prototypes(&wanted);
            let unknown = || match module.without_types() {
                Some(why) => why.to_owned(),
                None => "it is not in the debug information".to_owned(),
            };
            all.extend(wanted.into_iter().map(|f| Listed {
                module: index,
                vaddr: f.vaddr,
                name: f.name.clone(),
                aliases: f.aliases.clone(),
                prototype: answers.remove(&f.vaddr).unwrap_or_else(|| Err(unknown())),
            }));
        }
        Ok(all)
    }

    /// The path of a file by its number.
    #[must_use]
    pub fn path(&self, module: usize) -> Option<&Path> {
        self.modules().get(module).map(|m| m.path.as_path())
    }

    /// The types of a file by its number: all that its debug information describes. That takes a
    /// second for each 100 MB.
    #[must_use]
    pub fn types(&self, module: usize) -> Option<Arc<Btf>> {
        self.modules().get(module)?.types()
    }

    /// Tells targets of functions and their numbers, which are from 1 on: a program finds a
    /// function's number in bits 32 to 62 of its attach cookie, if the link's cookies are indexes.
    /// A function whose prototype is not known shows its six registers. One that returns its result in
    /// memory shows where that is behind its arguments: [`hidden_word`].
    #[must_use]
    pub fn number<'l>(&self, functions: impl IntoIterator<Item = (&'l Listed, u32)>) -> Types {
        let mut table = Table::default();
        for (f, number) in functions {
            let words = match &f.prototype {
                Ok(p) => {
                    let mut known = layout(p);
                    if hidden_word(p).is_some() {
                        known.words.push(HIDDEN);
                    }
                    // A second word of the result is there where words are copied.
                    Layout { direct: known.direct && known.ret.len() < 2, ..known }
                }
                Err(_) => Layout { words: (0..6).collect(), ret: vec![0], direct: true },
            };
            if number < NUMBERS {
                table.add(f.module, f.vaddr, words, number);
            }
        }
        table.finish(self.modules(), None)
    }
}
