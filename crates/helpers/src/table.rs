//! Tables of helpers: which function a call by number runs, for which types of programs.

use skep_isa::{HelperId, ProgramType};
use skep_vm::{HelperCall, HelperFn, HelperImpl};

/// Finds what the code generator needs to call a helper from a program of a type; `None` when it
/// cannot be called here.
pub type Lookup = fn(ProgramType, HelperId) -> Option<HelperImpl>;

/// A helper for some program types, or for all.
#[derive(Debug)]
pub struct Row {
    /// The helper.
    pub id: HelperId,
    func: HelperFn,
    call: HelperCall,
    /// The program types it is for; all when empty.
    only: &'static [ProgramType],
}

/// Makes a row for all program types.
#[must_use]
pub const fn row(id: HelperId, func: HelperFn, call: HelperCall) -> Row {
    Row { id, func, call, only: &[] }
}

/// Makes a row for some program types. Those of one helper stand together, the first that matches
/// is taken.
#[must_use]
pub const fn when(only: &'static [ProgramType], id: HelperId, func: HelperFn) -> Row {
    Row { id, func, call: HelperCall::SaveVectors, only }
}

/// Finds a helper in a table that is sorted by number.
#[must_use]
pub fn find(table: &[Row], prog: ProgramType, id: HelperId) -> Option<HelperImpl> {
    let first = table.partition_point(|r| r.id < id);
    let mut rows = table.get(first..)?.iter().take_while(|r| r.id == id);
    let row = rows.find(|r| r.only.is_empty() || r.only.contains(&prog))?;
    Some(HelperImpl { func: row.func, how: row.call })
}

/// Tells whether a table is sorted by number, with the row for all types behind the others of its
/// helper.
#[must_use]
pub fn is_sorted(table: &[Row]) -> bool {
    table.is_sorted_by(|a, b| a.id < b.id || (a.id == b.id && !a.only.is_empty()))
}
