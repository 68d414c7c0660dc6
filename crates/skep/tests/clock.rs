//! What programs read as the time outside of links: from the first run on, the kernel's time.

use rustix::time::{ClockId, clock_gettime};
use skep::isa::{Insn, ProgramType, helper::id};
use skep::object::RawProgram;
use skep::test_run::{Engine, Input};

/// What ten parts in a million are after ten seconds, in nanoseconds.
const DRIFT: i64 = 100_000;

/// `CLOCK_MONOTONIC`, the lower half of its nanoseconds.
fn now() -> u32 {
    let t = clock_gettime(ClockId::Monotonic);
    (t.tv_sec * 1_000_000_000 + t.tv_nsec) as u32
}

#[test]
fn the_time_lies_between_two_readings_of_the_kernels_clock() -> Result<(), skep::Error> {
    let session = skep::Session::scratch()?;
    let insns = [Insn::call(id::KTIME_GET_NS), Insn::exit()];
    let raw = RawProgram::new("now", ProgramType::Xdp, &insns);
    let object = session.load_instructions(&raw, &[])?;
    for engine in [Engine::Jit, Engine::Interp] {
        let runner = object.program("now")?.runner(engine)?;
        for _ in 0..100 {
            let before = now();
            let read = runner.test_run(&Input::data(&[0; 64])).expect("it runs").retval;
            let after = now();
            let [read, after] = [read, after].map(|t| i64::from(t.wrapping_sub(before) as i32));
            assert!((-DRIFT..=after + DRIFT).contains(&read), "{engine:?}: {read} of {after} ns");
        }
    }
    Ok(())
}
