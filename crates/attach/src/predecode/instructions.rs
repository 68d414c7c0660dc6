//! Going through code.

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
    decoder: Decoder<'a>,
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
        let code = bytes.get(..size).unwrap_or(bytes);
        let decoder = Decoder::with_ip(64, code, start, options);
        let (size, full) = (code.len(), Instruction::default());
        Self { bytes, size, start, at: 0, end: 0, decoder, full, is_full: false }
    }

    /// Looks at the next one; `None`: there is none. Of an unknown one [`full`](Self::full) tells all.
    #[inline]
    pub(crate) fn next(&mut self) -> Option<Predecoded> {
        self.at = self.end;
        self.is_full = false;
        let left = self.size.checked_sub(self.at).filter(|left| *left > 0)?;
        let rest = self.bytes.get(self.at..)?;
        let found = match rest.first_chunk::<WINDOW>() {
            Some(window) => predecode(window),
            None => {
                let mut window = [0; WINDOW];
                window.iter_mut().zip(rest).for_each(|(to, from)| *to = *from);
                predecode(&window)
            }
        };
        if found.kind != Kind::Unknown && usize::from(found.len) <= left {
            self.end += usize::from(found.len);
            return Some(found);
        }
        self.ask();
        self.end = self.decoder.position().max(self.at + 1);
        Some(UNKNOWN)
    }

    /// The address of the instruction that was looked at last.
    pub(crate) fn ip(&self) -> u64 {
        self.start.wrapping_add(self.at as u64)
    }

    /// Where it ends.
    pub(crate) fn next_ip(&self) -> u64 {
        self.start.wrapping_add(self.end as u64)
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
        self.decoder.set_ip(self.ip());
        if self.decoder.set_position(self.at).is_ok() {
            self.decoder.decode_out(&mut self.full);
            self.is_full = true;
        }
    }
}
