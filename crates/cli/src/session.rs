//! What `trace` and `run` have in common: the directory, loading, and what is said of a rejected
//! object.

use std::path::Path;

use skep::Dir;
use skep::dir::{DirError, Scratch};
use skep::link::{AttachError, Missed};
use skep::load::LoadError;
use skep::object::Object;

use crate::failure::{Failure, Result};
use crate::printer::Printer;

/// Opens the skep directory and removes what earlier runs left behind.
pub fn directory() -> Result<Dir> {
    let path = Dir::default_path();
    let dir = Dir::create(&path).map_err(elsewhere)?;
    crate::left::sweep(&dir);
    dir.collect()?;
    Ok(dir)
}

/// Makes a directory for this process alone.
pub fn scratch() -> Result<Scratch> {
    Scratch::create().map_err(elsewhere)
}

fn elsewhere(error: DirError) -> Failure {
    Failure::from(error).hint(format!(
        "{} names another directory: one on tmpfs that belongs to you, with mode 0700",
        skep::dir::ENV_DIR
    ))
}

/// Opens the skep directory to look at what is there.
pub fn existing_directory() -> Result<Dir> {
    let path = Dir::default_path();
    Dir::open(&path).map_err(|e| {
        Failure::from(e).hint(format!("{} names the directory to look into", skep::dir::ENV_DIR))
    })
}

/// Says in how many calls a link's program did not run, by reason; nothing when there are none.
pub fn note_missed(printer: Printer, prefix: &str, missed: Missed) {
    let reasons = [
        (missed.inside, "made by a signal handler that interrupted the tracer, or from inside it"),
        (missed.stack, "too deep on their stack to wait for their return"),
        (missed.thread, "made on threads that could not be registered"),
        (
            missed.slots,
            "made on threads without a slot, whose shared one was held by a stopped thread",
        ),
        (missed.namespace, "made by processes that were forked into another PID namespace"),
    ];
    for (calls, why) in reasons.into_iter().filter(|(calls, _)| *calls > 0) {
        printer.note(&format!("{prefix}{calls} calls are not counted: {why}"));
    }
}

/// The same for `--json`.
pub fn missed_json(missed: Missed) -> serde_json::Value {
    serde_json::json!({ "inside": missed.inside, "stack": missed.stack, "thread": missed.thread, "slots": missed.slots, "namespace": missed.namespace })
}

/// Reads and parses an object file.
pub fn object(path: &Path) -> Result<Object> {
    let name = path.display();
    let bytes = std::fs::read(path)
        .map_err(|e| Failure::environment(format!("cannot read `{name}`: {e}")))?;
    Object::parse(&bytes).map_err(|e| {
        Failure::environment(format!("`{name}` is not usable: {e}"))
            .hint("objects are made with `clang -g -O2 -target bpf -c NAME.bpf.c -o NAME.bpf.o`")
    })
}

/// Turns a loading error into what the user reads; `object` is the file's name.
pub fn load_failure(error: LoadError, object: &str) -> Failure {
    match error {
        LoadError::Rejected(rejection) => {
            let mut failure = Failure::failed(rejection.to_string());
            failure.details = crate::rejection::path(&rejection);
            let show = format!("`skep prog verify --to-run --log {object}` shows every step");
            match &rejection.hint {
                Some(hint) => failure.hint(format!("{hint}; {show}")),
                None => failure.hint(show),
            }
        }
        LoadError::Link(e) => {
            let hint = crate::objects::hint(&e);
            let inner = Failure::from(e);
            Failure {
                message: format!("`{object}`: {}", inner.message),
                status: crate::failure::FAILED,
                hint,
                ..inner
            }
        }
        LoadError::Misfit { ref why, .. } => {
            let hint = why.hint();
            Failure { status: crate::failure::FAILED, ..Failure::from(error) }.hint(hint)
        }
        e @ (LoadError::Helper { .. } | LoadError::NoPrograms) => {
            let inner = Failure::from(e);
            Failure {
                message: format!("`{object}`: {}", inner.message),
                status: crate::failure::FAILED,
                ..inner
            }
        }
        e => Failure::from(e),
    }
}

/// The same for links.
pub fn attach_failure(error: AttachError, object: &str) -> Failure {
    match error {
        AttachError::Files(e) => load_failure(e, object),
        AttachError::NoTarget { .. } => Failure {
            status: crate::failure::ENVIRONMENT,
            ..Failure::failed(format!("`{object}`: {error}"))
        }
        .hint("say where with `--attach PROGRAM=PATTERN`"),
        e => Failure {
            status: crate::failure::ENVIRONMENT,
            ..Failure::failed(format!("`{object}`: {e}"))
        },
    }
}
