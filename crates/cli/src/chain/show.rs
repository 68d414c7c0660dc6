//! Chains listed and drawn.

use serde_json::{Value as Json, json};
use skep::Session;
use skep::chain::{Chain, Exhausted, Graph, Stats, To, picture, verdicts};

use super::explain::{edges, nodes};
use super::open;
use crate::directory;
use crate::failure::Result;
use crate::printer::{Output, Printer};
use crate::units;

/// Lists all chains.
pub fn list(is_json: bool, printer: Printer) -> Result<u8> {
    let session = Session::open_in(directory::open()?.path())?;
    let chains = Chain::all(&session)?;
    let rows: Vec<(&Chain, Graph, &str)> = chains
        .iter()
        .filter_map(|c| Some((c, c.graph().ok()?, c.prog_type().ok()?.name())))
        .collect();
    if is_json {
        let all: Json =
            rows.iter().map(|(chain, graph, kind)| describe(chain, kind, graph)).collect();
        printer.json(Output::Stdout, &all)?;
        return Ok(0);
    }
    printer.data(Output::Stdout, |out| {
        for (chain, graph, kind) in &rows {
            let (id, name) = (chain.id(), chain.name());
            let (programs, revision) = (graph.nodes().count() as u64, graph.revision());
            let programs = units::count(programs, "program");
            writeln!(out, "{id:>4}  {name:<20}  {kind}  {programs}  revision {revision}")?;
        }
        Ok(())
    })?;
    Ok(0)
}

/// Shows one chain: `picture` asks for JSON, DOT or SVG.
pub fn show(chain: &str, [is_json, dot, svg]: [bool; 3], printer: Printer) -> Result<u8> {
    let (_, chain) = open(chain)?;
    let graph = chain.graph()?;
    let kind = chain.prog_type()?.name();
    let running = chain.running()?;
    let mut sum = Stats::default();
    running.iter().for_each(|r| sum.merge(&r.stats));
    let stats = Some(&sum).filter(|_| !running.is_empty());
    if is_json {
        let mut all = describe(&chain, kind, &graph);
        if let Some(stats) = stats {
            let threads = running.iter().map(|r| json!({"pid": r.process, "revision": r.revision}));
            all["running"] = threads.collect();
            all["counted"] = json!({"nodes": nodes(&graph, stats), "edges": edges(stats)});
        }
        printer.json(Output::Stdout, &all)?;
        return Ok(0);
    }
    let text = if dot {
        picture::dot(&graph, stats)
    } else if svg {
        picture::svg(&graph, stats)
    } else {
        let (id, name, revision) = (chain.id(), chain.name(), graph.revision());
        let budget = units::count(graph.budget().into(), "program");
        let then = match graph.exhausted() {
            Exhausted::Abort => ", then aborted",
            _ => "",
        };
        let head =
            format!("chain {id}  {name}  {kind}  revision {revision}  at most {budget}{then}\n");
        let threads = running.iter().map(|r| match r.revision == revision {
            true => format!("running in process {}\n", r.process),
            false => format!("running in process {}, at revision {}\n", r.process, r.revision),
        });
        head + &threads.collect::<String>() + &picture::text(&graph, stats)
    };
    printer.data(Output::Stdout, |out| out.write_all(text.as_bytes()))?;
    Ok(0)
}

/// A chain as JSON.
fn describe(chain: &Chain, kind: &str, graph: &Graph) -> Json {
    let node = |(id, node): (skep::chain::NodeId, &skep::chain::Node)| {
        let edges = node.edges().into_iter().map(
            |(on, edge)| json!({"on": on.to_string(), "to": target(edge.to), "bound": edge.bound}),
        );
        json!({
            "node": id.0, "program": node.program.name, "program_id": node.program.id,
            "edges": edges.collect::<Json>(),
        })
    };
    json!({
        "id": chain.id(), "name": chain.name(), "type": kind, "revision": graph.revision(),
        "budget": graph.budget(),
        "exhausted": if graph.exhausted() == Exhausted::Abort { "abort" } else { "stop" },
        "entry": graph.entry().map(|id| id.0),
        "nodes": graph.nodes().map(node).collect::<Json>(),
    })
}

/// Where an edge leads, as JSON: a node, an end with a verdict, or `"keep"`.
pub fn target(to: To) -> Json {
    match to {
        To::Node(id) => json!({"node": id.0}),
        To::End(verdict) => json!({"end": verdicts::name(verdict)}),
        To::Keep => json!("keep"),
    }
}
