//! Calls as trace events for timelines: <https://ui.perfetto.dev>, `chrome://tracing`, speedscope.
//!
//! The format is Chrome's ("Trace Event Format", JSON object form): times in microseconds.

use std::collections::HashSet;
use std::io::{self, Write};

use serde_json::json;

use super::record::Call;
use super::timeline::Timeline;

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
        call: &Call<'_>,
        process: &dyn Fn() -> String,
    ) -> io::Result<()> {
        if self.processes.insert(call.pid) {
            let name = json!({"name": process()});
            self.next(out)?;
            let event = json!({"ph": "M", "name": "process_name", "pid": call.pid, "args": name});
            serde_json::to_writer(&mut *out, &event)?;
        }
        self.next(out)?;
        // As they stand: there are millions of them.
        out.write_all(b"{\"name\":")?;
        serde_json::to_writer(&mut *out, call.name)?;
        out.write_all(b",\"cat\":")?;
        serde_json::to_writer(&mut *out, call.module)?;
        let (micros, nanos) = (call.start_ns / 1000, call.start_ns % 1000);
        write!(out, ",\"ts\":{micros}.{nanos:03},\"pid\":{},\"tid\":{}", call.pid, call.tid)?;
        match (call.took_ns, call.running) {
            (Some(ns), false) => {
                write!(out, ",\"ph\":\"X\",\"dur\":{}.{:03}", ns / 1000, ns % 1000)?;
            }
            // Still running: only its begin is known.
            (Some(_), true) => out.write_all(b",\"ph\":\"B\"")?,
            (None, _) => out.write_all(b",\"ph\":\"i\"")?,
        }
        let args = call.annotations();
        if !args.is_null() {
            out.write_all(b",\"args\":")?;
            serde_json::to_writer(&mut *out, &args)?;
        }
        out.write_all(b"}")
    }

    fn end(&mut self, out: &mut dyn Write) -> io::Result<()> {
        let before = if self.begun { "" } else { "{\"traceEvents\":[" };
        writeln!(out, "{before}]}}")
    }
}
