//! When a program on functions runs, and what it gets: both follow from the program, and a link
//! that says otherwise is refused.

use skep_isa::{AttachType, ProgramType};

use super::file::{Context, When};
use crate::prog::Program;

/// The attach type of a tracing program that hangs on functions.
pub(crate) fn on_functions_of(
    prog_type: ProgramType,
    attach: Option<AttachType>,
) -> Option<AttachType> {
    attach.filter(|a| {
        prog_type == ProgramType::Tracing
            && !matches!(a, AttachType::TraceRawTp | AttachType::TraceIter)
    })
}

/// Tells when a program runs and what it gets, by its type and section; `None` for one that does
/// not hang on functions of a process.
pub(crate) fn of(program: &Program) -> Option<(When, Context)> {
    match program.prog_type() {
        ProgramType::Tracing => tracing(program).map(|when| (when, Context::Tracing)),
        ProgramType::Kprobe => probe(program).map(|when| (when, Context::PtRegs)),
        _ => None,
    }
}

fn tracing(program: &Program) -> Option<When> {
    Some(match on_functions_of(ProgramType::Tracing, program.attach_type())? {
        AttachType::TraceFentry | AttachType::TraceFentryMulti => When::Entry,
        AttachType::TraceFexit | AttachType::TraceFexitMulti => When::Exit,
        AttachType::ModifyReturn | AttachType::ModifyReturnMulti => When::ModifyReturn,
        AttachType::TraceFsession | AttachType::TraceFsessionMulti => When::Session,
        _ => return None,
    })
}

/// Uprobe-style programs, whose sections do not always fix an attach type.
fn probe(program: &Program) -> Option<When> {
    let head = program.section().split('/').next().unwrap_or_default();
    let when = match head.trim_end_matches(".s") {
        "uprobe" | "uprobe.multi" => When::Entry,
        "uretprobe" | "uretprobe.multi" => When::Exit,
        "uprobe.session" => When::Session,
        _ => return None,
    };
    ((when == When::Session) == is_session(program)).then_some(when)
}

/// Tells whether a program was verified as one that has a session's word.
pub(crate) fn is_session(program: &Program) -> bool {
    use AttachType::{TraceFsession, TraceFsessionMulti, TraceKprobeSession, TraceUprobeSession};
    matches!(
        program.attach_type(),
        Some(TraceFsession | TraceFsessionMulti | TraceKprobeSession | TraceUprobeSession)
    )
}
