//! Changes of one program: in a chain of the skep directory, or in that of an interface of the running
//! kernel.
//!
//! In the kernel a chain is one program, so it is made anew and takes the place of the old one in one
//! step. Programs that were there keep their maps.

use std::path::Path;

use skep::chain::kernel::{self, KernelChain, MapPins, Sources};
use skep::chain::{Edit, Graph};

use super::attach::failed;
use super::change::{again, place};
use super::{load, open, sources};
use crate::args::{OnKernelArgs, PlaceArgs, SetArgs};
use crate::failure::{Failure, Result};
use crate::printer::Printer;

/// Does an edit, which `edit` makes for the chain as it is.
pub fn change(
    chain: &str,
    on: &OnKernelArgs,
    printer: Printer,
    edit: impl Fn(&Graph) -> Result<Edit>,
) -> Result<u8> {
    if on.kernel {
        return in_kernel(chain, (&on.bpf_fs, None), printer, |_, graph| edit(graph));
    }
    let (_, chain) = open(chain)?;
    let (graph, _) = again(|| {
        let graph = chain.graph()?;
        Ok(chain.transaction(graph.revision(), &[edit(&graph)?]))
    })?;
    printer.note(&format!("revision {}", graph.revision()));
    Ok(0)
}

/// How a program is added to the chain of an interface.
pub struct AddInKernel<'a> {
    /// Where it goes.
    pub place: &'a PlaceArgs,
    /// It shares no maps.
    pub own_maps: bool,
    /// What its global variables are set to.
    pub variables: &'a SetArgs,
    /// Where its maps are pinned.
    pub pin: Option<&'a Path>,
}

/// Adds a program to the chain of an interface.
pub fn add(
    interface: &str,
    bpf_fs: &Path,
    program: &str,
    how: &AddInKernel<'_>,
    printer: Printer,
) -> Result<u8> {
    let (path, name) = load::split(program)?;
    in_kernel(interface, (bpf_fs, how.pin), printer, |sources, graph| {
        let number = sources::add(sources, path, how.own_maps, how.variables)?;
        let (_, object) = sources.object(number).ok_or_else(|| Failure::failed("no object"))?;
        let index = crate::prog::find(object, path, name)?;
        let name = object.programs.get(index).map_or("", |p| p.name.as_str());
        let program = sources.program(number, name).map_err(failed)?;
        Ok(Edit::Add { program, place: place(graph, how.place, None)? })
    })
}

/// Puts a chain with one edit more in the place of that of an interface.
fn in_kernel(
    interface: &str,
    (bpf_fs, pin): (&Path, Option<&Path>),
    printer: Printer,
    edit: impl FnOnce(&mut Sources, &Graph) -> Result<Edit>,
) -> Result<u8> {
    let mut new = Vec::new();
    let changed = kernel::change(interface, bpf_fs, |current| -> Result<_> {
        let files = current.object_files();
        let what = format!("chain of `{interface}`");
        let (mut sources, mut edits) = sources::again(&what, &current.graph, &files)?;
        edits.push(edit(&mut sources, &current.graph)?);
        let changed = current.graph.transaction(0, &edits);
        let (graph, added) = changed.map_err(|e| failed(e.into()))?;
        new = added;
        let names: Vec<&str> =
            (0..).map_while(|n| sources.object(n)).map(|(name, _)| name.as_str()).collect();
        let pins = pin.map(|dir| MapPins::new(dir, &names)).transpose().map_err(failed)?;
        let existing = |object, spec: &_| match &pins {
            _ if object < files.len() => current.map(object, spec),
            Some(pins) => pins.existing(object, spec),
            None => Ok(None),
        };
        let chain = KernelChain::load(&sources, &graph, current.count, Some(&existing));
        Ok((chain.map_err(failed)?, pins))
    });
    let done = changed.map_err(failed).flatten()?;
    for node in new {
        printer.note(&format!("node {node}"));
    }
    let instead = done.replaced.map_or(String::new(), |old| format!(", in place of {old}"));
    printer.note(&format!("program {} on {interface}{instead}", done.program));
    Ok(0)
}
