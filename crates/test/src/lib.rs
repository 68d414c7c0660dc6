#![doc = include_str!("../README.md")]
#![forbid(unsafe_code)]

mod bpf;
pub mod compare;
pub mod contents;
pub mod elements;
mod given;
mod lcov;
mod map;
mod packet;
mod ran;
#[cfg(feature = "proptest")]
pub mod strategies;
pub mod verdict;

pub use bpf::{Bpf, Options};
pub use given::Given;
pub use map::MapUnderTest;
pub use packet::{Damage, Packet, Protocol};
pub use ran::Ran;
pub use serde_json::{Value as Json, json};
pub use skep;

/// Why a program cannot be tested. What a program does wrong is no error but a failed assertion.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// The object cannot be loaded, has no such program or map, or a program is refused.
    #[error("{source}{}", path_of(source))]
    Skep {
        /// Why.
        source: Box<skep::Error>,
    },
    /// An element cannot be read, or put into a map.
    #[error(transparent)]
    Element(#[from] elements::ElementError),
    /// No map of global variables has a variable of this name.
    #[error("the object has no variable `{name}`; {}", variables(known))]
    Variable {
        /// What was asked for.
        name: String,
        /// The names that are there.
        known: Vec<String>,
    },
}

impl From<skep::Error> for Error {
    fn from(source: skep::Error) -> Self {
        Self::Skep { source: Box::new(source) }
    }
}

impl From<skep::test_run::RunnerError> for Error {
    fn from(error: skep::test_run::RunnerError) -> Self {
        skep::Error::from(error).into()
    }
}

fn variables(known: &[String]) -> String {
    match known {
        [] => "it has none, or was compiled without `-g`".to_owned(),
        known => format!("it has {}", known.join(", ")),
    }
}

/// The shortest path to what is wrong with a program that was refused, one step a line.
fn path_of(error: &skep::Error) -> String {
    match error {
        skep::Error::Load(skep::load::LoadError::Rejected(rejection)) => {
            let mut lines = rejection.shown_path();
            lines.extend(rejection.hint.iter().map(|hint| format!("hint: {hint}")));
            lines.iter().map(|line| format!("\n  {line}")).collect()
        }
        _ => String::new(),
    }
}

/// What opening and running returns.
pub type Result<T = (), E = Error> = std::result::Result<T, E>;
