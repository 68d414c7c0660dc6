//! libskep as C programs see it: the header beside the library, hostile callers, the examples.

use std::collections::{BTreeMap, BTreeSet};
use std::io::{Read, Write};
use std::mem::offset_of;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use skep::isa::{MapFlags, MapType};
use skep::maps::dump::command;
use skep_c::attach::{self, AttachOptions, Function, Missed, Target};
use skep_c::map::{MapDefinition, MapInfo};
use skep_c::object::ProgramInfo;
use skep_c::ordered;
use skep_c::process::CommandLine;
use skep_c::test_run::{self, TestRun};
use skep_testkit::TempDir;
use skep_testkit::run::{Ended, SetOnDrop, run, start};
use skep_testkit::skip::{has_command, skip};
use skep_testkit::trace::agent_symbols;

const HERE: &str = env!("CARGO_MANIFEST_DIR");
const OBJECT: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../skep/tests/data/library.bpf.o");
const LIMIT: Duration = Duration::from_secs(300);
const STRICT: &[&str] = &["-Wall", "-Wextra", "-Werror", "-pedantic"];

fn here(path: &str) -> PathBuf {
    Path::new(HERE).join(path)
}

fn header() -> String {
    std::fs::read_to_string(here("include/skep.h")).unwrap()
}

/// Runs a command that has to succeed, and returns what it printed.
fn ok(command: &mut Command) -> String {
    let ended: Ended = run(command, b"", LIMIT);
    assert!(ended.status.success(), "{command:?}: {}", ended.transcript());
    String::from_utf8(ended.stdout).unwrap()
}

/// The archive that cargo made of this crate for this test: the newest.
fn archive() -> PathBuf {
    let program = std::env::current_exe().unwrap();
    let files = std::fs::read_dir(program.parent().unwrap()).unwrap().map(|f| f.unwrap());
    let ours = files.filter(|f| {
        let name = f.file_name().into_string().unwrap_or_default();
        name.starts_with("libskep_c") && name.ends_with(".a")
    });
    ours.max_by_key(|f| f.metadata().unwrap().modified().unwrap()).expect("an archive").path()
}

/// The page's command that links the library, its lines in one.
fn link_command() -> String {
    let page = std::fs::read_to_string(here("../../docs/c-api.md")).unwrap();
    let (_, rest) = page.split_once("\ngcc -shared ").expect("the command");
    let (command, _) = rest.split_once("\n```").expect("its end");
    format!("gcc -shared {}", command.replace("\\\n", " "))
}

/// Links `libskep.so` as the page says, once; `None` without a compiler.
fn library() -> Option<&'static Path> {
    static LIBRARY: OnceLock<Option<PathBuf>> = OnceLock::new();
    let made = LIBRARY.get_or_init(|| {
        has_command("gcc").then(|| {
            let temp = TempDir::of_process();
            let out = temp.join("libskep.so.0");
            let command = link_command();
            let mut words: Vec<_> = command.split_whitespace().map(str::to_owned).collect();
            for (from, to) in
                [("../../target/capi/libskep_c.a", archive()), ("libskep.so.0", out.clone())]
            {
                let word = words.iter_mut().find(|word| *word == from).expect("it is there");
                *word = to.display().to_string();
            }
            ok(Command::new(&words[0]).args(&words[1..]).current_dir(HERE));
            std::os::unix::fs::symlink("libskep.so.0", temp.join("libskep.so")).unwrap();
            out
        })
    });
    if made.is_none() {
        skip("gcc");
    }
    made.as_deref()
}

/// Compiles a C file against the library.
fn compile(library: &Path, compiler: &[&str], source: &Path, out: &Path) -> Command {
    let folder = library.parent().unwrap();
    let mut cc = Command::new(compiler[0]);
    cc.args(&compiler[1..]).args(["-g", "-O1", "-rdynamic", "-I"]).arg(here("include")).arg(source);
    // `-x c++` would hold for the library too.
    cc.args(["-x", "none", "-L"]).arg(folder).arg("-lskep");
    ok(cc.arg(format!("-Wl,-rpath,{}", folder.display())).arg("-o").arg(out));
    Command::new(out)
}

/// The code of the page compiles, with the variables around it that its reader has.
#[test]
fn the_pages_code_compiles() {
    let Some(library) = library() else { return };
    let page = std::fs::read_to_string(here("../../docs/c-api.md")).unwrap();
    let code: Vec<&str> =
        page.split("```c\n").skip(1).map(|rest| rest.split("```").next().unwrap()).collect();
    assert_eq!(code.len(), 2);
    let (function, statements) = code[1].split_once("\n}\n").expect("a function first");
    let source = format!(
        "#include <skep.h>\n#include <linux/bpf.h>\n#include <stdint.h>\n#include <stdio.h>\n#include <string.h>\n\
         {function}\n}}\nint main(void)\n{{\nskep_session *session;\nskep_map *map;\nuint32_t key = 2;\n\
         uint64_t value = 4, count = 1;\nconst char *path = \"/etc/passwd\";\n{{\n{}}}\n{{\n{statements}}}\nreturn 0;\n}}\n",
        code[0]
    );
    let temp = TempDir::new();
    let file = temp.join("page.c");
    std::fs::write(&file, source).unwrap();
    let gcc = [
        "gcc",
        "-std=gnu11",
        "-Wall",
        "-Wextra",
        "-Wno-unused",
        "-Wno-unused-parameter",
        "-Werror",
    ];
    compile(library, &gcc, &file, &temp.join("page"));
}

fn example(name: &str) -> Option<String> {
    let library = library()?;
    let temp = TempDir::new();
    let source = here("examples").join(format!("{name}.c"));
    let gcc = ["gcc", "-std=gnu11", "-Wall", "-Wextra", "-Werror"];
    let mut program = compile(library, &gcc, &source, &temp.join(name));
    match name {
        "maps" | "paths" => {}
        "process" => drop(program.arg(OBJECT).arg(agent_symbols())),
        "chain" => drop(program.arg(here("../skep/tests/data/chain.bpf.o"))),
        _ => drop(program.arg(OBJECT)),
    }
    Some(ok(&mut program))
}

/// The profile `release` makes most crates small. With that alone, a program cannot attach to itself by the
/// library that packages have: what runs in events must be optimized.
#[test]
fn the_profile_of_packages_optimizes_what_runs_in_events() {
    let manifest = std::fs::read_to_string(here("../../Cargo.toml")).unwrap();
    for name in ["attach", "helpers", "maps", "runtime", "sys", "vm"] {
        let level = ["capi", "release"].into_iter().find_map(|profile| {
            let table = format!("\n[profile.{profile}.package.skep-{name}]\nopt-level = ");
            manifest.split_once(&table)?.1.lines().next()
        });
        assert!(matches!(level, Some("2" | "3")), "skep-{name}: {level:?}");
    }
}

#[test]
fn the_library_exports_what_the_header_declares() {
    let Some(library) = library() else { return };
    let header = header();
    let mut declared = BTreeSet::new();
    for line in header.lines().filter(|l| l.starts_with(|c: char| c.is_ascii_lowercase())) {
        if let Some((before, _)) = line.split_once('(') {
            let name = before.rsplit([' ', '*']).next().unwrap();
            if name.starts_with("skep_") {
                declared.insert(name.to_owned());
            }
        }
    }
    let symbols = ok(Command::new("nm").args(["-D", "--defined-only"]).arg(library));
    let names = symbols.lines().filter_map(|line| line.split(' ').nth(2));
    let exported: BTreeSet<String> = names
        .filter(|name| *name != "SKEP_0.1")
        .map(|name| {
            let (name, version) = name.split_once("@@").unwrap_or((name, ""));
            assert_eq!(version, "SKEP_0.1", "{name}");
            name.to_owned()
        })
        .collect();
    assert!(declared.len() > 50, "{declared:?}");
    assert_eq!(exported, declared);
    // The test of hostile callers has each of them.
    let used = std::fs::read_to_string(here("tests/c/every_function.c")).unwrap();
    for name in &declared {
        assert!(used.contains(&format!("{name}(")), "{name} is in no test");
    }
}

#[test]
fn structs_are_those_of_the_header() {
    let Some(library) = library() else { return };
    let mut asserts =
        String::from("#include \"skep.h\"\n#define IS(a, b) _Static_assert((a) == (b), #a)\n");
    macro_rules! same {
        ($($rust:ident $c:literal { $($field:ident $(as $name:literal)?),* })*) => {$(
            asserts += &format!("IS(sizeof(struct {}), {});\n", $c, size_of::<$rust>());
            $({
                let name = [$($name,)? stringify!($field)][0];
                let at = offset_of!($rust, $field);
                asserts += &format!("IS(offsetof(struct {}, {name}), {at});\n", $c);
            })*
        )*};
    }
    same! {
        MapDefinition "skep_map_def" { map_type as "type", key_size, value_size, max_entries,
            map_flags, reserved, map_extra, name, inner }
        MapInfo "skep_map_info" { map_type as "type", id, key_size, value_size, max_entries,
            map_flags, map_extra, key_cell_size, lookup_size, cursor_size, strict_cursor_size,
            btf_id, frozen, name }
        ProgramInfo "skep_program_info" { id, reserved, name, section }
        Target "skep_target" { pattern, cookie }
        AttachOptions "skep_attach_opts" { targets, target_count, exclude, cookie, flags }
        CommandLine "skep_command" { argv, agent, fds, reserved }
        Function "skep_function" { size, name, module, vaddr, skipped }
        Missed "skep_missed" { inside, stack, thread, slots, pid_namespace }
        TestRun "skep_test_run" { data_in, data_out, ctx_in, ctx_out, data_size_in, data_size_out,
            ctx_size_in, ctx_size_out, repeat, retval, duration_ns, flags, batch_size }
    }
    let constants = [
        ("MAP_TYPE_QP_TRIE", u64::from(MapType::QpTrie as u32)),
        ("F_NO_LEAF_CACHE", MapFlags::NO_LEAF_CACHE.into()),
        ("FLOOR", ordered::FLOOR.into()),
        ("CEILING", ordered::CEILING.into()),
        ("LONGEST_PREFIX", ordered::LONGEST_PREFIX.into()),
        ("PREFIX", ordered::PREFIX.into()),
        ("REVERSE", ordered::REVERSE.into()),
        ("LOCK", command::F_LOCK),
        ("DELETE", command::F_DELETE),
        ("EXACT", command::F_EXACT),
        ("ALIGN", command::F_ALIGN),
        ("STRICT", command::F_STRICT),
        ("ATTACH_OTHERS", attach::OTHERS),
        ("INTERP", test_run::INTERP.into()),
        ("TEST_LIVE_FRAMES", test_run::LIVE_FRAMES.into()),
    ];
    let header = header();
    let defined = header.lines().filter_map(|line| line.strip_prefix("#define SKEP_"));
    let defined: BTreeSet<&str> =
        defined.filter_map(|rest| Some(rest.split_once(' ')?.0)).collect();
    assert_eq!(defined, constants.iter().map(|(name, _)| *name).collect());
    for (name, value) in constants {
        asserts += &format!("IS(SKEP_{name}, {value}ull);\n");
    }
    asserts += "int main(void) { return 0; }\n";
    let temp = TempDir::new();
    let source = temp.join("structs.c");
    std::fs::write(&source, asserts).unwrap();
    compile(library, &["gcc", "-std=c11"], &source, &temp.join("structs"));
}

/// What a parameter is in Rust, as far as C can tell: structs have other names there.
fn of_rust(parameter: &str) -> String {
    let whole = parameter.split_once(": ").map_or(parameter, |(_, whole)| whole);
    let (pointers, name) = whole.rsplit_once(' ').unwrap_or(("", whole));
    match name {
        "c_char" | "c_void" | "c_int" | "u32" | "u64" | "usize" | "Handle" => whole.to_owned(),
        _ if name.starts_with("Option<") => "callback".to_owned(),
        _ => format!("{pointers} struct"),
    }
}

/// The same of a parameter in C.
fn of_c(parameter: &str) -> String {
    if parameter.contains("(*") {
        return "callback".to_owned();
    }
    let is_name = |c: char| c.is_ascii_alphanumeric() || c == '_';
    let mut words = parameter.trim_end_matches(is_name).replace('*', " * ");
    if words.trim().is_empty() {
        words = parameter.to_owned();
    }
    let mut words = words.split_whitespace().peekable();
    let mut is_const = words.next_if_eq(&"const").is_some();
    let mut whole = match words.next().expect("a type") {
        "char" => "c_char",
        "void" => "c_void",
        "int" => "c_int",
        "uint32_t" => "u32",
        "uint64_t" => "u64",
        "size_t" => "usize",
        "struct" => words.next().map(|_| "struct").expect("its name"),
        _ => words.next_if_eq(&"*").map(|_| "Handle").expect("a handle"),
    }
    .to_owned();
    is_const |= words.next_if_eq(&"const").is_some();
    while words.next_if_eq(&"*").is_some() {
        whole = format!("*{} {whole}", if is_const { "const" } else { "mut" });
        is_const = words.next_if_eq(&"const").is_some();
    }
    assert_eq!(words.next(), None, "{parameter}");
    whole
}

/// Splits at commas outside of parentheses.
fn parameters(list: &str, of: fn(&str) -> String) -> Vec<String> {
    let mut depth = 0;
    let parts = list.split(|c| {
        depth += i32::from(c == '(') - i32::from(c == ')');
        c == ',' && depth == 0
    });
    let parts = parts.map(|part| part.split_whitespace().collect::<Vec<_>>().join(" "));
    parts.filter(|part| !part.is_empty() && part != "void").map(|part| of(&part)).collect()
}

/// The linker compares names only: a parameter that one side does not have is read from a register that
/// nobody set.
#[test]
fn functions_have_the_parameters_of_the_header() {
    let (header, mut declared) = (header(), BTreeMap::new());
    for (at, name) in header.match_indices("skep_") {
        let text = &header[at..];
        let line = header[..at].rsplit('\n').next().unwrap();
        let is_name = |c: char| c.is_ascii_lowercase() || c == '_';
        let name = &text[..text.find(|c| !is_name(c)).unwrap_or(name.len())];
        let is_function = line.starts_with(is_name) && text[name.len()..].starts_with('(');
        if is_function && !line.contains('(') {
            let list = text[name.len() + 1..].split(");\n").next().unwrap();
            declared.insert(name.to_owned(), (parameters(list, of_c), of_c(line.trim_end())));
        }
    }
    let mut defined = BTreeMap::new();
    for file in std::fs::read_dir(here("src")).unwrap() {
        let text = std::fs::read_to_string(file.unwrap().path()).unwrap();
        for (at, start) in text.match_indices(" extern \"C\" fn ") {
            let Some((name, rest)) = text[at + start.len()..].split_once('(') else { continue };
            let Some((list, rest)) = rest.split_once(") -> ") else { continue };
            let answer = of_rust(rest.split_once(" {").unwrap().0);
            let signature = (parameters(list, of_rust), answer);
            let names = match name {
                // Of a macro: its uses are its lines.
                "$name" => {
                    let (_, of_macro) = text[..at].rsplit_once("macro_rules! ").unwrap();
                    let (name, _) = of_macro.split_once(' ').unwrap();
                    let (_, uses) = text.split_once(&format!("\n{name}! {{\n")).unwrap();
                    let lines = uses.lines().take_while(|line| *line != "}");
                    lines.map(|line| line.trim().split(['(', ' ']).next().unwrap()).collect()
                }
                name => vec![name],
            };
            defined.extend(names.into_iter().map(|name| (name.to_owned(), signature.clone())));
        }
    }
    assert!(defined.keys().eq(declared.keys()), "{defined:?}\n{declared:?}");
    for (name, signature) in &declared {
        assert_eq!(defined.get(name), Some(signature), "{name}");
    }
}

#[test]
fn careless_callers_get_errors_in_c_and_in_cxx() {
    let Some(library) = library() else { return };
    let temp = TempDir::new();
    for (compiler, name, standard, language) in [
        ("gcc", "every_function", "-std=c11", "c"),
        ("g++", "every_function", "-std=c++17", "c++"),
        ("gcc", "loaded", "-std=gnu11", "c"),
        ("g++", "loaded", "-std=gnu++17", "c++"),
    ] {
        if !has_command(compiler) {
            skip(compiler);
            continue;
        }
        let words = [&[compiler, standard], STRICT, &["-x", language]].concat();
        let source = here("tests/c").join(format!("{name}.c"));
        let out = temp.join(format!("{name}.{language}.out"));
        ok(compile(library, &words, &source, &out).arg(OBJECT));
    }
}

#[test]
fn keys_that_are_written_to_meanwhile_damage_no_map() {
    let Some(library) = library() else { return };
    let temp = TempDir::new();
    let words = [&["gcc", "-std=gnu11", "-O1", "-pthread"], STRICT, &["-x", "c"]].concat();
    let source = here("tests/c/changing_keys.c");
    ok(&mut compile(library, &words, &source, &temp.join("changing_keys")));
}

/// The library of a host's plugin: what it hooked once leads into it to the end.
#[test]
fn a_library_that_is_closed_leaves_a_program_that_goes_on() {
    let Some(library) = library() else { return };
    let temp = TempDir::new();
    let mut gcc = Command::new("gcc");
    // Not linked to the library, which would keep it open.
    gcc.args(["-std=gnu11", "-O1", "-rdynamic", "-pthread", "-Wall", "-Wextra", "-Werror", "-I"]);
    gcc.arg(here("include")).arg(here("tests/c/unloaded.c")).arg("-ldl");
    ok(gcc.arg("-o").arg(temp.join("unloaded")));
    ok(Command::new(temp.join("unloaded")).arg(library).arg(OBJECT));
}

#[test]
fn a_map_goes_in_by_a_batch_and_out_by_a_dump() {
    // The sum of the squares below 1000, by the formula.
    let sum = 999 * 1000 * 1999 / 6;
    if let Some(printed) = example("maps") {
        assert_eq!(printed, format!("1000 elements, sum {sum}\n"));
    }
}

#[test]
fn keys_in_order_are_visited_found_and_deleted() {
    let printed = "/etc/hosts 1\n/etc/passwd 3\n/etc/passwd.old begins with /etc/passwd\n\
                   2 deleted, left are:\n/usr/lib/libm.so.6 1\n/usr/lib/libc.so.6 2\n/home 1\n\
                   /etcetera 1\n/etc 1\n";
    if let Some(said) = example("paths") {
        assert_eq!(said, printed);
    }
}

#[test]
fn packets_get_verdicts() {
    if let Some(printed) = example("test_run") {
        // XDP_PASS is 2, XDP_DROP 1.
        let want = "verdict 2, 64 bytes, the same: 1\nverdict 1, 64 bytes, the same: 1\n\
                    dropped a packet that begins with 42\n";
        assert_eq!(printed, want);
    }
}

#[test]
fn chains_are_made_run_and_changed() {
    if let Some(printed) = example("chain") {
        // XDP_PASS is 2, XDP_DROP 1; `count` passes what it is given.
        let want = "verdicts 2 and 1\nverdict 2 of what `count` says\n2 packets counted\nverdict 1 again\n";
        let (results, rest) = printed.split_at(want.len());
        assert_eq!(results, want);
        assert!(rest.contains("the chain would never end: 1 (drop_short) -> 1"), "{rest}");
        assert!(rest.ends_with("\nverdict 1 to the end\n"), "{rest}");
    }
}

#[test]
fn functions_of_the_own_process_run_programs() {
    if let Some(printed) = example("attach") {
        let sum: i32 = (0..100).map(|n| n * 3 + 1).sum();
        let want = format!(
            "work: attached\n100 records, sum of cookies 700\n100 entries, 100 exits, sum {sum}\n"
        );
        assert_eq!(printed, want);
    }
}

/// A command from its start, and a process that was started by others.
#[test]
fn programs_run_in_other_processes() {
    if let Some(printed) = example("process") {
        let want = "sort ended with 0, calls of malloc: some\n\
                    cat: 1 function, running: 1, calls of read: some\n\
                    after it was left: none\ncat ended with 0\n";
        assert_eq!(printed, want);
    }
}

/// By `ctypes`; the process goes on, and once it is gone that is told.
#[test]
fn python_attaches_to_a_process() {
    if !has_command("python3") {
        return skip("python3");
    }
    let Some(library) = library() else { return };
    // Built before the process runs, whose time is limited.
    let agent = agent_symbols();
    let mut target = Command::new("python3");
    target.args(["-c", "import os\nos.write(1, b'r')\nwhile os.read(0, 1): os.getppid()"]);
    let mut target = start(&target, LIMIT);
    let pid = target.id().to_string();
    let mut feed = target.stdin.take().expect("a pipe");
    // From then on it executes nothing else.
    target.stdout.as_mut().expect("a pipe").read_exact(&mut [0]).expect("it is ready");
    let done = AtomicBool::new(false);
    let python = |pid: &str, calls: &str| {
        let mut python = Command::new("python3");
        python.arg(here("examples/process.py")).arg(library).arg(OBJECT).arg(&agent);
        run(python.args([pid, "libc:getppid", calls]), b"", LIMIT)
    };
    let printed = std::thread::scope(|scope| {
        let _stop = SetOnDrop(&done);
        scope.spawn(|| {
            while !done.load(Ordering::Relaxed) && feed.write_all(b"x").is_ok() {
                std::thread::yield_now();
            }
        });
        python(&pid, "1000")
    });
    assert!(printed.status.success(), "{}", printed.transcript());
    let printed = String::from_utf8(printed.stdout).unwrap();
    let calls = printed.lines().next().and_then(|line| line.split(' ').nth(1)?.parse::<u64>().ok());
    assert!(calls.is_some_and(|calls| calls >= 1000), "{printed}");
    drop(feed);
    assert!(target.wait().expect("it is ours").success());
    let gone = python(&pid, "0");
    assert_eq!(gone.status.code(), Some(1), "{}", gone.transcript());
    let said = String::from_utf8_lossy(&gone.stderr).into_owned();
    assert!(said.starts_with(&format!("cannot attach to process {pid}")), "{said}");
}

#[test]
fn python_uses_it_too() {
    if !has_command("python3") {
        return skip("python3");
    }
    let Some(library) = library() else { return };
    let mut python = Command::new("python3");
    let printed = ok(python.arg(here("examples/maps.py")).arg(library).arg(OBJECT));
    let (verdicts, missing) = printed.split_at("verdict 2\nverdict 1\n".len());
    assert_eq!(verdicts, "verdict 2\nverdict 1\n");
    assert!(missing.starts_with("2 the object has no map `nothing`; it has "), "{missing}");
}

/// Memory that is not the caller's any more, or nobody's. What the process keeps to its end, such as
/// the list of mappings, is no leak.
#[test]
fn valgrind_finds_nothing() {
    if !has_command("valgrind") {
        return skip("valgrind");
    }
    let Some(library) = library() else { return };
    let temp = TempDir::new();
    for (name, source) in [
        ("every", "tests/c/every_function.c"),
        ("loaded", "tests/c/loaded.c"),
        ("maps", "examples/maps.c"),
    ] {
        let gcc = ["gcc", "-std=gnu11"];
        compile(library, &gcc, &here(source), &temp.join(name));
        let mut valgrind = Command::new("valgrind");
        valgrind.args(["-q", "--error-exitcode=9", "--leak-check=full"]);
        valgrind.args(["--show-leak-kinds=definite", "--errors-for-leak-kinds=definite"]);
        // The others take no arguments. Valgrind runs code that it translated before it was hooked.
        ok(valgrind.arg(temp.join(name)).args([OBJECT, "unattached"]));
    }
}
