//! Source lines of addresses, from the line program of a unit.

use super::answers::Strings;
use super::dwarf::{Dwarf, Slice, Unit};

/// A place in the source.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Row {
    /// Index into the unit's files.
    pub file: Option<u64>,
    pub line: u32,
    pub column: u32,
    pub discriminator: u32,
}

/// How often, on average, each address may be looked at: once, unless sequences overlap. A file
/// that lets each of a million rows cover all addresses is lying.
const LOOKS: usize = 64;

/// Runs a unit's line program, and keeps the rows of sorted addresses only. Where the program is
/// damaged it ends.
pub(super) fn rows(unit: &Unit<'_>, addrs: &[u64]) -> Vec<Option<Row>> {
    let mut found = vec![None; addrs.len()];
    let Some(mut program) = unit.line_program.clone() else { return found };
    // Not `program.rows()`: it leaves out rows whose address goes back to what linkers put in place of
    // code that they dropped, and the end of their sequence as well, so that the row before them
    // seemed to reach into the next sequence. Here they have the address of the row before.
    let mut instructions = program.header().instructions();
    let mut row = gimli::LineRow::new(program.header());
    let mut looks = addrs.len().saturating_mul(LOOKS).saturating_add(1 << 20);
    // The row before, its address, and the first address that is not below it.
    let mut last: Option<(Row, u64, usize)> = None;
    while let Ok(Some(instruction)) = instructions.next_instruction(program.header()) {
        match row.execute(instruction, &mut program) {
            Ok(true) => {}
            Ok(false) => continue,
            Err(_) => break,
        }
        let address = row.address();
        let mut next = None;
        if let Some((place, start, mut at)) = last.take() {
            while let (Some(addr), Some(slot)) = (addrs.get(at), found.get_mut(at)) {
                if *addr >= address {
                    break;
                }
                // Of two sequences at one address the first counts; 0 is where linkers put what
                // they left out.
                if slot.is_none() && start != 0 {
                    *slot = Some(place);
                }
                at += 1;
                looks = looks.saturating_sub(1);
            }
            if looks == 0 {
                break;
            }
            if address >= start {
                next = Some(at);
            }
        }
        if !row.end_sequence() {
            let at = next.unwrap_or_else(|| addrs.partition_point(|a| *a < address));
            last = Some((place_of(&row), address, at));
        }
        row.reset(program.header());
    }
    found
}

fn place_of(row: &gimli::LineRow) -> Row {
    let short = |n: u64| u32::try_from(n).unwrap_or(u32::MAX);
    Row {
        file: Some(row.file_index()),
        line: row.line().map_or(0, |l| short(l.get())),
        column: match row.column() {
            gimli::ColumnType::LeftEdge => 0,
            gimli::ColumnType::Column(column) => short(column.get()),
        },
        discriminator: short(row.discriminator()),
    }
}

/// Paths of a unit's files.
pub(super) struct Files<'d, 'a> {
    dwarf: &'d Dwarf<'a>,
    unit: &'d Unit<'a>,
    /// By index: the string's number plus 1; 0: not looked up.
    known: Vec<u32>,
}

impl<'d, 'a> Files<'d, 'a> {
    pub fn new(dwarf: &'d Dwarf<'a>, unit: &'d Unit<'a>) -> Self {
        Self { dwarf, unit, known: Vec::new() }
    }

    /// The path of a file as the compiler wrote it, below the directories that it named.
    pub fn get(&mut self, file: Option<u64>, strings: &mut Strings) -> u32 {
        let Some(file) = file else { return 0 };
        let at = usize::try_from(file).unwrap_or(usize::MAX);
        if let Some(known) = self.known.get(at).and_then(|id| id.checked_sub(1)) {
            return known;
        }
        let mut path = Vec::new();
        if self.path(file, &mut path).is_none() {
            return 0;
        }
        let id = strings.add(&path);
        // The path was found, so the index is below the number of files.
        if at >= self.known.len() {
            self.known.resize(at + 1, 0);
        }
        if let Some(known) = self.known.get_mut(at) {
            *known = id.saturating_add(1);
        }
        id
    }

    fn path(&self, file: u64, out: &mut Vec<u8>) -> Option<()> {
        let header = self.unit.line_program.as_ref()?.header();
        if file == 0 && header.version() < 5 {
            return None;
        }
        let entry = header.file(file)?;
        let text =
            |value| self.dwarf.attr_string(self.unit, value).ok().map(|s: Slice<'_>| s.slice());
        let name = text(entry.path_name())?;
        let dir = entry.directory_index();
        // Before DWARF 5, 0 is the directory of the compilation.
        let dir = if dir == 0 && header.version() < 5 { None } else { header.directory(dir) };
        let dir = dir.and_then(text).unwrap_or_default();
        let absolute = |path: &[u8]| path.starts_with(b"/");
        if !absolute(name) {
            let base = self.unit.comp_dir.map_or(&[][..], |d| d.slice());
            for part in [if absolute(dir) { &[] } else { base }, dir] {
                if !part.is_empty() {
                    out.extend_from_slice(part);
                    out.push(b'/');
                }
            }
        }
        out.extend_from_slice(name);
        Some(())
    }
}
