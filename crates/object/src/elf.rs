//! The ELF file as the rest of this crate wants to see it: sections, symbols, relocations, all
//! checked and owned by slices.

use crate::ObjectError;
use object::elf::{self, FileHeader64};
use object::read::elf::{FileHeader, Rel as _, SectionHeader, Sym as _};
use object::{LittleEndian as LE, SectionIndex, SymbolIndex};

/// Longest name that is taken for one; it keeps files with overlapping strings from costing more
/// than their size.
const MAX_NAME: usize = 4096;
/// How often over all symbol names may use the bytes of the file (names share tails).
const MAX_SHARING: usize = 16;
/// Places in `e_ident`.
const EI_CLASS: usize = 4;
const EI_DATA: usize = 5;

pub(crate) struct Elf<'a> {
    pub sections: Vec<Section<'a>>,
    pub symbols: Vec<Symbol<'a>>,
    /// The symbols of each section, section symbols left out.
    members: Vec<Vec<usize>>,
}

pub(crate) struct Section<'a> {
    pub name: &'a str,
    pub kind: u32,
    pub flags: u64,
    pub size: u64,
    /// Empty for sections without contents (`.bss`).
    pub data: &'a [u8],
    /// Relocations of this section, in order of offset.
    pub relocs: Vec<Reloc>,
}

#[derive(Clone, Copy)]
pub(crate) struct Reloc {
    pub offset: u64,
    pub symbol: usize,
    pub kind: u32,
}

pub(crate) struct Symbol<'a> {
    pub name: &'a str,
    pub value: u64,
    pub size: u64,
    pub place: Place,
    pub kind: u8,
    pub bind: u8,
    /// Not to be seen outside the object although it is global (`__hidden`).
    pub hidden: bool,
}

#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Place {
    Undefined,
    Section(usize),
    /// Absolute, common and other special symbols.
    Other,
}

impl Section<'_> {
    pub fn is_code(&self) -> bool {
        self.kind == elf::SHT_PROGBITS
            && self.flags & u64::from(elf::SHF_EXECINSTR) != 0
            && !self.data.is_empty()
    }

    pub fn error(&self, offset: u64, what: impl Into<String>) -> ObjectError {
        ObjectError::Section { section: self.name.to_owned(), offset, what: what.into() }
    }
}

impl Symbol<'_> {
    pub fn is_func(&self) -> bool {
        self.kind == elf::STT_FUNC
    }

    fn is_section(&self) -> bool {
        self.kind == elf::STT_SECTION
    }

    pub fn is_local(&self) -> bool {
        self.bind == elf::STB_LOCAL
    }

    pub fn is_weak(&self) -> bool {
        self.bind == elf::STB_WEAK
    }
}

impl<'a> Elf<'a> {
    pub fn parse(data: &'a [u8]) -> Result<Self, ObjectError> {
        let header = check_header(data)?;
        let table = header.sections(LE, data).map_err(damaged)?;
        let mut sections = Vec::with_capacity(table.len());
        for s in table.iter() {
            sections.push(Section {
                name: name(table.section_name(LE, s).map_err(damaged)?)?,
                kind: s.sh_type(LE),
                flags: s.sh_flags(LE),
                size: s.sh_size(LE),
                data: s.data(LE, data).map_err(damaged)?,
                relocs: Vec::new(),
            });
        }
        check_amount(data, &sections)?;
        let symtab = table.symbols(LE, data, elf::SHT_SYMTAB).map_err(damaged)?;
        let mut symbols = Vec::with_capacity(symtab.len());
        for (index, s) in symtab.enumerate() {
            symbols.push(Symbol {
                name: name(s.name(LE, symtab.strings()).map_err(damaged)?)?,
                value: s.st_value(LE),
                size: s.st_size(LE),
                place: place(&symtab, s, index, sections.len())?,
                kind: s.st_type(),
                bind: s.st_bind(),
                hidden: matches!(s.st_visibility(), elf::STV_HIDDEN | elf::STV_INTERNAL),
            });
        }
        let named: usize = symbols.iter().map(|s: &Symbol<'_>| s.name.len()).sum();
        if named > data.len().saturating_mul(MAX_SHARING) {
            return Err(ObjectError::Elf { what: "too many symbols share their names".to_owned() });
        }
        for s in table.iter() {
            let Some(target) = relocated(s, sections.len())? else { continue };
            let Some((rels, _)) = s.rel(LE, data).map_err(damaged)? else {
                // Sections with addends do not come from BPF compilers; in code they would change
                // what it means.
                let Some(target) = sections.get(target).filter(|t| t.is_code()) else { continue };
                return Err(target.error(0, "relocations with addends are not supported"));
            };
            let Some(section) = sections.get_mut(target) else { continue };
            for r in rels {
                let (offset, symbol) = (r.r_offset(LE), r.r_sym(LE) as usize);
                if symbol >= symbols.len() {
                    return Err(section.error(
                        offset,
                        format!("relocation names symbol {symbol} of {}", symbols.len()),
                    ));
                }
                section.relocs.push(Reloc { offset, symbol, kind: r.r_type(LE) });
            }
            section.relocs.sort_by_cached_key(|r| r.offset);
        }
        let mut members = vec![Vec::new(); sections.len()];
        for (i, s) in symbols.iter().enumerate() {
            if let Place::Section(at) = s.place
                && !s.is_section()
                && let Some(list) = members.get_mut(at)
            {
                list.push(i);
            }
        }
        Ok(Self { sections, symbols, members })
    }

    /// Walks the symbols of a section; the symbol for the section itself is left out.
    pub fn symbols_in(&self, section: usize) -> impl Iterator<Item = &Symbol<'a>> {
        self.members.get(section).into_iter().flatten().filter_map(|i| self.symbols.get(*i))
    }

    /// Finds a section by name.
    pub fn section(&self, name: &str) -> Option<&Section<'a>> {
        self.sections.iter().find(|s| s.name == name)
    }
}

/// Finds the type information of an ELF file of any machine.
pub(crate) fn btf_section(data: &[u8]) -> Result<&[u8], ObjectError> {
    use object::{Object as _, ObjectSection as _};
    let file = object::File::parse(data).map_err(damaged)?;
    if !file.is_little_endian() {
        return Err(ObjectError::Kind { what: "big-endian" });
    }
    let section = file.section_by_name(".BTF").ok_or(ObjectError::NoTypes)?;
    section.data().map_err(damaged)
}

/// Refuses files whose sections lie on top of each other: copies of them could need any amount of
/// memory.
fn check_amount(data: &[u8], sections: &[Section<'_>]) -> Result<(), ObjectError> {
    let total = sections.iter().try_fold(0usize, |sum, s| sum.checked_add(s.data.len()));
    match total {
        Some(n) if n <= data.len() => Ok(()),
        _ => Err(ObjectError::Elf { what: "sections overlap".to_owned() }),
    }
}

fn check_header(data: &[u8]) -> Result<&FileHeader64<LE>, ObjectError> {
    let ident =
        data.first_chunk::<16>().filter(|i| i[..4] == elf::ELFMAG).ok_or(ObjectError::NotElf)?;
    let big = ident[EI_DATA] == elf::ELFDATA2MSB;
    let (lo, hi) = (data.get(18).copied().unwrap_or(0), data.get(19).copied().unwrap_or(0));
    let machine = if big { u16::from_be_bytes([lo, hi]) } else { u16::from_le_bytes([lo, hi]) };
    // BPF files of old compilers carry no machine number.
    if machine != elf::EM_BPF && machine != elf::EM_NONE {
        return Err(ObjectError::Machine { machine: machine_name(machine) });
    }
    if ident[EI_CLASS] != elf::ELFCLASS64 {
        return Err(ObjectError::Kind { what: "for 32 bits" });
    }
    if big {
        return Err(ObjectError::Kind { what: "big-endian" });
    }
    let header = FileHeader64::<LE>::parse(data).map_err(damaged)?;
    match header.e_type(LE) {
        elf::ET_REL => Ok(header),
        elf::ET_EXEC => Err(ObjectError::Kind { what: "an executable" }),
        elf::ET_DYN => Err(ObjectError::Kind { what: "a shared object" }),
        elf::ET_CORE => Err(ObjectError::Kind { what: "a core dump" }),
        _ => Err(ObjectError::Kind { what: "of no known type" }),
    }
}

fn machine_name(machine: u16) -> String {
    match machine {
        elf::EM_386 => "x86",
        elf::EM_X86_64 => "x86-64",
        elf::EM_ARM => "arm",
        elf::EM_AARCH64 => "aarch64",
        elf::EM_RISCV => "riscv",
        elf::EM_PPC64 => "ppc64",
        elf::EM_S390 => "s390",
        elf::EM_MIPS => "mips",
        elf::EM_LOONGARCH => "loongarch",
        n => return format!("number {n}"),
    }
    .to_owned()
}

fn place<'a>(
    symtab: &object::read::elf::SymbolTable<'a, FileHeader64<LE>>,
    s: &elf::Sym64<LE>,
    index: SymbolIndex,
    sections: usize,
) -> Result<Place, ObjectError> {
    if s.st_shndx(LE) == elf::SHN_UNDEF {
        return Ok(Place::Undefined);
    }
    match symtab.symbol_section(LE, s, index).map_err(damaged)? {
        Some(SectionIndex(i)) if i < sections => Ok(Place::Section(i)),
        Some(SectionIndex(i)) => Err(ObjectError::Elf {
            what: format!("symbol {} lies in section {i} of {sections}", index.0),
        }),
        None => Ok(Place::Other),
    }
}

/// Returns the section that a relocation section is about.
fn relocated(s: &elf::SectionHeader64<LE>, sections: usize) -> Result<Option<usize>, ObjectError> {
    if !matches!(s.sh_type(LE), elf::SHT_REL | elf::SHT_RELA) {
        return Ok(None);
    }
    let target = s.sh_info(LE) as usize;
    if target >= sections {
        return Err(ObjectError::Elf {
            what: format!("relocations for section {target} of {sections}"),
        });
    }
    Ok(Some(target))
}

/// Takes a name. All that shows it relies on it being text: a terminal obeys some control characters, and
/// an SVG may not have them. The kernel refuses them too (`bpf_obj_name_cpy`, kernel/bpf/syscall.c).
fn name(bytes: &[u8]) -> Result<&str, ObjectError> {
    let wrong = |what: String| Err(ObjectError::Elf { what });
    match str::from_utf8(bytes) {
        _ if bytes.len() > MAX_NAME => wrong(format!("a name of {} bytes", bytes.len())),
        Err(_) => wrong(format!("name `{}` is not UTF-8", bytes.escape_ascii())),
        Ok(name) if name.contains(char::is_control) => {
            wrong(format!("name `{}` has a control character", name.escape_debug()))
        }
        Ok(name) => Ok(name),
    }
}

fn damaged(e: object::Error) -> ObjectError {
    ObjectError::Elf { what: e.to_string() }
}
