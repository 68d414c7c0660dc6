//! An object file, taken apart.

use crate::btf::{BtfExt, CoreRelo, FuncInfo, Kind, LineInfo, SectionInfo, Type, TypeId};
use crate::elf::{Elf, Place, Section, Symbol};
use crate::map::Maps;
use crate::program::{Code, CoreSite, Function, FunctionId, Program, Ref};
use crate::{Btf, KconfigVar, MapSpec, ObjectError, core, kconfig};
use object::elf::{R_BPF_64_32, R_BPF_64_64, SHT_NULL, SHT_REL, SHT_RELA, SHT_STRTAB, SHT_SYMTAB};
use skep_isa::{Insn, op};
use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;

/// Holds what an object file says: programs, maps, types.
///
/// ```no_run
/// let bytes = std::fs::read("opens.bpf.o")?;
/// let object = skep_object::Object::parse(&bytes)?;
/// for (i, program) in object.programs.iter().enumerate() {
///     println!("{}: {} insns", program.name, object.link(i)?.insns.len());
/// }
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct Object {
    /// The programs in order of section and place.
    pub programs: Vec<Program>,
    /// The maps: definitions first, then global data.
    pub maps: Vec<MapSpec>,
    /// The types, when the object was compiled with `-g`.
    pub btf: Option<Arc<Btf>>,
    /// The text in the `license` section; empty without one.
    pub license: String,
    /// The number in the `version` section, for kprobe programs of old kernels; 0 without one.
    pub version: u32,
    /// Sections with contents that mean nothing to this reader (`.struct_ops`, …), by name.
    pub ignored: Vec<String>,
    /// The configuration values the programs ask for; see [`set_kconfig`](Self::set_kconfig).
    pub kconfig: Vec<KconfigVar>,
    pub(crate) code: Vec<Code>,
}

impl Object {
    /// Takes an object file apart.
    ///
    /// # Errors
    /// When the file is damaged, is not eBPF, or has a map definition that cannot be understood.
    pub fn parse(bytes: &[u8]) -> Result<Self, ObjectError> {
        Self::parse_named("", bytes)
    }

    /// Takes an object file apart; the first eight characters of `name` (libbpf: the file's name up
    /// to the first dot) begin the names of global-data maps.
    ///
    /// # Errors
    /// As [`parse`](Self::parse).
    pub fn parse_named(name: &str, bytes: &[u8]) -> Result<Self, ObjectError> {
        let elf = Elf::parse(bytes)?;
        let btf = read_btf(&elf)?;
        let ext = read_ext(&elf, btf.as_ref())?;
        let mut debug = Debug::new(btf.as_ref(), &ext);
        let (maps, kconfig) = Maps::collect(&elf, btf.as_ref(), name)?;
        let numbers: HashMap<usize, usize> = (0..elf.sections.len())
            .filter(|i| elf.sections.get(*i).is_some_and(Section::is_code))
            .zip(0..)
            .collect();
        let mut code = Vec::with_capacity(numbers.len());
        for (index, section) in elf.sections.iter().enumerate().filter(|(_, s)| s.is_code()) {
            code.push(read_code(&elf, index, section, btf.as_ref(), &mut debug, &maps, &numbers)?);
        }
        let text = |name: &str| {
            let data = elf.section(name).map_or(&[][..], |s| s.data);
            String::from_utf8_lossy(data.split(|b| *b == 0).next().unwrap_or(&[])).into_owned()
        };
        Ok(Self {
            programs: programs(&code),
            maps: maps.specs,
            btf: btf.map(Arc::new),
            license: text("license"),
            version: elf
                .section("version")
                .and_then(|s| s.data.first_chunk())
                .map_or(0, |b| u32::from_le_bytes(*b)),
            ignored: ignored(&elf),
            kconfig,
            code,
        })
    }

    /// Finds a program by name.
    #[must_use]
    pub fn program(&self, name: &str) -> Option<usize> {
        self.programs.iter().position(|p| p.name == name)
    }

    /// Finds a map by name; for global data also by section (`.rodata`).
    #[must_use]
    pub fn map(&self, name: &str) -> Option<usize> {
        let exact = self.maps.iter().position(|m| m.name == name);
        exact.or_else(|| self.maps.iter().position(|m| m.is_global_data() && m.section == name))
    }

    /// Puts other instructions in the place of a function, for calls from other sections: that of a
    /// program calls those in `.text` so. They refer to nothing, and take and return what the function
    /// did. Returns whether there was such a call.
    pub fn replace_function(&mut self, name: &str, insns: Vec<Insn>) -> bool {
        let found = self.code.iter().enumerate().find_map(|(at, code)| {
            let f = code.functions.iter().find(|f| f.name == name)?;
            Some((at, f.start, f.global, f.type_id, code.section.clone()))
        });
        let Some((at, start, global, type_id, section)) = found else { return false };
        let function =
            Function { name: name.to_owned(), start: 0, len: insns.len(), global, type_id };
        let (refs, lines, core) = (BTreeMap::new(), Vec::new(), Vec::new());
        let new = self.code.len();
        self.code.push(Code { section, insns, refs, functions: vec![function], lines, core });
        let mut called = false;
        for r in self.code.iter_mut().flat_map(|c| c.refs.values_mut()) {
            if *r == (Ref::Code { code: at, insn: start as i64 }) {
                *r = Ref::Code { code: new, insn: 0 };
                called = true;
            }
        }
        called
    }

    /// Tells whether a program needs types to be fitted to
    /// ([`LinkOptions::target`](crate::LinkOptions::target)).
    #[must_use]
    pub fn needs_core_target(&self) -> bool {
        self.code.iter().flat_map(|c| &c.core).any(|site| core::needs_target(&site.relo))
    }

    /// Tells whether the license allows calls of GPL-only helpers (include/linux/license.h).
    #[must_use]
    pub fn is_gpl(&self) -> bool {
        is_gpl_compatible(&self.license)
    }
}

/// Tells whether a license is compatible with the GPL (include/linux/license.h
/// `license_is_gpl_compatible`).
pub(crate) fn is_gpl_compatible(license: &str) -> bool {
    const COMPATIBLE: &[&str] = &[
        "GPL",
        "GPL v2",
        "GPL and additional rights",
        "Dual BSD/GPL",
        "Dual MIT/GPL",
        "Dual MPL/GPL",
    ];
    COMPATIBLE.contains(&license)
}

fn btf_error(section: &'static str) -> impl Fn(crate::btf::BtfError) -> ObjectError {
    move |source| ObjectError::Btf { section, source }
}

/// Reads the types and fills in what the compiler leaves to the linker: sizes of sections, places
/// of variables.
fn read_btf(elf: &Elf<'_>) -> Result<Option<Btf>, ObjectError> {
    let Some(section) = elf.section(".BTF").filter(|s| !s.data.is_empty()) else { return Ok(None) };
    let mut btf = Btf::parse(section.data).map_err(btf_error(".BTF"))?;
    let mut numbers: HashMap<&str, usize> = HashMap::new();
    for (i, s) in elf.sections.iter().enumerate() {
        numbers.entry(s.name).or_insert(i);
    }
    let data_sections: Vec<TypeId> =
        btf.types().filter(|(_, t)| matches!(t.kind, Kind::DataSec(_))).map(|(id, _)| id).collect();
    for id in data_sections {
        // Taken out, so that a section that types name again and again is looked at once.
        let Some(index) = numbers.remove(btf.name(id)) else { continue };
        let Some(section) = elf.sections.get(index) else { continue };
        let at: HashMap<&str, u64> = elf.symbols_in(index).map(|s| (s.name, s.value)).collect();
        let types: HashMap<TypeId, u32> = match btf.get(id).map(|t| &t.kind) {
            Ok(Kind::DataSec(sec)) => sec
                .vars
                .iter()
                .filter_map(|v| {
                    Some((v.type_id, u32::try_from(*at.get(btf.name(v.type_id))?).ok()?))
                })
                .collect(),
            _ => continue,
        };
        let size = u32::try_from(section.size)
            .map_err(|_| section.error(0, format!("{} bytes of data", section.size)))?;
        btf.place_section(id, size, |var| types.get(&var).copied());
    }
    kconfig::place(&mut btf)?;
    Ok(Some(btf))
}

fn read_ext(elf: &Elf<'_>, btf: Option<&Btf>) -> Result<BtfExt, ObjectError> {
    match elf.section(".BTF.ext").filter(|s| !s.data.is_empty()) {
        Some(section) if btf.is_some() => {
            BtfExt::parse(section.data).map_err(btf_error(".BTF.ext"))
        }
        _ => Ok(BtfExt::default()),
    }
}

/// What the type information says about code, by section.
struct Debug<'a> {
    funcs: HashMap<&'a str, Vec<FuncInfo>>,
    lines: HashMap<&'a str, Vec<LineInfo>>,
    core: HashMap<&'a str, Vec<CoreSite>>,
    /// Functions by name, for objects that have types but no `.BTF.ext`.
    named: HashMap<&'a str, TypeId>,
}

impl<'a> Debug<'a> {
    fn new(btf: Option<&'a Btf>, ext: &BtfExt) -> Self {
        let is_func = |t: &Type| matches!(t.kind, Kind::Func(_));
        let named = btf.into_iter().flat_map(|b| {
            b.types().filter(|(_, t)| is_func(t)).map(|(id, t)| (b.string(t.name_off), id))
        });
        Self {
            funcs: by_section(btf, &ext.funcs, |f| f.offset),
            lines: by_section(btf, &ext.lines, |l| l.offset),
            core: by_section(btf, &numbered(&ext.core), |c| c.relo.offset),
            named: named.collect(),
        }
    }

    /// Finds the type of a function.
    fn function(&self, btf: Option<&Btf>, section: &str, f: &Function) -> TypeId {
        let recorded = self.funcs.get(section).map_or(&[][..], Vec::as_slice);
        let at = recorded.binary_search_by_key(&(f.start * Insn::SIZE), |r| r.offset as usize).ok();
        let recorded = at.and_then(|i| recorded.get(i)).map(|r| r.type_id);
        let is_func = |id: &TypeId| {
            btf.and_then(|b| b.get(*id).ok()).is_some_and(|t| matches!(t.kind, Kind::Func(_)))
        };
        recorded.filter(is_func).or_else(|| self.named.get(f.name.as_str()).copied()).unwrap_or(0)
    }
}

fn numbered(all: &[SectionInfo<CoreRelo>]) -> Vec<SectionInfo<CoreSite>> {
    let mut numbers = 0..;
    let mut site =
        |relo: &CoreRelo| CoreSite { relo: *relo, number: numbers.next().unwrap_or(usize::MAX) };
    all.iter()
        .map(|s| SectionInfo {
            name_off: s.name_off,
            records: s.records.iter().map(&mut site).collect(),
        })
        .collect()
}

/// Sorts records by section, and within it by offset.
fn by_section<'a, T: Copy>(
    btf: Option<&'a Btf>,
    all: &[SectionInfo<T>],
    offset: impl Fn(&T) -> u32,
) -> HashMap<&'a str, Vec<T>> {
    let mut out: HashMap<&str, Vec<T>> = HashMap::new();
    let Some(btf) = btf else { return out };
    for s in all {
        out.entry(btf.string(s.name_off)).or_default().extend_from_slice(&s.records);
    }
    out.values_mut().for_each(|records| records.sort_by_cached_key(|r| u64::from(offset(r))));
    out
}

fn read_code(
    elf: &Elf<'_>,
    index: usize,
    section: &Section<'_>,
    btf: Option<&Btf>,
    debug: &mut Debug<'_>,
    maps: &Maps,
    numbers: &HashMap<usize, usize>,
) -> Result<Code, ObjectError> {
    let insns = Insn::decode(section.data);
    let insns = insns.ok_or_else(|| {
        section.error(
            0,
            format!("{} bytes of code are no whole number of instructions", section.data.len()),
        )
    })?;
    let mut functions = functions(elf, index, section, insns.len())?;
    for f in &mut functions {
        f.type_id = debug.function(btf, section.name, f);
    }
    let mut refs = BTreeMap::new();
    for r in &section.relocs {
        let at = usize::try_from(r.offset / Insn::SIZE as u64)
            .ok()
            .filter(|_| r.offset.is_multiple_of(Insn::SIZE as u64));
        let Some((at, insn)) = at.and_then(|at| Some((at, insns.get(at)?))) else {
            return Err(section.error(r.offset, "relocation of no instruction"));
        };
        let target = match elf.symbols.get(r.symbol) {
            Some(symbol) => target(elf, symbol, r.kind, *insn, maps, numbers),
            None => Ref::Bad("relocation without symbol".to_owned()),
        };
        refs.insert(at, target);
    }
    let lines = debug.lines.remove(section.name).unwrap_or_default();
    let core = debug.core.remove(section.name).unwrap_or_default();
    Ok(Code { section: section.name.to_owned(), insns, refs, functions, lines, core })
}

/// Splits a section at its function symbols; a section without any is one function.
fn functions(
    elf: &Elf<'_>,
    index: usize,
    section: &Section<'_>,
    insns: usize,
) -> Result<Vec<Function>, ObjectError> {
    let slot = Insn::SIZE as u64;
    let mut found: Vec<&Symbol<'_>> = elf.symbols_in(index).filter(|s| s.is_func()).collect();
    // Of several names of one function the global one stays.
    found.sort_by_cached_key(|s| (s.value, u64::from(s.is_local())));
    found.dedup_by_key(|s| s.value);
    if found.is_empty() {
        // Compilers before LLVM 12 or so: the program's name is a plain label at its start.
        let label = elf.symbols_in(index).find(|s| s.value == 0 && !s.is_local());
        let name = label.map_or(section.name, |s| s.name).to_owned();
        return Ok(vec![Function { name, start: 0, len: insns, global: true, type_id: 0 }]);
    }
    let mut out = Vec::with_capacity(found.len());
    for (i, s) in found.iter().enumerate() {
        let next = found.get(i + 1).map_or(section.data.len() as u64, |n| n.value);
        let size = if s.size == 0 { next.saturating_sub(s.value) } else { s.size };
        let end = s.value.checked_add(size);
        if !s.value.is_multiple_of(slot)
            || !size.is_multiple_of(slot)
            || size == 0
            || end.is_none_or(|e| e > next)
        {
            return Err(section.error(
                s.value,
                format!("function `{}` of {size} bytes does not fit its place", s.name),
            ));
        }
        let (start, len) = ((s.value / slot) as usize, (size / slot) as usize);
        out.push(Function {
            name: s.name.to_owned(),
            start,
            len,
            global: !s.is_local() && !s.hidden,
            type_id: 0,
        });
    }
    Ok(out)
}

/// Finds what a relocation means; a relocation that means nothing makes only its program unusable.
fn target(
    elf: &Elf<'_>,
    symbol: &Symbol<'_>,
    kind: u32,
    insn: Insn,
    maps: &Maps,
    numbers: &HashMap<usize, usize>,
) -> Ref {
    let wanted = if insn.is_ld_imm64() {
        R_BPF_64_64
    } else if insn.code == op::CALL {
        R_BPF_64_32
    } else {
        return Ref::Bad(format!("relocation of an instruction that takes none ({insn:?})"));
    };
    if kind != wanted {
        return Ref::Bad(format!("relocation of type {kind} where {wanted} belongs"));
    }
    let section = match symbol.place {
        Place::Section(s) => s,
        Place::Undefined => {
            return Ref::Extern { name: symbol.name.to_owned(), weak: symbol.is_weak() };
        }
        Place::Other => {
            return Ref::Bad(format!(
                "relocation against `{}`, which is in no section",
                symbol.name
            ));
        }
    };
    let imm = i64::from(insn.imm);
    let here = i64::try_from(symbol.value).unwrap_or(i64::MAX);
    if let Some(code) = numbers.get(&section) {
        let ahead =
            if insn.is_ld_imm64() { imm / Insn::SIZE as i64 } else { imm.saturating_add(1) };
        return Ref::Code { code: *code, insn: (here / Insn::SIZE as i64).saturating_add(ahead) };
    }
    let name = elf.sections.get(section).map_or("", |s| s.name);
    if !insn.is_ld_imm64() {
        return Ref::Bad(format!("call into section `{name}`"));
    }
    let offset = here.saturating_add(imm);
    if let Some(map) = maps.data.get(&section) {
        let inside = u32::try_from(offset)
            .ok()
            .filter(|o| maps.specs.get(*map).is_some_and(|m| *o <= m.value_size));
        return match inside {
            Some(offset) => Ref::Data { map: *map, offset },
            None => Ref::Bad(format!("reference to `{name}` {offset:+}, outside the section")),
        };
    }
    if name.starts_with(".addr_space.") || name.starts_with(".arena") {
        return Ref::Bad(format!(
            "`{}` lies in an arena (section `{name}`), which is not supported",
            symbol.name
        ));
    }
    if name.starts_with(".struct_ops") {
        return Ref::Bad(format!(
            "`{}` is a `struct_ops` map (section `{name}`), which is not supported",
            symbol.name
        ));
    }
    match u64::try_from(offset).ok().and_then(|o| maps.at.get(&(section, o))) {
        Some(map) => Ref::Map(*map),
        None => Ref::Bad(format!(
            "reference to `{}` in section `{name}`, where no map begins",
            symbol.name
        )),
    }
}

/// Lists the functions that are programs: all global ones outside `.text`, or a lone function in
/// `.text` of an object that has no others (an entry point without `SEC()`).
fn programs(code: &[Code]) -> Vec<Program> {
    let make = |(c, f): (usize, usize), function: &Function, section: &str| {
        Program::new(&function.name, section, FunctionId { code: c, function: f }, function.type_id)
    };
    let mut out = Vec::new();
    for (c, section) in code.iter().enumerate().filter(|(_, s)| s.section != ".text") {
        let entries = section.functions.iter().enumerate().filter(|(_, f)| f.global);
        out.extend(entries.map(|(f, function)| make((c, f), function, &section.section)));
    }
    if let ([only], true) = (code, out.is_empty())
        && let [function] = &*only.functions
    {
        out.push(make((0, 0), function, &only.section));
    }
    out
}

fn ignored(elf: &Elf<'_>) -> Vec<String> {
    const KNOWN: &[&str] = &[
        "license",
        "version",
        "maps",
        ".maps",
        ".BTF",
        ".BTF.ext",
        ".llvm_addrsig",
        ".comment",
        ".note.GNU-stack",
    ];
    let known = |s: &Section<'_>| {
        KNOWN.contains(&s.name)
            || s.is_code()
            || matches!(s.kind, SHT_NULL | SHT_REL | SHT_RELA | SHT_STRTAB | SHT_SYMTAB)
            || [".data", ".rodata", ".bss", ".debug", ".eh_frame"]
                .iter()
                .any(|p| s.name.starts_with(p))
    };
    elf.sections.iter().filter(|s| s.size != 0 && !known(s)).map(|s| s.name.to_owned()).collect()
}
