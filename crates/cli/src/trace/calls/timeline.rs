//! Files of calls for those who draw timelines.

use std::io::{self, Write};

use super::{chrome, perfetto};
use crate::args::ShownArgs;
use crate::trace::recording::{Event, Summary};

/// A call with its names.
pub struct Named<'e> {
    pub name: &'e str,
    pub module: &'e str,
    pub event: &'e Event,
}

/// A format.
pub trait Timeline: Send {
    /// Adds a call. `process` names its process.
    fn call(
        &mut self,
        out: &mut dyn Write,
        call: &Named<'_>,
        process: &dyn Fn() -> String,
    ) -> io::Result<()>;

    /// Ends the file. `summary`: of the trace, where that is known.
    fn end(&mut self, out: &mut dyn Write, summary: Option<&mut Summary>) -> io::Result<()>;
}

/// The one that was asked for.
pub fn of(args: &ShownArgs) -> Box<dyn Timeline> {
    if args.perfetto.is_some() {
        Box::new(perfetto::Packets::default())
    } else {
        Box::new(chrome::Events::default())
    }
}
