//! Arguments and results where the kernel puts them: programs made with libbpf's macros, beside
//! what the traced program says itself.

mod common;

use common::{Skep, data, json, text};
use serde_json::Value as Json;
use skep_testkit::cc::Cc;
use skep_testkit::{TempDir, run::Ended, skip};
use std::collections::BTreeMap;
use std::path::Path;

fn build(dir: &TempDir, cc: &Cc, flags: &[&str]) -> String {
    cc.clone()
        .args(&["-w"])
        .args(flags)
        .compile(&[data("proto.c").as_ref()], &dir.join("proto"))
        .display()
        .to_string()
}

/// The global variables of a run with `--json`, of all objects.
fn variables(report: &Json) -> BTreeMap<String, i64> {
    let mut out = BTreeMap::new();
    for map in report["maps"]
        .as_array()
        .expect("maps")
        .iter()
        .filter(|m| m["map"]["name"].as_str().unwrap().starts_with('.'))
    {
        let values = map["entries"][0]["value"].as_object().expect("variables");
        out.extend(values.iter().map(|(name, v)| {
            (name.clone(), v.as_i64().or_else(|| v.as_u64().map(|n| n as i64)).unwrap())
        }));
    }
    out
}

/// What the program says of itself, and the document behind it.
fn parts(ended: &Ended) -> (BTreeMap<String, i64>, Json) {
    let out = text(&ended.stdout);
    let (own, document) = out.split_at(out.find("{\"").expect("a document"));
    let own = own
        .lines()
        .filter_map(|l| l.split_once(' '))
        .map(|(name, n)| (name.to_owned(), n.parse().expect("a number")))
        .collect();
    (own, json(document.as_bytes()))
}

/// Compares every variable that the program names too; returns how many there were.
fn compare(ended: &Ended, what: &str) -> usize {
    assert_eq!(ended.shell_status(), 0, "{what}: {}", ended.transcript());
    let (own, report) = parts(ended);
    let found = variables(&report);
    let both = own.iter().filter_map(|(name, n)| Some((name, n, found.get(name)?)));
    let wrong: Vec<_> = both.clone().filter(|(_, n, f)| n != f).collect();
    assert!(wrong.is_empty(), "{what}: {wrong:?}");
    let own = |name| own[name];
    for (name, want) in [
        ("count_two", 2),
        ("count_nine", 9),
        ("count_swap", 3),
        ("count_scale", 1),
        ("count_none", 0),
        ("last_nine", own("nine_i")),
        ("last_swap", own("swap_k")),
        ("result_nine", own("nine_ret")),
        ("result_swap", own("swap_ret0")),
        ("error_two", -22),
        ("early", 0),
        ("early_decide", 0),
        ("pointers", own("pointer_ret") + own("other_ret")),
    ] {
        assert_eq!(found.get(name), Some(&want), "{what}: {name}");
    }
    both.count()
}

#[test]
fn arguments_and_results_are_what_the_program_says() {
    let clang = skip::has_command("clang-19");
    let compilers = if clang { vec![Cc::c(), Cc::named("clang-19")] } else { vec![Cc::c()] };
    if !clang {
        skip("needs clang-19");
    }
    for cc in compilers {
        for flags in [&["-g", "-O2"][..], &["-g", "-O0"], &["-gdwarf-4", "-O1"]] {
            let (skep, dir) = (Skep::new(), TempDir::new());
            let program = build(&dir, &cc, flags);
            let ended = skep.run(["run", "--json", &data("proto.bpf.o"), "--", &program]);
            assert!(compare(&ended, &format!("{cc:?} {flags:?}")) >= 35);
        }
    }
}

#[test]
fn types_are_found_in_separate_files_and_where_the_user_says() {
    if !["objcopy", "strip"].iter().all(|c| skip::has_command(c)) {
        return skip("needs objcopy and strip");
    }
    let command = |args: &[&str]| {
        let done = std::process::Command::new(args[0]).args(&args[1..]).output().expect("it runs");
        assert!(done.status.success(), "{args:?}: {}", text(&done.stderr));
    };
    let (skep, dir) = (Skep::new(), TempDir::new());
    let program = build(&dir, &Cc::c(), &["-g", "-O2"]);
    let debug = dir.join("proto.debug").display().to_string();
    command(&["objcopy", "--only-keep-debug", &program, &debug]);
    // Its symbols stay: patterns are matched by them.
    command(&["strip", "--strip-debug", &program]);
    let object = data("proto.bpf.o");
    let ended = skep.run(["run", "--json", &object, "--", &program]);
    assert_eq!(ended.shell_status(), 1, "{}", ended.transcript());
    let e = text(&ended.stderr);
    assert!(e.contains("is not known by its types") && e.contains("--btf-from"), "{e}");
    let ended = skep.run(["run", "--json", "--btf-from", &debug, &object, "--", &program]);
    assert!(compare(&ended, "--btf-from") >= 35);
    // A debug link beside the program is found without a word.
    command(&["objcopy", "--add-gnu-debuglink", &debug, &program]);
    let ended = skep.run(["run", "--json", &object, "--", &program]);
    assert!(compare(&ended, "debug link") >= 35);
    // Another build of the program has the same functions elsewhere.
    let other = TempDir::new();
    let other = build(&other, &Cc::c(), &["-g", "-O0", "-Wl,--build-id=none"]);
    command(&["strip", "--strip-debug", "--remove-section=.gnu_debuglink", &program]);
    let ended = skep.run(["run", "--json", "--btf-from", &other, &object, "--", &program]);
    assert!(compare(&ended, "another build") >= 35);
}

fn reads(skep: &Skep, program: &str, word: usize, attach: &[&str], json: bool) -> Ended {
    let mut args = vec![
        "run".to_owned(),
        data("reads.bpf.o"),
        "--set".to_owned(),
        format!("word={word}"),
        "--verbose".to_owned(),
    ];
    for pattern in attach {
        args.extend(["--attach".to_owned(), format!("reads={pattern}")]);
    }
    if json {
        args.push("--json".to_owned());
    }
    args.extend(["--".to_owned(), program.to_owned()]);
    skep.run(args)
}

/// What the page shows of programs that do not match is what is said of them.
#[test]
fn refusals_read_as_the_page_says() {
    let page = include_str!(concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/arguments.md"));
    let shown: Vec<&str> =
        page.split("```text\n").skip(1).map(|b| b.split("```").next().unwrap()).collect();
    assert_eq!(shown.len(), 2);
    let (skep, dir) = (Skep::new(), TempDir::new());
    for (shown, options) in [(shown[0], &["-g", "-O2"][..]), (shown[1], &["-O2"])] {
        let program = build(&dir, &Cc::c(), options);
        let ended = reads(&skep, &program, 6, &["proto:two"], false);
        let said = text(&ended.stderr).replace(&data("reads.bpf.o"), "reads.bpf.o");
        let mut lines = said.lines();
        for line in shown.lines().filter(|line| *line != "…") {
            let (start, end) = line.split_once('…').unwrap_or((line, ""));
            let is_it = |l: &str| {
                if start == line { l == line } else { l.starts_with(start) && l.ends_with(end) }
            };
            assert!(lines.any(is_it), "no line `{line}` in\n{said}");
        }
    }
}

fn refused(ended: &Ended, want: &[&str]) {
    let e = text(&ended.stderr);
    assert_eq!(
        (ended.shell_status(), ended.stdout.is_empty()),
        (1, true),
        "it must not start: {}",
        ended.transcript()
    );
    for want in want {
        assert!(e.contains(want), "no `{want}` in {e}");
    }
}

#[test]
fn what_a_function_does_not_have_is_refused_before_the_command_starts() {
    let (skep, dir) = (Skep::new(), TempDir::new());
    let program = build(&dir, &Cc::c(), &["-g", "-O2"]);
    let refuse = |word, attach: &[&str], want: &[&str]| {
        refused(&reads(&skep, &program, word, attach, false), want)
    };
    refuse(
        6,
        &["proto:two"],
        &[
            "func 'two' doesn't have 7-th argument",
            "its result is ctx[2]",
            "reads.bpf.c:",
            "hint: the arguments of `BPF_PROG`",
        ],
    );
    refuse(
        1,
        &["proto:nothing"],
        &["func 'nothing' returns nothing, and ctx[1] would be its result"],
    );
    refuse(
        1,
        &["proto:scale"],
        &["func 'scale' returns `double`, which is in no general register"],
    );
    refuse(2, &["proto:make"], &["func 'make' returns `struct big` through memory"]);
    refuse(
        0,
        &["proto:mix"],
        &["func 'mix' has a part of argument 1 `m` (`struct mixed`) in no general register"],
    );
    refuse(
        2,
        &["proto:two", "proto:nine"],
        &[
            "func 'nine' has argument 3 `c` (`long int`) at ctx[2], where `two` has its result (`int`)",
        ],
    );
    refuse(
        0,
        &["proto:two", "proto:pointer"],
        &[
            "func 'pointer' has argument 1 `p` (`struct later *`) at ctx[0], where `two` has argument 1 `a` (`int`)",
        ],
    );
    for (word, attach, sum) in
        [(2, "two", -3i64), (6, "six", 21), (6, "nine", -7), (1, "two", 1 << 40), (0, "none", -7)]
    {
        let ended = reads(&skep, &program, word, &[&format!("proto:{attach}")], true);
        assert_eq!(ended.shell_status(), 0, "{}", ended.transcript());
        let found = variables(&parts(&ended).1);
        // `int` leaves the upper half of its register as it is.
        let low = |n: i64| {
            if attach == "none" || (attach == "two" && word == 2) { i64::from(n as i32) } else { n }
        };
        assert_eq!((found["calls"], low(found["sum"])), (1, sum), "{attach} {word}");
    }
}

#[test]
fn functions_of_a_pattern_that_do_not_fit_are_skipped_with_the_reason() {
    let (skep, dir) = (Skep::new(), TempDir::new());
    let program = build(&dir, &Cc::c(), &["-g", "-O2"]);
    let ended = reads(&skep, &program, 2, &["proto:two", "proto:[nmtsd]*"], true);
    assert_eq!(ended.shell_status(), 0, "{}", ended.transcript());
    let report = parts(&ended).1;
    let skipped: BTreeMap<&str, &str> = report["programs"][0]["sites"]["skipped"]
        .as_array()
        .unwrap()
        .iter()
        .map(|s| (s["function"].as_str().unwrap(), s["reason"].as_str().unwrap()))
        .collect();
    let reason = |name: &str| *skipped.get(name).unwrap_or(&"attached");
    assert_eq!(
        (reason("two"), reason("decide"), reason("take")),
        ("attached", "attached", "attached"),
        "{skipped:?}"
    );
    assert_eq!(
        reason("nine"),
        "does not fit the program: it has argument 3 `c` (`long int`) at ctx[2], where `two` has its result (`int`)"
    );
    assert_eq!(
        reason("nothing"),
        "does not fit the program: it doesn't have 3-th argument: its arguments are 1 word"
    );
    assert_eq!(
        reason("none"),
        "does not fit the program: it doesn't have 3-th argument: its arguments are 0 words, and its result is ctx[0]"
    );
    assert!(reason("mix").contains("has argument 2 `k` (`int`) at ctx[2]"), "{skipped:?}");
    // Functions of the same pattern without types, as those of start-up code, have no result at
    // ctx[2].
    assert_eq!(variables(&report)["calls"], 3, "{skipped:?}");
}

#[test]
fn without_types_only_registers_are_there() {
    let (skep, dir) = (Skep::new(), TempDir::new());
    let program = build(&dir, &Cc::c(), &["-g0", "-O2"]);
    for attach in [&["proto:two"][..], &["proto:t*"], &["two"]] {
        for word in [6, 12] {
            let word_text = format!("ctx[{word}]");
            refused(
                &reads(&skep, &program, word, attach, false),
                &[
                    "is not known by its types",
                    &word_text,
                    "bpf_get_func_ret",
                    "`-g`",
                    "--btf-from",
                ],
            );
        }
    }
    // Nobody can tell whether the program means an argument or the result: it gets the register,
    // and is told.
    let ended = reads(&skep, &program, 1, &["proto:two"], true);
    let e = text(&ended.stderr);
    assert_eq!(
        (ended.shell_status(), variables(&parts(&ended).1)["sum"]),
        (0, 1 << 40),
        "{}",
        ended.transcript()
    );
    assert!(
        e.contains("warning: reads: the types of `two` are not known: no debug information")
            && e.contains("bpf_get_func_ret"),
        "{e}"
    );
    // What the compiler made another function of is not the one in the source.
    let program = build(&dir, &Cc::c(), &["-g", "-O2", "-DCHANGED"]);
    let copy = dir.join("changed").display().to_string();
    if !skip::has_command("objcopy") {
        return skip("needs objcopy");
    }
    let done = std::process::Command::new("objcopy")
        .args(["--redefine-sym", "two=two.isra.0", &program, &copy])
        .status()
        .expect("it runs");
    assert!(done.success() && Path::new(&copy).exists());
    refused(
        &reads(&skep, &copy, 6, &["two.isra.0"], false),
        &["func 'two.isra.0' is not known by its types"],
    );
}

/// A program, a library that it is linked with, and one that it opens.
fn methods(dir: &TempDir, cxx: &Cc, flags: &[&str]) -> (String, String) {
    let source = data("methods.cc");
    let of = |what: &str| {
        cxx.clone()
            .args(&["-w"])
            .args(flags)
            .args(&["-shared", "-fPIC"])
            .arg(format!("-DLIBRARY_FUNCTION={what}_add"))
    };
    let library =
        of("library").arg("-DLIBRARY").compile(&[source.as_ref()], &dir.join("libmethods.so.1"));
    let plugin = of("plugin").arg("-DPLUGIN").compile(&[source.as_ref()], &dir.join("plugin.so"));
    let linked = format!("-Wl,-rpath,{}", dir.path().display());
    let program = cxx.clone().args(&["-w"]).args(flags).arg(linked);
    let program = program.compile(&[source.as_ref(), &library], &dir.join("methods"));
    (program.display().to_string(), plugin.display().to_string())
}

#[test]
fn methods_and_functions_of_libraries_have_their_arguments_too() {
    let mut compilers = vec![Cc::cxx()];
    if skip::has_command("clang++-19") {
        compilers.push(Cc::named("clang++-19").arg("-Dnoclone=used"));
    } else {
        skip("needs clang++-19");
    }
    for cxx in compilers {
        for flags in [&["-g", "-O0"][..], &["-gdwarf-4", "-O0"], &["-g", "-O1"]] {
            let (skep, dir) = (Skep::new(), TempDir::new());
            let (program, _) = methods(&dir, &cxx, flags);
            let ended = skep.run(["run", "--json", &data("methods.bpf.o"), "--", &program]);
            assert_eq!(ended.shell_status(), 0, "{cxx:?} {flags:?}: {}", ended.transcript());
            let (own, report) = parts(&ended);
            for (name, found) in variables(&report) {
                assert_eq!(
                    own.get(&name),
                    Some(&found),
                    "{cxx:?} {flags:?}: {name}: {}",
                    ended.transcript()
                );
            }
        }
    }
}

#[test]
fn what_comes_later_has_no_types() {
    let (skep, dir) = (Skep::new(), TempDir::new());
    let (program, plugin) = methods(&dir, &Cc::cxx(), &["-g", "-O0"]);
    let run = |word: &str, attach: &[&str], command: &[&str]| {
        let object = data("reads.bpf.o");
        let set = format!("word={word}");
        let attach: Vec<String> = attach.iter().map(|a| format!("--attach=reads={a}")).collect();
        let head = ["run", "--json", "--allow-unmatched", &object, "--set", &set];
        skep.run(
            head.into_iter()
                .chain(attach.iter().map(String::as_str))
                .chain(["--"])
                .chain(command.iter().copied()),
        )
    };
    // Its result is ctx[2] where types are known: what is opened later cannot be taken for the
    // same.
    let ended = run("2", &["library_add", "plugin_add"], &[&program, &plugin]);
    let report = parts(&ended).1;
    assert_eq!(
        (ended.shell_status(), variables(&report)["calls"]),
        (0, 1),
        "{}",
        ended.transcript()
    );
    let skipped = &report["programs"][0]["sites"]["skipped"][0];
    assert_eq!(skipped["function"], "plugin_add");
    assert!(skipped["reason"].as_str().unwrap().contains("is not known by its types"), "{skipped}");
    // Alone, it is a register; the user is told.
    let ended = run("0", &["plugin_add"], &[&program, &plugin]);
    assert!(
        text(&ended.stderr).contains("the types of `plugin_add` are not known before it is loaded"),
        "{}",
        ended.transcript()
    );
    assert_eq!(
        (ended.shell_status(), variables(&parts(&ended).1)["calls"]),
        (0, 1),
        "{}",
        ended.transcript()
    );
    // A shell's child is another program than the shell.
    let shell = format!("{program}; true");
    refused(
        &run("6", &["Counter::add"], &["sh", "-c", &shell]),
        &["func 'Counter::add' is not known by its types", "bpf_get_func_ret"],
    );
}

#[test]
fn verification_takes_types_from_a_file_that_is_named() {
    let (skep, dir) = (Skep::new(), TempDir::new());
    let program = build(&dir, &Cc::c(), &["-g", "-O2"]);
    let (good, bad) = (data("proto.bpf.o"), data("methods.bpf.o"));
    let ended = skep.run(["prog", "verify", "--btf-from", &program, &good]);
    assert_eq!(ended.shell_status(), 0, "{}", ended.transcript());
    // `swap` of a program in which it takes two numbers is another function.
    let source = dir.join("other.c");
    std::fs::write(
        &source,
        "long two(long a) { return a; }\nint main(void) { return (int)two(0); }\n",
    )
    .unwrap();
    let other =
        Cc::c().args(&["-g", "-O0"]).compile(&[&source], &dir.join("other")).display().to_string();
    let ended = skep.run(["prog", "verify", "--btf-from", &other, &good]);
    assert_eq!(ended.shell_status(), 1, "{}", ended.transcript());
    let out = text(&ended.stdout);
    assert!(out.contains("func 'two' doesn't have 3-th argument: its arguments are 1 word, and its result is ctx[1]"), "{out}");
    assert!(
        skep.run(["prog", "verify", &good, &bad]).shell_status() == 0,
        "without types nobody judges that"
    );
}
