//! The format of `/proc/PID/maps` for code that may neither allocate nor call a library.
//!
//! A tracer asks where its thread's stack is in the middle of a call that it interrupts, with raw
//! system calls and without vector registers. It reads the text itself and gives it byte by byte to
//! a [`Scanner`], which is always inlined into the caller, so the bytes may come in buffers of any
//! size; or it fills the words of a `PROCMAP_QUERY` one by one.
//!
//! All others ask a [`MapSource`](super::MapSource).

use super::Perms;

/// Reads the address range and the permissions of each line.
///
/// ```
/// use skep_proc::maps::{Perms, raw::Scanner};
/// let mut scanner = Scanner::new();
/// let text = b"1000-2000 r-xp 00000000 08:02 42    /bin/x\n3000-5000 rw-p 00000000 00:00 0\n";
/// let mut found = Vec::new();
/// for byte in text {
///     if scanner.push(*byte) {
///         found.push((scanner.start, scanner.end, Perms(scanner.perms)));
///     }
/// }
/// assert_eq!(found, [
///     (0x1000, 0x2000, Perms::READ | Perms::EXEC),
///     (0x3000, 0x5000, Perms::READ | Perms::WRITE),
/// ]);
/// ```
#[derive(Clone, Copy, Debug)]
pub struct Scanner {
    /// First address of the line's mapping.
    pub start: u64,
    /// First address after it.
    pub end: u64,
    /// The bits of [`Perms`].
    pub perms: u8,
    /// Permission letters that are still to come; [`START`], [`END`] or [`REST`] outside of them.
    state: u8,
}

const START: u8 = 8;
const END: u8 = 9;
const REST: u8 = 0;

impl Scanner {
    /// Makes a scanner for the beginning of a line.
    #[inline(always)]
    #[must_use]
    pub const fn new() -> Self {
        Self { start: 0, end: 0, perms: 0, state: START }
    }

    /// Takes the next byte of the text. Tells whether it is the one that completes the range and
    /// the permissions of a line; what the fields hold at other bytes is unfinished.
    ///
    /// The text is the kernel's: other text gives other numbers, but never a panic.
    #[inline(always)]
    pub fn push(&mut self, byte: u8) -> bool {
        if byte == b'\n' {
            (self.start, self.end, self.perms, self.state) = (0, 0, 0, START);
            return false;
        }
        match self.state {
            REST => false,
            START if byte == b'-' => {
                self.state = END;
                false
            }
            END if byte == b' ' => {
                self.state = 4;
                false
            }
            START => {
                self.start = self.start << 4 | digit(byte);
                false
            }
            END => {
                self.end = self.end << 4 | digit(byte);
                false
            }
            left => {
                let bit = match byte {
                    b'r' => Perms::READ.0,
                    b'w' => Perms::WRITE.0,
                    b'x' => Perms::EXEC.0,
                    b's' => Perms::SHARED.0,
                    _ => 0,
                };
                self.perms |= bit;
                self.state = left.wrapping_sub(1);
                self.state == REST
            }
        }
    }
}

impl Default for Scanner {
    fn default() -> Self {
        Self::new()
    }
}

#[inline(always)]
fn digit(byte: u8) -> u64 {
    let value = if byte > b'9' {
        byte.wrapping_sub(b'a').wrapping_add(10)
    } else {
        byte.wrapping_sub(b'0')
    };
    value as u64 & 15
}

/// `struct procmap_query` as words, for the ioctl [`PROCMAP_QUERY`](self::procmap_query::OPCODE)
/// (Linux 6.11).
pub mod procmap_query {
    pub use crate::ioctl::words::{ADDRESS, END, OPCODE, SIZE, START, WORDS};
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::maps::{Vma, parse};

    fn scan(text: &[u8]) -> Vec<(u64, u64, Perms)> {
        let mut scanner = Scanner::new();
        let complete =
            |b: &u8| scanner.push(*b).then_some((scanner.start, scanner.end, Perms(scanner.perms)));
        text.iter().filter_map(complete).collect()
    }

    /// The scanner and the strict parser agree about every line of a real process.
    #[test]
    fn the_scanner_reads_what_the_parser_reads() {
        let text = crate::file::read("/proc/thread-self/maps", 1 << 24).unwrap();
        let numbers = |v: Vma| (v.start, v.end, v.perms);
        let parsed: Vec<_> = parse(&text).unwrap().into_iter().map(numbers).collect();
        assert!(parsed.len() > 10);
        assert_eq!(scan(&text), parsed);
    }

    #[test]
    fn any_bytes_are_survived() {
        for byte in 0..=u8::MAX {
            assert!(scan(&[byte; 200]).len() <= 1, "{byte}");
        }
        assert_eq!(
            scan(b"1-2 ----\n\n3-4 rwxs x-y rwxp\n"),
            [(1, 2, Perms::NONE), (3, 4, Perms(15))]
        );
    }
}
