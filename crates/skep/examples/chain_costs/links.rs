//! Programs in sequence, on one packet: a chain of skep, and what the kernel has for it.

use skep::chain::kernel::{KernelChain, Sources};
use skep::chain::{Chain, Count, Edit, Graph, Place};
use skep::isa::ProgramType;
use skep::object::Object;
use skep::test_run::{Engine, Input};
use skep::{ChainRunner, Session};
use skep_kernel::Program;

use crate::kernel::{Loaded, time};
use crate::{Case, Result, each, mark, packets, take_turns, tell_slope, timed};

const OBJECT: &[u8] = include_bytes!("../../../../benches/chain/bpf/links.bpf.o");
const RUNS: u32 = 400_000;
const LENGTHS: [usize; 6] = [1, 2, 4, 8, 16, 32];
const PASS: u32 = 2;
const DROP: u32 = 1;
const PACKET: [u8; 64] = [0; 64];

/// The chains that are measured: a name, on what verdicts a program is followed, and what is counted.
const KINDS: [(&str, &str, Count); 5] = [
    ("verdict-off", "pass", Count::Off),
    ("verdict-counted", "pass", Count::Runs),
    ("verdict-timed", "pass", Count::Timed),
    ("any-off", "*", Count::Off),
    ("any-counted", "*", Count::Runs),
];

/// Chains by skep, and a program without a chain.
pub fn ours() -> Result<()> {
    let session = Session::scratch()?;
    let object = packets::load(&session)?;
    let alone = object.program("last")?.runner(Engine::Jit)?;
    let input = Input { repeat: RUNS, ..Input::data(&PACKET) };
    let mut cases: Vec<Case<'_>> = vec![(
        "alone".to_owned(),
        Box::new(|| {
            let (took, done) = timed(|| Ok(alone.test_run(&input)?))?;
            mark::check(done.retval, DROP)?;
            Ok(each(took, RUNS.into()))
        }),
    )];
    for (kind, on, count) in KINDS {
        for length in LENGTHS {
            let chain = Chain::create(&session, &format!("{kind}-{length}"), ProgramType::Xdp)?;
            let on = on.parse()?;
            let mut before = None;
            for n in (1..=length).rev() {
                let program = object.program(if n == 1 { "last" } else { "look" })?;
                let place = match before {
                    None => Place::First { on },
                    Some(node) => Place::After { node, on },
                };
                before = Some(chain.add(program, place)?);
            }
            let mut runner: ChainRunner = chain.runner_with(Engine::Jit, count)?;
            let run = move || {
                let (took, done) = timed(|| Ok(runner.test_run(&input)?))?;
                mark::check(done.retval, DROP)?;
                Ok(each(took, RUNS.into()))
            };
            cases.push((format!("{kind}-{length}"), Box::new(run)));
        }
    }
    let took = take_turns(&mut cases)?;
    for ((kind, ..), took) in
        KINDS.iter().zip(took.get(1..).unwrap_or_default().chunks(LENGTHS.len()))
    {
        // From two on: a chain of one has no link.
        let of: Vec<_> = LENGTHS.into_iter().zip(took.iter().copied()).skip(1).collect();
        tell_slope(&format!("{kind}-more"), &of, 32);
    }
    Ok(())
}

/// What the kernel has: a name, that of its programs, and how many there may be.
const KERNELS: [(&str, &str, usize); 5] = [
    ("tail-constant", "constant", 32),
    ("tail-variable", "variable", 32),
    ("calls", "calls", 32),
    ("straight", "straight", 32),
    ("dispatcher", "dispatch", 10),
];
const DISPATCHED: [usize; 5] = [1, 2, 4, 8, 10];

/// A dispatcher of so many components that go on when one passes the packet.
fn dispatcher(components: usize) -> Result<(Loaded, Program)> {
    let mut object = Object::parse(OBJECT)?;
    let config = object.maps.iter_mut().find(|map| map.name == ".rodata");
    let data = config.and_then(|map| map.data.as_mut()).ok_or("no configuration")?;
    let words = std::iter::once(components as u32).chain([1 << PASS; 10]);
    for (place, word) in data.chunks_exact_mut(4).zip(words) {
        place.copy_from_slice(&word.to_ne_bytes());
    }
    let loaded = Loaded::new(object)?;
    let program = loaded.program("dispatch")?;
    Ok((loaded, program))
}

/// A chain of skep in the kernel: all programs but the last are nodes as in skep's own chains, and that
/// notes the time.
fn attached(length: usize, count: Count) -> Result<KernelChain> {
    let mut sources = Sources::new(None);
    let object = sources.add("links", Object::parse(OBJECT)?);
    let mut graph = Graph::new(ProgramType::Xdp);
    let on = "pass".parse()?;
    for n in 1..=length {
        let program = sources.program(object, if n == 1 { "straight_1" } else { "look" })?;
        let edits = [Edit::Add { program, place: Place::First { on } }];
        graph = graph.transaction(0, &edits)?.0;
    }
    Ok(KernelChain::load(&sources, &graph, count, None)?)
}

/// What is measured of these: as [`KINDS`].
const ATTACHED: [(&str, Count); 3] =
    [("chain-off", Count::Off), ("chain-counted", Count::Runs), ("chain-timed", Count::Timed)];

/// The kernel's ways.
pub fn kernels() -> Result<()> {
    let all = Loaded::new(Object::parse(OBJECT)?)?;
    let mut tails = Vec::new();
    for (map, name) in [("constant_next", "constant"), ("variable_next", "variable")] {
        for n in 1..=32_u32 {
            let program = all.program(&format!("{name}_{n}"))?;
            all.set_program(map, n, &program)?;
            tails.push((name, n as usize, program));
        }
    }
    let mut cases: Vec<Case<'_>> = Vec::new();
    for (kind, name, most) in KERNELS {
        if most < 32 {
            for length in DISPATCHED {
                let (loaded, program) = dispatcher(length)?;
                let run = move || loaded.time(&program, &PACKET, RUNS, DROP);
                cases.push((format!("{kind}-{length}"), Box::new(run)));
            }
            continue;
        }
        for length in LENGTHS {
            let found = tails.iter().position(|(of, n, _)| *of == name && *n == length);
            let program = match found {
                Some(at) => tails.swap_remove(at).2,
                None => all.program(&format!("{name}_{length}"))?,
            };
            let all = &all;
            let run = move || all.time(&program, &PACKET, RUNS, DROP);
            cases.push((format!("{kind}-{length}"), Box::new(run)));
        }
    }
    let ways = cases.len();
    for (kind, count) in ATTACHED {
        for length in LENGTHS {
            let chain = attached(length, count)?;
            let run = move || {
                let globals = chain.maps().iter().find(|m| m.name == ".bss");
                let globals = &globals.ok_or("no global variables")?.map;
                time(globals, chain.program(), &PACKET, RUNS, DROP)
            };
            cases.push((format!("{kind}-{length}"), Box::new(run)));
        }
    }
    let took = take_turns(&mut cases)?;
    for (kind, took) in ATTACHED.iter().zip(took[ways..].chunks(LENGTHS.len())) {
        let of: Vec<_> = LENGTHS.into_iter().zip(took.iter().copied()).skip(1).collect();
        tell_slope(&format!("{}-more", kind.0), &of, 32);
    }
    for (at, (kind, _, most)) in KERNELS.iter().enumerate() {
        let lengths: &[usize] = if *most < 32 { &DISPATCHED } else { &LENGTHS };
        let took = took.iter().skip(at * LENGTHS.len());
        let of: Vec<_> = lengths.iter().copied().zip(took.copied()).skip(1).collect();
        // Its tail calls take much longer each when there are more than ten: these do not count.
        tell_slope(&format!("{kind}-more"), &of, 10);
    }
    Ok(())
}
