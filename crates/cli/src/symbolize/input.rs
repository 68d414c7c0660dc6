//! Addresses from the command line, else from standard input.

use std::io::{self, Read};

use rustix::event::{PollFd, PollFlags, poll};

use crate::failure::{Context, Failure, Result};

/// Bytes of input after which what was read is answered first.
const BATCH: usize = 16 << 20;

/// Lines with addresses, in batches: as many as are there at once, since many are answered much
/// faster together. Who writes a line and waits gets its answer.
pub struct Addresses {
    given: Option<Vec<String>>,
    /// The start of a line whose end has not come yet.
    rest: Vec<u8>,
    ended: bool,
}

impl Addresses {
    /// Takes those of the command line; if there is none, standard input.
    pub fn new(given: &[String]) -> Self {
        let given = (!given.is_empty()).then(|| given.to_vec());
        Self { ended: given.is_some(), given, rest: Vec::new() }
    }

    /// The next batch; `None` after the last.
    pub fn next_batch(&mut self) -> Result<Option<Vec<String>>> {
        if let Some(given) = self.given.take() {
            return Ok(Some(given));
        }
        let mut text = std::mem::take(&mut self.rest);
        let mut stdin = io::stdin().lock();
        let mut buffer = vec![0; 64 << 10];
        while !self.ended {
            let whole = text.contains(&b'\n');
            if whole && (text.len() > BATCH || !is_ready(&stdin)) {
                break;
            }
            match stdin.read(&mut buffer).context("cannot read standard input")? {
                0 => self.ended = true,
                n => text.extend(buffer.iter().take(n)),
            }
        }
        if !self.ended {
            let end = text.iter().rposition(|b| *b == b'\n').map_or(0, |at| at + 1);
            self.rest = text.split_off(end);
        }
        let lines: Vec<String> =
            String::from_utf8_lossy(&text).lines().map(ToOwned::to_owned).collect();
        Ok((!lines.is_empty()).then_some(lines))
    }
}

/// Tells whether there is something to read now.
fn is_ready(stdin: &io::StdinLock<'_>) -> bool {
    let mut fds = [PollFd::new(stdin, PollFlags::IN)];
    let now = rustix::event::Timespec { tv_sec: 0, tv_nsec: 0 };
    poll(&mut fds, Some(&now)).is_ok_and(|n| n > 0)
}

/// Reads an address in hex.
pub fn address(text: &str) -> Result<u64> {
    let digits = text.trim();
    let digits = digits.strip_prefix("0x").unwrap_or(digits);
    u64::from_str_radix(digits, 16).map_err(|_| {
        Failure::environment(format!("`{text}` is no address"))
            .hint("addresses are hexadecimal numbers of up to 16 digits")
    })
}
