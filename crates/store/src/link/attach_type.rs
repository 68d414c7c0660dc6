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

/// Tells when a program runs and what it gets, by its type and section; `None` for one that does
/// not attach to functions of a process.
pub fn of(program: &Program) -> Option<(FunctionAttachType, Context)> {
    match program.prog_type() {
        ProgramType::Tracing => tracing(program).map(|t| (t, Context::Tracing)),
        ProgramType::Kprobe => probe(program).map(|t| (t, Context::PtRegs)),
        _ => None,
    }
}

fn tracing(program: &Program) -> Option<FunctionAttachType> {
    Some(match on_functions_of(ProgramType::Tracing, program.attach_type())? {
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
fn probe(program: &Program) -> Option<FunctionAttachType> {
    let head = program.section().split('/').next().unwrap_or_default();
    let attach_type = match head.trim_end_matches(".s") {
        "uprobe" | "uprobe.multi" | "usdt" => FunctionAttachType::Entry,
        "uretprobe" | "uretprobe.multi" => FunctionAttachType::Exit,
        "uprobe.session" => FunctionAttachType::Session,
        _ => return None,
    };
    ((attach_type == FunctionAttachType::Session) == is_session(program)).then_some(attach_type)
}

/// Tells whether a program was verified as one that has a session's word.
pub fn is_session(program: &Program) -> bool {
    use AttachType::{TraceFsession, TraceFsessionMulti, TraceKprobeSession, TraceUprobeSession};
    matches!(
        program.attach_type(),
        Some(TraceFsession | TraceFsessionMulti | TraceKprobeSession | TraceUprobeSession)
    )
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
