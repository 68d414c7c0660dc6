//! Prototypes out of debug information: what functions take and return, by address.
//!
//! A big program has more functions than anybody asks for, so units without one that is asked for
//! are not looked into, types are read when a function needs them, and each once.

use super::DwarfError;
use super::file::{Entry, Sections, Slice, Unit, check, places};
use super::language::{Language, is_mangled, language};
use super::read::flag;
use super::special::by_location;
use super::split::SplitFiles;
use super::types::{Params, Types, UnitEntry};
use crate::proto::{Prototype, Type, ValueKind};
use gimli::{AttributeValue as Value, UnitRef, constants as dw};
use object::Object as _;
use std::collections::HashSet;
use std::io::{Read, Seek};
use std::ops::Range;
use std::path::Path;
use std::rc::Rc;

/// Deepest nesting of namespaces that is looked into.
const MAX_DEPTH: u32 = 64;

/// Why functions of a unit have no types whose debug information was split off.
const SPLIT: &str = "its types are in a file `.dwo` or `.dwp`, which is missing or damaged";

/// The file that a debug file shares types with (dwz), as its `.gnu_debugaltlink` says.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Shared {
    /// Its path, relative to the debug file where it is not absolute.
    pub path: String,
    /// Its build id.
    pub build_id: Vec<u8>,
}

/// The functions in a program's debug information.
#[derive(Debug)]
pub struct DwarfFunctions {
    own: Sections,
    shared: Option<Sections>,
    split: Option<SplitFiles>,
}

impl DwarfFunctions {
    /// Reads what is needed of a file: a tenth or so of a big one. `shared` opens the file that it
    /// shares types with.
    ///
    /// # Errors
    /// When the file is no ELF file of this machine's kind, has no debug information, or it is
    /// damaged.
    pub fn read<R: Read + Seek>(
        file: R,
        shared: impl FnOnce(&Shared) -> Option<R>,
    ) -> Result<Self, DwarfError> {
        let cache = object::ReadCache::new(file);
        let elf =
            object::File::parse(&cache).map_err(|e| DwarfError::Elf { what: e.to_string() })?;
        check(&elf)?;
        let link = elf.gnu_debugaltlink().ok().flatten();
        let link = link.map(|(path, id)| Shared {
            path: String::from_utf8_lossy(path).into_owned(),
            build_id: id.to_vec(),
        });
        let own = places(&elf)?;
        let other = match link {
            Some(link) => Some(Self::shared(&link, shared)?),
            None => None,
        };
        Ok(Self { own: own.read(cache.into_inner())?, shared: other, split: None })
    }

    /// Also looks at what was split off (`-gsplit-dwarf`) the file that was read, which lies at a
    /// path: its package `PATH.dwp`, or files `.dwo` where they were compiled or beside it. They are
    /// opened when functions of their units are asked for.
    #[must_use]
    pub fn with_split_files(self, path: &Path) -> Self {
        Self { split: Some(SplitFiles::of(path)), ..self }
    }

    fn shared<R: Read + Seek>(
        link: &Shared,
        open: impl FnOnce(&Shared) -> Option<R>,
    ) -> Result<Sections, DwarfError> {
        let missing = || DwarfError::Split {
            what: format!("`{}`, shared with other programs (dwz)", link.path),
        };
        let cache = object::ReadCache::new(open(link).ok_or_else(missing)?);
        let elf =
            object::File::parse(&cache).map_err(|e| DwarfError::Elf { what: e.to_string() })?;
        if elf.build_id().ok().flatten() != Some(link.build_id.as_slice()) {
            return Err(missing());
        }
        let found = places(&elf)?;
        found.read(cache.into_inner())
    }

    /// Calls `found` for every function that begins at one of the addresses, which are sorted: with
    /// its prototype, or with the reason why it cannot be relied on. Functions that are not in
    /// the debug information are left out.
    ///
    /// # Errors
    /// When the debug information is damaged.
    pub fn at(
        &self,
        addresses: &[u64],
        mut found: impl FnMut(u64, Result<Prototype, &'static str>),
    ) -> Result<(), DwarfError> {
        let slice = |bytes| gimli::EndianSlice::new(bytes, gimli::LittleEndian);
        let own = self.own.borrow_with_sup(self.shared.as_ref(), |s| slice(s));
        let mut search = Search {
            own: &own,
            split: self.split.as_ref(),
            addresses,
            seen: vec![false; addresses.len()],
            types: Types::new(&own, 0)?,
            typed: None,
            found: &mut found,
        };
        for n in 0.. {
            let Some(unit) = search.types.own_unit(n) else { break };
            search.unit(&unit?)?;
        }
        Ok(())
    }

    /// Calls `found` for every function with one of these names: those that it has for the linker,
    /// or its plain one.
    ///
    /// # Errors
    /// When the debug information is damaged.
    pub fn named<'n>(
        &self,
        names: &HashSet<&'n str>,
        mut found: impl FnMut(&'n str, Result<Prototype, &'static str>),
    ) -> Result<(), DwarfError> {
        let slice = |bytes| gimli::EndianSlice::new(bytes, gimli::LittleEndian);
        let own = self.own.borrow_with_sup(self.shared.as_ref(), |s| slice(s));
        let mut at = Vec::new();
        let mut add = |_, p: Result<Prototype, &'static str>| at.push(p);
        let mut search = Search {
            own: &own,
            split: self.split.as_ref(),
            addresses: &[],
            seen: Vec::new(),
            types: Types::new(&own, 0)?,
            typed: None,
            found: &mut add,
        };
        let mut which = Vec::new();
        for n in 0.. {
            let Some(unit) = search.types.own_unit(n) else { break };
            search.all_of(&unit?, &mut Names { wanted: names, found: &mut which })?;
        }
        which.into_iter().zip(at).for_each(|(name, p)| found(name, p));
        Ok(())
    }
}

/// Names that are looked for.
struct Names<'s, 'n> {
    wanted: &'s HashSet<&'n str>,
    found: &'s mut Vec<&'n str>,
}

/// Which functions of a unit are looked at.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Reach {
    /// Those that stand outside of other functions and of classes: nearly all. The rest of the debug
    /// information is skipped.
    Outer,
    /// GCC's lambdas, methods of classes in functions, and functions in functions of C.
    Inner,
    All,
}

struct Search<'s, 'a> {
    own: &'s gimli::Dwarf<Slice<'a>>,
    split: Option<&'s SplitFiles>,
    addresses: &'s [u64],
    /// Which of the addresses a function was found at.
    seen: Vec<bool>,
    types: Types<'s, 'a>,
    /// The last unit that was asked for its types, and whether it has some.
    typed: Option<(usize, bool)>,
    found: &'s mut dyn FnMut(u64, Result<Prototype, &'static str>),
}

/// Where in a unit functions are looked for.
#[derive(Clone, Copy)]
struct Nesting {
    language: Language,
    reach: Reach,
    /// It is inside of a function or class.
    inner: bool,
    depth: u32,
}

/// What is done with a unit that was split off.
type Look<'r> =
    dyn for<'s, 'b> FnMut(&mut Search<'s, 'b>, &Rc<Unit<'b>>) -> Result<(), DwarfError> + 'r;

type Node<'b, 't, 'a> = gimli::EntriesTreeNode<'b, 't, Slice<'a>>;

impl<'a> Search<'_, 'a> {
    /// The places of the addresses in a range.
    fn wanted(&self, range: gimli::Range) -> Range<usize> {
        let first = self.addresses.partition_point(|a| *a < range.begin);
        let behind = self.addresses.get(first..).unwrap_or_default();
        // Most ranges have none.
        if behind.first().is_none_or(|a| *a >= range.end) {
            return first..first;
        }
        first..first + behind.partition_point(|a| *a < range.end)
    }

    fn wants(&self, unit: &Unit<'a>) -> Result<bool, DwarfError> {
        let mut ranges = self.own.unit_ranges(unit)?;
        while let Some(range) = ranges.next()? {
            if !self.wanted(range).is_empty() {
                return Ok(true);
            }
        }
        Ok(false)
    }

    /// The places of the addresses in a unit where no function was found.
    fn unseen(&self, unit: &Unit<'a>) -> Result<Vec<usize>, DwarfError> {
        let mut out = Vec::new();
        let mut ranges = self.own.unit_ranges(unit)?;
        while let Some(range) = ranges.next()? {
            out.extend(self.wanted(range).filter(|at| self.seen.get(*at) == Some(&false)));
        }
        Ok(out)
    }

    /// Looks for the functions of a unit that begin at the addresses.
    fn unit(&mut self, unit: &Rc<Unit<'a>>) -> Result<(), DwarfError> {
        if !self.wants(unit)? {
            return Ok(());
        }
        if unit.dwo_id.is_none() {
            self.scan(unit, Reach::Outer, None)?;
            if self.types.language.has_inner() && !self.unseen(unit)?.is_empty() {
                self.scan(unit, Reach::Inner, None)?;
            }
            return Ok(());
        }
        let unseen = self.unseen(unit)?;
        let split = self.split_off(unit, &mut |search, unit| {
            search.scan(unit, Reach::Outer, None)?;
            if unseen.iter().any(|at| search.seen.get(*at) == Some(&false)) {
                search.scan(unit, Reach::Inner, None)?;
            }
            Ok(())
        });
        // What is split off other units may be whole.
        if !split.unwrap_or(false) {
            for at in unseen {
                if let (Some(address), Some(false)) = (self.addresses.get(at), self.seen.get(at)) {
                    (self.found)(*address, Err(SPLIT));
                }
            }
        }
        Ok(())
    }

    /// Looks for the functions of a unit that have one of the names.
    fn all_of(&mut self, unit: &Rc<Unit<'a>>, names: &mut Names<'_, '_>) -> Result<(), DwarfError> {
        if unit.dwo_id.is_none() {
            return self.scan(unit, Reach::All, Some(names));
        }
        // What is missing or damaged has no functions.
        drop(self.split_off(unit, &mut |s, unit| s.scan(unit, Reach::All, Some(names))));
        Ok(())
    }

    /// Searches in what was split off a unit; tells whether that is there.
    fn split_off(&mut self, skeleton: &Unit<'a>, look: &mut Look<'_>) -> Result<bool, DwarfError> {
        let Some(files) = self.split else { return Ok(false) };
        let (own, addresses) = (self.own, self.addresses);
        let (seen, found) = (&mut self.seen, &mut *self.found);
        files.read(own, skeleton, &mut |split, unit| {
            let types = Types::new(&split.dwarf, split.base)?.with_package(split.package.as_ref());
            let mut search = Search {
                own: &split.dwarf,
                split: None,
                addresses,
                seen: std::mem::take(seen),
                types,
                typed: None,
                found: &mut *found,
            };
            let looked = look(&mut search, unit);
            *seen = search.seen;
            looked
        })
    }

    /// Looks at the functions of a unit: those at the addresses, or those of a name.
    fn scan(
        &mut self,
        unit: &Rc<Unit<'a>>,
        reach: Reach,
        names: Option<&mut Names<'_, '_>>,
    ) -> Result<(), DwarfError> {
        let mut tree = unit.entries_tree(None)?;
        let root = tree.root()?;
        let language = language(&unit.unit_ref(self.own), root.entry());
        self.types.enter(language);
        let reach = match reach {
            Reach::Inner if !language.has_inner() => return Ok(()),
            Reach::All if !language.has_inner() => Reach::Outer,
            reach => reach,
        };
        let place = Nesting { language, reach, inner: false, depth: 0 };
        self.children(unit, root, place, names)
    }

    fn children(
        &mut self,
        unit: &Rc<Unit<'a>>,
        node: Node<'_, '_, 'a>,
        at: Nesting,
        mut names: Option<&mut Names<'_, '_>>,
    ) -> Result<(), DwarfError> {
        let below = Nesting { depth: at.depth + 1, ..at };
        let inside = Nesting { inner: true, ..below };
        let mut children = node.children();
        while let Some(child) = children.next()? {
            let place = match child.entry().tag() {
                dw::DW_TAG_subprogram => {
                    if at.reach != Reach::Inner || at.inner {
                        self.function(unit, child.entry(), at.language, names.as_deref_mut())?;
                    }
                    inside
                }
                dw::DW_TAG_namespace | dw::DW_TAG_module => below,
                // rustc puts methods where their types are.
                dw::DW_TAG_structure_type | dw::DW_TAG_enumeration_type
                    if matches!(at.language, Language::Rust { .. }) =>
                {
                    below
                }
                dw::DW_TAG_structure_type
                | dw::DW_TAG_class_type
                | dw::DW_TAG_union_type
                | dw::DW_TAG_lexical_block => inside,
                _ => continue,
            };
            if at.depth < MAX_DEPTH && (!place.inner || at.reach != Reach::Outer) {
                self.children(unit, child, place, names.as_deref_mut())?;
            }
        }
        Ok(())
    }

    fn function(
        &mut self,
        unit: &Rc<Unit<'a>>,
        entry: &Entry<'a>,
        language: Language,
        names: Option<&mut Names<'_, '_>>,
    ) -> Result<(), DwarfError> {
        let Some(address) = entry_address(&unit.unit_ref(self.own), entry)? else { return Ok(()) };
        let wanted = match names {
            None => {
                let at = self.addresses.binary_search(&address);
                at.is_ok_and(|at| self.seen.get_mut(at).map(|seen| *seen = true).is_some())
            }
            Some(names) => {
                let chain = self.types.chain(self.types.found(unit, entry));
                let attrs = [dw::DW_AT_linkage_name, dw::DW_AT_MIPS_linkage_name, dw::DW_AT_name];
                let mut texts = attrs.iter().flat_map(|a| chain.iter().filter_map(|e| e.text(*a)));
                let name = texts.find_map(|t| names.wanted.get(t).copied());
                names.found.extend(name);
                name.is_some()
            }
        };
        if wanted {
            let prototype = self.prototype(unit, entry, language);
            (self.found)(address, prototype);
        }
        Ok(())
    }

    /// Tells whether a unit has types, those of damaged units none.
    fn has_types(&mut self, unit: &Rc<Unit<'a>>) -> bool {
        let at = unit.header.offset().0;
        if self.typed.is_none_or(|(known, _)| known != at) {
            self.typed = Some((at, has_types(unit).unwrap_or(false)));
        }
        self.typed.is_some_and(|(_, typed)| typed)
    }

    /// Reads a function's prototype; it is said why when it cannot be relied on.
    fn prototype(
        &mut self,
        unit: &Rc<Unit<'a>>,
        entry: &Entry<'a>,
        language: Language,
    ) -> Result<Prototype, &'static str> {
        if language == Language::Other {
            return Err("it is written in a language with a calling convention of its own");
        }
        let chain = self.types.chain(self.types.found(unit, entry));
        let convention =
            chain.iter().find_map(|e| e.entry.attr_value(dw::DW_AT_calling_convention));
        if !matches!(
            convention,
            None | Some(Value::CallingConvention(dw::DW_CC_normal | dw::DW_CC_program))
        ) {
            return Err("the compiler changed how it is called");
        }
        let name = chain.iter().find_map(|e| e.text(dw::DW_AT_name)).unwrap_or_default().to_owned();
        // rustc shows what is captured as variables; bodies of asynchronous functions are such, too.
        if matches!(language, Language::Rust { .. }) && name.starts_with('{') {
            return Err("what it captures is passed in front of its arguments");
        }
        let lists: Vec<Params<'_, 'a>> = chain
            .iter()
            .map(|e| e.params())
            .collect::<Option<_>>()
            .ok_or("its debug information is damaged")?;
        let Some(best) = best(&lists) else {
            return Err("the compiler changed how it is called");
        };
        let compiled = lists.first().filter(|l| l.list.len() == best.list.len());
        let mut params = Vec::new();
        for (at, p) in best.list.iter().enumerate() {
            let chain = self.types.chain(p.clone());
            // A declaration may leave out the names that the definition has.
            let alike = lists.iter().filter(|l| l.list.len() == best.list.len());
            let others: Vec<_> = alike.filter_map(|l| l.list.get(at).cloned()).collect();
            let name = chain.iter().find_map(|e| e.text(dw::DW_AT_name)).or_else(|| {
                let mut chains = others.into_iter().map(|other| self.types.chain(other));
                chains.find_map(|chain| chain.iter().find_map(|e| e.text(dw::DW_AT_name)))
            });
            let name = name.unwrap_or_default();
            let mut t = chain
                .iter()
                .find_map(|e| self.types.of(e))
                .ok_or("the type of an argument is not known")?;
            if t.by_reference.is_none() {
                let p = compiled.and_then(|c| c.list.get(at));
                t.by_reference = p.and_then(|p| by_location(&p.entry, unit.encoding()));
            }
            params.push((name.to_owned(), t));
        }
        let ret = match chain
            .iter()
            .find_map(|e| e.entry.has_attr(dw::DW_AT_type).then(|| self.types.of(e)))
        {
            Some(t) => t.ok_or("the type of its result is not known")?,
            None => Type::void(),
        };
        // Without types every function seems to have neither arguments nor a result (`-g1`, Rust's own
        // libraries).
        let is_bare = params.is_empty() && ret.kind == ValueKind::Void;
        let is_told = || chain.iter().any(|e| flag(&e.entry, dw::DW_AT_prototyped));
        if is_bare && !is_told() && !self.has_types(unit) {
            return Err("its debug information has no types");
        }
        let composite = |t: &Type| matches!(t.kind, ValueKind::Struct | ValueKind::Union);
        if let Language::Rust { minor } = language
            && (composite(&ret) || params.iter().any(|(_, t)| composite(t) || t.size > 8))
        {
            let symbol = chain.iter().find_map(|e| e.text(dw::DW_AT_linkage_name));
            if minor == 0 || !symbol.is_some_and(is_mangled) {
                return Err("Rust does not promise how structures are passed");
            }
            return Prototype::of_rust(&name, params, ret)
                .ok_or("it is not known how Rust passes one of its arguments, or its result");
        }
        let variadic = lists.iter().any(|l| l.variadic);
        Prototype::new(&name, params, ret, variadic)
            .ok_or("an argument's place depends on how it was compiled")
    }
}

/// Chooses the list of parameters that says what a function takes, of those of the function as it was
/// compiled, of what it is an instance of, and of its declaration. `None` when there is none that
/// does.
fn best<'l, 's, 'a>(lists: &'l [Params<'s, 'a>]) -> Option<&'l Params<'s, 'a>> {
    if let [one] = lists {
        return Some(one);
    }
    // GCC says of all forms of a constructor or destructor together that they take `__in_chrg` and
    // `__vtt_parm`; which of these a form really takes, only the function as it was compiled says.
    let is_hidden = |p: &UnitEntry<'_, '_>| flag(&p.entry, dw::DW_AT_artificial);
    let shown = |l: &Params<'_, '_>| {
        let first = l.list.len().min(1);
        first + l.list.iter().skip(1).filter(|p| !is_hidden(p)).count()
    };
    let hidden = lists.iter().any(|l| l.list.iter().skip(1).any(is_hidden));
    // What was compiled may lack what was optimized out of it; what it came from is whole.
    let most = lists.iter().map(shown).max()?;
    if hidden {
        return lists.first().filter(|l| shown(l) == most);
    }
    lists.iter().max_by_key(|l| l.list.len())
}

/// Tells whether any type stands in a unit, outside of namespaces, as those of numbers and pointers do.
fn has_types(unit: &Unit<'_>) -> Result<bool, DwarfError> {
    let mut tree = unit.entries_tree(None)?;
    let mut children = tree.root()?.children();
    while let Some(child) = children.next()? {
        let is_type = matches!(
            child.entry().tag(),
            dw::DW_TAG_base_type
                | dw::DW_TAG_pointer_type
                | dw::DW_TAG_structure_type
                | dw::DW_TAG_class_type
                | dw::DW_TAG_enumeration_type
                | dw::DW_TAG_typedef
                // Of units that share theirs.
                | dw::DW_TAG_imported_unit
        );
        if is_type {
            return Ok(true);
        }
    }
    Ok(false)
}

/// Where a function is entered.
fn entry_address<'a>(
    unit: &UnitRef<'_, Slice<'a>>,
    entry: &Entry<'a>,
) -> Result<Option<u64>, DwarfError> {
    for attr in [dw::DW_AT_low_pc, dw::DW_AT_entry_pc] {
        if let Some(value) = entry.attr_value(attr)
            && let Some(address) = unit.attr_address(value)?
        {
            return Ok(Some(address));
        }
    }
    if !entry.has_attr(dw::DW_AT_ranges) {
        return Ok(None);
    }
    // The first range is the one that is entered, the others were moved away.
    Ok(unit.die_ranges(entry)?.next()?.map(|r| r.begin))
}
