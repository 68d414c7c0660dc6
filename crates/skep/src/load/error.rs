//! Why an object cannot be loaded.

use skep_maps::MapError;
use skep_object::{LinkError, Mismatch, RawProgramError};
use skep_store::Error;
use skep_verifier::Rejection;

/// Tells why an object could not be loaded.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum LoadError {
    /// The directory or a file in it cannot be used.
    #[error(transparent)]
    Files(#[from] Error),
    /// A map cannot be made.
    #[error("map `{name}` cannot be created: {source}")]
    Map {
        /// The map.
        name: String,
        /// Why.
        source: MapError,
    },
    /// A map that is there already cannot be the one that the object wants.
    #[error("map `{name}` cannot be map {id}: {why}")]
    Reuse {
        /// The map as the object calls it.
        name: String,
        /// The map that is there.
        id: u32,
        /// What is wrong with it.
        why: &'static str,
    },
    /// The object wants the map that is pinned under its name, and that is another one.
    #[error("map `{name}` cannot be map {id}, which is pinned under its name: {why}")]
    Pinned {
        /// The map, and the pin.
        name: String,
        /// The map that is pinned.
        id: u32,
        /// What is wrong with it.
        why: &'static str,
    },
    /// The object wants a map pinned, and that cannot be.
    #[error("cannot pin map `{name}`: {source}")]
    Pin {
        /// The map.
        name: String,
        /// Why.
        source: std::io::Error,
    },
    /// A program's references cannot be resolved.
    #[error(transparent)]
    Link(#[from] LinkError),
    /// A program is not proved safe.
    #[error(transparent)]
    Rejected(Box<Rejection>),
    /// A helper cannot be called outside the kernel.
    #[error("program `{program}` calls helper {helper}, which cannot be called here")]
    Helper {
        /// The program.
        program: String,
        /// Number and name.
        helper: String,
    },
    /// A program does not fit the function that it is going to be attached to.
    #[error("program `{program}` does not fit `{function}`: func '{function}' {why}")]
    Misfit {
        /// The program.
        program: String,
        /// The function.
        function: String,
        /// Why.
        why: Box<Mismatch>,
    },
    /// A program that comes as instructions refers to what is not there.
    #[error("program `{program}`: {source}")]
    Instructions {
        /// The program.
        program: String,
        /// What is wrong.
        source: RawProgramError,
    },
    /// A program that comes as instructions cannot have this map.
    #[error("program `{program}` cannot use map `{map}`: {why}")]
    MapHandle {
        /// The program.
        program: String,
        /// The map.
        map: String,
        /// Why not.
        why: &'static str,
    },
    /// The object holds nothing to load.
    #[error("the object has no programs")]
    NoPrograms,
    /// The object has no such program.
    #[error("the object has no program `{program}`")]
    NoProgram {
        /// What was asked for.
        program: String,
    },
}

impl From<skep_store::dir::DirError> for LoadError {
    fn from(e: skep_store::dir::DirError) -> Self {
        Self::Files(e.into())
    }
}
