//! Our list, with links as the kernel has them around its own.

use std::collections::BTreeMap;

use skep_isa::ProgramType;
use skep_net::chain::ProgramRef;
use skep_net::chain::mprog::{self, Flags, List};

use crate::{Change, How, Place, Program, Relative};

/// What is not in the list's hands: links, and the programs that they have.
pub(crate) struct Ours {
    list: List,
    /// The program of each link, also of those that were detached; and whether that is so.
    links: BTreeMap<u32, (u32, bool)>,
}

impl Ours {
    pub(crate) fn new() -> Self {
        Self { list: List::new(ProgramType::SchedCls), links: BTreeMap::new() }
    }

    fn how(&self, how: &How<'_>) -> mprog::How {
        let relative = how.relative.map(|relative| match relative {
            Relative::Program(p) => {
                mprog::Relative { program: p.id, prog_type: p.prog_type, link: None }
            }
            Relative::Link(link) => mprog::Relative {
                program: self.links.get(&link).map_or(0, |(program, _)| *program),
                prog_type: ProgramType::SchedCls,
                link: Some(link),
            },
        });
        let replace = how.replace.map(|old| old.id);
        mprog::How { flags: how.flags, relative, replace, revision: how.revision }
    }
}

fn reference(program: &Program) -> ProgramRef {
    ProgramRef {
        id: program.id,
        name: String::new(),
        prog_type: program.prog_type,
        attach_type: None,
        frags: false,
        device: None,
    }
}

impl Place for Ours {
    fn change(&mut self, change: &Change<'_>) -> Result<(), i32> {
        match *change {
            Change::Attach(program, how) => {
                self.list.attach(reference(program), None, &self.how(&how))
            }
            Change::Detach(program, how) => {
                self.list.detach(program.map(|p| p.id), None, &self.how(&how)).map(drop)
            }
            Change::Link(link, program, how) => {
                self.list.attach(reference(program), Some(link), &self.how(&how))?;
                self.links.insert(link, (program.id, true));
                Ok(())
            }
            Change::Update(link, program, old) => {
                let (current, attached) = self.links.get(&link).copied().unwrap_or_default();
                if !attached {
                    return Err(libc::ENOLINK);
                }
                if old.is_some_and(|old| old.id != current) {
                    return Err(libc::EPERM);
                }
                if program.id == current {
                    return Ok(());
                }
                let how = mprog::How {
                    flags: Flags::REPLACE,
                    replace: Some(current),
                    ..mprog::How::default()
                };
                self.list.attach(reference(program), Some(link), &how)?;
                self.links.insert(link, (program.id, true));
                Ok(())
            }
            Change::Unlink(link) => {
                let (program, attached) = self.links.get(&link).copied().unwrap_or_default();
                if attached {
                    self.list.detach(Some(program), Some(link), &mprog::How::default())?;
                    self.links.insert(link, (program, false));
                }
                Ok(())
            }
        }
    }

    fn there(&self) -> (Vec<u32>, u64) {
        let ids = self.list.all().iter().map(|a| a.program.id).collect();
        (ids, self.list.revision())
    }
}
