//! What programs print with `bpf_trace_printk` while they are run.

use skep_isa::MapType;
use skep_maps::{Map, MapError};

use crate::load::LoadError;
use crate::load::definition::own_map;
use skep_store::dir::Dir;

/// Bytes of the buffer; lines beyond are lost until it is read.
const ROOM: u32 = 1 << 20;

/// Collects printed lines of this process from its creation on. The last one made gets them.
#[derive(Debug)]
pub struct Printed {
    log: &'static Map,
}

impl Printed {
    /// Makes the buffer for the lines in a directory; it stays open as long as the process.
    ///
    /// # Errors
    /// When it cannot be made.
    pub fn start(dir: &Dir) -> Result<Self, LoadError> {
        let log: &'static Map =
            Box::leak(Box::new(own_map(dir, "skep.log", MapType::Ringbuf, ROOM, 0)?));
        skep_helpers::set_log(log);
        Ok(Self { log })
    }

    /// Takes out the lines printed since the last time, without their line ends.
    ///
    /// # Errors
    /// When the buffer is damaged.
    pub fn take(&self) -> Result<Vec<String>, MapError> {
        let mut consumer = self.log.consumer()?;
        let mut lines = Vec::new();
        while let Some(record) = consumer.next_record()? {
            let text = record.split(|b| *b == 0).next().unwrap_or_default();
            lines.push(String::from_utf8_lossy(text).trim_end_matches('\n').to_owned());
        }
        Ok(lines)
    }
}
