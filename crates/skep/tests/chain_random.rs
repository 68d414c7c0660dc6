//! Random chains of random programs: machine code, interpreter and the running kernel must leave the
//! same verdict, the same packet and the same counters.

use skep::chain::kernel::{KernelChain, KernelChainError, Sources};
use skep::chain::{Chain, Count, Edge, Edit, Exhausted, Graph, NodeId, Place, To, Verdicts};
use skep::isa::{Insn, ProgramType, text};
use skep::object::Object;
use skep::test_run::{Engine, Input};
use skep::{Error, Session};
use skep_kernel::TestRun;
use skep_testkit::random::Random;

/// Bytes that every packet has, and every program may use.
const BYTES: usize = 14;
/// Registers that hold numbers.
const NUMBERS: [u8; 5] = [0, 2, 3, 4, 5];

/// The text of a random program: arithmetic on numbers, the first bytes of the packet and the stack,
/// branches forward; some move an end of the packet at last.
fn program(rng: &mut Random) -> String {
    let mut lines = vec![
        "mov r6, r1\nldxw r7, [r1+0]\nldxw r8, [r1+4]\nmov r9, r7\nadd r9, 14\nmov r0, 3"
            .to_owned(),
        "jgt r9, r8, end".to_owned(),
    ];
    for r in &NUMBERS[1..] {
        lines.push(match rng.below(3) {
            0 => format!("mov r{r}, {}", rng.next_u64() as i32),
            1 => format!("lddw r{r}, {:#x}", rng.next_u64()),
            _ => format!("ldxb r{r}, [r7+{}]", rng.below(BYTES)),
        });
    }
    lines.push("stxdw [r10-8], r2\nstxdw [r10-16], r3".to_owned());
    let mut open: Vec<(usize, usize)> = Vec::new();
    let steps = 4 + rng.below(30);
    for n in 0..steps {
        open.retain(|(at, label)| {
            if *at == n {
                lines.push(format!("l{label}:"));
            }
            *at != n
        });
        let number = |rng: &mut Random| NUMBERS[rng.below(NUMBERS.len())];
        let (to, from) = (number(rng), number(rng));
        let by = match rng.below(2) {
            0 => format!("r{from}"),
            _ => (rng.next_u64() as i32 >> rng.below(32)).to_string(),
        };
        let narrow = ["", "32"][rng.below(2)];
        let (letter, size) = [("b", 1), ("h", 2), ("w", 4), ("dw", 8)][rng.below(4)];
        let place = rng.below(BYTES - size + 1);
        lines.push(match rng.below(10) {
            0 | 1 => format!("ldx{letter} r{to}, [r7+{place}]"),
            2 | 3 => format!("stx{letter} [r7+{place}], r{from}"),
            4 => format!("ldxdw r{to}, [r10-{}]", 8 + 8 * rng.below(2)),
            5 => format!("stxdw [r10-{}], r{from}", 8 + 8 * rng.below(2)),
            6 => {
                let op = ["lsh", "rsh", "arsh"][rng.below(3)];
                format!("{op}{narrow} r{to}, {}", rng.below(31))
            }
            7 => {
                let op = ["jeq", "jne", "jgt", "jge", "jlt", "jset", "jsgt", "jsle"][rng.below(8)];
                let label = n;
                open.push((n + 1 + rng.below(4), label));
                format!("{op}{narrow} r{to}, {by}, l{label}")
            }
            _ => {
                let op =
                    ["add", "sub", "mul", "or", "and", "xor", "mov", "div", "mod"][rng.below(9)];
                let by = if by == "0" { "7".to_owned() } else { by };
                format!("{op}{narrow} r{to}, {by}")
            }
        });
    }
    lines.extend(open.iter().map(|(_, label)| format!("l{label}:")));
    match rng.below(4) {
        0 => {}
        1 => lines.push("mod32 r0, 40".to_owned()),
        _ => lines.push("and r0, 3".to_owned()),
    }
    if rng.below(4) == 0 {
        // bpf_xdp_adjust_head, bpf_xdp_adjust_tail.
        let (helper, by) = ([44, 65][rng.below(2)], [-4, 2, 300, -200][rng.below(4)]);
        lines.push(format!("mov r9, r0\nmov r1, r6\nmov r2, {by}\ncall {helper}\nadd r0, r9"));
    }
    lines.push("end: exit".to_owned());
    lines.join("\n")
}

/// Type, flags, contents, link and info, size of an entry.
type Section<'a> = (u32, u64, &'a [u8], [u32; 2], u64);

/// An object file of XDP programs, `p0` and so on, without types.
fn object(programs: &[Vec<Insn>]) -> Vec<u8> {
    let mut names = b"\0xdp\0license\0.symtab\0.strtab\0".to_vec();
    let name_of = |wanted: &[u8]| {
        let at = names.windows(wanted.len()).position(|w| w == wanted);
        at.expect("it is there") as u32
    };
    let sections = [&b"xdp\0"[..], b"license\0", b".symtab\0", b".strtab\0"].map(name_of);
    let (mut code, mut symbols) = (Vec::new(), vec![0u8; 24]);
    for (n, insns) in programs.iter().enumerate() {
        let bytes: Vec<u8> = insns.iter().flat_map(|i| i.to_bytes()).collect();
        symbols.extend((names.len() as u32).to_le_bytes());
        // A global function in the first section.
        symbols.extend([0x12, 0, 1, 0]);
        symbols.extend((code.len() as u64).to_le_bytes());
        symbols.extend((bytes.len() as u64).to_le_bytes());
        code.extend(bytes);
        names.extend(format!("p{n}\0").bytes());
    }
    let mut file = b"\x7fELF\x02\x01\x01".to_vec();
    file.resize(64, 0);
    let mut headers = vec![0u8; 64];
    let parts: [Section<'_>; 4] = [
        (1, 6, &code, [0, 0], 0),
        (1, 3, b"GPL\0", [0, 0], 0),
        (2, 0, &symbols, [4, 1], 24),
        (3, 0, &names, [0, 0], 0),
    ];
    for (name, (kind, flags, contents, link, entry)) in sections.into_iter().zip(parts) {
        headers.extend([name.to_le_bytes(), kind.to_le_bytes()].concat());
        let words = [flags, 0, file.len() as u64, contents.len() as u64];
        headers.extend(words.iter().flat_map(|w| w.to_le_bytes()));
        headers.extend(link.iter().flat_map(|w| w.to_le_bytes()));
        headers.extend([8, entry].iter().flat_map(|w: &u64| w.to_le_bytes()));
        file.extend(contents);
        file.resize(file.len().next_multiple_of(8), 0);
    }
    let at = file.len() as u64;
    file[16..24].copy_from_slice(&[1, 0, 247, 0, 1, 0, 0, 0]);
    file[40..48].copy_from_slice(&at.to_le_bytes());
    file[52..64].copy_from_slice(&[64, 0, 0, 0, 0, 0, 64, 0, 5, 0, 4, 0]);
    file.extend(headers);
    file
}

/// Edits that make a random graph of so many programs.
fn edits(rng: &mut Random, nodes: u32) -> Vec<Edit> {
    let mut edits = vec![Edit::Entry(Some(NodeId(1)))];
    for from in 1..=nodes {
        for _ in 0..rng.below(5) {
            let on = ["*", "pass", "drop", "tx,redirect", "0-3", "aborted", "5-31", "next,7,2"];
            let on: Verdicts = on[rng.below(8)].parse().expect("verdicts");
            let to = match rng.below(8) {
                0 => To::Keep,
                1 => To::End([0, 1, 2, 77, u32::MAX][rng.below(5)]),
                _ => To::Node(NodeId(1 + rng.below(nodes as usize) as u32)),
            };
            let back = matches!(to, To::Node(to) if to.0 <= from);
            let bound = (back || rng.below(6) == 0).then(|| 1 + rng.below(2) as u32);
            let edge = Edge { to, bound };
            edits.push(Edit::Connect { from: NodeId(from), on, edge, expected: None });
        }
    }
    let exhausted = if rng.below(2) == 0 { Exhausted::Stop } else { Exhausted::Abort };
    edits.push(Edit::Budget { budget: 1 + rng.below(9) as u32, exhausted });
    edits
}

#[test]
fn random_chains_of_random_programs_agree_with_the_kernel() -> Result<(), Error> {
    let probe = skep_kernel::probe();
    if let Err(e) = &probe {
        skep_testkit::skip(e.requirement().unwrap_or("bpf(2)"));
    }
    let rounds = if std::env::var_os("SKEP_STRESS").is_some() { 5000 } else { 300 };
    let session = Session::scratch()?;
    let (mut runs, mut refused, mut verdicts) = (0, 0, std::collections::BTreeSet::new());
    for seed in 0..rounds {
        let mut rng = Random::new(seed + 1);
        let programs: Vec<String> = (0..1 + rng.below(5)).map(|_| program(&mut rng)).collect();
        let insns: Vec<_> = programs
            .iter()
            .map(|p| text::assemble(p).unwrap_or_else(|e| panic!("seed {seed}: {e:?}\n{p}")))
            .collect();
        let bytes = object(&insns);
        let loaded = session.loader().load_bytes(&bytes)?;
        let mut sources = Sources::new(None);
        let of = sources.add("random", Object::parse(&bytes).expect("it was just made"));
        let nodes = 1 + rng.below(6) as u32;
        let name = format!("random-{seed}");
        let chain = Chain::create(&session, &name, ProgramType::Xdp)?;
        let mut adds = Vec::new();
        for _ in 0..nodes {
            let name = format!("p{}", rng.below(programs.len()));
            chain.add(loaded.program(&name)?, Place::Loose)?;
            let program = sources.program(of, &name).expect("it is there");
            adds.push(Edit::Add { program, place: Place::Loose });
        }
        let edits = edits(&mut rng, nodes);
        chain.transaction(0, &edits)?;
        adds.extend(edits);
        let (graph, _) = Graph::new(ProgramType::Xdp).transaction(0, &adds).expect("as here");
        let kernel =
            match probe.is_ok().then(|| KernelChain::load(&sources, &graph, Count::Runs, None)) {
                Some(Ok(kernel)) => Some(kernel),
                // Random bounds and budgets can be more than its verifier walks.
                Some(Err(KernelChainError::Refused { last, .. }))
                    if last.contains("Processed 1000001") =>
                {
                    refused += 1;
                    None
                }
                Some(Err(e)) => panic!("seed {seed}: {e}\n{e:#?}\n{programs:#?}"),
                None => None,
            };
        let mut compiled = chain.runner()?;
        let mut interpreted = chain.runner_with(Engine::Interp, Count::Runs)?;
        for n in 0..8 {
            let len = [14, 15, 60, 64, 200, 1500][rng.below(6)];
            let given: Vec<u8> = (0..len).map(|_| rng.next_u64() as u8).collect();
            let want = compiled.test_run(&Input::data(&given))?;
            let want = (want.retval, want.data_out.unwrap_or_default());
            let slow = interpreted.test_run(&Input::data(&given))?;
            let slow = (slow.retval, slow.data_out.unwrap_or_default());
            assert_eq!(slow, want, "seed {seed}, packet {n}\n{programs:#?}");
            if let Some(kernel) = &kernel {
                let run = TestRun { data_in: &given, data_out: 4096, ..TestRun::default() };
                let got = kernel.program().test_run(&run).expect("it runs");
                assert_eq!(
                    (got.retval, got.data_out),
                    want,
                    "seed {seed}, packet {n}\n{programs:#?}"
                );
            }
            verdicts.insert(want.0);
        }
        let (ours, slow) = (compiled.stats(), interpreted.stats());
        assert_eq!(slow, ours, "seed {seed}");
        runs += ours.nodes.values().map(|n| n.runs()).sum::<u64>();
        if let Some(kernel) = &kernel {
            let theirs = kernel.stats().expect("counters");
            let sums = |stats: &skep::chain::Stats| -> Vec<_> {
                let all = stats.nodes.iter();
                all.map(|(id, n)| (*id, n.runs(), n.bytes, n.verdicts())).collect()
            };
            assert_eq!(sums(&theirs), sums(&ours), "seed {seed}");
            assert_eq!(theirs.edges, ours.edges, "seed {seed}");
        }
        chain.delete()?;
    }
    assert!(refused * 20 <= rounds, "the kernel refused {refused} of {rounds}");
    assert!(runs > 10 * rounds && verdicts.len() > 20, "{runs} runs, {} verdicts", verdicts.len());
    Ok(())
}

/// Rounds that `may_goto` allows each program here. In the kernel, where a chain is one function, all
/// programs have one budget, and time may be counted instead.
const ROUNDS: u32 = 8 << 20;

/// A program that would loop for ever but for its budget answers then, what it did to the packet stays,
/// and the chain goes on and counts: as compiled, interpreted, and in the kernel.
#[test]
fn a_program_that_loops_to_its_budget_is_one_of_the_chain() -> Result<(), Error> {
    let begin = "mov r6, r1\nldxw r7, [r6+0]\nldxw r8, [r6+4]\nmov r9, r7\nadd r9, 14\nmov r0, 0\n\
                 jgt r9, r8, end\n";
    let spin = "mov r2, 0\nloop: may_goto out\nadd r2, 1\nja loop\nout: ldxw r3, [r7+4]\nadd r3, r2\n\
                stxw [r7+4], r3\nmov r0, 2\n";
    let mark = "stb [r7+0], 0x5a\nmov r0, 3\n";
    let insns = [spin, mark].map(|body| {
        let text = format!("{begin}{body}end: exit");
        text::assemble(&text).unwrap_or_else(|e| panic!("{e:?}\n{text}"))
    });
    let bytes = object(&insns);
    let session = Session::scratch()?;
    let loaded = session.loader().load_bytes(&bytes)?;
    let mut sources = Sources::new(None);
    let of = sources.add("spin", Object::parse(&bytes).expect("it was just made"));
    let chain = Chain::create(&session, "spin", ProgramType::Xdp)?;
    let mut edits = Vec::new();
    for name in ["p0", "p1", "p0"] {
        chain.add(loaded.program(name)?, Place::Loose)?;
        let program = sources.program(of, name).expect("it is there");
        edits.push(Edit::Add { program, place: Place::Loose });
    }
    let mut rest = vec![Edit::Entry(Some(NodeId(1)))];
    for (from, on, to) in [(1, "pass", 2), (2, "tx", 3)] {
        let (on, edge) = (on.parse().expect("a verdict"), Edge::to(To::Node(NodeId(to))));
        rest.push(Edit::Connect { from: NodeId(from), on, edge, expected: None });
    }
    chain.transaction(0, &rest)?;
    let mut packet = [0x11; 60];
    packet[4..8].fill(0);
    let mut want = packet;
    want[0] = 0x5a;
    want[4..8].copy_from_slice(&(2 * ROUNDS).to_ne_bytes());
    let runs = |stats: &skep::chain::Stats| -> Vec<_> {
        stats.nodes.values().map(|n| (n.runs(), n.verdicts())).collect()
    };
    let mut counted = Vec::new();
    for engine in [Engine::Jit, Engine::Interp] {
        let mut runner = chain.runner_with(engine, Count::Runs)?;
        let ran = runner.test_run(&Input::data(&packet))?;
        assert_eq!((ran.retval, ran.data_out.as_deref()), (2, Some(&want[..])), "{engine:?}");
        counted.push(runs(&runner.stats()));
    }
    let all = ["pass", "tx", "pass"].map(|verdict| (1, vec![(verdict.to_owned(), 1)]));
    assert_eq!(counted, [all.to_vec(), all.to_vec()]);
    if let Err(e) = skep_kernel::probe() {
        skep_testkit::skip(e.requirement().unwrap_or("bpf(2)"));
        return Ok(());
    }
    edits.extend(rest);
    let (graph, _) = Graph::new(ProgramType::Xdp).transaction(0, &edits).expect("as here");
    let kernel = match KernelChain::load(&sources, &graph, Count::Runs, None) {
        Ok(kernel) => kernel,
        // Before Linux 6.9.
        Err(KernelChainError::Refused { last, .. }) if last.contains("unknown opcode e5") => {
            skep_testkit::skip("may_goto");
            return Ok(());
        }
        Err(e) => panic!("{e}\n{e:#?}"),
    };
    let run = TestRun { data_in: &packet, data_out: 4096, ..TestRun::default() };
    let mut got = kernel.program().test_run(&run).expect("it runs");
    let rounds = got.data_out.get(4..8).and_then(|b| b.first_chunk().copied());
    assert!(rounds.map(u32::from_ne_bytes) > Some(60_000), "{rounds:?}");
    got.data_out[4..8].copy_from_slice(&want[4..8]);
    assert_eq!((got.retval, &got.data_out[..]), (2, &want[..]));
    assert_eq!(runs(&kernel.stats().expect("counters")), counted[0]);
    Ok(())
}
