//! The terminal, where a table is drawn in place: a screen of its own, and keys that come at once and
//! unseen. However the command ends, by a panic too, the terminal is as it was.

use std::fs::{File, OpenOptions};
use std::io::{self, Write};
use std::os::fd::{AsFd, BorrowedFd};
use std::sync::{Mutex, MutexGuard, PoisonError};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::process::{Signal, kill_process_group};
use rustix::termios::{
    LocalModes, OptionalActions, SpecialCodeIndex, Termios, tcgetattr, tcgetwinsize, tcsetattr,
};

use crate::failure::{Failure, Result};

/// Another screen, without a cursor; and back.
const ENTER: &[u8] = b"\x1b[?1049h\x1b[?25l";
const LEAVE: &[u8] = b"\x1b[?25h\x1b[?1049l";
/// Ctrl-Z.
const SUSPEND: u8 = 0x1a;

/// A terminal as it is to be again.
struct Saved {
    tty: File,
    modes: Termios,
}

/// Set while the screen is ours. The panic hook, too, takes it.
static SAVED: Mutex<Option<Saved>> = Mutex::new(None);

fn saved() -> MutexGuard<'static, Option<Saved>> {
    SAVED.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Gives the terminal back; nothing happens if it is not ours.
fn restore() {
    if let Some(Saved { mut tty, modes }) = saved().take() {
        drop(tty.write_all(LEAVE));
        // Nothing can be done about a terminal that is gone.
        let _ = tcsetattr(&tty, OptionalActions::Now, &modes);
    }
}

/// The terminal that this process was started from, whatever its streams are.
#[derive(Debug)]
pub struct Terminal {
    tty: File,
}

impl Terminal {
    /// Opens it, and changes nothing yet.
    pub fn open() -> Result<Self> {
        let no_terminal = |why: &dyn std::error::Error| {
            Failure::environment("there is no terminal for `--top`")
                .because(why)
                .hint("without `--top`, the table is printed at the end")
        };
        let tty = OpenOptions::new().read(true).write(true).open("/dev/tty");
        let tty = tty.map_err(|e| no_terminal(&e))?;
        tcgetattr(&tty).map_err(|e| no_terminal(&io::Error::from(e)))?;
        if std::env::var_os("TERM").is_none_or(|term| term.is_empty() || term == "dumb") {
            let why = io::Error::other("`TERM` names none that can move its cursor");
            return Err(no_terminal(&why));
        }
        Ok(Self { tty })
    }

    /// Shows the screen, where that has not been done.
    fn enter(&self) -> io::Result<()> {
        let mut saved = saved();
        if saved.is_some() {
            return Ok(());
        }
        let modes = tcgetattr(&self.tty)?;
        let mut tty = self.tty.try_clone()?;
        let mut ours = modes.clone();
        ours.local_modes.remove(LocalModes::ICANON | LocalModes::ECHO);
        // A read takes what is there. Ctrl-Z is a key, as the screen has to be left first.
        ours.special_codes[SpecialCodeIndex::VMIN] = 0;
        ours.special_codes[SpecialCodeIndex::VTIME] = 0;
        ours.special_codes[SpecialCodeIndex::VSUSP] = 0;
        tcsetattr(&tty, OptionalActions::Now, &ours)?;
        let entered = tty.write_all(ENTER);
        *saved = Some(Saved { tty, modes });
        drop(saved);
        static HOOK: std::sync::Once = std::sync::Once::new();
        HOOK.call_once(|| {
            let before = std::panic::take_hook();
            std::panic::set_hook(Box::new(move |info| {
                restore();
                before(info);
            }));
        });
        entered
    }

    /// Lines and columns.
    pub fn size(&self) -> (usize, usize) {
        let size = tcgetwinsize(&self.tty).ok().filter(|s| s.ws_row > 0 && s.ws_col > 0);
        size.map_or((24, 80), |s| (s.ws_row.into(), s.ws_col.into()))
    }

    /// Takes the keys that were pressed. Ctrl-Z stops this process and its group until it is continued.
    pub fn keys(&self) -> io::Result<Vec<u8>> {
        let mut keys = [0; 64];
        let mut ready = [PollFd::new(&self.tty, PollFlags::IN)];
        if poll(&mut ready, Some(&Timespec { tv_sec: 0, tv_nsec: 0 }))? == 0 {
            return Ok(Vec::new());
        }
        let count = match rustix::io::read(&self.tty, &mut keys[..]) {
            Ok(0) if ready[0].revents().contains(PollFlags::HUP) => {
                return Err(io::ErrorKind::UnexpectedEof.into());
            }
            Err(rustix::io::Errno::INTR) => 0,
            read => read?,
        };
        let mut keys: Vec<u8> = keys.into_iter().take(count).collect();
        if keys.contains(&SUSPEND) {
            keys.retain(|key| *key != SUSPEND);
            restore();
            let group = rustix::process::getpgrp();
            kill_process_group(group, Signal::TSTP)?;
        }
        Ok(keys)
    }

    /// Draws lines from the top of the screen on; what is below and behind them is empty.
    pub fn draw(&self, lines: &[String]) -> io::Result<()> {
        self.enter()?;
        let (height, width) = self.size();
        let mut screen = b"\x1b[H".to_vec();
        for (n, line) in lines.iter().take(height).enumerate() {
            if n > 0 {
                screen.extend_from_slice(b"\r\n");
            }
            // Names are the program's, which could hold orders to the terminal.
            let shown = line.chars().take(width).map(|c| if c.is_control() { '?' } else { c });
            screen.extend(shown.collect::<String>().bytes());
            screen.extend_from_slice(b"\x1b[K");
        }
        screen.extend_from_slice(b"\x1b[J");
        (&self.tty).write_all(&screen)
    }
}

impl AsFd for Terminal {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.tty.as_fd()
    }
}

impl Drop for Terminal {
    fn drop(&mut self) {
        restore();
    }
}

#[cfg(test)]
mod tests {
    use rustix::fs::{Mode, OFlags};
    use rustix::pty::{OpenptFlags, grantpt, openpt, ptsname, unlockpt};
    use std::io::Read;

    use super::*;

    #[test]
    fn a_panic_gives_the_terminal_back() -> io::Result<()> {
        let mut master = File::from(openpt(OpenptFlags::RDWR | OpenptFlags::NOCTTY)?);
        grantpt(&master)?;
        unlockpt(&master)?;
        let name = ptsname(&master, Vec::new())?;
        let tty = File::from(rustix::fs::open(name, OFlags::RDWR | OFlags::NOCTTY, Mode::empty())?);
        let modes = || tcgetattr(&tty).map(|modes| modes.local_modes);
        let (before, terminal) = (modes()?, Terminal { tty: tty.try_clone()? });
        terminal.draw(&["a\x1b[2Jb".to_owned()])?;
        assert!(!modes()?.intersects(LocalModes::ICANON | LocalModes::ECHO));
        // Not the thread that draws, whose stack a panic need not take down.
        let other = std::thread::spawn(|| panic!("as a test"));
        assert!(other.join().is_err());
        assert_eq!(modes()?, before);
        (&tty).write_all(b"end")?;
        // A read may bring what was written first only.
        let mut printed = Vec::new();
        while !printed.ends_with(b"end") {
            let mut some = [0; 256];
            let count = master.read(&mut some)?;
            printed.extend_from_slice(some.get(..count).unwrap_or_default());
        }
        assert_eq!(
            String::from_utf8_lossy(&printed),
            "\x1b[?1049h\x1b[?25l\x1b[Ha?[2Jb\x1b[K\x1b[J\x1b[?25h\x1b[?1049lend"
        );
        drop(terminal);
        Ok(())
    }
}
