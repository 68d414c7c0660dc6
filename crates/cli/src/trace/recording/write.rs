//! Writing a recording.

use std::collections::HashMap;
use std::io::{self, Write};

use super::parts::{Pass, event, summary};
use super::{CALL, Done, Event, Hash, MAGIC, NUMBERED, PROCESS, SUMMARY, Summary, VERSION};
use crate::protobuf::Message;

/// Writes a file item by item.
#[derive(Default)]
pub struct Writer {
    /// What is not written yet.
    bytes: Message,
    texts: HashMap<String, u64>,
    begun: bool,
    len: u64,
    hash: Hash,
}

impl Pass for Writer {
    fn number(&mut self, n: &mut u64) -> Done {
        self.bytes.varint(*n);
        Ok(())
    }

    fn text(&mut self, text: &mut String) -> Done {
        if let Some(number) = self.texts.get(text.as_str()) {
            self.bytes.varint(*number);
            return Ok(());
        }
        self.bytes.varint(0);
        self.bytes.varint(text.len() as u64);
        self.bytes.0.extend_from_slice(text.as_bytes());
        if self.texts.len() < NUMBERED {
            self.texts.insert(text.clone(), self.texts.len() as u64 + 1);
        }
        Ok(())
    }

    fn most(&self) -> usize {
        usize::MAX
    }
}

impl Writer {
    /// Adds a call.
    pub fn call(&mut self, out: &mut dyn Write, call: &mut Event) -> io::Result<()> {
        self.bytes.varint(CALL);
        // Writing refuses nothing.
        event(self, call).map_err(io::Error::other)?;
        self.flush(out)
    }

    /// Names a process.
    pub fn process(&mut self, pid: u32, name: &str) {
        self.bytes.varint(PROCESS);
        self.bytes.varint(pid.into());
        // Writing refuses nothing.
        let _ = self.text(&mut name.to_owned());
    }

    /// Adds the summary and ends the file.
    pub fn end(mut self, out: &mut dyn Write, told: &mut Summary) -> io::Result<()> {
        self.bytes.varint(SUMMARY);
        summary(&mut self, told).map_err(io::Error::other)?;
        self.flush(out)?;
        out.write_all(&self.len.to_le_bytes())?;
        out.write_all(&self.hash.0.to_le_bytes())
    }

    fn flush(&mut self, out: &mut dyn Write) -> io::Result<()> {
        if !std::mem::replace(&mut self.begun, true) {
            out.write_all(MAGIC)?;
            out.write_all(&VERSION.to_le_bytes())?;
        }
        let bytes = std::mem::take(&mut self.bytes.0);
        self.len += bytes.len() as u64;
        self.hash.add(&bytes);
        out.write_all(&bytes)?;
        self.bytes.0 = bytes;
        self.bytes.0.clear();
        Ok(())
    }
}
