//! The proposed chain calls: each row of their error table, their runs, their references.

use skep_isa::ProgramType;
use skep_isa::errno::{E2BIG, EBADF, EFAULT, EINVAL, ENOENT, EOPNOTSUPP};
use skep_net::chain::ProgramRef;
use skep_net::chain::seed::Command::{self, Add, Del, Get};
use skep_net::chain::seed::{Handle, Programs, WILDCARD};

use crate::engines::engines;
use crate::model::{program, run, verdicts};

/// Descriptors 1 to 50 are programs of that number, 99 is something else. Program 50 was not
/// loaded for chains.
fn resolve(fd: u32) -> Handle {
    match fd {
        1..=50 => Handle::Program(fd),
        99 => Handle::Other,
        _ => Handle::Closed,
    }
}

fn programs() -> Programs {
    let mut all = Programs::default();
    (1..=50).for_each(|id| all.load(program(id), id != 50));
    all
}

fn attr(words: [u32; 4]) -> Vec<u8> {
    words.iter().flat_map(|w| w.to_ne_bytes()).collect()
}

fn call(all: &mut Programs, command: Command, prev: u32, code: u32, next: u32) -> Result<u32, i32> {
    let mut attr = attr([prev, next, code, 0]);
    all.call(command, &mut attr, resolve)?;
    Ok(u32::from_ne_bytes([attr[12], attr[13], attr[14], attr[15]]))
}

#[test]
fn each_check_fails_in_its_turn() {
    let mut all = programs();
    for command in [Add, Del, Get] {
        // What comes later in the table is wrong too, and does not matter yet.
        let mut long = attr([98, 98, 7, 0]);
        long.extend([0, 0, 0, 1]);
        assert_eq!(all.call(command, &mut long, resolve), Err(EINVAL));
        for code in [7, 8, 31, 32, WILDCARD - 1] {
            assert_eq!(call(&mut all, command, 98, code, 98), Err(E2BIG), "{code}");
        }
        for code in (0..7).chain([WILDCARD]) {
            assert_eq!(call(&mut all, command, 98, code, 98), Err(EBADF));
            assert_eq!(call(&mut all, command, 99, code, 98), Err(EINVAL));
            assert_eq!(call(&mut all, command, 50, code, 98), Err(EOPNOTSUPP));
        }
    }
    assert_eq!(call(&mut all, Add, 1, 2, 98), Err(EBADF));
    assert_eq!(call(&mut all, Add, 1, 2, 99), Err(EINVAL));
    for code in (0..7).chain([WILDCARD]) {
        assert_eq!(call(&mut all, Del, 1, code, 98), Err(ENOENT));
        assert_eq!(call(&mut all, Get, 1, code, 98), Err(ENOENT));
        assert_eq!(call(&mut all, Add, 1, code, 2), Ok(0));
        assert_eq!(call(&mut all, Add, 1, code, 3), Ok(0), "replacing is silent");
        assert_eq!(call(&mut all, Get, 1, code, 98), Ok(3));
        assert_eq!(call(&mut all, Del, 1, code, 98), Ok(0), "the next program does not matter");
        assert_eq!(call(&mut all, Del, 1, code, 98), Err(ENOENT));
    }
    // Zeros behind, and an attribute that ends early, are fine; but the answer needs its place.
    assert_eq!(call(&mut all, Add, 1, 0, 2), Ok(0));
    let mut long = attr([1, 0, 0, 0]);
    long.extend([0; 8]);
    assert_eq!(all.call(Get, &mut long, resolve), Ok(()));
    assert_eq!(long[12..16], 2u32.to_ne_bytes());
    assert_eq!(all.call(Get, &mut attr([1, 0, 0, 0])[..12], resolve), Err(EFAULT));
}

#[test]
fn what_was_not_checked_is_not_checked() {
    let mut all = programs();
    let tracing = ProgramRef { prog_type: ProgramType::Tracing, ..program(49) };
    all.load(tracing, false);
    assert_eq!(call(&mut all, Add, 1, 2, 49), Ok(0), "the type of the next program");
    assert_eq!(call(&mut all, Add, 1, 1, 50), Ok(0), "whether it was loaded for chains");
    assert_eq!(call(&mut all, Add, 2, 2, 2), Ok(0), "a program after itself");
    assert_eq!(call(&mut all, Add, 3, 2, 4), Ok(0));
    assert_eq!(call(&mut all, Add, 4, 2, 3), Ok(0), "a cycle");
    // Which runs to the budget.
    let (ran, verdict) = run(&all.graph(3).expect("it is loaded"), |_, _| 2);
    assert_eq!((ran.len(), &ran[..4], verdict), (32, &[3, 4, 3, 4][..], 2));
    assert_eq!(run(&all.graph(2).expect("it is loaded"), |_, _| 2).0.len(), 32);
}

#[test]
fn the_most_specific_slot_wins() {
    for code in 0..7 {
        let mut all = programs();
        assert_eq!(call(&mut all, Add, 1, WILDCARD, 2), Ok(0));
        assert_eq!(call(&mut all, Add, 1, code, 3), Ok(0));
        let graph = all.graph(1).expect("it is loaded");
        for verdict in verdicts() {
            let next = if verdict == code { 3 } else { 2 };
            assert_eq!(run(&graph, |_, _| verdict).0, [1, next], "{code} {verdict}");
            assert_eq!(engines(&graph, |_| verdict).0, [1, next], "{code} {verdict}");
        }
        // Without the wildcard, codes from 7 on and -1 end the chain.
        assert_eq!(call(&mut all, Del, 1, WILDCARD, 0), Ok(0));
        let graph = all.graph(1).expect("it is loaded");
        for verdict in verdicts() {
            let ran = if verdict == code { vec![1, 3] } else { vec![1] };
            assert_eq!(run(&graph, |_, _| verdict), (ran.clone(), verdict));
            assert_eq!(engines(&graph, |_| verdict), (ran, verdict));
        }
    }
}

#[test]
fn thirty_two_programs_run_and_the_last_verdict_stands() {
    for length in [31, 32, 33] {
        let mut all = programs();
        for n in 1..length {
            assert_eq!(call(&mut all, Add, n, WILDCARD, n + 1), Ok(0));
        }
        let (ran, verdict) = run(&all.graph(1).expect("it is loaded"), |id, _| id);
        assert_eq!((ran.len() as u32, verdict), (length.min(32), length.min(32)));
    }
}

#[test]
fn only_a_head_that_was_loaded_for_chains_has_one() {
    let mut all = programs();
    assert_eq!(call(&mut all, Add, 1, WILDCARD, 50), Ok(0));
    assert_eq!(run(&all.graph(50).expect("it is loaded"), |_, _| 2).0, [50]);
    assert_eq!(run(&all.graph(1).expect("it is loaded"), |_, _| 2).0, [1, 50]);
    assert!(all.graph(77).is_none());
}

#[test]
fn a_chain_goes_from_its_head_and_a_cycle_never_goes() {
    let mut all = programs();
    for (prev, next) in [(1, 2), (2, 3), (10, 11), (11, 10)] {
        assert_eq!(call(&mut all, Add, prev, 2, next), Ok(0));
    }
    assert_eq!(call(&mut all, Add, 1, 3, 3), Ok(0));
    assert_eq!([1, 2, 3].map(|id| all.references(id)), [Some(1), Some(2), Some(3)]);
    [2, 3].iter().for_each(|id| all.close(*id));
    assert_eq!([1, 2, 3].map(|id| all.references(id)), [Some(1), Some(1), Some(2)]);
    all.close(1);
    all.close(1);
    assert_eq!([1, 2, 3].map(|id| all.references(id)), [None, None, None]);
    [10, 11].iter().for_each(|id| all.close(*id));
    assert_eq!([10, 11].map(|id| all.references(id)), [Some(1), Some(1)], "a leak, as it was");
}

/// The steps of the series' own test: a head that passes, and a program that drops behind it.
#[test]
fn the_selftest_of_the_series() {
    let says = |id: u32, _: usize| if id == 1 { 2 } else { 1 };
    let mut all = programs();
    let answer = |all: &Programs| run(&all.graph(1).expect("it is loaded"), says).1;
    assert_eq!(answer(&all), 2);
    assert_eq!(call(&mut all, Add, 1, WILDCARD, 2), Ok(0));
    assert_eq!((answer(&all), call(&mut all, Get, 1, WILDCARD, 0)), (1, Ok(2)));
    assert_eq!(call(&mut all, Del, 1, WILDCARD, 0), Ok(0));
    assert_eq!(answer(&all), 2);
    assert_eq!(call(&mut all, Add, 1, 2, 2), Ok(0));
    assert_eq!(answer(&all), 1);
}
