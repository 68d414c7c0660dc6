//! Compares with libbpf: what it made of the same objects is recorded in `tests/data/*.libbpf.txt`
//! (see `record.c`).

use skep_object::{CoreTarget, LinkOptions, Object};
use std::collections::HashMap;

mod record;

/// What is recorded by name: `several` (by clang 19), `several.clang-14`.
fn recorded() -> Vec<String> {
    let dir = std::fs::read_dir(format!("{}/tests/data", env!("CARGO_MANIFEST_DIR")))
        .expect("fixtures are there");
    let names =
        dir.map(|e| e.expect("and readable").file_name().into_string().expect("names are text"));
    let mut names: Vec<String> =
        names.filter_map(|n| n.strip_suffix(".libbpf.txt").map(str::to_owned)).collect();
    names.sort();
    names
}

fn data(file: &str) -> Vec<u8> {
    let path = format!("{}/tests/data/{file}", env!("CARGO_MANIFEST_DIR"));
    std::fs::read(&path).unwrap_or_else(|e| panic!("{path}: {e}"))
}

/// Links a program and describes it.
fn describe_program(o: &Object, index: usize, target: &CoreTarget) -> String {
    let options = LinkOptions { target: Some(target), ..LinkOptions::default() };
    record::program(&o.link_with(index, &options).expect("libbpf links it too"))
}

#[test]
fn maps_and_linked_instructions_are_those_of_libbpf() {
    let names = recorded();
    for compiler in ["", ".clang-14", ".clang-16"] {
        assert!(names.contains(&format!("several{compiler}")), "{names:?}");
    }
    // What a source says that other compilers make of it is recorded as well.
    for name in names.iter().filter(|name| !name.contains('.')) {
        let source = String::from_utf8(data(&format!("{name}.bpf.c"))).expect("sources are text");
        let also = source.lines().find_map(|line| line.strip_prefix("// also: "));
        for compiler in also.unwrap_or_default().split_whitespace() {
            assert!(names.contains(&format!("{name}.{compiler}")), "{name}: {compiler}");
        }
    }
    for name in &names {
        let source = name.split('.').next().expect("a name is not empty");
        let target =
            if source == "candidates" { "candidates_target.bpf.o" } else { "core_target.bpf.o" };
        let target = CoreTarget::parse(&data(target)).expect("the fixture has types");
        let recorded =
            String::from_utf8(data(&format!("{name}.libbpf.txt"))).expect("records are text");
        let mut o = Object::parse_named(source, &data(&format!("{name}.bpf.o")))
            .expect("libbpf reads it too");
        let mut ours: HashMap<String, String> = HashMap::new();
        ours.extend(o.maps.iter().map(|m| (m.name.clone(), record::map(m))));
        let mut count = 0;
        for line in recorded.lines().filter(|l| l.starts_with("map ")) {
            let map = line.split(' ').nth(1).expect("a map has a name");
            assert_eq!(ours.get(map).map(String::as_str), Some(line), "{name}");
            count += 1;
        }
        assert_eq!(count, o.maps.len(), "{name}: maps that libbpf does not have");
        // The maps were recorded before loading, when no configuration value was set yet.
        let value = |name: &str| match name {
            "CONFIG_BPF" => "y",
            "CONFIG_IPV6" => "m",
            "CONFIG_CC_VERSION_TEXT" => "\"\"",
            _ => "1",
        };
        o.set_kconfig(|name| Some(value(name).to_owned())).expect("all fit");
        // What libbpf refuses, with all its object, is called so and was not recorded.
        let good: Vec<usize> =
            (0..o.programs.len()).filter(|i| !o.programs[*i].name.starts_with("bad_")).collect();
        for i in good.iter().copied() {
            let ours = describe_program(&o, i, &target);
            let start = recorded.find(ours.lines().next().expect("there is a first line"));
            let theirs = start.and_then(|s| recorded.get(s..)).unwrap_or("");
            let theirs: String = theirs
                .split_inclusive('\n')
                .enumerate()
                .take_while(|(i, l)| *i == 0 || !l.starts_with("program"))
                .map(|(_, l)| l)
                .collect();
            assert_eq!(ours, theirs, "{name}");
        }
        assert_eq!(recorded.matches("program ").count(), good.len(), "{name}");
    }
}
