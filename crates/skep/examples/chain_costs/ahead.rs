//! What a batch wins by lookups ahead: what programs take on a batch of frames without and with them,
//! and without on the same frames again at once, when all memory that they need is in the cache. No way
//! of fetching it before the program asks for it can win more than that.

use std::time::Instant;

use skep::Session;
use skep::isa::{MapType, ProgramType, text};
use skep::maps::MapDef;
use skep::object::RawProgram;
use skep::packets::{LookAhead, PacketRunner};
use skep::port::batch::Meta;
use skep::port::{Batch, Verdicts};
use skep::test_run::Engine;

use crate::balancer_maps::load;
use crate::mix::{self, Numbers, PACKET, SEED};
use crate::{ROUNDS, Result, mark, tell};

const DROP: u32 = 1;
/// Batches of a round.
const BATCHES: usize = 1000;
/// Elements of the hashes, of which the keys of frames are random ones.
const SIZES: [(u32, &str); 2] = [(100_000, "small-hash"), (1_000_000, "large-hash")];

/// A program that looks up eight bytes of the packet in a hash and changes the value.
const LOOKUP: &str = "ldxw r2, [r1+0]\nldxw r3, [r1+4]\nmov r4, r2\nadd r4, 60\nmov r0, 2\n\
    jgt r4, r3, end\nldxdw r5, [r2+20]\nstxdw [r10-8], r5\nlddw r1, map 0\nmov r2, r10\nadd r2, -8\n\
    call map_lookup_elem\njeq r0, 0, none\nldxdw r1, [r0+0]\nadd r1, 1\nstxdw [r0+0], r1\n\
    mov r0, 1\nja end\nnone: mov r0, 0\nend: exit";

/// Nanoseconds of one frame in the first run over a batch and in the second, and in the first of another
/// batch with lookups ahead.
fn measure(
    runner: &mut PacketRunner,
    wanted: u32,
    mut fill: impl FnMut(&mut Batch),
) -> Result<[f64; 3]> {
    let (mut batch, mut verdicts) = (Batch::new(), Verdicts::default());
    let mut best = [f64::INFINITY; 3];
    for _ in 0..ROUNDS {
        let (mut took, mut frames) = ([0.0; 3], 0);
        for _ in 0..BATCHES {
            let mut given: Vec<Vec<u8>> = Vec::new();
            for (way, took) in took.iter_mut().enumerate() {
                if way != 1 {
                    batch.clear();
                    fill(&mut batch);
                    given = batch.frames().map(|f| f.bytes.to_vec()).collect();
                }
                runner.look_ahead(if way == 2 { LookAhead::Always } else { LookAhead::Never });
                // The program may have changed them.
                batch.clear();
                given.iter().for_each(|f| assert!(batch.push(Meta::default(), f)));
                verdicts.reset(batch.len());
                let began = Instant::now();
                runner.run(&mut batch, &mut verdicts)?;
                *took += began.elapsed().as_nanos() as f64;
            }
            frames += given.len();
            let all = verdicts.all();
            let other = all.iter().find(|v| v.kind() as u32 != wanted);
            other.map_or(Ok(()), |v| mark::check(v.kind() as u32, wanted))?;
        }
        for (best, took) in best.iter_mut().zip(took) {
            *best = best.min(took / frames as f64);
        }
    }
    Ok(best)
}

fn tell_all(name: &str, [first, again, ahead]: [f64; 3]) {
    tell(&format!("{name}-first"), first);
    tell(&format!("{name}-again"), again);
    tell(&format!("{name}-ahead"), ahead);
}

/// Everything.
pub fn run() -> Result<()> {
    let session = Session::scratch()?;
    for (size, name) in SIZES {
        let map = session.create_map(&MapDef::new(MapType::Hash, 8, 8, size))?;
        for key in 0..u64::from(size) {
            map.update(&key.to_ne_bytes(), &[0; 8], 0)?;
        }
        let insns = text::assemble(LOOKUP).map_err(|e| format!("{e:?}"))?;
        let mut raw = RawProgram::new("look", ProgramType::Xdp, &insns);
        raw.handles = &[0];
        let object = session.load_instructions(&raw, &[map])?;
        let mut runner = object.program("look")?.packets(Engine::Jit)?;
        let mut numbers = Numbers::new(SEED);
        let fill = |batch: &mut Batch| {
            let mut frame = [0; 64];
            loop {
                let key = numbers.below(size as usize) as u64;
                frame[20..28].copy_from_slice(&key.to_ne_bytes());
                if !batch.push(Meta::default(), &frame) {
                    return;
                }
            }
        };
        tell_all(name, measure(&mut runner, DROP, fill)?);
    }
    let object = load(&session)?;
    let mut runner = object.program("balance")?.packets(Engine::Jit)?;
    let packets = mix::packets(SEED);
    let mut next = packets.iter().cycle();
    let fill = |batch: &mut Batch| {
        while batch.has_room(PACKET)
            && let Some(packet) = next.next()
        {
            assert!(batch.push(Meta::default(), packet));
        }
    };
    tell_all("balancer", measure(&mut runner, crate::balancer_maps::TX, fill)?);
    Ok(())
}
