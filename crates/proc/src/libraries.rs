//! The libraries that a program is linked with, found as the dynamic linker finds them, without
//! running anything.
//!
//! The order is that of ld.so(8): `DT_RPATH` of the object that asks and of those that asked for
//! it, `LD_LIBRARY_PATH`, `DT_RUNPATH`, `/etc/ld.so.cache`, the standard directories. Libraries
//! that are opened later (`dlopen`) are in no table, and audit modules may change everything; what
//! is not found is named in [`Libraries::missing`].

use std::collections::{HashSet, VecDeque};
use std::ffi::{OsStr, OsString};
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::path::{Path, PathBuf};

use crate::elf::{self, Elf};
use crate::file;

const DT_NEEDED: u64 = 1;
const DT_STRTAB: u64 = 5;
const DT_STRSZ: u64 = 10;
const DT_SONAME: u64 = 14;
const DT_RPATH: u64 = 15;
const DT_RUNPATH: u64 = 29;

/// Where libraries are when nothing else says where (Debian's, Fedora's and other systems' choices
/// for x86-64).
const DIRS: [&str; 6] = [
    "/lib/x86_64-linux-gnu",
    "/usr/lib/x86_64-linux-gnu",
    "/lib64",
    "/usr/lib64",
    "/lib",
    "/usr/lib",
];
/// Builds of a library for newer processors lie in such directories below.
const HWCAPS: [&str; 3] =
    ["glibc-hwcaps/x86-64-v4", "glibc-hwcaps/x86-64-v3", "glibc-hwcaps/x86-64-v2"];
const CACHE: &str = "/etc/ld.so.cache";
const PRELOAD: &str = "/etc/ld.so.preload";
/// No program has so many; a loop of links might.
const MOST: usize = 10_000;

/// What the environment says to the dynamic linker.
#[derive(Clone, Debug, Default)]
pub struct Environment {
    /// `LD_LIBRARY_PATH`.
    pub library_path: Option<OsString>,
    /// `LD_PRELOAD`.
    pub preload: Option<OsString>,
}

impl Environment {
    /// Reads that of this process.
    pub fn own() -> Self {
        let var = |name| std::env::var_os(name).filter(|v| !v.is_empty());
        Self { library_path: var("LD_LIBRARY_PATH"), preload: var("LD_PRELOAD") }
    }
}

/// The modules of a program before it runs.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Libraries {
    /// Real paths in the order of loading: the program, what is preloaded, what it needs, what
    /// those need; the dynamic linker last.
    pub paths: Vec<PathBuf>,
    /// Names that were not found.
    pub missing: Vec<OsString>,
}

/// What one object says of its libraries.
struct Object {
    dir: PathBuf,
    needed: Vec<Vec<u8>>,
    soname: Option<Vec<u8>>,
    /// Directories to search before all others; empty when there is a `runpath`.
    rpath: Vec<PathBuf>,
    runpath: Vec<PathBuf>,
}

/// Finds the libraries of a dynamically linked program.
///
/// ```
/// use skep_proc::libraries::{self, Environment};
/// let found = libraries::of("/bin/sh".as_ref(), "/lib64/ld-linux-x86-64.so.2".as_ref(), &Environment::default());
/// assert!(found.missing.is_empty() && found.paths.iter().any(|p| p.ends_with("libc.so.6")));
/// ```
pub fn of(program: &Path, linker: &Path, environment: &Environment) -> Libraries {
    let mut found = Libraries::default();
    let mut names: HashSet<Vec<u8>> = HashSet::new();
    let mut queue: VecDeque<Object> = VecDeque::new();
    let cache = file::read(CACHE, 64 << 20).unwrap_or_default();
    let mut add = |path: &Path, queue: &mut VecDeque<Object>, inherited: &[PathBuf]| {
        let real = std::fs::canonicalize(path).unwrap_or_else(|_| path.to_owned());
        if found.paths.contains(&real) {
            return;
        }
        if let Some(object) = Object::read(&real, inherited) {
            names.extend(object.soname.clone());
            queue.push_back(object);
        }
        found.paths.push(real);
    };
    add(program, &mut queue, &[]);
    let listed = file::read(PRELOAD, 1 << 20).unwrap_or_default();
    let listed = listed
        .split(|b| *b == b'\n')
        .map(|l| l.split(|b| *b == b'#').next().unwrap_or_default())
        .collect::<Vec<_>>()
        .join(&b' ');
    let asked = environment.preload.as_ref().map(|p| p.as_bytes().to_vec()).unwrap_or_default();
    let mut first: Vec<Vec<u8>> = Vec::new();
    for list in [asked, listed] {
        first.extend(
            list.split(|b| matches!(b, b' ' | b':' | b'\t'))
                .filter(|n| !n.is_empty())
                .map(<[u8]>::to_vec),
        );
    }
    let mut seen: HashSet<Vec<u8>> = HashSet::new();
    let mut missing = Vec::new();
    let search = Search {
        library_path: paths(
            environment.library_path.as_deref().unwrap_or_default().as_bytes(),
            None,
        ),
        cache: &cache,
    };
    let mut preloading = true;
    while let Some(mut object) = queue.pop_front() {
        if std::mem::take(&mut preloading) {
            // A preloaded library that is not found is passed over with a warning.
            for path in first.iter().filter_map(|name| search.find(name, &object)) {
                add(&path, &mut queue, &[]);
            }
        }
        for name in std::mem::take(&mut object.needed) {
            if !seen.insert(name.clone()) || seen.len() > MOST {
                continue;
            }
            match search.find(&name, &object) {
                Some(path) => add(&path, &mut queue, &object.rpath),
                None => missing.push(name),
            }
        }
    }
    add(linker, &mut queue, &[]);
    // Some object may have brought the name with it.
    found.missing =
        missing.into_iter().filter(|n| !names.contains(n)).map(OsString::from_vec).collect();
    found
}

impl Object {
    /// Reads an object's dynamic section; `inherited` is the `DT_RPATH` of those that asked for it.
    fn read(path: &Path, inherited: &[PathBuf]) -> Option<Self> {
        let elf = Elf::open(path).ok().filter(|e| e.machine() == elf::EM_X86_64)?;
        let dynamic = elf.segments().iter().find(|s| s.kind == elf::PT_DYNAMIC)?;
        let table = elf.read_vaddr(dynamic.vaddr, dynamic.file_size.min(1 << 20)).ok()?;
        let entries: Vec<(u64, u64)> = table
            .chunks_exact(16)
            .map(|e| (elf::u64_at(e, 0), elf::u64_at(e, 8)))
            .take_while(|e| e.0 != 0)
            .collect();
        let one = |tag| entries.iter().find(|e| e.0 == tag).map(|e| e.1);
        let strings = elf.read_vaddr(one(DT_STRTAB)?, one(DT_STRSZ)?).ok()?;
        let text = |at: u64| {
            Some(strings.get(usize::try_from(at).ok()?..)?.split(|b| *b == 0).next()?.to_vec())
        };
        let list = |tag: u64| {
            entries.iter().filter(|e| e.0 == tag).filter_map(|e| text(e.1)).collect::<Vec<_>>()
        };
        let dir = path.parent().unwrap_or(Path::new("/")).to_owned();
        let dirs = |tag| list(tag).iter().flat_map(|l| paths(l, Some(&dir))).collect::<Vec<_>>();
        let (runpath, mut rpath) = (dirs(DT_RUNPATH), dirs(DT_RPATH));
        if runpath.is_empty() {
            rpath.extend_from_slice(inherited);
        } else {
            rpath.clear();
        }
        Some(Self {
            needed: list(DT_NEEDED),
            soname: one(DT_SONAME).and_then(text),
            dir,
            rpath,
            runpath,
        })
    }
}

struct Search<'a> {
    library_path: Vec<PathBuf>,
    cache: &'a [u8],
}

impl Search<'_> {
    fn find(&self, name: &[u8], object: &Object) -> Option<PathBuf> {
        if name.contains(&b'/') {
            return paths(name, Some(&object.dir)).into_iter().find(|p| fits(p));
        }
        let name = OsStr::from_bytes(name);
        let within = |dirs: &[PathBuf]| {
            let inside = |dir: &PathBuf| {
                let newer = HWCAPS.iter().map(|sub| dir.join(sub).join(name));
                [dir.join(name)].into_iter().chain(newer).find(|p| fits(p))
            };
            dirs.iter().find_map(inside)
        };
        within(&object.rpath)
            .or_else(|| within(&self.library_path))
            .or_else(|| within(&object.runpath))
            .or_else(|| cached(self.cache, name.as_bytes()).find(|p| fits(p)))
            .or_else(|| within(&DIRS.map(PathBuf::from)))
    }
}

/// Tells whether the dynamic linker would take the file: it passes over those for other machines.
fn fits(path: &Path) -> bool {
    path.is_file() && Elf::open(path).is_ok_and(|e| e.machine() == elf::EM_X86_64)
}

/// Takes a list of directories apart and puts in what stands for the object's own directory, `lib`
/// and the processor.
fn paths(list: &[u8], origin: Option<&Path>) -> Vec<PathBuf> {
    let mut all = Vec::new();
    for part in list
        .split(|b| matches!(b, b':' | b';'))
        .filter(|p| !p.is_empty() || origin.is_none() && !list.is_empty())
    {
        let text = String::from_utf8_lossy(part);
        let origin = origin.map(|o| o.to_string_lossy()).unwrap_or_default();
        let put = |text: &str, name: &str, value: &str| {
            text.replace(&format!("${{{name}}}"), value).replace(&format!("${name}"), value)
        };
        let text = put(&put(&text, "ORIGIN", &origin), "PLATFORM", "x86_64");
        // Which one is built into the dynamic linker.
        let libs = if text.contains("$LIB") || text.contains("${LIB}") {
            &["lib/x86_64-linux-gnu", "lib64", "lib"][..]
        } else {
            &[""]
        };
        all.extend(
            libs.iter()
                .map(|lib| put(&text, "LIB", lib))
                .map(|p| PathBuf::from(if p.is_empty() { ".".to_owned() } else { p })),
        );
    }
    all
}

/// Looks a name up in the cache (glibc sysdeps/generic/dl-cache.h), which may have an older one
/// before it.
fn cached<'a>(cache: &'a [u8], name: &'a [u8]) -> impl Iterator<Item = PathBuf> + 'a {
    const OLD: &[u8] = b"ld.so-1.7.0\0";
    const NEW: &[u8] = b"glibc-ld.so.cache1.1";
    const HEADER: usize = 48;
    const ENTRY: usize = 24;
    /// For the 64-bit C library of x86-64.
    const FLAGS: u32 = 0x0303;
    let number = |bytes: &[u8], at: usize| {
        bytes.get(at..at + 4).and_then(|b| b.try_into().ok()).map_or(0, u32::from_le_bytes) as usize
    };
    let new = if cache.starts_with(OLD) {
        let end = number(cache, OLD.len()).saturating_mul(12).saturating_add(OLD.len() + 4);
        cache.get(end.next_multiple_of(8)..).unwrap_or_default()
    } else {
        cache
    };
    let new = if new.starts_with(NEW) { new } else { &[] };
    let text = |at: usize| new.get(at..)?.split(|b| *b == 0).next();
    let entries =
        new.get(HEADER..).unwrap_or_default().chunks_exact(ENTRY).take(number(new, NEW.len()));
    let mut hits: Vec<(bool, &[u8])> = entries
        .filter(|e| number(e, 0) as u32 == FLAGS && text(number(e, 4)) == Some(name))
        .filter_map(|e| Some((elf::u64_at(e, 16) != 0, text(number(e, 8))?)))
        .collect();
    // Those for newer processors have the same functions; whether they are taken is not known here.
    hits.sort_by_cached_key(|hit| u64::from(hit.0));
    hits.into_iter().map(|(_, path)| PathBuf::from(OsStr::from_bytes(path)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn variables_of_the_dynamic_linker_are_put_in() {
        let list = |text: &str, origin: Option<&str>| {
            paths(text.as_bytes(), origin.map(Path::new))
                .iter()
                .map(|p| p.display().to_string())
                .collect::<Vec<_>>()
                .join(" ")
        };
        assert_eq!(
            list("$ORIGIN/../lib:/opt/${PLATFORM}", Some("/app/bin")),
            "/app/bin/../lib /opt/x86_64"
        );
        assert_eq!(list("/x/$LIB", Some("/")), "/x/lib/x86_64-linux-gnu /x/lib64 /x/lib");
        assert_eq!(
            (list("a;b", None), list("a::b", None), list("", None)),
            ("a b".into(), "a . b".into(), String::new())
        );
    }

    #[test]
    fn our_own_libraries_are_those_that_are_mapped() -> Result<(), Box<dyn std::error::Error>> {
        let exe = std::env::current_exe()?;
        let found = of(&exe, "/lib64/ld-linux-x86-64.so.2".as_ref(), &Environment::own());
        assert_eq!((found.missing.len(), found.paths.first()), (0, Some(&exe)));
        let mapped: Vec<PathBuf> =
            crate::module::own()?.into_iter().map(|m| m.path).filter(|p| p.has_root()).collect();
        assert!(found.paths.iter().all(|p| mapped.contains(p)), "{found:?} {mapped:?}");
        let libc =
            Elf::open(found.paths.iter().find(|p| p.ends_with("libc.so.6")).ok_or("no libc")?)?;
        assert_eq!(
            (libc.has_function_symbol(b"malloc")?, libc.has_function_symbol(b"maloc")?),
            (true, false)
        );
        assert!(!libc.has_function_symbol(b"environ")?, "a variable is no function");
        Ok(())
    }

    #[test]
    fn the_cache_is_read_whatever_is_in_it() {
        let mut cache = b"glibc-ld.so.cache1.1".to_vec();
        cache.extend(3_u32.to_le_bytes());
        cache.resize(48, 0);
        let strings = 48 + 3 * 24;
        let entry = |flags: u32, key: usize, value: usize, hwcap: u64| {
            [flags.to_le_bytes(), (key as u32).to_le_bytes(), (value as u32).to_le_bytes(), [0; 4]]
                .concat()
                .into_iter()
                .chain(hwcap.to_le_bytes())
        };
        cache.extend(
            entry(0x303, strings, strings + 5, 1 << 62)
                .chain(entry(0x303, strings, strings + 8, 0))
                .chain(entry(3, strings, strings, 0)),
        );
        cache.extend(b"a.so\0/n\0/o\0");
        let found = |cache: &[u8]| {
            cached(cache, b"a.so").map(|p| p.display().to_string()).collect::<Vec<_>>()
        };
        assert_eq!(found(&cache), ["/o", "/n"]);
        let old =
            [b"ld.so-1.7.0\0".as_slice(), &1_u32.to_le_bytes(), &[0; 12], &[0; 4], &cache].concat();
        assert_eq!(found(&old), ["/o", "/n"]);
        for end in 0..cache.len() {
            found(&cache[..end]);
        }
        cache[20..24].fill(0xff);
        cache[52..60].fill(0xff);
        assert_eq!(found(&cache), ["/o"]);
    }
}
