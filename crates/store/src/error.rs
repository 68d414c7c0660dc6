//! What can go wrong between an object and a running program.

/// Any failure of this library's own operations.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// The skep directory cannot be used.
    #[error(transparent)]
    Dir(#[from] crate::dir::DirError),
    /// A program or link file cannot be used.
    #[error(transparent)]
    Record(#[from] crate::record::RecordError),
    /// A map that skep keeps its own numbers in cannot be made.
    #[error("the map `{name}` cannot be created: {source}")]
    OwnMap {
        /// Its name.
        name: String,
        /// Why.
        source: skep_maps::MapError,
    },
}
