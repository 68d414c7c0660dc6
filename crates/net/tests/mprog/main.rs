//! tcx's lists beside the running kernel's: the same changes of both, and after each the same answer,
//! order and revision. Where there is no such kernel, what was measured stands for it.

mod kernel;
mod ours;
mod random;
mod recorded;

use std::os::fd::OwnedFd;

use skep_isa::ProgramType;
use skep_net::chain::mprog::Flags;

/// A program; without a descriptor where there is no kernel.
struct Program {
    fd: Option<OwnedFd>,
    id: u32,
    prog_type: ProgramType,
}

/// What a place is named by. Links have numbers of the test's own.
#[derive(Clone, Copy)]
enum Relative<'a> {
    Program(&'a Program),
    Link(u32),
}

/// Where, and beside what; the revision is 0 for any.
#[derive(Clone, Copy, Default)]
struct How<'a> {
    flags: Flags,
    relative: Option<Relative<'a>>,
    replace: Option<&'a Program>,
    revision: u64,
}

/// A change of a list.
#[derive(Clone, Copy)]
enum Change<'a> {
    /// `BPF_PROG_ATTACH`.
    Attach(&'a Program, How<'a>),
    /// `BPF_PROG_DETACH`.
    Detach(Option<&'a Program>, How<'a>),
    /// `BPF_LINK_CREATE` of a link with this number.
    Link(u32, &'a Program, How<'a>),
    /// `BPF_LINK_UPDATE`, perhaps if the link has this program.
    Update(u32, &'a Program, Option<&'a Program>),
    /// `BPF_LINK_DETACH`.
    Unlink(u32),
}

/// Something with a list.
trait Place {
    fn change(&mut self, change: &Change<'_>) -> Result<(), i32>;

    /// The ids of the programs in order, and the revision; 1 without a list.
    fn there(&self) -> (Vec<u32>, u64);
}

impl std::fmt::Debug for Change<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let how = |f: &mut std::fmt::Formatter<'_>, how: &How<'_>| {
            match how.relative {
                Some(Relative::Program(p)) => write!(f, " {:?} beside {}", how.flags, p.id)?,
                Some(Relative::Link(n)) => write!(f, " {:?} beside link {n}", how.flags)?,
                None => write!(f, " {:?}", how.flags)?,
            }
            let replace = how.replace.map(|p| p.id);
            write!(f, " in place of {replace:?} at revision {}", how.revision)
        };
        match self {
            Self::Attach(program, of) => {
                write!(f, "attach {}", program.id)?;
                how(f, of)
            }
            Self::Detach(program, of) => {
                write!(f, "detach {:?}", program.map(|p| p.id))?;
                how(f, of)
            }
            Self::Link(number, program, of) => {
                write!(f, "link {number} of {}", program.id)?;
                how(f, of)
            }
            Self::Update(link, program, old) => {
                write!(f, "update link {link} to {} from {:?}", program.id, old.map(|p| p.id))
            }
            Self::Unlink(link) => write!(f, "detach link {link}"),
        }
    }
}
