//! Patterns without wildcards that match no function: an error before the command starts, with
//! similar names.
//!
//! The search covers what the agent will see when the program starts: the program and the libraries
//! it is linked with. What the command opens or executes later is not known, so
//! `--allow-unmatched` skips the check.

use std::borrow::Cow;
use std::ffi::{OsStr, OsString};
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::sync::OnceLock;

use skep::link::Pattern;
use skep_proc::demangle::{bare, demangle};
use skep_proc::elf::{Elf, Functions, SymbolSource};
use skep_proc::launch::{self, Linkage};
use skep_proc::libraries::{self, Environment};
use skep_proc::maps::entry_of;

use crate::failure::{ENVIRONMENT, Failure, Result};
use crate::report::file_name;

/// Most names that are offered.
const NEAR: usize = 4;

/// Names that the user knows programs by, and the files that these are: `redis-server` may be a link to
/// another name.
static PROGRAMS: OnceLock<Vec<(String, String)>> = OnceLock::new();

/// Lets patterns name the program of a command as the command does.
pub fn know_command(command: &[OsString]) {
    let path = std::env::var_os("PATH");
    let found = command.first().and_then(|name| launch::find(name, path.as_deref()).ok());
    know(found.and_then(|path| Some((path.clone(), std::fs::canonicalize(path).ok()?))));
}

/// Lets patterns name the programs of processes as these were started.
pub fn know_processes(pids: &[u32]) {
    know(pids.iter().flat_map(|pid| {
        let of = |name: &str| format!("/proc/{}/{name}", entry_of(*pid));
        let program = std::fs::read_link(of("exe")).ok();
        // What a server tells of itself may follow behind a space.
        let first = |name| {
            let words = std::fs::read(of(name)).ok()?;
            let first = words.split(|byte| matches!(byte, 0 | b' ' | b'\n')).next()?;
            Some((PathBuf::from(OsStr::from_bytes(first)), program.clone()?))
        };
        [first("cmdline"), first("comm")].into_iter().flatten().collect::<Vec<_>>()
    }));
}

fn know(programs: impl IntoIterator<Item = (PathBuf, PathBuf)>) {
    let known = programs.into_iter().filter_map(|(name, file)| {
        let name = name.file_name().filter(|name| file.file_name() != Some(*name))?.to_str()?;
        let file = file.to_str().filter(|file| !file.contains(SPECIAL))?;
        Some((name.to_owned(), file.to_owned()))
    });
    // A command has one of the two.
    let _ = PROGRAMS.set(known.collect());
}

/// Characters that mean something in patterns.
const SPECIAL: [char; 5] = ['*', '?', '[', '\\', ':'];

/// The file that is meant by a module's name where that is another name of it.
fn other_name(module: &str) -> Option<String> {
    if !module.contains('/') {
        let mut known = PROGRAMS.get()?.iter();
        return known.find(|(name, _)| name == module).map(|(_, file)| file.clone());
    }
    if module == "/proc/self/exe" {
        return None;
    }
    let real = std::fs::canonicalize(module).ok()?.into_os_string().into_string().ok()?;
    (!real.contains(SPECIAL)).then_some(real)
}

/// Takes lists of patterns apart and reads each. A module given as a path goes by the file it leads
/// to, and a program that is known by another name than its file's, too.
pub fn patterns(lists: &[String]) -> Result<Vec<String>> {
    let mut all = Vec::new();
    for list in lists {
        let parts = Pattern::list(list);
        if parts.is_empty() {
            list.parse::<Pattern>()?;
        }
        for part in parts {
            let mut pattern: Pattern = part.parse()?;
            if let Some(module) = pattern.module.as_mut()
                && let Some(file) = other_name(module)
            {
                *module = file;
            }
            all.push(pattern.to_string());
        }
    }
    Ok(all)
}

/// A module of the program, and its functions when they were asked for.
struct Module {
    path: String,
    main: bool,
    functions: Option<Functions>,
}

impl Module {
    fn functions(&mut self) -> Option<&Functions> {
        if self.functions.is_none() {
            let path = Path::new(&self.path);
            self.functions =
                Elf::open(path).and_then(|e| e.functions_at(path, Path::new("/"))).ok();
        }
        self.functions.as_ref()
    }

    fn is_meant(&self, pattern: &Pattern) -> bool {
        pattern.matches_module(&self.path)
            || self.main && pattern.module.as_deref() == Some("/proc/self/exe")
    }
}

/// Fails with the first pattern that means one function and matches none of those that the command
/// will have when it starts.
///
/// Says nothing where that cannot be known: of a program that cannot be traced or read, or whose
/// libraries are not all found.
pub fn check(command: &[OsString], patterns: &[String]) -> Result {
    let plain: Vec<Pattern> =
        patterns.iter().filter_map(|p| p.parse().ok()).filter(Pattern::is_plain).collect();
    let Some(name) = command.first().filter(|_| !plain.is_empty()) else { return Ok(()) };
    let Some(paths) = modules(name) else { return Ok(()) };
    let mut modules: Vec<Module> = paths
        .into_iter()
        .enumerate()
        .map(|(i, p)| Module {
            path: p.to_string_lossy().into_owned(),
            main: i == 0,
            functions: None,
        })
        .collect();
    for pattern in &plain {
        // The kernel's and our own module have no place in the tables.
        if pattern
            .module
            .as_deref()
            .is_some_and(|m| m.starts_with('[') || m.contains("libskep_preload"))
        {
            continue;
        }
        let meant = |m: &&mut Module| m.is_meant(pattern);
        if !modules.iter().any(|m| m.is_meant(pattern)) {
            return Err(no_module(pattern, &modules, &name.to_string_lossy()));
        }
        // Most names are symbols. Small files first: what is asked for is seldom in the largest
        // library.
        let mut files: Vec<&str> =
            modules.iter().filter(|m| m.is_meant(pattern)).map(|m| m.path.as_str()).collect();
        files.sort_by_cached_key(|path| std::fs::metadata(path).map_or(0, |m| m.len()));
        let quick = |path: &&str| {
            Elf::open(path).and_then(|e| e.has_function_symbol(pattern.function.as_bytes()))
                == Ok(true)
        };
        if files.iter().any(quick) {
            continue;
        }
        let mut unread = false;
        let found = modules.iter_mut().filter(meant).any(|m| match m.functions() {
            Some(functions) => has(functions, pattern),
            None => {
                unread = true;
                false
            }
        });
        if !found && !unread {
            return Err(no_function(pattern, &mut modules, &name.to_string_lossy()));
        }
    }
    Ok(())
}

/// Finds the files that the command maps when it starts, the program first.
fn modules(name: &OsString) -> Option<Vec<PathBuf>> {
    let path = launch::find(name, std::env::var_os("PATH").as_deref()).ok()?;
    let found = launch::inspect(path).ok()?;
    let linker = match &found.linkage {
        Linkage::Dynamic { linker, .. } => linker,
        // The agent is put in, where that is allowed.
        Linkage::Static if found.secure.is_none() => return Some(vec![found.program]),
        _ => return None,
    };
    if found.preload_obstacle().is_some() {
        return None;
    }
    let all = libraries::of(&found.program, linker, &Environment::own());
    // `ld.so PROGRAM` runs another program than the one that is seen here.
    let is_linker = std::fs::canonicalize(linker).is_ok_and(|l| all.paths.first() == Some(&l));
    (all.missing.is_empty() && !is_linker).then_some(all.paths)
}

fn names(functions: &Functions) -> impl Iterator<Item = Cow<'_, str>> {
    functions
        .iter()
        .flat_map(|f| f.symbols().map(|s| String::from_utf8_lossy(s.name)).collect::<Vec<_>>())
}

/// Tells whether one of the functions is meant, in the way of the agent: by symbol, alias,
/// demangled name, or that without arguments.
fn has(functions: &Functions, pattern: &Pattern) -> bool {
    // Most names are symbols: those are looked at before anything is demangled.
    names(functions).any(|name| pattern.matches_function(&name))
        || functions.iter().any(|f| {
            let symbol = f.name_lossy();
            let Cow::Owned(name) = demangle(&symbol) else { return false };
            pattern.matches_function(&name) || pattern.matches_function(bare(&name))
        })
}

/// How unlike two names are; `None`: too much to be a typo.
fn distance(wanted: &str, name: &str) -> Option<usize> {
    let longest = wanted.chars().count().max(3) / 3;
    if wanted.len().abs_diff(name.len()) > longest {
        return None;
    }
    let apart = strsim::osa_distance(wanted, name);
    let same_letters = wanted.to_lowercase() == name.to_lowercase();
    if same_letters { Some(0) } else { (apart <= longest).then_some(apart) }
}

/// The names that are most like the one wanted.
fn near<'a>(wanted: &str, all: impl Iterator<Item = Cow<'a, str>>) -> Vec<String> {
    let mut near: Vec<(usize, String)> =
        all.filter_map(|n| Some((distance(wanted, &n)?, n.into_owned()))).collect();
    near.sort();
    near.dedup();
    near.into_iter().take(NEAR).map(|(_, n)| n).collect()
}

fn unmatched(message: String, near: &[String], unnamed: Option<String>, program: &str) -> Failure {
    let quoted: Vec<String> = near.iter().map(|n| format!("`{n}`")).collect();
    let meant = if near.is_empty() {
        String::new()
    } else {
        format!("similar names are {}; ", quoted.join(", "))
    };
    let unnamed = unnamed.map_or(String::new(), |unnamed| unnamed + "; ");
    Failure { status: ENVIRONMENT, ..Failure::failed(message) }.hint(format!(
        "{meant}{unnamed}use `--allow-unmatched` if `{program}` opens or executes it later"
    ))
}

fn no_module(pattern: &Pattern, modules: &[Module], program: &str) -> Failure {
    let wanted = pattern.module.as_deref().unwrap_or_default();
    let stem = |path: &str| {
        let file = file_name(path);
        file.split_once(".so").map_or(file, |(stem, _)| stem).to_owned()
    };
    let both =
        modules.iter().flat_map(|m| [Cow::Owned(stem(&m.path)), Cow::Borrowed(file_name(&m.path))]);
    let near = near(file_name(wanted), both);
    unmatched(
        format!("pattern `{pattern}`: `{program}` is not linked with `{wanted}`"),
        &near,
        None,
        program,
    )
}

fn no_function(pattern: &Pattern, modules: &mut [Module], program: &str) -> Failure {
    let meant = modules.iter_mut().filter(|m| m.is_meant(pattern));
    let wanted = bare(&pattern.function);
    let mut all: Vec<String> = Vec::new();
    for module in meant {
        if let Some(functions) = module.functions() {
            all.extend(near(wanted, names(functions)));
            let demangled = functions.iter().filter_map(|f| match demangle(&f.name_lossy()) {
                Cow::Owned(name) => Some(Cow::Owned(bare(&name).to_owned())),
                Cow::Borrowed(_) => None,
            });
            all.extend(near(wanted, demangled));
        }
    }
    let near = near(wanted, all.into_iter().map(Cow::Owned));
    let mut meant = modules.iter_mut().filter(|m| m.is_meant(pattern));
    let unnamed = match &pattern.module {
        Some(_) => meant.find_map(unnamed),
        // Every library may be stripped; the program is what most names are looked for in.
        None => meant.find(|m| m.main).and_then(unnamed),
    };
    let (lacks, hint) = unnamed.unzip();
    let place = match (&pattern.module, lacks) {
        (Some(_), Some(lacks)) => lacks,
        (Some(module), None) => format!("`{module}` has no such function"),
        (None, Some(lacks)) => {
            format!("no library that `{program}` is linked with has such a symbol, and {lacks}")
        }
        (None, None) => {
            format!("neither `{program}` nor a library it is linked with has such a function")
        }
    };
    unmatched(format!("pattern `{pattern}` matches nothing: {place}"), &near, hint, program)
}

/// Says what a module without symbols lacks, and what its functions are called; `None`: it has symbols.
fn unnamed(module: &mut Module) -> Option<(String, String)> {
    let functions = module.functions()?;
    let is_unnamed = |name: &str| name.starts_with("sub_") || name == "_start";
    if !matches!(functions.source(), SymbolSource::None | SymbolSource::Dynsym)
        || !names(functions).any(|name| name.starts_with("sub_"))
    {
        return None;
    }
    let exported = if names(functions).all(|name| is_unnamed(&name)) {
        ""
    } else {
        " except for functions that it exports"
    };
    let file = file_name(&module.path);
    Some((
        format!("`{file}` has no symbols{exported}"),
        format!(
            "functions without one are called `sub_` and their address: '{file}:sub_*' matches them; \
             their names are in the file's debug file (Debian: {}), or in a build without `strip`",
            debug_package(file)
        ),
    ))
}

/// The same of a program that nothing was found in, if one of the patterns was meant for it.
pub fn unnamed_program(path: &str, patterns: &[String]) -> Option<(String, String)> {
    let mut program = Module { path: path.to_owned(), main: true, functions: None };
    let mut all = patterns.iter().filter_map(|p| p.parse::<Pattern>().ok());
    if all.any(|pattern| program.is_meant(&pattern)) { unnamed(&mut program) } else { None }
}

/// The package with a file's symbols.
pub fn debug_package(file: &str) -> &'static str {
    if file == "libc.so.6" { "`apt install libc6-dbg`" } else { "package `NAME-dbgsym`" }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn near_names_are_typos_and_other_letter_cases() {
        let all = ["malloc", "calloc", "mallopt", "free", "MALLOC", "pvalloc", "sqlite3_step"];
        let near = |wanted| near(wanted, all.iter().map(|n| Cow::Borrowed(*n)));
        assert_eq!(near("maloc"), ["malloc"]);
        assert_eq!(near("malloc_"), ["malloc", "calloc", "mallopt"]);
        assert_eq!(near("Malloc")[..2], ["MALLOC", "malloc"]);
        assert_eq!(near("sqlite_step"), ["sqlite3_step"]);
        assert!(near("nothing_like_it").is_empty());
    }
}
