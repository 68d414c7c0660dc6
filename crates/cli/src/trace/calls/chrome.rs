//! Calls as trace events for timelines: <https://ui.perfetto.dev>, `chrome://tracing`, speedscope.
//!
//! The format is Chrome's ("Trace Event Format", JSON object form): times in microseconds.

use std::collections::HashSet;
use std::io::{self, Write};

use serde_json::{Value as Json, json};

use super::record::Call;

/// Writes a document, call by call.
#[derive(Default)]
pub struct Timeline {
    begun: bool,
    processes: HashSet<u32>,
}

impl Timeline {
    fn event(&mut self, out: &mut dyn Write, event: &Json) -> io::Result<()> {
        let before =
            if self.begun { ",\n" } else { "{\"displayTimeUnit\":\"ns\",\"traceEvents\":[\n" };
        self.begun = true;
        out.write_all(before.as_bytes())?;
        serde_json::to_writer(out, event).map_err(io::Error::from)
    }

    /// Adds a call. `process` names its process.
    pub fn call(
        &mut self,
        out: &mut dyn Write,
        call: &Call<'_>,
        process: impl FnOnce() -> String,
    ) -> io::Result<()> {
        if self.processes.insert(call.pid) {
            let name = json!({"name": process()});
            self.event(
                out,
                &json!({"ph": "M", "name": "process_name", "pid": call.pid, "args": name}),
            )?;
        }
        let micros = |ns: u64| ns as f64 / 1e3;
        let mut event = json!({
            "name": call.name, "cat": call.module, "ph": "X", "ts": micros(call.start_ns),
            "dur": call.took_ns.map(micros), "pid": call.pid, "tid": call.tid,
        });
        if let Some(event) = event.as_object_mut() {
            match (call.took_ns, call.running) {
                (Some(_), false) => {}
                // Still running: only its begin is known.
                (Some(_), true) => drop(event.insert("ph".to_owned(), "B".into())),
                (None, _) => drop(event.insert("ph".to_owned(), "i".into())),
            }
            if event.get("ph") != Some(&"X".into()) {
                event.remove("dur");
            }
            let mut args = call.args_json();
            if let (Some(args), Some(result)) = (args.as_object_mut(), call.result_json()) {
                args.insert("ret".to_owned(), result);
            }
            if args.as_object().is_some_and(|a| !a.is_empty()) {
                event.insert("args".to_owned(), args);
            }
        }
        self.event(out, &event)
    }

    /// Ends the document.
    pub fn end(&mut self, out: &mut dyn Write) -> io::Result<()> {
        let before = if self.begun { "" } else { "{\"traceEvents\":[" };
        writeln!(out, "{before}]}}")
    }
}
