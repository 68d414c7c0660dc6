//! Compares the table of section names with libbpf's: `data/sections.libbpf.txt` was recorded by
//! `data/sections.c`.

use skep_isa::sec;

#[test]
fn section_names_mean_what_they_mean_to_libbpf() {
    let path = format!("{}/tests/data/sections.libbpf.txt", env!("CARGO_MANIFEST_DIR"));
    let recorded = std::fs::read_to_string(path).expect("the record is committed");
    let mut known = std::collections::BTreeSet::new();
    for line in recorded.lines().filter(|l| !l.starts_with('#')) {
        let (want, name) = line.split_once('\t').expect("two columns");
        let ours = sec::parse(name).map_or("-".to_owned(), |s| {
            known.insert(s.def.name);
            format!("{} {}", s.def.prog as u32, s.def.attach.map_or(0, |a| a as u32))
        });
        assert_eq!(ours, want, "`{name}`");
    }
    let own: Vec<&str> =
        sec::SECTIONS.iter().map(|d| d.name).filter(|n| !known.contains(n)).collect();
    let multi = |n: &&str| {
        ["fentry.multi", "fexit.multi", "fmod_ret.multi", "fsession.multi"]
            .iter()
            .any(|m| n.starts_with(m))
    };
    assert!(own.iter().all(multi), "rows that libbpf was not asked about: {own:?}");
}
