//! Tail calls: the programs that program arrays lead to, found and compiled by the process that runs them.
//!
//! An array holds ids, and other processes may change it at any time. [`TailCalls`] belongs to one program that is about to run,
//! holds a table for each array it can come by ([`skep_vm::tail::Table`]), and all programs those lead to. They are opened with
//! it; one that is stored later is opened at the first tail call that meets it, as inner maps are.
//!
//! A program of another type than the first would misread its context, so a tail call to it falls through.

use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicPtr, AtomicU32, AtomicU64, Ordering::Acquire, Ordering::Relaxed, Ordering::Release};
use std::sync::{Arc, Mutex, PoisonError};

use skep_isa::{MapType, ProgramType, ShapeKind};
use skep_maps::{Access, Map};
use skep_vm::{Code, Env, MapRef, interp, tail};

use crate::dir::Dir;
use crate::prog::{Program, ProgramFile};
use crate::run::{keep_vectors, map_ref};

/// Most program arrays that are in use in a process at a time; tail calls through others fall through.
const MAX_ARRAYS: usize = 256;

/// Where the helper finds an array by the address of its map.
struct Known {
    handle: AtomicU64,
    array: AtomicPtr<Array>,
}

static KNOWN: [Known; MAX_ARRAYS] =
    [const { Known { handle: AtomicU64::new(0), array: AtomicPtr::new(std::ptr::null_mut()) } }; MAX_ARRAYS];

/// Which forms of a program are wanted.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Form {
    /// Machine code.
    Code,
    /// What the interpreter runs.
    #[cfg_attr(not(feature = "loader"), allow(dead_code, reason = "targets only run machine code"))]
    Interp,
}

/// All that one program may come by through tail calls.
#[derive(Debug)]
pub(crate) struct TailCalls {
    root: PathBuf,
    prog_type: ProgramType,
    form: Form,
    state: Mutex<State>,
}

#[derive(Debug, Default)]
struct State {
    /// Every map in use, so that each is open once.
    maps: Vec<Arc<Map>>,
    #[allow(clippy::vec_box, reason = "the helper and generated code have their addresses")]
    arrays: Vec<Box<Array>>,
    targets: Vec<Arc<tail::Target>>,
    /// Programs that cannot be had, so that not every tail call tries again.
    refused: Vec<u32>,
    files: Vec<ProgramFile>,
}

/// One program array.
#[derive(Debug)]
struct Array {
    of: *const TailCalls,
    map: Arc<Map>,
    table: tail::Table,
}

// SAFETY: `of` is only followed while its owner lives (see `Drop`), and what it leads to is behind a lock.
unsafe impl Send for Array {}
// SAFETY: as above.
unsafe impl Sync for Array {}

impl TailCalls {
    /// Prepares the tail calls of a program with these maps; `None` when it has no program array.
    pub(crate) fn of(program: &Program, maps: &[Arc<Map>], form: Form) -> Option<Box<Self>> {
        let first = maps.iter().find(|m| is_array(m))?;
        let root = first.file().path().ancestors().nth(2).unwrap_or(Path::new("/")).to_owned();
        let state = State { maps: maps.to_vec(), ..State::default() };
        let calls = Box::new(Self { root, prog_type: program.prog_type, form, state: Mutex::new(state) });
        {
            let mut state = calls.state.lock().unwrap_or_else(PoisonError::into_inner);
            for map in maps.iter().filter(|m| is_array(m)) {
                calls.add(&mut state, map);
            }
            calls.open_all(&mut state);
        }
        Some(calls)
    }

    /// Tells the engines where a map is, program arrays with their tables.
    pub(crate) fn map_ref(&self, map: &Arc<Map>) -> MapRef {
        let state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        reference(&state, map)
    }

    /// Makes the table of an array.
    fn add(&self, state: &mut State, map: &Arc<Map>) {
        if state.arrays.iter().any(|a| Arc::ptr_eq(&a.map, map)) {
            return;
        }
        let array = Box::new(Array { of: self, map: Arc::clone(map), table: tail::Table::new(map.def().max_entries) });
        let handle = Arc::as_ptr(map) as u64;
        let free = KNOWN.iter().find(|k| k.handle.compare_exchange(0, 1, Relaxed, Relaxed).is_ok());
        if let Some(known) = free {
            known.array.store(std::ptr::from_ref(&*array).cast_mut(), Relaxed);
            // Pairs with the Acquire in `tail_call`.
            known.handle.store(handle, Release);
        }
        state.arrays.push(array);
    }

    /// Opens every program that is in an array, and those in the arrays of these programs.
    fn open_all(&self, state: &mut State) {
        let mut done = 0;
        while let Some(array) = state.arrays.get(done) {
            let (map, slots) = (Arc::clone(&array.map), array.map.def().max_entries);
            for index in 0..slots {
                self.resolve(state, done, index, id_in(&map, index));
            }
            done += 1;
        }
    }

    /// Finds or opens the program with an id and puts it into a row; returns what the engines continue with.
    fn resolve(&self, state: &mut State, array: usize, index: u32, id: u32) -> u64 {
        if id == 0 || state.refused.contains(&id) {
            return 0;
        }
        let target = match state.targets.iter().find(|t| t.id() == id) {
            Some(target) => Arc::clone(target),
            None => match self.open(state, id) {
                Some(target) => target,
                None => {
                    state.refused.push(id);
                    return 0;
                }
            },
        };
        if let Some(array) = state.arrays.get(array) {
            array.table.set(index, &target);
        }
        target.address()
    }

    /// Opens and compiles a program.
    fn open(&self, state: &mut State, id: u32) -> Option<Arc<tail::Target>> {
        let file = ProgramFile::open(&Dir::open(&self.root).ok()?, id).ok()?;
        if file.program.prog_type != self.prog_type {
            return None;
        }
        let mut maps = Vec::new();
        for id in &file.program.maps {
            maps.push(self.map(state, *id)?);
        }
        for map in maps.iter().filter(|m| is_array(m)) {
            self.add(state, map);
        }
        let refs: Vec<MapRef> = maps.iter().map(|m| reference(state, m)).collect();
        let helper = |id| crate::helpers::implementation(self.prog_type, id);
        let env = Env { maps: &refs, helper: &helper };
        let (code, program) = match self.form {
            Form::Code => {
                // SAFETY: a program file holds only instructions the verifier accepted with these maps, which live as long as `self`.
                let mut code = unsafe { Code::compile(&file.program.insns, &env) }.ok()?;
                crate::profile::announce(&file.program, &mut code);
                (Some(code), None)
            }
            Form::Interp => (None, Some(interp::Program::new(&file.program.insns, &env).ok()?)),
        };
        let target = Arc::new(tail::Target::new(id, code, program));
        state.targets.push(Arc::clone(&target));
        state.files.push(file);
        Some(target)
    }

    fn map(&self, state: &mut State, id: u32) -> Option<Arc<Map>> {
        if let Some(map) = state.maps.iter().find(|m| m.id() == id) {
            return Some(Arc::clone(map));
        }
        let map = Map::open(&self.root.join("maps").join(id.to_string()), Access::ReadWrite).ok()?;
        let map = Arc::new(map);
        state.maps.push(Arc::clone(&map));
        Some(map)
    }
}

impl Drop for TailCalls {
    fn drop(&mut self) {
        let state = self.state.get_mut().unwrap_or_else(PoisonError::into_inner);
        for array in &state.arrays {
            let at = std::ptr::from_ref(&**array).cast_mut();
            for known in KNOWN.iter().filter(|k| k.array.load(Relaxed) == at) {
                known.array.store(std::ptr::null_mut(), Relaxed);
                known.handle.store(0, Release);
            }
        }
    }
}

fn is_array(map: &Arc<Map>) -> bool {
    map.def().map_type == MapType::ProgArray
}

fn reference(state: &State, map: &Arc<Map>) -> MapRef {
    let mut r = map_ref(map);
    if let Some(array) = state.arrays.iter().find(|a| Arc::ptr_eq(&a.map, map)) {
        r.shape.kind = ShapeKind::ProgArray { targets: array.table.address() };
    }
    r
}

/// The id in a row of a program array; 0 for none.
fn id_in(map: &Map, index: u32) -> u32 {
    let shape = map.shape();
    if index >= shape.entries {
        return 0;
    }
    let at = (shape.base + u64::from(index) * shape.stride) as *const AtomicU32;
    // SAFETY: the row lies in the map's mapping (checked above), is aligned, and is only ever used as an atomic.
    unsafe { (*at).load(Acquire) }
}

/// `bpf_tail_call`, where the array's table does not tell: returns the target to continue with, or 0.
pub(crate) unsafe extern "C" fn tail_call(_ctx: u64, handle: u64, index: u64, _: u64, _: u64) -> u64 {
    struct Call {
        array: *const Array,
        index: u32,
        target: u64,
    }
    unsafe extern "C" fn resolve(call: *mut Call) {
        // SAFETY: the call below, on the stack; its array lives as long as the program that is running.
        let (call, array) = unsafe { (&mut *call, &*(*call).array) };
        let id = id_in(&array.map, call.index);
        if id == 0 {
            return;
        }
        // SAFETY: arrays lie in the state of their owner, which removes them from `KNOWN` before it goes.
        let calls = unsafe { &*array.of };
        let Ok(mut state) = calls.state.try_lock() else { return };
        let place = state.arrays.iter().position(|a| std::ptr::eq(&raw const **a, call.array));
        if let Some(place) = place {
            call.target = calls.resolve(&mut state, place, call.index, id);
        }
    }
    for known in &KNOWN {
        // Pairs with the Release in `TailCalls::add`.
        if known.handle.load(Acquire) == handle {
            let mut call = Call { array: known.array.load(Relaxed), index: index as u32, target: 0 };
            if !call.array.is_null() {
                // SAFETY: `resolve` is called with the pair it takes; vector registers are kept.
                unsafe { keep_vectors(resolve, &raw mut call) };
            }
            return call.target;
        }
    }
    0
}
