//! Addresses from the command line, else from standard input.

use std::io::{self, Read};

use rustix::event::{PollFd, PollFlags, poll};

use crate::failure::{Context, Failure, Result};

/// Bytes that are read at once.
const CHUNK: usize = 64 << 10;

/// A line of more bytes has no address.
pub const LONGEST_LINE: usize = 256;

/// How an address is read; `None` is a line without one, to be skipped.
type Parse = fn(&str) -> Result<Option<u64>>;

/// Addresses, in batches: as many as are there at once, since many are answered much faster together.
/// Who writes a line and waits gets its answer. No text is kept but what was read and is not of this
/// batch.
pub struct Addresses<'a> {
    given: Option<std::slice::Iter<'a, String>>,
    parse: Parse,
    /// A line of more bytes is as several.
    longest: usize,
    /// What was read and is no address yet.
    rest: Vec<u8>,
    ended: bool,
}

impl<'a> Addresses<'a> {
    /// Takes those of the command line; if there is none, standard input.
    pub fn new(given: &'a [String], parse: Parse, longest: usize) -> Self {
        let given = (!given.is_empty()).then(|| given.iter());
        Self { given, parse, longest, rest: Vec::new(), ended: false }
    }

    /// The next batch, of at most so many; `None` after the last.
    pub fn next_batch(&mut self, most: usize) -> Result<Option<Vec<u64>>> {
        let mut batch = Vec::new();
        match &mut self.given {
            Some(given) => {
                for text in given.take(most) {
                    batch.push((self.parse)(text)?.ok_or_else(|| no_address(text))?);
                }
            }
            None => self.read(&mut batch, most)?,
        }
        Ok((!batch.is_empty()).then_some(batch))
    }

    fn read(&mut self, batch: &mut Vec<u64>, most: usize) -> Result {
        let mut stdin = io::stdin().lock();
        let mut chunk = Vec::new();
        loop {
            let mut from = 0;
            while batch.len() < most {
                let rest = self.rest.get(from..).unwrap_or_default();
                let (end, next) = match rest.iter().take(self.longest).position(|b| *b == b'\n') {
                    Some(end) => (end, end + 1),
                    None if rest.len() >= self.longest => (self.longest, self.longest),
                    None if self.ended && !rest.is_empty() => (rest.len(), rest.len()),
                    None => break,
                };
                let line = String::from_utf8_lossy(rest.get(..end).unwrap_or_default());
                batch.extend((self.parse)(line.strip_suffix('\r').unwrap_or(&line))?);
                from += next;
            }
            self.rest.drain(..from.min(self.rest.len()));
            if self.ended || batch.len() >= most || !batch.is_empty() && !is_ready(&stdin) {
                return Ok(());
            }
            chunk.resize(CHUNK, 0);
            match stdin.read(&mut chunk).context("cannot read standard input")? {
                0 => self.ended = true,
                n => self.rest.extend(chunk.iter().take(n)),
            }
        }
    }
}

/// Tells whether there is something to read now.
fn is_ready(stdin: &io::StdinLock<'_>) -> bool {
    let mut fds = [PollFd::new(stdin, PollFlags::IN)];
    let now = rustix::event::Timespec { tv_sec: 0, tv_nsec: 0 };
    poll(&mut fds, Some(&now)).is_ok_and(|n| n > 0)
}

/// Reads an address in hex, if there is anything.
pub fn address(text: &str) -> Result<Option<u64>> {
    let digits = text.trim();
    if digits.is_empty() {
        return Ok(None);
    }
    let digits = digits.strip_prefix("0x").or(digits.strip_prefix("0X")).unwrap_or(digits);
    u64::from_str_radix(digits, 16).map(Some).map_err(|_| no_address(text))
}

fn no_address(text: &str) -> Failure {
    // It may be anything that was piped in.
    let shown: String = text.chars().take(40).flat_map(char::escape_debug).collect();
    let more = if text.chars().nth(40).is_some() { "…" } else { "" };
    Failure::environment(format!("`{shown}{more}` is no address"))
        .hint("addresses are hexadecimal numbers of up to 16 digits")
}
