//! Pins: names under which maps stay when nobody uses them. A pin is a hard link below `pins/`, and its
//! folders are there as long as pins are in them.

use std::io;
use std::path::{Path, PathBuf};

use rustix::io::Errno;

use crate::dir::Dir;

/// How often a folder may go while a pin is put into it.
const TRIES: usize = 100;

/// Why a pin cannot have a name.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
#[error("{why}")]
pub struct PinNameError {
    why: &'static str,
}

impl PinNameError {
    const ABSOLUTE: Self = Self { why: "it begins with `/`, and pins lie in the skep directory" };
    /// It may lead out of the directory, or to a folder.
    const PART: Self = Self { why: "none of its parts may be empty, `.` or `..`" };

    /// Returns the rule that the name breaks.
    #[must_use]
    pub fn why(&self) -> &'static str {
        self.why
    }
}

impl Dir {
    /// Returns where the pin of a map lies. Its name may have folders in it, but leads nowhere else.
    ///
    /// # Errors
    /// When a pin cannot have the name.
    pub fn pin(&self, name: &str) -> Result<PathBuf, PinNameError> {
        if name.starts_with('/') {
            return Err(PinNameError::ABSOLUTE);
        }
        // Not by components: those of paths leave out some.
        if name.split('/').any(|part| matches!(part, "" | "." | "..")) {
            return Err(PinNameError::PART);
        }
        Ok(self.pins().join(name))
    }

    fn pins(&self) -> PathBuf {
        self.path().join("pins")
    }

    /// Puts the file of a map under a pin, and makes the folders that its name has.
    ///
    /// # Errors
    /// `EEXIST` when there is a pin, or a folder of pins, of the name; `ENOTDIR` when one of its folders is
    /// a pin.
    pub fn link_pin(&self, file: &Path, pin: &Path) -> io::Result<()> {
        let mut tries = 0;
        loop {
            if let Some(folder) = pin.parent() {
                std::fs::create_dir_all(folder).map_err(|e| match e.kind() {
                    io::ErrorKind::AlreadyExists => Errno::NOTDIR.into(),
                    _ => e,
                })?;
            }
            tries += 1;
            match std::fs::hard_link(file, pin) {
                // Whoever removes a pin may remove the folder behind it.
                Err(e) if e.kind() == io::ErrorKind::NotFound && tries < TRIES => {}
                done => return done,
            }
        }
    }

    /// Removes a pin, and the folders that are empty then.
    ///
    /// # Errors
    /// `ENOENT` when there is none, `EISDIR` when it is a folder of pins.
    pub fn unlink_pin(&self, pin: &Path) -> io::Result<()> {
        std::fs::remove_file(pin)?;
        let pins = self.pins();
        let folders = pin.ancestors().skip(1).take_while(|folder| *folder != pins);
        // The first that is in use ends it.
        folders.map(rustix::fs::rmdir).take_while(Result::is_ok).for_each(drop);
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use skep_testkit::TempDir;

    use super::*;

    /// A directory with a file to pin.
    fn with_file() -> (TempDir, Dir, PathBuf) {
        let temp = TempDir::new();
        let dir = Dir::create(&temp.join("skep")).unwrap();
        let file = temp.join("skep/maps/1");
        std::fs::write(&file, "").unwrap();
        (temp, dir, file)
    }

    #[test]
    fn a_name_that_cannot_be_one_says_why() {
        let (_temp, dir, _) = with_file();
        let why = |name| dir.pin(name).unwrap_err();
        for root in ["/x", "/", "//x"] {
            assert_eq!(why(root), PinNameError::ABSOLUTE, "{root}");
        }
        for part in ["", "a/", "a//b", ".", "..", "../x", "a/../../x", "./x", "a/./x", "a/.."] {
            assert_eq!(why(part), PinNameError::PART, "{part}");
        }
        for name in ["a", "shop/totals", "...", ".hidden", "7", "a b\n"] {
            assert_eq!(dir.pin(name), Ok(dir.path().join("pins").join(name)));
        }
    }

    /// A folder that stayed behind its last pin kept that name from being a pin's.
    #[test]
    fn folders_are_there_as_long_as_pins_are_in_them() {
        let (_temp, dir, file) = with_file();
        let pin = |name| dir.pin(name).unwrap();
        let errno = |done: io::Result<()>| done.unwrap_err().raw_os_error();
        dir.link_pin(&file, &pin("a/b/c")).unwrap();
        dir.link_pin(&file, &pin("a/d")).unwrap();
        assert_eq!(errno(dir.link_pin(&file, &pin("a/d"))), Some(17));
        assert_eq!(errno(dir.link_pin(&file, &pin("a"))), Some(17));
        assert_eq!(errno(dir.link_pin(&file, &pin("a/d/e"))), Some(20));
        assert_eq!(errno(dir.unlink_pin(&pin("a"))), Some(21));
        assert_eq!(errno(dir.unlink_pin(&pin("x"))), Some(2));
        dir.unlink_pin(&pin("a/b/c")).unwrap();
        assert!(!pin("a/b").exists() && pin("a/d").exists());
        dir.unlink_pin(&pin("a/d")).unwrap();
        dir.link_pin(&file, &pin("a")).unwrap();
        dir.unlink_pin(&pin("a")).unwrap();
        assert!(dir.path().join("pins").is_dir());
        // A file that is gone is no reason to go on trying.
        std::fs::remove_file(&file).unwrap();
        assert_eq!(errno(dir.link_pin(&file, &pin("f/g"))), Some(2));
    }
}
