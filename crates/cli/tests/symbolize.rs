//! `skep symbolize` and `skep addr2line`: the same answers as binutils, and as the source; and the
//! stacks of `skep run`.

mod common;

use std::collections::BTreeMap;
use std::io::{Read, Write};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use common::{Skep, data, fails, json, object, out, text};
use serde_json::Value as Json;
use skep_testkit::TempDir;
use skep_testkit::cc::Cc;
use skep_testkit::run::{run, start};
use skep_testkit::skip::{has_command, skip};
use skep_testkit::trace::skep_bin;

const LIMIT: Duration = Duration::from_secs(600);
/// The program of the guide, built with flags.
fn program(dir: &TempDir, flags: &[&str]) -> PathBuf {
    Cc::c().args(flags).compile(&[data("inlined.c").as_ref()], &dir.join("inlined"))
}

/// The address of a symbol.
fn symbol(file: &Path, name: &str) -> u64 {
    let elf = skep_proc::elf::Elf::open(file).expect("the compiler made it");
    let functions = elf.functions().expect("a symbol table");
    let found = functions.iter().find(|f| f.name == name.as_bytes());
    found.expect("the function is there").vaddr
}

/// All addresses of the code of a file, and some around it, one in `step`, as lines.
fn addresses(file: &Path, step: usize) -> String {
    let elf = skep_proc::elf::Elf::open(file).expect("an ELF file");
    let text = elf.section(".text").expect("a program has code").range();
    (text.start - 64..text.end + 64).step_by(step).map(|a| format!("{a:#x}\n")).collect()
}

/// Compares all output for a list of addresses with that of binutils.
fn same_as_binutils(skep: &Skep, file: &Path, addresses: &str, flags: &[&str]) {
    for flags in flags {
        let args = ["-e", file.to_str().expect("UTF-8"), flags];
        let want = run(Command::new("addr2line").args(args), addresses.as_bytes(), LIMIT);
        let got = skep.run_with(["addr2line"].iter().chain(&args), addresses.as_bytes());
        assert_eq!(got.shell_status(), 0, "{}", got.transcript());
        let (want, got) = (text(&want.stdout), text(&got.stdout));
        for (i, (want, got)) in want.lines().zip(got.lines()).enumerate() {
            assert_eq!(want, got, "{} {flags}, line {i}", file.display());
        }
        assert_eq!(want.lines().count(), got.lines().count(), "{} {flags}", file.display());
    }
}

#[test]
fn addr2line_prints_what_binutils_prints() {
    if !has_command("addr2line") {
        return skip("addr2line");
    }
    let skep = Skep::new();
    let builds: &[&[&str]] = &[
        &["-O2", "-g"],
        &["-O0", "-g"],
        &["-O2", "-g", "-gdwarf-4"],
        &["-O2", "-g", "-gz=zlib", "-no-pie"],
        &["-O2", "-g", "-ffunction-sections"],
        &["-O2"],
        &["-O2", "-s"],
    ];
    for flags in builds {
        let dir = TempDir::new();
        let file = program(&dir, flags);
        same_as_binutils(&skep, &file, &addresses(&file, 1), &["-f", "-fi", "-fiap", "-is", "-pa"]);
    }
    // Two names of one function, both in the debug information that the assembler makes.
    let dir = TempDir::new();
    let source = dir.join("aliases.s");
    let twice = |a: &str, b: &str| {
        let (head, end) = (
            |n| format!(".globl {n}\n.type {n},@function\n{n}:\n"),
            |n| format!(".size {n},.-{n}\n"),
        );
        format!("{}{}nop\nnop\nret\n{}{}", head(a), head(b), end(a), end(b))
    };
    std::fs::write(&source, format!(".text\n{}{}", twice("a", "b"), twice("z", "c"))).unwrap();
    let file = dir.join("aliases.so");
    Cc::c().args(&["-gdwarf-5", "-shared", "-nostdlib"]).compile(&[&source], &file);
    same_as_binutils(&skep, &file, &addresses(&file, 1), &["-f", "-fi", "-fap"]);
    // Rust, of many units: the program of this test. Its functions have no linkage names, and what
    // binutils calls them depends on what it was asked before.
    let own = std::env::current_exe().expect("a test has a program");
    same_as_binutils(&skep, &own, &addresses(&own, 20_011), &["-i", "-iap", "-s"]);
}

#[test]
fn sections_and_bad_addresses_are_read_as_binutils_reads_them() {
    if !has_command("addr2line") {
        return skip("addr2line");
    }
    let (skep, dir) = (Skep::new(), TempDir::new());
    let file = program(&dir, &["-O2", "-g"]);
    let main = symbol(&file, "main");
    let file = file.to_str().expect("UTF-8");
    let mut input = String::from("0\n10\n0x20zz\n\nnonsense\n-5\nffffffffffffffff\n");
    // Signs, more digits than fit, all kinds of white space, prefixes without a number.
    input.push_str("-ffffffffffffff00\n-10000000000000000\n1234567890abcdef0\n- 10\n--10\n");
    input
        .push_str("\t10\n \x0b\x0c\r10\n10 20\n0x\n0X10\n0x0x10\n0x 10\n1_0\n\u{ff11}\n\u{a0}10\n");
    // Longer lines than are read at once.
    for line in [format!("{main:0130x}"), format!("{main:x}{:130}{main:x}", ""), "1".repeat(99)] {
        input.push_str(&format!("{line}\n{main:x}\n"));
    }
    for args in [
        &["-j", ".text", "-fa", "-e", file][..],
        // Nothing is at an address of what is not loaded.
        &["-j", ".debug_info", "-fa", "-e", file],
        &["-fpC", "-e", file],
        &["-afie", file],
    ] {
        let want = run(Command::new("addr2line").args(args), input.as_bytes(), LIMIT);
        let got = skep.run_with(["addr2line"].iter().chain(args), input.as_bytes());
        assert_eq!(text(&got.stdout), text(&want.stdout), "{args:?}");
    }
    fails(&skep, &["addr2line", "-e", file, "-j", ".nosuch", "0"], 1, "no section `.nosuch`");
    // To `symbolize` a line without anything is none.
    let lines = format!("\n{main:x}\r\n\r\n \n0X{main:X}");
    let ended = skep.run_with(["symbolize", "--names", "--file", file], lines.as_bytes());
    assert_eq!(text(&ended.stdout), format!("{main:#x}: main+0x0\n").repeat(2));
    let ended = skep.run_with(["symbolize", "--file", file], b"\n \n");
    assert_eq!((ended.shell_status(), ended.stdout.len()), (0, 0), "{}", ended.transcript());
    fails(&skep, &["symbolize", "--file", file, " "], 2, "is no address");
    // Input that is something else, and has no line.
    let zeros = vec![0; 4 << 20];
    let ended = skep.run_with(["symbolize", "--file", file], &zeros);
    assert_eq!(ended.shell_status(), 2);
    assert!(text(&ended.stderr).contains("…` is no address"), "{}", ended.transcript());
    fails(&skep, &["addr2line", "-e", "/etc/passwd", "0"], 2, "not an ELF file");
}

/// Files and lines of all functions that were inlined at an address, the innermost first.
type Frames = Vec<(String, u64)>;

/// Where binutils loses functions (type units, sections that the linker dropped, ranges of clang),
/// this is the other reader.
#[test]
fn lines_of_cpp_are_those_of_llvm() {
    let tool = ["llvm-symbolizer", "llvm-symbolizer-19", "llvm-symbolizer-14"];
    let Some(tool) = tool.into_iter().find(|tool| has_command(tool)) else {
        return skip("llvm-symbolizer");
    };
    let path = |path: &str| {
        let mut parts: Vec<&str> = Vec::new();
        for part in path.split('/').filter(|part| !matches!(*part, "" | ".")) {
            if part != ".." || parts.pop().is_none() {
                parts.push(part);
            }
        }
        parts.join("/")
    };
    let skep = Skep::new();
    let mut compilers = vec!["c++"];
    compilers.extend(has_command("clang++-19").then_some("clang++-19"));
    for compiler in compilers {
        for flags in [
            &["-O2", "-g"][..],
            &["-O2", "-g", "-gdwarf-4", "-fdebug-types-section"],
            &["-O2", "-g", "-ffunction-sections", "-Wl,--gc-sections"],
        ] {
            let dir = TempDir::new();
            let file = dir.join("templates");
            Cc::named(compiler).args(flags).compile(&[data("templates.cc").as_ref()], &file);
            let list = addresses(&file, 3);
            let name = file.to_str().expect("UTF-8");
            let mut llvm = Command::new(tool);
            llvm.args(["-e", name, "--output-style=JSON", "-i"]);
            let theirs = run(&mut llvm, list.as_bytes(), LIMIT);
            let theirs = text(&theirs.stdout)
                .lines()
                .map(|line| {
                    let line: Json = serde_json::from_str(line).expect("JSON");
                    let frames = line["Symbol"].as_array().cloned().unwrap_or_default();
                    let frame = |f: &Json| {
                        (
                            path(f["FileName"].as_str().unwrap_or_default()),
                            f["Line"].as_u64().unwrap_or(0),
                        )
                    };
                    frames.iter().map(frame).collect()
                })
                .collect::<Vec<Frames>>();
            let ours = skep
                .run_with(["symbolize", "--file", name, "--inlines", "--json"], list.as_bytes());
            let ours: Vec<Json> = serde_json::from_slice(&ours.stdout).expect("JSON");
            assert_eq!(ours.len(), theirs.len());
            let (mut known, mut inlined) = (0, 0);
            for (ours, theirs) in ours.iter().zip(&theirs) {
                // Between functions there is nothing to say.
                if ours["symbol"].is_null() || theirs.iter().all(|(_, line)| *line == 0) {
                    continue;
                }
                let symbol = &ours["symbol"];
                let frames = symbol["inlined"].as_array().cloned().unwrap_or_default();
                let frames: Frames = frames
                    .iter()
                    .chain([symbol])
                    .map(|f| {
                        (
                            path(f["file"].as_str().unwrap_or_default()),
                            f["line"].as_u64().unwrap_or(0),
                        )
                    })
                    .collect();
                assert_eq!(frames, *theirs, "{compiler} {flags:?} {ours}");
                known += 1;
                inlined += usize::from(frames.len() > 1);
            }
            assert!(known > 1000 && inlined > 300, "{compiler} {flags:?}: {known} {inlined}");
        }
    }
}

/// Nobody has linked them: what the debug information refers to is in relocations only.
#[test]
fn relocatable_files_are_read_as_binutils_reads_them() {
    if !has_command("addr2line") {
        return skip("addr2line");
    }
    let skep = Skep::new();
    let source = data("inlined.c");
    for flags in [
        &["-O2", "-g"][..],
        &["-O0", "-g", "-gdwarf-4"],
        &["-O2", "-g", "-gz=zlib"],
        &["-O2", "-g", "-ffunction-sections"],
        &["-O2"],
    ] {
        let dir = TempDir::new();
        let file = dir.join("inlined.o");
        let mut cc = Command::new("cc");
        let compiled = cc.args(flags).arg("-c").arg(&source).arg("-o").arg(&file).status();
        assert!(compiled.expect("there is a compiler").success());
        let elf = skep_proc::elf::Elf::open(&file).expect("the compiler made it");
        let code: Vec<_> =
            elf.sections().iter().filter(|s| s.flags & 4 != 0 && s.size > 0).collect();
        assert!(!code.is_empty());
        for section in code {
            let list: String = (0..section.size).map(|at| format!("{at:x}\n")).collect();
            let name = String::from_utf8_lossy(&section.name);
            for flags in ["-f", "-fi", "-fiap", "-s"] {
                let file = file.to_str().expect("UTF-8");
                let args = ["-e", file, "-j", &name, flags];
                let want = run(Command::new("addr2line").args(args), list.as_bytes(), LIMIT);
                let got = skep.run_with(["addr2line"].iter().chain(&args), list.as_bytes());
                assert_eq!(text(&got.stdout), text(&want.stdout), "{args:?}");
            }
        }
        // Without a section it is the first one with code; binutils finds nothing if that is not `.text`.
        let first = elf.first_code().expect("it has code");
        if first.name == b".text" {
            let list: String = (0..first.size).map(|at| format!("{at:x}\n")).collect();
            same_as_binutils(&skep, &file, &list, &["-f", "-fiap"]);
        }
    }
    let dir = TempDir::new();
    let file = dir.join("inlined.o");
    let compiled =
        Command::new("cc").args(["-O2", "-g", "-c"]).arg(source).arg("-o").arg(&file).status();
    assert!(compiled.expect("there is a compiler").success());
    let said = out(&skep, &["symbolize", "--file", file.to_str().expect("UTF-8"), "--json", "4"]);
    let said: Json = serde_json::from_str(&said).expect("JSON");
    assert_eq!(said[0]["vaddr"], "0x4");
    assert_eq!(said[0]["symbol"]["name"], "outer");
    assert_eq!(said[0]["symbol"]["offset"], 4);
    assert!(
        said[0]["symbol"]["file"].as_str().is_some_and(|f| f.ends_with("/inlined.c")),
        "{said}"
    );
}

/// Where the debug information is makes no difference: in the file, in a file of its own, split
/// off for each unit, packed. What is there instead of the right file is not taken.
#[test]
fn lines_are_found_wherever_they_are() {
    if !has_command("objcopy") {
        return skip("objcopy");
    }
    let (skep, dir) = (Skep::new(), TempDir::new());
    let file = program(&dir, &["-O2", "-g", "-Wl,--build-id=none"]);
    let list = addresses(&file, 1);
    let answer = |file: &Path| {
        let args = ["addr2line", "-fi", "-e", file.to_str().expect("UTF-8")];
        text(&skep.run_with(args, list.as_bytes()).stdout)
    };
    let want = answer(&file);
    assert!(want.contains("leaf") && want.contains("inlined.c:10"), "{want}");
    let objcopy = |args: &[&str]| {
        let ended = run(Command::new("objcopy").args(args).current_dir(dir.path()), b"", LIMIT);
        assert_eq!(ended.shell_status(), 0, "{}", ended.transcript());
    };
    objcopy(&["--only-keep-debug", "inlined", "inlined.debug"]);
    objcopy(&["--strip-all", "--add-gnu-debuglink=inlined.debug", "inlined", "stripped"]);
    assert_eq!(answer(&dir.join("stripped")), want, "debug link");
    // One byte more: the checksum is another.
    let mut debug = std::fs::read(dir.join("inlined.debug")).unwrap();
    debug.push(0);
    std::fs::write(dir.join("inlined.debug"), debug).unwrap();
    assert!(!answer(&dir.join("stripped")).contains("inlined.c"), "wrong checksum");

    if !has_command("xz") {
        return skip("xz");
    }
    std::fs::remove_file(dir.join("inlined.debug")).unwrap();
    objcopy(&["--strip-debug", "--remove-section=.comment", "inlined", "names"]);
    let ended = run(Command::new("xz").args(["-k", "names"]).current_dir(dir.path()), b"", LIMIT);
    assert_eq!(ended.shell_status(), 0, "{}", ended.transcript());
    objcopy(&["--strip-all", "--add-section=.gnu_debugdata=names.xz", "inlined", "small"]);
    let outer = format!("{:x}", symbol(&file, "outer"));
    let small = dir.join("small");
    let args = ["symbolize", "--file", small.to_str().expect("UTF-8"), &outer];
    assert_eq!(out(&skep, &args), format!("0x{outer}: outer+0x0\n"));
}

/// A debuginfod server on the loopback interface: one file, and how often it was asked.
struct Server {
    url: String,
    asked: std::sync::Arc<std::sync::Mutex<Vec<String>>>,
}

impl Server {
    /// Answers as long as the test runs.
    fn of(path: String, content: Vec<u8>) -> Self {
        let listener = std::net::TcpListener::bind("127.0.0.1:0").expect("loopback");
        let url = format!("http://{}/", listener.local_addr().expect("it is bound"));
        let asked = std::sync::Arc::new(std::sync::Mutex::new(Vec::new()));
        let log = std::sync::Arc::clone(&asked);
        std::thread::spawn(move || {
            for stream in listener.incoming() {
                let Ok(mut stream) = stream else { return };
                let mut head = [0; 4096];
                let read = stream.read(&mut head).unwrap_or(0);
                let head = String::from_utf8_lossy(&head[..read]).into_owned();
                let wanted = head.split(' ').nth(1).unwrap_or_default().to_owned();
                let (status, body) = if wanted == path {
                    ("200 OK", content.as_slice())
                } else {
                    ("404 Not Found", &b"no"[..])
                };
                log.lock().expect("no panic").push(wanted);
                let length = body.len();
                let head = format!(
                    "HTTP/1.1 {status}\r\nContent-Length: {length}\r\nConnection: close\r\n\r\n"
                );
                let _ = stream.write_all(head.as_bytes()).and_then(|()| stream.write_all(body));
            }
        });
        Self { url, asked }
    }

    fn asked(&self) -> usize {
        self.asked.lock().expect("no panic").len()
    }
}

/// Only when asked for, once for a file, and only if it is the right one.
#[test]
fn debug_files_come_from_a_server() {
    if !has_command("curl") || !has_command("objcopy") {
        return skip("curl and objcopy");
    }
    let (skep, dir) = (Skep::new(), TempDir::new());
    let file = program(&dir, &["-O2", "-g", "-Wl,--build-id=0x0123456789abcdef"]);
    let stripped = dir.join("stripped");
    let strip = Command::new("objcopy").arg("--strip-all").arg(&file).arg(&stripped).status();
    assert!(strip.expect("it is there").success());
    let outer = format!("{:x}", symbol(&file, "outer"));
    let content = std::fs::read(&file).expect("it was compiled");
    let ask = |server: &Server, cache: &str, more: &[&str]| {
        let args = ["symbolize", "--file", stripped.to_str().expect("UTF-8"), &outer];
        let mut command = skep.command(args.iter().chain(more));
        // Nothing of elfutils, which has a cache of answers.
        let bin = dir.join("bin");
        if !bin.exists() {
            std::fs::create_dir(&bin).unwrap();
            let curl =
                text(&Command::new("sh").args(["-c", "command -v curl"]).output().unwrap().stdout);
            std::os::unix::fs::symlink(curl.trim(), bin.join("curl")).unwrap();
        }
        command
            .env("PATH", &bin)
            .env("DEBUGINFOD_URLS", format!("http://127.0.0.1:1 {}", server.url));
        command.env("DEBUGINFOD_CACHE_PATH", dir.join(cache)).env_remove("http_proxy");
        run(&mut command, b"", LIMIT)
    };
    let path = "/buildid/0123456789abcdef/debuginfo".to_owned();
    let server = Server::of(path.clone(), content);
    let without = ask(&server, "cache", &[]);
    assert_eq!((without.shell_status(), server.asked()), (1, 0), "{}", without.transcript());
    let with = ask(&server, "cache", &["--debuginfod"]);
    let said = text(&with.stdout);
    assert!(said.contains("outer") && said.contains("inlined.c:"), "{}", with.transcript());
    assert_eq!((with.shell_status(), server.asked()), (0, 1), "{}", with.transcript());
    // What was fetched stays.
    let again = ask(&server, "cache", &["--debuginfod"]);
    assert_eq!((text(&again.stdout), server.asked()), (said, 1), "{}", again.transcript());
    // Not there; and another file, which does not count.
    let missing = ask(&Server::of("/nothing".to_owned(), Vec::new()), "other", &["--debuginfod"]);
    assert_eq!(missing.shell_status(), 1, "{}", missing.transcript());
    assert!(
        text(&missing.stderr).contains("no server has the debug file of build id 0123456789abcdef")
    );
    let wrong = Server::of(path, std::fs::read("/proc/self/exe").expect("it runs"));
    let wrong = ask(&wrong, "wrong", &["--debuginfod"]);
    assert_eq!(wrong.shell_status(), 1, "{}", wrong.transcript());
    let mut none = skep.command(["symbolize", "--debuginfod", "--file", "/bin/sh", "1"]);
    let none = run(none.env_remove("DEBUGINFOD_URLS"), b"", LIMIT);
    assert_eq!(none.shell_status(), 2, "{}", none.transcript());
    assert!(
        text(&none.stderr).contains("`DEBUGINFOD_URLS` names no server"),
        "{}",
        none.transcript()
    );
}

/// elfutils' own client comes first where it is installed; where it finds nothing, servers are asked.
#[test]
fn debug_files_come_from_the_client_of_elfutils() {
    if !has_command("curl") || !has_command("objcopy") {
        return skip("curl and objcopy");
    }
    let (skep, dir) = (Skep::new(), TempDir::new());
    let file = program(&dir, &["-O2", "-g", "-Wl,--build-id=0x0123456789abcdef"]);
    let stripped = dir.join("stripped");
    let strip = Command::new("objcopy").arg("--strip-all").arg(&file).arg(&stripped).status();
    assert!(strip.expect("it is there").success());
    let outer = format!("{:x}", symbol(&file, "outer"));
    let bin = dir.join("bin");
    std::fs::create_dir(&bin).unwrap();
    let which = Command::new("sh").args(["-c", "command -v curl"]).output().unwrap().stdout;
    std::os::unix::fs::symlink(text(&which).trim(), bin.join("curl")).unwrap();
    let path = "/buildid/0123456789abcdef/debuginfo".to_owned();
    let server = Server::of(path, std::fs::read(&file).expect("it was compiled"));
    let found = file.display();
    let (mut asked, log) = (0, dir.join("log"));
    // What the client prints, its status, and whether a server is asked behind it. Words of progress
    // go to its stderr.
    for (number, (prints, status, goes_on)) in [
        (format!("{found}"), 0, false),
        (format!("{found}"), 1, true),
        ("inlined".to_owned(), 0, true),
        (String::new(), 0, true),
    ]
    .into_iter()
    .enumerate()
    {
        let script = format!(
            "#!/bin/sh\necho \"$*\" >> '{}'\necho Downloading >&2\necho '{prints}'\nexit {status}\n",
            log.display()
        );
        std::fs::write(dir.join("client"), script).unwrap();
        // By another process: a file that a thread of this one forks with cannot be executed.
        let install = "cp client bin/debuginfod-find && chmod 755 bin/debuginfod-find";
        let install = Command::new("sh").args(["-c", install]).current_dir(dir.path()).status();
        assert!(install.expect("there is a shell").success());
        let args = ["symbolize", "--file", stripped.to_str().expect("UTF-8"), &outer];
        let mut command = skep.command(args.iter().chain(&["--debuginfod"]));
        command.env("PATH", &bin).env("DEBUGINFOD_URLS", &server.url).env_remove("http_proxy");
        command.env("DEBUGINFOD_CACHE_PATH", dir.join(format!("cache{number}")));
        let ended = run(&mut command, b"", LIMIT);
        let said = text(&ended.stdout);
        assert!(said.contains("outer") && said.contains("inlined.c:"), "{}", ended.transcript());
        assert_eq!((ended.shell_status(), text(&ended.stderr)), (0, String::new()));
        asked += usize::from(goes_on);
        assert_eq!(server.asked(), asked, "after `{prints}` with status {status}");
    }
    let asked = std::fs::read_to_string(log).expect("the client was asked");
    assert_eq!(asked, "debuginfo 0123456789abcdef\n".repeat(4));
}

#[test]
fn split_units_are_read_from_their_files() {
    if !has_command("clang-19") {
        return skip("clang-19");
    }
    let (skep, dir) = (Skep::new(), TempDir::new());
    let build = |name: &str, flags: &[&str]| {
        let out = dir.join(name);
        let source = data("inlined.c");
        Cc::named("clang-19").args(&["-O2", "-g"]).args(flags).compile(&[source.as_ref()], &out)
    };
    let (whole, split) = (build("whole", &[]), build("split", &["-gsplit-dwarf"]));
    let answer = |file: &Path, list: &str| {
        let args = ["addr2line", "-fi", "-e", file.to_str().expect("UTF-8")];
        text(&skep.run_with(args, list.as_bytes()).stdout)
    };
    let list = addresses(&whole, 1);
    let want = answer(&whole, &list);
    assert!(want.contains("middle"), "{want}");
    assert_eq!(answer(&split, &list), want);
}

#[test]
fn a_process_is_asked_for_its_own_addresses() {
    let (skep, dir) = (Skep::new(), TempDir::new());
    // The first use of the command builds it, which must not be in the time of the process.
    skep.run(["--version"]);
    let file = program(&dir, &["-O2", "-g"]);
    let source = std::fs::read_to_string(data("inlined.c")).unwrap();
    // The first instruction is of the brace, or of the call that is inlined behind it.
    let line = 2 + source.lines().position(|l| l.contains(" outer(")).unwrap() as u64;
    let is_there =
        |found: &Json| found["symbol"]["line"].as_u64().is_some_and(|l| l == line || l == line + 1);
    let mut child = start(&Command::new(&file), LIMIT);
    let mut line = [0; 64];
    let stdout = child.stdout.as_mut().expect("a pipe");
    let n = stdout.read(&mut line).expect("the program prints an address");
    let address = text(line.get(..n).expect("as much as was read")).trim().to_owned();
    let pid = child.id().to_string();
    let ask = |addrs: &[&str]| {
        let args = ["symbolize", "-p", &pid, "--json", "--inlines"];
        skep.run(args.iter().chain(addrs))
    };
    let ended = ask(&[&address, "0x10"]);
    assert_eq!(ended.shell_status(), 1, "the second has no name: {}", ended.transcript());
    let said = json(&ended.stdout);
    let found = &said[0];
    assert_eq!(found["symbol"]["name"], "outer");
    assert_eq!(found["symbol"]["offset"], 0);
    assert!(is_there(found), "{found}");
    assert_eq!(found["vma"]["name"].as_str(), file.to_str());
    assert_eq!(found["vaddr"], format!("{:#x}", symbol(&file, "outer")));
    assert_eq!(
        said[1],
        serde_json::json!({"address": "0x10", "vma": null, "module": null, "vaddr": "0x10", "symbol": null, "error": null})
    );
    // `skep vma query` knows as much of each instruction.
    let start = u64::from_str_radix(address.trim_start_matches("0x"), 16).expect("hex");
    let addrs: Vec<String> = (start..start + 16).map(|a| format!("{a:#x}")).collect();
    let addrs: Vec<&str> = addrs.iter().map(String::as_str).collect();
    let asked = json(&ask(&addrs).stdout);
    let args = ["vma", "query", "--json", &pid];
    let queried = skep.run(args.iter().chain(&addrs));
    assert_eq!(queried.shell_status(), 0, "{}", queried.transcript());
    let queried = json(&queried.stdout);
    let symbols = |all: &Json| -> Vec<Json> {
        all.as_array().expect("an array").iter().map(|a| a["symbol"].clone()).collect()
    };
    assert_eq!(symbols(&queried), symbols(&asked));
    assert!(is_there(&queried[0]), "{}", queried[0]);
    assert!(symbols(&queried).iter().any(|s| s["inlined"][0]["name"] == "leaf"), "{queried}");

    // The program's file is gone; `/proc/PID/exe` still has it.
    std::fs::remove_file(&file).unwrap();
    let found = json(&ask(&[&address]).stdout);
    assert!(is_there(&found[0]), "{found}");
    child.stdin.as_mut().expect("a pipe").write_all(b"\n").unwrap();
    fails(&skep, &["symbolize", "-p", "4194304", "0"], 1, "there is no process");
    if std::fs::read_to_string("/proc/2/comm").is_ok_and(|name| name == "kthreadd\n") {
        fails(&skep, &["symbolize", "-p", "2", "0"], 1, "process `2` is a thread of the kernel");
    }
    fails(
        &skep,
        &["symbolize", "-p", &std::process::id().to_string(), "xyz"],
        2,
        "`xyz` is no address",
    );
    fails(&skep, &["symbolize", "0"], 2, "nothing says whose addresses they are");
}

/// Programs at work in a process have names and the lines of their source, by what skep writes for
/// profilers.
#[test]
fn compiled_programs_have_the_lines_of_their_source() {
    let (skep, dir) = (Skep::new(), TempDir::new());
    std::fs::write(dir.join("packet"), [0; 64]).unwrap();
    let (folder, packet) =
        (concat!(env!("CARGO_MANIFEST_DIR"), "/../skep/tests/data"), dir.join("packet"));
    let object = format!("{folder}/chain.bpf.o");
    let packet = packet.to_str().expect("UTF-8");
    let repeat = ["--repeat", "2000000000"];
    let args = ["prog", "run", &object, "count", "--data-in", packet, repeat[0], repeat[1]];
    let mut command = skep.command(args);
    command.env("SKEP_PERF", "map,dump").env("JITDUMPDIR", dir.path());
    let mut running = start(&command, LIMIT);
    let map = PathBuf::from(format!("/tmp/perf-{}.map", running.id()));
    // Both are written before it runs; the dump is mapped by then.
    let (at, size) = loop {
        let text = std::fs::read_to_string(&map).unwrap_or_default();
        let line = text.lines().find(|line| line.ends_with(" bpf_prog_count"));
        let dump = std::fs::read(dir.join(format!("jit-{}.dump", running.id())));
        if let Some(line) = line
            && dump.is_ok_and(|dump| dump.windows(14).any(|w| w == b"bpf_prog_count"))
        {
            let mut words = line.split(' ').map(|w| u64::from_str_radix(w, 16));
            break (words.next().unwrap().expect("hex"), words.next().unwrap().expect("hex"));
        }
        assert_eq!(running.try_wait().expect("it is ours"), None, "it runs for long");
        std::thread::yield_now();
    };
    std::fs::remove_file(&map).unwrap();
    let addrs: Vec<String> = (at..at + size).map(|addr| format!("{addr:#x}")).collect();
    let pid = running.id().to_string();
    let args = ["symbolize", "--json", "-p", &pid];
    let args = args.iter().copied().chain(addrs.iter().map(String::as_str));
    let asked = skep.run(args);
    assert_eq!(asked.shell_status(), 0, "{}", asked.transcript());
    let source = std::fs::read_to_string(format!("{folder}/chain.bpf.c")).unwrap();
    let first = source.lines().position(|l| l.starts_with("int count(")).expect("it is there");
    let len = source.lines().skip(first).position(|l| l == "}").expect("it ends");
    let mut lines = std::collections::BTreeSet::new();
    for (number, answer) in json(&asked.stdout).as_array().expect("an array").iter().enumerate() {
        let symbol = &answer["symbol"];
        assert_eq!(symbol["name"], "bpf_prog_count", "{answer}");
        assert_eq!(symbol["offset"], number, "{answer}");
        // Before the first instruction of the source there is what every program begins with.
        let Some(line) = symbol["line"].as_u64() else { continue };
        assert!(symbol["file"].as_str().is_some_and(|f| f.ends_with("chain.bpf.c")), "{answer}");
        assert!((first + 1..=first + len + 1).contains(&(line as usize)), "{answer}");
        lines.insert(line);
    }
    assert!(lines.len() > 1, "{lines:?}");
    let last = out(&skep, &["symbolize", "-p", &pid, &format!("{:#x}", at + size - 1)]);
    assert!(last.contains(": bpf_prog_count+0x") && last.contains("chain.bpf.c:"), "{last}");
}

/// The core that gdb writes of a running process, and the one that the kernel writes when it is
/// killed: the same names as while it ran.
#[test]
fn a_core_file_is_asked_for_the_addresses_of_its_process() {
    let (skep, dir) = (Skep::new(), TempDir::new());
    // The first use of the command builds it, which must not be in the time of the others.
    skep.run(["--version"]);
    for id in ["-Wl,--build-id", "-Wl,--build-id=none"] {
        let file = program(&dir, &["-O2", "-g", id]);
        let mut command = Command::new("sh");
        command.args(["-c", "ulimit -c unlimited && exec ./inlined"]).current_dir(dir.path());
        let mut child = start(&command, LIMIT);
        let mut line = [0; 64];
        let stdout = child.stdout.as_mut().expect("a pipe");
        let n = stdout.read(&mut line).expect("the program prints an address");
        let address = text(line.get(..n).expect("as much as was read")).trim().to_owned();
        let pid = child.id().to_string();
        let libc = std::fs::read_to_string(format!("/proc/{pid}/maps")).expect("maps");
        let libc = libc.lines().find(|l| l.contains("libc.so") && l.contains("r-xp"));
        let libc = libc.and_then(|l| l.split('-').next()).expect("the C library is mapped");
        let libc = format!("{:#x}", u64::from_str_radix(libc, 16).expect("hex") + 0x1000);
        let ask = |source: &[&str]| {
            let args = ["symbolize", "--json", "--inlines"];
            let ended = skep.run(args.iter().chain(source).chain(&[&*address, &libc]));
            let mut said = json(&ended.stdout);
            // Inodes and devices are not in a core file.
            for entry in said.as_array_mut().expect("an array") {
                entry.as_object_mut().expect("an object").remove("vma");
            }
            said
        };
        let live = ask(&["-p", &pid]);
        assert_eq!(live[0]["symbol"]["name"], "outer", "{live}");
        let mut cores = Vec::new();
        if has_command("gdb") && Path::new("/usr/bin/gcore").exists() {
            let written =
                run(Command::new("gcore").arg("-o").arg(dir.join("gdb")).arg(&pid), b"", LIMIT);
            assert!(written.status.success(), "{}", written.transcript());
            cores.push(dir.join(format!("gdb.{pid}")));
        } else {
            skip("gdb's gcore");
        }
        skep_testkit::run::signal(child.id(), skep_testkit::run::Signal::QUIT);
        child.wait().expect("it was killed");
        let kernel = ["core".to_owned(), format!("core.{pid}")].map(|name| dir.join(name));
        match kernel.into_iter().find(|path| path.exists()) {
            Some(path) => cores.push(path),
            None => skip("core files in the working directory (kernel.core_pattern)"),
        }
        for core in &cores {
            let core = core.to_str().expect("UTF-8");
            assert_eq!(ask(&["--core", core]), live, "{core} {id}");
        }
        // Another program lies there now.
        program(&dir, &["-O1", "-g"]);
        for core in &cores {
            let args = ["symbolize", "--core", core.to_str().expect("UTF-8"), &address];
            let said = skep.run(args);
            assert_eq!(said.shell_status(), 1, "{}", said.transcript());
            let want =
                format!("{address}: ?? (`{}` is not the file that was mapped)", file.display());
            assert_eq!((text(&said.stdout).trim(), text(&said.stderr)), (&*want, String::new()));
            // The disk was full.
            let whole = std::fs::metadata(core).expect("it was read").len();
            let cut = std::fs::OpenOptions::new().write(true).open(core).expect("it is ours");
            cut.set_len(whole / 2).expect("it is shorter now");
            for flags in [&["--stacks"][..], &[&*address]] {
                let args = ["symbolize", "--core", core.to_str().expect("UTF-8")];
                let said = text(&skep.run(args.iter().chain(flags)).stderr);
                // gdb's notes are at the end, without which nothing is known.
                let of_gdb =
                    core.file_name().is_some_and(|name| name.to_string_lossy().starts_with("gdb"));
                let want = if of_gdb { "malformed notes" } else { " bytes are missing" };
                assert!(said.contains(want), "{said}");
            }
            std::fs::remove_file(core).expect("it was read");
        }
    }
    let no_core = program(&dir, &["-O2"]);
    fails(
        &skep,
        &["symbolize", "--core", no_core.to_str().expect("UTF-8"), "0"],
        2,
        "an ELF file that is no core file",
    );
}

/// Each stack weighed 0, and nothing was said.
#[test]
fn a_weight_that_no_map_has_is_refused_before_the_command_runs() {
    let (skep, dir) = (Skep::new(), TempDir::new());
    let (object, folded) = (object("allocations.bpf.o"), dir.join("folded").display().to_string());
    let args = ["run", &object, "--folded", &folded, "--weight", "byte", "--", "/bin/echo", "ran"];
    fails(&skep, &args, 2, "has a number `byte` in its values");
    let ended = skep.run(args);
    assert!(text(&ended.stderr).contains("there are `bytes`, `calls`"), "{}", ended.transcript());
    assert_eq!(text(&ended.stdout), "");
    assert!(!dir.join("folded").exists());
    let args = ["run", &object, "--weight", "bytes", "--", "/bin/echo", "ran"];
    fails(&skep, &args, 2, "`--weight` says what call stacks are worth, and no file");
}

/// Stacks of a program whose calls are known: as lines, as a picture, as a profile.
#[test]
fn stacks_have_the_names_of_their_functions() {
    let (skep, dir) = (Skep::new(), TempDir::new());
    let flags = ["-O1", "-g", "-fno-omit-frame-pointer", "-fno-optimize-sibling-calls"];
    let target =
        Cc::c().args(&flags).compile(&[data("allocates.c").as_ref()], &dir.join("allocates"));
    let path = |name: &str| dir.join(name).display().to_string();
    for (program, weight, map) in
        [("stacks.bpf.o", "calls", "calls"), ("allocations.bpf.o", "bytes", "allocations")]
    {
        let ended = skep.run([
            "run",
            &object(program),
            "--json",
            "-o",
            &path("report"),
            "--folded",
            &path("folded"),
            "--flame",
            &path("flame.svg"),
            "--pprof",
            &path("pb"),
            "--weight",
            weight,
            "--",
            &target.display().to_string(),
        ]);
        assert_eq!(ended.shell_status(), 0, "{}", ended.transcript());
        let folded = std::fs::read_to_string(path("folded")).unwrap();
        let mut found = BTreeMap::<String, u64>::new();
        for line in folded.lines() {
            let (stack, count) = line.rsplit_once(' ').expect("a stack and its weight");
            // From `main` on; `malloc` itself is in the stacks of one of the programs only.
            let Some((_, stack)) = stack.split_once(";main;") else { continue };
            let stack = match stack.rsplit_once(';') {
                Some((stack, last)) if last.contains("malloc") => stack.to_owned(),
                _ => stack.to_owned(),
            };
            *found.entry(stack).or_default() += count.parse::<u64>().expect("a number");
        }
        let deep = format!("{}left;leaf", "deep;".repeat(41));
        let want = if weight == "calls" {
            [("left;leaf".to_owned(), 6), ("right;leaf".to_owned(), 2), (deep, 1)]
        } else {
            [("left;leaf".to_owned(), 85), ("right;leaf".to_owned(), 500), (deep, 1000)]
        };
        for (stack, count) in want {
            // The second program keeps 24 callers only, which do not begin with `main`.
            if weight == "bytes" && stack.starts_with("deep") {
                continue;
            }
            assert_eq!(found.get(&stack), Some(&count), "{program}: {folded}");
        }
        let report = json(&std::fs::read(path("report")).unwrap());
        assert!(report["maps"].as_array().unwrap().iter().any(|m| m["map"]["name"] == map));

        let svg = std::fs::read_to_string(path("flame.svg")).unwrap();
        let sum: u64 =
            folded.lines().filter_map(|l| l.rsplit_once(' ')?.1.parse::<u64>().ok()).sum();
        assert!(svg.contains(&format!(">{sum} samples<")), "{svg}");
        assert!(svg.contains("<title>right: ") && svg.ends_with("</svg>\n"), "{svg}");
        if has_command("xmllint") {
            let ended =
                run(Command::new("xmllint").args(["--noout", &path("flame.svg")]), b"", LIMIT);
            assert_eq!(ended.shell_status(), 0, "{}", ended.transcript());
        }
        profile_is_whole(&path("pb"), sum);
    }
}

/// Reads a profile with Go's own tool.
fn profile_is_whole(path: &str, sum: u64) {
    if !has_command("go") {
        return skip("go (its pprof)");
    }
    let mut command = Command::new("go");
    command.args(["tool", "pprof", "-raw", path]).env("PPROF_NO_BROWSER", "1");
    let ended = run(&mut command, b"", LIMIT);
    assert_eq!(ended.shell_status(), 0, "{}", ended.transcript());
    let said = text(&ended.stdout);
    let samples = said.lines().skip_while(|l| *l != "samples/count").skip(1);
    let weights = samples.map_while(|l| l.split_once(':')?.0.trim().parse::<u64>().ok());
    assert_eq!(weights.sum::<u64>(), sum, "{said}");
    assert!(said.contains("leaf ") && said.contains("allocates.c:"), "{said}");
}

/// `yes` never ends, and `head` reads two lines: the command ends too, in place of reading on for ever.
#[test]
fn a_reader_that_goes_away_ends_an_endless_list() {
    let dir = TempDir::new();
    let file = program(&dir, &["-g"]);
    let address = format!("{:#x}", symbol(&file, "outer"));
    for how in ["symbolize --file", "symbolize --names --json --file", "addr2line -fe"] {
        // binutils reads `-` as an address.
        let dash = if how.starts_with("addr2line") { "" } else { "-" };
        let script = format!("yes $1 | $2 $3 $4 {dash} 2> $4.err | head -c 20; cat $4.err");
        let mut shell = Command::new("sh");
        shell.args(["-c", &script, "sh", &address]).arg(skep_bin()).arg(how).arg(&file);
        let ended = run(&mut shell, b"", LIMIT);
        assert_eq!((ended.shell_status(), ended.stdout.len()), (0, 20), "{}", ended.transcript());
        assert_eq!(text(&ended.stderr), "");
    }
}
