//! ELF files made by gcc at test time, compared with what binutils say of them.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use skep_proc::elf::{Elf, Kind, SymbolSource};
use skep_testkit::skip;

/// A directory that goes away with the test.
struct Dir(PathBuf);

impl Dir {
    fn new(name: &str) -> Self {
        let path = std::env::temp_dir().join(format!("skep-proc-{name}-{}", std::process::id()));
        fs::create_dir_all(&path).unwrap();
        Self(path)
    }

    fn cc(&self, source: &str, out: &str, flags: &[&str]) -> PathBuf {
        let c = self.0.join(format!("{out}.c"));
        fs::write(&c, source).unwrap();
        let out = self.0.join(out);
        let status = Command::new("cc").args(flags).arg("-o").arg(&out).arg(&c).status().unwrap();
        assert!(status.success());
        out
    }
}

impl Drop for Dir {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.0);
    }
}

fn run(tool: &str, args: &[&str], file: &Path) -> Option<String> {
    let out = Command::new(tool).args(args).arg(file).output().ok()?;
    out.status.success().then(|| String::from_utf8_lossy(&out.stdout).into_owned())
}

const PROGRAM: &str = r#"
#include <stdio.h>
#include <stdlib.h>
__attribute__((noinline, cold)) static void cold_path(int n) { fprintf(stderr, "%d\n", n); exit(n); }
__attribute__((noinline)) static int inner(int n) { char b[64]; if (n > 100) cold_path(n); sprintf(b, "%d", n); return b[0] + n; }
__attribute__((noinline)) int outer(int n) { int s = 0; for (int i = 0; i < n; i++) s += inner(i); return s; }
extern int outer_alias(int) __attribute__((alias("outer")));
extern int __outer(int) __attribute__((alias("outer")));
static int one(int x) { return x + 1; }
static void *pick(void) { return one; }
int chosen(int) __attribute__((ifunc("pick")));
__asm__(".text\n.globl no_size\n.type no_size,@function\nno_size: nop; nop; ret\n.globl next\n.type next,@function\nnext: ret\n.size next,1\n");
int main(int c, char **v) { (void)v; return outer(c) + outer_alias(c) + chosen(c); }
"#;

/// Names by address as `nm` tells them: functions of the text, without versions.
fn nm(file: &Path, flags: &[&str]) -> Option<BTreeMap<u64, BTreeSet<String>>> {
    let text = run("nm", flags, file)?;
    let mut out: BTreeMap<u64, BTreeSet<String>> = BTreeMap::new();
    for line in text.lines() {
        let fields: Vec<_> = line.split_whitespace().collect();
        let [addr, kind, name] = fields[..] else { continue };
        if matches!(kind, "T" | "t" | "W" | "w" | "i") {
            let name = name.split_once('@').map_or(name, |(n, _)| n);
            out.entry(u64::from_str_radix(addr, 16).unwrap()).or_default().insert(name.to_owned());
        }
    }
    Some(out)
}

fn ours(elf: &Elf) -> BTreeMap<u64, BTreeSet<String>> {
    let functions = elf.functions().unwrap();
    functions
        .iter()
        .map(|f| {
            (f.vaddr, f.symbols().map(|s| String::from_utf8_lossy(s.name).into_owned()).collect())
        })
        .collect()
}

#[test]
fn functions_are_those_of_nm() {
    let dir = Dir::new("nm");
    for flags in [
        &["-O2", "-fPIE", "-pie"][..],
        &["-O2", "-no-pie"],
        &["-O2", "-static"],
        &["-O2", "-fPIC", "-shared"],
    ] {
        let file = dir.cc(PROGRAM, "program", flags);
        let elf = Elf::open(&file).unwrap();
        let Some(mut expected) = nm(&file, &[]) else { return skip("nm") };
        let have = ours(&elf);
        // `nm` also lists symbols without a type (`_start` helpers of the C library in assembly)
        // and PLT, init, fini.
        let not = elf.not_functions();
        expected.retain(|a, _| !not.iter().any(|r| r.contains(a)));
        for (addr, names) in &have {
            let theirs =
                expected.get(addr).unwrap_or_else(|| panic!("{addr:x} {names:?} {flags:?}"));
            assert!(names.is_subset(theirs), "{names:?} {theirs:?}");
        }
        for (addr, names) in &expected {
            // A function of assembly may have labels without a type at its first instruction.
            let missing =
                |n: &&String| !have.get(addr).is_some_and(|h| h.contains(*n)) && !untyped(&file, n);
            let missing: Vec<_> = names.iter().filter(missing).collect();
            assert!(missing.is_empty(), "{addr:x} {missing:?} missing in {flags:?}");
        }
    }
}

/// Tells whether `readelf` says that a symbol is not a function.
fn untyped(file: &Path, name: &str) -> bool {
    let text = run("readelf", &["-sW"], file).unwrap_or_default();
    let types: Vec<_> = text
        .lines()
        .filter_map(|l| {
            let f: Vec<_> = l.split_whitespace().collect();
            (f.get(7)?.split('@').next()? == name).then(|| f[3].to_owned())
        })
        .collect();
    types.iter().all(|t| t == "NOTYPE")
}

#[test]
fn aliases_ifuncs_and_missing_sizes() {
    let dir = Dir::new("alias");
    let file = dir.cc(PROGRAM, "program", &["-O2"]);
    let functions = Elf::open(&file).unwrap().functions().unwrap();
    assert_eq!(*functions.source(), SymbolSource::Symtab);
    let by_name = |name: &str| {
        functions.iter().find(|f| f.symbols().any(|s| s.name == name.as_bytes())).unwrap()
    };
    let outer = by_name("__outer");
    assert_eq!(outer.name_lossy(), "outer");
    let aliases: Vec<_> =
        outer.aliases().map(|s| String::from_utf8_lossy(s.name).into_owned()).collect();
    assert_eq!(aliases, ["outer_alias", "__outer"]);
    assert_eq!(by_name("chosen").kind, Kind::Ifunc);
    assert_eq!(by_name("pick").name_lossy(), "chosen");
    assert_eq!(outer.kind, Kind::Func);
    let no_size = by_name("no_size");
    assert!(no_size.size_guessed);
    assert_eq!(no_size.size, by_name("next").vaddr - no_size.vaddr);
    assert_eq!(functions.at(outer.vaddr).unwrap().name, b"outer");
    assert!(functions.at(outer.vaddr + 1).is_none());
    assert_eq!(functions.covering(outer.vaddr + 1).unwrap().name, b"outer");
}

#[test]
fn stripped_programs_keep_their_functions() {
    let dir = Dir::new("strip");
    let file = dir.cc(PROGRAM, "program", &["-O2"]);
    let full = ours(&Elf::open(&file).unwrap());
    if run("strip", &[], &file).is_none() {
        return skip("strip");
    }
    let elf = Elf::open(&file).unwrap();
    let functions = elf.functions().unwrap();
    assert_eq!(*functions.source(), SymbolSource::Dynsym);
    let names: Vec<_> = functions.iter().map(|f| f.name_lossy().into_owned()).collect();
    for (vaddr, old) in &full {
        let has = |n: &str| old.contains(n);
        if has("outer") || has("inner") || has("cold_path") || has("main") {
            let f = functions.at(*vaddr).unwrap_or_else(|| panic!("{old:?} not among {names:?}"));
            assert_eq!(f.name_lossy(), format!("sub_{vaddr:x}"));
        }
        if has("_start") {
            assert_eq!(functions.at(*vaddr).unwrap().name_lossy(), "_start");
        }
    }
    // Nothing is invented: each start is one that the symbols had.
    for f in functions.iter() {
        assert!(full.contains_key(&f.vaddr), "{}", f.name_lossy());
    }
}

/// `sstrip` and packers remove the section headers; the unwind tables are still found, through
/// their program header.
#[test]
fn files_without_section_headers() {
    let dir = Dir::new("sstrip");
    let file = dir.cc(PROGRAM, "program", &["-O2"]);
    let whole = Elf::open(&file).unwrap();
    let mut bytes = fs::read(&file).unwrap();
    bytes[40..48].fill(0);
    bytes[58..64].fill(0);
    let elf = Elf::from_bytes(bytes).unwrap();
    assert!(elf.sections().is_empty());
    assert_eq!(elf.fdes().unwrap(), whole.fdes().unwrap());
    assert_eq!(elf.build_id(), whole.build_id());
    let functions = elf.functions().unwrap();
    assert_eq!(*functions.source(), SymbolSource::None);
    for f in whole
        .functions()
        .unwrap()
        .iter()
        .filter(|f| [&b"main"[..], b"outer", b"inner", b"cold_path"].contains(&f.name))
    {
        assert_eq!(functions.at(f.vaddr).unwrap().name_lossy(), format!("sub_{:x}", f.vaddr));
    }
}

#[test]
fn relocatable_files_are_refused() {
    let dir = Dir::new("object");
    let file = dir.cc(PROGRAM, "object.o", &["-c"]);
    let error = Elf::open(file).unwrap().functions().unwrap_err();
    assert_eq!(
        error.to_string(),
        "unsupported ELF file: functions of a file that is neither program nor library"
    );
}

#[test]
fn cold_parts_are_no_functions() {
    let source = r#"
        #include <stdexcept>
        long sink(long, long);
        struct Guard { long x; ~Guard(); };
        extern "C" long hot(long a, long b) {
            Guard g{a}, h{b};
            sink(a, b);
            if (a == b) throw std::runtime_error("equal");
            return sink(b, a) + a + b;
        }"#;
    let dir = Dir::new("cold");
    let (cc, file) = (dir.0.join("cold.cc"), dir.0.join("cold.so"));
    fs::write(&cc, source).unwrap();
    if !Command::new("g++")
        .args(["-O2", "-fPIC", "-shared", "-o"])
        .arg(&file)
        .arg(&cc)
        .status()
        .is_ok_and(|s| s.success())
    {
        return skip("g++");
    }
    let elf = Elf::open(&file).unwrap();
    let functions = elf.functions().unwrap();
    let find = |name: &str| functions.iter().find(|f| f.name == name.as_bytes());
    let (hot, Some(cold)) = (find("hot").unwrap(), find("hot.cold")) else {
        return skip("a compiler that splits functions");
    };
    let fdes = elf.fdes().unwrap();
    let fde = |at| *fdes.iter().find(|f| f.start == at).unwrap();
    assert!(fde(hot.vaddr).function_entry);
    assert!(!fde(cold.vaddr).function_entry);
    assert!(cold.is_cold() && !hot.is_cold());
    assert_eq!(fde(hot.vaddr).end, hot.vaddr + hot.size);
}

/// Code as glibc's `clone3` and the virtual machines of interpreters have it: with unwind
/// information, and no function.
const ODD: &str = r#"
__asm__(
    ".text\n.p2align 4\n"
    // A function, and in its middle the place where a new thread begins.
    ".type whole,@function\nwhole:\n.cfi_startproc\nnop\nret\n.cfi_endproc\n"
    "thread:\n.cfi_startproc\n.cfi_undefined rip\nxorl %ebp,%ebp\nhlt\n.cfi_endproc\n.size whole,.-whole\n"
    // Reached by a jump, with a frame of 80 bytes.
    ".type handler,@function\nhandler:\n.cfi_startproc\n.cfi_def_cfa_offset 80\nnop\nnop\njmp *%rbx\n.cfi_endproc\n.size handler,.-handler\n"
    // The way back from a signal handler.
    ".type restorer,@function\nrestorer:\n.cfi_startproc\n.cfi_signal_frame\nmov $15,%eax\nsyscall\n.cfi_endproc\n.size restorer,.-restorer\n"
    // A part of a function: a register is saved already.
    "part:\n.cfi_startproc\n.cfi_offset rbx,-16\nnop\njmp whole\n.cfi_endproc\n"
    // The return address is elsewhere, and in a register.
    "moved:\n.cfi_startproc\n.cfi_offset rip,-16\nnop\nret\n.cfi_endproc\n"
    "kept:\n.cfi_startproc\n.cfi_register rip,rdx\nnop\njmp *%rdx\n.cfi_endproc\n"
    // The frame pointer holds the CFA.
    "framed:\n.cfi_startproc\n.cfi_def_cfa rbp,8\nnop\nret\n.cfi_endproc\n"
    // Only a table's rule in words of its own; what it says is not looked at.
    "worded:\n.cfi_startproc\n.cfi_escape 0x0f,0x03,0x77,0x08,0x06\nnop\nret\n.cfi_endproc\n"
    ".data\nplaces: .quad whole,thread,handler,restorer,part,moved,kept,framed,worded\n.text\n");
int main(void) { return 0; }
"#;

/// A place in glibc's `clone3` that no return leads out of was taken for a function and hooked,
/// where no symbol said otherwise.
#[test]
fn a_piece_without_a_return_address_on_top_is_no_function() {
    let dir = Dir::new("odd");
    let file = dir.cc(ODD, "odd", &["-O1"]);
    let Some(text) = run("nm", &[], &file) else { return skip("nm") };
    let at = |name: &str| {
        let line = text
            .lines()
            .find(|l| l.split_whitespace().nth(2) == Some(name))
            .unwrap_or_else(|| panic!("{name}: {text}"));
        u64::from_str_radix(line.split(' ').next().unwrap(), 16).unwrap()
    };
    let fdes = Elf::open(&file).unwrap().fdes().unwrap();
    let entry = |name: &str| {
        fdes.iter().find(|f| f.start == at(name)).unwrap_or_else(|| panic!("{name}")).function_entry
    };
    assert!(entry("whole") && entry("main"));
    let others = ["thread", "handler", "restorer", "part", "moved", "kept", "framed", "worded"];
    assert_eq!(others.map(entry), [false; 8]);
    if run("strip", &[], &file).is_none() {
        return skip("strip");
    }
    let functions = Elf::open(&file).unwrap().functions().unwrap();
    assert!(functions.at(at("whole")).is_some() && functions.at(at("main")).is_some());
    assert_eq!(
        others.map(|name| functions.at(at(name)).map(|f| f.name_lossy().into_owned())),
        [const { None }; 8]
    );
}

#[test]
fn unwind_ranges_are_those_of_readelf() {
    let dir = Dir::new("fde");
    let file = dir.cc(PROGRAM, "program", &["-O2", "-static"]);
    let Some(text) = run("readelf", &["--debug-dump=frames"], &file) else {
        return skip("readelf");
    };
    let mut expected = BTreeSet::new();
    for line in text.lines().filter(|l| l.contains(" FDE ")) {
        let Some((a, b)) = line.rsplit_once("pc=").and_then(|(_, r)| r.split_once("..")) else {
            continue;
        };
        let hex = |s: &str| u64::from_str_radix(s.trim(), 16).unwrap();
        expected.insert((hex(a), hex(b)));
    }
    assert!(expected.len() > 100);
    let elf = Elf::open(&file).unwrap();
    let have: BTreeSet<_> = elf.fdes().unwrap().iter().map(|f| (f.start, f.end)).collect();
    let text = elf.text();
    expected.retain(|(a, b)| a < b && text.iter().any(|t| t.contains(a)));
    assert_eq!(have, expected);
}

#[test]
fn debug_files_are_found_and_checked() {
    let dir = Dir::new("debug");
    for id in ["-Wl,--build-id", "-Wl,--build-id=none"] {
        let file = dir.cc(PROGRAM, "program", &["-O2", id]);
        let full = ours(&Elf::open(&file).unwrap());
        let (path, debug) = (file.to_str().unwrap(), dir.0.join("program.debug"));
        let debug_name = debug.to_str().unwrap();
        let objcopy = |args: &[&str]| {
            Command::new("objcopy")
                .current_dir(&dir.0)
                .args(args)
                .status()
                .is_ok_and(|s| s.success())
        };
        if !objcopy(&["--only-keep-debug", path, debug_name]) {
            return skip("objcopy");
        }
        assert!(objcopy(&["--strip-all", "--add-gnu-debuglink=program.debug", path]));
        let functions = || Elf::open(&file).unwrap().functions_at(&file, Path::new("/")).unwrap();
        let found = functions();
        assert_eq!(*found.source(), SymbolSource::DebugFile(debug.clone()));
        let have: BTreeMap<u64, BTreeSet<String>> = found
            .iter()
            .map(|f| {
                (
                    f.vaddr,
                    f.symbols().map(|s| String::from_utf8_lossy(s.name).into_owned()).collect(),
                )
            })
            .collect();
        assert_eq!(have, full);
        // In `.debug/`, and below `/usr/lib/debug` of another root.
        fs::create_dir_all(dir.0.join(".debug")).unwrap();
        fs::rename(&debug, dir.0.join(".debug/program.debug")).unwrap();
        assert_eq!(
            *functions().source(),
            SymbolSource::DebugFile(dir.0.join(".debug/program.debug"))
        );
        // One of another build is refused: by id, or by checksum.
        let other = dir.cc("int main(void) { return 3; }", "other", &["-g", id]);
        fs::rename(&other, &debug).unwrap();
        fs::remove_file(dir.0.join(".debug/program.debug")).unwrap();
        assert_eq!(*functions().source(), SymbolSource::Dynsym);
    }
}

#[test]
fn patchable_entries_name_their_functions() {
    let dir = Dir::new("patchable");
    for flags in [
        &["-O2", "-fpatchable-function-entry=5", "-fcf-protection=none"][..],
        &["-O2", "-fpatchable-function-entry=5", "-fcf-protection=none", "-no-pie"],
        &["-O2", "-fpatchable-function-entry=5", "-fcf-protection=none", "-fPIC", "-shared"],
        &[
            "-O2",
            "-fpatchable-function-entry=5",
            "-fcf-protection=none",
            "-Wl,-z,pack-relative-relocs",
        ],
        &["-O2", "-fpatchable-function-entry=5", "-fcf-protection=full"],
    ] {
        let source = PROGRAM.replace("int main(", "int mainly(")
            + "int main(int c, char **v) { return mainly(c, v); }";
        let file = dir.cc(&source, "program", flags);
        let elf = Elf::open(&file).unwrap();
        let functions = elf.functions().unwrap();
        let entries = elf.patchable_entries().unwrap();
        assert_eq!(elf.loaded_section("__patchable_function_entries").unwrap().end % 8, 0);
        let skip = if flags.contains(&"-fcf-protection=full") { 4 } else { 0 };
        let named: BTreeSet<_> = entries
            .iter()
            .filter_map(|e| functions.at(e - skip).or_else(|| functions.at(*e)))
            .map(|f| f.name_lossy().into_owned())
            .collect();
        for name in ["outer", "inner", "main", "mainly", "cold_path"] {
            assert!(named.contains(name), "{name} {named:?} {flags:?}");
        }
        for e in &entries {
            assert_eq!(elf.read_vaddr(*e, 5).unwrap(), [0x90; 5], "{e:x}");
        }
    }
}

#[test]
fn mcount_locations_point_at_calls() {
    let dir = Dir::new("mcount");
    let flags = [
        "-O2",
        "-pg",
        "-mfentry",
        "-mrecord-mcount",
        "-mnop-mcount",
        "-fno-pic",
        "-no-pie",
        "-fcf-protection=none",
    ];
    let file = dir.cc(
        "int f(int x) { return x + 1; } int main(int c, char **v) { (void)v; return f(c); }",
        "m",
        &flags,
    );
    let elf = Elf::open(&file).unwrap();
    let functions = elf.functions().unwrap();
    let names: BTreeSet<_> = elf
        .mcount_locations()
        .unwrap()
        .iter()
        .map(|a| functions.at(*a).unwrap().name_lossy().into_owned())
        .collect();
    assert_eq!(names, BTreeSet::from(["f".to_owned(), "main".to_owned()]));
}

#[test]
fn xray_sleds_name_their_functions() {
    let dir = Dir::new("xray");
    let c = dir.0.join("x.c");
    fs::write(&c, "int f(int x) { return x + 1; }").unwrap();
    let file = dir.0.join("x.so");
    let clang = ["clang", "clang-19"]
        .into_iter()
        .find(|c| Command::new(c).arg("--version").output().is_ok_and(|o| o.status.success()));
    let Some(clang) = clang else { return skip("clang") };
    let args = ["-O1", "-fPIC", "-fxray-instrument", "-fxray-instruction-threshold=1"];
    let mut cmd = Command::new(clang);
    cmd.args(args).arg("-c").arg("-o").arg(dir.0.join("x.o")).arg(&c);
    if !cmd.status().is_ok_and(|s| s.success()) {
        return skip("a clang with XRay");
    }
    let status = Command::new("cc")
        .args(["-shared", "-nostdlib", "-o"])
        .arg(&file)
        .arg(dir.0.join("x.o"))
        .status()
        .unwrap();
    assert!(status.success());
    let elf = Elf::open(&file).unwrap();
    let f = elf.functions().unwrap();
    let f = f.iter().find(|f| f.name == b"f").unwrap();
    let sleds = elf.xray_sleds().unwrap();
    assert_eq!(sleds.iter().map(|s| s.kind).collect::<Vec<_>>(), [0, 1]);
    assert!(
        sleds.iter().all(|s| s.function == f.vaddr && f.range().contains(&s.vaddr)),
        "{sleds:x?} {f:x?}"
    );
}

#[test]
fn build_ids_are_those_of_readelf() {
    let dir = Dir::new("id");
    for (flag, len) in [
        ("sha1", 20),
        ("md5", 16),
        ("0x01", 1),
        ("0x000102030405060708090a0b0c0d0e0f101112131415161718191a1b1c1d1e1f", 32),
    ] {
        let file =
            dir.cc("int main(void) { return 0; }", "id", &[&format!("-Wl,--build-id={flag}")]);
        let id = Elf::open(&file).unwrap().build_id().unwrap();
        assert_eq!(id.0.len(), len);
        if let Some(hex) = flag.strip_prefix("0x") {
            // readelf prints nothing for an id of one byte.
            assert_eq!(id.to_string(), hex);
            continue;
        }
        let Some(text) = run("readelf", &["-n"], &file) else { return skip("readelf") };
        assert!(text.contains(&format!("Build ID: {id}\n")), "{text}");
    }
    let file = dir.cc("int main(void) { return 0; }", "id", &["-Wl,--build-id=none"]);
    assert_eq!(Elf::open(&file).unwrap().build_id(), None);
}
