//! Going through code.

use super::lengths::{Pass, simple_length};
use super::{Kind, Predecoded, UNKNOWN, WINDOW, predecode};
use iced_x86::{Decoder, Instruction};

/// The instructions of some code, one after the other.
pub(crate) struct Instructions<'a> {
    /// The code and what comes behind it.
    bytes: &'a [u8],
    /// How much of that is the code.
    size: usize,
    start: u64,
    /// Where the instruction begins that was looked at last, and where it ends.
    at: usize,
    end: usize,
    options: u32,
    /// Made when iced is asked for the first time.
    decoder: Option<Decoder<'a>>,
    full: Instruction,
    is_full: bool,
}

impl<'a> Instructions<'a> {
    /// `start`: the address of the first byte.
    pub(crate) fn new(bytes: &'a [u8], start: u64, options: u32) -> Self {
        Self::within(bytes, bytes.len(), start, options)
    }

    /// Those in the first `size` bytes.
    pub(crate) fn within(bytes: &'a [u8], size: usize, start: u64, options: u32) -> Self {
        let (size, full) = (size.min(bytes.len()), Instruction::default());
        let (decoder, is_full) = (None, false);
        Self { bytes, size, start, at: 0, end: 0, options, decoder, full, is_full }
    }

    /// Looks at the next one; `None`: there is none. Of an unknown one [`full`](Self::full) tells all.
    #[inline]
    pub(crate) fn next(&mut self) -> Option<Predecoded> {
        self.at = self.end;
        self.is_full = false;
        let left = self.size.checked_sub(self.at).filter(|left| *left > 0)?;
        let rest = self.bytes.get(self.at..)?;
        let mut end = [0; WINDOW];
        let window = match rest.first_chunk::<WINDOW>() {
            Some(window) => window,
            None => {
                end.get_mut(..rest.len())?.copy_from_slice(rest);
                &end
            }
        };
        let found = predecode(window);
        if found.kind != Kind::Unknown && usize::from(found.len) <= left {
            self.end += usize::from(found.len);
            return Some(found);
        }
        self.ask();
        self.end = (self.at + self.full.len()).max(self.at + 1);
        Some(UNKNOWN)
    }

    /// Passes over simple instructions that begin before `limit`; tells whether there were some. Any
    /// that could have been passed over may come next all the same.
    #[inline(always)]
    pub(crate) fn pass_over(&mut self, pass: Pass, limit: u64) -> bool {
        let before = self.end;
        let limit = limit.saturating_sub(self.start).min(self.size as u64) as usize;
        let mut at = before;
        while at < limit
            && let Some(window) = self.bytes.get(at..).and_then(|rest| rest.first_chunk())
        {
            let len = simple_length(window, pass);
            if len == 0 || at + len > self.size {
                break;
            }
            at += len;
        }
        self.end = at;
        at > before
    }

    /// The address of the instruction that was looked at last.
    pub(crate) fn ip(&self) -> u64 {
        self.start.wrapping_add(self.at as u64)
    }

    /// Where it ends.
    pub(crate) fn next_ip(&self) -> u64 {
        self.start.wrapping_add(self.end as u64)
    }

    /// Its bytes.
    pub(crate) fn bytes(&self) -> &'a [u8] {
        self.bytes.get(self.at..self.end).unwrap_or_default()
    }

    /// All that iced says of it.
    pub(crate) fn full(&mut self) -> &Instruction {
        if !self.is_full {
            self.ask();
        }
        &self.full
    }

    #[cold]
    fn ask(&mut self) {
        let (at, ip) = (self.at, self.ip());
        let code = self.bytes.get(..self.size).unwrap_or(self.bytes);
        let (start, options) = (self.start, self.options);
        let decoder =
            self.decoder.get_or_insert_with(|| Decoder::with_ip(64, code, start, options));
        decoder.set_ip(ip);
        if decoder.set_position(at).is_ok() {
            decoder.decode_out(&mut self.full);
            self.is_full = true;
        }
    }
}
