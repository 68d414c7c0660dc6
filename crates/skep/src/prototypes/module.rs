//! One file of a command: its functions, and where their types are.

use std::cell::OnceCell;
use std::collections::HashMap;
#[cfg(feature = "dwarf")]
use std::collections::HashSet;
#[cfg(feature = "dwarf")]
use std::fs::File;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use skep_object::{Btf, CoreTarget, Prototype};
#[cfg(feature = "dwarf")]
use skep_object::{DwarfFunctions, Shared};
use skep_proc::elf::{Elf, Functions, Kind};

use super::Given;

/// A function's prototype, or why none can be relied on.
pub(super) type Answer = Result<Arc<Prototype>, String>;

/// A function of a file.
#[derive(Debug)]
pub(super) struct Function {
    pub vaddr: u64,
    pub name: String,
    pub aliases: Vec<String>,
    /// It only says which function is meant (an indirect function).
    pub resolver: bool,
}

/// One file of a command.
#[derive(Debug)]
pub(super) struct ModuleFile {
    /// Its path as processes see it.
    pub path: PathBuf,
    pub main: bool,
    given: Option<Given>,
    elf: Option<Elf>,
    functions: OnceCell<Vec<Function>>,
    source: OnceCell<Source>,
}

/// Where types are.
#[derive(Debug)]
enum Source {
    /// Debug information of this very file.
    #[cfg(feature = "dwarf")]
    Own(DwarfFunctions),
    /// Debug information of another build.
    #[cfg(feature = "dwarf")]
    Named(DwarfFunctions),
    Btf(Arc<Btf>),
    /// Nowhere, and why.
    None(String),
}

impl ModuleFile {
    pub fn new(path: &Path, main: bool, given: Option<&Given>) -> Self {
        let path = std::fs::canonicalize(path).unwrap_or_else(|_| path.to_owned());
        let elf = Elf::open(&path).ok();
        let mut module = Self {
            path,
            main,
            given: None,
            elf,
            functions: OnceCell::new(),
            source: OnceCell::new(),
        };
        module.given = given.filter(|g| module.concerns(g)).cloned();
        module
    }

    /// Its build id; empty when it has none.
    pub fn build_id(&self) -> Vec<u8> {
        self.elf.as_ref().and_then(Elf::build_id).map(|id| id.0).unwrap_or_default()
    }

    /// Tells whether types that the user names are this file's: BTF is that of the program; a file
    /// is the debug file of what has the same build id or name, else that of the program.
    fn concerns(&self, given: &Given) -> bool {
        let Given::Program(path) = given else { return self.main };
        let (own, other) = (
            self.build_id(),
            Elf::open(path).ok().and_then(|e| e.build_id()).map(|id| id.0).unwrap_or_default(),
        );
        if !own.is_empty() && own == other {
            return true;
        }
        let stem = |p: &Path| {
            p.file_name().map(|n| n.to_string_lossy().trim_end_matches(".debug").to_owned())
        };
        let library = |p: &Path| stem(p).is_some_and(|n| n.contains(".so"));
        stem(&self.path) == stem(path) || (self.main && !library(path))
    }

    /// The functions that its symbols name, also when they are in a debug file.
    pub fn functions(&self) -> &[Function] {
        self.functions.get_or_init(|| {
            let all: Option<Functions> =
                self.elf.as_ref().and_then(|e| e.functions_at(&self.path, "/".as_ref()).ok());
            let text = |b: &[u8]| String::from_utf8_lossy(b).into_owned();
            let function = |f: skep_proc::elf::Function<'_>| Function {
                vaddr: f.vaddr,
                name: text(f.name),
                aliases: f.aliases().map(|a| text(a.name)).collect(),
                resolver: f.kind == Kind::Ifunc,
            };
            all.iter().flat_map(Functions::iter).filter(|f| !f.is_cold()).map(function).collect()
        })
    }

    /// Finds the prototypes of some of its functions. What is not in the answer is not in the debug
    /// information either.
    pub fn prototypes(&self, wanted: &[&Function]) -> HashMap<u64, Answer> {
        let mut out = HashMap::with_capacity(wanted.len());
        let reliable: Vec<&Function> = wanted
            .iter()
            .copied()
            .filter(|f| {
                let changed = is_changed(&f.name) || f.aliases.iter().any(|a| is_changed(a));
                if changed {
                    out.insert(f.vaddr, Err("the compiler changed how it is called".to_owned()));
                }
                !changed
            })
            .collect();
        match self.source.get_or_init(|| self.find()) {
            #[cfg(feature = "dwarf")]
            Source::Own(dwarf) => {
                let mut addresses: Vec<u64> = reliable.iter().map(|f| f.vaddr).collect();
                addresses.sort_unstable();
                // What was read before the damage is good.
                drop(dwarf.at(&addresses, |vaddr, p| {
                    add(&mut out, vaddr, p.map(Arc::new).map_err(str::to_owned))
                }));
            }
            #[cfg(feature = "dwarf")]
            Source::Named(dwarf) => {
                let by_name: HashMap<&str, u64> =
                    reliable.iter().flat_map(|f| f.names().map(|n| (n, f.vaddr))).collect();
                let names: HashSet<&str> = by_name.keys().copied().collect();
                drop(dwarf.named(&names, |name, p| {
                    if let Some(vaddr) = by_name.get(name) {
                        add(&mut out, *vaddr, p.map(Arc::new).map_err(str::to_owned));
                    }
                }));
            }
            Source::Btf(btf) => {
                for f in reliable {
                    if let Some(p) = f.names().find_map(|n| Prototype::from_btf(btf, n)) {
                        out.insert(f.vaddr, Ok(Arc::new(p)));
                    }
                }
            }
            Source::None(_) => {}
        }
        out
    }

    /// All types that its debug information describes.
    pub fn types(&self) -> Option<Arc<Btf>> {
        #[cfg(feature = "dwarf")]
        {
            let own = |path: &Path| Btf::from_dwarf_at(path).ok().map(Arc::new);
            let given = match &self.given {
                Some(Given::Btf(btf)) => return Some(Arc::clone(btf)),
                Some(Given::Program(path)) => own(path),
                None => None,
            };
            if let Some(found) = given.or_else(|| own(&self.path)).or_else(|| {
                let (path, _) = self.elf.as_ref()?.debug_file(&self.path, "/".as_ref())?;
                own(&path)
            }) {
                return Some(found);
            }
        }
        match self.source.get_or_init(|| self.find()) {
            Source::Btf(btf) => Some(Arc::clone(btf)),
            #[cfg(feature = "dwarf")]
            Source::Own(_) | Source::Named(_) => None,
            Source::None(_) => None,
        }
    }

    /// Says why there are no types at all; `None` when there are some.
    pub fn without_types(&self) -> Option<&str> {
        match self.source.get()? {
            Source::None(why) => Some(why),
            _ => None,
        }
    }

    fn find(&self) -> Source {
        match &self.given {
            Some(Given::Btf(btf)) => return Source::Btf(Arc::clone(btf)),
            #[cfg(feature = "dwarf")]
            Some(Given::Program(path)) => {
                if let Some(found) = self.given_dwarf(path) {
                    return found;
                }
            }
            #[cfg(not(feature = "dwarf"))]
            Some(Given::Program(_)) => {}
            None => {}
        }
        #[cfg(feature = "dwarf")]
        let why = match dwarf(&self.path) {
            Ok(found) => return Source::Own(found),
            Err(e) => e,
        };
        #[cfg(not(feature = "dwarf"))]
        let why = "debug information is not read".to_owned();
        #[cfg(feature = "dwarf")]
        if let Some((path, _)) =
            self.elf.as_ref().and_then(|e| e.debug_file(&self.path, "/".as_ref()))
            && let Ok(found) = dwarf(&path)
        {
            return Source::Own(found);
        }
        match std::fs::read(&self.path)
            .ok()
            .filter(|_| self.elf.as_ref().is_some_and(|e| e.section(".BTF").is_some()))
        {
            Some(bytes) => CoreTarget::parse(&bytes)
                .map_or(Source::None(why), |t| Source::Btf(Arc::clone(t.btf()))),
            None => Source::None(why),
        }
    }

    /// Debug information that the user named, or of the debug file of that; `None` when there is
    /// none, which was said before.
    #[cfg(feature = "dwarf")]
    fn given_dwarf(&self, path: &Path) -> Option<Source> {
        let elf = Elf::open(path).ok()?;
        let found = dwarf(path).ok().or_else(|| {
            let absolute = std::fs::canonicalize(path).ok()?;
            let (path, _) = elf.debug_file(&absolute, "/".as_ref())?;
            dwarf(&path).ok()
        })?;
        let own = self.build_id();
        let same = if own.is_empty() {
            std::fs::canonicalize(path).ok().as_ref() == Some(&self.path)
        } else {
            elf.build_id().is_some_and(|id| id.0 == own)
        };
        Some(if same { Source::Own(found) } else { Source::Named(found) })
    }
}

impl Function {
    fn names(&self) -> impl Iterator<Item = &str> {
        std::iter::once(self.name.as_str()).chain(self.aliases.iter().map(String::as_str))
    }
}

/// Adds an answer. Functions that differ and were folded into one have none that can be relied on.
#[cfg(feature = "dwarf")]
fn add(out: &mut HashMap<u64, Answer>, vaddr: u64, answer: Answer) {
    use std::collections::hash_map::Entry;
    match out.entry(vaddr) {
        Entry::Vacant(e) => drop(e.insert(answer)),
        Entry::Occupied(mut e) => {
            let same = matches!((e.get(), &answer), (Ok(a), Ok(b)) if a.same_words(b));
            if !same {
                *e.get_mut() = Err("functions with different types share its code".to_owned());
            }
        }
    }
}

/// Tells by a name whether the compiler made another function of what is in the source: gcc's
/// `f.isra.0`, `f.constprop.3`, `f.part.1`.
fn is_changed(name: &str) -> bool {
    [".isra.", ".constprop.", ".part.", ".cold"].iter().any(|mark| name.contains(mark))
}

/// Opens debug information.
#[cfg(feature = "dwarf")]
fn dwarf(path: &Path) -> Result<DwarfFunctions, String> {
    let file = File::open(path).map_err(|e| e.to_string())?;
    let shared = |link: &Shared| {
        let beside = path.parent().unwrap_or(Path::new("/")).join(&link.path);
        File::open(beside).ok()
    };
    let read = DwarfFunctions::read(file, shared).map_err(|e| e.to_string())?;
    Ok(read.with_split_files(path))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_the_compiler_changed_goes_by_its_name() {
        for (name, changed) in [
            ("f", false),
            ("f.isra.0", true),
            ("f.constprop.1", true),
            ("f.part.0", true),
            ("f.lto_priv.0", false),
        ] {
            assert_eq!(is_changed(name), changed, "{name}");
        }
    }
}
