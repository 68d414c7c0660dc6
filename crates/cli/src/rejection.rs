//! Why an object cannot be loaded or attached, in words: for a rejected program, with the shortest
//! path to the error.

use skep::link::AttachError;
use skep::load::LoadError;

use crate::failure::{ENVIRONMENT, FAILED, Failure};
use crate::objects;

/// Says why an object cannot be loaded; `object` is the file's name.
pub fn load_failure(error: LoadError, object: &str) -> Failure {
    match error {
        LoadError::Rejected(rejection) => {
            let mut failure = Failure::failed(rejection.to_string());
            failure.details = rejection.shown_path();
            let show = format!("`skep prog verify --to-run --log {object}` prints the whole log");
            match &rejection.hint {
                Some(hint) => failure.hint(format!("{hint}; {show}")),
                None => failure.hint(show),
            }
        }
        LoadError::Link(e) => {
            let hint = objects::hint(&e);
            let inner = Failure::from(e);
            Failure {
                message: format!("`{object}`: {}", inner.message),
                status: FAILED,
                hint,
                ..inner
            }
        }
        LoadError::Misfit { ref why, .. } => {
            let hint = why.hint();
            Failure { status: FAILED, ..Failure::from(error) }.hint(hint)
        }
        LoadError::Pinned { ref name, .. } => {
            let hint = format!("`skep map unpin {name}` has the next one made anew");
            Failure::from(error).hint(hint)
        }
        e @ (LoadError::Helper { .. } | LoadError::NoPrograms) => {
            let inner = Failure::from(e);
            Failure { message: format!("`{object}`: {}", inner.message), status: FAILED, ..inner }
        }
        e => Failure::from(e),
    }
}

/// Says why a program cannot be attached; `object` is the file's name.
pub fn attach_failure(error: AttachError, object: &str) -> Failure {
    match error {
        AttachError::Files(e) => load_failure(e, object),
        AttachError::NoTarget { .. } => {
            Failure { status: ENVIRONMENT, ..Failure::failed(format!("`{object}`: {error}")) }
                .hint("name the functions with `--attach PROGRAM=PATTERN`")
        }
        AttachError::Section { .. } => {
            Failure { status: ENVIRONMENT, ..Failure::failed(format!("`{object}`: {error}")) }.hint(
                "`skep prog run OBJECT PROGRAM` runs it on packets or contexts; `skep run` is for uprobe, fentry and the like",
            )
        }
        e => Failure { status: ENVIRONMENT, ..Failure::failed(format!("`{object}`: {e}")) },
    }
}
