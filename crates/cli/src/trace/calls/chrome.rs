//! Calls as trace events for timelines: <https://ui.perfetto.dev>, `chrome://tracing`, speedscope.
//!
//! The format is Chrome's ("Trace Event Format", JSON object form): times in microseconds.

use std::collections::HashSet;
use std::io::{self, Write};

use serde_json::json;

use super::timeline::{Named, Timeline};
use crate::trace::recording::Summary;

/// Writes a document, call by call.
#[derive(Default)]
pub struct Events {
    begun: bool,
    processes: HashSet<u32>,
}

impl Events {
    fn next(&mut self, out: &mut dyn Write) -> io::Result<()> {
        let before =
            if self.begun { ",\n" } else { "{\"displayTimeUnit\":\"ns\",\"traceEvents\":[\n" };
        self.begun = true;
        out.write_all(before.as_bytes())
    }
}

impl Timeline for Events {
    fn call(
        &mut self,
        out: &mut dyn Write,
        call: &Named<'_>,
        process: &dyn Fn() -> String,
    ) -> io::Result<()> {
        let event = call.event;
        if self.processes.insert(event.pid) {
            let name = json!({"name": process()});
            self.next(out)?;
            let line = json!({"ph": "M", "name": "process_name", "pid": event.pid, "args": name});
            serde_json::to_writer(&mut *out, &line)?;
        }
        self.next(out)?;
        // As they stand: there are millions of them.
        out.write_all(b"{\"name\":")?;
        serde_json::to_writer(&mut *out, call.name)?;
        out.write_all(b",\"cat\":")?;
        // A list of categories.
        let left = if event.left { ",left" } else { "" };
        serde_json::to_writer(&mut *out, &format!("{}{left}", call.module))?;
        let (micros, nanos) = (event.start_ns / 1000, event.start_ns % 1000);
        write!(out, ",\"ts\":{micros}.{nanos:03},\"pid\":{},\"tid\":{}", event.pid, event.tid)?;
        match (event.took_ns, event.running) {
            (Some(ns), false) => {
                write!(out, ",\"ph\":\"X\",\"dur\":{}.{:03}", ns / 1000, ns % 1000)?;
            }
            // Still running: only its begin is known.
            (_, true) => out.write_all(b",\"ph\":\"B\"")?,
            (None, _) => out.write_all(b",\"ph\":\"i\"")?,
        }
        let args = event.annotations();
        if !args.is_null() {
            out.write_all(b",\"args\":")?;
            serde_json::to_writer(&mut *out, &args)?;
        }
        out.write_all(b"}")
    }

    fn end(&mut self, out: &mut dyn Write, _: Option<&mut Summary>) -> io::Result<()> {
        let before = if self.begun { "" } else { "{\"traceEvents\":[" };
        writeln!(out, "{before}]}}")
    }
}
