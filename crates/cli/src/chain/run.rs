//! `skep chain run`: a chain on the packets of a port.

use std::path::PathBuf;
use std::time::Instant;

use serde_json::json;
use skep::chain::{ChainError, Count, picture};
use skep::port::{Stats, Until};
use skep::test_run::Engine;
use skep_test::contents::Samples;

use super::dump::{self, dump};
use super::explain::{chain, edges, nodes, printed};
use super::failed;
use super::live::Live;
use super::maps::{ChainMaps, OfFile};
use crate::args::{ChainRunArgs, EngineName};
use crate::failure::{FAILED, Failure, Result};
use crate::printer::{Output, Printer};
use crate::prog::packets::{self, Report, Row};

/// Runs the chain and reports.
pub fn run(args: &ChainRunArgs, printer: Printer) -> Result<u8> {
    let input = args.packets.input.as_deref().ok_or_else(|| {
        Failure::environment("no packets: give `--in PORT`")
            .hint("a capture file, an interface, or `gen:64`; docs/packets.md has all")
    })?;
    let opened = chain(&args.chain, &args.variables)?;
    let outputs = packets::targets(&args.packets);
    let targets = outputs.iter().map(PathBuf::as_path).chain(dump::targets(&args.dump));
    packets::check_kept(targets, &opened.files()?)?;
    let engine = match args.engine {
        EngineName::Jit => Engine::Jit,
        EngineName::Interp => Engine::Interp,
    };
    let count = if args.time { Count::Timed } else { Count::Runs };
    let mut runner = opened.chain.runner_with(engine, count).map_err(failed)?;
    runner.check_frames().map_err(failed)?;
    runner.publish().map_err(failed)?;
    dump(&mut runner, args, input)?;
    let mut samples = match args.maps {
        true => ChainMaps::open(&opened.session, &opened.chain)?.samples()?,
        false => Samples::new(),
    };
    let printed = printed()?;
    let (mut source, mut outputs) = packets::ports(&args.packets, input)?;
    let stop = packets::stop_flag()?;
    let until =
        Until { packets: args.packets.packets, time: args.packets.duration, stop: Some(&stop) };
    let started = Instant::now();
    let live = Live::start(opened.chain.clone(), printer);
    let pumped = runner.pump(&mut *source, &mut outputs, &until);
    drop(live);
    let took = started.elapsed();
    let (stats, failure) = match pumped {
        Ok(stats) => (stats, None),
        // Nobody reads on.
        Err(ChainError::Port(error)) if packets::is_closed_pipe(&error.source) => {
            (*error.stats, None)
        }
        Err(ChainError::Stopped { source, stats }) if is_closed_dump(&source) => (*stats, None),
        Err(error) => {
            let failure = Failure { status: FAILED, ..Failure::from(&error) };
            let stats = match error {
                ChainError::Port(error) => *error.stats,
                ChainError::Stopped { stats, .. } => *stats,
                _ => Stats::default(),
            };
            (stats, Some(failure))
        }
    };
    if let Some(error) = runner.take_stale() {
        printer.warning(&format!("the last change of the chain was not taken over: {error}"));
    }
    let counted = runner.stats();
    let graph = runner.graph().clone();
    let described = nodes(&graph, &counted);
    let described = described.as_array().cloned().unwrap_or_default();
    let rows = counted.nodes.iter().zip(described).map(|((id, node), json)| {
        let program = picture::program_name(&graph, *id);
        Row { program: format!("{program} ({id})"), runs: node.runs(), ns: node.ns, json }
    });
    let (rows, edges) = (rows.collect(), edges(&counted));
    let mut report = Report { stats, rows, edges, took, failure };
    if let Some(warning) = report.warning(input) {
        printer.warning(&warning);
    }
    let output = if packets::uses_stdout(&args.packets) || dump::uses_stdout(&args.dump) {
        // Standard output has the packets.
        Output::Stderr
    } else {
        Output::Stdout
    };
    let lines = printed.take()?;
    // As they are now: somebody may have added programs meanwhile.
    let maps = args.maps.then(|| ChainMaps::open(&opened.session, &opened.chain)).transpose()?;
    let maps = maps.as_ref().map(|maps| maps.read(&graph, args.raw, &mut samples)).transpose()?;
    if args.format.json {
        let mut all = report.json();
        if !lines.is_empty() {
            all["printed"] = json!(lines);
        }
        if let Some(maps) = &maps {
            all["maps"] = maps.iter().map(OfFile::json).collect();
        }
        printer.json(output, &all)?;
    } else {
        printer.data(output, |out| {
            report.write(out)?;
            lines.iter().try_for_each(|line| writeln!(out, "printed  {line}"))?;
            maps.iter().flatten().try_for_each(|of| of.write(out))
        })?;
    }
    report.failure.take().map_or(Ok(0), Err)
}

/// Tells whether packets cannot be written because nobody reads them.
fn is_closed_dump(error: &ChainError) -> bool {
    matches!(error, ChainError::Watch(error) if packets::is_closed_pipe(error))
}
