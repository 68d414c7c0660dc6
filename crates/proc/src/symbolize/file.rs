//! The symbols and lines of one ELF file, wherever they are kept.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use super::answers::{Answers, NearSymbol};
use super::compressed;
use super::dwarf::Debug;
use super::fetch::Fetch;
use super::image::Image;
use super::names;
use super::pclntab;
use crate::elf::{BuildId, Elf, ElfError};

const SHT_SYMTAB: u32 = 2;

/// What to find out about addresses.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Want {
    /// Source lines, and the names of inlined functions. Reads debug information, which takes a
    /// hundred times as long as symbols.
    pub lines: bool,
    /// Also the functions that inlined ones were inlined into.
    pub inlined: bool,
}

/// One ELF file, with what was split off it: its symbols and lines may be in a debug file, its
/// symbols in `.gnu_debugdata`.
///
/// ```
/// use skep_proc::symbolize::{SymbolFile, Want};
/// let mut file = SymbolFile::open(&std::env::current_exe()?)?;
/// let entry = file.elf().entry().ok_or("a program has an entry")?;
/// let answers = file.find(&[entry], Want::default());
/// let symbol = answers.get(entry).and_then(|a| a.symbol()).ok_or("no symbol")?;
/// assert_eq!(symbol.name, b"_start");
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Debug)]
pub struct SymbolFile {
    main: Arc<Image>,
    path: PathBuf,
    root: PathBuf,
    /// The debug file, and where it was found, once it was looked for.
    separate: Option<Option<(PathBuf, Arc<Image>)>>,
    debug: Option<Result<Option<Debug>, ElfError>>,
    fetch: Option<Fetch>,
    /// Symbols of `.gnu_debugdata`.
    small: Option<Result<Option<Image>, ElfError>>,
}

impl SymbolFile {
    /// Opens the file at `path`.
    ///
    /// # Errors
    /// If it cannot be read, or is no 64-bit little-endian ELF file.
    pub fn open(path: &Path) -> Result<Self, ElfError> {
        Self::new(Elf::open(path)?, path, Path::new("/"))
    }

    /// Takes a file that was opened, such as by [`crate::module::Module::elf`]; `path` is where it
    /// lies below `root`, in which its debug file is looked for.
    pub fn new(elf: Elf, path: &Path, root: &Path) -> Result<Self, ElfError> {
        Ok(Self {
            main: Arc::new(Image::new(elf)?),
            path: path.to_owned(),
            root: root.to_owned(),
            separate: None,
            debug: None,
            fetch: None,
            small: None,
        })
    }

    /// Lets `fetch` bring the debug file, if there is none on this machine.
    #[must_use]
    pub fn with_fetch(self, fetch: Fetch) -> Self {
        Self { fetch: Some(fetch), ..self }
    }

    /// The file itself.
    pub fn elf(&self) -> &Elf {
        &self.main.elf
    }

    /// Its build id.
    pub fn build_id(&self) -> Option<BuildId> {
        self.main.elf.build_id()
    }

    /// The link-time address of what lies at an offset of the file and is loaded.
    pub fn vaddr_of(&self, offset: u64) -> Option<u64> {
        let loaded = self.elf().segments().iter().filter(|s| s.kind == crate::elf::PT_LOAD);
        let mut around = loaded.filter(|s| offset >= s.offset && offset - s.offset < s.file_size);
        around.next().map(|s| (offset - s.offset).wrapping_add(s.vaddr))
    }

    /// Finds out about link-time addresses, in any order. All at once is much faster, and takes
    /// less memory, than one by one: each unit of debug information is read once.
    ///
    /// Debug information that is damaged answers what it can.
    pub fn find(&mut self, addrs: &[u64], want: Want) -> Answers {
        let mut answers = Answers::new(addrs);
        let symbols = self.symbols();
        names::find(symbols, &mut answers, want.lines);
        let stripped = !has_table(symbols);
        let mut lines = want.lines;
        if want.lines
            && let Ok(Some(debug)) = self.debug()
        {
            debug.find(&mut answers, want.inlined);
            lines = false;
        }
        if stripped || lines {
            pclntab::find(&self.main, &mut answers, stripped, lines);
        }
        answers
    }

    /// Names addresses without keeping the names: calls `put` with the number of each address that a
    /// symbol covers, and that symbol. All addresses of a symbol come one after the other; symbols come
    /// in the order in which their names lie in the file.
    ///
    /// ```
    /// use skep_proc::symbolize::SymbolFile;
    /// let mut file = SymbolFile::open(&std::env::current_exe()?)?;
    /// let entry = file.elf().entry().ok_or("a program has an entry")?;
    /// let mut names = vec![None; 2];
    /// file.each_name(&[0, entry], &mut |number, symbol| names[number] = Some(symbol.name.to_vec()));
    /// assert_eq!(names, [None, Some(b"_start".to_vec())]);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn each_name(&mut self, addrs: &[u64], put: &mut dyn FnMut(usize, NearSymbol<'_>)) {
        let of_go = pclntab::is_there(&self.main);
        let symbols = self.symbols();
        if has_table(symbols) || !of_go {
            names::each(symbols, Answers::new(addrs), put);
            return;
        }
        let answers = self.find(addrs, Want::default());
        for number in 0..addrs.len() {
            if let Some(symbol) = answers.at(number).and_then(|answer| answer.symbol()) {
                put(number, symbol);
            }
        }
    }

    /// Why lines cannot be found: the error of the debug information; `None` if it was read, or if
    /// there is none.
    pub fn lines_error(&mut self) -> Option<ElfError> {
        self.debug().as_ref().err().cloned()
    }

    /// Why symbols in `.gnu_debugdata` are not used; `None` if they are, or others are.
    pub fn names_error(&mut self) -> Option<ElfError> {
        self.symbols();
        self.small.as_ref()?.as_ref().err().cloned()
    }

    /// The file with the best symbol table.
    fn symbols(&mut self) -> &Image {
        if has_table(&self.main) {
            return &self.main;
        }
        // Looking for the debug file opens others; those of the file itself come first.
        let no_table = self.separate().is_none_or(|(_, image)| !has_table(image));
        if no_table && self.small.is_none() {
            self.small = Some(self.debugdata().map(|image| image.filter(has_table)));
        }
        match (&self.separate, &self.small) {
            (Some(Some((_, image))), _) if has_table(image) => image,
            (_, Some(Ok(Some(image)))) => image,
            _ => &self.main,
        }
    }

    /// The separate debug file.
    fn separate(&mut self) -> Option<&(PathBuf, Arc<Image>)> {
        if self.separate.is_none() {
            let found = self.main.elf.debug_file(&self.path, &self.root);
            let found = found.or_else(|| self.fetch.as_ref()?.of(&self.main.elf));
            let mapped =
                found.and_then(|(path, elf)| Some((path, Arc::new(Image::new(elf).ok()?))));
            self.separate = Some(mapped);
        }
        self.separate.as_ref()?.as_ref()
    }

    fn debug(&mut self) -> &mut Result<Option<Debug>, ElfError> {
        if self.debug.is_none() {
            self.debug = Some(self.open_debug());
        }
        self.debug.get_or_insert(Ok(None))
    }

    fn open_debug(&mut self) -> Result<Option<Debug>, ElfError> {
        let below = self.root.join(self.path.strip_prefix("/").unwrap_or(&self.path));
        let has = |elf: &Elf| elf.debug_info().is_some();
        let (path, image) = if has(&self.main.elf) {
            (below, Arc::clone(&self.main))
        } else {
            match self.separate() {
                Some((path, image)) if has(&image.elf) => (path.clone(), Arc::clone(image)),
                _ => return Ok(None),
            }
        };
        Debug::new(image, &path, &self.root)
    }

    /// The small ELF file with symbols that is compressed inside of this one.
    fn debugdata(&self) -> Result<Option<Image>, ElfError> {
        let Some(section) = self.main.elf.section(".gnu_debugdata") else { return Ok(None) };
        let bytes = compressed::unxz(self.main.raw(section), section.offset, self.main.room())?;
        Image::new(Elf::from_bytes(bytes)?).map(Some)
    }
}

fn has_table(image: &Image) -> bool {
    image.elf.sections().iter().any(|s| s.kind == SHT_SYMTAB && s.size >= 24)
}
