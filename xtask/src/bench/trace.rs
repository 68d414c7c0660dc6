//! The bench of `skep trace`: what does it cost the traced program, and what do others?
//!
//! Rivals: uftrace, which writes a record for each event and whose targets are built with `-pg`;
//! the kernel's uprobes where they cost least, at a 5-byte NOP that it replaces by a call, with a
//! program that counts. Both are left out, with an empty rival, on machines that
//! lack them.

use anyhow::Result;
use skep_testkit::TempDir;

use super::place::Place;
use super::row::Row;
use super::{attach, micro, sqlite};

/// All three parts.
pub fn run() -> Result<Vec<Row>> {
    let place = Place { dir: TempDir::new(), objects: TempDir::in_memory() };
    let mut rows = micro::run(&place)?;
    rows.extend(attach::run(&place)?);
    rows.extend(sqlite::run(&place)?);
    Ok(rows)
}
