//! Whose mappings `skep vma` asks about.

use skep_proc::maps::{self, MapSource, MapsError, Process, Saved, Snapshot};
use skep_proc::module;
use skep_proc::symbolize::Symbolizer;

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
                Ok(process) => Ok(Self::Process(process)),
                Err(MapsError::Ended { .. }) => {
                    Err(Failure::failed(format!("there is no process `{pid}`")))
                }
                Err(error) => Err(failure(error)),
            };
        }
        match maps::open(&args.target).context(format!("cannot read `{}`", args.target))? {
            Saved::Recording(processes) => one_of(processes, args),
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

    /// What names the functions there; of saved mappings by the files that are found under their
    /// names here.
    pub fn symbolizer(&self) -> Option<Symbolizer> {
        match self {
            Self::Process(process) => Symbolizer::of(process.pid()).ok(),
            Self::Saved(snapshot) => Some(Symbolizer::new(module::saved(snapshot))),
        }
    }
}

/// The process that is meant; one need not say which if there is only one besides the kernel.
fn one_of(mut processes: Vec<maps::Recorded>, args: &TargetArgs) -> Result<Target> {
    let file = &args.target;
    match args.pid {
        Some(pid) => processes.retain(|p| p.pid == pid),
        None => processes.retain(|p| !p.snapshot.vmas().is_empty() && p.pid as i32 > 0),
    }
    if let [_] = processes.as_slice()
        && let Some(one) = processes.pop()
    {
        return Ok(Target::Saved(one.snapshot));
    }
    if let Some(pid) = args.pid {
        return Err(Failure::failed(format!("`{file}` has no mappings of process `{pid}`")));
    }
    if processes.is_empty() {
        return Err(Failure::failed(format!("`{file}` has no mappings of a process")));
    }
    let name = |p: &maps::Recorded| format!("{} ({})", p.pid, String::from_utf8_lossy(&p.name));
    let names: Vec<String> = processes.iter().take(8).map(name).collect();
    let more = if processes.len() > 8 { ", …" } else { "" };
    Err(Failure::environment(format!("`{file}` has mappings of {} processes", processes.len()))
        .hint(format!("choose one by `--pid`: {}{more}", names.join(", "))))
}

/// A process that has gone was asked for in vain, any other error is of the machine.
pub fn failure(error: MapsError) -> Failure {
    use MapsError::{Ended, Execed, Gone, KernelThread};
    match error {
        Gone | Ended { .. } | Execed { .. } | KernelThread { .. } => {
            Failure::failed(error.to_string())
        }
        error => Failure::from(error),
    }
}
