//! Everything the command prints: data to stdout or a file, the rest to stderr.
//!
//! A reader that goes away (`skep … | head`) is not an error: what could not be written is
//! forgotten.

use std::borrow::Cow;
use std::io::{self, BufWriter, IsTerminal, Write};
use std::path::Path;

use crate::failure::{Failure, Result};
use crate::replace::{Place, Replacement, STDOUT};

/// A text of another's making, such as the name of a file, in one line and without commands to the terminal:
/// control characters are in octal, as the kernel writes them in `/proc/PID/maps`.
pub fn one_line(text: &str) -> Cow<'_, str> {
    // Those behind ASCII begin with this byte.
    if !text.bytes().any(|b| b < b' ' || b == 0x7f || b == 0xc2) {
        return Cow::Borrowed(text);
    }
    let mut out = String::new();
    let mut bytes = [0; 4];
    for c in text.chars() {
        match c.is_control() {
            true => c.encode_utf8(&mut bytes).bytes().for_each(|b| out += &format!("\\{b:03o}")),
            false => out.push(c),
        }
    }
    Cow::Owned(out)
}

/// Where a report goes.
#[derive(Debug)]
pub enum Output {
    /// Standard output.
    Stdout,
    /// Standard error, where standard output has other data.
    Stderr,
    /// `-o FILE`, opened before the command starts so that a wrong path costs nothing.
    File(Replacement),
}

impl Output {
    /// Opens the place where the report goes; `-` is standard output.
    pub fn open(path: Option<&Path>) -> Result<Self> {
        match path {
            None => Ok(Self::Stdout),
            Some(path) if path.as_os_str() == STDOUT => Ok(Self::Stdout),
            Some(path) => match Replacement::open(path) {
                Ok(file) => Ok(Self::File(file)),
                Err(e) => {
                    Err(Failure::environment(format!("cannot create `{}`: {e}", path.display())))
                }
            },
        }
    }

    /// Tells how many columns a line may have; `None` when nobody looks at a screen.
    pub fn width(&self) -> Option<usize> {
        match self {
            Self::Stdout if io::stdout().is_terminal() => {
                rustix::termios::tcgetwinsize(io::stdout())
                    .ok()
                    .map(|size| usize::from(size.ws_col))
                    .filter(|columns| *columns > 0)
            }
            _ => None,
        }
    }
}

/// Makes a message visible as a whole. Names in it may come from an object or a file of somebody else,
/// and a terminal obeys some characters.
fn harmless(text: &str) -> Cow<'_, str> {
    let is_obeyed = |c: char| c.is_control() && !matches!(c, '\n' | '\t');
    if !text.contains(is_obeyed) {
        return Cow::Borrowed(text);
    }
    let mut shown = String::with_capacity(text.len());
    for c in text.chars() {
        if is_obeyed(c) { shown.extend(c.escape_debug()) } else { shown.push(c) }
    }
    Cow::Owned(shown)
}

/// Fails if what one option has written would be lost: because another one names the same file, or because
/// it is read. The report is on standard output if it has no file.
pub fn check_apart(
    report: Option<&Path>,
    options: &[(&str, Option<&Path>)],
    read: &[&Path],
) -> Result {
    const READ: &str = "";
    let read = read.iter().filter(|path| path.as_os_str() != STDOUT);
    let mut places: Vec<(&str, Place)> =
        read.filter_map(|path| Some((READ, Place::of(path)?))).collect();
    let report = ("--output", Some(report.unwrap_or(Path::new(STDOUT))));
    for (option, path) in std::iter::once(&report).chain(options) {
        let Some((path, place)) = path.and_then(|path| Some((path, Place::of(path)?))) else {
            continue;
        };
        let path = path.display();
        let Some((other, _)) = places.iter().find(|(_, other)| *other == place) else {
            places.push((option, place));
            continue;
        };
        return Err(Failure::environment(match (*other, place) {
            (READ, _) => format!("`{option}` names `{path}`, which is read, and would be lost"),
            (_, Place::Stdout) => {
                format!("`{other}` and `{option}` both go to standard output: name a file for one")
            }
            _ => format!("`{other}` and `{option}` name the same file, `{path}`"),
        }));
    }
    Ok(())
}

/// Prints; knows what the user wants to hear.
#[derive(Debug, Clone, Copy)]
pub struct Printer {
    quiet: bool,
    color: bool,
}

impl Printer {
    /// Looks at the terminal and at `NO_COLOR`.
    pub fn new(quiet: bool) -> Self {
        let plain = std::env::var_os("NO_COLOR").is_some_and(|v| !v.is_empty())
            || std::env::var_os("TERM").is_some_and(|t| t == "dumb");
        Self { quiet, color: !plain && io::stderr().is_terminal() }
    }

    /// Tells whether nothing but data is wanted.
    pub fn is_quiet(self) -> bool {
        self.quiet
    }

    /// Writes data through `write`, to where it was asked for.
    pub fn data(
        self,
        output: Output,
        write: impl FnOnce(&mut dyn Write) -> io::Result<()>,
    ) -> Result {
        self.part(output, write).map(|_| ())
    }

    /// Writes a part of data that may have no end; tells whether there is still somebody who reads it.
    pub fn part(
        self,
        output: Output,
        write: impl FnOnce(&mut dyn Write) -> io::Result<()>,
    ) -> Result<bool> {
        let (done, place) = match output {
            Output::Stdout => {
                let mut out = BufWriter::new(io::stdout().lock());
                (write(&mut out).and_then(|()| out.flush()), "stdout".to_owned())
            }
            Output::Stderr => {
                let mut out = BufWriter::new(io::stderr().lock());
                (write(&mut out).and_then(|()| out.flush()), "stderr".to_owned())
            }
            Output::File(file) => {
                let place = file.path().display().to_string();
                let mut out = BufWriter::new(file);
                let done = write(&mut out)
                    .and_then(|()| out.into_inner().map_err(io::IntoInnerError::into_error))
                    .and_then(Replacement::finish);
                (done, place)
            }
        };
        match done {
            Err(e) if e.kind() != io::ErrorKind::BrokenPipe => {
                Err(Failure::environment(format!("cannot write to `{place}`: {e}")))
            }
            done => Ok(done.is_ok()),
        }
    }

    /// Writes one JSON document and a line end.
    pub fn json(self, output: Output, value: &impl serde::Serialize) -> Result {
        self.data(output, |out| {
            serde_json::to_writer(&mut *out, value)?;
            out.write_all(b"\n")
        })
    }

    /// Says something that is good to know; `--quiet` silences it.
    pub fn note(self, text: &str) {
        if !self.quiet {
            self.err(&harmless(text));
        }
    }

    /// Says that something is not as it was asked for.
    pub fn warning(self, text: &str) {
        self.err(&format!("{}: {}", self.paint("33", "warning"), harmless(text)));
    }

    /// Says why the command failed.
    pub fn failure(self, failure: &Failure) {
        let mut text = format!("{}: {}", self.paint("31", "error"), harmless(&failure.message));
        for line in &failure.details {
            text += &format!("\n  {}", harmless(line));
        }
        for cause in &failure.causes {
            text += &format!("\n  caused by: {}", harmless(cause));
        }
        if let Some(hint) = &failure.hint {
            text += &format!("\n\n{}: {}", self.paint("36", "hint"), harmless(hint));
        }
        self.err(&text);
    }

    fn paint(self, color: &str, word: &str) -> String {
        if self.color { format!("\x1b[1;{color}m{word}\x1b[0m") } else { word.to_owned() }
    }

    fn err(self, text: &str) {
        // Nobody is left to be told when this fails.
        drop(writeln!(io::stderr().lock(), "{text}"));
    }
}

#[cfg(test)]
mod tests {
    use skep_testkit::TempDir;

    use super::*;

    /// The later one replaced what the other had written, or what was read.
    #[test]
    fn two_options_do_not_name_the_same_file() {
        let dir = TempDir::new();
        let [path, same, other] = ["x", "./x", "y"].map(|name| dir.path().join(name));
        let check =
            |b: &Path| check_apart(Some(&path), &[("--pprof", None), ("--flame", Some(b))], &[]);
        let refused = |b| {
            let message = check(b).expect_err("it is the same").message;
            let wanted = format!("`--output` and `--flame` name the same file, `{}`", b.display());
            assert_eq!(message, wanted);
        };
        refused(&same);
        assert!(check(&other).is_ok());
        let [link, hard] = ["link", "hard"].map(|name| dir.path().join(name));
        std::os::unix::fs::symlink("x", &link).expect("a link");
        refused(&link);
        std::fs::write(&path, "old").expect("a file");
        std::fs::hard_link(&path, &hard).expect("a link");
        [&same, &link, &hard].into_iter().for_each(|path| refused(path));
        let null = Some(Path::new("/dev/null"));
        assert!(check_apart(null, &[("--flame", null)], &[Path::new("/dev/null")]).is_ok());
        let message = |done: Result| done.expect_err("it is the same").message;
        let overwritten =
            format!("`--output` names `{}`, which is read, and would be lost", hard.display());
        assert_eq!(message(check_apart(Some(&hard), &[], &[&path])), overwritten);
        let stdout = Some(Path::new("-"));
        assert_eq!(
            message(check_apart(None, &[("--junit", stdout)], &[])),
            "`--output` and `--junit` both go to standard output: name a file for one"
        );
        assert!(check_apart(Some(&path), &[("--junit", stdout)], &[Path::new("-")]).is_ok());
    }
}
