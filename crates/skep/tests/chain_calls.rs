//! Chains by the proposed `PROG_CHAIN_ADD`, `_DEL` and `_GET`: the error table of the series, and
//! runs with its limits.

use skep::chain::{ChainCalls, ChainError, Count};
use skep::isa::{Insn, ProgramType, errno};
use skep::object::RawProgram;
use skep::test_run::{Engine, Input};
use skep::{Error, Session};

/// Programs that answer these verdicts, opened for chains.
fn programs(session: &Session, calls: &ChainCalls, verdicts: &[i32]) -> Result<Vec<u32>, Error> {
    let load = |verdict: &i32| {
        let insns = [Insn::mov64_imm(0, *verdict), Insn::exit()];
        let raw = RawProgram::new("answer", ProgramType::Xdp, &insns);
        let object = session.load_instructions(&raw, &[])?;
        Ok(calls.load(object.program("answer")?, true)?)
    };
    verdicts.iter().map(load).collect()
}

fn refused<T: std::fmt::Debug>(done: Result<T, ChainError>) -> i32 {
    match done {
        Err(ChainError::Call { errno }) => errno,
        other => panic!("{other:?}"),
    }
}

#[test]
fn calls_fail_as_the_table_of_the_series_says() -> Result<(), Error> {
    let session = Session::scratch()?;
    let calls = ChainCalls::new(&session);
    let ids = programs(&session, &calls, &[2, 1, 3])?;
    let [a, b, c] = ids[..] else { panic!() };
    let plain = session.load_instructions(
        &RawProgram::new("plain", ProgramType::Xdp, &[Insn::mov64_imm(0, 0), Insn::exit()]),
        &[],
    )?;
    let plain = calls.load(plain.program("plain")?, false)?;
    for code in [7, 31, u32::MAX - 1, u32::MAX] {
        assert_eq!(refused(calls.add(a, Some(code), b)), errno::E2BIG);
        // The code is looked at before the program.
        assert_eq!(refused(calls.get(9999, Some(code))), errno::E2BIG);
    }
    assert_eq!(refused(calls.add(9999, None, b)), errno::EBADF);
    assert_eq!(refused(calls.add(a, None, 9999)), errno::EBADF);
    assert_eq!(refused(calls.add(plain, None, 9999)), errno::EOPNOTSUPP);
    assert_eq!(refused(calls.del(plain, None)), errno::EOPNOTSUPP);
    for code in (0..7).map(Some).chain([None]) {
        assert_eq!(refused(calls.get(a, code)), errno::ENOENT);
        assert_eq!(refused(calls.del(a, code)), errno::ENOENT);
        calls.add(a, code, b)?;
        assert_eq!(calls.get(a, code)?, b);
        // Replaces silently; the next one need not be loaded for chains.
        calls.add(a, code, plain)?;
        assert_eq!(
            (calls.get(a, code)?, calls.references(b), calls.references(plain)),
            (plain, Some(1), Some(2))
        );
        calls.del(a, code)?;
    }
    // A chain dies from its head.
    calls.add(a, None, b)?;
    calls.add(b, None, c)?;
    for id in [b, c] {
        calls.close(id);
        assert_eq!(refused(calls.get(id, None)), errno::EBADF, "it is closed");
    }
    assert_eq!([a, b, c].map(|id| calls.references(id)), [Some(1); 3]);
    calls.close(a);
    assert_eq!([a, b, c].map(|id| calls.references(id)), [None; 3]);
    assert!(calls.runner(a).is_err());
    Ok(())
}

#[test]
fn runs_follow_codes_then_the_wildcard_and_end_after_32_programs() -> Result<(), Error> {
    let session = Session::scratch()?;
    let calls = ChainCalls::new(&session);
    for engine in [Engine::Jit, Engine::Interp] {
        let run = |head| -> Result<u32, Error> {
            let mut runner = calls.runner_with(head, engine, Count::Runs)?;
            Ok(runner.test_run(&Input::data(&[0; 64]))?.retval)
        };
        for verdict in (0..9).chain([31, -1]) {
            let ids = programs(&session, &calls, &[verdict, 100, 200])?;
            let [head, own, any] = ids[..] else { panic!() };
            assert_eq!(run(head)?, verdict as u32);
            calls.add(head, None, any)?;
            assert_eq!(run(head)?, 200);
            if (0..7).contains(&verdict) {
                calls.add(head, Some(verdict as u32), own)?;
                assert_eq!(run(head)?, 100);
            }
        }
        // The verdict of each is its place in the line.
        let verdicts: Vec<i32> = (1..=33).collect();
        let line = programs(&session, &calls, &verdicts)?;
        for pair in line.windows(2) {
            calls.add(pair[0], None, pair[1])?;
        }
        assert_eq!((run(line[2])?, run(line[1])?, run(line[0])?), (33, 33, 32));
        // A program that follows itself runs to the limit.
        let circle = programs(&session, &calls, &[2])?[0];
        calls.add(circle, Some(2), circle)?;
        let mut runner = calls.runner_with(circle, engine, Count::Runs)?;
        assert_eq!(runner.test_run(&Input::data(&[0; 64]))?.retval, 2);
        let runs: u64 = runner.stats().nodes.values().map(|n| n.runs()).sum();
        assert_eq!(runs, 32);
        // A change is seen by who runs it.
        calls.del(circle, Some(2))?;
        assert!(runner.refresh()?);
        runner.test_run(&Input::data(&[0; 64]))?;
        let runs: u64 = runner.stats().nodes.values().map(|n| n.runs()).sum();
        assert_eq!(runs, 33);
    }
    Ok(())
}
