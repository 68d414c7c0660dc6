//! The thread that prints calls while they come.

use std::io::{self, Write};
use std::sync::mpsc::{Receiver, Sender, TryRecvError, channel};
use std::thread::JoinHandle;
use std::time::Duration;

use skep::link::{AgentRecord, Link, LinkState};
use skep::maps::{Consumer, Map};
use skep_proc::demangle::{bare, demangle};

use super::Outputs;
use super::history::{History, Triggers};
use super::list::{Form, List, Printed};
use super::plan::Plan;
use super::record::{Call, Record, State};
use super::recorder::Recorder;
use super::timeline::{self, Named, Timeline};
use crate::args::TraceArgs;
use crate::failure::{Context, Failure, Result};
use crate::printer::Printer;
use crate::report::file_name;
use crate::sites::module_path;
use crate::trace::recording::Summary;

/// How long it sleeps before it looks for records again: they do not wake it, which would cost the
/// traced program a system call for each.
const NAP: Duration = Duration::from_millis(5);

/// What comes behind the last record.
pub struct Tail {
    /// Frames of calls that have not returned, or were left.
    pub running: Vec<Vec<u8>>,
    /// When the trace ended, by the clock of the link.
    pub end: u64,
    /// The rest of the JSON document.
    pub rest: String,
    /// What ends a recording.
    pub summary: Option<Box<Summary>>,
}

/// The thread.
pub struct Reader {
    tail: Sender<Tail>,
    thread: JoinHandle<Result<Printed>>,
}

impl Reader {
    /// Starts it.
    pub fn start(
        link: Link,
        records: &Map,
        plans: Vec<Plan>,
        triggers: Triggers,
        args: &TraceArgs,
        outputs: Outputs,
        printer: Printer,
    ) -> Result<Self> {
        let ring = records.consumer().context("cannot read the records of calls")?;
        let (tail, tails) = channel();
        let ticks = 4_294_967_296.0 / link.nanos(1 << 32).max(1) as f64;
        let form = match (args.shown.report.json, args.wants_values()) {
            (true, _) => Form::Json,
            (false, true) => Form::Lines,
            (false, false) => Form::Nothing,
        };
        let timeline: Box<dyn Timeline> = match args.record {
            Some(_) => Box::new(Recorder::default()),
            None => timeline::of(&args.shown),
        };
        let timeline_wanted = outputs.timeline.is_some();
        let mut work = Work {
            state: link.read()?,
            origin: link.counter(),
            link,
            names: Vec::new(),
            plans,
            list: List::new(form, args.shown.limit, timeline),
            json: form == Form::Json || timeline_wanted,
            values: args.record.is_some() && args.wants_values(),
            history: History::new(args, triggers, ticks),
        };
        let Outputs { report, timeline: chrome } = outputs;
        let run = move || {
            let mut ended = Ok(());
            match chrome {
                None => printer.data(report, |out| work.run(ring, &tails, out, None))?,
                Some(chrome) => {
                    let (mut ring, mut tails) = (Some(ring), Some(tails));
                    printer.data(chrome, |file| {
                        ended = printer.data(report, |out| match (ring.take(), tails.take()) {
                            (Some(ring), Some(tails)) => work.run(ring, &tails, out, Some(file)),
                            _ => Ok(()),
                        });
                        Ok(())
                    })?;
                }
            }
            ended.map(|()| work.list.printed())
        };
        let thread = std::thread::Builder::new()
            .name("calls".to_owned())
            .spawn(run)
            .context("cannot start a thread")?;
        Ok(Self { tail, thread })
    }

    /// Prints what is left.
    pub fn finish(self, tail: Tail) -> Result<Printed> {
        // When nobody reads any more, the thread has ended.
        drop(self.tail.send(tail));
        self.thread
            .join()
            .map_err(|_| Failure::environment("the thread that prints calls failed"))?
    }
}

struct Work {
    link: Link,
    state: LinkState,
    /// By the clock of the link: the zero of printed times.
    origin: u64,
    /// Names of functions and of their modules.
    names: Vec<(String, String)>,
    plans: Vec<Plan>,
    list: List,
    /// Values are wanted as JSON.
    json: bool,
    /// Values are recorded as they are printed.
    values: bool,
    /// Only the last calls are printed.
    history: Option<History>,
}

impl Work {
    fn run(
        &mut self,
        mut ring: Consumer,
        tails: &Receiver<Tail>,
        out: &mut dyn Write,
        mut chrome: Option<&mut dyn Write>,
    ) -> io::Result<()> {
        let mut tail = loop {
            let tail = match tails.try_recv() {
                Ok(tail) => Some(tail),
                Err(TryRecvError::Empty) => None,
                // The trace failed: there is no end to wait for, and nothing to keep of it.
                Err(TryRecvError::Disconnected) => return Err(io::ErrorKind::BrokenPipe.into()),
            };
            while let Some(bytes) = ring.next_record().map_err(io::Error::other)? {
                self.take(bytes, out, &mut chrome)?;
            }
            if let Some(tail) = tail {
                break tail;
            }
            out.flush()?;
            std::thread::sleep(NAP);
        };
        if let Some(history) = &mut self.history {
            tail.running.retain(|frame| match Record::read(frame) {
                Some(record) if record.state == State::Left => {
                    history.keep(&record, frame);
                    false
                }
                _ => true,
            });
        }
        let kept = self.history.as_mut().map(History::end);
        // Where something was waited for, what runs at the end is not it.
        let running = if matches!(kept, Some(None)) { &[][..] } else { &tail.running };
        for bytes in kept.flatten().unwrap_or_default() {
            self.print(&bytes, out, &mut chrome)?;
        }
        for frame in running {
            if let Some(record) = Record::read(frame) {
                self.call(&record, Some(tail.end), out, &mut chrome)?;
            }
        }
        self.list.end(&tail.rest, out, chrome, tail.summary.as_deref_mut())
    }

    /// Takes a record: prints it, or keeps it until it is known whether it is to be printed.
    fn take(
        &mut self,
        bytes: &[u8],
        out: &mut dyn Write,
        chrome: &mut Option<&mut dyn Write>,
    ) -> io::Result<()> {
        let Some(record) = Record::read(bytes) else { return Ok(()) };
        self.name(record.function)?;
        let Some(history) = &mut self.history else {
            return self.call(&record, None, out, chrome);
        };
        if history.take(&record, bytes, &self.state) {
            for bytes in history.drain() {
                self.print(&bytes, out, chrome)?;
            }
        }
        Ok(())
    }

    fn print(
        &mut self,
        bytes: &[u8],
        out: &mut dyn Write,
        chrome: &mut Option<&mut dyn Write>,
    ) -> io::Result<()> {
        Record::read(bytes).map_or(Ok(()), |record| self.call(&record, None, out, chrome))
    }

    /// Prints a call; `end`: it runs until then.
    fn call(
        &mut self,
        record: &Record<'_>,
        end: Option<u64>,
        out: &mut dyn Write,
        chrome: &mut Option<&mut dyn Write>,
    ) -> io::Result<()> {
        self.name(record.function)?;
        let unknown = (String::from("?"), String::new());
        let (name, module) = self.names.get(record.function as usize).unwrap_or(&unknown);
        let none = Plan::default();
        let plan = self.plans.get(record.number as usize).unwrap_or(&none);
        let mut call = Call::of(record, plan);
        let start = record.start.saturating_sub(self.origin);
        call.start_ns = self.link.nanos(start);
        let took = record.took.or(end.map(|end| end.saturating_sub(record.start)));
        // What ends at one time does so after rounding, too.
        let end_ns = took.map(|ticks| self.link.nanos(start.saturating_add(ticks)));
        call.took_ns = end_ns.map(|end| end.saturating_sub(call.start_ns));
        let mut event = call.event(record.function, self.json);
        if self.values {
            event.values = call.to_string();
        }
        let process = || {
            let name = process_name(&self.state.agents, call.pid, || {
                std::fs::read_to_string(format!("/proc/{}/comm", call.pid)).ok()
            });
            name.trim_end().to_owned()
        };
        let named = Named { name, module, event: &event };
        self.list.call(&named, &call, &process, out, chrome)
    }

    /// Reads names until there is one for a function.
    fn name(&mut self, function: u32) -> io::Result<()> {
        if (function as usize) < self.names.len() {
            return Ok(());
        }
        self.state = self.link.read().map_err(io::Error::other)?;
        for f in self.state.functions.iter().skip(self.names.len()) {
            let name = bare(&demangle(&f.name)).to_owned();
            let module = file_name(module_path(&self.state, f.module)).to_owned();
            self.names.push((name, module));
        }
        Ok(())
    }
}

/// The name of a process. One that was forked has its parent's, or by now one of its own.
fn process_name(agents: &[AgentRecord], pid: u32, own: impl Fn() -> Option<String>) -> String {
    let exe = |agent: &AgentRecord| file_name(&agent.exe).to_owned();
    let agent = agents.iter().rev().find(|a| a.pid == pid).map(exe);
    agent.or_else(own).or_else(|| agents.last().map(exe)).unwrap_or_default()
}
