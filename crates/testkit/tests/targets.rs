//! The target programs alone: they must be right before a tracer is judged by them.

use std::collections::BTreeSet;
use std::os::unix::fs::PermissionsExt;

use skep_testkit::cc::{Build, Cc};
use skep_testkit::target::{self, TARGETS};

/// Every target ends as the table says and makes the same calls whether optimised or not.
#[test]
fn targets_count_the_same_in_every_build() {
    for target in TARGETS {
        let mut first = None;
        for build in [Build::O0, Build::O2, Build::Patchable5, Build::CfProtection] {
            let (ended, counts) = target.build(build).run();
            assert_eq!(
                ended.shell_status(),
                target.status,
                "{} ({build:?}): {}",
                target.name,
                ended.transcript()
            );
            assert!(!counts.is_empty(), "{} ({build:?}) counted nothing", target.name);
            assert!(
                !ended.stderr.starts_with(b"{"),
                "{} ({build:?}) did not find its counts file",
                target.name
            );
            let seen = (counts, ended.stdout);
            if target.repeatable {
                assert_eq!(
                    first.get_or_insert_with(|| seen.clone()),
                    &seen,
                    "{} ({build:?})",
                    target.name
                );
            }
        }
    }
}

/// Recursion stays recursion, a call stays a call: each counted function is one symbol of the
/// optimised program, and none is split or cloned. Otherwise the counts would not be a tracer's.
#[test]
fn counted_functions_are_symbols() {
    for target in TARGETS {
        let program = target.build(Build::O2);
        let (_, counts) = program.run();
        let names = std::process::Command::new("nm")
            .arg("--demangle")
            .arg(&program.path)
            .output()
            .expect("binutils have `nm`");
        let names = String::from_utf8_lossy(&names.stdout).into_owned();
        let symbols: BTreeSet<&str> =
            names.lines().filter_map(|line| line.splitn(3, ' ').nth(2)).collect();
        for name in counts.keys().filter(|name| !name.starts_with("plugin_")) {
            let found = symbols
                .iter()
                .filter(|symbol| **symbol == name || symbol.split('(').next() == Some(name))
                .count();
            assert!(found >= 1, "{}: no symbol `{name}`", target.name);
        }
        let split: Vec<_> = symbols
            .iter()
            .filter(|s| {
                s.split_once('.')
                    .is_some_and(|(name, rest)| counts.contains_key(name) && rest != "cold")
            })
            .collect();
        assert!(split.is_empty(), "{}: {split:?}", target.name);
    }
}

/// Fork, threads, exec and a crash lose no count: the numbers follow from the sources.
#[test]
fn counts_survive_every_end() {
    let counts = |name: &str| target::named(name).build(Build::O2).run().1;
    assert_eq!(counts("threads")["leaf"], 8 * 20011 * 2);
    assert_eq!(counts("fork")["shared"], 7 * 101 + 6 * 211);
    assert_eq!(counts("fork")["in_child"], 6);
    assert_eq!(counts("exec")["main"], 5);
    assert_eq!(counts("exec")["step"], 53 + 54 + 55 + 56 + 57);
    assert_eq!(counts("crash")["step"], 1001);
    assert_eq!(counts("exit_now")["deep"], 38);
    assert_eq!(counts("clearenv")["second_life"], 31);
    assert_eq!(counts("dlopen")["plugin_inner"], 350);
    assert_eq!(counts("spawn")["step"], 5 + 5 + 10 * 17);
}

/// A stripped program has no symbols, a static one no loader.
#[test]
fn builds_are_what_they_say() {
    let target = target::named("args");
    let bytes = |build| std::fs::read(target.build(build).path).unwrap();
    let has = |bytes: &[u8], text: &[u8]| bytes.windows(text.len()).any(|window| window == text);
    let has_loader = |build| {
        let headers =
            std::process::Command::new("readelf").arg("-lW").arg(target.build(build).path).output();
        has(&headers.expect("binutils have `readelf`").stdout, b"INTERP")
    };
    assert!(has(&bytes(Build::O2), b"keeps_values\0") && has_loader(Build::O2));
    assert!(has(&bytes(Build::Patchable5), b"__patchable_function_entries\0"));
    assert!(!has_loader(Build::Static));
    let stripped = target.build(Build::Stripped);
    assert_eq!(std::fs::metadata(&stripped.path).unwrap().permissions().mode() & 0o111, 0o111);
    assert!(!has(&std::fs::read(&stripped.path).unwrap(), b".symtab\0"));
    let (ended, counts) = target.build(Build::Static).run();
    assert_eq!((ended.shell_status(), counts["twelve"]), (0, 1009));
}

/// A compiler's complaint reaches the person who reads the test.
#[test]
#[should_panic = "no_such_thing"]
fn what_does_not_compile_says_why() {
    let dir = skep_testkit::TempDir::new();
    std::fs::write(dir.join("bad.c"), "int main(void) { return no_such_thing; }\n").unwrap();
    Cc::c().compile(&[&dir.join("bad.c")], &dir.join("bad"));
}
