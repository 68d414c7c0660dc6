//! The page about helpers says what the table says. `SKEP_RECORD=1` writes it anew.

use std::fmt::Write;
use std::path::Path;

use skep_isa::helper::{HELPERS, Helper, KFUNCS, Progs};
use skep_isa::{ProgramType, kfunc};

const HEAD: &str = "\
# Helpers

What programs may call, of the kernel's 211 helpers and of its kernel functions. A program that calls another one is refused when it is
loaded, by the helper's name and with the reason given here. Prototypes and program types are Linux's, also for helpers that are refused, so
`skep prog verify` judges such programs as Linux does.

This page is written from the table in `crates/isa/src/helper/`; a test compares them.

";

fn types(list: &[ProgramType]) -> String {
    list.iter().map(|p| format!("`{p}`")).collect::<Vec<_>>().join(", ")
}

fn progs(h: &Helper) -> String {
    match h.progs {
        Progs::All => "all".to_owned(),
        Progs::Tracing => "tracing types".to_owned(),
        Progs::Only(list) => types(list),
        Progs::Except(list) => format!("all but {}", types(list)),
    }
}

fn name(h: &Helper) -> String {
    if h.name.starts_with("bpf_") || h.name.starts_with("skep_") {
        h.name.to_owned()
    } else {
        format!("bpf_{}", h.name)
    }
}

fn page() -> String {
    let mut page = HEAD.to_owned();
    let offered = HELPERS.iter().filter(|h| h.refused.is_none()).count();
    let _ = writeln!(page, "## Offered: {offered} helpers\n");
    page += "\"Tracing types\" are `kprobe`, `tracepoint`, `raw_tracepoint`, `raw_tracepoint_writable`, `perf_event`, `tracing`, `lsm` and `syscall`.\n\n";
    page += "| helper | id | program types | needs | other than in the kernel |\n|---|---|---|---|---|\n";
    for h in HELPERS.iter().filter(|h| h.refused.is_none()) {
        let needs = [(h.gpl_only, "GPL"), (h.sleeps, "sleepable")]
            .iter()
            .filter(|n| n.0)
            .map(|n| n.1)
            .collect::<Vec<_>>()
            .join(", ");
        let _ =
            writeln!(page, "| `{}` | {} | {} | {needs} | {} |", name(h), h.id, progs(h), h.differs);
    }
    page += "\n## Kernel functions\n\n| function | program types | needs |\n|---|---|---|\n";
    for h in KFUNCS.iter().filter(|h| h.refused.is_none()) {
        let _ = writeln!(page, "| `{}` | {} | |", name(h), progs(h));
    }
    for k in kfunc::KFUNCS.iter().filter(|k| k.offered && k.unsupported.is_none()) {
        let (allowed, others): (Vec<_>, Vec<_>) =
            (0..64).filter_map(ProgramType::from_raw).partition(|p| k.allows(*p));
        let progs = if others.is_empty() { "all".to_owned() } else { types(&allowed) };
        let needs = if k.flags.has(kfunc::KFlags::SLEEPABLE) { "GPL, sleepable" } else { "GPL" };
        let _ = writeln!(page, "| `{}` | {progs} | {needs} |", k.name);
    }
    page += "\n## Refused\n\n| helper | id | why |\n|---|---|---|\n";
    for h in HELPERS {
        if let Some(why) = h.refused {
            let _ = writeln!(page, "| `{}` | {} | {why} |", name(h), h.id);
        }
    }
    page
}

#[test]
fn the_page_says_what_the_table_says() {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/helpers.md");
    if std::env::var_os("SKEP_RECORD").is_some() {
        std::fs::write(&path, page()).expect("the page can be written");
    }
    let there = std::fs::read_to_string(&path).expect("the page is there");
    assert!(
        there == page(),
        "docs/helpers.md is not what the table says: SKEP_RECORD=1 cargo test -p skep-isa writes it"
    );
}
