//! Functions around addresses, from the tree of a unit: the function itself, and what was inlined
//! into it there.

use std::collections::HashMap;
use std::rc::Rc;

use gimli::{AttributeValue as Value, UnitOffset, constants as dw};

use super::answers::Strings;
use super::dwarf::{Dwarf, Unit, unit_at};
use super::lines::Row;

const NONE: u32 = u32::MAX;
/// How often, on average, each address may be looked at: as often as functions around it are inlined
/// into one another. A file in which each of a million functions covers all addresses is lying.
const LOOKS: usize = 1000;
/// A name is found in so many steps from entry to entry, or not at all.
const STEPS: usize = 16;
/// Other units that are kept because names were found there.
const KEPT_UNITS: usize = 32;

/// A function, or an inlined call.
#[derive(Clone, Copy, Debug)]
pub(super) struct Function {
    entry: UnitOffset,
    /// Where it begins.
    pub start: u64,
    /// Number of the name; 0 if it has none.
    pub name: u32,
    /// The name is a linker's.
    pub linkage: bool,
    /// It was inlined.
    pub inlined: bool,
    /// Where it was called, if it was inlined.
    pub call: Row,
}

/// One function of an address, and the one that it was inlined into.
#[derive(Clone, Copy, Debug)]
struct Node {
    function: u32,
    outer: u32,
}

/// The functions around each address of a unit.
#[derive(Debug)]
pub(super) struct Chains<'s> {
    addrs: &'s [u64],
    functions: Vec<Function>,
    nodes: Vec<Node>,
    /// For each address its innermost node, and the size of the range of its outermost one.
    innermost: Vec<(u32, u64)>,
    looks: usize,
}

/// What the attributes of a function say.
#[derive(Default)]
struct Attributes {
    low: Option<u64>,
    /// An address, or a length.
    high: Option<Result<u64, u64>>,
    ranges: Option<gimli::RangeListsOffset>,
    call: Row,
}

/// A function whose children are being read.
struct Open {
    depth: isize,
    /// [`NONE`] if no address is in it.
    function: u32,
}

impl<'s> Chains<'s> {
    /// Of sorted addresses.
    pub fn new(addrs: &'s [u64]) -> Self {
        let innermost = vec![(NONE, u64::MAX); addrs.len()];
        let looks = addrs.len().saturating_mul(LOOKS).saturating_add(1 << 20);
        Self { addrs, functions: Vec::new(), nodes: Vec::new(), innermost, looks }
    }

    /// The functions around the address with a number, the innermost first.
    pub fn of(&self, at: usize) -> impl Iterator<Item = &Function> {
        let mut next = self.innermost.get(at).map_or(NONE, |i| i.0);
        std::iter::from_fn(move || {
            let node = self.nodes.get(next as usize)?;
            next = node.outer;
            self.functions.get(node.function as usize)
        })
    }

    /// Reads all entries of a unit once.
    pub fn read(&mut self, dwarf: &Dwarf<'_>, unit: &Unit<'_>) -> gimli::Result<()> {
        let mut entries = unit.entries_raw(None)?;
        let mut open: Vec<Open> = Vec::new();
        while !entries.is_empty() {
            let (entry, depth) = (entries.next_offset(), entries.next_depth());
            let Some(abbreviation) = entries.read_abbreviation()? else { continue };
            while open.last().is_some_and(|o| o.depth >= depth) {
                open.pop();
            }
            let outer = open.last().map_or(NONE, |o| o.function);
            let inlined = abbreviation.tag() == dw::DW_TAG_inlined_subroutine;
            if !(abbreviation.tag() == dw::DW_TAG_subprogram || (inlined && outer != NONE)) {
                entries.skip_attributes(abbreviation.attributes())?;
                continue;
            }
            let mut attributes = Attributes::default();
            for spec in abbreviation.attributes() {
                attributes.take(dwarf, unit, &entries.read_attribute(*spec)?)?;
            }
            let function = self.add(dwarf, unit, entry, &attributes, inlined.then_some(outer))?;
            if abbreviation.has_children() {
                open.push(Open { depth, function });
            }
        }
        Ok(())
    }

    /// Adds a function to the chains of the addresses in it; `outer`: the one that it was inlined
    /// into. Returns its number, if there is such an address.
    fn add(
        &mut self,
        dwarf: &Dwarf<'_>,
        unit: &Unit<'_>,
        entry: UnitOffset,
        attributes: &Attributes,
        outer: Option<u32>,
    ) -> gimli::Result<u32> {
        let number = u32::try_from(self.functions.len()).unwrap_or(NONE);
        let nodes = self.nodes.len();
        let mut start = attributes.low;
        if let Some(offset) = attributes.ranges {
            let mut ranges = dwarf.ranges(unit, offset)?;
            while let Some(range) = ranges.next()? {
                start = start.or(Some(range.begin));
                self.add_range(range.begin, range.end, number, outer);
            }
        } else if let (Some(low), Some(high)) = (attributes.low, attributes.high) {
            let end = high.unwrap_or_else(|len| low.saturating_add(len));
            self.add_range(low, end, number, outer);
        }
        if self.nodes.len() == nodes {
            return Ok(NONE);
        }
        let start = start.unwrap_or(0);
        let (call, inlined) = (attributes.call, outer.is_some());
        self.functions.push(Function { entry, start, name: 0, linkage: false, inlined, call });
        Ok(number)
    }

    fn add_range(&mut self, start: u64, end: u64, function: u32, outer: Option<u32>) {
        if start == 0 || start >= end {
            return;
        }
        let mut at = self.addrs.partition_point(|a| *a < start);
        while self.looks > 0 && self.addrs.get(at).is_some_and(|a| *a < end) {
            self.looks -= 1;
            let Some(innermost) = self.innermost.get_mut(at) else { return };
            at += 1;
            let node = u32::try_from(self.nodes.len()).unwrap_or(NONE);
            match outer {
                // Of two functions at one address, such as aliases in assembler or those that a linker
                // found to be the same, the smaller and then the last counts, as in binutils.
                None if end - start <= innermost.1 => {
                    *innermost = (node, end - start);
                    self.nodes.push(Node { function, outer: NONE });
                }
                Some(outer)
                    if self
                        .nodes
                        .get(innermost.0 as usize)
                        .is_some_and(|n| n.function == outer) =>
                {
                    let outer = std::mem::replace(&mut innermost.0, node);
                    self.nodes.push(Node { function, outer });
                }
                _ => {}
            }
        }
    }
}

impl Attributes {
    fn take(
        &mut self,
        dwarf: &Dwarf<'_>,
        unit: &Unit<'_>,
        attribute: &gimli::Attribute<super::dwarf::Slice<'_>>,
    ) -> gimli::Result<()> {
        let number = || attribute.udata_value().and_then(|n| u32::try_from(n).ok()).unwrap_or(0);
        match attribute.name() {
            dw::DW_AT_low_pc => self.low = dwarf.attr_address(unit, attribute.value())?,
            dw::DW_AT_high_pc => {
                self.high = match attribute.value() {
                    Value::Udata(len) => Some(Err(len)),
                    value => dwarf.attr_address(unit, value)?.map(Ok),
                }
            }
            dw::DW_AT_ranges => {
                self.ranges = dwarf.attr_ranges_offset(unit, attribute.value())?;
            }
            dw::DW_AT_call_file => {
                self.call.file = match attribute.value() {
                    Value::FileIndex(file) => Some(file),
                    _ => attribute.udata_value(),
                }
            }
            dw::DW_AT_call_line => self.call.line = number(),
            dw::DW_AT_call_column => self.call.column = number(),
            _ => {}
        }
        Ok(())
    }
}

/// Names of entries, which may be in other units.
#[derive(Default)]
pub(super) struct Names {
    /// By offset in `.debug_info`.
    known: HashMap<usize, (u32, bool)>,
}

/// The units of one file, that entries refer to.
#[derive(Clone, Copy)]
pub(super) struct Units<'d, 'a> {
    pub dwarf: &'d Dwarf<'a>,
    /// Their offsets in `.debug_info`; none where units refer to themselves only.
    pub offsets: &'d [usize],
}

/// Units that are read for the names in them.
struct Reading<'d, 'a> {
    /// The file itself, and the one that holds what several files have in common.
    files: [Option<Units<'d, 'a>>; 2],
    /// By file and offset.
    others: HashMap<(Place, usize), Rc<Unit<'a>>>,
    /// The language of a unit mangles no names.
    plain: HashMap<(Place, usize), bool>,
}

/// Which of the two files.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
enum Place {
    Own,
    Alternate,
}

impl Names {
    /// Finds the names of all functions of a unit; `own` and `alternate`: the units that it may refer
    /// to.
    pub fn resolve<'a>(
        &mut self,
        unit: &Unit<'a>,
        own: Units<'_, 'a>,
        alternate: Option<Units<'_, 'a>>,
        chains: &mut Chains<'_>,
        strings: &mut Strings,
    ) {
        let files = [Some(own), alternate];
        let mut reading = Reading { files, others: HashMap::new(), plain: HashMap::new() };
        let start = unit.header.debug_info_offset().map_or(0, |o| o.0);
        if own.offsets.is_empty() {
            // Offsets in files of split units count anew in each.
            self.known.clear();
        }
        for function in &mut chains.functions {
            let key = start.saturating_add(function.entry.0);
            let known = self.known.get(&key).copied();
            let found =
                known.or_else(|| reading.name(Place::Own, unit, function.entry, strings, STEPS));
            (function.name, function.linkage) = found.unwrap_or_default();
            self.known.insert(key, (function.name, function.linkage));
        }
        if own.offsets.is_empty() {
            self.known.clear();
        }
    }
}

impl<'a> Reading<'_, 'a> {
    /// The best name of an entry, and whether linkers see it.
    fn name(
        &mut self,
        place: Place,
        unit: &Unit<'a>,
        entry: UnitOffset,
        strings: &mut Strings,
        steps: usize,
    ) -> Option<(u32, bool)> {
        let Units { dwarf, .. } = (*self.files.get(place as usize)?)?;
        let entry = unit.entry(entry).ok()?;
        let text = |value: Value<_>| dwarf.attr_string(unit, value).ok();
        let linkage = [dw::DW_AT_linkage_name, dw::DW_AT_MIPS_linkage_name]
            .into_iter()
            .find_map(|name| entry.attr_value(name))
            .and_then(text);
        if let Some(name) = linkage {
            return Some((strings.add(name.slice()), true));
        }
        let own = entry.attr_value(dw::DW_AT_name).and_then(text);
        let link = [dw::DW_AT_abstract_origin, dw::DW_AT_specification]
            .into_iter()
            .find_map(|name| entry.attr_value(name));
        let linked = match link {
            _ if steps == 0 => None,
            Some(Value::UnitRef(at)) => self.name(place, unit, at, strings, steps - 1),
            Some(Value::DebugInfoRef(at)) => self.name_elsewhere(place, at.0, strings, steps - 1),
            Some(Value::DebugInfoRefSup(at)) => {
                self.name_elsewhere(Place::Alternate, at.0, strings, steps - 1)
            }
            _ => None,
        };
        match (own, linked) {
            (_, Some((name, true))) => Some((name, true)),
            (Some(own), _) => Some((strings.add(own.slice()), self.is_plain(place, unit))),
            (None, linked) => linked,
        }
    }

    fn name_elsewhere(
        &mut self,
        place: Place,
        at: usize,
        strings: &mut Strings,
        steps: usize,
    ) -> Option<(u32, bool)> {
        let Units { dwarf, offsets } = (*self.files.get(place as usize)?)?;
        let number = offsets.partition_point(|start| *start <= at).checked_sub(1)?;
        let start = *offsets.get(number)?;
        let unit = match self.others.get(&(place, start)) {
            Some(unit) => Rc::clone(unit),
            None => {
                let unit = Rc::new(unit_at(dwarf, start)?);
                if self.others.len() >= KEPT_UNITS {
                    self.others.clear();
                }
                self.others.insert((place, start), Rc::clone(&unit));
                unit
            }
        };
        self.name(place, &unit, UnitOffset(at - start), strings, steps)
    }

    /// Tells whether names of a unit's language are those that linkers see.
    fn is_plain(&mut self, place: Place, unit: &Unit<'_>) -> bool {
        // Assigned since DWARF 5 was published.
        const ASSEMBLY: dw::DwLang = dw::DwLang(0x31);
        const C23: dw::DwLang = dw::DwLang(0x3e);
        const FORTRAN23: dw::DwLang = dw::DwLang(0x3f);
        let start = unit.header.debug_info_offset().map_or(0, |o| o.0);
        *self.plain.entry((place, start)).or_insert_with(|| {
            let root = unit.entry(unit.header.root_offset());
            let language = root.ok().and_then(|root| root.attr_value(dw::DW_AT_language));
            let Some(Value::Language(language)) = language else { return false };
            // As binutils 2.44 knows them: where names are others, such as those of Fortran's main programs,
            // the symbol counts.
            matches!(
                language,
                dw::DW_LANG_C89
                    | dw::DW_LANG_C
                    | dw::DW_LANG_C99
                    | dw::DW_LANG_C11
                    | dw::DW_LANG_C17
                    | C23
                    | dw::DW_LANG_Cobol74
                    | dw::DW_LANG_Cobol85
                    | dw::DW_LANG_Fortran77
                    | dw::DW_LANG_Fortran18
                    | FORTRAN23
                    | dw::DW_LANG_Pascal83
                    | dw::DW_LANG_PLI
                    | dw::DW_LANG_UPC
                    | dw::DW_LANG_Mips_Assembler
                    | ASSEMBLY
            )
        })
    }
}
