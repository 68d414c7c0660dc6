//! Placeholder written with the workspace; the crate follows in its own commit.
