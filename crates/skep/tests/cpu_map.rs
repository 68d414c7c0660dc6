//! Frames that are redirected to processors go through threads, one for each entry of the map: in
//! order, all of them or counted, to the same outputs as the others.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::sync::{Arc, Condvar, Mutex};
use std::thread;
use std::time::Duration;

use skep::Session;
use skep::chain::{Chain, ChainError, Count, Edit, Place, Verdicts as On, program_ref};
use skep::isa::ProgramType;
use skep::load::{Loaded, Loader};
use skep::object::Object;
use skep::packets::{PacketRunner, PacketsError};
use skep::port::batch::Meta;
use skep::port::{
    Batch, Outputs, PortError, Received, Sent, Sink, Source, Stats, Target, Until, Verdict,
};
use skep::test_run::{Engine, Runner};

const OBJECT: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/data/packets/packets.bpf.o");
/// Where the kernel says which processors there can be.
const POSSIBLE: &str = "/sys/devices/system/cpu/possible";

/// A gate that opens once, for all threads.
#[derive(Default)]
struct Gate(Mutex<bool>, Condvar);

impl Gate {
    fn open(&self) {
        *self.0.lock().expect("nobody panics") = true;
        self.1.notify_all();
    }

    fn wait(&self) {
        let open = self.0.lock().expect("nobody panics");
        drop(self.1.wait_while(open, |open| !*open).expect("nobody panics"));
    }
}

/// Numbered frames from port 7 to the processors in turn; every third one goes on to port 9 there.
/// Opens the gate, and sets the flag, when all were given.
struct Numbered {
    next: u32,
    count: u32,
    processors: u32,
    gate: Arc<Gate>,
    stop: Option<Arc<AtomicBool>>,
}

impl Source for Numbered {
    fn receive(&mut self, batch: &mut Batch, _: Duration) -> Result<Received, PortError> {
        if self.next == self.count {
            self.gate.open();
            return Ok(Received::End);
        }
        while self.next < self.count {
            let mut frame = [0; 60];
            frame[1] = if self.next.is_multiple_of(3) { 9 } else { 0 };
            frame[14] = (self.next % self.processors) as u8;
            frame[16..20].copy_from_slice(&self.next.to_ne_bytes());
            if !batch.push(Meta { port: 7, ..Meta::default() }, &frame) {
                break;
            }
            self.next += 1;
        }
        if self.next == self.count
            && let Some(stop) = &self.stop
        {
            stop.store(true, Relaxed);
            self.gate.open();
        }
        Ok(Received::Frames)
    }
}

/// Frames by the thread that sent them.
type Seen = Arc<Mutex<BTreeMap<String, Vec<u32>>>>;

/// Keeps the numbers of frames, and waits at the gate before.
struct Keep(Seen, Arc<Gate>);

impl Sink for Keep {
    fn send_counted(
        &mut self,
        batch: &Batch,
        frames: &[u16],
        sent: &mut Sent,
    ) -> Result<(), PortError> {
        self.1.wait();
        let mut seen = self.0.lock().expect("nobody panics");
        let of = seen.entry(thread::current().name().unwrap_or_default().to_owned()).or_default();
        for frame in frames.iter().filter_map(|n| batch.frame(usize::from(*n))) {
            let number = frame.bytes[16..].first_chunk().expect("it is long enough");
            of.push(u32::from_ne_bytes(*number));
            sent.took(frame.bytes.len());
        }
        Ok(())
    }
}

/// Takes nothing.
struct Broken;

impl Sink for Broken {
    fn send_counted(&mut self, _: &Batch, _: &[u16], _: &mut Sent) -> Result<(), PortError> {
        Err(PortError::Gone { name: "a test".to_owned() })
    }
}

/// A machine has one processor at least, and many have two.
fn processors() -> u32 {
    let text = std::fs::read_to_string(POSSIBLE).unwrap_or_default();
    if text.trim() == "0" { 1 } else { 2 }
}

/// How frames are run: by a program alone, or by a chain of it.
#[derive(Clone, Copy, Debug)]
enum Form {
    Program(Engine),
    Chain(Engine),
}

const FORMS: [Form; 4] = [
    Form::Program(Engine::Jit),
    Form::Program(Engine::Interp),
    Form::Chain(Engine::Jit),
    Form::Chain(Engine::Interp),
];

struct Setup {
    session: Session,
    object: Loaded,
}

impl Setup {
    /// Entries with queues of this size, and the program of this name if one is given.
    fn new(queue: u32, program: Option<&str>) -> Self {
        let session = Session::scratch().expect("there is room");
        let bytes = std::fs::read(OBJECT).expect("it is committed");
        let object = Object::parse(&bytes).expect("it is good");
        let object = Loader::new(session.dir()).load(&object).unwrap_or_else(|e| panic!("{e}"));
        let id = program.map_or(0, |name| object.program(name).expect("it is there").id());
        for key in 0..processors() {
            let value = [queue.to_ne_bytes(), id.to_ne_bytes()].concat();
            let map = object.map("cpus").expect("it is there");
            map.update(&key.to_ne_bytes(), &value, 0).unwrap_or_else(|e| panic!("{e}"));
        }
        Self { session, object }
    }

    /// Pumps, and returns the error as it is printed.
    fn pump(
        &self,
        form: Form,
        source: &mut Numbered,
        outputs: &mut Outputs,
        stop: Option<&AtomicBool>,
    ) -> (Stats, Option<String>) {
        let until = Until { stop, ..Until::default() };
        match form {
            Form::Program(engine) => {
                let dir = self.session.dir();
                let runner =
                    Runner::new(dir, &self.object, "by_cpumap", engine).expect("it is there");
                let mut runner = PacketRunner::new(runner).expect("it is an XDP program");
                match runner.pump(source, outputs, &until) {
                    Ok(stats) => (stats, None),
                    Err(PacketsError::Port(e)) => (*e.stats, Some(e.source.to_string())),
                    Err(e) => panic!("{e}"),
                }
            }
            Form::Chain(engine) => {
                let chain = Chain::create(&self.session, "cpus", ProgramType::Xdp)
                    .unwrap_or_else(|e| panic!("{e}"));
                let program = self.object.program("by_cpumap").expect("it is there");
                let program = program_ref(program.id(), program.program());
                let add = Edit::Add { program, place: Place::First { on: On::ANY } };
                chain.transaction(0, &[add]).unwrap_or_else(|e| panic!("{e}"));
                let mut runner =
                    chain.runner_with(engine, Count::Runs).unwrap_or_else(|e| panic!("{e}"));
                match runner.pump(source, outputs, &until) {
                    Ok(stats) => (stats, None),
                    Err(ChainError::Port(e)) => (*e.stats, Some(e.source.to_string())),
                    Err(e) => panic!("{e}"),
                }
            }
        }
    }
}

fn source(count: u32) -> Numbered {
    let gate = Arc::default();
    Numbered { next: 0, count, processors: processors(), gate, stop: None }
}

/// Outputs for what stays on a processor, and what goes on to port 9.
fn outputs(gate: &Arc<Gate>) -> (Outputs, [Seen; 2]) {
    let seen: [Seen; 2] = Default::default();
    let mut outputs = Outputs::new();
    let [stays, goes] =
        seen.each_ref().map(|seen| outputs.add(Box::new(Keep(seen.clone(), gate.clone()))));
    outputs.send_verdict(Verdict::Redirect(Target::default()).kind(), stays);
    outputs.send_target(Target::Port(9), goes);
    (outputs, seen)
}

#[test]
fn every_entry_has_a_thread_that_keeps_the_order() {
    const COUNT: u32 = 5000;
    for form in FORMS {
        let setup = Setup::new(16_384, Some("on_cpu"));
        let mut source = source(COUNT);
        source.gate.open();
        let (mut outputs, seen) = outputs(&source.gate);
        let (stats, error) = setup.pump(form, &mut source, &mut outputs, None);
        assert_eq!(error, None, "{form:?}");
        assert_eq!((stats.packets, stats.verdicts), (5000, [0, 0, 0, 0, 5000]), "{form:?}");
        assert_eq!((stats.sent.packets, stats.queue_full, stats.no_target), (5000, 0, 0));
        for (goes_on, seen) in [false, true].into_iter().zip(seen) {
            let expected = (0..processors()).map(|cpu| {
                let numbers = (0..COUNT).filter(|n| n % processors() == cpu);
                let numbers = numbers.filter(|n| n.is_multiple_of(3) == goes_on);
                (format!("skep-cpu-{cpu}"), numbers.collect::<Vec<_>>())
            });
            let seen = seen.lock().expect("nobody panics");
            assert!(*seen == expected.collect(), "{form:?}: {goes_on}");
        }
    }
}

#[test]
fn without_a_program_the_thread_sends_on() {
    let setup = Setup::new(16_384, None);
    let mut source = source(300);
    source.gate.open();
    let (mut outputs, [stays, goes]) = outputs(&source.gate);
    let (stats, error) = setup.pump(Form::Program(Engine::Jit), &mut source, &mut outputs, None);
    assert_eq!((stats.sent.packets, stats.verdicts[4], error), (300, 300, None));
    let expected: BTreeMap<String, Vec<u32>> = (0..processors())
        .map(|cpu| (format!("skep-cpu-{cpu}"), (cpu..300).step_by(processors() as usize).collect()))
        .collect();
    assert_eq!(*stays.lock().expect("nobody panics"), expected);
    assert!(goes.lock().expect("nobody panics").is_empty());
}

#[test]
fn a_full_queue_drops_and_counts() {
    const COUNT: u32 = 1000;
    for form in FORMS {
        let setup = Setup::new(2, Some("on_cpu"));
        // Nothing is sent before the source ends.
        let mut source = source(COUNT);
        let (mut outputs, seen) = outputs(&source.gate);
        let (stats, error) = setup.pump(form, &mut source, &mut outputs, None);
        assert_eq!(error, None, "{form:?}");
        let came: usize = seen
            .iter()
            .flat_map(|s| s.lock().expect("nobody panics").clone())
            .map(|s| s.1.len())
            .sum();
        let came = came as u64;
        assert_eq!((stats.packets, stats.verdicts[4]), (1000, 1000), "{form:?}");
        assert_eq!((stats.sent.packets, stats.sent.packets + stats.queue_full), (came, 1000));
        // Of each entry two frames wait, and two more were taken out before.
        let most = 4 * u64::from(processors());
        assert!((2..=most).contains(&came), "{form:?}: {came}");
    }
}

#[test]
fn what_waits_when_the_run_is_stopped_is_sent() {
    for form in FORMS {
        let setup = Setup::new(16_384, Some("on_cpu"));
        let stop = Arc::new(AtomicBool::new(false));
        let mut source = Numbered { stop: Some(stop.clone()), ..source(640) };
        let (mut outputs, _) = outputs(&source.gate);
        let (stats, error) = setup.pump(form, &mut source, &mut outputs, Some(&stop));
        assert_eq!(error, None, "{form:?}");
        assert_eq!((stats.packets, stats.sent.packets, stats.queue_full), (640, 640, 0));
    }
}

#[test]
fn programs_that_cannot_run_in_an_entry_abort_frames() {
    let setup = Setup::new(16_384, Some("egress"));
    let mut source = source(100);
    source.gate.open();
    let (mut outputs, _) = outputs(&source.gate);
    let (stats, _) = setup.pump(Form::Program(Engine::Jit), &mut source, &mut outputs, None);
    assert_eq!((stats.verdicts, stats.sent.packets), ([100, 0, 0, 0, 0], 0));
}

#[test]
fn an_output_that_fails_in_a_thread_ends_the_run() {
    for form in FORMS {
        let setup = Setup::new(16_384, Some("on_cpu"));
        let mut outputs = Outputs::new();
        let broken = outputs.add(Box::new(Broken));
        outputs.send_verdict(4, broken);
        let (stats, error) = setup.pump(form, &mut source(2000), &mut outputs, None);
        assert_eq!(error.as_deref(), Some("the other end of `a test` is gone"), "{form:?}");
        assert_eq!(stats.verdicts.iter().sum::<u64>(), stats.packets);
        // Those that waited for the output, in all threads, are counted too.
        let lost = stats.sent.unwritten + stats.queue_full;
        assert_eq!((stats.sent.packets, stats.verdicts[4]), (0, lost), "{form:?} {stats:?}");
    }
}
