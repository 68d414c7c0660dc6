//! Files that a report replaces as a whole: what was there stays until the new one is complete.

use std::fs::{self, File, OpenOptions, Permissions};
use std::io::{self, Write};
use std::os::fd::AsRawFd;
use std::os::unix::fs::{MetadataExt, OpenOptionsExt, PermissionsExt};
use std::path::{Path, PathBuf};

use rustix::fs::{AtFlags, CWD, OFlags};

use crate::owner;

/// The name of standard output.
pub const STDOUT: &str = "-";

/// A file to be, or a device that is written to as it is.
#[derive(Debug)]
pub struct Replacement {
    file: File,
    /// What was asked for, for messages.
    path: PathBuf,
    step: Step,
}

/// How the file comes to its place.
#[derive(Debug)]
enum Step {
    /// It is there: a device, a pipe, or a file that nothing can be made beside of. The length is
    /// set once all is written.
    InPlace { cut: bool },
    /// It has no name yet; the first is what it is linked to, the second the place.
    Nameless(PathBuf, PathBuf),
    /// It has a name beside the place.
    Beside(PathBuf, PathBuf),
}

impl Replacement {
    /// Prepares a file, so that a wrong path is known before anything else is done. Links are
    /// followed, and a file that is there keeps its owner and permissions.
    pub fn open(path: &Path) -> io::Result<Self> {
        owner::for_owner(|| Self::prepare(path))
    }

    fn prepare(path: &Path) -> io::Result<Self> {
        let in_place = |cut: bool| {
            let file = OpenOptions::new().write(true).create(true).truncate(false).open(path)?;
            Ok(Self { file, path: path.to_owned(), step: Step::InPlace { cut } })
        };
        let old = match fs::metadata(path) {
            Ok(old) if old.is_file() => {
                // Who may not write it may not replace it either.
                drop(OpenOptions::new().write(true).open(path)?);
                Some(old)
            }
            Ok(_) => return in_place(false),
            Err(e) if e.kind() == io::ErrorKind::NotFound => {
                // A link that leads to nothing is followed by the system alone.
                if fs::symlink_metadata(path).is_ok() {
                    return in_place(true);
                }
                None
            }
            Err(e) => return Err(e),
        };
        let place = if old.is_some() { fs::canonicalize(path)? } else { path.to_owned() };
        let folder = place.parent().filter(|p| !p.as_os_str().is_empty()).unwrap_or(Path::new("."));
        let Some(name) = place.file_name().map(|n| n.to_string_lossy().into_owned()) else {
            return in_place(true);
        };
        let beside = folder.join(format!(".{name}.{}", std::process::id()));
        let nameless = OpenOptions::new()
            .write(true)
            .mode(0o666)
            .custom_flags(OFlags::TMPFILE.bits() as i32)
            .open(folder);
        let (file, step) = match nameless {
            Ok(file) => (file, Step::Nameless(beside, place)),
            Err(_) => match OpenOptions::new().write(true).create_new(true).open(&beside) {
                Ok(file) => (file, Step::Beside(beside, place)),
                // The folder takes no new file; the old one may take other contents.
                Err(_) if old.is_some() => return in_place(true),
                Err(e) => return Err(e),
            },
        };
        let made = Self { file, path: path.to_owned(), step };
        let Some(old) = old else {
            owner::give(&made.file);
            return Ok(made);
        };
        let own = made.file.metadata()?;
        let is_owner = (own.uid(), own.gid()) == (old.uid(), old.gid())
            || std::os::unix::fs::fchown(&made.file, Some(old.uid()), Some(old.gid())).is_ok();
        let mode = Permissions::from_mode(old.mode() & 0o7777);
        if !is_owner || old.nlink() > 1 || made.file.set_permissions(mode).is_err() {
            return in_place(true);
        }
        Ok(made)
    }

    /// Returns what was asked for.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Puts the file into its place; it is complete.
    pub fn finish(mut self) -> io::Result<()> {
        self.file.flush()?;
        owner::for_owner(|| self.put())
    }

    fn put(&mut self) -> io::Result<()> {
        match &self.step {
            Step::InPlace { cut: false } => Ok(()),
            Step::InPlace { cut: true } => {
                let end = io::Seek::stream_position(&mut self.file)?;
                self.file.set_len(end)
            }
            Step::Nameless(beside, place) => {
                let of_process = format!("/proc/self/fd/{}", self.file.as_raw_fd());
                rustix::fs::linkat(CWD, of_process, CWD, beside, AtFlags::SYMLINK_FOLLOW)?;
                fs::rename(beside, place).inspect_err(|_| drop(fs::remove_file(beside)))
            }
            Step::Beside(beside, place) => fs::rename(beside, place),
        }
    }
}

/// What a path leads to, whatever other paths lead there.
#[derive(PartialEq, Eq, Debug)]
pub enum Place {
    /// Standard output, which is named `-`.
    Stdout,
    /// A file that is there: its device and number.
    File(u64, u64),
    /// A file to be.
    New(PathBuf),
}

impl Place {
    /// Finds what a path leads to; `None` for devices and pipes, which take what several write.
    pub fn of(path: &Path) -> Option<Self> {
        if path.as_os_str() == STDOUT {
            return Some(Self::Stdout);
        }
        if let Ok(found) = fs::metadata(path) {
            return found.is_file().then(|| Self::File(found.dev(), found.ino()));
        }
        let folder = |path: &Path| path.parent().map(Path::to_owned).unwrap_or_default();
        // What a link that leads to nothing becomes.
        let path = fs::read_link(path).map_or(path.to_owned(), |to| folder(path).join(to));
        let folder = Path::new(".").join(folder(&path));
        Some(Self::New(fs::canonicalize(folder).ok()?.join(path.file_name()?)))
    }
}

impl Write for Replacement {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.file.write(bytes)
    }

    fn flush(&mut self) -> io::Result<()> {
        self.file.flush()
    }
}

impl Drop for Replacement {
    /// What was not finished leaves nothing. After [`Replacement::finish`] the name is gone.
    fn drop(&mut self) {
        if let Step::Beside(beside, _) = &self.step {
            drop(owner::for_owner(|| fs::remove_file(beside)));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use skep_testkit::TempDir;

    fn write(path: &Path, text: &str) -> io::Result<()> {
        let mut new = Replacement::open(path)?;
        new.write_all(text.as_bytes())?;
        new.finish()
    }

    fn names(folder: &Path) -> Vec<String> {
        let mut all: Vec<String> = fs::read_dir(folder)
            .unwrap()
            .map(|e| e.unwrap().file_name().into_string().unwrap())
            .collect();
        all.sort();
        all
    }

    #[test]
    fn an_old_file_stays_until_the_new_one_is_complete() {
        let dir = TempDir::new();
        let path = dir.path().join("report");
        fs::write(&path, "old and long").unwrap();
        fs::set_permissions(&path, Permissions::from_mode(0o640)).unwrap();
        let mut new = Replacement::open(&path).unwrap();
        new.write_all(b"new").unwrap();
        assert_eq!(fs::read_to_string(&path).unwrap(), "old and long");
        drop(new);
        assert_eq!(fs::read_to_string(&path).unwrap(), "old and long");
        write(&path, "new").unwrap();
        assert_eq!(fs::read_to_string(&path).unwrap(), "new");
        assert_eq!(fs::metadata(&path).unwrap().mode() & 0o777, 0o640);
        assert_eq!(names(dir.path()), ["report"]);
    }

    #[test]
    fn links_are_followed_and_stay() {
        let dir = TempDir::new();
        let [path, link, hard, loose] =
            ["report", "link", "hard", "loose"].map(|n| dir.path().join(n));
        fs::write(&path, "old and long").unwrap();
        std::os::unix::fs::symlink("report", &link).unwrap();
        write(&link, "new").unwrap();
        assert_eq!(fs::read_to_string(&path).unwrap(), "new");
        assert!(fs::symlink_metadata(&link).unwrap().is_symlink());
        fs::hard_link(&path, &hard).unwrap();
        write(&hard, "x").unwrap();
        assert_eq!(fs::read_to_string(&path).unwrap(), "x");
        std::os::unix::fs::symlink("nothing", &loose).unwrap();
        write(&loose, "y").unwrap();
        assert_eq!(fs::read_to_string(dir.path().join("nothing")).unwrap(), "y");
    }

    #[test]
    fn devices_are_written_to_and_wrong_places_are_refused() {
        write(Path::new("/dev/null"), "x").unwrap();
        let dir = TempDir::new();
        assert!(Replacement::open(&dir.path().join("no/report")).is_err());
        assert!(Replacement::open(dir.path()).is_err());
        assert!(names(dir.path()).is_empty());
    }
}
