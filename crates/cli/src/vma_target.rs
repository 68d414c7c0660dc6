//! Whose mappings `skep vma` asks about.

use std::sync::Arc;

use skep_proc::maps::{self, BuildIds, MapSource, MapsError, PerfData, Process, Saved, Snapshot};
use skep_proc::module;
use skep_proc::symbolize::{AddressSpace, OutsideNames};

use crate::args::TargetArgs;
use crate::failure::{Context, Failure, Result};

/// A live process, or saved mappings.
pub enum Target {
    Process(Process),
    Saved(Snapshot),
}

impl Target {
    /// Opens a process by its number, anything else as a file.
    pub fn open(args: &TargetArgs) -> Result<Self> {
        if let Ok(pid) = args.target.parse() {
            return match Process::open(pid) {
                Ok(process) => {
                    let known = Arc::new(BuildIds::default().on_disk());
                    Ok(Self::Process(process.with_build_ids(known)))
                }
                Err(MapsError::Ended { .. }) => {
                    Err(Failure::failed(format!("there is no process `{pid}`")))
                }
                Err(error) => Err(failure(error)),
            };
        }
        match maps::open(&args.target).context(format!("cannot read `{}`", args.target))? {
            Saved::Recording(recording) => one_of(&recording, args),
            Saved::One(snapshot) => Ok(Self::Saved(snapshot)),
            _ => Err(Failure::environment(format!("`{}` is of an unknown kind", args.target))),
        }
    }

    /// The mappings.
    pub fn source(&self) -> &dyn MapSource {
        match self {
            Self::Process(process) => process,
            Self::Saved(snapshot) => snapshot,
        }
    }

    /// The files whose symbols name the functions there; of saved mappings those that are found
    /// under their names here.
    pub fn space(&self) -> Option<AddressSpace> {
        match self {
            Self::Process(process) => {
                let space = AddressSpace::of_modules(module::of(process.pid()).ok()?);
                Some(space.with_outside(OutsideNames::of_process(process.pid())))
            }
            Self::Saved(snapshot) => Some(AddressSpace::of_modules(module::saved(snapshot))),
        }
    }
}

/// The process that is meant; one need not say which if there is only one besides the kernel.
fn one_of(recording: &PerfData, args: &TargetArgs) -> Result<Target> {
    let file = &args.target;
    if let Some(pid) = args.pid {
        return match recording.process(pid)? {
            Some(process) => Ok(Target::Saved(process.snapshot)),
            None => Err(Failure::failed(format!("`{file}` says nothing of process `{pid}`"))),
        };
    }
    let (mut only, mut names) = (None, Vec::new());
    for pid in recording.pids().filter(|pid| *pid as i32 > 0) {
        let Some(process) = recording.process(pid)?.filter(|p| !p.snapshot.vmas().is_empty())
        else {
            continue;
        };
        names.push(format!("{pid} ({})", String::from_utf8_lossy(&process.name)));
        only = Some(process.snapshot);
        if names.len() > 8 {
            names.pop();
            names.push("…".to_owned());
            break;
        }
    }
    match (only, names.len()) {
        (None, _) => Err(Failure::failed(format!("`{file}` has no mappings of a process"))),
        (Some(snapshot), 1) => Ok(Target::Saved(snapshot)),
        _ => Err(Failure::environment(format!("`{file}` has mappings of several processes"))
            .hint(format!("choose one by `--pid`: {}", names.join(", ")))),
    }
}

/// A process that has gone was asked for in vain, any other error is of the machine.
pub fn failure(error: MapsError) -> Failure {
    use MapsError::{Ended, Execed, Gone, KernelThread, NoPermission};
    match error {
        Gone | Ended { .. } | Execed { .. } | KernelThread { .. } => {
            Failure::failed(error.to_string())
        }
        error @ NoPermission { .. } => Failure::from(error).hint(
            "it takes the user of the process, or the right to trace others (`CAP_SYS_PTRACE`)",
        ),
        error => Failure::from(error),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::failure::{ENVIRONMENT, FAILED};

    #[test]
    fn who_may_not_look_is_told_what_it_takes() {
        let refused = failure(MapsError::NoPermission { pid: 7 });
        assert_eq!(refused.status, ENVIRONMENT);
        assert_eq!(refused.message, "no permission to read the mappings of process `7`");
        assert!(refused.hint.is_some_and(|hint| hint.contains("CAP_SYS_PTRACE")));
        assert_eq!(failure(MapsError::KernelThread { pid: 2 }).status, FAILED);
    }
}
