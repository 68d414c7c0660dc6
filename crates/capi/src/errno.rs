//! From errors of the library to error numbers: the kernel's, where it has the same failure.

use skep::isa::ProgramType;
use skep::load::LoadError;
use skep::packets::PacketsError;
use skep::port::PortError;
use skep::process::{Refusal, StopError};
use skep::test_run::RunnerError;
use skep::verifier::Rejection;
use skep::{ChainError, DirError, Error, ProcessError, RecordError};
use skep_proc::launch::LaunchError;

pub use skep::isa::errno::{
    E2BIG, EACCES, EBADF, EBUSY, EEXIST, EFAULT, EINVAL, EIO, ELOOP, EMSGSIZE, ENAMETOOLONG,
    ENODEV, ENOENT, ENOEXEC, ENOSPC, EOPNOTSUPP, EPERM, ESRCH,
};

use crate::call::Failure;

impl From<Error> for Failure {
    fn from(e: Error) -> Self {
        let log = match &e {
            Error::Load(LoadError::Rejected(rejection)) => log(rejection),
            _ => String::new(),
        };
        Self { errno: number(&e), text: e.to_string(), log }
    }
}

/// The error number of a failure.
pub fn number(e: &Error) -> i32 {
    match e {
        Error::Dir(e) => of_dir(e),
        Error::Record(e) => of_record(e),
        Error::Store(e) => of_store(e),
        Error::Read { source, .. } | Error::Pin { source, .. } => of_io(source),
        Error::Object { .. } | Error::Types { .. } => ENOEXEC,
        Error::NotThere { .. } | Error::NoMap { .. } | Error::NothingAttached { .. } => ENOENT,
        Error::SeveralMaps { .. } => EEXIST,
        Error::Load(e) => of_load(e),
        Error::Map { source, .. } => source.errno(),
        Error::Process { .. } => EPERM,
        Error::InProcess(e) => of_process(e),
        Error::NoAgent { .. } => ENOENT,
        Error::Prototypes { source, .. }
            if matches!(source.downcast_ref(), Some(LaunchError::NotFound { .. })) =>
        {
            ENOENT
        }
        Error::Chain(e) => of_chain(e),
        Error::Runner(e) => of_runner(e),
        Error::TestRun { errno, .. } => errno.0.abs(),
        Error::Packets(PacketsError::Port(e)) => of_port(&e.source),
        Error::Packets(PacketsError::Run { errno, .. }) => errno.0.abs(),
        // The caller asked for what does not go together.
        _ => EINVAL,
    }
}

fn of_io(e: &std::io::Error) -> i32 {
    // What the standard library or we refuse has no number.
    let own = if e.kind() == std::io::ErrorKind::InvalidInput { EINVAL } else { EIO };
    e.raw_os_error().unwrap_or(own)
}

impl From<PortError> for Failure {
    fn from(e: PortError) -> Self {
        Self::new(of_port(&e), e.to_string())
    }
}

fn of_port(e: &PortError) -> i32 {
    match e {
        PortError::NotAllowed { .. } => EPERM,
        PortError::NoInterface { .. } | PortError::Down { .. } => ENODEV,
        PortError::Call { source, .. } => of_io(source),
        _ => EIO,
    }
}

fn of_dir(e: &DirError) -> i32 {
    if let DirError::Io { source, .. } = e { of_io(source) } else { EPERM }
}

fn of_record(e: &RecordError) -> i32 {
    match e {
        RecordError::Io { source, .. } => of_io(source),
        RecordError::Busy { .. } => EBUSY,
        RecordError::Owner { .. } | RecordError::Mode { .. } => EPERM,
        _ => EIO,
    }
}

fn of_process(e: &ProcessError) -> i32 {
    match e {
        ProcessError::Read { source, .. } | ProcessError::Os { source, .. } => of_io(source),
        ProcessError::Library { .. }
        | ProcessError::Symbol { .. }
        | ProcessError::Stop { source: StopError::Image { .. }, .. } => ENOEXEC,
        ProcessError::NoId { .. }
        | ProcessError::Stop {
            source: StopError::NoProcess { .. } | StopError::Refused { reason: Refusal::Zombie, .. },
            ..
        } => ESRCH,
        ProcessError::Stop { source: StopError::Refused { .. }, .. }
        | ProcessError::User { .. } => EPERM,
        ProcessError::NoRuntime { .. } => EINVAL,
        ProcessError::Begin { .. } | ProcessError::Attach { .. } => EIO,
        // Later it may go.
        _ => EBUSY,
    }
}

fn of_store(e: &skep::StoreError) -> i32 {
    match e {
        skep::StoreError::Dir(e) => of_dir(e),
        skep::StoreError::Record(e) => of_record(e),
        skep::StoreError::OwnMap { source, .. } => source.errno(),
        _ => EIO,
    }
}

fn of_load(e: &LoadError) -> i32 {
    match e {
        LoadError::Files(e) => of_store(e),
        LoadError::Map { source, .. } => source.errno(),
        LoadError::Pin { source, .. } => of_io(source),
        // What the kernel's verifier answers most often.
        LoadError::Rejected(_) => EACCES,
        LoadError::NoPrograms | LoadError::NoProgram { .. } => ENOENT,
        _ => EINVAL,
    }
}

fn of_runner(e: &RunnerError) -> i32 {
    match e {
        RunnerError::Slots(e) => e.errno(),
        RunnerError::Directory(_) => EBUSY,
        RunnerError::NotLoaded { .. } | RunnerError::Maps { .. } => ENOENT,
        _ => EINVAL,
    }
}

/// The error number of a chain's failure.
fn of_chain(e: &ChainError) -> i32 {
    match e {
        ChainError::NotThere { .. } | ChainError::NotPinned { .. } => ENOENT,
        ChainError::Exists { .. } | ChainError::Pinned { .. } => EEXIST,
        ChainError::Edit(e) => e.errno(),
        ChainError::Call { errno } => errno.abs(),
        ChainError::Record(e) => of_record(e),
        ChainError::Dir(e) => of_dir(e),
        ChainError::Store(e) => of_store(e),
        ChainError::Pin { source, .. } => of_io(source),
        ChainError::Runner(e) => of_runner(e),
        ChainError::TestRun(errno) => errno.0.abs(),
        ChainError::Port(e) => of_port(&e.source),
        ChainError::Stopped { source, .. } => of_chain(source),
        _ => EINVAL,
    }
}

/// Lays out what the verifier says of a rejected program: the reason, what may help, and the
/// shortest path to it.
fn log(rejection: &Rejection) -> String {
    use std::fmt::Write;
    let mut out = format!("{rejection}\n");
    for more in [&rejection.detail, &rejection.hint].into_iter().flatten() {
        // Writing to a string does not fail, here and below.
        writeln!(out, "{more}").ok();
    }
    for step in rejection.path().iter().filter(|step| step.matters) {
        if let Some(line) = &step.line {
            writeln!(out, "; {}:{}: {}", line.file, line.line, line.text.trim()).ok();
        }
        let insn = skep::isa::text::Line { insn: step.code, next: step.next };
        write!(out, "{:>4}: {insn}", step.insn).ok();
        for (n, what) in &step.regs {
            write!(out, " R{n}={what}").ok();
        }
        out.push('\n');
    }
    out
}

/// Finds a program type by the kernel's number.
pub fn program_type(number: u32) -> Result<ProgramType, Failure> {
    ProgramType::from_raw(number)
        .filter(|program_type| *program_type != ProgramType::Unspec)
        .ok_or_else(|| Failure::new(EINVAL, format!("there is no program type {number}")))
}

#[cfg(test)]
mod tests {
    use skep::chain::{EditError, NodeId};
    use skep::maps::MapError;
    use skep::process::ImageError;

    use super::*;

    #[test]
    fn each_family_has_its_numbers() {
        let io = |n| std::io::Error::from_raw_os_error(n);
        let name = || "x".to_owned();
        let map = MapError::Full { max_entries: 1 };
        let stop = |source| Error::from(ProcessError::Stop { pid: 1, source });
        let prototypes = |error| Error::Prototypes { path: name().into(), source: Box::new(error) };
        let cases = [
            (Error::Dir(DirError::Mode { path: "x".into(), mode: 0 }), EPERM),
            (Error::Dir(DirError::Io { call: "open", path: "x".into(), source: io(13) }), EACCES),
            (Error::Read { path: "x".into(), source: io(2) }, ENOENT),
            (Error::Pin { what: "create", name: name(), source: io(17) }, EEXIST),
            (Error::NotThere { kind: "map", name: name(), known: Vec::new() }, ENOENT),
            (Error::SeveralMaps { name: name(), ids: Vec::new() }, EEXIST),
            (Error::Map { map: name(), source: map.clone() }, E2BIG),
            (Error::Load(LoadError::Map { name: name(), source: map }), E2BIG),
            (Error::Load(LoadError::NoPrograms), ENOENT),
            (Error::Process { why: name() }, EPERM),
            (ProcessError::NoId { pid: 0 }.into(), ESRCH),
            (ProcessError::Busy { pid: 1, who: String::new() }.into(), EBUSY),
            (ProcessError::Os { pid: 1, call: "pidfd_open", source: io(3) }.into(), ESRCH),
            (
                stop(StopError::Image { pid: 1, error: ImageError::Import { name: name() } }),
                ENOEXEC,
            ),
            (stop(StopError::Refused { pid: 1, reason: Refusal::Zombie }), ESRCH),
            (stop(StopError::Refused { pid: 1, reason: Refusal::KernelThread }), EPERM),
            (Error::NoAgent { looked_for: Vec::new() }, ENOENT),
            (Error::Chain(ChainError::Exists { name: name() }), EEXIST),
            (Error::Chain(ChainError::Pinned { name: name() }), EEXIST),
            (Error::Chain(EditError::Cycle { path: name() }.into()), ELOOP),
            (Error::Chain(EditError::NoNode { node: NodeId(1) }.into()), ENOENT),
            (
                Error::Chain(ChainError::Pin { what: "create", name: name(), source: io(28) }),
                ENOSPC,
            ),
            (Error::Runner(RunnerError::NotLoaded { program: name() }), ENOENT),
            (prototypes(LaunchError::NotFound { name: name().into() }), ENOENT),
            (prototypes(LaunchError::NotExecutable { path: name().into() }), EINVAL),
            (Error::NoProgram { known: Vec::new() }, EINVAL),
        ];
        for (error, want) in cases {
            let text = error.to_string();
            let failure = Failure::from(error);
            assert_eq!((failure.errno, failure.text.as_str()), (want, text.as_str()));
        }
    }
}
