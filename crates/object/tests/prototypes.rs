//! Prototypes of functions out of debug information, beside what the ABI says of them.

#![cfg(feature = "dwarf")]

use object::{Object as _, ObjectSymbol as _};
use skep_object::{DwarfFunctions, Place, Prototype};
use skep_testkit::TempDir;
use skep_testkit::cc::Cc;
use std::collections::HashMap;
use std::path::Path;

/// Each function's prototype, or why it cannot be relied on, by the names of the symbol table.
fn read(program: &Path) -> HashMap<String, Result<Prototype, &'static str>> {
    let bytes = std::fs::read(program).unwrap();
    let elf = object::File::parse(&*bytes).unwrap();
    let mut names: HashMap<u64, Vec<String>> = HashMap::new();
    for s in elf.symbols().filter(|s| s.kind() == object::SymbolKind::Text && s.size() > 0) {
        names.entry(s.address()).or_default().push(s.name().unwrap().to_owned());
    }
    let mut addresses: Vec<u64> = names.keys().copied().collect();
    addresses.sort_unstable();
    let functions = DwarfFunctions::read(std::fs::File::open(program).unwrap(), |_| None).unwrap();
    let functions = functions.with_split_files(program);
    let mut out = HashMap::new();
    let found = |address, p: Result<Prototype, &'static str>| {
        for name in &names[&address] {
            out.insert(name.clone(), p.clone());
        }
    };
    functions.at(&addresses, found).unwrap();
    out
}

/// `0 1 s0 - > 0`: registers, words of the stack and parts in vector registers, and behind `>`
/// those of the result.
fn words(p: &Prototype) -> String {
    let place = |p: &Place| match p {
        Place::Register(n) => format!("{n} "),
        Place::Stack(n) => format!("s{n} "),
        Place::Vector => "- ".to_owned(),
    };
    let args: String = p.words().iter().map(|w| place(&w.place)).collect();
    let ret: String = p.ret_words().iter().map(place).collect();
    format!("{args}> {ret}").trim_end().to_owned()
}

fn types(p: &Prototype) -> String {
    let one = |v: &skep_object::Value| format!("{} {}", v.text, v.name).trim_end().to_owned();
    let rest = if p.variadic { ", ..." } else { "" };
    format!("{} ({}{rest})", one(&p.ret), p.params.iter().map(one).collect::<Vec<_>>().join(", "))
}

/// Types and words of all functions, in order.
fn shown(all: &HashMap<String, Result<Prototype, &'static str>>) -> Vec<String> {
    let one = |p: &Prototype| format!("{} {}", types(p), words(p));
    let line = |(name, p): (&String, &Result<Prototype, &'static str>)| match p {
        Ok(p) => format!("{name}: {}", one(p)),
        Err(why) => format!("{name}: {why}"),
    };
    let mut out: Vec<String> = all.iter().map(line).collect();
    out.sort();
    out
}

const C: &[(&str, &str, &str)] = &[
    ("two", "0 1 > 0", "int (int a, long int b)"),
    ("nothing", "0 >", "void (int a)"),
    ("none", "> 0", "int ()"),
    ("nine", "0 1 2 3 4 5 s0 s1 s2 > 0", ""),
    ("narrow", "0 1 2 3 > 0", "int (_Bool a, char b, short int c, unsigned char d)"),
    ("scale", "0 >", "double (double x, int n, float y)"),
    ("swap", "0 1 2 > 0 1", "struct pair (struct pair p, int k)"),
    ("take_small", "0 1 > 0", ""),
    ("mix", "- 0 1 > - 0", ""),
    ("both", "- - 0 > - -", ""),
    ("make", "1 >", "struct big (int a, struct big b)"),
    ("spill", "0 1 2 3 4 s0 s1 5 > 0", ""),
    ("take_bits", "0 1 2 > 0", ""),
    ("take_nested", "0 1 2 > 0", ""),
    ("take_array", "0 1 2 > 0", ""),
    ("take_packed", "s0 s1 0 > 0", ""),
    ("take_empty", "0 > 0", ""),
    ("take_union", "0 1 > 0", ""),
    ("paint", "0 1 > 0", "enum color (enum color c, char * name)"),
    (
        "opaque",
        "0 1 2 3 > 0",
        "struct unknown * (struct unknown * u, void * v, function * f, struct pair ** p)",
    ),
    ("x87", "0 >", ""),
    ("take_wide", "0 > 0", ""),
    ("vector", "0 >", ""),
    ("huge", "0 1 2 > 0 1", ""),
    ("turn", "0 >", ""),
    ("variadic", "0 > 0", "int (int n, ...)"),
    ("old", "0 > 0", ""),
    ("main", "0 1 > 0", "int (int argc, char ** argv)"),
];

const CPP: &[(&str, &str)] = &[
    ("_ZNK3geo5Point3sumEi", "0 1 > 0"),
    ("_ZN3geo5Point4zeroEi", "0 > 0"),
    ("_ZN3geo7Virtual4areaEs", "0 1 > 0"),
    ("_ZN3geo8by_valueENS_5PointEi", "0 1 > 0"),
    ("_ZN3geo7by_copyENS_6CopiedEi", "0 1 > 0"),
    ("_ZN3geo4copyEi", "1 >"),
    ("_ZN3geo9referenceERKNS_5PointEOS0_NS_4KindE", "0 1 2 > 0"),
    ("_ZN3geo5emptyENS_5EmptyEi", "0 > 0"),
    ("_ZN3geo4packIJlcEEEiiDpT_", "0 1 2 > 0"),
    ("_ZN3geo6memberEMNS_5PointEiRKS0_", "0 1 > 0"),
    ("_ZN3geo6methodEMNS_5PointEKFiiERKS0_", "0 1 2 > 0"),
    ("_ZN3geo7deducedEs", "0 > 0"),
    ("_ZN3geo6CopiedC1ERKS0_", "0 1 >"),
];

fn data(name: &str) -> String {
    format!("{}/tests/data/{name}", env!("CARGO_MANIFEST_DIR"))
}

fn compilers(c: &str, cxx: &str) -> Vec<(Cc, Cc)> {
    let mut all = vec![(Cc::c(), Cc::cxx())];
    if skep_testkit::skip::has_command(c) && skep_testkit::skip::has_command(cxx) {
        all.push((Cc::named(c), Cc::named(cxx)));
    } else {
        skep_testkit::skip(&format!("needs {c} and {cxx}"));
    }
    all
}

fn is_clang(cc: &Cc) -> bool {
    format!("{cc:?}").contains("clang")
}

#[test]
fn c_functions_take_their_words_from_where_the_abi_says() {
    for (cc, _) in compilers("clang-19", "clang++-19") {
        for flags in [
            &["-g", "-O0"][..],
            &["-gdwarf-4", "-O2"],
            &["-g", "-O2"],
            &["-gdwarf-4", "-O1", "-fdebug-types-section"],
        ] {
            let dir = TempDir::new();
            let program = cc
                .clone()
                .args(&["-w", "-std=gnu11"])
                .args(flags)
                .compile(&[data("shapes.c").as_ref()], &dir.join("shapes"));
            let all = read(&program);
            for (name, want, text) in C {
                let p = all
                    .get(*name)
                    .unwrap_or_else(|| panic!("{cc:?} {flags:?}: `{name}` was not found"));
                let p = p.as_ref().unwrap_or_else(|e| panic!("{cc:?} {flags:?}: `{name}`: {e}"));
                assert_eq!(words(p), *want, "{cc:?} {flags:?}: `{name}`, {}", types(p));
                let text = if is_clang(&cc) {
                    text.replace("long int", "long").replace("short int", "short")
                } else {
                    (*text).to_owned()
                };
                assert!(
                    text.is_empty() || types(p) == text,
                    "{cc:?} {flags:?}: {name}: {}",
                    types(p)
                );
            }
            // What the compiler made another function of goes by another name, or is marked.
            if let Some(Ok(p)) = all.get("partial") {
                assert_eq!(words(p), "0 1 2 > 0", "{cc:?} {flags:?}");
            }
        }
    }
}

#[test]
fn cpp_methods_have_this_and_objects_with_copy_constructors_are_passed_by_reference() {
    for (_, cxx) in compilers("clang-19", "clang++-19") {
        for flags in [&["-g", "-O0"][..], &["-gdwarf-4", "-O2"], &["-g", "-O2"]] {
            let dir = TempDir::new();
            let program = cxx
                .clone()
                .args(&["-w", "-std=c++17"])
                .args(flags)
                .compile(&[data("shapes.cc").as_ref()], &dir.join("shapes"));
            let all = read(&program);
            for (name, want) in CPP.iter().filter(|(_, w)| !w.is_empty()) {
                let p = all
                    .get(*name)
                    .unwrap_or_else(|| panic!("{cxx:?} {flags:?}: `{name}` was not found"));
                let p = p.as_ref().unwrap_or_else(|e| panic!("{cxx:?} {flags:?}: `{name}`: {e}"));
                assert_eq!(words(p), *want, "{cxx:?} {flags:?}: `{name}`, {}", types(p));
            }
            let text = all
                .iter()
                .find(|(n, _)| n.starts_with("_ZN3geo4textE"))
                .unwrap()
                .1
                .as_ref()
                .unwrap();
            assert_eq!(
                words(text),
                "1 2 >",
                "{cxx:?} {flags:?}: a string is passed and returned through memory"
            );
        }
    }
}

/// GCC says of all forms of a constructor or destructor together that they take whether they are in
/// charge of virtual bases, which none does unless `-Os` makes a common one.
#[test]
fn each_form_of_a_constructor_takes_what_was_compiled() {
    let forms = [
        ("_ZN5PlainC2Ei", "0 1 >", "void (struct Plain * this, int k)"),
        ("_ZN5PlainD2Ev", "0 >", "void (struct Plain * this)"),
        ("_ZN4BaseD0Ev", "0 >", "void (struct Base * this)"),
        ("_ZN6MiddleC1Eii", "0 1 2 >", "void (struct Middle * this, int k, int l)"),
        ("_ZN6MiddleC2Eii", "0 1 2 3 >", ""),
        ("_ZN6MiddleD1Ev", "0 >", ""),
        ("_ZN6MiddleD2Ev", "0 1 >", ""),
        ("_ZN4LastC1Ei", "0 1 >", ""),
        ("_ZN4LastD0Ev", "0 >", ""),
    ];
    for (_, cxx) in compilers("clang-19", "clang++-19") {
        for flags in [&["-g", "-O0"][..], &["-gdwarf-4", "-O2"], &["-g", "-Os"]] {
            let dir = TempDir::new();
            let cc = cxx.clone().arg("-w").args(flags);
            let all = read(&cc.compile(&[data("forms.cc").as_ref()], &dir.join("forms")));
            for (name, want, text) in forms {
                let p = all
                    .get(name)
                    .unwrap_or_else(|| panic!("{cxx:?} {flags:?}: `{name}` was not found"));
                let p = p.as_ref().unwrap_or_else(|e| panic!("{cxx:?} {flags:?}: `{name}`: {e}"));
                assert_eq!(words(p), want, "{cxx:?} {flags:?}: `{name}`, {}", types(p));
                assert!(text.is_empty() || types(p) == text, "{cxx:?} {flags:?}: {}", types(p));
            }
            if let Some(common) = all.get("_ZN6MiddleC4Eii") {
                assert_eq!(words(common.as_ref().unwrap()), "0 1 2 3 4 >");
            }
        }
    }
}

#[test]
fn functions_in_functions_have_types_too() {
    let inner = [
        ("methodEi", "int (struct Local * this, int a)"),
        ("fixedEl", "long (long b)"),
        ("deepEc", "int (struct Inner * this, char c)"),
        ("2atEj", "int (unsigned int u)"),
        ("clEi", "int (struct (anonymous) * __closure, int q, char * t)"),
        ("clEs", "int (struct (anonymous) * __closure, short a, char * text)"),
    ];
    for (_, cxx) in compilers("clang-19", "clang++-19") {
        for flags in [&["-g", "-O0"][..], &["-gdwarf-4", "-O2"], &["-g", "-O2"]] {
            let dir = TempDir::new();
            let cc = cxx.clone().args(&["-w", "-std=c++17"]).args(flags);
            let all = read(&cc.compile(&[data("inner.cc").as_ref()], &dir.join("inner")));
            for (mark, text) in inner {
                let (name, p) = all
                    .iter()
                    .find(|(name, _)| name.contains(mark) && !name.contains(".specialized"))
                    .unwrap_or_else(|| panic!("{cxx:?} {flags:?}: `{mark}` was not found"));
                let p = p.as_ref().unwrap_or_else(|e| panic!("{cxx:?} {flags:?}: `{name}`: {e}"));
                let said = types(p).replace("long int", "long").replace("short int", "short");
                let said =
                    said.replace("struct (anonymous) * this", "struct (anonymous) * __closure");
                assert_eq!(said, text, "{cxx:?} {flags:?}: `{name}`");
            }
        }
    }
    for flags in [&["-g", "-O0"][..], &["-gdwarf-4", "-O2"]] {
        let dir = TempDir::new();
        let cc = Cc::c().arg("-w").args(flags);
        let all = read(&cc.compile(&[data("inner.c").as_ref()], &dir.join("inner")));
        for (start, text) in
            [("inner.", "int (int a, char * b)"), ("innermost.", "long int (long int c)")]
        {
            let (_, p) = all.iter().find(|(name, _)| name.starts_with(start)).unwrap();
            assert_eq!(types(p.as_ref().unwrap()), text, "{flags:?}");
        }
    }
}

/// Which classes are passed by address depends on their constructors and destructors; GCC does not
/// say the outcome. The program does, which calls its own functions with an address.
#[test]
fn classes_are_passed_as_the_program_itself_says() {
    for (_, cxx) in compilers("clang-19", "clang++-19") {
        for flags in [
            &["-g", "-O0"][..],
            &["-g", "-O2"],
            &["-gdwarf-4", "-O0"],
            &["-gdwarf-4", "-O1", "-fdebug-types-section"],
        ] {
            let dir = TempDir::new();
            let program = cxx
                .clone()
                .args(&["-w", "-std=c++17"])
                // clang describes classes only where their constructors are.
                .args(if is_clang(&cxx) { &["-fstandalone-debug"] } else { &[] })
                .args(flags)
                .compile(&[data("passing.cc").as_ref()], &dir.join("passing"));
            let all = read(&program);
            let said = std::process::Command::new(&program).output().unwrap().stdout;
            let said = String::from_utf8(said).unwrap();
            assert!(said.lines().count() > 60, "{said}");
            let mut wrong = Vec::new();
            for line in said.lines() {
                let (name, by_address) = line.split_once(' ').unwrap();
                let place = match &all[name] {
                    Ok(p) => match p.composite(0) {
                        Some(skep_object::Composite::Behind) => "1",
                        _ => "0",
                    },
                    // The location of what is taken tells, if it is the same in the whole function.
                    Err("an argument's place depends on how it was compiled")
                        if ["take_with_default", "take_needs_more"].contains(&name)
                            && !flags.contains(&"-O0") =>
                    {
                        continue;
                    }
                    Err(e) => e,
                };
                if place != by_address {
                    wrong.push(format!("{line}: {place}"));
                }
            }
            assert!(wrong.is_empty(), "{cxx:?} {flags:?}: {wrong:#?}");
        }
    }
}

/// Before ELF had a flag for it, sections that are compressed had names of their own.
#[test]
fn zdebug_sections_are_read() {
    if !skep_testkit::skip::has_command("objcopy") {
        skep_testkit::skip("needs objcopy");
        return;
    }
    let dir = TempDir::new();
    let cc = Cc::c().args(&["-w", "-g", "-std=gnu11"]);
    let plain = cc.compile(&[data("shapes.c").as_ref()], &dir.join("shapes"));
    let old = dir.join("old");
    let mut objcopy = std::process::Command::new("objcopy");
    objcopy.args(["--compress-debug-sections=zlib-gnu".as_ref(), plain.as_os_str()]).arg(&old);
    assert!(objcopy.status().unwrap().success());
    let bytes = std::fs::read(&old).unwrap();
    let elf = object::File::parse(&*bytes).unwrap();
    assert!(elf.section_by_name(".zdebug_info").is_some(), "objcopy did what it was asked for");
    assert_eq!(read(&old), read(&plain));
    assert!(skep_object::Btf::from_dwarf(&bytes).is_ok());
}

/// What `-gsplit-dwarf` splits off is found where it was compiled, beside the program, and in a
/// package; where it is not, functions say so.
#[test]
fn split_debug_information_is_read_from_its_files() {
    for (cc, cxx) in compilers("clang-19", "clang++-19") {
        for flags in [
            &["-gdwarf-5", "-O2"][..],
            &["-gdwarf-4", "-O0"],
            &["-gdwarf-4", "-O1", "-fdebug-types-section"],
            &["-gdwarf-5", "-O1", "-fdebug-types-section"],
        ] {
            let dir = TempDir::new();
            for name in ["shapes.c", "shapes.cc", "inner.cc"] {
                std::fs::copy(data(name), dir.join(name)).unwrap();
            }
            std::fs::create_dir(dir.join("moved")).unwrap();
            // One unit is compiled apart, so that the names of the files are not all alike.
            let build = |name: &str, more: &[&str]| {
                let cc = if name.ends_with(".c") { &cc } else { &cxx };
                let cc = cc.clone().args(&["-w", "-c"]).args(flags).args(more);
                cc.compile(&[dir.join(name).as_ref()], &dir.join(format!("{name}.o")))
            };
            let program = |more: &[&str]| {
                let objects = ["shapes.cc", "inner.cc"].map(|name| build(name, more));
                let all = cxx.clone().arg("-Wl,--allow-multiple-definition");
                all.compile(&objects.each_ref().map(|o| o.as_ref()), &dir.join("moved/program"))
            };
            let what = format!("{cxx:?} {flags:?}");
            let whole = read(&program(&[]));
            let split = program(&["-gsplit-dwarf"]);
            let dwo: Vec<_> =
                ["shapes.cc", "inner.cc"].map(|n| dir.join(format!("{n}.dwo"))).into();
            assert!(dwo.iter().all(|file| file.is_file()), "{what}");
            assert_eq!(shown(&read(&split)), shown(&whole), "{what}");
            let btf = skep_object::Btf::from_dwarf_at(&split).unwrap();
            let mut described = 0;
            for v in read(&split).values().flatten().flat_map(|p| &p.params) {
                let name = v.text.trim_start_matches("struct ").trim_end_matches(['*', '&', ' ']);
                if let Some(id) = v.described_at.and_then(|at| btf.described_at(at))
                    && !name.contains('(')
                {
                    assert!(
                        btf.name(id).ends_with(name.trim_start_matches("enum ")),
                        "{what}: {v:?}"
                    );
                    described += 1;
                }
            }
            assert!(described > 10, "{what}: {described}");
            // Where it was compiled it is not any more.
            for file in &dwo {
                std::fs::rename(file, dir.join("moved").join(file.file_name().unwrap())).unwrap();
            }
            assert_eq!(shown(&read(&split)), shown(&whole), "{what}");
            let moved = dir.join("moved/inner.cc.dwo");
            std::fs::write(&moved, &std::fs::read(&moved).unwrap()[..200]).unwrap();
            let one_is_damaged = read(&split);
            let around = &one_is_damaged["_ZN5space6aroundEl"];
            let why = "its types are in a file `.dwo` or `.dwp`, which is missing or damaged";
            assert_eq!(around.as_ref().unwrap_err(), &why, "{what}");
            assert!(one_is_damaged["_ZN3geo5emptyENS_5EmptyEi"].is_ok(), "{what}");
        }
    }
}

#[test]
fn split_debug_information_is_read_from_a_package() {
    for ((_, cxx), dwp) in compilers("clang-19", "clang++-19").iter().zip(["dwp", "llvm-dwp"]) {
        if !skep_testkit::skip::has_command(dwp) {
            skep_testkit::skip(&format!("needs {dwp}"));
            continue;
        }
        // binutils' `dwp` does not know DWARF 5.
        let all = [
            &["-gdwarf-5"][..],
            &["-gdwarf-5", "-fdebug-types-section"],
            &["-gdwarf-4"],
            &["-gdwarf-4", "-fdebug-types-section"],
        ];
        let all = all.iter().skip(if dwp == "dwp" { 2 } else { 0 });
        for (flags, name) in all.flat_map(|flags| ["inner", "shapes"].map(|name| (flags, name))) {
            let dir = TempDir::new();
            let program = dir.join("program");
            let dwo = dir.join(format!("{name}.dwo"));
            let cc = cxx.clone().arg("-w").args(flags);
            let whole = read(&cc.compile(&[data(&format!("{name}.cc")).as_ref()], &program));
            let cc = cc.arg("-gsplit-dwarf").arg("-c");
            let object =
                cc.compile(&[data(&format!("{name}.cc")).as_ref()], &dir.join(format!("{name}.o")));
            let program = cxx.clone().compile(&[object.as_ref()], &program);
            let packed = std::process::Command::new(dwp)
                .args([dwo.as_os_str(), "-o".as_ref()])
                .arg(dir.join("program.dwp"))
                .status();
            assert!(packed.unwrap().success(), "{dwp} {flags:?} {name}");
            std::fs::remove_file(&dwo).unwrap();
            assert_eq!(shown(&read(&program)), shown(&whole), "{dwp} {flags:?} {name}");
            // Functions and types say the same place.
            let btf = skep_object::Btf::from_dwarf_at(&program).unwrap();
            let found = read(&program);
            let pointers = found.values().flatten().flat_map(|p| &p.params).filter_map(|v| {
                let name = v.text.strip_prefix("struct ")?.trim_end_matches(['*', '&', ' ']);
                Some((name.to_owned(), v.described_at?)).filter(|(name, _)| !name.contains('('))
            });
            let mut described = 0;
            for (of, place) in pointers {
                if let Some(id) = btf.described_at(place) {
                    assert!(btf.name(id).ends_with(&of), "{dwp} {flags:?} {name}: {of}");
                    described += 1;
                }
            }
            assert!(described > 0, "{dwp} {flags:?} {name}");
        }
    }
}

#[test]
fn damaged_files_of_split_units_give_no_panics() {
    let rounds = if std::env::var_os("SKEP_STRESS").is_some() { 3_000 } else { 60 };
    for flags in [["-gdwarf-5", "-O1"], ["-gdwarf-4", "-fdebug-types-section"]] {
        let dir = TempDir::new();
        let cc = Cc::cxx().args(&["-w", "-gsplit-dwarf"]).args(&flags);
        let object =
            cc.clone().arg("-c").compile(&[data("shapes.cc").as_ref()], &dir.join("shapes.o"));
        let program = cc.compile(&[object.as_ref()], &dir.join("shapes"));
        let whole = std::fs::read(dir.join("shapes.dwo")).unwrap();
        let mut state = 0x9e37_79b9_7f4a_7c15_u64;
        let mut random = |n: u64| {
            state ^= state << 13;
            state ^= state >> 7;
            state ^= state << 17;
            state % n.max(1)
        };
        let mut found = 0;
        for _ in 0..rounds {
            let mut mutant = whole.clone();
            for _ in 0..1 + random(6) {
                mutant[random(whole.len() as u64) as usize] = random(256) as u8;
            }
            std::fs::write(dir.join("shapes.dwo"), &mutant).unwrap();
            found += read(&program).values().filter(|p| p.is_ok()).count();
        }
        assert!(found > rounds, "most of it is still whole");
    }
}

#[test]
fn damaged_debug_information_gives_errors_not_panics() {
    use object::ObjectSection as _;
    let rounds = if std::env::var_os("SKEP_STRESS").is_some() { 20_000 } else { 300 };
    let dir = TempDir::new();
    for (cc, source, flags) in [
        (Cc::c(), "shapes.c", "-gdwarf-5"),
        (Cc::cxx().arg("-fdebug-types-section"), "shapes.cc", "-gdwarf-4"),
    ] {
        let program =
            cc.args(&["-w", flags]).compile(&[data(source).as_ref()], &dir.join("shapes"));
        let bytes = std::fs::read(program).unwrap();
        let file = object::File::parse(&*bytes).unwrap();
        let hot: Vec<(u64, u64)> = file
            .sections()
            .filter(|s| {
                [".debug_info", ".debug_abbrev", ".debug_types", ".debug_rnglists", ".debug_ranges"]
                    .contains(&s.name().unwrap())
            })
            .filter_map(|s| s.file_range())
            .collect();
        let mut addresses: Vec<u64> = file
            .symbols()
            .filter(|s| s.kind() == object::SymbolKind::Text)
            .map(|s| s.address())
            .collect();
        addresses.sort_unstable();
        let mut state = 0x9e37_79b9_7f4a_7c15_u64;
        let mut random = |n: u64| {
            state ^= state << 13;
            state ^= state >> 7;
            state ^= state << 17;
            state % n.max(1)
        };
        let mut found = 0;
        for _ in 0..rounds {
            let mut mutant = bytes.clone();
            for _ in 0..1 + random(6) {
                let (at, len) = hot[random(hot.len() as u64) as usize];
                mutant[(at + random(len)) as usize] = random(256) as u8;
            }
            if let Ok(functions) = DwarfFunctions::read(std::io::Cursor::new(&mutant), |_| None) {
                drop(functions.at(&addresses, |_, p| found += usize::from(p.is_ok())));
                drop(
                    functions.named(&["two", "main", "sum"].into(), |_, p| {
                        found += usize::from(p.is_ok())
                    }),
                );
            }
        }
        assert!(found > rounds, "most of it is still whole");
    }
}
