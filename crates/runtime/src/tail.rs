//! Tail calls: the programs that program arrays lead to, found and compiled by the process that
//! runs them.
//!
//! An array holds ids, and other processes may change it at any time. [`TailCalls`] belongs to one
//! program that is about to run, holds a table for each array it can come by
//! ([`skep_vm::tail::Table`]), and all programs those lead to. They are opened with it; one that is
//! stored later is opened at the first tail call that meets it, as inner maps are.
//!
//! What code holds as the map ([`MapRef::handle`]) is therefore the address of this side of the
//! array: the same array leads elsewhere from a program of another type, or for the interpreter, in
//! the same process.
//!
//! A program that takes another context than the first would misread it. So a tail call goes on
//! only in a program of the same type, one on functions if the first is, and a session only behind
//! a session. To any other it falls through.

use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU32, Ordering::Acquire};
use std::sync::{Arc, Mutex, PoisonError};

use skep_helpers::Lookup;
use skep_isa::{AttachType, MapType, ProgramType, ShapeKind};
use skep_maps::{Access, Map};
use skep_vm::{Code, Env, MapRef, interp, tail};

use crate::prepare::{expect_bad_loads, map_ref};
use crate::vectors::keep_vectors;
use skep_store::dir::Dir;
use skep_store::link::attach_type;
use skep_store::prog::{Program, ProgramFile, WithMaps};

/// Which forms of a program are wanted.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Form {
    /// Machine code.
    Code,
    /// What the interpreter runs.
    Interp,
}

/// All programs that one program may reach by tail calls.
#[derive(Debug)]
pub struct TailCalls {
    root: PathBuf,
    prog_type: ProgramType,
    takes: Takes,
    form: Form,
    helpers: Lookup,
    state: Mutex<State>,
}

#[derive(Debug, Default)]
struct State {
    /// Every map in use, so that each is open once.
    maps: Vec<Arc<Map>>,
    #[allow(clippy::vec_box, reason = "the helper and generated code have their addresses")]
    arrays: Vec<Box<Array>>,
    targets: Vec<Arc<tail::Target>>,
    /// Programs that cannot be opened or compiled, so that not every tail call tries again.
    refused: Vec<u32>,
    files: Vec<ProgramFile>,
}

/// What a program counts on in its context besides its type.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Takes {
    /// The frame of a function, or registers.
    Plain,
    /// The word that sessions keep between their two runs, besides.
    Session,
    /// Another kind of context of the same program type.
    Other(AttachType),
}

impl Takes {
    fn of(program: &Program) -> Self {
        match (attach_type::of(program), program.prog_type(), program.attach_type()) {
            _ if attach_type::is_session(program) => Self::Session,
            (None, ProgramType::Tracing, Some(attach)) => Self::Other(attach),
            _ => Self::Plain,
        }
    }

    /// Tells whether a program that counts on `other` can go on in a context that has this.
    fn has(self, other: Self) -> bool {
        self == other || (self == Self::Session && other == Self::Plain)
    }
}

/// One program array.
#[derive(Debug)]
struct Array {
    of: *const TailCalls,
    map: Arc<Map>,
    table: tail::Table,
}

// SAFETY: `of` is only followed while its owner lives (see `Drop`), and what it leads to is behind
// a lock.
unsafe impl Send for Array {}
// SAFETY: as above.
unsafe impl Sync for Array {}

impl TailCalls {
    /// Prepares the tail calls of a program, whose targets find helpers in a table; `None` when it has no program array.
    pub fn of(verified: WithMaps<'_>, form: Form, helpers: Lookup) -> Option<Box<Self>> {
        let (program, maps) = (verified.program(), verified.maps());
        let first = maps.iter().find(|m| is_array(m))?;
        let root = first.file().path().ancestors().nth(2).unwrap_or(Path::new("/")).to_owned();
        let state = State { maps: maps.to_vec(), ..State::default() };
        let calls = Box::new(Self {
            root,
            prog_type: program.prog_type(),
            takes: Takes::of(program),
            form,
            helpers,
            state: Mutex::new(state),
        });
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
    pub fn map_ref(&self, map: &Arc<Map>) -> MapRef {
        let state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        reference(&state, map)
    }

    /// Makes the table of an array.
    fn add(&self, state: &mut State, map: &Arc<Map>) {
        if state.arrays.iter().any(|a| Arc::ptr_eq(&a.map, map)) {
            return;
        }
        let array = Box::new(Array {
            of: self,
            map: Arc::clone(map),
            table: tail::Table::new(map.def().max_entries),
        });
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

    /// Finds or opens the program with an id and puts it into a row; returns what the engines
    /// continue with.
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
        let program = file.program();
        if program.prog_type() != self.prog_type || !self.takes.has(Takes::of(program)) {
            return None;
        }
        let mut maps = Vec::new();
        for id in program.maps() {
            maps.push(self.map(state, *id)?);
        }
        program.with_maps(&maps).ok()?;
        expect_bad_loads(program).ok()?;
        for map in maps.iter().filter(|m| is_array(m)) {
            self.add(state, map);
        }
        let refs: Vec<MapRef> = maps.iter().map(|m| reference(state, m)).collect();
        let helper = |id| (self.helpers)(self.prog_type, id);
        let env = Env { maps: &refs, helper: &helper };
        let (code, interp) = match self.form {
            Form::Code => {
                // SAFETY: the verifier accepted the instructions of a `Program`, and with these
                // maps, which live as long as `self`.
                let mut code = unsafe { Code::compile(program.insns(), &env) }.ok()?;
                crate::profile::announce(program, &mut code);
                (Some(code), None)
            }
            Form::Interp => (None, Some(interp::Program::new(program.insns(), &env).ok()?)),
        };
        let target = Arc::new(tail::Target::new(id, code, interp));
        state.targets.push(Arc::clone(&target));
        state.files.push(file);
        Some(target)
    }

    fn map(&self, state: &mut State, id: u32) -> Option<Arc<Map>> {
        if let Some(map) = state.maps.iter().find(|m| m.id() == id) {
            return Some(Arc::clone(map));
        }
        let map =
            Map::open(&self.root.join("maps").join(id.to_string()), Access::ReadWrite).ok()?;
        let map = Arc::new(map);
        state.maps.push(Arc::clone(&map));
        Some(map)
    }
}

fn is_array(map: &Arc<Map>) -> bool {
    map.def().map_type == MapType::ProgArray
}

fn reference(state: &State, map: &Arc<Map>) -> MapRef {
    let mut r = map_ref(map);
    if let Some(array) = state.arrays.iter().find(|a| Arc::ptr_eq(&a.map, map)) {
        // What `tail_call` is given; no other helper takes a program array.
        r.handle = std::ptr::from_ref::<Array>(array) as u64;
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
    // SAFETY: the row lies in the map's mapping (checked above), is aligned, and is only ever used
    // as an atomic.
    unsafe { (*at).load(Acquire) }
}

/// `bpf_tail_call`, where the array's table does not tell: returns the target to continue with, or
/// 0.
///
/// # Safety
/// `handle` is the address of an `Array`, as `reference` gave it to the program that is
/// running, whose [`TailCalls`] lives.
pub unsafe extern "C" fn tail_call(_ctx: u64, handle: u64, index: u64, _: u64, _: u64) -> u64 {
    struct Call {
        array: *const Array,
        index: u32,
        target: u64,
    }
    unsafe extern "C" fn resolve(call: *const Call) {
        // SAFETY: the call below, on the stack, which may be written to; its array lives as long as
        // the program that is running.
        let (call, array) = unsafe { (&mut *call.cast_mut(), &*(*call).array) };
        let id = id_in(&array.map, call.index);
        if id == 0 {
            return;
        }
        // SAFETY: arrays lie in the state of their owner, which keeps its address.
        let calls = unsafe { &*array.of };
        let Ok(mut state) = calls.state.try_lock() else { return };
        let place = state.arrays.iter().position(|a| std::ptr::eq(&raw const **a, call.array));
        if let Some(place) = place {
            call.target = calls.resolve(&mut state, place, call.index, id);
        }
    }
    let mut call = Call { array: handle as *const Array, index: index as u32, target: 0 };
    // SAFETY: `resolve` is called with what it takes; vector registers are kept.
    unsafe { keep_vectors(resolve, (&raw mut call).cast_const()) };
    call.target
}
