//! Every command of some pages, `docs/gallery.md` first, run as it stands there, prints what the page
//! says.
//!
//! `SKEP_RECORD=1` writes what the commands print into the page.

mod common;

use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use common::{Skep, text};
use skep_testkit::run::run;
use skep_testkit::skip::{has_command, skip};
use skep_testkit::trace::skep_bin;

const LIMIT: Duration = Duration::from_secs(120);
/// Lines that are recorded of what a command prints.
const RECORDED: usize = 12;

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..")
}

/// A section: its title, the programs it needs, its command, what that prints, and whether numbers
/// are to be the same.
struct Section<'p> {
    title: &'p str,
    needs: Vec<&'p str>,
    script: &'p str,
    output: &'p str,
    exact: bool,
}

/// What a page has: a command each, with the output behind it.
fn sections(page: &str) -> Vec<Section<'_>> {
    let mut all = Vec::new();
    let (mut title, mut rest) = ("", page);
    while let Some((before, after)) = rest.split_once("```sh\n") {
        if let Some((_, last)) = before.rsplit_once("\n## ") {
            title = last.lines().next().unwrap_or_default();
        }
        let needs = before.rsplit_once("<!-- needs: ").and_then(|(_, n)| n.split_once(" -->"));
        let needs = needs.map_or("", |(needs, _)| needs).split(' ').filter(|n| !n.is_empty());
        let Some((script, after)) = after.split_once("```") else { break };
        let Some((head, output)) = after.trim_start().split_once('\n') else { break };
        let Some((output, after)) = output.split_once("```") else { break };
        let exact = match head {
            "```text" => false,
            "```text exact" => true,
            _ => panic!("no output behind `{script}`"),
        };
        all.push(Section { title, needs: needs.collect(), script, output, exact });
        rest = after;
    }
    all
}

/// Puts the gallery into a folder.
fn with_gallery(skep: Skep) -> Skep {
    for dir in ["gallery", "gallery/targets"] {
        for file in std::fs::read_dir(root().join(dir)).expect("it is there").flatten() {
            if file.file_type().is_ok_and(|t| t.is_file()) {
                std::fs::copy(file.path(), skep.path(&file.file_name().to_string_lossy())).unwrap();
            }
        }
    }
    skep
}

/// Runs a section's command in a folder.
fn printed(section: &Section<'_>, skep: &Skep) -> String {
    let bin = skep_bin().parent().expect("a folder").display().to_string();
    let path = format!("{bin}:{}", std::env::var("PATH").unwrap_or_default());
    let mut shell = Command::new("sh");
    shell
        .args(["-eu", "-c", &format!("exec 2>&1\n{}", section.script)])
        .current_dir(skep.path("."))
        .env("PATH", path)
        .env("SKEP_DIR", skep.path("skep"))
        .env("LC_ALL", "C")
        .env_remove("SKEP_PRELOAD")
        .env_remove("LD_PRELOAD");
    let ended = run(&mut shell, b"", LIMIT);
    assert_eq!(ended.shell_status(), 0, "{}: {}", section.title, ended.transcript());
    text(&ended.stdout).to_owned()
}

/// A line without what differs from run to run: numbers, with their units and the blanks before
/// them, and functions that are named by their address.
fn shape(line: &str) -> String {
    let mut out = String::new();
    let mut rest = line;
    while let Some(c) = rest.chars().next() {
        if let Some(after) = rest.strip_prefix("sub_") {
            rest = after.trim_start_matches(|c: char| c.is_ascii_hexdigit());
            out.push_str("sub_#");
        } else if c.is_ascii_digit() {
            let number = |c: char| c.is_ascii_digit() || c == '.';
            rest = rest.trim_start_matches(number);
            for unit in ["ns", "us", "µs", "ms", "s"] {
                rest = rest.strip_prefix(unit).unwrap_or(rest);
            }
            out.push('#');
        } else {
            out.push(c);
            rest = &rest[c.len_utf8()..];
        }
    }
    out
}

/// Runs all commands of a page, each in a folder of its own or all in one.
fn check(name: &str, least: usize, folder: &dyn Fn() -> Skep, is_shared: bool) {
    let path = root().join("docs").join(name);
    let page = std::fs::read_to_string(&path).unwrap();
    let mut recorded = page.clone();
    let all = sections(&page);
    assert_eq!(all.len(), page.matches("```sh\n").count(), "a command without its output");
    assert!(all.len() >= least);
    let shared = is_shared.then(folder);
    let mut problems = Vec::new();
    for section in &all {
        let compilers = ["cc ", "clang "].into_iter().filter(|cc| section.script.contains(cc));
        let needed = section.needs.iter().copied().chain(compilers.map(str::trim));
        let missing: Vec<&str> = needed.filter(|name| !has_command(name)).collect();
        if !missing.is_empty() {
            skip(&format!("{} ({})", missing.join(", "), section.title));
            if is_shared {
                break;
            }
            continue;
        }
        let own = if is_shared { None } else { Some(folder()) };
        let printed = printed(section, own.as_ref().or(shared.as_ref()).expect("one of them"));
        if std::env::var_os("SKEP_RECORD").is_some() {
            let mut lines: Vec<&str> = printed.lines().take(RECORDED).collect();
            lines.extend((printed.lines().count() > RECORDED).then_some("…"));
            let head = if section.exact { "```text exact\n" } else { "```text\n" };
            let (old, new) = (section.output, lines.join("\n") + "\n");
            let at = format!("{}```\n\n{head}{old}```", section.script);
            let with = format!("{}```\n\n{head}{new}```", section.script);
            assert!(recorded.contains(&at), "{at}");
            recorded = recorded.replacen(&at, &with, 1);
            continue;
        }
        let normal = |line: &str| if section.exact { line.to_owned() } else { shape(line) };
        let mut there = printed.lines().map(normal);
        for line in section.output.lines().filter(|line| *line != "…") {
            if !there.any(|t| t == normal(line)) {
                problems.push(format!("{}: no line `{line}` in\n{printed}", section.title));
                break;
            }
        }
        assert!(!section.output.trim().is_empty(), "{}: no output", section.title);
    }
    if recorded != page {
        std::fs::write(&path, recorded).unwrap();
    }
    assert!(problems.is_empty(), "{}", problems.join("\n"));
}

#[test]
fn the_gallerys_commands_print_what_the_page_says() {
    check("gallery.md", 10, &|| with_gallery(Skep::new()), false);
}

/// The tutorial, from its first command to its last.
#[test]
fn the_first_programs_commands_print_what_the_page_says() {
    check("first-program.md", 7, &Skep::new, true);
}

#[test]
fn the_commands_of_export_print_what_the_page_says() {
    check("export.md", 1, &Skep::new, true);
}

/// Every program of the gallery is on the page.
#[test]
fn the_page_has_all_programs() {
    let page = std::fs::read_to_string(root().join("docs/gallery.md")).unwrap();
    for file in std::fs::read_dir(root().join("gallery")).unwrap().flatten() {
        let name = file.file_name().into_string().unwrap();
        if name.ends_with(".bpf.c") || name.ends_with(".toml") {
            assert!(page.contains(&format!("](../gallery/{name})")), "{name}");
        }
    }
}

#[test]
fn shapes_keep_what_stays_the_same() {
    assert_eq!(shape("  { .stack = 12 }: 7"), "  { .stack = # }: #");
    assert_eq!(shape("<1.0ms;checkout 9"), "<#;checkout #");
    assert_eq!(shape("sub_a1f0;main 3"), "sub_#;main #");
    assert_eq!(shape("run 1 of f, 2.5µs each"), "run # of f, # each");
}
