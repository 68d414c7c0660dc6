//! Every command of the pages, run as it stands there, prints what the page says.
//!
//! `SKEP_RECORD=1` writes what the commands print into the pages.

mod common;

use std::path::Path;
use std::time::Duration;

use common::page::{blocks, check, other_blocks, root, shape};
use common::{Skep, text};
use skep_testkit::run::run;
use skep_testkit::skip::{has_command, skip};

/// Pages whose commands are run by other tests, which hold them against something better than what
/// was printed once.
const ELSEWHERE: &[(&str, &str)] = &[
    // Of the test itself: the command that builds what it runs, and a test in a process of its own.
    ("crates/test/README.md", "crates/test/tests/coverage.rs"),
    // All but the first line: cargo has built the archive for that test.
    ("docs/c-api.md", "crates/capi/tests/library.rs"),
    ("docs/chains.md", "crates/cli/tests/chain.rs"),
    ("docs/vma.md", "crates/cli/tests/vma.rs"),
];

/// What pages show besides commands and what these print: the page, the language, and the test that looks
/// at it, or why none can.
const SHOWN: &[(&str, &str, &str)] = &[
    ("README.md", "rust", "crates/cli/tests/pages.rs"),
    ("README.md", "text", "crates/cli/tests/pages.rs"),
    ("crates/proc/README.md", "rust", "crates/proc/src/lib.rs"),
    ("crates/skep/README.md", "rust,no_run", "crates/skep/src/lib.rs"),
    ("crates/test/README.md", "rust,ignore", "crates/test/tests/readme.rs"),
    ("crates/test/README.md", "text", "crates/test/tests/programs.rs"),
    ("crates/test/README.md", "toml", "needs a published crate"),
    ("docs/arguments.md", "c", "crates/cli/tests/pages.rs"),
    ("docs/arguments.md", "text", "crates/cli/tests/prototypes.rs"),
    ("docs/c-api.md", "c", "crates/capi/tests/library.rs"),
    ("docs/chains.md", "text", "crates/cli/tests/chain_kernel.rs"),
    ("docs/chains.md", "toml", "crates/cli/tests/chain.rs"),
    ("docs/first-program.md", "text", "needs packages, which it installs on the machine"),
    ("docs/library.md", "rust", "crates/cli/tests/pages.rs"),
    ("docs/library.md", "toml", "needs a published crate"),
    ("docs/maps.md", "c", "crates/cli/tests/pages.rs"),
    ("docs/packets.md", "text", "crates/cli/tests/pages.rs"),
    ("docs/shm-format.md", "text", "draws what files look like"),
    ("docs/test-run.md", "json", "crates/cli/tests/pages.rs"),
    ("docs/trust.md", "text", "names types"),
    ("docs/unit-tests.md", "rust", "crates/cli/tests/pages.rs"),
    ("docs/unit-tests.md", "yaml", "needs a runner of GitHub's"),
    ("docs/verifier-errors.md", "c", "crates/cli/tests/pages.rs"),
    ("docs/verifier-errors.md", "text", "crates/cli/tests/pages.rs"),
];

/// Pages whose commands are run here.
const HERE: &[&str] = &[
    "README.md",
    "docs/call-paths.md",
    "docs/calls.md",
    "docs/coverage.md",
    "docs/export.md",
    "docs/faults.md",
    "docs/first-program.md",
    "docs/gallery.md",
    "docs/inside.md",
    "docs/live.md",
    "docs/maps.md",
    "docs/packets.md",
    "docs/profiling.md",
    "docs/prog-verify.md",
    "docs/recording.md",
    "docs/reports.md",
    "docs/symbolize.md",
    "docs/test-run.md",
    "docs/tracing.md",
    "docs/unit-tests.md",
    "docs/verifier-errors.md",
];

/// Puts a folder's files into a test's.
fn put(skep: &Skep, dir: &str) {
    for file in std::fs::read_dir(root().join(dir)).expect("it is there").flatten() {
        if file.file_type().is_ok_and(|t| t.is_file()) {
            std::fs::copy(file.path(), skep.path(&file.file_name().to_string_lossy())).unwrap();
        }
    }
}

/// A folder with the gallery, what it is tried on, and the programs beside the command.
fn with_gallery() -> Skep {
    let skep = Skep::new();
    for dir in ["gallery", "gallery/targets", "crates/cli/bpf"] {
        put(&skep, dir);
    }
    skep
}

/// The same with packet programs of the library's tests, and programs that are refused.
fn with_programs() -> Skep {
    let skep = with_gallery();
    for dir in ["crates/skep/tests/data", "crates/skep/tests/data/dry_run"] {
        put(&skep, dir);
    }
    for file in [
        "crates/verifier/tests/data/bounds.bpf.o",
        "crates/cli/tests/data/inlined.c",
        "crates/cli/tests/data/target.c",
        "crates/cli/tests/data/typed.bpf.o",
    ] {
        let name = Path::new(file).file_name().expect("a file");
        let text = std::fs::read(root().join(file)).unwrap();
        std::fs::write(skep.path(&name.to_string_lossy()), text).unwrap();
    }
    skep
}

/// The blocks of a page in a language.
fn pieces<'p>(page: &'p str, language: &str) -> Vec<&'p str> {
    let blocks = page.split("```").skip(1).step_by(2);
    blocks.filter_map(|block| block.strip_prefix(language)?.strip_prefix('\n')).collect()
}

/// Runs all blocks of a page.
fn all(page: &str, folder: &dyn Fn() -> Skep, is_shared: bool) {
    assert!(HERE.contains(&page), "{page}");
    check(page, folder, is_shared);
}

/// The README's commands are given in the sources, for a command that is built first; its tests are
/// what `.ci/run` runs. Which functions take `ls` longest differs from machine to machine.
#[test]
fn the_readmes_commands_run() {
    let readme = std::fs::read_to_string(root().join("README.md")).unwrap();
    let skep = Skep::new();
    std::os::unix::fs::symlink(root().canonicalize().unwrap().join("crates"), skep.path("crates"))
        .unwrap();
    let mut printed = Vec::new();
    for block in blocks(&readme).iter().filter(|b| b.title != "Test it") {
        let ended = block.run_with(&skep, "cargo run --release --", "skep");
        assert_eq!(ended.shell_status(), 0, "{}: {}", block.title, ended.transcript());
        printed.push(text(&ended.stdout));
    }
    assert_eq!(printed.len(), 2);
    let shown = |text: &str| text.lines().map(shape).collect::<Vec<_>>();
    let tried = shown(&printed[0]);
    let tables = readme.split("```text\n").skip(1).filter_map(|rest| rest.split("```").next());
    let tables: Vec<_> = tables.map(shown).collect();
    assert_eq!(tables.len(), 2);
    let table = tried.iter().position(|line| *line == tables[0][0]).expect("a table");
    let rows = tried[table + 1..].iter().filter(|line| line.ends_with("libc.so. #"));
    assert_eq!(rows.count(), tables[0].len() - 1, "{}", printed[0]);
    // How many were traced, why others were not, and that more were called. For which functions differs
    // with the library, and so does of how many times are estimated, and how many had not returned: of
    // one, of several, or of none. Reasons that only a library with debug symbols has are not on the
    // page.
    let words = |line: &str| line.split(':').next().unwrap_or_default().to_owned();
    for line in tables[1].iter().filter(|line| *line != "…" && !line.starts_with(['~', '+'])) {
        let is_there = tried.iter().any(|tried| words(tried) == words(line));
        assert!(is_there, "{line}: {}", printed[0]);
    }
    assert!(printed[1].contains("\nsizes (hash, "), "{}", printed[1]);
}

#[test]
fn the_gallerys_commands_print_what_the_page_says() {
    let blocks = blocks_of("docs/gallery.md");
    assert!(blocks >= 10, "{blocks}");
    all("docs/gallery.md", &with_gallery, false);
}

/// The tutorial, from its first command to its last.
#[test]
fn the_first_programs_commands_print_what_the_page_says() {
    all("docs/first-program.md", &Skep::new, true);
}

#[test]
fn the_commands_of_export_print_what_the_page_says() {
    all("docs/export.md", &Skep::new, true);
}

#[test]
fn the_commands_of_reports_print_what_the_page_says() {
    all("docs/reports.md", &Skep::new, true);
}

#[test]
fn programs_run_inside_functions_as_the_page_says() {
    all("docs/inside.md", &with_gallery, true);
}

#[test]
fn calls_are_shown_as_the_page_says() {
    all("docs/calls.md", &with_gallery, true);
}

#[test]
fn a_trace_is_recorded_as_the_page_says() {
    all("docs/recording.md", &with_gallery, true);
}

#[test]
fn functions_are_covered_as_the_page_says() {
    all("docs/coverage.md", &with_gallery, true);
}

#[test]
fn call_paths_are_shown_as_the_page_says() {
    all("docs/call-paths.md", &with_gallery, true);
}

#[test]
fn calls_fail_as_the_page_says() {
    all("docs/faults.md", &with_gallery, true);
}

#[test]
fn maps_are_made_and_read_as_the_page_says() {
    all("docs/maps.md", &with_gallery, true);
}

#[test]
fn packets_meet_programs_as_the_page_says() {
    all("docs/packets.md", &with_programs, true);
}

#[test]
fn profilers_see_programs_as_the_page_says() {
    all("docs/profiling.md", &with_programs, true);
}

#[test]
fn questions_are_answered_as_the_page_says() {
    all("docs/tracing.md", &with_gallery, true);
}

/// Each program of the object is on the page as it is in the source, and is refused in these words.
#[test]
fn mistakes_are_refused_in_the_words_of_the_page() {
    let page = std::fs::read_to_string(root().join("docs/verifier-errors.md")).unwrap();
    let source = std::fs::read_to_string(root().join("gallery/refused.bpf.c")).unwrap();
    let skep = with_gallery();
    let mut verify = skep.command(["prog", "verify", "refused.bpf.o"]);
    let said = run(verify.current_dir(skep.path(".")), b"", Duration::from_secs(300));
    let said = text(&said.stdout);
    let (code, words) = (pieces(&page, "c"), pieces(&page, "text"));
    for code in &code {
        assert!(source.contains(code), "not in the source: {code}");
    }
    for words in &words {
        assert!(said.contains(words), "{words}\nis not in\n{said}");
    }
    let programs = said.lines().filter(|line| !line.starts_with(' ')).count();
    assert_eq!((code.len(), words.len()), (programs, programs));
    all("docs/verifier-errors.md", &with_gallery, true);
}

/// What the page shows of the library is in its examples, which another test runs.
#[test]
fn the_librarys_page_shows_parts_of_its_examples() {
    let page = std::fs::read_to_string(root().join("docs/library.md")).unwrap();
    let folder = std::fs::read_dir(root().join("crates/skep/examples")).unwrap();
    let files = folder.flatten().filter(|f| f.file_type().is_ok_and(|t| t.is_file()));
    let examples: Vec<String> =
        files.map(|file| std::fs::read_to_string(file.path()).unwrap()).collect();
    let code = pieces(&page, "rust");
    for code in &code {
        assert!(examples.iter().any(|text| text.contains(code)), "in no example: {code}");
    }
    assert!(code.len() >= 7);
    // The README's piece is that of the crate's, which is compiled.
    let readme = std::fs::read_to_string(root().join("README.md")).unwrap();
    let compiled = std::fs::read_to_string(root().join("crates/skep/README.md")).unwrap();
    let code = readme.split("```rust\n").nth(1).and_then(|rest| rest.split("```").next());
    assert!(compiled.contains(code.expect("some code")));
}

/// The Rust of the unit tests' page is in a test of the crate.
#[test]
fn the_unit_test_in_rust_is_one_of_the_crates() {
    let page = std::fs::read_to_string(root().join("docs/unit-tests.md")).unwrap();
    let test = std::fs::read_to_string(root().join("crates/test/tests/readme.rs")).unwrap();
    for line in pieces(&page, "rust").iter().flat_map(|code| code.lines()) {
        assert!(test.lines().any(|l| l.trim() == line.trim()), "in no test: {line}");
    }
}

/// Programs that pages show in part compile, with what a reader has around them.
#[test]
fn parts_of_programs_compile() {
    let Some(clang) = ["clang", "clang-19"].into_iter().find(|name| has_command(name)) else {
        return skip("clang");
    };
    const HEAD: &str = "#include <linux/bpf.h>\n#include <linux/types.h>\n#include <bpf/bpf_helpers.h>\n\
                        #include <bpf/bpf_tracing.h>\n#include \"skep_maps.bpf.h\"\n";
    const AROUND: &str = "static long part(char *buffer, const char *path)\n{\n\tstruct bpf_dynptr key;\n\t\
                          __u64 *n = 0;\n\tlong len;\n";
    let dir = Skep::new();
    let mut compiled = 0;
    for page in ["docs/arguments.md", "docs/maps.md"] {
        let text = std::fs::read_to_string(root().join(page)).unwrap();
        let mut source = format!("{HEAD}struct event {{ int x; }};\n");
        for code in pieces(&text, "c") {
            // Statements need a function, which is the last thing here that does.
            let is_statement = code.starts_with("len = ");
            let code = if is_statement {
                format!("{AROUND}{code}return n ? *n : 0;\n}}\n")
            } else {
                code.into()
            };
            source += &code;
            compiled += 1;
        }
        std::fs::write(dir.path("part.bpf.c"), &source).unwrap();
        let mut command = std::process::Command::new(clang);
        command.args(["-target", "bpf", "-D__TARGET_ARCH_x86", "-O2", "-g", "-Wall", "-Werror"]);
        command.args(["-Wno-unused-function", "-I"]).arg(root().join("crates/cli/bpf"));
        command.args(["-I/usr/include/x86_64-linux-gnu", "-c", "part.bpf.c", "-o", "part.bpf.o"]);
        let ended = run(command.current_dir(dir.path(".")), b"", Duration::from_secs(300));
        assert_eq!(ended.shell_status(), 0, "{page}: {}\n{source}", ended.transcript());
    }
    assert_eq!(compiled, 4);
}

/// The JSON that pages describe has the keys that the command writes, and no others.
#[test]
fn json_has_the_keys_that_pages_name() {
    let keys = |text: &str| -> std::collections::BTreeSet<String> {
        let parts: Vec<&str> = text.split('"').collect();
        let keys = parts.windows(2).skip(1).step_by(2).filter(|w| w[1].starts_with(':'));
        keys.map(|w| w[0].to_owned()).collect()
    };
    let skep = with_programs();
    std::fs::write(skep.path("packet"), [0; 64]).unwrap();
    let printed = |args: &[&str]| {
        let ended =
            run(skep.command(args).current_dir(skep.path(".")), b"", Duration::from_secs(300));
        assert_eq!(ended.shell_status(), 0, "{args:?}: {}", ended.transcript());
        text(&ended.stdout)
    };
    let shown = |page: &str, language: &str| {
        let page = std::fs::read_to_string(root().join(page)).unwrap();
        let (_, described) = page.split_once("## As JSON").expect("the section");
        keys(pieces(described, language)[0])
    };
    let run = ["prog", "run", "--json"];
    let of = |program| ["variables.bpf.o", program, "--data-in", "packet", "--maps"];
    let ran = ["limit", "tell"].map(|program| printed(&[&run[..], &of(program)].concat()));
    assert_eq!(keys(&ran.concat()), shown("docs/test-run.md", "json"));
    let on = ["chain.bpf.o", "count", "--in", "gen:64", "--packets", "10"];
    let ran = printed(&[&run[..], &on].concat());
    assert_eq!(keys(&ran), shown("docs/packets.md", "text"));
}

#[test]
fn addresses_have_the_names_that_the_page_says() {
    all("docs/symbolize.md", &with_programs, true);
}

#[test]
fn programs_are_judged_as_the_page_says() {
    all("docs/prog-verify.md", &with_programs, true);
}

#[test]
fn programs_run_without_a_target_as_the_page_says() {
    all("docs/test-run.md", &with_programs, true);
}

#[test]
fn unit_tests_pass_and_fail_as_the_page_says() {
    all("docs/unit-tests.md", &with_programs, true);
}

#[test]
fn running_processes_are_traced_as_the_page_says() {
    all("docs/live.md", &with_gallery, true);
}

fn blocks_of(page: &str) -> usize {
    blocks(&std::fs::read_to_string(root().join(page)).expect("it is there")).len()
}

/// The pages for users, each with its name.
fn pages() -> Vec<(String, String)> {
    let mut paths = vec![root().join("README.md")];
    for dir in ["docs", "docs/parity"] {
        let files = std::fs::read_dir(root().join(dir)).unwrap().map(|f| f.unwrap().path());
        paths.extend(files.filter(|file| file.extension().is_some_and(|e| e == "md")));
    }
    let crates = std::fs::read_dir(root().join("crates")).unwrap();
    let readmes = crates.map(|dir| dir.unwrap().path().join("README.md"));
    paths.extend(readmes.filter(|file| file.exists()));
    let named = paths.into_iter().map(|path| {
        let name = path.strip_prefix(root()).unwrap().display().to_string();
        (name, std::fs::read_to_string(&path).unwrap())
    });
    named.collect()
}

/// Every page is here or elsewhere if it has commands, and none has commands in other blocks than
/// those that are run.
#[test]
fn no_page_has_commands_that_nobody_runs() {
    let (mut hidden, mut unknown) = (Vec::new(), Vec::new());
    for (name, page) in pages() {
        let is_elsewhere = |(page, test): &(&str, &str)| {
            let test = std::fs::read_to_string(root().join(test)).expect("it is there");
            let file = Path::new(page).file_name().unwrap().to_string_lossy().into_owned();
            *page == name && test.contains(&file)
        };
        if !blocks(&page).is_empty()
            && !HERE.contains(&name.as_str())
            && !ELSEWHERE.iter().any(is_elsewhere)
        {
            unknown.push(name.clone());
        }
        let mut is_run = true;
        let mut is_inside = false;
        for line in page.lines() {
            if let Some(language) = line.strip_prefix("```") {
                is_inside = !is_inside;
                is_run = language.starts_with("sh");
            } else if is_inside && !is_run {
                let is_typed = line.trim_start().starts_with("$ ");
                let line = line.trim_start().trim_start_matches("sudo ");
                if is_typed || line.starts_with("skep ") && !line.starts_with("skep = ") {
                    hidden.push(format!("{name}: {line}"));
                }
            } else if !is_inside && line.starts_with("    skep ") {
                hidden.push(format!("{name}: {line}"));
            }
        }
    }
    assert!(unknown.is_empty() && hidden.is_empty(), "{unknown:#?} {hidden:#?}");
}

/// Each block that is neither commands nor what those right before it print is looked at by a test, or
/// the reason why not is in the list; and the list has no others.
#[test]
fn no_page_shows_what_nobody_looks_at() {
    let mut shown = std::collections::BTreeSet::new();
    for (name, page) in pages() {
        for language in other_blocks(&page) {
            shown.insert((name.clone(), language));
        }
    }
    let listed = SHOWN.iter().map(|(page, language, _)| (page.to_string(), language.to_string()));
    assert_eq!(shown, listed.collect());
    for (page, _, test) in SHOWN.iter().filter(|row| row.2.starts_with("crates/")) {
        let test = std::fs::read_to_string(root().join(test)).expect("it is there");
        let file = Path::new(page).file_name().unwrap().to_string_lossy().into_owned();
        assert!(test.contains(&file), "{page}");
    }
}

/// Every subcommand and option that a page has in its text is one of the command's.
#[test]
fn pages_name_no_option_that_is_not_there() {
    let skep = Skep::new();
    let mut help = std::collections::HashMap::new();
    let mut unknown = Vec::new();
    let mut named = 0;
    for (name, page) in pages() {
        let mut is_inside = false;
        let prose = page.lines().filter(|line| {
            let is_fence = line.starts_with("```");
            is_inside ^= is_fence;
            !is_fence && !is_inside
        });
        let prose = prose.collect::<Vec<_>>().join(" ");
        for code in prose.split('`').skip(1).step_by(2).filter(|code| code.starts_with("skep ")) {
            let ours = code.split(" -- ").next().and_then(|code| code.split("$(").next());
            let ours = ours.unwrap_or(code);
            let mut words = ours.split_whitespace().skip(1).peekable();
            let is_name =
                |w: &&str| w.chars().all(|c| c.is_ascii_lowercase() || c.is_ascii_digit());
            let mut of: Vec<String> =
                words.next_if(is_name).map(str::to_owned).into_iter().collect();
            if of.iter().any(|w| matches!(w.as_str(), "prog" | "map" | "chain" | "vma" | "export"))
            {
                of.extend(words.next_if(is_name).map(str::to_owned));
            }
            let text = help.entry(of.clone()).or_insert_with(|| {
                let ended = skep.run(of.iter().map(String::as_str).chain(["--help"]));
                (ended.shell_status() == 0).then(|| text(&ended.stdout))
            });
            let Some(text) = text else {
                unknown.push(format!("{name}: {code}"));
                continue;
            };
            named += 1;
            for option in words.filter(|word| word.starts_with('-')) {
                let option = option.split('=').next().unwrap_or(option);
                let is_it = |word: &str| word.trim_matches(&[',', '[', ']', '`'][..]) == option;
                let lines = text.lines().filter(|line| line.trim_start().starts_with('-'));
                if !lines.flat_map(str::split_whitespace).any(is_it) {
                    unknown.push(format!("{name}: {code}: {option}"));
                }
            }
        }
    }
    assert!(unknown.is_empty(), "{unknown:#?}");
    assert!(named > 100, "{named}");
}

/// Every program of the gallery is on its page, or on that of those that are refused.
#[test]
fn the_page_has_all_programs() {
    let mut page = std::fs::read_to_string(root().join("docs/gallery.md")).unwrap();
    page += &std::fs::read_to_string(root().join("docs/verifier-errors.md")).unwrap();
    for file in std::fs::read_dir(root().join("gallery")).unwrap().flatten() {
        let name = file.file_name().into_string().unwrap();
        if name.ends_with(".bpf.c") || name.ends_with(".toml") {
            assert!(page.contains(&format!("](../gallery/{name})")), "{name}");
        }
    }
}

#[test]
fn shapes_keep_what_stays_the_same() {
    assert_eq!(shape("  { .stack = 12 }: 7"), " { .stack = # }: #");
    assert_eq!(shape("<1.0ms;checkout 9"), "< #;checkout #");
    assert_eq!(shape("sub_a1f0;main 3"), "sub_#;main #");
    assert_eq!(shape("run 1 of f, 2.5µs each"), "run # of f, # each");
    assert_eq!(shape("    1  123ns  f = 0x7f12ab"), shape("10  1.2µs  f = 0x5"));
}
