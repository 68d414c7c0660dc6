//! What one event adds to a call of a tiny function, hot: an entry program that counts, and `skep
//! trace`.

use std::ffi::CString;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;
use std::process::Command;

use anyhow::{Context, Result};
use skep_isa::{AttachType, MapType, ProgramType};
use skep_kernel::{Link, Map, MapSpec, Program, ProgramSpec, with_maps};
use skep_testkit::cc::Cc;

use super::place::{Place, has_uftrace};
use super::row::Row;
use super::sample::{Contestant, Sample, measured, take_turns};
use crate::{output, root};

/// Processes of each contestant.
const TURNS: usize = 7;
const CALLS: &str = "2000000";
/// Each is a system call for the kernel, so fewer will do.
const CALLS_UPROBE: &str = "100000";

/// Measures plain, entry, entry and exit, and the rivals.
pub fn run(place: &Place) -> Result<Vec<Row>> {
    let source = root().join("benches/trace/micro.c");
    let plain = Cc::c().args(&["-O2"]).compile(&[&source], &place.dir.join("micro"));
    std::fs::create_dir_all(place.dir.join("pg"))?;
    let pg = Cc::c().args(&["-O2", "-pg"]).compile(&[&source], &place.dir.join("pg/micro"));
    std::fs::create_dir_all(place.dir.join("nops"))?;
    let nops = Cc::c()
        .args(&["-O2", "-fpatchable-function-entry=5"])
        .compile(&[&source], &place.dir.join("nops/micro"));
    let object = root().join("crates/testkit/bpf/count_entry.bpf.o");
    let object = object.to_str().context("the path of the repository is not UTF-8")?;

    let nop5 = Cc::c().args(&["-O2", "-DNOP5"]).compile(&[&source], &place.dir.join("nop5"));
    let uprobe = Uprobe::attach(&nop5);
    let entry = |program: &Path| measured(&mut place.skep(&["run", object], &[program], &[CALLS]));
    let both =
        |program: &Path| measured(&mut place.skep(&["trace", "micro:tiny"], &[program], &[CALLS]));
    let mut contestants = vec![
        Contestant::new("plain", || measured(Command::new(&plain).arg(CALLS))),
        Contestant::new("skep run, entry", || entry(&plain)),
        Contestant::new("skep run, entry, NOPs", || entry(&nops)),
        Contestant::new("skep trace", || both(&plain)),
        Contestant::new("skep trace, NOPs", || both(&nops)),
    ];
    let uftrace_at = has_uftrace().then(|| {
        contestants.push(Contestant::new("uftrace", || {
            measured(&mut place.uftrace(&["-b", "32m"], &pg, &[CALLS]))
        }));
        contestants.len() - 1
    });
    let uprobe_at = uprobe.as_ref().map(|_| {
        contestants
            .push(Contestant::new("uprobe", || measured(Command::new(&nop5).arg(CALLS_UPROBE))));
        contestants.len() - 1
    });
    let values = take_turns(TURNS, &contestants)?;
    let added = |at: usize| Sample::added(&values[at], &values[0]);
    let uftrace = uftrace_at.map(|at| ("uftrace record, -pg".to_owned(), added(at)));
    let kernel =
        uprobe_at.map(|at| ("kernel uprobe.multi, 5-byte NOP, counter".to_owned(), added(at)));
    Ok(vec![
        Row { case: "hot call, entry, counter".into(), ours: added(1), rival: kernel.clone() },
        Row { case: "hot call, entry, counter, 5 NOPs".into(), ours: added(2), rival: kernel },
        Row {
            case: "hot call, entry+exit, skep trace".into(),
            ours: added(3),
            rival: uftrace.clone(),
        },
        Row {
            case: "hot call, entry+exit, skep trace, 5 NOPs".into(),
            ours: added(4),
            rival: uftrace,
        },
    ])
}

/// The kernel's program at `tiny`: it counts as skep's does, in an array for each processor.
struct Uprobe {
    _link: Link,
}

impl Uprobe {
    /// `None` where this process may not, or the kernel cannot.
    fn attach(program: &Path) -> Option<Self> {
        skep_kernel::probe().ok()?;
        let symbols = output(Command::new("nm").arg(program)).ok()?;
        let address = symbols.lines().find(|line| line.ends_with(" T tiny"))?.split(' ').next()?;
        // In a position-independent program linked the usual way, the text's file offsets are its
        // addresses.
        let offset = u64::from_str_radix(address, 16).ok()?;
        let map = Map::create(&MapSpec::new(MapType::PercpuArray, 4, 8, 1)).ok()?;
        let insns = with_maps(COUNT.as_flattened(), &[&map]);
        let mut spec = ProgramSpec::new(ProgramType::Kprobe, &insns);
        spec.attach_type = Some(AttachType::TraceUprobeMulti);
        let loaded = Program::load(&spec).ok()?;
        let path = CString::new(program.as_os_str().as_bytes()).ok()?;
        Some(Self { _link: Link::uprobes(&loaded, &path, &[offset]).ok()? })
    }
}

/// `r0 = bpf_map_lookup_elem(map 0, &0); if (r0) *r0 += 1; return 0`
const COUNT: [[u8; 8]; 12] = [
    [0x7a, 0x0a, 0xf8, 0xff, 0, 0, 0, 0],
    [0xbf, 0xa2, 0, 0, 0, 0, 0, 0],
    [0x07, 0x02, 0, 0, 0xf8, 0xff, 0xff, 0xff],
    [0x18, 0x51, 0, 0, 0, 0, 0, 0],
    [0; 8],
    [0x85, 0, 0, 0, 1, 0, 0, 0],
    [0x15, 0x00, 0x03, 0, 0, 0, 0, 0],
    [0x79, 0x01, 0, 0, 0, 0, 0, 0],
    [0x07, 0x01, 0, 0, 1, 0, 0, 0],
    [0x7b, 0x10, 0, 0, 0, 0, 0, 0],
    [0xb7, 0, 0, 0, 0, 0, 0, 0],
    [0x95, 0, 0, 0, 0, 0, 0, 0],
];
