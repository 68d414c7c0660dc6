//! Where the modules of targets lie, for the names of addresses that programs recorded: when they
//! are named, the processes may have ended.

use crate::wire::{Reader, WireError, Writer};

/// A module as it is mapped in a target.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MappedModule {
    /// Process id.
    pub pid: u32,
    /// Path of the file.
    pub path: String,
    /// Run-time address minus link-time address, wrapping.
    pub bias: u64,
    /// First and last address, exclusive, of each range of its code.
    pub text: Vec<(u64, u64)>,
}

impl MappedModule {
    pub(super) fn encode<'w>(&self, w: &'w mut Writer) -> &'w mut Writer {
        w.u32(self.pid).str(&self.path).u64(self.bias).u32(self.text.len() as u32);
        for (start, end) in &self.text {
            w.u64(*start).u64(*end);
        }
        w
    }

    pub(super) fn decode(payload: &[u8]) -> Result<Self, WireError> {
        let mut r = Reader::new(payload);
        Ok(Self {
            pid: r.u32("pid")?,
            path: r.str("module path")?.to_owned(),
            bias: r.u64("bias")?,
            text: (0..r.count(16, "ranges of code")?)
                .map(|_| Ok((r.u64("start of code")?, r.u64("end of code")?)))
                .collect::<Result<_, _>>()?,
        })
    }
}
