//! When a program on functions runs, and what it gets: both follow from the program, and a link
//! that says otherwise is refused.

use skep_isa::{AttachType, ProgramType};

use super::file::Context;
use crate::prog::Program;

/// Tells when a program on functions runs.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[repr(u32)]
pub enum FunctionAttachType {
    /// When the function is entered.
    Entry = 1,
    /// When it returns.
    Exit = 2,
    /// When it is entered, with the power to return in its place.
    ModifyReturn = 3,
    /// At both, with a word kept in between.
    Session = 4,
}

impl FunctionAttachType {
    /// Finds the type with this number in a link file.
    #[must_use]
    pub fn from_raw(raw: u32) -> Option<Self> {
        [Self::Entry, Self::Exit, Self::ModifyReturn, Self::Session]
            .into_iter()
            .find(|t| *t as u32 == raw)
    }
}

/// The attach type of a tracing program that attaches to functions.
pub fn on_functions_of(prog_type: ProgramType, attach: Option<AttachType>) -> Option<AttachType> {
    attach.filter(|a| {
        prog_type == ProgramType::Tracing
            && !matches!(a, AttachType::TraceRawTp | AttachType::TraceIter)
    })
}

/// Tells when a program runs and what it gets; `None` for one that does not attach to functions of
/// a process.
pub fn of(program: &Program) -> Option<(FunctionAttachType, Context)> {
    of_section(program.prog_type(), program.attach_type(), program.section())
}

/// The same by what a section says.
pub fn of_section(
    prog_type: ProgramType,
    attach: Option<AttachType>,
    section: &str,
) -> Option<(FunctionAttachType, Context)> {
    match prog_type {
        ProgramType::Tracing => tracing(attach).map(|t| (t, Context::Tracing)),
        ProgramType::Kprobe => probe(attach, section).map(|t| (t, Context::PtRegs)),
        _ => None,
    }
}

fn tracing(attach: Option<AttachType>) -> Option<FunctionAttachType> {
    Some(match on_functions_of(ProgramType::Tracing, attach)? {
        AttachType::TraceFentry | AttachType::TraceFentryMulti => FunctionAttachType::Entry,
        AttachType::TraceFexit | AttachType::TraceFexitMulti => FunctionAttachType::Exit,
        AttachType::ModifyReturn | AttachType::ModifyReturnMulti => {
            FunctionAttachType::ModifyReturn
        }
        AttachType::TraceFsession | AttachType::TraceFsessionMulti => FunctionAttachType::Session,
        _ => return None,
    })
}

/// Uprobe-style programs, whose sections do not always fix an attach type.
fn probe(attach: Option<AttachType>, section: &str) -> Option<FunctionAttachType> {
    let head = section.split('/').next().unwrap_or_default();
    let attach_type = match head.strip_suffix(".s").unwrap_or(head) {
        "uprobe" | "uprobe.multi" | "usdt" => FunctionAttachType::Entry,
        "uretprobe" | "uretprobe.multi" => FunctionAttachType::Exit,
        "uprobe.session" => FunctionAttachType::Session,
        _ => return None,
    };
    let is_session = attach.is_some_and(is_of_session);
    ((attach_type == FunctionAttachType::Session) == is_session).then_some(attach_type)
}

/// Tells whether a program runs at entry and at return, with a word of its own for each call.
pub fn is_session(program: &Program) -> bool {
    program.attach_type().is_some_and(is_of_session)
}

fn is_of_session(attach: AttachType) -> bool {
    use AttachType::{TraceFsession, TraceFsessionMulti, TraceKprobeSession, TraceUprobeSession};
    matches!(attach, TraceFsession | TraceFsessionMulti | TraceKprobeSession | TraceUprobeSession)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Tracing programs that run at other places than functions have attach types too.
    #[test]
    fn only_programs_on_functions_have_an_attach_type_on_functions() {
        use AttachType::{TraceFentry, TraceIter, TraceRawTp, Xdp};
        for (prog_type, attach, want) in [
            (ProgramType::Tracing, Some(TraceFentry), Some(TraceFentry)),
            (ProgramType::Tracing, Some(TraceRawTp), None),
            (ProgramType::Tracing, Some(TraceIter), None),
            (ProgramType::Tracing, None, None),
            (ProgramType::Xdp, Some(Xdp), None),
        ] {
            assert_eq!(on_functions_of(prog_type, attach), want, "{prog_type:?} {attach:?}");
        }
    }
}
