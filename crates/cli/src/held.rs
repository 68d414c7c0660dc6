//! What a command prints while a table is on the screen: kept in memory, and printed when it has gone.

use std::fs::File;
use std::io::{self, IsTerminal, Seek, SeekFrom};
use std::process::{Command, Stdio};

use rustix::fs::{FallocateFlags, MemfdFlags, fallocate, memfd_create};

/// When so much is there, all but the last [`KEPT`] bytes are forgotten.
const MOST: u64 = 16 << 20;
/// What is kept for sure.
const KEPT: u64 = 4 << 20;
/// What is forgotten ends where a page begins.
const PAGE: u64 = 4096;

/// The kept output. The command writes to the file itself, so it goes on whatever happens to `skep`.
#[derive(Debug)]
pub struct Held {
    file: File,
    /// What is before that was forgotten.
    from: u64,
}

impl Held {
    /// Makes an empty file without a name.
    pub fn new() -> io::Result<Self> {
        let file = memfd_create("skep-output", MemfdFlags::CLOEXEC)?;
        Ok(Self { file: file.into(), from: 0 })
    }

    /// Has a command print there what would go to the terminal. It has no keys to read either.
    pub fn redirect(&self, command: &mut Command) -> io::Result<()> {
        if io::stdin().is_terminal() {
            command.stdin(Stdio::null());
        }
        if io::stdout().is_terminal() {
            command.stdout(self.file.try_clone()?);
        }
        if io::stderr().is_terminal() {
            command.stderr(self.file.try_clone()?);
        }
        Ok(())
    }

    /// Forgets the beginning of much output.
    pub fn trim(&mut self) {
        let end = self.file.metadata().map_or(0, |m| m.len());
        if end.saturating_sub(self.from) > MOST {
            let from = (end - KEPT) / PAGE * PAGE;
            let len = from - self.from;
            let how = FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE;
            if fallocate(&self.file, how, self.from, len).is_ok() {
                self.from = from;
            }
        }
    }

    /// Prints it. Returns how many bytes are missing.
    pub fn print(self) -> io::Result<u64> {
        // Another description of the file: the command may still write to this one.
        let mut file = File::open(format!("/proc/self/fd/{}", fd(&self.file)))?;
        file.seek(SeekFrom::Start(self.from))?;
        let end = file.metadata()?.len().saturating_sub(self.from);
        let mut file = io::Read::take(file, end);
        if io::stdout().is_terminal() {
            io::copy(&mut file, &mut io::stdout().lock())?;
        } else {
            io::copy(&mut file, &mut io::stderr().lock())?;
        }
        Ok(self.from)
    }
}

fn fd(file: &File) -> i32 {
    std::os::fd::AsRawFd::as_raw_fd(file)
}

#[cfg(test)]
mod tests {
    use std::io::{Read, Write};

    use super::*;

    #[test]
    fn only_the_end_of_much_output_is_kept() -> io::Result<()> {
        let mut held = Held::new()?;
        let line = |n: u64| format!("{n:07}\n");
        let all = (MOST + 2 * PAGE) / 8;
        let mut written = 0;
        for n in 0..all {
            written += (&held.file).write(line(n).as_bytes())? as u64;
        }
        held.trim();
        assert!(held.from > 0 && held.from <= written - KEPT, "{held:?}");
        assert!(rustix::fs::fstat(&held.file)?.st_blocks as u64 * 512 <= KEPT + 2 * PAGE);
        let mut rest = String::new();
        (&held.file).seek(SeekFrom::Start(held.from))?;
        (&held.file).read_to_string(&mut rest)?;
        assert!(rest.starts_with(&line(held.from / 8)) && rest.ends_with(&line(all - 1)));
        Ok(())
    }
}
