//! Random changes of both lists.

use skep_isa::ProgramType;
use skep_net::chain::mprog::Flags;
use skep_testkit::random::Random;

use crate::kernel::Kernel;
use crate::ours::Ours;
use crate::{Change, How, Place, Program, Relative};

/// Links that are made at a time.
const LINKS: usize = 4;

#[test]
fn random_changes_have_the_answers_of_the_running_kernel() {
    let Some(mut kernel) = Kernel::new() else { return };
    let types = [[ProgramType::SchedCls; 7].as_slice(), &[ProgramType::Xdp]].concat();
    let programs: Vec<Program> =
        types.into_iter().map(|t| Program::load(t).expect("another was loaded")).collect();
    let mut ours = Ours::new();
    let mut rng = Random::new(1);
    let (mut done, mut refused) = (0, std::collections::BTreeMap::new());
    let mut links: Vec<u32> = Vec::new();
    // The kernel waits for its readers after most changes.
    let rounds = if std::env::var_os("SKEP_STRESS").is_some() { 20_000 } else { 2_000 };
    for round in 0..rounds {
        let mut one = || &programs[rng.below(8)];
        let (program, beside, old) = (one(), one(), one());
        // Lists know the programs that they detach and replace by their ids alone.
        let known = |p: &Program| p.prog_type == ProgramType::SchedCls;
        let mut flags = Flags::empty();
        for (flag, of) in [(Flags::BEFORE, 3), (Flags::AFTER, 3)] {
            if rng.below(of) == 0 {
                flags |= flag;
            }
        }
        let mut relative = (rng.below(2) > 0).then_some(Relative::Program(beside));
        if relative.is_some() && !links.is_empty() && rng.below(3) == 0 {
            relative = Some(Relative::Link(links[rng.below(links.len())]));
            flags |= Flags::LINK;
        }
        if relative.is_some() && rng.below(2) == 0 {
            flags |= Flags::ID;
        }
        let now = ours.there().1;
        let revision = match rng.below(6) {
            0 => now,
            1 => now + 1,
            _ => 0,
        };
        let mut how = How { flags, relative, replace: None, revision };
        let link = (!links.is_empty()).then(|| links[rng.below(links.len())]);
        let change = match (rng.below(12), link) {
            (0..=5, _) => {
                if rng.below(6) == 0 && known(old) {
                    how = How { flags: flags | Flags::REPLACE, replace: Some(old), ..how };
                }
                Change::Attach(program, how)
            }
            (6 | 7, _) => {
                Change::Detach(Some(program).filter(|p| known(p) && rng.below(3) > 0), how)
            }
            (8, _) if known(program) => Change::Link(round, program, how),
            (9 | 10, Some(link)) => {
                Change::Update(link, program, (rng.below(3) == 0).then_some(old))
            }
            (_, Some(link)) => Change::Unlink(link),
            _ => continue,
        };
        let (theirs, answer) = (kernel.change(&change), ours.change(&change));
        assert_eq!(answer, theirs, "{round}: {change:?}");
        assert_eq!(ours.there(), kernel.there(), "{round}: {change:?}");
        match answer {
            Ok(()) => done += 1,
            Err(errno) => *refused.entry(errno).or_insert(0) += 1,
        }
        if let (Change::Link(link, ..), Ok(())) = (&change, answer) {
            links.push(*link);
            // One that is closed is detached.
            if links.len() > LINKS {
                let closed = links.remove(0);
                assert_eq!(ours.change(&Change::Unlink(closed)), Ok(()));
                kernel.close(closed);
                assert_eq!(ours.there(), kernel.there(), "{round}: link {closed} is closed");
            }
        }
    }
    assert!(done > 200 && refused.len() >= 7, "{done} done, refused {refused:?}");
}
