//! Files of calls for those who draw timelines.

use std::io::{self, Write};

use super::record::Call;
use super::{chrome, perfetto};
use crate::args::TraceArgs;

/// A format.
pub trait Timeline: Send {
    /// Adds a call. `process` names its process.
    fn call(
        &mut self,
        out: &mut dyn Write,
        call: &Call<'_>,
        process: &dyn Fn() -> String,
    ) -> io::Result<()>;

    /// Ends the file.
    fn end(&mut self, out: &mut dyn Write) -> io::Result<()>;
}

/// The one that was asked for.
pub fn of(args: &TraceArgs) -> Box<dyn Timeline> {
    if args.perfetto.is_some() {
        Box::new(perfetto::Packets::default())
    } else {
        Box::new(chrome::Events::default())
    }
}
