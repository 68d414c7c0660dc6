//! Debug files from debuginfod servers, with `--debuginfod` only.
//!
//! The network is left to programs that know it: `debuginfod-find` of elfutils if it is installed, else
//! `curl`. Both use the directory of elfutils' client, so that nothing is fetched twice by whatever
//! program.

use std::ffi::OsString;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use skep_proc::elf::BuildId;
use skep_proc::symbolize::Fetch;

use crate::failure::{Failure, Result};
use crate::printer::Printer;

const URLS: &str = "DEBUGINFOD_URLS";

/// Prepares to fetch.
pub fn fetch(printer: Printer) -> Result<Fetch> {
    let urls = std::env::var(URLS).unwrap_or_default();
    let urls: Vec<String> =
        urls.split_ascii_whitespace().map(|url| url.trim_end_matches('/').to_owned()).collect();
    if urls.is_empty() {
        return Err(Failure::environment(format!("`{URLS}` names no server"))
            .hint(format!("such as `{URLS}=https://debuginfod.debian.net`")));
    }
    Ok(Fetch::new(move |id| {
        let found = cached(id).or_else(|| by_elfutils(id)).or_else(|| by_curl(id, &urls));
        if found.is_none() {
            printer.warning(&format!("no server has the debug file of build id {id}"));
        }
        found
    }))
}

/// Where elfutils' client has, or will have, the debug file.
fn place(id: &BuildId) -> Option<PathBuf> {
    let var = |name| std::env::var_os(name).map(PathBuf::from).filter(|p| p.is_absolute());
    let cache = var("DEBUGINFOD_CACHE_PATH").or_else(|| {
        let cache = var("XDG_CACHE_HOME").or_else(|| Some(var("HOME")?.join(".cache")));
        Some(cache?.join("debuginfod_client"))
    });
    Some(cache?.join(id.to_string()).join("debuginfo"))
}

/// Files without bytes say that no server had it some time ago; that is asked again.
fn cached(id: &BuildId) -> Option<PathBuf> {
    place(id).filter(|path| path.metadata().is_ok_and(|m| m.is_file() && m.len() > 0))
}

fn by_elfutils(id: &BuildId) -> Option<PathBuf> {
    let done = quiet("debuginfod-find").arg("debuginfo").arg(id.to_string()).output().ok()?;
    let line = done.stdout.split(|byte| *byte == b'\n').next().filter(|_| done.status.success())?;
    Some(PathBuf::from(std::ffi::OsStr::from_bytes(line))).filter(|path| path.is_absolute())
}

fn by_curl(id: &BuildId, urls: &[String]) -> Option<PathBuf> {
    let path = place(id)?;
    std::fs::create_dir_all(path.parent()?).ok()?;
    let mut part = OsString::from(&path);
    part.push(format!(".{}", std::process::id()));
    let part = Path::new(&part);
    let found = urls.iter().any(|url| {
        let mut curl = quiet("curl");
        // Ten minutes at most, a minute without a byte; only the protocols of debuginfod.
        curl.args(["-q", "--silent", "--fail", "--location", "--max-redirs", "5"])
            .args(["--proto", "=http,https", "--connect-timeout", "10", "--max-time", "600"])
            .args(["--speed-limit", "1", "--speed-time", "60", "--output"])
            .arg(part)
            .arg("--")
            .arg(format!("{url}/buildid/{id}/debuginfo"));
        curl.status().is_ok_and(|status| status.success())
    });
    if found && std::fs::rename(part, &path).is_ok() {
        return Some(path);
    }
    let _ = std::fs::remove_file(part);
    None
}

fn quiet(program: &str) -> Command {
    let mut command = Command::new(program);
    command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::null());
    command
}
