//! Opening and compiling what a link runs.

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;

use skep_helpers::clock;
use skep_maps::{Access, Map, slots::SlotTable};
use skep_store::dir::{Dir, Kind};
use skep_store::link::{Cookie, LinkSpec, attach_type, control};
use skep_store::prog::ProgramFile;

use super::AgentError;
use crate::memory;
use crate::run::{DetachFn, ReadyError, Running};

/// Opens and compiles the programs of a link, for functions with indexes below `room`. `detach`
/// takes the link's hooks out once it is off.
pub(super) fn load(
    dir: &Dir,
    spec: &LinkSpec,
    room: u32,
    detach: DetachFn,
) -> Result<Vec<Running>, AgentError> {
    memory::guard();
    SlotTable::open_or_create(dir.path())?.install();
    let mut maps: HashMap<u32, Arc<Map>> = HashMap::new();
    let mut open = |id: u32| -> Result<Arc<Map>, AgentError> {
        if let Some(map) = maps.get(&id) {
            return Ok(Arc::clone(map));
        }
        let path = dir.object(Kind::Map, id);
        let mut map = None;
        if spec.cookie == Cookie::Index {
            // Those with an element for each function of the link need no more elements than there
            // are functions.
            map = Some(Map::open_first(&path, Access::ReadWrite, room)?)
                .filter(|m| m.def().max_entries == spec.max_functions);
        }
        let map = Arc::new(map.map_or_else(|| Map::open(&path, Access::ReadWrite), Ok)?);
        maps.insert(id, Arc::clone(&map));
        Ok(map)
    };
    let control_map = open(spec.control)?;
    if !control::is_control_map(&control_map) {
        return Err(ReadyError::Control.into());
    }
    memory::count_in(Box::leak(Box::new(Arc::clone(&control_map))));
    let word = |i| control::word(&control_map, i).load(Relaxed);
    clock::start(word(control::RATE));
    if let Ok(id @ 1..) = u32::try_from(word(control::LOG)) {
        skep_helpers::set_log(Box::leak(Box::new(open(id)?)));
    }
    let mut all = Vec::with_capacity(spec.programs.len());
    for program in &spec.programs {
        let file = ProgramFile::open(dir, program.id)?;
        let maps = file.program().maps().iter().map(|id| open(*id)).collect::<Result<_, _>>()?;
        let verified_for = attach_type::of(file.program());
        if verified_for != Some((program.attach_type, program.context)) {
            let name = file.program().name();
            return Err(format!("the link does not run program `{name}` as it was verified").into());
        }
        all.push(Running::new(file, maps, Arc::clone(&control_map), detach)?);
    }
    Ok(all)
}
