//! Calls one by one into a recording.

use std::collections::HashSet;
use std::io::{self, Write};

use super::timeline::{Named, Timeline};
use crate::trace::recording::{Summary, Writer};

/// Writes them.
#[derive(Default)]
pub struct Recorder {
    writer: Writer,
    processes: HashSet<u32>,
}

impl Timeline for Recorder {
    fn call(
        &mut self,
        out: &mut dyn Write,
        call: &Named<'_>,
        process: &dyn Fn() -> String,
    ) -> io::Result<()> {
        if self.processes.insert(call.event.pid) {
            self.writer.process(call.event.pid, &process());
        }
        self.writer.call(out, &mut call.event.clone())
    }

    fn end(&mut self, out: &mut dyn Write, summary: Option<&mut Summary>) -> io::Result<()> {
        let Some(summary) = summary else { return Ok(()) };
        std::mem::take(&mut self.writer).end(out, summary)
    }
}
