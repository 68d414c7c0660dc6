//! The thread that prints calls while they come.

use std::io::{self, Write};
use std::sync::mpsc::{Receiver, Sender, TryRecvError, channel};
use std::thread::JoinHandle;
use std::time::Duration;

use skep::Dir;
use skep::link::{Link, LinkState};
use skep::maps::{Consumer, Map};
use skep_proc::demangle::demangle;

use super::Outputs;
use super::history::History;
use super::plan::Plan;
use super::record::{Call, Record};
use super::timeline::{self, Timeline};
use crate::args::TraceArgs;
use crate::failure::{Context, Failure, Result};
use crate::printer::Printer;
use crate::report::file_name;
use crate::sites::module_path;
use crate::units;

/// How long it sleeps before it looks for records again: they do not wake it, which would cost the
/// traced program a system call for each.
const NAP: Duration = Duration::from_millis(5);

/// What comes behind the last record.
pub struct Tail {
    /// Frames of calls that have not returned.
    pub running: Vec<Vec<u8>>,
    /// When the trace ended, by the clock of the link.
    pub end: u64,
    /// The rest of the JSON document.
    pub rest: String,
}

/// What was printed.
#[derive(Clone, Copy, Default)]
pub struct Printed {
    pub calls: u64,
    /// Of them not shown: more than were asked for.
    pub hidden: u64,
}

/// The thread.
pub struct Reader {
    tail: Sender<Tail>,
    thread: JoinHandle<Result<Printed>>,
}

impl Reader {
    /// Starts it.
    pub fn start(
        dir: &Dir,
        link: &Link,
        records: &Map,
        plans: Vec<Plan>,
        args: &TraceArgs,
        outputs: Outputs,
        printer: Printer,
    ) -> Result<Self> {
        let ring = records.consumer().context("cannot read the records of calls")?;
        let link = Link::open(dir, link.id()).context("cannot read the link")?;
        let (tail, tails) = channel();
        let ticks = 4_294_967_296.0 / link.nanos(1 << 32).max(1) as f64;
        let mut work = Work {
            state: link.read()?,
            origin: link.counter(),
            link,
            names: Vec::new(),
            plans,
            form: match (args.report.json, args.wants_values()) {
                (true, _) => Form::Json,
                (false, true) => Form::Lines,
                (false, false) => Form::Nothing,
            },
            limit: args.limit.filter(|n| *n > 0).map_or(u64::MAX, |n| n as u64),
            printed: Printed::default(),
            timeline: timeline::of(args),
            begun: false,
            history: History::new(args, ticks)?,
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
            ended.map(|()| work.printed)
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

#[derive(Clone, Copy, PartialEq, Eq)]
enum Form {
    Lines,
    Json,
    Nothing,
}

struct Work {
    link: Link,
    state: LinkState,
    /// By the clock of the link: the zero of printed times.
    origin: u64,
    /// Names of functions and of their modules.
    names: Vec<(String, String)>,
    plans: Vec<Plan>,
    form: Form,
    limit: u64,
    printed: Printed,
    timeline: Box<dyn Timeline>,
    /// Something was written.
    begun: bool,
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
        let tail = loop {
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
        self.begin(out)?;
        if self.form == Form::Json {
            writeln!(out, "],{}", tail.rest.strip_prefix('{').unwrap_or("}"))?;
        }
        chrome.map_or(Ok(()), |file| self.timeline.end(file))
    }

    /// Writes what stands in front of the first call.
    fn begin(&mut self, out: &mut dyn Write) -> io::Result<()> {
        match self.form {
            _ if std::mem::replace(&mut self.begun, true) => Ok(()),
            Form::Json => out.write_all(b"{\"calls\":["),
            Form::Lines => writeln!(out, "{:>12} {:>8} {:>8}  CALL", "TIME", "THREAD", "TOOK"),
            Form::Nothing => Ok(()),
        }
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
        self.begin(out)?;
        self.name(record.function)?;
        let unknown = (String::from("?"), String::new());
        let (name, module) = self.names.get(record.function as usize).unwrap_or(&unknown);
        let none = Plan::default();
        let plan = self.plans.get(record.number as usize).unwrap_or(&none);
        let mut call = Call::of(record, name, module, plan);
        call.start_ns = self.link.nanos(record.start.saturating_sub(self.origin));
        call.running = end.is_some();
        let took = record.took.or(end.map(|end| end.saturating_sub(record.start)));
        call.took_ns = took.map(|ticks| self.link.nanos(ticks));
        self.printed.calls += 1;
        if let Some(file) = chrome {
            let agents = &self.state.agents;
            let process = || {
                // One that was forked has its parent's name, or by now one of its own.
                let agent = agents.iter().rev().find(|a| a.pid == call.pid);
                let own = agent.map(|a| file_name(&a.exe).to_owned());
                let comm = || std::fs::read_to_string(format!("/proc/{}/comm", call.pid)).ok();
                let other = || agents.last().map(|a| file_name(&a.exe).to_owned());
                own.or_else(comm).or_else(other).unwrap_or_default().trim_end().to_owned()
            };
            self.timeline.call(&mut **file, &call, &process)?;
        }
        if self.printed.calls > self.limit {
            self.printed.hidden += 1;
            return Ok(());
        }
        match self.form {
            Form::Nothing => Ok(()),
            Form::Json => {
                if self.printed.calls > 1 {
                    out.write_all(b",\n")?;
                }
                serde_json::to_writer(out, &call.json()).map_err(io::Error::from)
            }
            Form::Lines => {
                let micros = call.start_ns / 1000;
                let (seconds, micros) = (micros / 1_000_000, micros % 1_000_000);
                let took = call.took_ns.map_or_else(|| "-".to_owned(), units::time);
                writeln!(out, "{seconds:>5}.{micros:06} {:>8} {took:>8}  {call}", call.tid)
            }
        }
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

/// A name without the parameters that C++ has in it.
pub fn bare(name: &str) -> &str {
    let end = name.match_indices('(').map(|(at, _)| at).find(|at| {
        let (before, behind) = name.split_at(*at);
        !before.is_empty() && !before.ends_with("operator") && !behind.starts_with("(anonymous")
    });
    end.and_then(|at| name.get(..at)).unwrap_or(name)
}

#[cfg(test)]
mod tests {
    use super::bare;

    #[test]
    fn names_are_without_parameters() {
        for (name, wanted) in [
            ("main", "main"),
            ("ns::f(int, char*)", "ns::f"),
            ("(anonymous namespace)::g(int)", "(anonymous namespace)::g"),
            ("ns::(anonymous namespace)::h()", "ns::(anonymous namespace)::h"),
            ("C::operator()(int) const", "C::operator()"),
        ] {
            assert_eq!(bare(name), wanted);
        }
    }
}
