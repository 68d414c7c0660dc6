//! `skep test`: what passes, what fails and how that is said, JUnit XML, lcov.

mod common;

use std::fs;
use std::os::unix::ffi::OsStrExt;
use std::process::Command;
use std::time::Duration;

use common::{Skep, data, fails, json, out, text};
use skep_testkit::run::run;
use skep_testkit::skip;
use skep_testkit::skip::has_command;

const LIMIT: Duration = Duration::from_secs(300);

/// Writes a file of tests.
fn file(skep: &Skep, name: &str, tests: &str) -> String {
    let path = skep.path(name);
    fs::write(&path, tests).unwrap();
    path.display().to_string()
}

/// Tests of the program `leaf` of typed.bpf.o, with this in the only one.
fn leaf(skep: &Skep, rest: &str) -> String {
    let object = data("typed.bpf.o");
    let head = format!("object = '{object}'\nprogram = 'leaf'\n[[test]]\nname = 'one'\n");
    file(skep, "leaf.toml", &format!("{head}{rest}"))
}

/// Runs tests of which one fails, and returns what it says.
fn problems(skep: &Skep, path: &str) -> Vec<String> {
    let ended = skep.run(["test", "--json", path]);
    assert_eq!(ended.status.code(), Some(1), "{}", text(&ended.stderr));
    let report = json(&ended.stdout);
    assert_eq!(report["failed"], 1);
    let all = report["tests"][0]["problems"].as_array().unwrap();
    all.iter().map(|p| p.as_str().unwrap().to_owned()).collect()
}

#[test]
fn runs_after_another_see_what_a_queue_has() {
    let skep = Skep::new();
    let printed = out(&skep, &["test", &data("first_bytes.test.toml")]);
    let results: Vec<&str> = printed.lines().filter(|l| l.starts_with("  ok")).collect();
    assert_eq!(
        results,
        [
            "  ok      a first byte that is waited for passes, once",
            "  ok      a packet without an Ethernet header is refused, as by the kernel",
        ]
    );
    assert!(printed.contains("2 tests passed, 0 failed"), "{printed}");
}

#[test]
fn maps_variables_and_lines_are_compared_run_by_run() {
    let skep = Skep::new();
    let path = leaf(
        &skep,
        r#"
globals = { wanted = 9 }
[[test.run]]
context = { zeros = 168 }
expect.retval = 0
expect.printed = ["leaf 0"]
expect.maps.shapes = [{ key = { n = 0, word = "ab" }, value = { calls = 1, minus = -1, kind = "KIND_EVEN" } }]
expect.maps.".data" = { wanted = 9 }
[[test.run]]
context = { zeros = 168 }
expect.printed = []
expect.maps.shapes = [{ key = { n = 0 }, value = { calls = 2 } }, { key = { n = 1 }, absent = true }]
expect.maps.".bss" = { total = 2 }
"#,
    );
    for engine in ["jit", "interp"] {
        assert!(out(&skep, &["test", "--engine", engine, &path]).contains("  ok      one\n"));
    }
}

#[test]
fn what_differs_is_said() {
    let skep = Skep::new();
    let shapes =
        "{ key = { n = 0, word = 'ab' }, value = { calls = 41, minus = 0, kind = 'KIND_ODD' } }";
    let path = leaf(
        &skep,
        &format!(
            "before.shapes = [{shapes}]\ncontext = {{ zeros = 168 }}\nexpect.retval = 7\nexpect.printed = ['x']\n\
             expect.maps.shapes = [{{ key = {{ n = 0 }}, value = {{ calls = 41 }} }}, {{ key = {{ n = 5 }}, value = {{}} }}]\n\
             expect.maps.'.bss' = {{ total = 2, no = 1 }}\n"
        ),
    );
    assert_eq!(
        problems(&skep, &path),
        [
            "returned 0, expected 7",
            "printed [], expected [\"x\"]",
            "`.bss` has no variable `no`",
            "variable `total` is 1, expected 2",
            "map `shapes`, element {\"n\":0}: value is {\"calls\":42,\"minus\":-1,\"kind\":\"KIND_ODD\"}, expected {\"calls\":41}",
            "map `shapes` has no element {\"n\":5}",
        ]
    );
    let example = fs::read_to_string(data("first_bytes.test.toml")).unwrap();
    let object = data("../../../skep/tests/data/library.bpf.o");
    let example = example.replace("../../../skep/tests/data/library.bpf.o", &object);
    let changed = example.replace("\"drop\"", "\"XDP_PASS\"").replacen(
        "done = []",
        "done = [{ value = 1 }]",
        1,
    );
    assert_eq!(
        problems(&skep, &file(&skep, "changed.toml", &changed)),
        [
            "run 1: map `done` has [], expected [{\"value\":1}]",
            "run 2: returned 1 (drop), expected 2 (pass)",
        ]
    );
    let changed = example.replace("zeros = 13", "zeros = 14");
    let problem = problems_of_second(&skep, &file(&skep, "changed.toml", &changed));
    assert_eq!(problem, "ran, expected to fail with EINVAL");
}

/// It said "Invalid argument".
#[test]
fn a_run_that_is_refused_says_why() {
    let skep = Skep::new();
    let object = data("../../../skep/tests/data/library.bpf.o");
    let head = format!("object = '{object}'\nprogram = 'first_bytes'\n[[test]]\nname = 'one'\n");
    let one = |rest: &str| {
        let path = file(&skep, "refused.toml", &format!("{head}{rest}\nexpect.retval = 'pass'\n"));
        problems(&skep, &path)
    };
    let short =
        |n| format!("could not run: the packet has {n} bytes, at least 14 are needed (EINVAL)");
    assert_eq!(one(""), [short(0)]);
    assert_eq!(one("packet = { hex = '' }"), [short(0)]);
    assert_eq!(one("packet = { zeros = 13 }"), [short(13)]);
    assert_eq!(
        one("packet = { zeros = 20 }\ncontext = { hex = '15 000000' }"),
        [
            "could not run: `data`, `data_end` and `data_meta` of the context do not fit the packet (EINVAL)"
        ]
    );
}

/// The terminal obeyed it.
#[test]
fn a_name_is_text() {
    let skep = Skep::new();
    let path = leaf(&skep, "context = { zeros = 168 }\nexpect.retval = 0\n");
    let tests = fs::read_to_string(&path).unwrap();
    fs::write(&path, tests.replace("'one'", r#""a\u001b[31m\u0007b""#)).unwrap();
    assert!(out(&skep, &["test", &path]).contains("  ok      a\\033[31m\\007b\n"));
}

fn problems_of_second(skep: &Skep, path: &str) -> String {
    let ended = skep.run(["test", "--json", path]);
    let report = json(&ended.stdout);
    assert_eq!(report["tests"][0]["passed"], true);
    report["tests"][1]["problems"][0].as_str().unwrap().to_owned()
}

#[test]
fn what_cannot_be_loaded_fails_its_test_with_the_reason() {
    let skep = Skep::new();
    let object = data("bad.bpf.o");
    let listed = json(&skep.run(["prog", "verify", "--json", &object]).stdout);
    let rejected = listed.as_array().unwrap().iter().find(|p| p["verdict"] == "reject").unwrap();
    let (program, error) =
        (rejected["program"].as_str().unwrap(), rejected["error"].as_str().unwrap());
    let tests = format!(
        "object = '{object}'\nprogram = '{program}'\n[[test]]\nname = 'bad'\nexpect.retval = 0\n"
    );
    let all = problems(&skep, &file(&skep, "bad.toml", &tests));
    assert!(all[0].contains(error), "{all:?} without {error:?}");
    let all = problems(&skep, &leaf(&skep, "context = { zeros = 168 }\nexpect.maps.shape = []\n"));
    assert!(all[0].contains("no map `shape`") && all[0].contains("`shapes`"), "{all:?}");
    let all = problems(&skep, &leaf(&skep, "program = 'twig'\nexpect.retval = 0\n"));
    assert!(all[0].contains("twig"), "{all:?}");
}

/// Each missing file is named, and the tests beside it run.
#[test]
fn what_cannot_be_read_fails_its_test_with_the_reason() {
    let skep = Skep::new();
    let named = |name: &str, bytes: &str| {
        let tests = fs::read_to_string(leaf(&skep, &format!("{bytes}\nexpect.retval = 0\n")));
        file(&skep, name, &tests.unwrap())
    };
    let right = named("right.toml", "context = { zeros = 168 }");
    let xml = skep.path("missing.xml").display().to_string();
    for (bytes, words) in [
        ("context = { file = 'no.bin' }", "no.bin`: No such file"),
        ("context = { file = '.' }", "cannot read `"),
        ("packet = { capture = 'no.pcap' }", "no.pcap"),
        ("context = { zeros = 168 }\nexpect.packet = { file = 'no.bin' }", "no.bin`: No such file"),
        ("object = 'no.bpf.o'", "no.bpf.o"),
    ] {
        let wrong = named("missing.toml", bytes);
        let ended = skep.run(["test", "--json", "--junit", &xml, &wrong, &right]);
        assert_eq!(ended.status.code(), Some(1), "{}", ended.transcript());
        let tests = json(&ended.stdout)["tests"].clone();
        let why = tests[0]["problems"][0].as_str().unwrap();
        assert!(why.contains(words), "{why}");
        assert_eq!(tests[1]["passed"], true, "{tests}");
        let written = fs::read_to_string(&xml).unwrap();
        assert_eq!(written.matches("<testcase").count(), 2, "{written}");
        assert_eq!(written.matches("<failure").count(), 1, "{written}");
    }
}

/// It was put under key 0. Elements of queues have none, also where they are written as `map dump` prints them.
#[test]
fn an_element_without_its_key_is_refused() {
    let skep = Skep::new();
    let value = "value = { calls = 41, minus = 0, kind = 'KIND_ODD' }";
    let test =
        |before: &str| leaf(&skep, &format!("before.shapes = [{before}]\nexpect.retval = 0\n"));
    assert_eq!(
        problems(&skep, &test(&format!("{{ {value} }}"))),
        ["an element of map `shapes` has no `key`"]
    );
    assert_eq!(
        problems(&skep, &test(&format!("{{ key = 1, {value} }}"))),
        ["1 is not a key of map `shapes`: `value`: 1 is no `struct key`"]
    );
    let example = fs::read_to_string(data("first_bytes.test.toml")).unwrap();
    let object = data("../../../skep/tests/data/library.bpf.o");
    let example = example.replace("../../../skep/tests/data/library.bpf.o", &object);
    let keyed = example.replacen("value = 0x45", "key = 1, value = 0x45", 1);
    assert_eq!(
        problems(&skep, &file(&skep, "keyed.toml", &keyed)),
        ["1 is not a key of map `waiting`: the map has no keys"]
    );
    let seen = example.replace("done = [{ value = 0x45", "done = [{ value = 0x46");
    assert_eq!(
        problems(&skep, &file(&skep, "seen.toml", &seen)),
        ["run 2: map `done` has [{\"key\":null,\"value\":69}], expected [{\"value\":70}]"]
    );
    let set = leaf(&skep, "globals = { no = 1 }\nexpect.retval = 0\n");
    let all = problems(&skep, &set);
    assert!(all[0].contains("typed.bpf.o`: there is no global variable `no`"), "{all:?}");
}

#[test]
fn wrong_files_are_refused() {
    let skep = Skep::new();
    fails(&skep, &["test", "/no/such.toml"], 2, "/no/such.toml");
    let cases = [
        ("", "there is no `[[test]]`"),
        ("[[test]]\nname = 'a'\nobject = 'x'\nprogram = 'p'\n", "expects nothing"),
        ("[[test]]\nname = 'a'\nexpect = { retval = 0 }\n", "`object`"),
        ("object = 'x'\n[[test]\n", "line 2: "),
        ("object = 'x'\nx = 99999999999999999999\n", "line 2: number out of range"),
        ("object = 1\n", "the file: `object` is 1, not a text"),
        ("test = 1\n", "`test` is 1, not a list"),
        ("[[test]]\n", "a test has no `name`"),
        ("[[test]]\nname = ''\nexpect = { retval = 0 }\n", "a test has no `name`"),
        (
            &"[[test]]\nname = 'a'\nexpect = { retval = 0 }\n".repeat(2),
            "two tests have the name `a`",
        ),
        (
            "[[test]]\nname = 'a'\npacket = { ones = 2 }\n",
            ": test `a`: bytes has an unknown key `ones`",
        ),
        (
            "[[test]]\nname = 'a'\nrun = [{ packet = 1 }]\n",
            ": test `a`, `run`: bytes is 1, not a table",
        ),
        ("[[test]]\nname = 'a'\nrepeat = -1\n", "test `a`: `repeat` is -1, not a number that fits"),
        (
            "[[test]]\nname = 'a'\nbefore.m = [{ key = 1 }]\n",
            "test `a`: `before`, `m`: an element has no `value`",
        ),
        ("[[test]]\nname = 'a'\nexpect.map.m = []\n", "`expect` has an unknown key `map`"),
        ("[[test]]\nname = 'a'\nexpect.printed = [1]\n", "no text"),
        (
            "[[test]]\nname = 'a'\nexpect.errno = 'EINVALL'\n",
            "`errno` has \"EINVALL\", which is no error",
        ),
        ("[[test]]\nname = 'a'\nexpect.errno = -22\n", "`errno` has -22, which is no error"),
        (
            "[[test]]\nname = 'a'\nexpected = { retval = 0 }\n",
            "test `a` has an unknown key `expected`",
        ),
        ("[[test]]\nname = 'a'\nrepeat = 2\nrun = [{ expect = { retval = 0 } }]\n", "has runs"),
        (
            "[[test]]\nname = 'a'\nobject = 'x'\nprogram = 'p'\npacket = {}\nexpect.retval = 0\n",
            "`zeros`",
        ),
        (
            "[[test]]\nname = 'a'\nobject = 'x'\nprogram = 'p'\npacket = { zeros = 99999999 }\nexpect.retval = 0\n",
            "more than a program takes",
        ),
        (
            "[[test]]\nname = 'a'\nobject = 'x'\nprogram = 'p'\npacket = { hex = '0' }\nexpect.retval = 0\n",
            "a byte takes two",
        ),
    ];
    for (tests, words) in cases {
        let words = words.replace("expects nothing", "`expect` names nothing");
        fails(&skep, &["test", &file(&skep, "wrong.toml", tests)], 2, &words);
    }
    let right = leaf(&skep, "context = { zeros = 168 }\nexpect.retval = 0\n");
    fails(&skep, &["test", "--filter", "two", &right], 1, "`two`");
    fails(&skep, &["test", "--lcov", "x", "--engine", "jit", &right], 2, "--lcov");
    fails(&skep, &["test", "--junit", "/no/such/file", &right], 2, "/no/such/file");
    fails(&skep, &["test", "--junit", "x", "--lcov", "./x", &right], 2, "name the same file");
    fails(&skep, &["test", "--lcov", &right, &right], 2, "which is read, and would be lost");
    fails(&skep, &["test", "--junit", "-", &right], 2, "both go to standard output");
}

#[test]
fn junit_is_xml_with_every_test() {
    let skep = Skep::new();
    let path = leaf(&skep, "context = { zeros = 168 }\nexpect.printed = ['<&\"']\n");
    let xml = skep.path("out.xml").display().to_string();
    let example = data("first_bytes.test.toml");
    assert_eq!(skep.run(["test", "--junit", &xml, &path, &example]).status.code(), Some(1));
    let check = "import sys, xml.etree.ElementTree as t\n\
                 for s in t.parse(sys.argv[1]).getroot():\n\
                 \x20 print(s.get('tests'), s.get('failures'), [c.get('name') for c in s], [f.text for f in s.iter('failure')])";
    let Ok(parsed) = Command::new("python3").args(["-c", check, &xml]).output() else {
        skip("python3");
        return;
    };
    let lines = text(&parsed.stdout);
    assert_eq!(
        lines,
        "1 1 ['one'] ['printed [\"leaf 0\"], expected [\"<&\\\\\"\"]']\n\
         2 0 ['a first byte that is waited for passes, once', 'a packet without an Ethernet header is refused, as by the kernel'] []\n",
        "{}",
        text(&parsed.stderr)
    );
    // Jenkins refuses suites with other times (`SUREFIRE_TIME` of its junit-10.xsd).
    let written = fs::read_to_string(&xml).unwrap();
    let suites = written.lines().filter(|line| line.contains("<testsuite "));
    let times = suites.map(|line| line.rsplit_once(" time=\"").unwrap().1.trim_end_matches("\">"));
    for time in times {
        let (whole, rest) = time.split_once('.').unwrap();
        let is_number = |text: &str| text.bytes().all(|b| b.is_ascii_digit());
        assert!(is_number(whole) && is_number(rest) && rest.len() <= 3, "{time}");
    }
    // A reader of services for continuous integration, where it is installed.
    let check = "import sys, junitparser as j\n\
                 for s in j.JUnitXml.fromfile(sys.argv[1]):\n\
                 \x20 assert s.time >= 0 and sum(c.time for c in s) > 0\n\
                 \x20 print(s.tests, s.failures, s.errors, [c.is_failure for c in s])";
    let mut python = Command::new("python3");
    let there = python.args(["-c", "import junitparser"]).output();
    if !there.is_ok_and(|out| out.status.success()) {
        return skip("python3 with `junitparser`");
    }
    let read = run(Command::new("python3").args(["-c", check, &xml]), b"", LIMIT);
    assert_eq!(read.shell_status(), 0, "{}", read.transcript());
    assert_eq!(text(&read.stdout), "1 1 0 [True]\n2 0 0 [False, False]\n");
}

/// Whatever tests and files are called, and whatever they say, the document is what Jenkins and Ant have,
/// and names come out of it as they went in, but for characters that XML has no place for.
#[test]
fn junit_keeps_to_the_schema_with_any_names() {
    let skep = Skep::new();
    let long = "é".repeat(100_000);
    // In TOML, and as they are read.
    let names = [
        (r#"]]> <![CDATA[ <&\"'"#, "]]> <![CDATA[ <&\"'"),
        (r"\u0000\u0001\u001b[31m\u007f\u0085", "???[31m??"),
        (r"two\nlines\tand\ra tab", "two\nlines\tand?a tab"),
        (r"\ufffe\uffff\U0001f41d", "??\u{1f41d}"),
        (" ", " "),
        (&long, &long),
    ];
    let mut tests = format!("object = '{}'\nprogram = 'leaf'\n", data("typed.bpf.o"));
    for (n, (name, _)) in names.iter().enumerate() {
        // Every second one fails, with the hostile text in what it says.
        let printed = if n % 2 == 0 { name } else { "leaf 0" };
        tests += &format!(
            "[[test]]\nname = \"{name}\"\ncontext = {{ zeros = 168 }}\nexpect.printed = [\"{printed}\"]\n"
        );
    }
    let path = skep.path("x").with_file_name(std::ffi::OsStr::from_bytes(b"\xff\x01<]]>.toml"));
    fs::write(&path, tests).unwrap();
    let xml = skep.path("out.xml");
    let args = ["test".as_ref(), "--junit".as_ref(), xml.as_os_str(), path.as_os_str()];
    let ended = skep.run(args);
    assert_eq!(ended.status.code(), Some(1), "{}", text(&ended.stderr));
    is_junit(&xml);
    let check = "import sys, xml.etree.ElementTree as t\n\
                 for c in t.parse(sys.argv[1]).getroot()[0]: print(repr((c.get('name'), c.find('failure') is not None)))";
    if !has_command("python3") {
        return skip("python3");
    }
    let read = run(Command::new("python3").args(["-c", check]).arg(&xml), b"", LIMIT);
    assert_eq!(read.shell_status(), 0, "{}", read.transcript());
    let python = |(n, (_, name)): (usize, &(&str, &str))| {
        let code = name.replace('\\', "\\\\").replace('\n', "\\n").replace('\t', "\\t");
        let quoted = if code.contains('\'') {
            format!("'{}'", code.replace('\'', "\\'"))
        } else {
            format!("'{code}'")
        };
        format!("({quoted}, {})", if n % 2 == 0 { "True" } else { "False" })
    };
    let expected: Vec<String> = names.iter().enumerate().map(python).collect();
    assert_eq!(text(&read.stdout).lines().collect::<Vec<_>>(), expected);
    // Tests that are left out are in no suite, and no suite is empty.
    let example = data("first_bytes.test.toml");
    let xml_path = xml.display().to_string();
    out(&skep, &["test", "--junit", &xml_path, "--filter", "refused", &example, &example]);
    is_junit(&xml);
    assert_eq!(fs::read_to_string(&xml).unwrap().matches("<testcase ").count(), 2);
    // Without a test there is no document, and the one before is as it was.
    let before = fs::read(&xml).unwrap();
    fails(&skep, &["test", "--junit", &xml_path, "--filter", "nothing", &example], 1, "`nothing`");
    let none = file(&skep, "none.toml", "object = 'x'\n");
    fails(&skep, &["test", "--junit", &xml_path, &none], 2, "there is no `[[test]]`");
    assert_eq!(fs::read(&xml).unwrap(), before);
}

/// Holds a document against the schema.
fn is_junit(xml: &std::path::Path) {
    if !has_command("xmllint") {
        return skip("xmllint");
    }
    let mut lint = Command::new("xmllint");
    lint.args(["--huge", "--noout", "--schema", &data("junit.xsd")]).arg(xml);
    let ended = run(&mut lint, b"", LIMIT);
    assert_eq!(ended.shell_status(), 0, "{}", ended.transcript());
}

#[test]
fn lines_are_counted_as_often_as_they_ran() {
    let skep = Skep::new();
    let path =
        leaf(&skep, &"[[test.run]]\ncontext = { zeros = 168 }\nexpect.retval = 0\n".repeat(3));
    let info = skep.path("out.info").display().to_string();
    let report = json(&skep.run(["test", "--json", "--lcov", &info, &path]).stdout);
    let source = fs::read_to_string(data("typed.bpf.c")).unwrap();
    let line = |wanted: &str| 1 + source.lines().position(|l| l.trim() == wanted).unwrap();
    let lcov = fs::read_to_string(&info).unwrap();
    let count = |wanted: &str| {
        let start = format!("DA:{},", line(wanted));
        lcov.lines().find_map(|l| l.strip_prefix(&start)?.parse::<u64>().ok())
    };
    // Three runs: the first one adds the element that the others change.
    assert_eq!(count("total++;"), Some(3), "{lcov}");
    assert_eq!(count("v->calls++;"), Some(2), "{lcov}");
    assert_eq!(count("first.minus = -1;"), Some(1), "{lcov}");
    assert!(lcov.contains("\nFNDA:3,leaf\n") && lcov.ends_with("end_of_record\n"));
    let found = lcov.lines().filter(|l| l.starts_with("DA:")).count();
    assert_eq!(report["coverage"], serde_json::json!({"lines": found, "ran": found}));
    // Programs that no test runs are not covered.
    let example = data("first_bytes.test.toml");
    let report = json(&skep.run(["test", "--json", "--lcov", &info, &example]).stdout);
    assert!(report["coverage"]["ran"].as_u64() < report["coverage"]["lines"].as_u64());
    let lcov = fs::read_to_string(&info).unwrap();
    assert!(lcov.contains("\nFNDA:0,enter\n") && !lcov.contains("FNDA:0,first_bytes"), "{lcov}");
    lcov_reads(&skep, &info, &report["coverage"]);
}

/// lcov's own programs count what the report says, and make pages of it.
fn lcov_reads(skep: &Skep, info: &str, coverage: &serde_json::Value) {
    if !["lcov", "genhtml"].into_iter().all(has_command) {
        return skip("lcov and genhtml");
    }
    let read = run(Command::new("lcov").args(["--summary", info]), b"", LIMIT);
    assert_eq!(read.shell_status(), 0, "{}", read.transcript());
    let lines = format!("({} of {} lines)", coverage["ran"], coverage["lines"]);
    assert!(read.transcript().contains(&lines), "{lines}: {}", read.transcript());
    // The sources of committed objects are named from the workspace on.
    let folder = format!("{}/../..", env!("CARGO_MANIFEST_DIR"));
    let pages = skep.path("pages");
    let mut genhtml = Command::new("genhtml");
    genhtml.arg("-q").arg("-o").arg(&pages).arg(info).current_dir(folder);
    let made = run(&mut genhtml, b"", LIMIT);
    assert_eq!(made.shell_status(), 0, "{}", made.transcript());
    let page = fs::read_to_string(pages.join("index.html")).expect("a page");
    assert!(page.contains(&format!(">{}<", coverage["lines"])), "{page}");
}
