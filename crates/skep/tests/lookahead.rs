//! What programs look up is fetched from memory ahead of them, for a batch of frames at once. That runs
//! a part of the program before the program: nobody may notice.

use skep::chain::{Chain, Count, Place};
use skep::isa::{Insn, MapType, ProgramType, text};
use skep::maps::MapDef;
use skep::object::RawProgram;
use skep::packets::LookAhead;
use skep::port::batch::Meta;
use skep::port::{Batch, Verdict, Verdicts};
use skep::test_run::Engine;
use skep::{Map, Session};
use skep_testkit::random::Random;

/// Bytes that every program may use.
const BYTES: usize = 34;
/// So many of the second map's elements that it is one whose elements are fetched.
const FAR: u32 = 40_000;
const MAPS: [(MapType, u32, u32); 4] = [
    (MapType::Hash, 8, 64),
    (MapType::Hash, 8, FAR),
    (MapType::Array, 4, 16),
    (MapType::LruHash, 8, FAR),
];
/// Keys that are there, of each hash.
const KEYS: u64 = 32;

/// The text of a random program, which looks up, changes packets, values and maps, goes round, and moves
/// the start of the packet.
fn program(rng: &mut Random) -> String {
    let mut lines = vec![
        "mov r6, r1\nmov r9, 2\nldxw r7, [r6+0]\nldxw r8, [r6+4]\nmov r2, r7\nadd r2, 34\n\
         mov r3, 5\nstxdw [r10-8], r3\nstxdw [r10-16], r3\nstxdw [r10-24], r3\njgt r2, r8, end"
            .to_owned(),
    ];
    for n in 0..2 + rng.below(7) {
        let (letter, size) = [("b", 1), ("h", 2), ("w", 4), ("dw", 8)][rng.below(4)];
        let place = rng.below(BYTES - size + 1);
        let key = format!("ldxb r3, [r7+{}]\nand r3, {}", rng.below(BYTES), 2 * KEYS - 1);
        let map = [0, 1, 1, 1, 2, 3][rng.below(6)];
        let look_up = format!(
            "{key}\nstxdw [r10-8], r3\nlddw r1, map {map}\nmov r2, r10\nadd r2, -8\ncall 1\n\
             jeq r0, 0, none{n}"
        );
        lines.push(match rng.below(9) {
            0 => format!("ldx{letter} r3, [r7+{place}]\nadd r9, r3\nstx{letter} [r7+{place}], r9"),
            1 => format!("{look_up}\nldxdw r3, [r0+0]\nadd r9, r3\nstxdw [r0+0], r9\nnone{n}:"),
            2 => format!("{look_up}\nmov r3, 1\nlock fetch add [r0+0], r3\nadd r9, r3\nnone{n}:"),
            3 => format!(
                "{look_up}\nstxdw [r10-24], r0\nldxdw r4, [r10-24]\nldxdw r3, [r4+0]\n\
                xor r9, r3\nstxb [r4+1], r9\nnone{n}:"
            ),
            4 => format!(
                "mov r3, {}\nround{n}: add r9, r3\nstxdw [r10-16], r9\nsub r3, 1\n\
                jne r3, 0, round{n}",
                1 + rng.below(5)
            ),
            5 => format!(
                "{key}\nstxdw [r10-8], r3\nstxdw [r10-16], r9\nlddw r1, map {map}\n\
                mov r2, r10\nadd r2, -8\nmov r3, r10\nadd r3, -16\nmov r4, 0\ncall 2"
            ),
            6 => "call 5\ncall 8".to_owned(),
            7 if rng.below(3) == 0 => format!(
                "mov r1, r6\nmov r2, {}\ncall 44\nldxw r7, [r6+0]\nldxw r8, [r6+4]\nmov r2, r7\n\
                 add r2, 34\njgt r2, r8, end",
                [-4, 4, -14][rng.below(3)]
            ),
            7 => format!(
                "jset r9, {}, on{n}\nmov r4, r10\nadd r4, -16\nstxdw [r4+0], r9\n{look_up}\n\
                none{n}:\non{n}:",
                1 << rng.below(4)
            ),
            _ => format!("ldxdw r3, [r10-16]\nadd r9, r3\n{look_up}\nnone{n}:"),
        });
    }
    lines.push("end: mov r0, r9\nand r0, 3\nexit".to_owned());
    lines.join("\n")
}

/// All that can be told of some batches: verdicts and frames, and what the maps have then.
type Seen = (Vec<(Verdict, Vec<u8>)>, Vec<Vec<(Vec<u8>, Vec<u8>)>>);

fn contents(map: &Map) -> Vec<(Vec<u8>, Vec<u8>)> {
    let mut all: Vec<_> = map.iter().map(|e| e.expect("it can be read")).collect();
    all.sort();
    all
}

/// Runs a program, or a chain that begins with it, on batches of frames of random bytes.
fn run(insns: &[Insn], seed: u64, engine: Engine, when: LookAhead, in_chain: bool) -> Seen {
    let session = Session::scratch().expect("there is room");
    let create = |(map_type, key, entries)| {
        session.create_map(&MapDef::new(map_type, key, 8, entries)).expect("there is room")
    };
    let maps = MAPS.map(create);
    for (map, (map_type, ..)) in maps.iter().zip(MAPS) {
        for key in (0..KEYS).filter(|_| map_type != MapType::Array) {
            map.update(&key.to_ne_bytes(), &[7; 8], 0).expect("there is room");
        }
    }
    let mut raw = RawProgram::new("random", ProgramType::Xdp, insns);
    raw.handles = &[0, 1, 2, 3];
    let object = session.load_instructions(&raw, &maps).unwrap_or_else(|e| {
        panic!("seed {seed}: {e:?}\n{}", text::source(insns).unwrap_or_default())
    });
    let program = object.program("random").expect("it is there");
    let mut alone = program.packets(engine).expect("it is an XDP program");
    alone.look_ahead(when);
    let chain = Chain::create(&session, "chain", ProgramType::Xdp).expect("there is room");
    for _ in 0..2 {
        let on = "pass,tx".parse().expect("they are verdicts");
        chain.add(program, Place::First { on }).expect("it fits");
    }
    let mut chain = chain.runner_with(engine, Count::Off).expect("it runs");
    chain.look_ahead(when);
    let (mut rng, mut batch, mut verdicts) =
        (Random::new(seed + 1), Batch::new(), Verdicts::default());
    let mut frames = Vec::new();
    // Longer than it takes to find out what is faster.
    for _ in 0..40 {
        batch.clear();
        for _ in 0..8 + rng.below(20) {
            let len = [20, 34, 60, 200][rng.below(4)];
            let bytes: Vec<u8> = (0..len).map(|_| rng.next_u64() as u8).collect();
            assert!(batch.push(Meta { port: 1, ..Meta::default() }, &bytes));
        }
        verdicts.reset(batch.len());
        if in_chain {
            chain.run(&mut batch, &mut verdicts).expect("nothing else runs");
        } else {
            alone.run(&mut batch, &mut verdicts).expect("nothing else runs");
        }
        let all = verdicts.all().iter().zip(batch.frames());
        frames.extend(all.map(|(verdict, frame)| (*verdict, frame.bytes.to_vec())));
    }
    (frames, maps.iter().map(contents).collect())
}

#[test]
fn nobody_notices_what_runs_ahead() {
    let programs = if std::env::var_os("SKEP_STRESS").is_some() { 3000 } else { 60 };
    let mut with_part = 0;
    for seed in 0..programs {
        let insns = text::assemble(&program(&mut Random::new(seed + 1))).expect("it is good");
        // As the maps are: the second and the last are far.
        let is_far = |map: Option<u32>| map.is_none_or(|map| map == 1 || map == 3);
        with_part += u32::from(skep_vm::lookahead::program(&insns, &is_far).is_some());
        for in_chain in [false, true] {
            let expected = run(&insns, seed, Engine::Interp, LookAhead::Never, in_chain);
            for when in [LookAhead::Never, LookAhead::Always, LookAhead::Auto] {
                let seen = run(&insns, seed, Engine::Jit, when, in_chain);
                let source = || text::source(&insns).unwrap_or_default();
                assert!(seen == expected, "seed {seed}, {when:?}, chain {in_chain}\n{}", source());
            }
        }
    }
    assert!(with_part * 3 > programs as u32, "{with_part} of {programs} look something up ahead");
}
