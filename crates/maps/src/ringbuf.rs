//! Ring
pub(crate) struct Ring;
