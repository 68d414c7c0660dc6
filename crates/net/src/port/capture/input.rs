//! A window into a stream of bytes, moved forward in large reads.

use std::fs::File;
use std::io::{self, ErrorKind, Read};
use std::os::fd::AsFd;
use std::time::{Duration, Instant};

use crate::port::interface;

/// Bytes asked for at a time: few system calls, and what is read is still in the second cache when
/// it is copied.
const READ: usize = 1 << 18;

/// Where bytes come from.
pub(super) enum Stream {
    /// A file, perhaps a pipe or a device, that is waited for.
    File(File),
    /// Something that is read as it reads.
    Other(Box<dyn Read + Send>),
}

impl Stream {
    /// Reads, when there is something before that time.
    fn read(&mut self, room: &mut [u8], until: Option<Instant>) -> io::Result<usize> {
        match self {
            Self::Other(stream) => stream.read(room),
            Self::File(file) => {
                if let Some(until) = until {
                    let left = until.saturating_duration_since(Instant::now());
                    if !interface::is_readable(file.as_fd(), left)? {
                        return Err(ErrorKind::WouldBlock.into());
                    }
                }
                file.read(room)
            }
        }
    }
}

/// What is read of a stream, in one buffer that grows only for what must be seen as a whole.
pub(super) struct Input {
    from: Stream,
    /// How long a file may have nothing before reading fails with [`ErrorKind::WouldBlock`], and can
    /// be tried again; without, it is waited for.
    pub(super) patience: Option<Duration>,
    buffer: Vec<u8>,
    start: usize,
    end: usize,
    /// Bytes of the stream before `start`.
    offset: u64,
    ended: bool,
}

impl Input {
    pub(super) fn new(from: Stream) -> Self {
        let buffer = vec![0; READ];
        Self { from, patience: None, buffer, start: 0, end: 0, offset: 0, ended: false }
    }

    /// Where in the stream the window begins.
    pub(super) fn offset(&self) -> u64 {
        self.offset
    }

    /// Tells whether so many bytes can be seen without waiting for more.
    #[inline]
    pub(super) fn has(&self, len: usize) -> bool {
        self.end - self.start >= len || self.ended
    }

    /// Shows the next bytes: at least `len` of them, or all that there are before the end.
    #[inline]
    pub(super) fn peek(&mut self, len: usize) -> io::Result<&[u8]> {
        if !self.has(len) {
            self.fill(len)?;
        }
        Ok(self.buffer.get(self.start..self.end).unwrap_or_default())
    }

    #[cold]
    fn fill(&mut self, len: usize) -> io::Result<()> {
        self.buffer.copy_within(self.start..self.end, 0);
        (self.start, self.end) = (0, self.end - self.start);
        if self.buffer.len() < len {
            self.buffer.resize(len.next_power_of_two(), 0);
        }
        let until = self.patience.and_then(|time| Instant::now().checked_add(time));
        while self.end < len && !self.ended {
            let room = self.buffer.get_mut(self.end..).unwrap_or_default();
            match self.from.read(room, until) {
                Ok(0) => self.ended = true,
                Ok(n) => self.end += n,
                Err(e) if e.kind() == ErrorKind::Interrupted => {}
                Err(e) => return Err(e),
            }
        }
        Ok(())
    }

    /// Moves the window forward over bytes that were seen.
    #[inline]
    pub(super) fn consume(&mut self, len: usize) {
        let len = len.min(self.end - self.start);
        self.start += len;
        self.offset += len as u64;
    }

    /// Moves the window forward; returns by how much, which is less at the end of the stream only.
    pub(super) fn skip(&mut self, len: u64) -> io::Result<u64> {
        let mut left = len;
        while left > 0 {
            let seen = self.peek(1)?.len();
            if seen == 0 {
                break;
            }
            let step = usize::try_from(left).unwrap_or(usize::MAX).min(seen);
            self.consume(step);
            left -= step as u64;
        }
        Ok(len - left)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Gives one byte at a time.
    struct Slow(u8);

    impl Read for Slow {
        fn read(&mut self, buf: &mut [u8]) -> io::Result<usize> {
            match buf.first_mut() {
                Some(b) if self.0 < 100 => {
                    *b = self.0;
                    self.0 += 1;
                    Ok(1)
                }
                _ => Ok(0),
            }
        }
    }

    #[test]
    fn a_window_shows_what_comes_in_pieces() {
        let mut input = Input::new(Stream::Other(Box::new(Slow(0))));
        assert!(!input.has(1));
        assert_eq!(input.peek(3).expect("it reads"), [0, 1, 2]);
        assert!(input.has(3) && !input.has(4));
        input.consume(2);
        assert_eq!(input.peek(2).expect("it reads"), [2, 3]);
        assert_eq!(input.skip(90).expect("it reads"), 90);
        assert_eq!((input.offset(), input.peek(50).expect("it reads").len()), (92, 8));
        assert_eq!(input.skip(50).expect("it reads"), 8);
        assert!(input.peek(1).expect("it reads").is_empty());
    }

    #[test]
    fn a_pipe_that_has_nothing_can_be_tried_again() {
        let (from, mut to) = io::pipe().expect("there are descriptors");
        let mut input = Input::new(Stream::File(File::from(std::os::fd::OwnedFd::from(from))));
        input.patience = Some(Duration::from_millis(1));
        for (text, whole) in [("", false), ("ab", false), ("c", true)] {
            io::Write::write_all(&mut to, text.as_bytes()).expect("it has room");
            match input.peek(3) {
                Ok(bytes) => assert!(whole && bytes == b"abc"),
                Err(e) => assert!(!whole && e.kind() == ErrorKind::WouldBlock, "{e}"),
            }
        }
        drop(to);
        assert_eq!(input.peek(9).expect("it has ended"), b"abc");
    }
}
