//! tcx's lists: what was measured on Linux 6.18, row by row, and random lists against a model.

use skep_isa::ProgramType;
use skep_isa::errno::{EBUSY, EEXIST, EINVAL, ENOENT, ERANGE, ESTALE};
use skep_net::chain::ProgramRef;
use skep_net::chain::mprog::{Flags, How, List, MOST, Relative};
use skep_testkit::random::Random;

use crate::engines::engines;
use crate::model::{program, run};

fn tcx(id: u32) -> ProgramRef {
    ProgramRef { prog_type: ProgramType::SchedCls, ..program(id) }
}

fn beside(flags: Flags, relative: Option<u32>) -> How {
    let relative =
        relative.map(|program| Relative { program, prog_type: ProgramType::SchedCls, link: None });
    How { flags, relative, ..How::default() }
}

fn ids(list: &List) -> Vec<u32> {
    list.all().iter().map(|a| a.program.id).collect()
}

#[test]
fn what_the_kernel_answered() {
    let (before, after) = (Flags::BEFORE, Flags::AFTER);
    let mut list = List::new(ProgramType::SchedCls);
    assert_eq!(list.revision(), 1);
    // No flag appends; before and after without a relative are head and end.
    for (id, how) in [
        (1, How::default()),
        (2, How::default()),
        (3, beside(before, None)),
        (4, beside(after, None)),
        (5, beside(before, Some(2))),
        (6, beside(after, Some(1))),
    ] {
        assert_eq!(list.attach(tcx(id), None, &how), Ok(()));
    }
    assert_eq!((ids(&list), list.revision()), (vec![3, 1, 6, 5, 2, 4], 7));
    let at = |revision| How { revision, ..How::default() };
    assert_eq!(list.attach(tcx(7), None, &at(6)), Err(ESTALE));
    assert_eq!(list.attach(tcx(7), None, &at(7)), Ok(()));
    assert_eq!(list.attach(tcx(7), None, &How::default()), Err(EEXIST));
    assert_eq!(list.attach(tcx(8), None, &beside(before, Some(9))), Err(ENOENT));
    assert_eq!(list.attach(tcx(8), None, &beside(after, Some(9))), Err(ENOENT));
    let replace = |old| How { flags: Flags::REPLACE, replace: Some(old), ..How::default() };
    assert_eq!(list.attach(tcx(8), None, &replace(9)), Err(ENOENT));
    assert_eq!(list.attach(tcx(8), None, &replace(6)), Ok(()));
    assert_eq!(ids(&list), [3, 1, 8, 5, 2, 4, 7]);
    // Before and after one program do not meet.
    assert_eq!(list.attach(tcx(9), None, &beside(before | after, Some(1))), Err(ERANGE));
    assert_eq!(list.attach(tcx(9), None, &beside(before | after, None)), Err(ERANGE));
    assert_eq!(list.attach(program(9), None, &How::default()), Err(EINVAL), "another type");
    // A relative without a place, and replacing without saying what.
    assert_eq!(list.attach(tcx(9), None, &beside(Flags::empty(), Some(1))), Err(EINVAL));
    assert_eq!(list.attach(tcx(9), None, &beside(Flags::REPLACE, None)), Err(EINVAL));
    // Detaching before or after without a program takes the first or the last.
    let gone = |list: &mut List, p, how: &How| list.detach(p, None, how).map(|a| a.program.id);
    assert_eq!(gone(&mut list, None, &beside(before, None)), Ok(3));
    assert_eq!(gone(&mut list, None, &beside(after, None)), Ok(7));
    assert_eq!(gone(&mut list, Some(9), &How::default()), Err(ENOENT));
    assert_eq!(gone(&mut list, Some(8), &at(1)), Err(ESTALE));
    assert_eq!(gone(&mut list, Some(8), &How::default()), Ok(8));
    assert_eq!(gone(&mut list, Some(1), &beside(Flags::REPLACE, None)), Err(EINVAL));
    assert_eq!(ids(&list), [1, 5, 2, 4]);
    for _ in 0..4 {
        assert!(list.detach(None, None, &beside(before, None)).is_ok());
    }
    assert_eq!(gone(&mut list, None, &beside(before, None)), Err(ENOENT));
}

#[test]
fn sixty_three_programs_are_the_most() {
    let mut list = List::new(ProgramType::SchedCls);
    for id in 0..MOST as u32 {
        assert_eq!(list.attach(tcx(id), None, &How::default()), Ok(()));
    }
    assert_eq!(list.attach(tcx(100), None, &How::default()), Err(ERANGE));
    let how = How { flags: Flags::REPLACE, replace: Some(5), ..How::default() };
    assert_eq!(list.attach(tcx(100), None, &how), Ok(()), "replacing needs no room");
}

#[test]
fn a_link_is_detached_as_one() {
    let mut list = List::new(ProgramType::SchedCls);
    assert_eq!(list.attach(tcx(1), Some(11), &How::default()), Ok(()));
    assert_eq!(list.attach(tcx(2), None, &How::default()), Ok(()));
    assert_eq!(list.detach(Some(1), None, &How::default()), Err(EBUSY));
    assert_eq!(list.detach(None, None, &beside(Flags::BEFORE, None)), Err(EBUSY));
    let how = How { flags: Flags::REPLACE, replace: Some(1), ..How::default() };
    assert_eq!(list.attach(tcx(3), None, &how), Err(EBUSY));
    assert_eq!(list.attach(tcx(3), Some(11), &how), Ok(()));
    assert_eq!(list.detach(Some(3), Some(11), &How::default()).map(|a| a.program.id), Ok(3));
}

/// Only `TCX_NEXT` goes on, and codes that tcx does not know end the list with it.
#[test]
fn random_lists_run_as_tcx_would() {
    for seed in 0..1000 {
        let mut rng = Random::new(seed + 1);
        let mut list = List::new(ProgramType::SchedCls);
        let mut model: Vec<u32> = Vec::new();
        for id in 1..=1 + rng.below(9) as u32 {
            let relative =
                if model.is_empty() { None } else { Some(model[rng.below(model.len())]) };
            let relative = relative.filter(|_| rng.below(3) > 0);
            let (flags, at) = if rng.below(2) == 0 {
                let at = relative.and_then(|r| model.iter().position(|id| *id == r));
                (Flags::BEFORE, at.unwrap_or(0))
            } else {
                let at = relative.and_then(|r| model.iter().position(|id| *id == r));
                (Flags::AFTER, at.map_or(model.len(), |n| n + 1))
            };
            model.insert(at, id);
            assert_eq!(list.attach(tcx(id), None, &beside(flags, relative)), Ok(()));
        }
        assert_eq!(ids(&list), model, "seed {seed}");
        let codes = [u32::MAX, u32::MAX, u32::MAX, 0, 1, 2, 3, 7, 8, 40, 1 << 31];
        let says: Vec<u32> = (0..20).map(|_| codes[rng.below(codes.len())]).collect();
        let mut want = (Vec::new(), u32::MAX);
        for id in model {
            want.0.push(id);
            let verdict = says[id as usize];
            if verdict != u32::MAX {
                want.1 = if [0, 2, 7].contains(&verdict) { verdict } else { u32::MAX };
                break;
            }
        }
        assert_eq!(run(&list.graph(), |id, _| says[id as usize]), want, "seed {seed}");
        assert_eq!(engines(&list.graph(), |id| says[id as usize]), want, "seed {seed}");
    }
}
