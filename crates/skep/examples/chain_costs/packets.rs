//! Chains on frames, as `skep chain run` moves them: in memory, and out of capture files.

use std::path::Path;
use std::time::Duration;

use skep::chain::{Chain, Count, Place};
use skep::isa::ProgramType;
use skep::port::batch::Meta;
use skep::port::capture::{Format, Reader, Unit, Writer};
use skep::port::generator::Generator;
use skep::port::{Batch, Outputs, PortError, Received, Sink, Source, Until, Verdicts};
use skep::test_run::Engine;
use skep::{ChainRunner, Object, Session};

use crate::{Case, Result, each, take_turns, timed};

const OBJECT: &[u8] = include_bytes!("../../../../benches/chain/bpf/links.bpf.o");
const FRAME: usize = 64;
const DROP: usize = 1;
/// Frames of one measurement.
const PACKETS: u64 = 2_000_000;
/// Frames in memory, one behind the other.
const KEPT: usize = 4096;

/// Frames of one size that lie in memory, handed out again and again.
pub struct Frames {
    bytes: Vec<u8>,
    size: usize,
    next: usize,
}

impl Frames {
    /// Of frames of `size` bytes, one behind the other.
    pub fn new(bytes: Vec<u8>, size: usize) -> Self {
        Self { bytes, size, next: 0 }
    }
}

impl Source for Frames {
    fn receive(&mut self, batch: &mut Batch, _: Duration) -> Result<Received, PortError> {
        let meta = Meta { ns: 0, wire_len: self.size as u32, port: 1, queue: 0 };
        while let Some(frame) = self.bytes.get(self.next..self.next + self.size) {
            if !batch.push(meta, frame) {
                return Ok(Received::Frames);
            }
            let next = self.next + self.size;
            self.next = if next == self.bytes.len() { 0 } else { next };
        }
        Ok(Received::End)
    }
}

fn chain(session: &Session, object: &Object, programs: usize, count: Count) -> Result<ChainRunner> {
    let name = format!("drop-{programs}-{}", if count == Count::Off { "off" } else { "counted" });
    let chain = Chain::create(session, &name, ProgramType::Xdp)?;
    let on = "pass".parse()?;
    chain.add(object.program("last")?, Place::First { on })?;
    for _ in 1..programs {
        chain.add(object.program("look")?, Place::First { on })?;
    }
    Ok(chain.runner_with(Engine::Jit, count)?)
}

/// Frames that stay where they are.
fn in_place(mut run: impl FnMut(&mut Batch, &mut Verdicts) -> Result<()>) -> Result<f64> {
    let (mut batch, mut verdicts) = (Batch::new(), Verdicts::default());
    while batch.push(Meta { port: 1, ..Meta::default() }, &[0; FRAME]) {}
    let rounds = PACKETS / batch.len() as u64;
    let (took, ()) = timed(|| {
        for _ in 0..rounds {
            verdicts.reset(batch.len());
            run(&mut batch, &mut verdicts)?;
        }
        Ok(())
    })?;
    let dropped = verdicts.all().iter().filter(|verdict| verdict.kind() == DROP).count();
    if dropped != batch.len() {
        return Err(format!("{dropped} of {} frames were dropped", batch.len()).into());
    }
    Ok(each(took, rounds * batch.len() as u64))
}

fn pumped(chain: &mut ChainRunner, source: &mut dyn Source, until: &Until<'_>) -> Result<f64> {
    let mut outputs = Outputs::new();
    let (took, stats) = timed(|| Ok(chain.pump(source, &mut outputs, until)?))?;
    if (stats.packets, stats.verdicts[DROP]) != (PACKETS, PACKETS) {
        return Err(
            format!("{} of {} frames were dropped", stats.verdicts[DROP], stats.packets).into()
        );
    }
    Ok(each(took, PACKETS))
}

fn write(path: &Path, format: Format) -> Result<()> {
    let (mut file, mut batch) = (Writer::create(path, format)?, Batch::new());
    let mut frames = Generator::new(&[FRAME]).packets(PACKETS);
    while frames.receive(&mut batch, Duration::ZERO)? == Received::Frames {
        let all: Vec<u16> = (0..batch.len() as u16).collect();
        file.send(&batch, &all)?;
        batch.clear();
    }
    Ok(file.flush()?)
}

/// A directory in memory that is removed with this.
struct Captures(std::path::PathBuf);

impl Drop for Captures {
    fn drop(&mut self) {
        std::fs::remove_dir_all(&self.0).ok();
    }
}

/// Everything, or one case alone: for a profiler.
pub fn run(only: Option<&str>) -> Result<()> {
    let session = Session::scratch()?;
    let object = load(&session)?;
    let captures = Captures(format!("/dev/shm/skep-chain-{}", std::process::id()).into());
    std::fs::create_dir_all(&captures.0)?;
    let files = [("pcap", Format::Pcap(Unit::Nanoseconds)), ("pcapng", Format::Pcapng)];
    for (name, format) in files {
        write(&captures.0.join(name), format)?;
    }
    let until = Until { packets: Some(PACKETS), ..Until::default() };
    let mut cases: Vec<Case<'_>> = Vec::new();
    for (programs, count, name) in [
        (1, Count::Off, "1-off"),
        (1, Count::Runs, "1-counted"),
        (3, Count::Off, "3-off"),
        (3, Count::Runs, "3-counted"),
    ] {
        let mut runner = chain(&session, &object, programs, count)?;
        let run = move || in_place(|batch, verdicts| Ok(runner.run(batch, verdicts)?));
        cases.push((format!("in-place-{name}"), Box::new(run)));
    }
    let mut runner = object.program("last")?.packets(Engine::Jit)?;
    let run = move || in_place(|batch, verdicts| Ok(runner.run(batch, verdicts)?));
    cases.push(("in-place-alone".to_owned(), Box::new(run)));
    let mut runner = chain(&session, &object, 2, Count::Off)?;
    let mut frames = Frames::new(vec![0; KEPT * FRAME], FRAME);
    let run = move || pumped(&mut runner, &mut frames, &until);
    cases.push(("memory".to_owned(), Box::new(run)));
    let mut runner = chain(&session, &object, 2, Count::Runs)?;
    for (name, _) in files {
        let path = captures.0.join(name);
        let mut other = runner.for_other_thread();
        let run = move || pumped(&mut other, &mut Reader::open(&path)?, &until);
        cases.push((name.to_owned(), Box::new(run)));
    }
    let run = move || pumped(&mut runner, &mut Generator::new(&[FRAME]).packets(PACKETS), &until);
    cases.push(("generator".to_owned(), Box::new(run)));
    cases.retain(|(name, _)| only.is_none_or(|only| only == name));
    take_turns(&mut cases).map(drop)
}

/// Loads the programs that are nodes of chains.
pub fn load(session: &Session) -> Result<Object> {
    let mut loader = session.loader();
    for program in &skep::object::Object::parse(OBJECT)?.programs {
        let is_node = matches!(program.name.as_str(), "look" | "last");
        loader = loader.autoload(&program.name, is_node);
    }
    Ok(loader.load_bytes(OBJECT)?)
}
