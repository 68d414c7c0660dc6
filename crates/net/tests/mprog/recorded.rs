//! The changes that were measured on Linux 6.18, one after the other, with what came of them: ours, and
//! the running kernel's.

use std::collections::BTreeMap;

use skep_isa::ProgramType;
use skep_isa::errno::{EBUSY, EEXIST, EINVAL, ENOENT, ERANGE, ESTALE};
use skep_net::chain::mprog::{Flags, MOST};

use crate::kernel::Kernel;
use crate::ours::Ours;
use crate::{Change, How, Place, Program, Relative};

const ENOLINK: i32 = libc::ENOLINK;
const EPERM: i32 = libc::EPERM;

/// The numbers of programs; of the kernel's, or made up.
type Programs = BTreeMap<u32, Program>;

fn programs(numbers: impl IntoIterator<Item = u32>, from_kernel: bool) -> Programs {
    let program = |number| {
        let prog_type = if number == 0 { ProgramType::Xdp } else { ProgramType::SchedCls };
        let program = match from_kernel {
            true => Program::load(prog_type).expect("others were loaded"),
            false => Program { fd: None, id: 100 + number, prog_type },
        };
        (number, program)
    };
    numbers.into_iter().map(program).collect()
}

/// Compares the list with these programs.
fn assert_there(place: &impl Place, programs: &Programs, numbers: &[u32], revision: u64) {
    let ids: Vec<u32> = numbers.iter().map(|n| programs[n].id).collect();
    assert_eq!(place.there(), (ids, revision), "{numbers:?}");
}

/// Does what was measured.
fn replay(place: &mut impl Place, programs: &Programs) {
    let p = |number: u32| &programs[&number];
    let plain = How::default();
    let at = |revision| How { revision, ..plain };
    let by = |flags, relative| How { flags, relative, ..plain };
    let beside = |flags, number| by(flags, Some(Relative::Program(p(number))));
    let instead = |number| How { flags: Flags::REPLACE, replace: Some(p(number)), ..plain };
    let (none, before, after) = (Flags::empty(), Flags::BEFORE, Flags::AFTER);
    let attach = |number, how| Change::Attach(p(number), how);
    let detach = |number, how| Change::Detach(Some(p(number)), how);
    let all = |steps: &[(Change<'_>, Result<(), i32>)], place: &mut dyn Place| {
        for (change, expected) in steps {
            assert_eq!(place.change(change), *expected, "{change:?}");
        }
    };
    // No flag appends; before and after without a relative are head and end. The revision grows by
    // one for each.
    let steps = [
        (attach(1, plain), Ok(())),
        (attach(2, plain), Ok(())),
        (attach(3, by(before, None)), Ok(())),
        (attach(4, by(after, None)), Ok(())),
        (attach(5, beside(before, 2)), Ok(())),
        (attach(6, beside(after | Flags::ID, 1)), Ok(())),
    ];
    all(&steps, place);
    assert_there(place, programs, &[3, 1, 6, 5, 2, 4], 7);
    let steps = [
        (attach(7, at(6)), Err(ESTALE)),
        (attach(7, at(7)), Ok(())),
        (attach(7, plain), Err(EEXIST)),
        (attach(8, beside(before, 9)), Err(ENOENT)),
        (attach(8, beside(after, 9)), Err(ENOENT)),
        (attach(8, instead(9)), Err(ENOENT)),
        (attach(8, instead(6)), Ok(())),
    ];
    all(&steps, place);
    assert_there(place, programs, &[3, 1, 8, 5, 2, 4, 7], 9);
    // Before and after one program do not meet; another type; a relative without a place.
    let steps = [
        (attach(9, beside(before | after, 1)), Err(ERANGE)),
        (attach(9, by(before | after, None)), Err(ERANGE)),
        (attach(0, plain), Err(EINVAL)),
        (attach(9, beside(before, 0)), Err(EINVAL)),
        (attach(9, beside(none, 1)), Err(EINVAL)),
        (detach(9, plain), Err(ENOENT)),
        (detach(8, at(1)), Err(ESTALE)),
        (detach(8, plain), Ok(())),
        // Without a program, the first or the last.
        (Change::Detach(None, by(before, None)), Ok(())),
        (Change::Detach(None, by(after, None)), Ok(())),
    ];
    all(&steps, place);
    assert_there(place, programs, &[1, 5, 2, 4], 12);
    // What a link holds goes by the link only.
    let link = |number, how| Change::Link(1, p(number), how);
    let of_link = |flags| by(flags | Flags::LINK, Some(Relative::Link(1)));
    let steps = [
        (link(1, plain), Err(EEXIST)),
        (link(6, at(5)), Err(ESTALE)),
        (link(6, beside(before, 9)), Err(ENOENT)),
        (link(6, beside(before, 5)), Ok(())),
        (detach(6, plain), Err(EBUSY)),
        (attach(7, instead(6)), Err(EBUSY)),
        (attach(7, of_link(after)), Ok(())),
        (attach(8, of_link(before | Flags::ID)), Ok(())),
    ];
    all(&steps, place);
    assert_there(place, programs, &[1, 8, 6, 7, 5, 2, 4], 15);
    let steps = [
        (Change::Update(1, p(3), Some(p(2))), Err(EPERM)),
        (Change::Update(1, p(2), None), Err(EEXIST)),
        (Change::Update(1, p(0), None), Err(EINVAL)),
        (Change::Update(1, p(6), None), Ok(())),
        (Change::Update(1, p(3), Some(p(6))), Ok(())),
    ];
    all(&steps, place);
    assert_there(place, programs, &[1, 8, 3, 7, 5, 2, 4], 16);
    let steps = [
        (Change::Unlink(1), Ok(())),
        (Change::Unlink(1), Ok(())),
        (Change::Update(1, p(6), None), Err(ENOLINK)),
        (attach(6, of_link(after)), Err(ENOENT)),
    ];
    all(&steps, place);
    assert_there(place, programs, &[1, 8, 7, 5, 2, 4], 17);
    for _ in 0..6 {
        assert_eq!(place.change(&Change::Detach(None, by(before, None))), Ok(()));
    }
    assert_eq!(place.change(&Change::Detach(None, by(before, None))), Err(ENOENT));
    assert_there(place, programs, &[], 1);
}

/// 63 programs are the most, and replacing one needs no room.
fn fill(place: &mut impl Place, programs: &Programs) {
    let most = MOST as u32;
    for number in 1..=most {
        assert_eq!(place.change(&Change::Attach(&programs[&number], How::default())), Ok(()));
    }
    let one_more = &programs[&(most + 1)];
    assert_eq!(place.change(&Change::Attach(one_more, How::default())), Err(ERANGE));
    assert_eq!(place.change(&Change::Link(1, one_more, How::default())), Err(ERANGE));
    let how = How { flags: Flags::REPLACE, replace: Some(&programs[&5]), ..How::default() };
    assert_eq!(place.change(&Change::Attach(one_more, how)), Ok(()));
    let with = |n: u32| if n == 5 { most + 1 } else { n };
    assert_there(place, programs, &(1..=most).map(with).collect::<Vec<_>>(), u64::from(most) + 2);
}

#[test]
fn our_list_answers_as_measured() {
    replay(&mut Ours::new(), &programs(0..=9, false));
    fill(&mut Ours::new(), &programs(1..=MOST as u32 + 1, false));
}

#[test]
fn the_running_kernel_answers_as_measured() {
    let Some(mut kernel) = Kernel::new() else { return };
    replay(&mut kernel, &programs(0..=9, true));
    fill(&mut kernel, &programs(1..=MOST as u32 + 1, true));
}
