//! Chains on interfaces of the running kernel: attached, shown, detached.

use std::path::Path;

use serde_json::{Value as Json, json};
use skep::chain::kernel::{self, KernelChain, KernelChainError as Error, MapPins, XdpMode};
use skep::chain::{Count, Exhausted, Graph, picture};
use skep::load::LoadError;

use super::explain::{edges, nodes};
use super::file::Plan;
use super::is_file;
use super::load::check_named;
use super::sources::of_chain;
use crate::args::{AttachArgs, ModeName};
use crate::failure::{ENVIRONMENT, FAILED, Failure, Result};
use crate::printer::{Output, Printer};
use crate::rejection;
use crate::units;

/// Puts a chain on an interface.
pub fn attach(args: &AttachArgs, printer: Printer) -> Result<u8> {
    let (sources, graph) = match Path::new(&args.from) {
        path if path.exists() && is_file(&args.from) => {
            Plan::read(path)?.for_kernel(&args.variables)?
        }
        _ => {
            let named = of_chain(&args.from)?;
            check_named(&args.from, &args.variables)?;
            named
        }
    };
    let names: Vec<&str> =
        (0..).map_while(|n| sources.object(n)).map(|(name, _)| name.as_str()).collect();
    let pins = args.pin.as_deref().map(|dir| MapPins::new(dir, &names)).transpose();
    let pins = pins.map_err(failed)?;
    let count = match (args.time, args.no_count) {
        (true, _) => Count::Timed,
        (_, true) => Count::Off,
        _ => Count::Runs,
    };
    let existing = pins.as_ref().map(|pins| move |object, spec: &_| pins.existing(object, spec));
    let existing = existing.as_ref().map(|e| e as &kernel::Existing<'_>);
    let chain = KernelChain::load(&sources, &graph, count, existing).map_err(failed)?;
    let mode = match args.mode {
        ModeName::Any => XdpMode::Any,
        ModeName::Generic => XdpMode::Generic,
        ModeName::Native => XdpMode::Native,
        ModeName::Offload => XdpMode::Offload,
    };
    let done = kernel::attach(&chain, &args.interface, mode, &args.bpf_fs, pins.as_ref());
    let done = done.map_err(failed)?;
    let instead = done.replaced.map_or(String::new(), |old| format!(", in place of {old}"));
    printer.note(&format!("program {} on {}{instead}", done.program, args.interface));
    Ok(0)
}

/// Takes the chain of an interface off.
pub fn detach(interface: &str, bpf_fs: &Path) -> Result<u8> {
    kernel::detach(interface, bpf_fs).map_err(failed)?;
    Ok(0)
}

/// Lists the XDP programs of all interfaces, with the programs of those that are chains.
pub fn list(is_json: bool, printer: Printer) -> Result<u8> {
    let all = kernel::list().map_err(failed)?;
    let programs = |graph: &Graph| -> Vec<String> {
        graph.nodes().map(|(_, node)| node.program.name.clone()).collect()
    };
    if is_json {
        let each = all.iter().map(|on| {
            json!({
                "interface": on.interface, "mode": on.mode, "program_id": on.program,
                "name": on.name, "chain": on.chain.as_ref().map(programs),
            })
        });
        printer.json(Output::Stdout, &each.collect::<Json>())?;
        return Ok(0);
    }
    printer.data(Output::Stdout, |out| {
        for on in &all {
            let (interface, mode, id, name) = (&on.interface, on.mode, on.program, &on.name);
            let what = match on.chain.as_ref().map(programs) {
                Some(programs) => format!("chain of {}", programs.join(", ")),
                None => format!("not a chain of skep: {name}"),
            };
            writeln!(out, "{interface:<15}  {mode:<7}  program {id:<5}  {what}")?;
        }
        Ok(())
    })?;
    Ok(0)
}

/// Shows the chain of an interface; `picture` asks for JSON, DOT or SVG.
pub fn show(
    interface: &str,
    bpf_fs: &Path,
    [is_json, dot, svg]: [bool; 3],
    printer: Printer,
) -> Result<u8> {
    let (graph, stats) = kernel::show(interface, bpf_fs).map_err(failed)?;
    if is_json {
        let described = json!({
            "interface": interface, "type": "xdp", "budget": graph.budget(),
            "exhausted": if graph.exhausted() == Exhausted::Abort { "abort" } else { "stop" },
            "entry": graph.entry().map(|id| id.0),
            "nodes": nodes(&graph, &stats), "edges": edges(&stats),
        });
        printer.json(Output::Stdout, &described)?;
        return Ok(0);
    }
    let text = if dot {
        picture::dot(&graph, Some(&stats))
    } else if svg {
        picture::svg(&graph, Some(&stats))
    } else {
        let then = if graph.exhausted() == Exhausted::Abort { ", then aborted" } else { "" };
        let head = format!(
            "{interface}  xdp  at most {}{then}\n",
            units::count(graph.budget().into(), "program")
        );
        head + &picture::text(&graph, Some(&stats))
    };
    printer.data(Output::Stdout, |out| out.write_all(text.as_bytes()))?;
    Ok(0)
}

/// Says in words what was refused; status 1 where a program or the interface says no.
pub fn failed(error: Error) -> Failure {
    let (status, hint) = match error {
        Error::Rejected(rejection) => {
            return rejection::load_failure(LoadError::Rejected(rejection), "OBJECT");
        }
        Error::Link(e) => return rejection::load_failure(LoadError::Link(*e), "OBJECT"),
        Error::Refused { ref log, .. } => {
            let (details, failure) = (log.clone(), Failure::from(error));
            return Failure { status: FAILED, details, ..failure };
        }
        Error::Busy { ref interface, .. } => {
            (FAILED, Some(format!("`ip link show dev {interface}` shows the program")))
        }
        Error::TailCalls => (FAILED, Some("`--pin DIRECTORY` pins the maps".to_owned())),
        Error::Empty => {
            (FAILED, Some("`skep chain detach INTERFACE --kernel` takes a chain off".to_owned()))
        }
        Error::Description { .. } => {
            (FAILED, Some("attach the whole chain again: `skep chain attach`".to_owned()))
        }
        Error::NotAttached { .. } | Error::Race { .. } | Error::Graph(_) => (FAILED, None),
        Error::Stack { .. } | Error::Unsupported { .. } => (FAILED, None),
        Error::Type { .. } | Error::Entry { .. } => (FAILED, None),
        // Maps come first, and are what somebody without privileges is refused.
        Error::Map { .. } => match skep_kernel::probe() {
            Err(e) => (ENVIRONMENT, e.requirement().map(|needs| format!("it takes {needs}"))),
            Ok(()) => (FAILED, None),
        },
        Error::Functions { .. } | Error::TooLong => (FAILED, None),
        Error::Kernel { ref source, .. } => {
            (ENVIRONMENT, source.requirement().map(|needs| format!("it takes {needs}")))
        }
        _ => (ENVIRONMENT, None),
    };
    Failure { status, hint, ..Failure::from(error) }
}
