//! What a chain takes for a packet, and each program of it.

use std::time::{Duration, Instant};

use serde_json::json;
use skep::chain::{Chain, ChainRunner, Count, picture, verdicts};
use skep::port::{Batch, Verdict, Verdicts};
use skep::test_run::{Engine, Input};

use super::captured::Kept;
use super::explain::{chain, check_length, edges, nodes};
use super::failed;
use crate::args::{BenchArgs, EngineName};
use crate::failure::Result;
use crate::printer::{Output, Printer};
use crate::prog::packets;
use crate::units;

/// What goes through the chain.
enum Given {
    /// One packet, again and again, as the chain left it.
    One(Vec<u8>),
    /// Packets in turn, each as it was captured.
    Captured(Kept),
}

/// A measurement.
struct Measured {
    /// Time of a packet.
    ns: f64,
    /// The answer to one packet.
    verdict: Option<String>,
    /// Answers to packets in turn, by kind.
    verdicts: [u64; Verdict::KINDS],
    runner: ChainRunner,
}

/// Measures a chain: without counting, counting, and with the time of each program.
pub fn bench(args: &BenchArgs, printer: Printer) -> Result<u8> {
    let given = match (&args.input, &args.data_in) {
        (Some(port), _) => Given::Captured(Kept::of(port)?),
        (None, path) => {
            let packet = crate::prog::read_all(path.as_slice())?.swap_remove(0);
            check_length(1, &packet)?;
            Given::One(packet)
        }
    };
    let opened = chain(&args.chain, &args.variables)?;
    let engine = match args.engine {
        EngineName::Jit => Engine::Jit,
        EngineName::Interp => Engine::Interp,
    };
    let measure = |count| measure(&opened.chain, &given, (engine, count), args.repeat.max(1));
    let bare = measure(Count::Off)?;
    let counted = measure(Count::Runs)?;
    let mut timed = measure(Count::Timed)?;
    let (stats, graph) = (timed.runner.stats(), timed.runner.graph().clone());
    let ns = [&bare, &counted, &timed].map(|m| m.ns);
    let count = if let Given::Captured(kept) = &given { kept.len() } else { 1 };
    if args.format.json {
        let [bare_ns, counted_ns, timed_ns] = ns.map(|ns| (ns * 10.0).round() / 10.0);
        let result = json!({
            "runs": args.repeat, "packets": count, "verdict": bare.verdict,
            "verdicts": packets::verdicts(&bare.verdicts), "ns": bare_ns,
            "counted_ns": counted_ns, "timed_ns": timed_ns, "nodes": nodes(&graph, &stats),
            "edges": edges(&stats),
        });
        printer.json(Output::Stdout, &result)?;
        return Ok(0);
    }
    printer.data(Output::Stdout, |out| {
        let [bare_ns, counted, timed] = ns.map(|ns| match ns < 1000.0 {
            true => format!("{ns:.1}ns"),
            false => units::time(ns as u64),
        });
        let of = if count > 1 { format!(" of {count} packets") } else { String::new() };
        let mut said = bare.verdict.iter().map(|name| format!("  {name}")).collect::<String>();
        for (name, n) in Verdict::NAMES.iter().zip(bare.verdicts).filter(|(_, n)| *n > 0) {
            said += &format!("  {name} {n}");
        }
        writeln!(out, "{}{of}{said}", units::count(args.repeat.into(), "run"))?;
        writeln!(
            out,
            "{bare_ns} a run, {counted} counting, {timed} with the time of each program"
        )?;
        out.write_all(picture::text(&graph, Some(&stats)).as_bytes())
    })?;
    Ok(0)
}

fn measure(
    chain: &Chain,
    given: &Given,
    (engine, count): (Engine, Count),
    runs: u32,
) -> Result<Measured> {
    let mut runner = chain.runner_with(engine, count).map_err(failed)?;
    match given {
        Given::One(packet) => {
            let input = Input { repeat: runs, ..Input::data(packet) };
            let done = runner.test_run(&input).map_err(failed)?;
            let (ns, verdict) = (done.duration_ns as f64, Some(verdicts::name(done.retval)));
            Ok(Measured { ns, verdict, verdicts: [0; Verdict::KINDS], runner })
        }
        Given::Captured(kept) => {
            let (mut batch, mut verdicts) = (Batch::new(), Verdicts::default());
            let (mut next, mut left) = (0, runs as usize);
            let (mut took, mut counts) = (Duration::ZERO, [0; Verdict::KINDS]);
            while left > 0 {
                batch.set_limit(left);
                kept.fill(&mut batch, &mut next);
                verdicts.reset(batch.len());
                let began = Instant::now();
                runner.run(&mut batch, &mut verdicts).map_err(failed)?;
                took += began.elapsed();
                left -= batch.len().min(left);
                for verdict in verdicts.all() {
                    if let Some(count) = counts.get_mut(verdict.kind()) {
                        *count += 1;
                    }
                }
            }
            let ns = took.as_nanos() as f64 / f64::from(runs);
            Ok(Measured { ns, verdict: None, verdicts: counts, runner })
        }
    }
}
