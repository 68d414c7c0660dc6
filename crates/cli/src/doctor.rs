//! `skep doctor`: what works on this machine, what does not, and why. The last checks trace a
//! command, and a program that runs.

use std::ffi::OsString;
use std::io::{Read as _, Write as _};
use std::os::unix::ffi::{OsStrExt as _, OsStringExt as _};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use serde_json::{Value as Json, json};
use skep::Dir;
use skep::code_cache::{self, ENV_CODE_CACHE};
use skep::dir::ENV_DIR;
use skep_proc::elf::{Elf, SymbolSource};
use skep_proc::maps::{Filter, Live, MapSource as _, Vma, Want};

use crate::agent::Library;
use crate::failure::{FAILED, Failure, Result};
use crate::printer::{Output, Printer};
use crate::units;
use crate::unmatched::debug_package;

/// How much a finding matters.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Grade {
    /// It works.
    Good,
    /// It works less well.
    Weak,
    /// Tracing does not work.
    Bad,
}

impl Grade {
    fn word(self) -> &'static str {
        match self {
            Self::Good => "ok",
            Self::Weak => "weak",
            Self::Bad => "fail",
        }
    }
}

/// One line of the result.
struct Finding {
    check: &'static str,
    grade: Grade,
    detail: String,
}

fn finding(check: &'static str, grade: Grade, detail: impl Into<String>) -> Finding {
    Finding { check, grade, detail: detail.into() }
}

/// Prints what works; fails when tracing does not.
pub fn run(as_json: bool, printer: Printer) -> Result<u8> {
    let findings = [
        system(),
        directory(),
        space(),
        library(),
        code_cache(),
        clock(),
        mappings(),
        barrier(),
        symbols(),
        compiler(),
        trace(),
        live(),
    ];
    if as_json {
        let one =
            |f: &Finding| json!({"check": f.check, "status": f.grade.word(), "detail": f.detail});
        printer.json(Output::Stdout, &findings.iter().map(one).collect::<Json>())?;
    } else {
        printer.data(Output::Stdout, |out| {
            findings.iter().try_for_each(|f| {
                writeln!(out, "{:4}  {:10}  {}", f.grade.word(), f.check, f.detail)
            })
        })?;
    }
    Ok(if findings.iter().any(|f| f.grade == Grade::Bad) { FAILED } else { 0 })
}

fn system() -> Finding {
    let name = rustix::system::uname();
    let (release, machine) = (name.release().to_string_lossy(), name.machine().to_string_lossy());
    let grade = if machine == "x86_64" { Grade::Good } else { Grade::Bad };
    finding("system", grade, format!("Linux {release} on {machine}"))
}

fn directory() -> Finding {
    let path = Dir::default_path();
    match Dir::create(&path) {
        Ok(dir) => {
            finding("directory", Grade::Good, format!("`{}` is private", dir.path().display()))
        }
        Err(e) => {
            finding("directory", Grade::Bad, format!("{e}; set {ENV_DIR} to another directory"))
        }
    }
}

/// File system type of tmpfs (include/uapi/linux/magic.h `TMPFS_MAGIC`).
const TMPFS: i64 = 0x0102_1994;

fn space() -> Finding {
    let path = Dir::default_path();
    let nearest = path.ancestors().find(|p| p.exists()).unwrap_or(Path::new("/"));
    match rustix::fs::statfs(nearest) {
        Err(e) => finding(
            "space",
            Grade::Weak,
            format!("cannot read the free space of `{}`: {e}", nearest.display()),
        ),
        Ok(fs) => {
            let free = fs.f_bavail.saturating_mul(u64::try_from(fs.f_bsize).unwrap_or(0));
            let memory = fs.f_type == TMPFS;
            let grade = if free < 16 << 20 {
                Grade::Bad
            } else if memory && free >= 256 << 20 {
                Grade::Good
            } else {
                Grade::Weak
            };
            let kind = if memory { "in memory (tmpfs)" } else { "on a disk: maps are slow there" };
            finding("space", grade, format!("{} free, {kind}", units::size(free)))
        }
    }
}

fn library() -> Finding {
    let found = Dir::create(&Dir::default_path())
        .map_err(Failure::from)
        .and_then(|dir| Library::find(&dir));
    match found {
        Ok(library) => finding("agent", Grade::Good, library.to_string()),
        Err(failure) => {
            let all: Vec<String> = [failure.message].into_iter().chain(failure.causes).collect();
            finding("agent", Grade::Bad, all.join("; "))
        }
    }
}

fn code_cache() -> Finding {
    match Dir::create(&Dir::default_path()).map(|dir| dir.keep_code()) {
        Ok(Some(place)) => {
            let files = std::fs::read_dir(&place).into_iter().flatten().flatten();
            let sizes = files.filter_map(|file| file.metadata().ok()).map(|meta| meta.len());
            let (count, size) = sizes.fold((0, 0), |(count, sum), size| (count + 1, sum + size));
            let place = place.display();
            let what = format!("`{place}` has {count} files, {}", units::size(size));
            finding("code cache", Grade::Good, what)
        }
        Ok(None) if code_cache::is_off() => finding("code cache", Grade::Good, "off"),
        _ => finding(
            "code cache",
            Grade::Weak,
            format!(
                "there is no place for it, so each process reads all code; name one in {ENV_CODE_CACHE}, \
                 or `off`"
            ),
        ),
    }
}

fn clock() -> Finding {
    let source =
        std::fs::read_to_string("/sys/devices/system/clocksource/clocksource0/current_clocksource");
    match source.as_deref().map(str::trim) {
        Ok("tsc") => finding("clock", Grade::Good, "time-stamp counter, as in the kernel"),
        Ok(other) => finding(
            "clock",
            Grade::Weak,
            format!("the kernel uses `{other}`: reading the time costs a system call"),
        ),
        Err(_) => finding(
            "clock",
            Grade::Weak,
            "the kernel does not name its clock source: reading the time costs a system call",
        ),
    }
}

fn mappings() -> Finding {
    match Live::own().map(|live| live.has_ioctl()) {
        Ok(true) => finding(
            "mappings",
            Grade::Good,
            "the kernel answers queries for one address (PROCMAP_QUERY)",
        ),
        Ok(false) => finding(
            "mappings",
            Grade::Weak,
            "the kernel has no PROCMAP_QUERY (Linux 6.11): all of /proc/PID/maps is read",
        ),
        Err(e) => finding("mappings", Grade::Bad, format!("cannot read own mappings: {e}")),
    }
}

fn barrier() -> Finding {
    use rustix::thread::MembarrierCommand;
    // The kernel's answer is a set of bits; the names are those of the commands.
    let all = rustix::thread::membarrier_query();
    if all.contains_command(MembarrierCommand::PrivateExpeditedSyncCore) {
        finding(
            "barrier",
            Grade::Good,
            "running threads can be synchronized with changed code (membarrier)",
        )
    } else {
        finding(
            "barrier",
            Grade::Weak,
            "the kernel has no membarrier SYNC_CORE: code that threads run cannot be patched",
        )
    }
}

/// Tells whether functions that the C library does not export have names, for which most machines lack a
/// package.
fn symbols() -> Finding {
    let is_it = |vma: &Vma| {
        let path = PathBuf::from(OsString::from_vec(vma.name.clone()?));
        let name = path.file_name()?.as_bytes();
        (name.starts_with(b"libc.so") || name.starts_with(b"libc-2.")).then_some(path)
    };
    let mapped = Live::own().and_then(|live| live.all(&Filter::default(), Want::NAME));
    let path = mapped.unwrap_or_default().iter().find_map(is_it);
    let path = path.as_deref().unwrap_or(Path::new("libc.so.6"));
    match Elf::open(path).and_then(|elf| elf.functions_at(path, Path::new("/"))) {
        Err(e) => finding("symbols", Grade::Weak, format!("cannot read `{}`: {e}", path.display())),
        Ok(all) => match all.source() {
            SymbolSource::DebugFile(from) => {
                let from = from.display();
                finding("symbols", Grade::Good, format!("those of the C library are in `{from}`"))
            }
            SymbolSource::Symtab => finding("symbols", Grade::Good, "the C library has its own"),
            _ => {
                let unnamed = all.iter().filter(|f| f.name.starts_with(b"sub_")).count();
                finding(
                    "symbols",
                    Grade::Weak,
                    format!(
                        "{unnamed} of {} functions of the C library have no name, and are called `sub_` and \
                         their address: {} (Debian), or `dnf debuginfo-install glibc` (Fedora)",
                        all.len(),
                        debug_package("libc.so.6")
                    ),
                )
            }
        },
    }
}

/// Tells whether programs of one's own can be compiled.
fn compiler() -> Finding {
    // As in https://docs.kernel.org/bpf/clang-notes.html.
    const OPTIONS: [&str; 7] = ["-target", "bpf", "-O2", "-c", "-xc", "-o/dev/null", "-"];
    let lacks = |what: String| {
        let hint =
            "for programs of your own, `apt install clang libbpf-dev linux-libc-dev` (Debian)";
        finding("compiler", Grade::Weak, format!("{what}: {hint}"))
    };
    match Command::new("clang").args(OPTIONS).stdin(Stdio::null()).output() {
        Ok(done) if done.status.success() => {
            finding("compiler", Grade::Good, "`clang` compiles for BPF")
        }
        Ok(done) => lacks(format!("`clang -target bpf` failed: {}", said(&done.stderr))),
        Err(_) => lacks("there is no `clang`".to_owned()),
    }
}

/// Traces `true` with this very program.
fn trace() -> Finding {
    match traced(&["--", "true"]) {
        Ok(report) => {
            let sites = &report["sites"];
            let time = units::time(report["attach_ns"].as_u64().unwrap_or(0));
            let (attached, matched) = (&sites["attached"], &sites["matched"]);
            let what = format!("{attached} of {matched} functions of `true` attached in {time}");
            finding("trace", Grade::Good, what)
        }
        Err(why) => finding("trace", Grade::Bad, format!("`skep trace '*' -- true` {why}")),
    }
}

/// Traces a program that runs already, and is no child of who traces it.
fn live() -> Finding {
    let weak = |why: String| finding("attach", Grade::Weak, why);
    let started = Command::new("cat").stdin(Stdio::piped()).stdout(Stdio::piped()).spawn();
    let mut cat = match started {
        Ok(cat) => cat,
        Err(e) => return weak(format!("cannot start `cat`: {e}")),
    };
    // When it answers it is beyond its start.
    let (input, output) = (cat.stdin.take(), cat.stdout.take());
    let answers = input.zip(output).is_some_and(|(mut input, mut output)| {
        let runs = input.write_all(b"\n").and_then(|()| output.read_exact(&mut [0])).is_ok();
        // Else it would end.
        cat.stdin = Some(input);
        runs
    });
    let pid = cat.id().to_string();
    let done = match answers {
        true => traced(&["-p", &pid, "--for", "1ms"]),
        false => Err("was not tried: `cat` does not answer".to_owned()),
    };
    drop(cat.stdin.take());
    let ended = cat.wait();
    match (done, ended) {
        (Ok(_), Ok(status)) if !status.success() => finding(
            "attach",
            Grade::Bad,
            format!("`cat` was traced while it ran, and died: {status}"),
        ),
        (Ok(report), _) => {
            let attached = &report["sites"]["attached"];
            let what = format!("{attached} functions of `cat` attached while it ran, and detached");
            finding("attach", Grade::Good, what)
        }
        (Err(why), _) => weak(format!("`skep trace -p`, of programs that run already, {why}")),
    }
}

/// Traces all functions of something with this very program; its report, or what went wrong.
fn traced(what: &[&str]) -> Result<Json, String> {
    let exe = std::env::current_exe().map_err(|e| format!("cannot find its own file: {e}"))?;
    let mut command = Command::new(exe);
    let output = command.args(["trace", "--json", "*"]).args(what).stdin(Stdio::null()).output();
    let output = output.map_err(|e| format!("cannot be started: {e}"))?;
    match serde_json::from_slice(&output.stdout) {
        Ok(report) if output.status.success() => Ok(report),
        _ => Err(format!("failed: {}", said(&output.stderr))),
    }
}

/// What a command says that fails: its error, and what to do about it.
fn said(stderr: &[u8]) -> String {
    let text = String::from_utf8_lossy(stderr);
    let after = |word: &str| text.lines().find_map(|l| Some(l.split_once(word)?.1.trim()));
    let Some(error) = after("error:").or(text.lines().next()) else {
        return "no message".to_owned();
    };
    match after("hint:") {
        Some(hint) => format!("{error}; {hint}"),
        None => error.to_owned(),
    }
}
