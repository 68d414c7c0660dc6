//! Making links: from a program and its section to a link file and its control map.

use std::sync::atomic::Ordering::Relaxed;

use skep_isa::MapType;
use skep_maps::{Access, Map};

use skep_store::dir::{Dir, Kind};
use skep_store::link::{attach_type, control};
use skep_store::prog::ProgramFile;

pub use skep_store::link::{
    AgentRecord, Context, Cookie, ENTRY_ONLY, FunctionAttachType, FunctionRecord, LinkFile,
    LinkProbe, LinkProgram, LinkSpec, LinkState, LinkTarget, MappedModule, Pattern, PatternError,
    Selection, Types, Untraced, pattern,
};

use crate::cgroup::memory_left;
use crate::load::definition::own_map;
use crate::load::{LoadError, LoadedProgram};
use crate::targets::listed;

/// Tells why a program cannot be linked to functions.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum AttachError {
    /// Its section is for something else.
    #[error("program `{program}`: section `{section}` does not attach to functions of a process")]
    Section {
        /// The program.
        program: String,
        /// Its section.
        section: String,
    },
    /// Its section names no function.
    #[error("program `{program}`: section `{section}` names no function")]
    NoTarget {
        /// The program.
        program: String,
        /// Its section.
        section: String,
    },
    /// The link's files cannot be made.
    #[error(transparent)]
    Files(#[from] LoadError),
}

/// A link as its loader holds it.
#[derive(Debug)]
pub struct Link {
    file: LinkFile,
    control: Map,
    /// Those of a link that was made here, with their maps, if nobody else keeps them: until they are pinned,
    /// they would be garbage to other processes.
    _programs: Vec<(ProgramFile, Vec<Map>)>,
}

/// Reads the functions a section names: patterns, separated by commas.
fn targets(program: &str, section: &str, target: Option<&str>) -> Result<Vec<String>, AttachError> {
    let list = listed(target);
    if list.is_empty() {
        return Err(AttachError::NoTarget {
            program: program.to_owned(),
            section: section.to_owned(),
        });
    }
    Ok(list)
}

fn kind_of(
    kind: Option<(FunctionAttachType, Context)>,
    program: &str,
    section: &str,
) -> Result<(FunctionAttachType, Context), AttachError> {
    kind.ok_or_else(|| AttachError::Section {
        program: program.to_owned(),
        section: section.to_owned(),
    })
}

/// Tells whether the section of an object's program says which functions it attaches to.
///
/// # Errors
/// When it does not attach to functions, or names none.
pub fn names_functions(program: &skep_object::Program) -> Result<(), AttachError> {
    let (name, section) = (&program.name, program.section_meant());
    let kind = program.def.and_then(|d| attach_type::of_section(d.prog, d.attach, section));
    kind_of(kind, name, section)?;
    targets(name, section, program.target.as_deref()).map(|_| ())
}

/// Describes the link that a program's section asks for.
///
/// # Errors
/// When the section does not attach to functions, or names none and `patterns` is empty.
pub fn describe(program: &LoadedProgram, patterns: &[String]) -> Result<LinkSpec, AttachError> {
    let p = program.program();
    let (name, section) = (p.name(), p.section());
    let (attach_type, context) = kind_of(attach_type::of(p), name, section)?;
    let named;
    let include = if patterns.is_empty() {
        named = targets(name, section, program.target())?;
        &named
    } else {
        patterns
    };
    Ok(LinkSpec {
        programs: vec![LinkProgram { id: program.id(), attach_type, context }],
        control: 0,
        cookie: Cookie::Target,
        entry_only: false,
        max_functions: 1 << 20,
        by_function: Vec::new(),
        include: LinkTarget::all(include),
        exclude: Vec::new(),
    })
}

/// Calls in which a link's program did not run.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
#[non_exhaustive]
pub struct Missed {
    /// The thread was already running a program: made by a signal handler that interrupted it, or
    /// by the program's own helpers.
    pub inside: u64,
    /// The stack had no room for a frame that waits for the return.
    pub stack: u64,
    /// The thread could not be registered: no memory, or a child of `vfork` whose parent was never
    /// traced.
    pub thread: u64,
    /// More threads than slots, and the holder of the shared slot was stopped.
    pub slots: u64,
    /// Made by processes that were forked into another pid namespace: they stay out of maps.
    pub namespace: u64,
}

impl Missed {
    /// Adds all reasons up.
    #[must_use]
    pub const fn total(self) -> u64 {
        self.inside
            .saturating_add(self.stack)
            .saturating_add(self.thread)
            .saturating_add(self.slots)
            .saturating_add(self.namespace)
    }
}

impl Link {
    /// Makes the link: targets started from now on attach it.
    ///
    /// # Errors
    /// When its files cannot be made.
    pub fn create(dir: &Dir, spec: LinkSpec, log: Option<&Map>) -> Result<Self, LoadError> {
        let programs = spec.programs.iter().map(|program| {
            let file = ProgramFile::open(dir, program.id).map_err(skep_store::Error::from)?;
            let maps = file.program().maps().iter().map(|id| open(dir, *id, file.program().name()));
            let maps = maps.collect::<Result<_, LoadError>>()?;
            Ok((file, maps))
        });
        let programs = programs.collect::<Result<_, LoadError>>()?;
        Ok(Self { _programs: programs, ..Self::create_beside(dir, spec, log)? })
    }

    /// As [`create`](Self::create), by somebody who has the programs loaded for as long as the link is
    /// there.
    pub(crate) fn create_beside(
        dir: &Dir,
        spec: LinkSpec,
        log: Option<&Map>,
    ) -> Result<Self, LoadError> {
        let control = own_map(dir, CONTROL, MapType::Array, control::WORDS, 8)?;
        control::word(&control, control::RATE)
            .store(skep_helpers::clock::rate(crate::CLOCK_SPAN), Relaxed);
        control::word(&control, control::LOG).store(log.map_or(0, |m| u64::from(m.id())), Relaxed);
        let memory = memory_left(std::process::id()).map_or(0, |left| left.max(1));
        control::word(&control, control::MEMORY).store(memory, Relaxed);
        control::word(&control, control::STATE).store(control::ON, Relaxed);
        let file = LinkFile::create(dir, &LinkSpec { control: control.id(), ..spec })?;
        Ok(Self { file, control, _programs: Vec::new() })
    }

    /// Asks the targets to say where their modules lie ([`LinkState::mapped`]), before the first of
    /// them starts.
    ///
    /// # Errors
    /// When the link's file cannot be written.
    pub fn want_mapped(&self) -> Result<(), skep_store::RecordError> {
        self.file.want_mapped()
    }

    /// Tells targets what is known of functions for the program with this place in the link: to be
    /// called before the first of them starts.
    ///
    /// # Errors
    /// When the link's file cannot be written.
    pub fn tell(&self, program: usize, types: &Types) -> Result<(), skep_store::RecordError> {
        if types.is_empty() { Ok(()) } else { self.file.tell(program, types) }
    }

    /// Adds probes to attach to, before the first target looks ([`crate::usdt`]).
    ///
    /// # Errors
    /// When the link's file cannot be written.
    pub fn add_probes(&self, probes: &[LinkProbe]) -> Result<(), skep_store::RecordError> {
        if probes.is_empty() { Ok(()) } else { self.file.add_probes(probes) }
    }

    /// Opens a link that another process made, to read what is in it.
    ///
    /// # Errors
    /// When there is none, or its files are damaged.
    pub fn open(dir: &Dir, id: u32) -> Result<Self, LoadError> {
        let file = LinkFile::open(dir, id).map_err(skep_store::Error::from)?;
        let control = file.read().map_err(skep_store::Error::from)?.spec.control;
        let control = open(dir, control, CONTROL)?;
        if !control::is_control_map(&control) {
            let what = "the control map of a link has other elements";
            let source = skep_maps::MapError::Damaged { what };
            return Err(LoadError::Map { name: CONTROL.to_owned(), source });
        }
        Ok(Self { file, control, _programs: Vec::new() })
    }

    /// Returns the link's id.
    #[must_use]
    pub fn id(&self) -> u32 {
        self.file.id
    }

    /// Returns the id of its control map.
    pub(crate) fn control(&self) -> u32 {
        self.control.id()
    }

    /// Detaches the link from all processes: its program does not run any more. Each takes its hooks
    /// out at the next event.
    pub fn detach(&self) {
        control::word(&self.control, control::STATE).store(control::OFF, Relaxed);
    }

    /// Returns in how many calls the program did not run, by reason.
    #[must_use]
    pub fn missed(&self) -> Missed {
        let count = |n: u32| control::word(&self.control, control::MISSED + n).load(Relaxed);
        Missed {
            inside: count(0),
            stack: count(1),
            thread: count(2),
            slots: count(3),
            namespace: count(4),
        }
    }

    /// Returns how many pages of maps the file system had no room for; what was counted there is
    /// lost.
    #[must_use]
    pub fn lost_pages(&self) -> u64 {
        control::word(&self.control, control::LOST_PAGES).load(Relaxed)
    }

    /// Reads the clock as `bpf_get_cpu_time_counter` does in the link's programs.
    #[must_use]
    pub fn counter(&self) -> u64 {
        skep_helpers::clock::counter_at(control::word(&self.control, control::RATE).load(Relaxed))
    }

    /// Converts a difference of `bpf_get_cpu_time_counter` values to nanoseconds.
    #[must_use]
    pub fn nanos(&self, ticks: u64) -> u64 {
        skep_helpers::clock::scale(ticks, control::word(&self.control, control::RATE).load(Relaxed))
    }

    /// Reads what all processes said.
    ///
    /// # Errors
    /// When the file cannot be read.
    pub fn read(&self) -> Result<LinkState, skep_store::RecordError> {
        self.file.read()
    }
}

/// The name of control maps.
const CONTROL: &str = "skep.link";

/// Opens a map of a link, or of the program with this name.
fn open(dir: &Dir, id: u32, name: &str) -> Result<Map, LoadError> {
    let failed = |source| LoadError::Map { name: name.to_owned(), source };
    Map::open(&dir.object(Kind::Map, id), Access::ReadWrite).map_err(failed)
}

/// Makes the ring buffer for `bpf_trace_printk`, of `size` bytes (a power of two).
///
/// # Errors
/// When it cannot be made.
pub fn create_log(dir: &Dir, size: u32) -> Result<Map, LoadError> {
    own_map(dir, "skep.log", MapType::Ringbuf, size, 0)
}
