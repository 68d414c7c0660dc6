//! The load balancer on a mix of connections: by a test run of skep and of the kernel, and on batches
//! of frames.

use skep::Session;
use skep::port::{Outputs, Until};
use skep::test_run::{Engine, Input};

use crate::balancer_maps::{TX, load, load_into_kernel};
use crate::mix::{self, PACKET, PACKETS};
use crate::packets::Frames;
use crate::{Case, Result, each, mark, take_turns, timed};

const RUNS: u32 = 20 * PACKETS as u32;

/// By skep.
pub fn ours() -> Result<()> {
    let session = Session::scratch()?;
    let object = load(&session)?;
    let globals = object.map(".bss")?;
    let mut cases: Vec<Case<'_>> = Vec::new();
    for program in ["driven", "driver"] {
        let runner = object.program(program)?.runner(Engine::Jit)?;
        let globals = &globals;
        let run = move || {
            let size = globals.lookup(&[0; 4])?.len();
            globals.update(&[0; 4], &mark::begin(size, RUNS), 0)?;
            let done = runner.test_run(&Input { repeat: RUNS, ..Input::data(&[0; PACKET]) })?;
            mark::check(done.retval, TX)?;
            mark::each(&globals.lookup(&[0; 4])?, RUNS)
        };
        cases.push((program.to_owned(), Box::new(run)));
    }
    let mut runner = object.program("balance")?.packets(Engine::Jit)?;
    let mut frames = Frames::new(mix::packets(mix::SEED).concat(), PACKET);
    let until = Until { packets: Some(RUNS.into()), ..Until::default() };
    let run = move || {
        let pump = || Ok(runner.pump(&mut frames, &mut Outputs::new(), &until)?);
        let (took, stats) = timed(pump)?;
        mark::check(stats.verdicts[TX as usize] as u32, RUNS)?;
        Ok(each(took, RUNS.into()))
    };
    cases.push(("frames".to_owned(), Box::new(run)));
    take_turns(&mut cases).map(drop)
}

/// By the kernel.
pub fn kernels() -> Result<()> {
    let loaded = load_into_kernel()?;
    let mut cases: Vec<Case<'_>> = Vec::new();
    for name in ["driven", "driver"] {
        let program = loaded.program(name)?;
        let loaded = &loaded;
        let run = move || loaded.time(&program, &[0; PACKET], RUNS, TX);
        cases.push((name.to_owned(), Box::new(run)));
    }
    take_turns(&mut cases).map(drop)
}
