//! tcx's lists: what a link holds, and random lists against a model. What the kernel answers is in
//! `tests/mprog`.

use skep_isa::ProgramType;
use skep_isa::errno::EBUSY;
use skep_net::chain::ProgramRef;
use skep_net::chain::mprog::{Flags, How, List, Relative};
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
