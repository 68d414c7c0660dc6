//! Opening and compiling what a link runs.

use std::collections::HashMap;
use std::path::PathBuf;
use std::sync::atomic::Ordering::Relaxed;
use std::sync::{Arc, Weak};

use skep_helpers::clock;
use skep_maps::{Access, Map};
use skep_store::dir::{Dir, Kind};
use skep_store::link::{Cookie, LinkSpec, attach_type, control};
use skep_store::prog::ProgramFile;
use skep_sys::Unseeded;

use super::AgentError;
use crate::memory;
use crate::run::{Compiled, DetachFn, ReadyError, Running};

/// The programs that this process has compiled, for as long as links use them.
#[derive(Debug, Default)]
pub(super) struct Cache(HashMap<(PathBuf, u32), Weak<Compiled>, Unseeded>);

impl Cache {
    /// Finds a program of a directory. Ids alone say nothing: there may be another directory of the
    /// same name by now.
    fn find(&self, dir: &Dir, file: &ProgramFile) -> Option<Arc<Compiled>> {
        let known = self.0.get(&(dir.path().to_owned(), file.id()))?.upgrade()?;
        // Its maps have the same generations then, so they are the same maps.
        (known.program() == file.program()).then_some(known)
    }

    fn remember(&mut self, dir: &Dir, id: u32, compiled: &Arc<Compiled>) {
        self.0.retain(|_, known| known.strong_count() > 0);
        self.0.insert((dir.path().to_owned(), id), Arc::downgrade(compiled));
    }
}

/// What a link runs.
pub(super) struct LoadedLink {
    /// In order of the link.
    pub programs: Vec<Running>,
    /// Open and checked.
    pub control_map: Arc<Map>,
}

/// Opens and compiles the programs of a link, for functions with indexes below `room`. `detach`
/// takes the link's hooks out once it is off.
pub(super) fn load(
    dir: &Dir,
    spec: &LinkSpec,
    room: u32,
    detach: DetachFn,
    cache: &mut Cache,
) -> Result<LoadedLink, AgentError> {
    memory::guard();
    // A map with an element for each function of the link needs no more elements than there are
    // functions: such a program is the link's own.
    let shared = spec.cookie != Cookie::Index;
    let mut maps: HashMap<u32, Arc<Map>, Unseeded> = HashMap::default();
    let mut open = |id: u32| -> Result<Arc<Map>, AgentError> {
        if let Some(map) = maps.get(&id) {
            return Ok(Arc::clone(map));
        }
        let elements = if spec.by_function.contains(&id) && !shared { room } else { u32::MAX };
        let path = dir.object(Kind::Map, id);
        let map = Arc::new(Map::open_first(&path, Access::ReadWrite, elements)?);
        maps.insert(id, Arc::clone(&map));
        Ok(map)
    };
    let control_map = open(spec.control)?;
    if !control::is_control_map(&control_map) {
        return Err(ReadyError::Control.into());
    }
    let word = |i| control::word(&control_map, i).load(Relaxed);
    clock::start(word(control::RATE));
    if let Ok(id @ 1..) = u32::try_from(word(control::LOG)) {
        skep_helpers::set_log(Box::leak(Box::new(open(id)?)));
    }
    let mut programs = Vec::with_capacity(spec.programs.len());
    for program in &spec.programs {
        let file = ProgramFile::open(dir, program.id)?;
        let verified_for = attach_type::of(file.program());
        if verified_for != Some((program.attach_type, program.context)) {
            let name = file.program().name();
            return Err(format!("the link does not run program `{name}` as it was verified").into());
        }
        let known = cache.find(dir, &file).filter(|_| shared);
        let compiled = match known {
            Some(known) => known,
            None => {
                let ids = file.program().maps();
                let maps = ids.iter().map(|id| open(*id)).collect::<Result<_, _>>()?;
                let compiled = Arc::new(Compiled::new(file, maps)?);
                if shared {
                    cache.remember(dir, program.id, &compiled);
                }
                compiled
            }
        };
        programs.push(Running::new(compiled, Arc::clone(&control_map), detach)?);
    }
    Ok(LoadedLink { programs, control_map })
}
