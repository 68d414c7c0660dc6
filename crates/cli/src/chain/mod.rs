//! `skep chain`: packet programs in sequence, made, changed, shown and tried.

mod attach;
mod bench;
pub mod captured;
mod change;
mod described;
mod dump;
mod edits;
mod explain;
mod file;
mod live;
mod load;
mod maps;
mod run;
mod show;
mod sources;

use std::path::Path;

use skep::Session;
use skep::chain::{Chain, ChainError, UnknownVerdict, Verdicts};

use crate::args::ChainCommand;
use crate::directory;
use crate::failure::{FAILED, Failure, Result};
use crate::printer::Printer;

/// Does what was asked for.
pub fn run(command: &ChainCommand, printer: Printer) -> Result<u8> {
    match command {
        ChainCommand::Create { name, from, prog_type, variables } => match from {
            Some(path) => file::create(name, path, variables, printer),
            None => change::create(name, prog_type, variables, printer),
        },
        ChainCommand::Add { chain, program, place, maps, variables, on, pin } if on.kernel => {
            let (own_maps, pin) = (maps.own_maps, pin.as_deref());
            let how = edits::AddInKernel { place, own_maps, variables, pin };
            edits::add(chain, &on.bpf_fs, program, &how, printer)
        }
        ChainCommand::Add { chain, program, place, maps, variables, .. } => {
            change::add(chain, program, (place, maps, variables), printer)
        }
        ChainCommand::Del { node: None, on, .. } if on.kernel => {
            Err(Failure::environment("no node: which program is to be taken out?")
                .hint("`skep chain detach INTERFACE --kernel` takes the whole chain off"))
        }
        ChainCommand::Del { chain, node: None, .. } => change::delete(chain),
        ChainCommand::Del { chain, node: Some(node), bridge, on } => {
            let edit = change::removal(*node, bridge)?;
            edits::change(chain, on, printer, |_| Ok(edit.clone()))
        }
        ChainCommand::Move { chain, node, place, on } => {
            edits::change(chain, on, printer, |graph| change::moved(graph, *node, place))
        }
        ChainCommand::Connect { chain, from, on: verdicts, to, times, kernel } => {
            let edit =
                change::connection(chain, *from, (verdicts.as_deref(), to.as_deref(), *times))?;
            edits::change(chain, kernel, printer, |_| Ok(edit.clone()))
        }
        ChainCommand::Show { chain, kernel: true, bpf_fs, json, dot, svg } => {
            attach::show(chain, bpf_fs, [*json, *dot, *svg], printer)
        }
        ChainCommand::Attach(args) => attach::attach(args, printer),
        ChainCommand::Detach { interface, bpf_fs, .. } => attach::detach(interface, bpf_fs),
        ChainCommand::Show { chain, json, dot, svg, .. } => {
            show::show(chain, [*json, *dot, *svg], printer)
        }
        ChainCommand::List { kernel: true, format } => attach::list(format.json, printer),
        ChainCommand::List { format, .. } => show::list(format.json, printer),
        ChainCommand::Pin { chain } => open(chain)?.1.pin().map(|()| 0).map_err(failed),
        ChainCommand::Unpin { chain } => change::unpin(chain, printer),
        ChainCommand::Run(args) => run::run(args, printer),
        ChainCommand::Explain(args) => explain::explain(args, printer),
        ChainCommand::Bench(args) => bench::bench(args, printer),
    }
}

/// Tells whether `CHAIN|FILE` means a file or directory: a chain of that name goes before.
fn is_file(text: &str) -> bool {
    let is_path = text.contains('/') || text.ends_with(".toml");
    is_path || Path::new(text).exists() && open(text).is_err()
}

/// Opens a chain of the skep directory.
fn open(chain: &str) -> Result<(Session, Chain)> {
    let session = Session::open_in(directory::open()?.path())?;
    let found = Chain::open(&session, chain).map_err(|e| match e {
        ChainError::NotThere { .. } => {
            Failure { status: FAILED, ..Failure::from(e) }.hint("`skep chain list` shows all")
        }
        e => failed(e),
    })?;
    Ok((session, found))
}

/// What was asked for cannot be: status 1 where the chain says no, 2 where the environment does.
fn failed(error: ChainError) -> Failure {
    let refused = matches!(
        error,
        ChainError::Edit(_)
            | ChainError::Exists { .. }
            | ChainError::Pinned { .. }
            | ChainError::NotPinned { .. }
            | ChainError::Name { .. }
            | ChainError::NotThere { .. }
            | ChainError::Packets(_)
    );
    let failure = Failure::from(error);
    if refused { Failure { status: FAILED, ..failure } } else { failure }
}

/// Reads verdicts of an option.
fn verdicts(text: &str) -> Result<Verdicts> {
    text.parse().map_err(|e: UnknownVerdict| Failure::environment(format!("--on: {e}")))
}
