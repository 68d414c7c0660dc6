//! Which functions of modules a link means, and whether there is room for that.

use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

use skep_attach::sites::{Function, Module};
use skep_maps::{Access, Map};
use skep_store::dir::{Dir, Kind};
use skep_store::link::{InModule, LinkSpec, Selection, control};

use super::AgentError;

/// Address space that is asked for at least.
const LEAST: u64 = 4 << 20;
/// What listing a module's functions takes for each byte of its code.
const LISTED: u64 = 4;
/// The same, where functions are very short: for each byte of their table of unwind information, which has
/// eight for a function.
const LISTED_BY_TABLE: u64 = 64;
/// What hooking a function takes.
const HOOKED: u64 = 1 << 10;
/// What it takes with all that is written at its calls, and while threads stand.
const USED: u64 = 3 << 9;

/// What work takes.
#[derive(Clone, Copy)]
pub(super) struct Need {
    /// Bytes of address space.
    pub space: u64,
    /// Bytes that are written to.
    pub memory: u64,
}

/// What listing functions of these modules takes, until it is done.
pub(super) fn room_to_list(selection: &Selection, modules: &[&Arc<Module>]) -> Need {
    let mut need = Need { space: 0, memory: 0 };
    for module in modules.iter().filter(|m| patterns_of(selection, m).is_some()) {
        let len = |range: &Range<u64>| range.end - range.start;
        let table = module.file().unwind_table.as_ref().map_or(0, len) * LISTED_BY_TABLE;
        let code = module.text().iter().map(len).sum::<u64>();
        need.space += (code * LISTED).max(table);
        need.memory += code.max(table);
    }
    need
}

/// What hooking so many functions takes.
pub(super) fn room_to_hook(functions: usize) -> Need {
    Need { space: functions as u64 * HOOKED, memory: functions as u64 * USED }
}

/// Bytes of memory that attaching may still take: a process whose control group has none left is ended by
/// the kernel. 0: nobody has said; all bits: there is no limit.
static MEMORY: AtomicU64 = AtomicU64::new(0);

/// Says how much memory attaching may take from now on.
pub(crate) fn set_memory(bytes: u64) {
    MEMORY.store(bytes, Relaxed);
}

/// The same, as a link says it, unless somebody has said so already.
pub(super) fn know_memory(dir: &Dir, spec: &LinkSpec) {
    if MEMORY.load(Relaxed) != 0 {
        return;
    }
    let map = Map::open_first(&dir.object(Kind::Map, spec.control), Access::ReadWrite, u32::MAX);
    // Whoever loads the link says what is wrong with it.
    if let Some(map) = map.ok().filter(control::is_control_map) {
        let left = control::word(&map, control::MEMORY).load(Relaxed);
        set_memory(if left == 0 { u64::MAX } else { left });
    }
}

/// Refuses work that there is no room for.
pub(super) fn check(need: Need) -> Result<(), AgentError> {
    let left = MEMORY.load(Relaxed);
    let memory = need.memory + LEAST;
    if left != 0 && left < memory {
        let (memory, left) = (memory >> 20, left >> 20);
        return Err(format!(
            "this takes up to {memory} MiB of memory, and its control group has {left} MiB left; raise its limit, or attach to fewer functions"
        )
        .into());
    }
    check_room(need.space)
}

/// Takes memory that stays in use.
pub(super) fn take(bytes: u64) {
    change(|left| left.saturating_sub(bytes).max(1));
}

/// Gives it back.
pub(super) fn give_back(bytes: u64) {
    change(|left| left.saturating_add(bytes));
}

fn change(to: impl Fn(u64) -> u64) {
    let left = MEMORY.load(Relaxed);
    if left != 0 && left != u64::MAX {
        MEMORY.store(to(left), Relaxed);
    }
}

/// Refuses work that a limit of the process for its address space would end, and the process with it.
pub(crate) fn check_room(bytes: u64) -> Result<(), AgentError> {
    let need = bytes.max(LEAST);
    if skep_sys::has_address_space(need) {
        return Ok(());
    }
    let need = need >> 20;
    Err(format!("its address space has no room for {need} MiB more (`ulimit -v`, `-d` or `-l`)")
        .into())
}

/// The patterns of a link that a module's functions may match.
fn patterns_of<'s>(selection: &'s Selection, module: &Module) -> Option<InModule<'s>> {
    selection.module(&module.path().to_string_lossy(), module.is_main(), is_own(module))
}

/// Lists the functions of modules that a link means, and their cookies; a module whose symbols
/// cannot be read has none.
pub(super) fn select(
    selection: &Selection,
    spec: &LinkSpec,
    modules: &[&Arc<Module>],
) -> (Vec<Function>, Vec<u64>) {
    let (mut all, mut cookies) = (Vec::new(), Vec::new());
    for module in modules {
        let Some(patterns) = patterns_of(selection, module) else { continue };
        let linked_in = module.is_main() && has_this_code(module);
        let mut functions = module.functions().unwrap_or_default();
        let mut places = Vec::new();
        // There may be a million: those that are meant stay where they are.
        functions.retain(|f| {
            if linked_in && is_part_of_skep(f.name()) {
                return false;
            }
            for (at, offset) in patterns.places(f.name(), f.aliases()) {
                places.extend(spec.include.get(at).map(|target| (f.at(offset), target.cookie)));
            }
            let target =
                patterns.function(f.name(), f.aliases()).and_then(|at| spec.include.get(at));
            cookies.extend(target.map(|target| target.cookie));
            target.is_some()
        });
        functions.shrink_to_fit();
        if all.is_empty() {
            all = functions;
        } else {
            all.append(&mut functions);
        }
        for (place, cookie) in places {
            all.push(place);
            cookies.push(cookie);
        }
    }
    (all, cookies)
}

/// Tells whether a module is the library with the agent: not worth a word, unless it is asked for by
/// name. A program that this code is linked into is a module like others.
fn is_own(module: &Module) -> bool {
    !module.is_main() && has_this_code(module)
}

fn has_this_code(module: &Module) -> bool {
    let here = has_this_code as *const () as u64;
    module.text().iter().any(|t| t.contains(&here))
}

/// Tells by the symbol whether a function is of the crates that run inside events: hooked, it would
/// be an event of its own.
fn is_part_of_skep(symbol: &str) -> bool {
    const CRATES: [&str; 9] =
        ["attach", "helpers", "isa", "maps", "proc", "runtime", "store", "sys", "vm"];
    symbol.match_indices("skep_").any(|(at, prefix)| {
        let rest = symbol.get(at + prefix.len()..).unwrap_or_default();
        CRATES.iter().any(|name| rest.starts_with(name))
    })
}

#[cfg(test)]
mod tests {
    use super::is_part_of_skep;

    #[test]
    fn symbols_of_the_event_path_are_known() {
        assert!(is_part_of_skep("_ZN12skep_runtime3run7tracing17h0123456789abcdefE"));
        assert!(is_part_of_skep("_RNvNtCs1234_11skep_attach6engine5start"));
        assert!(!is_part_of_skep("_ZN7library12library_told17h0123456789abcdefE"));
        assert!(!is_part_of_skep("skep_get_func_sp"));
    }
}
