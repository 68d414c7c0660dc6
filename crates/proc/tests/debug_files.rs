//! Wherever a compiler, a linker or a package puts debug information, the answers are those that the
//! whole file has; and those are the ones of binutils.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use skep_proc::elf::Elf;
use skep_proc::symbolize::{SymbolFile, Want};
use skep_testkit::TempDir;
use skep_testkit::run::run;
use skep_testkit::skip::{has_command, skip};

const LIMIT: Duration = Duration::from_secs(300);
const ALL: Want = Want { lines: true, inlined: true };

fn fixture(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/fixtures").join(name)
}

fn tool(dir: &TempDir, command: &[&str]) {
    let (name, args) = command.split_first().unwrap();
    let ended = run(Command::new(name).args(args).current_dir(dir.path()), b"", LIMIT);
    assert_eq!(ended.shell_status(), 0, "{command:?} {}", ended.transcript());
}

/// Compiles one of the two programs, which is `name` then.
fn build(dir: &TempDir, compiler: &str, number: &str, name: &str, flags: &[&str]) -> PathBuf {
    let source = fixture(&format!("shared_{number}.c"));
    let base = [compiler, "-O2", "-g", "-Wl,--build-id=sha1"];
    let last = ["-o", name, source.to_str().unwrap()];
    tool(dir, &[&base[..], flags, &last].concat());
    dir.join(name)
}

fn code(path: &Path) -> Vec<u64> {
    Elf::open(path).unwrap().section(".text").unwrap().range().collect()
}

/// Lines as `addr2line -fi` prints them, with an address before each.
fn said(file: &mut SymbolFile, addrs: &[u64]) -> Vec<String> {
    let answers = file.find(addrs, ALL);
    let mut lines = Vec::new();
    for addr in addrs {
        let answer = answers.get(*addr).unwrap();
        let nearest = answer.nearest().map(|symbol| symbol.first_name);
        let file_of_symbol = answer.nearest().and_then(|symbol| symbol.file);
        let text =
            |bytes: Option<&[u8]>| String::from_utf8_lossy(bytes.unwrap_or(b"??")).into_owned();
        let number = |line| if line == 0 { "?".to_owned() } else { format!("{line}") };
        for (at, frame) in answer.frames().enumerate() {
            let name = frame.name.or(nearest.filter(|_| at == 0));
            let line = number(frame.line);
            lines.push(format!("{addr:x} {} {}:{line}", text(name), text(frame.file)));
        }
        if answer.frames().len() == 0 {
            let line = if nearest.is_some() { "?" } else { "0" };
            lines.push(format!("{addr:x} {} {}:{line}", text(nearest), text(file_of_symbol)));
        }
    }
    lines
}

fn of(path: &Path, addrs: &[u64]) -> Vec<String> {
    said(&mut SymbolFile::open(path).unwrap(), addrs)
}

/// The same by binutils.
fn by_binutils(path: &Path, addrs: &[u64]) -> Vec<String> {
    let input: String = addrs.iter().map(|addr| format!("{addr:#x}\n")).collect();
    let mut command = Command::new("addr2line");
    let ended = run(command.arg("-afie").arg(path), input.as_bytes(), LIMIT);
    assert_eq!(ended.shell_status(), 0, "{}", ended.transcript());
    let text = String::from_utf8(ended.stdout).unwrap();
    let mut lines = text.lines().peekable();
    let mut out = Vec::new();
    let mut addr = 0;
    while let Some(line) = lines.next() {
        if let Some(hex) = line.strip_prefix("0x") {
            addr = u64::from_str_radix(hex, 16).unwrap();
            continue;
        }
        let place = lines.next().unwrap();
        let place = place.split(" (disc").next().unwrap();
        out.push(format!("{addr:x} {line} {place}"));
    }
    out
}

#[track_caller]
fn same(got: &[String], want: &[String]) {
    for (got, want) in got.iter().zip(want) {
        assert_eq!(got, want);
    }
    assert_eq!(got.len(), want.len());
}

/// Programs that were compiled have functions that were inlined three deep.
fn whole(dir: &TempDir, compiler: &str, number: &str, flags: &[&str]) -> (PathBuf, Vec<String>) {
    let path = build(dir, compiler, number, &format!("whole-{number}"), flags);
    let want = of(&path, &code(&path));
    assert!(want.iter().any(|line| line.contains(" sum_of_numbers ")), "{want:?}");
    assert!(want.iter().any(|line| line.contains(&format!(" outer_{number} "))), "{want:?}");
    (path, want)
}

/// `dwz` moves what several files have in common to another one, as packages of Debian and Fedora do.
#[test]
fn what_files_have_in_common_is_read_from_the_alternate_file() {
    if !has_command("dwz") {
        return skip("dwz");
    }
    for flags in [&["-gdwarf-4"][..], &["-gdwarf-5"]] {
        let dir = TempDir::new();
        let (one, want) = whole(&dir, "cc", "one", flags);
        let (two, want_two) = whole(&dir, "cc", "two", flags);
        if has_command("addr2line") {
            same(&want, &by_binutils(&one, &code(&one)));
        }
        // Of one file alone.
        fs::copy(&one, dir.join("alone")).unwrap();
        tool(&dir, &["dwz", "alone"]);
        same(&of(&dir.join("alone"), &code(&one)), &want);
        for (how, section) in [(&[][..], ".gnu_debugaltlink"), (&["--dwarf-5"], ".debug_sup")] {
            for (path, name) in [(&one, "one"), (&two, "two")] {
                fs::copy(path, dir.join(name)).unwrap();
            }
            tool(&dir, &[&["dwz"], how, &["-m", "common", "one", "two"]].concat());
            let elf = Elf::open(dir.join("one")).unwrap();
            assert!(elf.section(section).is_some(), "{section}");
            same(&of(&dir.join("one"), &code(&one)), &want);
            same(&of(&dir.join("two"), &code(&two)), &want_two);
            // Not where the process runs: relative to the file, also when a link leads there.
            fs::create_dir_all(dir.join("links")).unwrap();
            let link = dir.join("links").join(section);
            std::os::unix::fs::symlink(dir.join("one"), &link).unwrap();
            same(&of(&link, &code(&one)), &want);
            // Another file of that name is none.
            let common = fs::read(dir.join("common")).unwrap();
            fs::copy(&one, dir.join("common")).unwrap();
            let without = of(&dir.join("one"), &code(&one));
            assert!(!without.iter().any(|line| line.contains(" sum_of_numbers ")), "{without:?}");
            // Below the directory of debug files, by its build id.
            if section == ".gnu_debugaltlink" {
                let root = dir.join("root");
                install(&root, &common);
                let elf = Elf::open(dir.join("one")).unwrap();
                let path = fs::canonicalize(dir.join("one")).unwrap();
                let below = root.join(path.strip_prefix("/").unwrap());
                fs::create_dir_all(below.parent().unwrap()).unwrap();
                fs::copy(&path, &below).unwrap();
                let mut file = SymbolFile::new(elf, &path, &root).unwrap();
                same(&said(&mut file, &code(&one)), &want);
            }
            fs::remove_file(dir.join("common")).unwrap();
        }
    }
}

/// Whatever is wrong with the file that others have something in common in, the symbols are named, and what
/// lines there are, are those of the file itself.
#[test]
fn a_damaged_alternate_file_takes_no_names_away() {
    if !has_command("dwz") || !has_command("objcopy") {
        return skip("dwz and objcopy");
    }
    let dir = TempDir::new();
    let (one, want) = whole(&dir, "cc", "one", &[]);
    let (two, _) = whole(&dir, "cc", "two", &[]);
    fs::copy(&one, dir.join("one")).unwrap();
    fs::copy(&two, dir.join("two")).unwrap();
    tool(&dir, &["dwz", "-m", "common", "one", "two"]);
    let addrs = code(&one);
    let common = fs::read(dir.join("common")).unwrap();
    let named = dir.join("one");
    let check = |path: &Path| {
        let mut file = SymbolFile::open(path).unwrap();
        let said = said(&mut file, &addrs);
        let answers = file.find(&addrs, Want::default());
        let names = addrs.iter().filter_map(|a| Some(answers.get(*a)?.symbol()?.name));
        assert!(names.into_iter().any(|name| name == b"outer_one"));
        said
    };
    same(&check(&named), &want);
    // It is not there, or is nothing to read from.
    fs::remove_file(dir.join("common")).unwrap();
    let without = check(&named);
    assert!(without != want && without.iter().any(|line| line.contains("shared_one.c:")));
    fs::create_dir(dir.join("common")).unwrap();
    same(&check(&named), &without);
    fs::remove_dir(dir.join("common")).unwrap();
    run(Command::new("mkfifo").arg(dir.join("common")), b"", LIMIT);
    same(&check(&named), &without);
    fs::remove_file(dir.join("common")).unwrap();
    // It was cut.
    for len in (0..common.len()).step_by(1 + common.len() / 60) {
        fs::write(dir.join("common"), &common[..len]).unwrap();
        check(&named);
    }
    // It names itself, and so does a file of its own.
    let elf = Elf::from_bytes(common.clone()).unwrap();
    let link = [&b"common\0"[..], &elf.build_id().unwrap().0].concat();
    fs::write(dir.join("link"), link).unwrap();
    fs::write(dir.join("common"), &common).unwrap();
    tool(&dir, &["objcopy", "--add-section=.gnu_debugaltlink=link", "common"]);
    same(&check(&named), &want);
    let own = Elf::open(&named).unwrap().build_id().unwrap();
    fs::write(dir.join("link"), [&b"itself\0"[..], &own.0].concat()).unwrap();
    tool(&dir, &["objcopy", "--update-section=.gnu_debugaltlink=link", "one", "itself"]);
    check(&dir.join("itself"));
    // Links that are none.
    for link in [&b""[..], b"\0", b"common", b"common\0", b"\0\x01", b"../../../..//\0\x01\x02"] {
        fs::write(dir.join("link"), link).unwrap();
        tool(&dir, &["objcopy", "--update-section=.gnu_debugaltlink=link", "one", "itself"]);
        same(&check(&dir.join("itself")), &without);
    }
    // What leads into it leads behind its end: parts of it are shorter, or are none.
    for name in [".debug_info", ".debug_str", ".debug_abbrev", ".debug_line", ".debug_line_str"] {
        let Some(at) = header(&elf, &common, name) else { continue };
        for size in [0, 1, 11, 12, 40, u64::MAX] {
            let mut bytes = common.clone();
            bytes[at + 32..at + 40].copy_from_slice(&size.to_le_bytes());
            fs::write(dir.join("common"), bytes).unwrap();
            check(&named);
        }
    }
    let sections = [".debug_info", ".debug_abbrev", ".debug_str"];
    let sections = sections.map(|name| elf.section(name).unwrap());
    let mut seed = 5_u64;
    let mut random = || {
        seed = seed.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (seed >> 33) as usize
    };
    for round in 0..200 {
        let mut bytes = common.clone();
        for _ in 0..1 + random() % 8 {
            let section = sections[round % 3];
            bytes[section.offset as usize + random() % section.size as usize] = random() as u8;
        }
        fs::write(dir.join("common"), bytes).unwrap();
        check(&named);
    }
}

/// The place of a section's header.
fn header(elf: &Elf, bytes: &[u8], name: &str) -> Option<usize> {
    let number = elf.sections().iter().position(|s| s.name == name.as_bytes())?;
    let table = u64::from_le_bytes(bytes[40..48].try_into().unwrap()) as usize;
    Some(table + number * 64)
}

/// Puts a file where debug files are found by build id.
fn install(root: &Path, bytes: &[u8]) {
    let id = Elf::from_bytes(bytes.to_vec()).unwrap().build_id().unwrap().to_string();
    let dir = root.join("usr/lib/debug/.build-id").join(&id[..2]);
    fs::create_dir_all(&dir).unwrap();
    fs::write(dir.join(format!("{}.debug", &id[2..])), bytes).unwrap();
}

#[test]
fn debug_files_are_found_by_build_id() {
    if !has_command("objcopy") {
        return skip("objcopy");
    }
    let dir = TempDir::new();
    let (path, want) = whole(&dir, "cc", "one", &[]);
    let (other, _) = whole(&dir, "cc", "two", &[]);
    let name = path.to_str().unwrap();
    tool(&dir, &["objcopy", "--only-keep-debug", name, "debug"]);
    tool(&dir, &["objcopy", "--strip-all", name, "stripped"]);
    let root = dir.join("root");
    let open = || {
        let elf = Elf::open(dir.join("stripped")).unwrap();
        SymbolFile::new(elf, Path::new("/bin/stripped"), &root).unwrap()
    };
    let none = said(&mut open(), &code(&path));
    assert!(none.iter().all(|line| !line.contains("shared")), "{none:?}");
    install(&root, &fs::read(dir.join("debug")).unwrap());
    same(&said(&mut open(), &code(&path)), &want);
    // The right name, but another file.
    let id = Elf::open(&path).unwrap().build_id().unwrap().to_string();
    let place = root.join(format!("usr/lib/debug/.build-id/{}/{}.debug", &id[..2], &id[2..]));
    fs::copy(other, &place).unwrap();
    same(&said(&mut open(), &code(&path)), &none);
    fs::write(&place, b"\x7fELF").unwrap();
    same(&said(&mut open(), &code(&path)), &none);
}

/// A debug file may have lines only, while the symbols stay in the program.
#[test]
fn lines_alone_may_be_in_the_debug_file() {
    if !has_command("eu-strip") {
        return skip("eu-strip");
    }
    let dir = TempDir::new();
    let (path, want) = whole(&dir, "cc", "one", &[]);
    for flag in ["-g", "-s"] {
        tool(&dir, &["eu-strip", flag, "-f", "debug", "-o", "stripped", path.to_str().unwrap()]);
        same(&of(&dir.join("stripped"), &code(&path)), &want);
        // Names without lines.
        let mut file = SymbolFile::open(&dir.join("stripped")).unwrap();
        let addrs = code(&path);
        let answers = file.find(&addrs, Want::default());
        let names = addrs.iter().filter_map(|a| answers.get(*a)?.symbol());
        assert!(names.into_iter().any(|symbol| symbol.name == b"outer_one"), "{flag}");
    }
}

/// `-gsplit-dwarf` leaves most of debug information in files of its own, which a tool puts into one.
#[test]
fn split_units_are_read_from_files_and_packages() {
    let packers = ["llvm-dwp-19", "dwp"];
    let packers: Vec<_> = packers.into_iter().filter(|tool| has_command(tool)).collect();
    let mut compilers = vec!["cc"];
    compilers.extend(has_command("clang-19").then_some("clang-19"));
    for compiler in compilers {
        for version in ["-gdwarf-4", "-gdwarf-5"] {
            let dir = TempDir::new();
            let (path, want) = whole(&dir, compiler, "one", &[version]);
            let addrs = code(&path);
            let split = build(&dir, compiler, "one", "split", &[version, "-gsplit-dwarf"]);
            let files = || {
                let all = fs::read_dir(dir.path()).unwrap().map(|entry| entry.unwrap().path());
                all.filter(|path| path.extension().is_some_and(|ext| ext == "dwo"))
                    .collect::<Vec<_>>()
            };
            let [unit] = &files()[..] else { panic!("{:?}", files()) };
            same(&of(&split, &addrs), &want);
            // Both were moved together.
            let moved = TempDir::new();
            fs::copy(&split, moved.join("split")).unwrap();
            let unit_moved = moved.join(unit.file_name().unwrap());
            fs::rename(unit, &unit_moved).unwrap();
            same(&of(&moved.join("split"), &addrs), &want);
            // Another unit's file is none; nor is no file.
            let without = of(&split, &addrs);
            assert!(!without.iter().any(|line| line.contains(" sum_of_numbers ")), "{without:?}");
            build(&dir, compiler, "two", "two", &[version, "-gsplit-dwarf"]);
            fs::rename(&files()[0], unit).unwrap();
            same(&of(&split, &addrs), &without);
            for packer in &packers {
                // That of binutils knows no DWARF 5, and that of LLVM does not end with that of gcc.
                let gcc = compiler == "cc";
                if version == "-gdwarf-5" && (*packer == "dwp" || gcc) {
                    continue;
                }
                fs::copy(&unit_moved, unit).unwrap();
                tool(&dir, &[packer, "-e", split.to_str().unwrap(), "-o", "split.dwp"]);
                fs::remove_file(unit).unwrap();
                same(&of(&split, &addrs), &want);
                fs::remove_file(dir.join("split.dwp")).unwrap();
            }
            fs::remove_file(unit_moved).unwrap();
        }
    }
}

/// Sections that are compressed are read as they were; one that claims gigabytes is refused, says why, and
/// leaves the names.
#[test]
fn compressed_sections_are_read_unless_they_claim_gigabytes() {
    if !has_command("objcopy") {
        return skip("objcopy");
    }
    let dir = TempDir::new();
    let (path, want) = whole(&dir, "cc", "one", &[]);
    for (how, kind) in [("zlib", 1), ("zstd", 2)] {
        let flag = format!("--compress-debug-sections={how}");
        tool(&dir, &["objcopy", &flag, path.to_str().unwrap(), how]);
        let elf = Elf::open(dir.join(how)).unwrap();
        let section = elf.section(".debug_info").unwrap();
        let at = section.offset as usize;
        let mut bytes = fs::read(dir.join(how)).unwrap();
        if section.flags & 0x800 == 0 || bytes[at] != kind {
            return skip("an objcopy that compresses with zstd");
        }
        same(&of(&dir.join(how), &code(&path)), &want);
        bytes[at + 8..at + 16].copy_from_slice(&(2_u64 << 30).to_le_bytes());
        fs::write(dir.join("claims"), bytes).unwrap();
        let mut file = SymbolFile::open(&dir.join("claims")).unwrap();
        let error = file.lines_error().unwrap().to_string();
        let message = "compressed section `.debug_info` becomes `2147483648` bytes; there is room for `67108864`";
        assert_eq!(error, message);
        let addrs = code(&path);
        let answers = file.find(&addrs, ALL);
        let names: Vec<_> = addrs.iter().filter_map(|a| answers.get(*a)?.symbol()).collect();
        assert!(names.iter().any(|symbol| symbol.name == b"outer_one"), "{how}");
    }
    // As older tools wrote them.
    for version in ["-gdwarf-4", "-gdwarf-5"] {
        let (path, want) = whole(&dir, "cc", "one", &[version]);
        let name = path.to_str().unwrap();
        tool(&dir, &["objcopy", "--compress-debug-sections=zlib-gnu", name, "old"]);
        tool(&dir, &["objcopy", "--only-keep-debug", "old", "old.debug"]);
        tool(&dir, &["objcopy", "--strip-all", "--add-gnu-debuglink=old.debug", "old", "bare"]);
        let elf = Elf::open(dir.join("old")).unwrap();
        if elf.section(".zdebug_info").is_none() {
            return skip("an objcopy that writes `.zdebug_info`");
        }
        for file in ["old", "bare"] {
            same(&of(&dir.join(file), &code(&path)), &want);
        }
        // What is not linked has relocations for what is compressed.
        let source = fixture("shared_one.c");
        tool(&dir, &["cc", "-O2", "-g", version, "-c", "-o", "plain.o", source.to_str().unwrap()]);
        tool(&dir, &["objcopy", "--compress-debug-sections=zlib-gnu", "plain.o", "old.o"]);
        let code: Vec<u64> =
            Elf::open(dir.join("plain.o")).unwrap().first_code().unwrap().range().collect();
        let want = of(&dir.join("plain.o"), &code);
        assert!(want.iter().any(|line| line.contains(" sum_of_numbers ")), "{want:?}");
        same(&of(&dir.join("old.o"), &code), &want);
    }
    // The same of symbols.
    let zeros = fs::File::create(dir.join("zeros")).unwrap();
    zeros.set_len(100 << 20).unwrap();
    if has_command("xz") {
        tool(&dir, &["xz", "-1", "zeros"]);
        let add = "--add-section=.gnu_debugdata=zeros.xz";
        tool(&dir, &["objcopy", "--strip-all", add, path.to_str().unwrap(), "small"]);
        let mut file = SymbolFile::open(&dir.join("small")).unwrap();
        let error = file.names_error().unwrap().to_string();
        assert!(error.contains("`.gnu_debugdata` becomes `104857600` bytes"), "{error}");
        assert!(SymbolFile::open(&path).unwrap().names_error().is_none());
    }
}

/// In some languages the name of a function is that of its symbol; in others, such as Fortran, whose main
/// program has a name, it is not, and the symbol counts.
#[test]
fn functions_have_the_names_that_binutils_gives_them_in_each_language() {
    if !has_command("addr2line") {
        return skip("addr2line");
    }
    let dir = TempDir::new();
    let source = "__attribute__((noinline)) int short_name(int x) { return x * 3; }\n\
                  int main(int c, char **v) { (void)v; return short_name(c); }\n";
    fs::write(dir.join("a.c"), source).unwrap();
    tool(&dir, &["cc", "-g", "-gdwarf-5", "-O1", "-S", "-dA", "a.c"]);
    let text = fs::read_to_string(dir.join("a.s")).unwrap();
    let mut symbols = 0;
    for language in [
        1, 2, 4, 5, 6, 7, 8, 9, 0xa, 0xc, 0xd, 0xe, 0xf, 0x12, 0x16, 0x18, 0x1d, 0x22, 0x23, 0x2c,
        0x3e,
    ] {
        let mut patched = String::new();
        for line in text.lines() {
            if line.contains(".byte") && line.contains("DW_AT_language") {
                patched += &format!("\t.byte {language}\n");
            } else if line.contains("\"short_name\"") {
                patched += &format!("{line}\n");
            } else {
                patched += &format!("{}\n", line.replace("short_name", "symbol"));
            }
        }
        fs::write(dir.join("b.s"), patched).unwrap();
        tool(&dir, &["cc", "b.s", "-o", "b"]);
        let path = dir.join("b");
        let addrs = code(&path);
        let got = of(&path, &addrs);
        if [0x2c, 0x3e].contains(&language) {
            // C of 2017 and 2023, which binutils before 2.44 do not know.
            assert!(got.iter().any(|line| line.contains(" short_name ")), "{got:?}");
            continue;
        }
        same(&got, &by_binutils(&path, &addrs));
        symbols += usize::from(got.iter().any(|line| line.contains(" symbol ")));
    }
    assert!((1..20).contains(&symbols), "{symbols}");
}

/// A library with the debug files of its package.
#[test]
fn a_library_has_the_lines_of_its_package() {
    let library = Path::new("/lib/x86_64-linux-gnu/libc.so.6");
    let installed = Elf::open(library).ok().and_then(|elf| elf.debug_file(library, "/".as_ref()));
    if installed.is_none() || !has_command("addr2line") {
        return skip("the debug files of the C library (libc6-dbg)");
    }
    let addrs: Vec<u64> = code(library).into_iter().step_by(4099).collect();
    let (got, want) = (of(library, &addrs), by_binutils(library, &addrs));
    assert!(got.len() > addrs.len(), "{} {}", got.len(), addrs.len());
    assert_eq!(got.len(), want.len());
    let mut others = 0;
    for (got, want) in got.iter().zip(&want) {
        if got != want {
            // Of tables of files that repeat the first one binutils takes another (DWARF 5).
            others += 1;
            if has_command("llvm-symbolizer") {
                let (addr, place) =
                    (got.split(' ').next().unwrap(), got.rsplit('/').next().unwrap());
                let mut llvm = Command::new("llvm-symbolizer");
                let args = ["-e", library.to_str().unwrap(), &format!("0x{addr}")];
                let ended = run(llvm.args(args), b"", LIMIT);
                let said = String::from_utf8(ended.stdout).unwrap();
                assert!(said.contains(&format!("/{place}:")), "{got} {want} {said}");
            }
        }
    }
    assert!(others * 10 < want.len(), "{others} of {}", want.len());
}
