//! The way of packets through a chain.

use std::path::{Path, PathBuf};

use serde_json::{Value as Json, json};
use skep::Session;
use skep::chain::{Chain, ChainRunner, Explained, Graph, Stats, To, verdicts};
use skep::isa::ProgramType;
use skep::port::Batch;
use skep::port::batch::Meta;
use skep::test_run::{Input, Printed};
use skep_text::value::hex;

use super::captured::{self, Captured};
use super::file::Plan;
use super::load::{Loads, check_named};
use super::{failed, is_file, open, show};
use crate::args::{ExplainArgs, SetArgs};
use crate::directory;
use crate::failure::{Failure, Result};
use crate::printer::{Output, Printer};

/// Bytes of the header that a packet has at least.
const ETHERNET: usize = 14;

/// A chain to be run, and what keeps it.
pub struct Opened {
    /// The chain.
    pub chain: Chain,
    /// The directory that it is in.
    pub session: Session,
    /// The files that describe it.
    described: Vec<PathBuf>,
    _loads: Vec<Loads>,
}

impl Opened {
    /// Lists the files that it comes from: those that describe it, and the objects of its programs.
    pub fn files(&self) -> Result<Vec<PathBuf>> {
        let objects = self.chain.object_files()?.into_iter().map(|file| file.path);
        Ok(self.described.iter().cloned().chain(objects).collect())
    }
}

/// Opens a chain by name or id, or makes one of a file for this process alone.
pub fn chain(text: &str, variables: &SetArgs) -> Result<Opened> {
    let path = Path::new(text);
    if !is_file(text) {
        let (session, chain) = open(text)?;
        check_named(text, variables)?;
        return Ok(Opened { chain, session, described: Vec::new(), _loads: Vec::new() });
    }
    let session = Session::scratch()?;
    let plan = Plan::read(path)?;
    let (chain, loads) = plan.create(&session, "file", variables)?;
    let described = plan.into_files();
    Ok(Opened { chain, session, described, _loads: loads })
}

/// Refuses a packet that a test run does not take.
pub fn check_length(number: u64, packet: &[u8]) -> Result {
    let length = packet.len();
    if length < ETHERNET {
        return Err(Failure::failed(format!(
            "packet {number} has {length} bytes, and an Ethernet header alone {ETHERNET}"
        )));
    }
    Ok(())
}

/// Follows the packets of a port, which go through XDP programs as in `run`, or of files, which go
/// through the chain as in the kernel's test runs.
fn follow(
    args: &ExplainArgs,
    (runner, is_xdp): (&mut ChainRunner, bool),
    each: &mut dyn FnMut(u64, Explained) -> Result,
) -> Result {
    let packets = match &args.input {
        Some(port) => captured::numbered(port, &args.packet)?,
        None => {
            let of_file = |(number, bytes)| Captured { number, meta: Meta::default(), bytes };
            (1..).zip(crate::prog::read_all(&args.data_in)?).map(of_file).collect()
        }
    };
    let mut batch = Batch::new();
    for Captured { number, meta, bytes } in packets {
        if args.input.is_none() || !is_xdp {
            check_length(number, &bytes)?;
            each(number, runner.explain(&Input::data(&bytes)).map_err(failed)?)?;
            continue;
        }
        batch.clear();
        if !batch.push(meta, &bytes) {
            return Err(Failure::failed(format!("packet {number} is too large")));
        }
        each(number, runner.explain_frame(&mut batch, 0).map_err(failed)?)?;
    }
    Ok(())
}

/// Shows the way of each packet.
pub fn explain(args: &ExplainArgs, printer: Printer) -> Result<u8> {
    let opened = chain(&args.chain, &args.variables)?;
    let mut runner = opened.chain.runner().map_err(failed)?;
    let printed = printed()?;
    let mut all = Vec::new();
    let is_xdp = opened.chain.prog_type().map_err(failed)? == ProgramType::Xdp;
    follow(args, (&mut runner, is_xdp), &mut |number, told| {
        all.push((number, told, printed.take()?));
        Ok(())
    })?;
    if args.format.json {
        printer.json(Output::Stdout, &all.iter().map(json_of).collect::<Json>())?;
        return Ok(0);
    }
    printer.data(Output::Stdout, |out| {
        for (number, told, lines) in &all {
            let verdict = verdicts::name(told.outcome.retval);
            writeln!(out, "packet {number}  {verdict}")?;
            told.visits.iter().try_for_each(|visit| {
                let to = match visit.to {
                    _ if visit.refused => "used up".to_owned(),
                    To::Node(id) => format!("node {id}"),
                    To::End(verdict) => format!("end: {}", verdicts::name(verdict)),
                    To::Keep => "end".to_owned(),
                };
                let said = verdicts::name(visit.verdict);
                writeln!(out, "  {} {}  {said} -> {to}", visit.node, visit.program)?;
                for (what, bytes) in [("start", visit.head), ("end", visit.tail)] {
                    if bytes != 0 {
                        let noun = if bytes.unsigned_abs() == 1 { "byte" } else { "bytes" };
                        writeln!(out, "      {what} {bytes:+} {noun}")?;
                    }
                }
                if let Some(metadata) = &visit.metadata {
                    let noun = if metadata.is_empty() { "none".to_owned() } else { hex(metadata) };
                    writeln!(out, "      metadata {noun}")?;
                }
                visit.changes.iter().try_for_each(|c| {
                    let (before, after) = (hex(&c.before), hex(&c.after));
                    writeln!(out, "      byte {}: {before} -> {after}", c.offset)
                })
            })?;
            lines.iter().try_for_each(|line| writeln!(out, "  printed  {line}"))?;
        }
        Ok(())
    })?;
    Ok(0)
}

fn json_of((number, told, lines): &(u64, Explained, Vec<String>)) -> Json {
    let visits = told.visits.iter().map(|v| {
        let changes = v
            .changes
            .iter()
            .map(|c| json!({"offset": c.offset, "before": hex(&c.before), "after": hex(&c.after)}));
        json!({
            "node": v.node.0, "program": v.program, "verdict": verdicts::name(v.verdict),
            "to": show::target(v.to), "refused": v.refused, "head": v.head, "tail": v.tail,
            "changes": changes.collect::<Json>(), "metadata": v.metadata.as_ref().map(|m| hex(m)),
        })
    });
    let mut all = json!({
        "packet": number, "verdict": verdicts::name(told.outcome.retval),
        "data_out": told.outcome.data_out.as_ref().map(|d| hex(d)),
        "path": visits.collect::<Json>(),
    });
    if !lines.is_empty() {
        all["printed"] = json!(lines);
    }
    all
}

/// Begins to collect what programs print with `bpf_printk`.
pub fn printed() -> Result<Printed> {
    // The directory goes at once, the buffer with the process.
    let scratch = directory::scratch()?;
    Ok(Printed::start(scratch.dir())?)
}

/// What was counted of each node.
pub fn nodes(graph: &Graph, stats: &Stats) -> Json {
    let node = |(id, counted): (&skep::chain::NodeId, &skep::chain::NodeStats)| {
        let by_name: serde_json::Map<String, Json> =
            counted.verdicts().into_iter().map(|(name, n)| (name, json!(n))).collect();
        json!({
            "node": id.0, "program": graph.node(*id).map(|n| n.program.name.as_str()),
            "runs": counted.runs(), "bytes": counted.bytes, "ns": counted.ns, "verdicts": by_name,
        })
    };
    stats.nodes.iter().map(node).collect()
}

/// What was counted of each edge.
pub fn edges(stats: &Stats) -> Json {
    let edge = |((from, on, to), counted): &(skep::chain::EdgeKey, skep::chain::EdgeStats)| {
        json!({
            "from": from.0, "on": on.to_string(), "to": show::target(*to),
            "taken": counted.taken, "refused": counted.refused,
        })
    };
    stats.edges.iter().map(edge).collect()
}
