//! Calls one by one as lines or JSON, and beside that in a file: while they come, or from a
//! recording.

use std::fmt::Display;
use std::io::{self, Write};

use serde_json::{Map, Value as Json};

use super::timeline::{Named, Timeline};
use crate::printer::one_line;
use crate::trace::recording::{Event, Summary};
use crate::units;

/// How calls are printed.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Form {
    Lines,
    Json,
    Nothing,
}

/// What was printed.
#[derive(Clone, Copy, Default)]
pub struct Printed {
    pub calls: u64,
    /// Of them not shown: more than were asked for.
    pub hidden: u64,
}

/// The calls that are printed.
pub struct List {
    form: Form,
    limit: u64,
    timeline: Box<dyn Timeline>,
    printed: Printed,
    /// Something was written.
    begun: bool,
}

impl List {
    pub fn new(form: Form, limit: Option<usize>, timeline: Box<dyn Timeline>) -> Self {
        let limit = limit.filter(|n| *n > 0).map_or(u64::MAX, |n| n as u64);
        Self { form, limit, timeline, printed: Printed::default(), begun: false }
    }

    /// What was printed so far.
    pub fn printed(&self) -> Printed {
        self.printed
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

    /// Prints a call; `values` is what stands behind its name, `process` names its process.
    pub fn call(
        &mut self,
        call: &Named<'_>,
        values: &dyn Display,
        process: &dyn Fn() -> String,
        out: &mut dyn Write,
        file: &mut Option<&mut dyn Write>,
    ) -> io::Result<()> {
        self.begin(out)?;
        self.printed.calls += 1;
        if let Some(file) = file {
            self.timeline.call(&mut **file, call, process)?;
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
                let Named { name, event, .. } = call;
                let micros = event.start_ns / 1000;
                let (seconds, micros) = (micros / 1_000_000, micros % 1_000_000);
                let took = event.took_ns.map_or_else(|| "-".to_owned(), units::time);
                let tid = event.tid;
                let shown = format!("{name}{values}");
                let shown = one_line(&shown);
                writeln!(out, "{seconds:>5}.{micros:06} {tid:>8} {took:>8}  {shown}")
            }
        }
    }

    /// Ends what is printed, and the file. `rest`: the members of the JSON document behind the calls.
    pub fn end(
        &mut self,
        rest: &str,
        out: &mut dyn Write,
        file: Option<&mut dyn Write>,
        summary: Option<&mut Summary>,
    ) -> io::Result<()> {
        self.begin(out)?;
        if self.form == Form::Json {
            writeln!(out, "],{}", rest.strip_prefix('{').unwrap_or("}"))?;
        }
        file.map_or(Ok(()), |file| self.timeline.end(file, summary))
    }
}

impl Event {
    /// Its arguments and its result as `ret`; null where nothing is known of them.
    pub fn annotations(&self) -> Json {
        if self.args.is_null() && self.ret.is_none() {
            return Json::Null;
        }
        let mut all = self.args.as_object().cloned().unwrap_or_default();
        all.extend(self.ret.clone().map(|ret| ("ret".to_owned(), ret)));
        all.into()
    }
}

impl Named<'_> {
    /// The call as JSON.
    fn json(&self) -> Json {
        let event = self.event;
        let mut out = Map::new();
        let mut add = |name: &str, value: Json| drop(out.insert(name.to_owned(), value));
        add("function", self.name.into());
        add("module", self.module.into());
        add("pid", event.pid.into());
        add("tid", event.tid.into());
        add("depth", event.depth.into());
        add("start_ns", event.start_ns.into());
        add("took_ns", event.took_ns.into());
        if event.running {
            add("running", true.into());
        }
        if event.left {
            add("left", true.into());
        }
        if !event.args.is_null() {
            add("args", event.args.clone());
        }
        if let Some(result) = &event.ret {
            add("ret", result.clone());
        }
        out.into()
    }
}
