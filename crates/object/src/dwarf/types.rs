//! Types of arguments and results, read from debug information when they are asked for, each once.

use super::DwarfError;
use super::composite::{Members, count};
use super::file::{Entry, Slice, Unit};
use super::language::Language;
use super::read::{flag, number, place};
use super::special::Methods;
use super::split::{Package, SplitUnit};
use crate::proto::{Class, Leaf, Type, ValueKind};
use gimli::{AttributeValue as Value, UnitRef, UnitType, constants as dw};
use std::collections::HashMap;
use std::rc::Rc;

/// Deepest chain of types behind types.
pub(super) const MAX_DEPTH: u32 = 64;
/// Most parameters of a function; more are no function of a program.
const MAX_PARAMS: usize = 1024;

/// What pointers to members of C++ are called: those to functions are structures of two words.
pub(super) const POINTER_TO_MEMBER: &str = "pointer to member";

type Dwarf<'a> = gimli::Dwarf<Slice<'a>>;
type Header<'a> = gimli::UnitHeader<Slice<'a>>;

/// Where an entry is: of which file, and at which offset of its sections; those of `.debug_types`
/// have the highest bit set.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub(super) struct Pos {
    pub file: Of,
    pub at: u64,
}

/// Whose sections they are.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub(super) enum Of {
    Own,
    /// Those that are shared with other programs.
    Shared,
    /// The unit of a type in a package, by its number there.
    Type(u32),
}

/// The sections of a unit.
#[derive(Clone)]
enum Sections<'s, 'a> {
    Kept(&'s Dwarf<'a>),
    OfType(Rc<SplitUnit<'a>>),
}

impl<'a> Sections<'_, 'a> {
    fn get(&self) -> &Dwarf<'a> {
        match self {
            Self::Kept(dwarf) => dwarf,
            Self::OfType(unit) => &unit.dwarf,
        }
    }
}

const IN_TYPES: u64 = 1 << 63;

/// An entry and the unit that it is in.
#[derive(Clone)]
pub(super) struct UnitEntry<'s, 'a> {
    dwarf: Sections<'s, 'a>,
    unit: Rc<Unit<'a>>,
    file: Of,
    /// As that of [`Types`].
    base: u64,
    pub entry: Entry<'a>,
}

/// What a pointer leads to: its name, the name of a structure, and where that is described.
type Pointee = (String, Option<String>, Option<u64>);

/// A function's parameters.
pub(super) struct Params<'s, 'a> {
    pub list: Vec<UnitEntry<'s, 'a>>,
    pub variadic: bool,
}

/// The units of one file in order of their offsets.
type Headers<'a> = Vec<(u64, Header<'a>)>;

/// The types of a program.
pub(super) struct Types<'s, 'a> {
    own: &'s Dwarf<'a>,
    headers: [Headers<'a>; 2],
    /// Type units by signature.
    signatures: HashMap<u64, Pos>,
    /// Where others are, and those of them that were looked at.
    package: Option<&'s Package<'a>>,
    of_package: HashMap<u32, (Rc<SplitUnit<'a>>, Headers<'a>)>,
    units: HashMap<Pos, Rc<Unit<'a>>>,
    known: HashMap<Pos, Option<Type>>,
    /// What the classes of C++ declare that were looked at.
    pub(super) methods: HashMap<Pos, Methods>,
    pub(super) language: Language,
    /// What places begin at: 0, or where those of what was split off a unit do.
    base: u64,
}

impl<'s, 'a> UnitEntry<'s, 'a> {
    pub fn unit(&self) -> UnitRef<'_, Slice<'a>> {
        self.unit.unit_ref(self.dwarf.get())
    }

    /// Reads a text.
    pub fn text(&self, attr: gimli::DwAt) -> Option<&'a str> {
        let s = self.unit().attr_string(self.entry.attr_value(attr)?).ok()?;
        str::from_utf8(s.slice()).ok()
    }

    /// Lists a function's parameters; `None` when they cannot be read.
    pub fn params(&self) -> Option<Params<'s, 'a>> {
        let mut out = Params { list: Vec::new(), variadic: false };
        if self.entry.has_children() {
            let unit = self.unit();
            let mut tree = unit.entries_tree(Some(self.entry.offset())).ok()?;
            self.add(tree.root().ok()?, &mut out, 0)?;
        }
        Some(out)
    }

    fn add(
        &self,
        node: gimli::EntriesTreeNode<'_, '_, Slice<'a>>,
        out: &mut Params<'s, 'a>,
        depth: u32,
    ) -> Option<()> {
        let mut children = node.children();
        while let Some(child) = children.next().ok()? {
            match child.entry().tag() {
                dw::DW_TAG_formal_parameter if out.list.len() >= MAX_PARAMS => return None,
                dw::DW_TAG_formal_parameter => out.list.push(self.beside(child.entry().clone())),
                dw::DW_TAG_unspecified_parameters => out.variadic = true,
                dw::DW_TAG_GNU_formal_parameter_pack if depth == 0 => self.add(child, out, 1)?,
                // Parameters come first.
                dw::DW_TAG_lexical_block | dw::DW_TAG_inlined_subroutine | dw::DW_TAG_call_site => {
                    break;
                }
                _ => {}
            }
        }
        Some(())
    }

    /// Where it is, in words of [`Btf::described_at`](crate::Btf::described_at).
    pub fn place(&self) -> Option<u64> {
        (self.file != Of::Shared)
            .then(|| self.base | place(&self.unit.header, self.entry.offset().0))
    }

    /// Where it is.
    pub fn pos(&self) -> Pos {
        let header = &self.unit.header;
        let types = if header.section() == gimli::SectionId::DebugTypes { IN_TYPES } else { 0 };
        let at = (header.offset().0 as u64).wrapping_add(self.entry.offset().0 as u64);
        Pos { file: self.file, at: at | types }
    }

    /// Tells whether one of its children is of some kind.
    pub fn has_child(&self, is_it: impl Fn(gimli::DwTag) -> bool) -> bool {
        let unit = self.unit();
        let Ok(mut tree) = unit.entries_tree(Some(self.entry.offset())) else { return false };
        let Ok(root) = tree.root() else { return false };
        let mut children = root.children();
        while let Ok(Some(child)) = children.next() {
            if is_it(child.entry().tag()) {
                return true;
            }
        }
        false
    }

    pub fn beside(&self, entry: Entry<'a>) -> Self {
        Self { dwarf: self.dwarf.clone(), unit: Rc::clone(&self.unit), entry, ..*self }
    }
}

fn headers<'a>(
    dwarf: &Dwarf<'a>,
    file: Of,
    signatures: &mut HashMap<u64, Pos>,
) -> Result<Headers<'a>, DwarfError> {
    let mut out = Vec::new();
    let mut add = |header: Header<'a>, types: u64| {
        let start = header.offset().0 as u64 | types;
        if let UnitType::Type { type_signature, type_offset }
        | UnitType::SplitType { type_signature, type_offset } = header.type_()
        {
            signatures.insert(type_signature.0, Pos { file, at: start + type_offset.0 as u64 });
        }
        out.push((start, header));
    };
    let mut units = dwarf.units();
    while let Some(header) = units.next()? {
        add(header, 0);
    }
    let mut units = dwarf.type_units();
    while let Some(header) = units.next()? {
        add(header, IN_TYPES);
    }
    Ok(out)
}

impl<'s, 'a> Types<'s, 'a> {
    /// Finds where units begin; places in them are counted from `base`.
    pub fn new(own: &'s Dwarf<'a>, base: u64) -> Result<Self, DwarfError> {
        let mut signatures = HashMap::new();
        let shared = own
            .sup()
            .map_or_else(|| Ok(Vec::new()), |sup| headers(sup, Of::Shared, &mut signatures))?;
        let headers = [headers(own, Of::Own, &mut signatures)?, shared];
        Ok(Self {
            own,
            headers,
            signatures,
            package: None,
            of_package: HashMap::new(),
            units: HashMap::new(),
            known: HashMap::new(),
            methods: HashMap::new(),
            language: Language::Other,
            base,
        })
    }

    /// Also looks for types in a package.
    pub fn with_package(self, package: Option<&'s Package<'a>>) -> Self {
        Self { package, ..self }
    }

    /// Finds the type of a signature.
    fn signed(&mut self, signature: u64) -> Option<Pos> {
        if let Some(known) = self.signatures.get(&signature) {
            return Some(*known);
        }
        let package = self.package?;
        let number = package.find(signature)?;
        if !self.of_package.contains_key(&number) {
            let unit = package.of_type(number, self.own).ok()?;
            let headers = headers(&unit.dwarf, Of::Type(number), &mut self.signatures).ok()?;
            self.of_package.insert(number, (Rc::new(unit), headers));
        }
        self.signatures.get(&signature).copied()
    }

    /// Begins with the functions of another unit.
    pub fn enter(&mut self, language: Language) {
        if language != self.language {
            self.known.clear();
        }
        self.language = language;
    }

    /// The units of the program itself, by number.
    pub fn own_unit(&mut self, n: usize) -> Option<Result<Rc<Unit<'a>>, DwarfError>> {
        let (start, header) = *self.headers[0].get(n)?;
        if start & IN_TYPES != 0 {
            return None;
        }
        let pos = Pos { file: Of::Own, at: start };
        if let Some(unit) = self.units.get(&pos) {
            return Some(Ok(Rc::clone(unit)));
        }
        // Not kept: most are never referred to.
        Some(self.own.unit(header).map(Rc::new).map_err(DwarfError::from))
    }

    /// An entry of a unit of the program itself.
    pub fn found(&self, unit: &Rc<Unit<'a>>, entry: &Entry<'a>) -> UnitEntry<'s, 'a> {
        let (unit, entry) = (Rc::clone(unit), entry.clone());
        let dwarf = Sections::Kept(self.own);
        UnitEntry { dwarf, unit, file: Of::Own, base: self.base, entry }
    }

    pub fn entry(&mut self, pos: Pos) -> Option<UnitEntry<'s, 'a>> {
        let [own, shared] = &self.headers;
        let (dwarf, headers, base) = match pos.file {
            Of::Own => (Sections::Kept(self.own), own, self.base),
            Of::Shared => (Sections::Kept(self.own.sup()?), shared, self.base),
            Of::Type(number) => {
                let (unit, headers) = self.of_package.get(&number)?;
                (Sections::OfType(Rc::clone(unit)), headers, unit.base)
            }
        };
        let (start, header) =
            headers.get(headers.partition_point(|(start, _)| *start <= pos.at).checked_sub(1)?)?;
        let offset = gimli::UnitOffset(usize::try_from(pos.at - start).ok()?);
        let key = Pos { file: pos.file, at: *start };
        let unit = match self.units.get(&key) {
            Some(unit) => Rc::clone(unit),
            None => {
                let unit = Rc::new(dwarf.get().unit(*header).ok()?);
                self.units.insert(key, Rc::clone(&unit));
                unit
            }
        };
        let entry = unit.entry(offset).ok()?;
        Some(UnitEntry { dwarf, unit, file: pos.file, base, entry })
    }

    /// The entry at a place, or that of the type that it only names.
    pub(super) fn described(&mut self, pos: Pos) -> Option<UnitEntry<'s, 'a>> {
        let e = self.entry(pos)?;
        match e.entry.attr_value(dw::DW_AT_signature) {
            Some(Value::DebugTypesRef(signature)) => {
                let pos = self.signed(signature.0)?;
                self.entry(pos)
            }
            _ => Some(e),
        }
    }

    pub fn link(&mut self, from: &UnitEntry<'s, 'a>, attr: gimli::DwAt) -> Option<Pos> {
        let types =
            if from.unit.header.section() == gimli::SectionId::DebugTypes { IN_TYPES } else { 0 };
        let start = from.unit.header.offset().0 as u64;
        match from.entry.attr_value(attr)? {
            Value::UnitRef(offset) => {
                Some(Pos { file: from.file, at: start.wrapping_add(offset.0 as u64) | types })
            }
            Value::DebugInfoRef(offset) => Some(Pos { file: from.file, at: offset.0 as u64 }),
            Value::DebugInfoRefSup(offset) => Some(Pos { file: Of::Shared, at: offset.0 as u64 }),
            Value::DebugTypesRef(signature) => self.signed(signature.0),
            _ => None,
        }
    }

    /// An entry, and what it is an instance of or completes: nearest first.
    pub fn chain(&mut self, first: UnitEntry<'s, 'a>) -> Vec<UnitEntry<'s, 'a>> {
        let mut out = vec![first];
        while let Some(last) = out.last().filter(|_| out.len() < 8) {
            let next = self
                .link(last, dw::DW_AT_abstract_origin)
                .or_else(|| self.link(last, dw::DW_AT_specification));
            let Some(next) = next.and_then(|pos| self.entry(pos)) else { break };
            out.push(next);
        }
        out
    }

    /// The type that an entry names; `None` when it names none, or one that is not known.
    pub fn of(&mut self, from: &UnitEntry<'s, 'a>) -> Option<Type> {
        if !from.entry.has_attr(dw::DW_AT_type) {
            return None;
        }
        let pos = self.link(from, dw::DW_AT_type)?;
        self.at(pos, 0)
    }

    pub(super) fn behind(&mut self, from: &UnitEntry<'s, 'a>, depth: u32) -> Option<Type> {
        if !from.entry.has_attr(dw::DW_AT_type) {
            return Some(Type::void());
        }
        let pos = self.link(from, dw::DW_AT_type)?;
        self.at(pos, depth + 1)
    }

    pub fn at(&mut self, pos: Pos, depth: u32) -> Option<Type> {
        if depth > MAX_DEPTH {
            return None;
        }
        if let Some(known) = self.known.get(&pos) {
            return known.clone();
        }
        let entry = self.entry(pos)?;
        let t = self.make(&entry, depth);
        self.known.insert(pos, t.clone());
        t
    }

    fn make(&mut self, e: &UnitEntry<'s, 'a>, depth: u32) -> Option<Type> {
        if let Some(Value::DebugTypesRef(signature)) = e.entry.attr_value(dw::DW_AT_signature) {
            let pos = self.signed(signature.0)?;
            return self.at(pos, depth + 1);
        }
        let text = e.text(dw::DW_AT_name).unwrap_or_default();
        let size = number(&e.entry, dw::DW_AT_byte_size);
        match e.entry.tag() {
            dw::DW_TAG_base_type => base(text, size?, &e.entry),
            dw::DW_TAG_pointer_type
            | dw::DW_TAG_reference_type
            | dw::DW_TAG_rvalue_reference_type => self.pointer(e, depth),
            dw::DW_TAG_const_type
            | dw::DW_TAG_volatile_type
            | dw::DW_TAG_restrict_type
            | dw::DW_TAG_atomic_type
            | dw::DW_TAG_immutable_type
            | dw::DW_TAG_shared_type
            | dw::DW_TAG_packed_type
            | dw::DW_TAG_typedef
            | dw::DW_TAG_template_alias => self.behind(e, depth),
            dw::DW_TAG_enumeration_type => {
                let size = match size {
                    Some(size) => size,
                    None if e.entry.has_attr(dw::DW_AT_type) => self.behind(e, depth)?.size,
                    None => return None,
                };
                let one =
                    Type::scalar(&tagged("enum", text), ValueKind::Enum, size, Class::Integer);
                Some(Type { described_at: e.place(), ..one })
            }
            dw::DW_TAG_structure_type | dw::DW_TAG_class_type | dw::DW_TAG_union_type => {
                match self.language {
                    Language::Rust { .. } => self.rust_composite(e, depth),
                    _ => self.composite(e, depth),
                }
            }
            dw::DW_TAG_array_type
                if matches!(self.language, Language::Rust { .. })
                    && !flag(&e.entry, dw::DW_AT_GNU_vector) =>
            {
                self.rust_array(e, depth)
            }
            // Others are no arguments; a vector is.
            dw::DW_TAG_array_type if flag(&e.entry, dw::DW_AT_GNU_vector) => {
                let elem = self.behind(e, depth)?;
                let size = size.or_else(|| elem.size.checked_mul(count(e)?))?;
                Some(Type::scalar(
                    &format!("{} vector", elem.text),
                    ValueKind::Float,
                    size,
                    Class::Sse,
                ))
            }
            // `decltype(nullptr)`; `auto` is one as well where it was not found out.
            dw::DW_TAG_unspecified_type if text.contains("nullptr") => {
                Some(Type::scalar(text, ValueKind::Pointer(None), 8, Class::Integer))
            }
            dw::DW_TAG_ptr_to_member_type => self.pointer_to_member(e),
            _ => None,
        }
    }

    fn pointer(&mut self, e: &UnitEntry<'s, 'a>, depth: u32) -> Option<Type> {
        let (to, named, described_at) = self.pointee(e, depth)?;
        let star = match e.entry.tag() {
            dw::DW_TAG_pointer_type => "*",
            dw::DW_TAG_reference_type => "&",
            _ => "&&",
        };
        let space = if to.ends_with('*') { "" } else { " " };
        let text = format!("{to}{space}{star}");
        let pointer = Type::scalar(&text, ValueKind::Pointer(named), 8, Class::Integer);
        Some(Type { described_at, ..pointer })
    }

    /// A structure, class or union.
    fn composite(&mut self, e: &UnitEntry<'s, 'a>, depth: u32) -> Option<Type> {
        if flag(&e.entry, dw::DW_AT_declaration) {
            return None;
        }
        let union = e.entry.tag() == dw::DW_TAG_union_type;
        let (kind, word) =
            if union { (ValueKind::Union, "union") } else { (ValueKind::Struct, "struct") };
        let size = number(&e.entry, dw::DW_AT_byte_size)?;
        let mut members = Members::new(size);
        let whole = self.flatten(e, 0, depth, &mut members)?;
        Some(Type {
            text: tagged(word, e.text(dw::DW_AT_name).unwrap_or_default()),
            kind,
            size,
            align: whole.align,
            leaves: members.leaves,
            by_reference: whole.special.by_reference(),
            described_at: e.place(),
            passed: None,
        })
    }

    fn pointer_to_member(&mut self, e: &UnitEntry<'s, 'a>) -> Option<Type> {
        let pos = self.link(e, dw::DW_AT_type)?;
        let function = self.entry(pos)?.entry.tag() == dw::DW_TAG_subroutine_type;
        // It is an offset: 0 is that of the first member, and -1 is none.
        let one = Type::scalar(POINTER_TO_MEMBER, ValueKind::Int, 8, Class::Integer);
        if !function {
            return Some(one);
        }
        let leaves = [0, 64]
            .map(|bit_offset| Leaf { bit_offset, bits: 64, class: Class::Integer, align: 8 })
            .to_vec();
        Some(Type { kind: ValueKind::Struct, size: 16, align: 8, leaves, ..one })
    }

    /// The name of what a pointer leads to; the same when it is a structure that has a name; where that
    /// is described.
    fn pointee(&mut self, e: &UnitEntry<'s, 'a>, depth: u32) -> Option<Pointee> {
        let mut at = e.clone();
        let mut stars = String::new();
        for _ in depth..MAX_DEPTH {
            if !at.entry.has_attr(dw::DW_AT_type) {
                return Some((
                    if stars.is_empty() { "void".to_owned() } else { format!("void {stars}") },
                    None,
                    None,
                ));
            }
            let pos = self.link(&at, dw::DW_AT_type)?;
            let mut next = self.entry(pos)?;
            if let Some(Value::DebugTypesRef(signature)) =
                next.entry.attr_value(dw::DW_AT_signature)
            {
                let pos = self.signed(signature.0)?;
                next = self.entry(pos)?;
            }
            let text = next.text(dw::DW_AT_name).unwrap_or_default();
            let word = match next.entry.tag() {
                dw::DW_TAG_pointer_type
                | dw::DW_TAG_reference_type
                | dw::DW_TAG_rvalue_reference_type => {
                    stars.push('*');
                    ""
                }
                dw::DW_TAG_structure_type | dw::DW_TAG_class_type => "struct",
                dw::DW_TAG_union_type => "union",
                dw::DW_TAG_enumeration_type => "enum",
                dw::DW_TAG_subroutine_type => "function",
                dw::DW_TAG_base_type | dw::DW_TAG_unspecified_type => {
                    return Some((
                        if stars.is_empty() { text.to_owned() } else { format!("{text} {stars}") },
                        None,
                        None,
                    ));
                }
                _ => "",
            };
            if !word.is_empty() {
                let all = if word == "function" { word.to_owned() } else { tagged(word, text) };
                let named =
                    (stars.is_empty() && matches!(word, "struct" | "union") && !text.is_empty())
                        .then(|| text.to_owned());
                return Some((
                    if stars.is_empty() { all } else { format!("{all} {stars}") },
                    named,
                    next.place().filter(|_| stars.is_empty()),
                ));
            }
            at = next;
        }
        None
    }
}

fn tagged(word: &str, name: &str) -> String {
    if name.is_empty() { format!("{word} (anonymous)") } else { format!("{word} {name}") }
}

fn base(text: &str, size: u64, entry: &Entry<'_>) -> Option<Type> {
    let Some(Value::Encoding(encoding)) = entry.attr_value(dw::DW_AT_encoding) else { return None };
    let float = |class| Type::scalar(text, ValueKind::Float, size, class);
    Some(match encoding {
        // `long double` is the x87 type, `_Float128` is not.
        dw::DW_ATE_float | dw::DW_ATE_imaginary_float => {
            float(if size > 8 && !text.contains("128") { Class::X87 } else { Class::Sse })
        }
        dw::DW_ATE_decimal_float => float(Class::Sse),
        dw::DW_ATE_complex_float => {
            let part = size / 2;
            let class = if part > 8 { Class::X87 } else { Class::Sse };
            let leaf = |n: u64| Leaf {
                bit_offset: n * part * 8,
                bits: part * 8,
                class,
                align: part.max(1),
            };
            Type { align: part.clamp(1, 16), leaves: vec![leaf(0), leaf(1)], ..float(class) }
        }
        _ => Type::scalar(text, ValueKind::Int, size, Class::Integer),
    })
}
