//! Addresses of a process: which file each is in, and what that file says.

use std::path::{Path, PathBuf};

use super::answers::{Answer, Answers};
use super::fetch::Fetch;
use super::file::{SymbolFile, Want};
use super::outside::{OutsideNames, OutsideSymbol};
use crate::elf::{Elf, ElfError, PT_LOAD};
use crate::module::Module;

/// The first address of the kernel's half.
const KERNEL: u64 = 1 << 63;

/// The code of a process: files at addresses, and code that is in no file.
///
/// It comes from the modules of a live process or of a snapshot ([`AddressSpace::of_modules`]), or
/// from what else says where files were mapped ([`AddressSpace::add`]).
#[derive(Debug, Default)]
pub struct AddressSpace {
    ranges: Vec<Mapped>,
    files: Vec<File>,
    jit: OutsideNames,
    kernel: Option<OutsideNames>,
    fetch: Option<Fetch>,
}

#[derive(Clone, Copy, Debug)]
struct Mapped {
    start: u64,
    end: u64,
    bias: u64,
    file: u32,
}

#[derive(Debug)]
struct File {
    path: PathBuf,
    module: Option<Module>,
    opened: Option<Result<SymbolFile, ElfError>>,
}

/// What is known of addresses of a process.
#[derive(Debug)]
pub struct SpaceAnswers<'s> {
    space: &'s AddressSpace,
    /// For each file that was asked.
    files: Vec<Option<Result<Answers, ElfError>>>,
}

/// One address of a process.
#[derive(Debug)]
pub struct Place<'a> {
    /// The file that it lies in; `None` for code that was made at run time, and nonsense.
    pub path: Option<&'a Path>,
    /// Its link-time address in that file; else the address itself.
    pub vaddr: u64,
    /// What the file says, or why it cannot be read: it was deleted, or replaced.
    pub answer: Option<Result<Answer<'a>, &'a ElfError>>,
    /// What is known of code that is in no file.
    pub outside: Option<OutsideSymbol<'a>>,
}

impl AddressSpace {
    /// Takes the modules of a process, whose files are checked to be the mapped ones when they are
    /// opened.
    pub fn of_modules(modules: Vec<Module>) -> Self {
        let mut space = Self::default();
        for module in modules {
            let file = u32::try_from(space.files.len()).unwrap_or(u32::MAX);
            let bias = module.bias;
            let ranges = module.text.iter();
            space.ranges.extend(ranges.map(|r| Mapped { start: r.start, end: r.end, bias, file }));
            let path = module.path.clone();
            space.files.push(File { path, module: Some(module), opened: None });
        }
        space.ranges.sort_by_cached_key(|r| r.start);
        space
    }

    /// Takes names of code that is in no file.
    pub fn with_outside(self, jit: OutsideNames) -> Self {
        Self { jit, ..self }
    }

    /// Lets `fetch` bring debug files that are not on this machine.
    #[must_use]
    pub fn with_fetch(self, fetch: Fetch) -> Self {
        Self { fetch: Some(fetch), ..self }
    }

    /// Adds a file that was mapped with its code at `start..end`, `bias` above its link-time
    /// addresses. It is opened by its path.
    pub fn add(&mut self, path: &Path, start: u64, end: u64, bias: u64) {
        let known = self.files.iter().position(|f| f.path == path && f.module.is_none());
        let file = known.unwrap_or_else(|| {
            self.files.push(File { path: path.to_owned(), module: None, opened: None });
            self.files.len() - 1
        });
        let file = u32::try_from(file).unwrap_or(u32::MAX);
        let at = self.ranges.partition_point(|r| r.start <= start);
        self.ranges.insert(at, Mapped { start, end, bias, file });
    }

    /// Adds an ELF image that is in no file, such as the vDSO of a core file: its bytes, and where they
    /// lay.
    ///
    /// # Errors
    /// If it is no 64-bit little-endian ELF file, or has no code.
    pub fn add_image(&mut self, name: &str, start: u64, bytes: Vec<u8>) -> Result<(), ElfError> {
        let elf = Elf::from_bytes(bytes)?;
        let load = elf.segments().iter().find(|s| s.kind == PT_LOAD);
        let load = load.ok_or(ElfError::Malformed { what: "program headers", offset: 0 })?;
        let (bias, end) = (start.wrapping_sub(load.vaddr), start.saturating_add(load.mem_size));
        let opened = SymbolFile::new(elf, Path::new(name), Path::new("/"))?;
        self.add(Path::new(name), start, end, bias);
        if let Some(file) = self.files.iter_mut().find(|f| f.path == Path::new(name)) {
            file.opened = Some(Ok(opened));
        }
        Ok(())
    }

    fn mapped(&self, addr: u64) -> Option<Mapped> {
        let before = self.ranges.partition_point(|r| r.start <= addr).checked_sub(1)?;
        self.ranges.get(before).copied().filter(|r| addr < r.end)
    }

    /// Finds out about addresses, each file's at once.
    pub fn find(&mut self, addrs: &[u64], want: Want) -> SpaceAnswers<'_> {
        let mut wanted = vec![Vec::new(); self.files.len()];
        for addr in addrs {
            if let Some(mapped) = self.mapped(*addr)
                && let Some(list) = wanted.get_mut(mapped.file as usize)
            {
                list.push(addr.wrapping_sub(mapped.bias));
            }
        }
        if self.kernel.is_none() && addrs.iter().any(|a| *a >= KERNEL) {
            self.kernel = Some(OutsideNames::of_kernel());
        }
        let mut files = Vec::new();
        for (file, addrs) in self.files.iter_mut().zip(&wanted) {
            let asked = !addrs.is_empty();
            files.push(asked.then(|| match file.open(self.fetch.as_ref()) {
                Ok(opened) => Ok(opened.find(addrs, want)),
                Err(e) => Err(e.clone()),
            }));
        }
        SpaceAnswers { space: self, files }
    }
}

impl File {
    fn open(&mut self, fetch: Option<&Fetch>) -> &mut Result<SymbolFile, ElfError> {
        let (path, module) = (&self.path, &self.module);
        self.opened.get_or_insert_with(|| {
            let file = match module {
                Some(module) => SymbolFile::new(module.elf()?, path, &module.root())?,
                None => SymbolFile::open(path)?,
            };
            Ok(fetch.cloned().into_iter().fold(file, SymbolFile::with_fetch))
        })
    }
}

impl SpaceAnswers<'_> {
    /// What is known of an address that was asked for.
    pub fn get(&self, addr: u64) -> Place<'_> {
        let Some(mapped) = self.space.mapped(addr) else {
            let names =
                if addr >= KERNEL { self.space.kernel.as_ref() } else { Some(&self.space.jit) };
            let outside = names.and_then(|n| n.at(addr));
            return Place { path: None, vaddr: addr, answer: None, outside };
        };
        let vaddr = addr.wrapping_sub(mapped.bias);
        let file = mapped.file as usize;
        let answer = match self.files.get(file) {
            Some(Some(Ok(answers))) => answers.get(vaddr).map(Ok),
            Some(Some(Err(e))) => Some(Err(e)),
            _ => None,
        };
        let path = self.space.files.get(file).map(|f| f.path.as_path());
        Place { path, vaddr, answer, outside: None }
    }
}
