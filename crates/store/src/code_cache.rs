//! Where agents keep what they found out about the code of modules, and loaders what they proved of
//! programs, for processes that come later.
//!
//! They look where the link `code` of the skep directory leads. Whoever starts them makes it
//! ([`Dir::keep_code`]): to `skep/code` below `$XDG_CACHE_HOME` or `~/.cache`; to `code.d` beside it where
//! `$SKEP_DIR` names the skep directory; to another directory that `$SKEP_CODE_CACHE` names; and there
//! is none if that is `off`. Which files there are is the agents' affair: those that nobody used for
//! longest go when there are too many.

use std::fs::DirBuilder;
use std::io;
use std::os::unix::fs::{DirBuilderExt, MetadataExt, symlink};
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime};

use crate::dir::{Dir, ENV_DIR};

/// Names the directory in the environment, or says `off`.
pub const ENV_CODE_CACHE: &str = "SKEP_CODE_CACHE";
const OFF: &str = "off";

/// How many bytes the files may have,
const MOST: u64 = 256 << 20;
/// of the whole file system, as a part,
const PART: u64 = 16;
/// and of what would be free without them: maps may lie there.
const PART_OF_FREE: u64 = 4;
/// What was begun before, and has no name yet, nobody ends.
const BEGUN: Duration = Duration::from_secs(60 * 60);

/// Tells whether the environment wants nothing kept.
#[must_use]
pub fn is_off() -> bool {
    std::env::var_os(ENV_CODE_CACHE).is_some_and(|value| value == OFF)
}

impl Dir {
    /// Where agents look.
    #[must_use]
    pub fn code(&self) -> PathBuf {
        self.path().join("code")
    }

    /// Where loaders look for proofs, unless the environment wants nothing kept.
    #[must_use]
    pub fn kept_proofs(&self) -> Option<PathBuf> {
        (!is_off()).then(|| self.code())
    }

    /// Sees to it that there are not too many files there, after one was added.
    pub fn sweep_code(&self) {
        // What cannot be removed now goes later.
        drop(provide(&self.code()));
    }

    /// Has agents keep what they find out about code where the environment says; returns where. `None`:
    /// they keep nothing, as the environment wants it so, or as that place cannot be used.
    pub fn keep_code(&self) -> Option<PathBuf> {
        let var = |name| std::env::var_os(name).filter(|value| !value.is_empty());
        let place = match var(ENV_CODE_CACHE) {
            Some(_) if is_off() => None,
            Some(path) => std::path::absolute(path).ok(),
            None if var(ENV_DIR).is_some() => Some(self.path().join("code.d")),
            None => {
                let home = || var("HOME").map(|home| PathBuf::from(home).join(".cache"));
                let cache = var("XDG_CACHE_HOME").map(PathBuf::from).or_else(home);
                cache.filter(|path| path.is_absolute()).map(|path| path.join("skep/code"))
            }
        };
        self.keep_code_in(place.as_deref())
    }

    fn keep_code_in(&self, place: Option<&Path>) -> Option<PathBuf> {
        let link = self.code();
        let place = place.filter(|place| provide(place).is_ok());
        if std::fs::read_link(&link).ok().as_deref() != place {
            // None, or one that leads elsewhere.
            drop(std::fs::remove_file(&link));
        }
        let place = place?;
        // It may be there, or somebody else makes it at the same time.
        drop(symlink(place, &link));
        link.is_dir().then(|| place.to_owned())
    }
}

/// Makes a directory that is nobody else's, and sees to it that there are not too many files.
fn provide(place: &Path) -> io::Result<()> {
    let mut builder = DirBuilder::new();
    builder.mode(0o700).recursive(true).create(place)?;
    let meta = std::fs::metadata(place)?;
    if meta.uid() != rustix::process::geteuid().as_raw() || meta.mode() & 0o077 != 0 {
        return Err(io::ErrorKind::PermissionDenied.into());
    }
    let system = rustix::fs::statvfs(place)?;
    // A file system without a limit says that it has no blocks at all.
    let bytes = |blocks: u64| match system.f_blocks {
        0 => u64::MAX,
        _ => blocks.saturating_mul(system.f_frsize),
    };
    sweep(place, MOST.min(bytes(system.f_blocks) / PART), bytes(system.f_bavail))
}

/// Removes the files that were not used for longest, until the others have no more bytes than `most`, and
/// than a part of what would be free without them, and what was never finished.
fn sweep(place: &Path, most: u64, free: u64) -> io::Result<()> {
    let now = SystemTime::now();
    let mut files = Vec::new();
    for entry in std::fs::read_dir(place)?.flatten() {
        let Ok(meta) = entry.metadata() else { continue };
        let used = meta.modified().unwrap_or(now);
        let is_begun = entry.file_name().as_encoded_bytes().starts_with(b".");
        if !meta.is_file() || is_begun && now.duration_since(used).is_ok_and(|age| age < BEGUN) {
            continue;
        }
        files.push((!is_begun, used, meta.len(), entry.path()));
    }
    files.sort();
    let mut size: u64 = files.iter().map(|(.., len, _)| len).sum();
    let most = most.min(free.saturating_add(size) / PART_OF_FREE);
    for (is_whole, _, len, path) in files {
        if is_whole && size <= most {
            break;
        }
        drop(std::fs::remove_file(path));
        size -= len;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs::File;
    use std::os::unix::fs::PermissionsExt;

    #[test]
    fn agents_look_where_they_are_told() -> Result<(), Box<dyn std::error::Error>> {
        let base = std::env::temp_dir().join(format!("skep-code-{}", std::process::id()));
        drop(std::fs::remove_dir_all(&base));
        let dir = Dir::create(&base.join("skep"))?;
        let link = || std::fs::read_link(dir.code()).ok();
        let (first, second) = (base.join("a/b/code"), base.join("c"));
        for place in [&first, &second, &second, &first] {
            assert_eq!(dir.keep_code_in(Some(place)).as_ref(), Some(place));
            assert_eq!(link().as_ref(), Some(place));
            assert_eq!(std::fs::metadata(place)?.mode() & 0o777, 0o700);
        }
        // Open to others; no directory.
        std::fs::set_permissions(&second, PermissionsExt::from_mode(0o755))?;
        File::create(base.join("file"))?;
        for place in [&second, &base.join("file"), &base.join("file/code")] {
            assert_eq!(dir.keep_code_in(Some(place)), None);
            assert_eq!(link(), None);
        }
        // Nothing is kept; what was stays where it is.
        assert_eq!(dir.keep_code_in(Some(&first)).as_ref(), Some(&first));
        File::create(first.join("x"))?;
        for _ in 0..2 {
            assert_eq!(dir.keep_code_in(None), None);
            assert_eq!((link(), first.join("x").exists()), (None, true));
        }
        std::fs::remove_dir_all(&base)?;
        Ok(())
    }

    #[test]
    fn what_was_not_used_for_longest_goes() -> Result<(), Box<dyn std::error::Error>> {
        let base = std::env::temp_dir().join(format!("skep-code-sweep-{}", std::process::id()));
        drop(std::fs::remove_dir_all(&base));
        std::fs::create_dir(&base)?;
        let now = SystemTime::now();
        for (name, age) in [("old", 90), ("older", 100), ("new", 0), (".begun", 30), (".left", 70)]
        {
            let file = File::create(base.join(name))?;
            file.set_len(10)?;
            file.set_modified(now - Duration::from_secs(60 * age))?;
        }
        let names = || -> io::Result<Vec<String>> {
            let all = std::fs::read_dir(&base)?.flatten();
            let mut names: Vec<String> =
                all.map(|entry| entry.file_name().to_string_lossy().into_owned()).collect();
            names.sort();
            Ok(names)
        };
        sweep(&base, 30, 1000)?;
        assert_eq!(names()?, [".begun", "new", "old", "older"]);
        sweep(&base, 29, 1000)?;
        assert_eq!(names()?, [".begun", "new", "old"]);
        // A quarter of what would be free: ten, and less.
        sweep(&base, 29, 20)?;
        assert_eq!(names()?, [".begun", "new"]);
        sweep(&base, 29, 29)?;
        assert_eq!(names()?, [".begun"]);
        std::fs::remove_dir_all(&base)?;
        Ok(())
    }
}
