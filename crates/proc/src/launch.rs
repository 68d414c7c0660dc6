//! What running a command will do, looked at before doing it: which file it is, and whether
//! `LD_PRELOAD` reaches it.

use std::ffi::{OsStr, OsString};
use std::fmt;
use std::os::fd::OwnedFd;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

use rustix::fs::{Access, FileType, Mode};
use rustix::io::Errno;

use crate::elf::{self, Elf, ElfError};
use crate::file;

/// What `execvp` searches when `PATH` is not set.
const DEFAULT_PATH: &str = "/bin:/usr/bin";
/// How much of a file the kernel reads to find its interpreter.
const HEAD: usize = 256;
/// How many interpreters of interpreters the kernel follows.
const MAX_DEPTH: usize = 5;

/// Why a command cannot be run.
#[derive(Debug, thiserror::Error, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub enum LaunchError {
    /// No such file, or none of that name in `PATH`.
    #[error("`{name}` was not found", name = name.display())]
    NotFound {
        /// What was looked for.
        name: PathBuf,
    },
    /// The file may not be executed by us, or is not a regular file.
    #[error("`{path}` is not executable", path = path.display())]
    NotExecutable {
        /// The file.
        path: PathBuf,
    },
    /// A script names an interpreter that is not there.
    #[error("`{script}` needs the interpreter `{interpreter}`, which was not found", script = script.display(), interpreter = interpreter.display())]
    NoInterpreter {
        /// The script.
        script: PathBuf,
        /// What its first line names.
        interpreter: PathBuf,
    },
    /// Interpreters that are scripts themselves, deeper than the kernel follows.
    #[error("`{path}` goes through too many interpreters", path = path.display())]
    TooDeep {
        /// The first script.
        path: PathBuf,
    },
    /// The file is ELF but damaged.
    #[error("`{path}` cannot be read: {error}", path = path.display())]
    Damaged {
        /// The file.
        path: PathBuf,
        /// What is wrong with it.
        error: ElfError,
    },
    /// A system call failed.
    #[error("`{call}` of `{path}` failed: {errno}", path = path.display())]
    Os {
        /// The file.
        path: PathBuf,
        /// The call's name.
        call: &'static str,
        /// Its error.
        errno: Errno,
    },
}

/// How a program is linked.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Linkage {
    /// By this dynamic linker.
    Dynamic {
        /// Its path as the program names it.
        linker: PathBuf,
        /// A library of the program that ends it when any other is loaded before: the run-time
        /// part of `-fsanitize=address`.
        first: Option<String>,
        /// It names no library, so also no C library.
        is_alone: bool,
    },
    /// Without a dynamic linker.
    Static,
    /// For a machine or word size that is not ours.
    Foreign {
        /// `e_machine`.
        machine: u16,
        /// 32 or 64.
        bits: u8,
    },
}

/// A script and what its first line says.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Script {
    /// The script.
    pub path: PathBuf,
    /// The interpreter; `/bin/sh` for a file without a first line that names one, as `execvp`
    /// does.
    pub interpreter: PathBuf,
    /// The one argument that may follow it.
    pub argument: Option<OsString>,
}

/// What running a file will run.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Launch {
    /// The file asked for.
    pub path: PathBuf,
    /// The scripts on the way to the program; empty when `path` is the program.
    pub scripts: Vec<Script>,
    /// The ELF file that will run.
    pub program: PathBuf,
    /// How that is linked.
    pub linkage: Linkage,
    /// The program gains rights when run: the dynamic linker then ignores `LD_PRELOAD` with a
    /// path.
    pub secure: Option<Secure>,
}

/// Why a program runs in secure mode.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Secure {
    /// Set-user-id bit, and the owner is another user.
    SetUid,
    /// Set-group-id bit, and the group is another one.
    SetGid,
    /// File capabilities.
    Capabilities,
}

/// Why `LD_PRELOAD` will not load a library into a program.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Obstacle {
    /// There is no dynamic linker to do it.
    Static,
    /// The dynamic linker refuses.
    Secure(Secure),
    /// The library is for another machine or word size.
    Foreign {
        /// `e_machine`.
        machine: u16,
        /// 32 or 64.
        bits: u8,
    },
    /// The library needs glibc, the program has another C library.
    OtherLibc {
        /// The program's dynamic linker.
        linker: PathBuf,
    },
    /// The program has no C library, and may give its threads storage of its own in place of that which
    /// the dynamic linker has made for them and libraries use, as Go does in position-independent programs.
    NoLibrary,
    /// A library of the program must be loaded before all others.
    First {
        /// Its file name.
        library: String,
    },
}

impl fmt::Display for Obstacle {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Static => f.write_str("it is statically linked"),
            Self::Secure(Secure::SetUid) => {
                f.write_str("it is set-user-id, so the dynamic linker ignores `LD_PRELOAD`")
            }
            Self::Secure(Secure::SetGid) => {
                f.write_str("it is set-group-id, so the dynamic linker ignores `LD_PRELOAD`")
            }
            Self::Secure(Secure::Capabilities) => {
                f.write_str("it has file capabilities, so the dynamic linker ignores `LD_PRELOAD`")
            }
            Self::Foreign { machine: 62 | 3, bits } => write!(f, "it is a {bits}-bit x86 program"),
            Self::Foreign { machine, bits } => {
                write!(f, "it is a {bits}-bit program for another machine (ELF machine {machine})")
            }
            Self::NoLibrary => f.write_str("it has no C library"),
            Self::First { library } => write!(
                f,
                "its `{library}` must be loaded before all other libraries: put it in front with `LD_PRELOAD={library}` (for the command's children too)"
            ),
            Self::OtherLibc { linker } => {
                write!(f, "it uses another C library (`{}`)", linker.display())
            }
        }
    }
}

impl Launch {
    /// Why `LD_PRELOAD` of one library would not reach the program; `None` if it does.
    pub fn preload_obstacle(&self) -> Option<Obstacle> {
        match &self.linkage {
            Linkage::Static => return Some(Obstacle::Static),
            Linkage::Foreign { machine, bits } => {
                return Some(Obstacle::Foreign { machine: *machine, bits: *bits });
            }
            Linkage::Dynamic { linker, first, is_alone } => {
                if !is_glibc(linker) {
                    return Some(Obstacle::OtherLibc { linker: linker.clone() });
                }
                if self.secure.is_none() && *is_alone {
                    return Some(Obstacle::NoLibrary);
                }
                if let (None, Some(library)) = (self.secure, first) {
                    return Some(Obstacle::First { library: library.clone() });
                }
            }
        }
        self.secure.map(Obstacle::Secure)
    }
}

/// Finds a command as `execvp` does: a name with a slash is a path, another is searched in `path`
/// (the value of `PATH`; `None` if it is not set).
///
/// ```
/// let sh = skep_proc::launch::find("sh".as_ref(), Some("/nowhere:/bin".as_ref()))?;
/// assert_eq!(sh, std::path::Path::new("/bin/sh"));
/// # Ok::<(), skep_proc::launch::LaunchError>(())
/// ```
pub fn find(name: &OsStr, path: Option<&OsStr>) -> Result<PathBuf, LaunchError> {
    let not_found = || LaunchError::NotFound { name: name.into() };
    if name.is_empty() {
        return Err(not_found());
    }
    if name.as_bytes().contains(&b'/') {
        return check(Path::new(name)).map(|()| name.into());
    }
    let mut refused = None;
    for dir in path.unwrap_or(DEFAULT_PATH.as_ref()).as_bytes().split(|&b| b == b':') {
        // An empty part means the current directory.
        let dir = if dir.is_empty() { Path::new(".") } else { Path::new(OsStr::from_bytes(dir)) };
        let candidate = dir.join(name);
        match check(&candidate) {
            Ok(()) => return Ok(candidate),
            // In a directory that we may not search, nobody knows whether there is such a file; a
            // shell says that there is none, too.
            Err(e @ LaunchError::NotExecutable { .. })
                if rustix::fs::access(dir, Access::EXEC_OK).is_ok() =>
            {
                refused = refused.or(Some(e));
            }
            Err(_) => {}
        }
    }
    Err(refused.unwrap_or_else(not_found))
}

/// Looks at a file that is to be run.
pub fn inspect(path: impl AsRef<Path>) -> Result<Launch, LaunchError> {
    let path = path.as_ref();
    let mut scripts: Vec<Script> = Vec::new();
    let mut program = path.to_owned();
    loop {
        if let Err(e) = check(&program) {
            return Err(match (e, scripts.last()) {
                (LaunchError::NotFound { name }, Some(s)) => {
                    LaunchError::NoInterpreter { script: s.path.clone(), interpreter: name }
                }
                (e, _) => e,
            });
        }
        let fd = match file::open(&program) {
            Ok(fd) => fd,
            // Executable but not readable: it will run, and can neither be inspected nor traced.
            Err(errno) => return Err(LaunchError::Os { path: program, call: "open", errno }),
        };
        let head = read_head(&fd).map_err(|errno| LaunchError::Os {
            path: program.clone(),
            call: "read",
            errno,
        })?;
        if head.starts_with(b"\x7fELF") {
            let secure = secure(&program);
            let linkage = linkage(&program, fd, &head)
                .map_err(|error| LaunchError::Damaged { path: program.clone(), error })?;
            return Ok(Launch { path: path.to_owned(), scripts, program, linkage, secure });
        }
        if scripts.len() == MAX_DEPTH {
            return Err(LaunchError::TooDeep { path: path.to_owned() });
        }
        let script = script(&program, &head, scripts.is_empty())
            .ok_or(LaunchError::NotExecutable { path: program })?;
        program = script.interpreter.clone();
        scripts.push(script);
    }
}

fn check(path: &Path) -> Result<(), LaunchError> {
    let stat = rustix::fs::stat(path).map_err(|errno| match errno {
        Errno::NOENT | Errno::NOTDIR => LaunchError::NotFound { name: path.into() },
        Errno::ACCESS => LaunchError::NotExecutable { path: path.into() },
        errno => LaunchError::Os { path: path.into(), call: "stat", errno },
    })?;
    let regular = FileType::from_raw_mode(stat.st_mode) == FileType::RegularFile;
    if !regular || rustix::fs::access(path, Access::EXEC_OK).is_err() {
        return Err(LaunchError::NotExecutable { path: path.into() });
    }
    Ok(())
}

fn read_head(fd: &OwnedFd) -> Result<Vec<u8>, Errno> {
    let len = file::stat(fd)?.st_size.clamp(0, HEAD as i64) as usize;
    Ok(file::read_exact_at(fd, 0, len)?.unwrap_or_default())
}

/// What a file that is not ELF will run.
fn script(path: &Path, head: &[u8], first: bool) -> Option<Script> {
    first_line(path, head).or_else(|| {
        // Only the C library knows this rule, the kernel does not, so it does not hold for
        // interpreters. Like shells, refuse what looks binary.
        let text = !head.split(|&b| b == b'\n').next().unwrap_or_default().contains(&0);
        (first && text).then(|| Script {
            path: path.to_owned(),
            interpreter: "/bin/sh".into(),
            argument: None,
        })
    })
}

/// Reads the first line as the kernel does: blanks, interpreter, blanks, one argument up to the end
/// of the line.
fn first_line(path: &Path, head: &[u8]) -> Option<Script> {
    let blank = |b: &u8| *b == b' ' || *b == b'\t';
    let mut line = head.strip_prefix(b"#!")?;
    match line.iter().position(|&b| b == b'\n') {
        // Blanks at the end are cut off only if the line has an end.
        Some(end) => {
            line = line.get(..end)?;
            line = line.get(..line.iter().rposition(|b| !blank(b)).map_or(0, |n| n + 1))?;
        }
        // The name may go on beyond what the kernel reads: then there must at least be a blank
        // after it.
        None if head.len() == HEAD && !line.trim_ascii_start().iter().any(blank) => return None,
        None => {}
    }
    let rest = line.get(line.iter().position(|b| !blank(b))?..)?;
    let rest = rest.split(|&b| b == 0).next()?;
    let (name, rest) = rest.split_at(rest.iter().position(blank).unwrap_or(rest.len()));
    let argument = rest.iter().position(|b| !blank(b)).and_then(|at| rest.get(at..));
    (!name.is_empty()).then(|| Script {
        path: path.to_owned(),
        interpreter: PathBuf::from(OsStr::from_bytes(name)),
        argument: argument.map(|a| OsStr::from_bytes(a).to_owned()),
    })
}

/// Tells whether a dynamic linker of this name is glibc's.
fn is_glibc(linker: &Path) -> bool {
    let name = linker.file_name().unwrap_or_default().as_bytes();
    name.starts_with(b"ld-linux")
        || name.starts_with(b"ld-2")
        || name == b"ld.so.1"
        || name == b"ld.so"
}

fn linkage(path: &Path, fd: OwnedFd, head: &[u8]) -> Result<Linkage, ElfError> {
    let machine = elf::u16_at(head, 18);
    if head.get(4) != Some(&2) || head.get(5) != Some(&1) || machine != elf::EM_X86_64 {
        let big = head.get(5) == Some(&2);
        let machine = if big { machine.swap_bytes() } else { machine };
        return Ok(Linkage::Foreign {
            machine,
            bits: if head.get(4) == Some(&1) { 32 } else { 64 },
        });
    }
    let elf = Elf::from_file(fd)?;
    let Some(interp) = elf.segments().iter().find(|s| s.kind == elf::PT_INTERP) else {
        // A dynamic linker that is run by its name loads another program.
        let musl = path.file_name().is_some_and(|n| n.as_bytes().starts_with(b"ld-musl"));
        let is_linker = elf.kind() == elf::ET_DYN && (is_glibc(path) || musl);
        return Ok(if is_linker {
            Linkage::Dynamic { linker: path.to_owned(), first: None, is_alone: false }
        } else {
            Linkage::Static
        });
    };
    let name = elf.read("interpreter", interp.offset, interp.file_size.min(4096))?;
    let name = name.split(|&b| b == 0).next().unwrap_or_default();
    let first = elf
        .needed()?
        .into_iter()
        .find(|n| n.starts_with(b"libasan.so") || n.starts_with(b"libclang_rt.asan"));
    let first = first.map(|n| String::from_utf8_lossy(&n).into_owned());
    let is_alone = !elf.names_libraries()?;
    Ok(Linkage::Dynamic { linker: PathBuf::from(OsStr::from_bytes(name)), first, is_alone })
}

/// Tells whether the kernel will set `AT_SECURE`, from our own ids.
fn secure(path: &Path) -> Option<Secure> {
    let stat = rustix::fs::stat(path).ok()?;
    let mode = Mode::from_raw_mode(stat.st_mode);
    let (uid, gid) = own_ids()?;
    if mode.contains(Mode::SUID) && stat.st_uid != uid {
        return Some(Secure::SetUid);
    }
    // Without the group's execute bit, set-group-id means mandatory locking.
    if mode.contains(Mode::SGID | Mode::XGRP) && stat.st_gid != gid {
        return Some(Secure::SetGid);
    }
    // Root gains nothing by file capabilities.
    let mut none = [0u8; 0];
    (uid != 0 && rustix::fs::getxattr(path, "security.capability", &mut none).is_ok())
        .then_some(Secure::Capabilities)
}

/// Real user and group id of this process.
fn own_ids() -> Option<(u32, u32)> {
    let status = file::read("/proc/self/status", 1 << 16).ok()?;
    let field = |name: &[u8]| {
        let line = status.split(|&b| b == b'\n').find_map(|l| l.strip_prefix(name))?;
        str::from_utf8(line).ok()?.split_ascii_whitespace().next()?.parse().ok()
    };
    Some((field(b"Uid:")?, field(b"Gid:")?))
}
