//! The `skep` command.
fn main() {}
