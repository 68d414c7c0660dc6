//! The functions that debuggers shall see in a program's machine code.

use skep_isa::{Insn, op};

use crate::perf::Listing;

/// A piece of machine code with one frame.
pub(super) struct Unit {
    pub name: String,
    /// Where in the code it starts and ends.
    pub start: usize,
    pub end: usize,
    /// It comes from the program's source.
    pub has_source: bool,
    /// Where its returns begin: with the first instruction that takes the frame down.
    pub exits: Vec<usize>,
}

/// Splits the code of a program made of `insns`.
///
/// The function proper is `bpf_prog_NAME`, also when a small function that counts tail calls stands
/// before it (`….entry`), so that a breakpoint sees programs that are entered by tail call too.
pub(super) fn of(listing: &Listing<'_>, insns: &[Insn]) -> Vec<Unit> {
    let code = listing.code.machine_code();
    let main = format!("bpf_prog_{}", printable(listing.name));
    let mut units = Vec::new();
    let mut add = |start, name, has_source| {
        units.push(Unit { name, start, end: 0, has_source, exits: Vec::new() })
    };
    for (n, &(slot, start)) in listing.code.functions().iter().enumerate() {
        if n == 0 {
            if start != 0 {
                add(0, format!("{main}.entry"), false);
            }
            add(start, main.clone(), true);
        } else {
            let name = listing.functions.iter().find(|f| f.insn == slot);
            add(
                start,
                name.map_or_else(
                    || format!("{main}.f{slot}"),
                    |f| format!("{main}.{}", printable(f.name)),
                ),
                true,
            );
        }
    }
    if let Some(start) = listing.code.vector_saver() {
        add(start, format!("{main}.save_vectors"), false);
    }
    units.sort_by_cached_key(|u| u.start as u64);
    let ends: Vec<usize> = units.iter().skip(1).map(|u| u.start).chain([code.len()]).collect();
    for (unit, end) in units.iter_mut().zip(ends) {
        unit.end = end;
        unit.exits = if unit.has_source {
            exits(listing, insns, unit.start, end)
        } else {
            last_exit(code, unit.start, end)
        };
    }
    units
}

/// Finds where the exits of a function are generated.
fn exits(listing: &Listing<'_>, insns: &[Insn], start: usize, end: usize) -> Vec<usize> {
    let places = insns.iter().zip(listing.code.offsets()).filter(|(i, _)| i.code == op::EXIT);
    places.map(|(_, at)| *at as usize).filter(|at| (start..end).contains(at)).collect()
}

/// Finds the `leave` before the only `ret` of code that is the same in all programs.
fn last_exit(code: &[u8], start: usize, end: usize) -> Vec<usize> {
    let bytes = code.get(start..end).unwrap_or_default();
    bytes.windows(2).rposition(|w| w == [0xc9, 0xc3]).map(|at| start + at).into_iter().collect()
}

/// Names end at the first byte that tables of strings cannot hold.
fn printable(name: &str) -> &str {
    name.split('\0').next().unwrap_or_default()
}
