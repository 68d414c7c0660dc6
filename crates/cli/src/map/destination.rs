//! Where `load` and `copy` put elements: a map of ours, or one of the kernel.

use std::cell::Cell;

use skep::isa::KeyShape;
use skep::maps::dump::batch::update_batch;
use skep::maps::{Map, MapError};

use crate::entries::Entries;
use crate::failure::Failure;
use crate::kernel::KernelMap;

/// Elements that are stored together: signals are looked at between.
const TOGETHER: usize = 4096;

/// Elements in columns, as batches take them.
#[derive(Default, Debug)]
pub struct Elements {
    /// A cell for each key.
    pub keys: Vec<u8>,
    /// Values, those of per-CPU maps with one for each CPU.
    pub values: Vec<u8>,
    /// How many.
    pub count: usize,
}

impl Elements {
    /// Adds a key, whose value is added as well.
    pub fn push_key(&mut self, keys: KeyShape, key: &[u8]) {
        let at = self.keys.len();
        self.keys.resize(at + keys.cell_size(), 0);
        if let Some(cell) = self.keys.get_mut(at..) {
            keys.write_cell(cell, key);
        }
        self.count += 1;
    }

    /// Turns their order around.
    pub fn reverse(&mut self) {
        for column in [&mut self.keys, &mut self.values] {
            let size = column.len().checked_div(self.count).unwrap_or(0);
            if size > 0 {
                *column = column.chunks_exact(size).rev().flatten().copied().collect();
            }
        }
    }
}

/// A map to be filled.
pub struct Destination<'a> {
    to: To<'a>,
    /// What the user calls it.
    name: &'a str,
    entries: &'a Entries<'a>,
    signal: Cell<Option<i32>>,
}

enum To<'a> {
    Ours(&'a Map),
    Kernel(&'a KernelMap),
}

/// What became of elements.
#[derive(Debug)]
pub struct Stored {
    /// How many are in the map.
    pub count: usize,
    /// Why it refused the next one.
    pub failure: Option<Failure>,
}

impl<'a> Destination<'a> {
    /// A map of ours.
    pub fn ours(map: &'a Map, name: &'a str, entries: &'a Entries<'a>) -> Self {
        Self { to: To::Ours(map), name, entries, signal: Cell::new(None) }
    }

    /// A map of the kernel.
    pub fn kernel(map: &'a KernelMap, name: &'a str, entries: &'a Entries<'a>) -> Self {
        Self { to: To::Kernel(map), name, entries, signal: Cell::new(None) }
    }

    /// Stores elements in their order, until the map refuses one or a signal comes.
    pub fn store(
        &self,
        elements: &Elements,
        flags: u64,
        mut signal: impl FnMut() -> Option<i32>,
    ) -> Stored {
        let Elements { keys, values, count: total } = elements;
        let total = *total;
        let each = |column: &[u8]| column.len().checked_div(total).unwrap_or(0);
        let (key_size, value_size) = (each(keys), each(values));
        let mut count = 0;
        while count < total {
            self.signal.set(signal());
            if self.signal.get().is_some() {
                break;
            }
            let end = total.min(count + TOGETHER);
            let part = |column: &'_ [u8], size: usize| {
                column.get(count * size..end * size).unwrap_or_default().to_vec()
            };
            let (mut keys, mut values) = (part(keys, key_size), part(values, value_size));
            let (stored, failure) = match &self.to {
                To::Ours(map) => match update_batch(map, &keys, &values, end - count, flags) {
                    Ok(stored) => (stored, None),
                    Err(e) => {
                        let key = keys.get(e.count * key_size..(e.count + 1) * key_size);
                        (e.count, Some(self.refused(key.unwrap_or_default(), &e.error)))
                    }
                },
                To::Kernel(map) => {
                    let (stored, done) = map.store(&mut keys, &mut values, end - count, flags);
                    let key = keys.get(stored * key_size..(stored + 1) * key_size);
                    (stored, done.err().map(|e| self.kernel_refused(key.unwrap_or_default(), &e)))
                }
            };
            count += stored;
            if failure.is_some() {
                return Stored { count, failure };
            }
        }
        Stored { count, failure: None }
    }

    /// The status of a command that a signal ended.
    pub fn interrupted(&self) -> u8 {
        self.signal.get().map_or(0, |signal| 128_u8.wrapping_add(signal as u8))
    }

    /// Says why an element does not go into the map.
    pub fn unfit(&self, key: &[u8], why: &str) -> Failure {
        let key = self.entries.key(key);
        Failure::failed(format!("cannot store `{key}` in map `{}`: {why}", self.name))
    }

    fn refused(&self, cell: &[u8], error: &MapError) -> Failure {
        match error {
            MapError::Exists => self.exists(cell),
            MapError::NoElement => self.absent(cell),
            error => self.cannot_store(cell).because(error),
        }
    }

    fn kernel_refused(&self, key: &[u8], error: &skep_kernel::Error) -> Failure {
        match error.errno() {
            skep::isa::errno::EEXIST => self.exists(key),
            skep::isa::errno::ENOENT => self.absent(key),
            _ => self.cannot_store(key).because(error),
        }
    }

    fn exists(&self, cell: &[u8]) -> Failure {
        Failure::failed(format!("map `{}` already has a key `{}`", self.name, self.key(cell)))
    }

    fn absent(&self, cell: &[u8]) -> Failure {
        Failure::failed(format!("map `{}` has no key `{}`", self.name, self.key(cell)))
    }

    fn cannot_store(&self, cell: &[u8]) -> Failure {
        Failure::failed(match self.entries.shape().keys.max_len() {
            0 => format!("cannot push to map `{}`", self.name),
            _ => format!("cannot store `{}` in map `{}`", self.key(cell), self.name),
        })
    }

    fn key(&self, cell: &[u8]) -> String {
        let key = self.entries.shape().keys.read_cell(cell).unwrap_or_default();
        self.entries.key(key).to_string()
    }
}

/// Makes values of a source fit a map that has them for another number of CPUs: what is missing is
/// zero, and what is too much must be.
pub fn fit_cpus(value: &[u8], size: usize, out: &mut Vec<u8>) -> Result<(), String> {
    let at = out.len();
    match value.split_at_checked(size) {
        None => out.extend_from_slice(value),
        Some((kept, rest)) if rest.iter().all(|b| *b == 0) => out.extend_from_slice(kept),
        Some(_) => {
            return Err("it has values for more CPUs than that map".to_owned());
        }
    }
    out.resize(at + size, 0);
    Ok(())
}
