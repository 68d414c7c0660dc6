//! The kernel's side: the same linked program and maps, loaded through bpf(2) and run by
//! `BPF_PROG_TEST_RUN`.

use super::cases::Case;
use super::{Report, element, run_line};
use skep::isa::{Insn, MapFlags, ProgramType as P, errno, kfunc, op};
use skep::object::{Linked, Object};
use skep_kernel::{Link, Map, MapSpec, Program, ProgramSpec, TestRun, XdpMode, with_maps};
use skep_testkit::vmlinux::with_functions;
use std::sync::mpsc::channel;

const PAGES: usize = 128 << 10;

fn spec(m: &skep::object::MapSpec) -> MapSpec<'static> {
    MapSpec::new(m.map_type, m.key_size(), m.value_size, m.max_entries)
        .flags(m.flags.0 & !MapFlags::MMAPABLE)
}

/// Makes all maps of an object.
pub fn maps(object: &Object) -> Vec<Map> {
    let create = |m: &skep::object::MapSpec| {
        let map = match &m.inner {
            Some(inner) => {
                Map::create(&spec(inner)).and_then(|inner| Map::create(&spec(m).inner(&inner)))
            }
            None => Map::create(&spec(m)),
        };
        let map = map.unwrap_or_else(|e| panic!("{}: {e}", m.name));
        if let Some(data) = &m.data {
            let mut value = data.clone();
            value.resize(m.value_size as usize, 0);
            map.update(&0u32.to_ne_bytes(), &value, 0).unwrap();
            if m.frozen {
                map.freeze().unwrap();
            }
        }
        map
    };
    object.maps.iter().map(create).collect()
}

pub fn load(linked: &Linked, maps: &[Map]) -> Program {
    let used: Vec<&Map> = linked.maps.iter().map(|m| &maps[m.index]).collect();
    let bytes: Vec<u8> = linked.insns.iter().flat_map(|i| i.to_bytes()).collect();
    let bytes = with_functions(&bytes, |id| Some(kfunc::by_id(id)?.name))
        .unwrap_or_else(|f| panic!("this kernel has no `{f}`"));
    let insns = with_maps(&bytes, &used);
    // The kernel wants types of functions where there are callbacks, or packet loads in functions.
    let typed = |i: &Insn| {
        i.is_ld_imm64() && i.src() == op::PSEUDO_FUNC
            || i.class() == op::LD && i.code & 0xe0 != op::IMM
    };
    let starts: Vec<u32> = if linked.insns.iter().any(typed) {
        linked.subprogs.iter().map(|s| s.start as u32).collect()
    } else {
        Vec::new()
    };
    let spec = ProgramSpec {
        attach_type: linked.attach_type,
        gpl: linked.gpl,
        flags: if linked.sleepable { ProgramSpec::SLEEPABLE } else { 0 }
            | if linked.section.starts_with("xdp.frags") { ProgramSpec::XDP_HAS_FRAGS } else { 0 },
        functions: &starts,
        log: true,
        ..ProgramSpec::new(linked.prog_type, &insns)
    };
    Program::load(&spec).unwrap_or_else(|e| panic!("{}: {e}", linked.name))
}

/// Runs every case in turn on one loaded object.
pub fn run(object: &Object, program: &str, cases: &[Case]) -> Report {
    loop {
        if let Some(report) = uninterrupted(object, program, cases) {
            return report;
        }
    }
}

/// The same; `None` when a signal came (a stopped process that goes on), which ends a repeated run in
/// the middle.
fn uninterrupted(object: &Object, program: &str, cases: &[Case]) -> Option<Report> {
    let index = object.program(program).unwrap();
    let linked = object.link(index).unwrap();
    let maps = maps(object);
    let loaded = load(&linked, &maps);
    let mut others = Vec::new();
    for (n, spec) in object.maps.iter().enumerate() {
        for (slot, value) in &spec.values {
            let fd = match value {
                skep::object::InnerValue::Map(inner) => maps[*inner].fd(),
                skep::object::InnerValue::Program(name) => {
                    let other = load(&object.link(object.program(name).unwrap()).unwrap(), &maps);
                    let fd = other.fd();
                    others.push(other);
                    fd
                }
            };
            maps[n].update(&slot.to_ne_bytes(), &fd.to_ne_bytes(), 0).unwrap();
        }
    }
    let is_repeated = cases.iter().any(|case| case.repeat > 1);
    let is_live = cases.iter().any(|case| case.live.is_some());
    if linked.prog_type == P::Xdp && is_repeated && !is_live {
        return while_attached(&loaded, || results(object, &linked, &loaded, &maps, cases));
    }
    results(object, &linked, &loaded, &maps, cases)
}

/// Does something while an XDP program is attached to an interface that nobody sends to. Else the
/// kernel takes it into the dispatcher of all XDP programs for each repeated run, and out again, and
/// waits for all processors twice.
fn while_attached<R>(program: &Program, does: impl FnOnce() -> R) -> R {
    const LOOPBACK: u32 = 1;
    std::thread::scope(|scope| {
        let (end, ended) = channel::<()>();
        let (attached, is_attached) = channel();
        scope.spawn(move || {
            // One for another place is refused, and takes longer.
            let attach = |()| Link::xdp(program, LOOPBACK, XdpMode::Generic).ok();
            let link = skep_kernel::enter_namespaces(false).ok().and_then(attach);
            attached.send(()).expect("somebody waits");
            ended.recv().expect_err("nothing is sent");
            drop(link);
        });
        is_attached.recv().expect("the thread tells");
        let result = does();
        drop(end);
        result
    })
}

/// Runs every case in turn.
fn results(
    object: &Object,
    linked: &Linked,
    loaded: &Program,
    maps: &[Map],
    cases: &[Case],
) -> Option<Report> {
    let packets = !matches!(linked.prog_type, P::Syscall | P::RawTracepoint | P::SkLookup);
    let contexts = packets || linked.prog_type == P::SkLookup;
    let mut out = String::new();
    for case in cases {
        let test = TestRun {
            data_in: case.data.as_deref().unwrap_or_default(),
            data_out: if packets && case.live.is_none() { PAGES } else { 0 },
            ctx_in: case.ctx.as_deref().unwrap_or_default(),
            ctx_out: if contexts && case.ctx.is_some() && case.live.is_none() { 256 } else { 0 },
            repeat: case.repeat,
            flags: if case.live.is_some() { TestRun::LIVE_FRAMES } else { 0 },
            batch_size: case.live.unwrap_or_default(),
        };
        match loaded.test_run(&test) {
            Ok(ran) if case.live.is_some() => {
                run_line(&mut out, &case.name, ran.retval, None, None)
            }
            Ok(ran) => {
                let ctx = (case.ctx.is_some() && linked.prog_type != P::RawTracepoint)
                    .then_some(&*ran.ctx_out);
                run_line(&mut out, &case.name, ran.retval, packets.then_some(&*ran.data_out), ctx);
            }
            Err(e) if e.errno() == errno::EINTR => return None,
            Err(e) => out += &format!("{}: errno {}\n", case.name, e.errno()),
        }
    }
    for (spec, map) in object.maps.iter().zip(maps).filter(|(s, _)| !s.is_global_data()) {
        let mut lines = Vec::new();
        let mut key = map.next_key(None).ok();
        while let Some(k) = key {
            if let Ok(value) = map.lookup(&k) {
                let per_cpu = value.len() != spec.value_size as usize;
                lines.push(element(
                    &k,
                    super::comparable(spec.map_type, &value),
                    spec.value_size as usize,
                    per_cpu,
                ));
            }
            key = map.next_key(Some(&k)).ok();
        }
        lines.sort();
        out += &format!("map {}: {}\n", spec.name, lines.join(" "));
    }
    Some(out)
}
