//! Where `load` and `copy` put elements: a map of ours, or one of the kernel.

use std::cell::Cell;

use skep::isa::KeyShape;
use skep::maps::dump::batch::update_batch;
use skep::maps::{Map, MapError};
use skep_text::elements::Elements;
use skep_text::entries::Entries;

use crate::failure::Failure;
use crate::kernel::KernelMap;

/// Elements that are stored together: signals are looked at between.
const TOGETHER: usize = 4096;

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
        let total = elements.count;
        let key_size = elements.shape.max_len();
        let value_size = elements.values.len().checked_div(total).unwrap_or(0);
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
            let mut values = part(&elements.values, value_size);
            let (stored, failure) = match (&self.to, elements.shape) {
                (To::Ours(map), KeyShape::Bytes { .. }) => {
                    // A batch takes keys in cells, each as large as the longest key.
                    let each = values.chunks_exact(value_size.max(1)).zip(count..end);
                    let store = |(value, i)| map.update(elements.key(i), value, flags);
                    let mut done = each.map(store).enumerate();
                    match done.find(|(_, done)| done.is_err()) {
                        Some((stored, Err(e))) => {
                            (stored, Some(self.refused(elements.key(count + stored), &e)))
                        }
                        _ => (end - count, None),
                    }
                }
                (To::Ours(map), KeyShape::Fixed(_)) => {
                    let keys = part(&elements.keys, key_size);
                    match update_batch(map, &keys, &values, end - count, flags) {
                        Ok(stored) => (stored, None),
                        Err(e) => {
                            (e.count, Some(self.refused(elements.key(count + e.count), &e.error)))
                        }
                    }
                }
                (To::Kernel(map), _) => {
                    let mut keys = part(&elements.keys, key_size);
                    let (stored, done) = map.store(&mut keys, &mut values, end - count, flags);
                    let failed = |e| self.kernel_refused(elements.key(count + stored), &e);
                    (stored, done.err().map(failed))
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

    fn refused(&self, key: &[u8], error: &MapError) -> Failure {
        match error {
            MapError::Exists => self.exists(key),
            MapError::NoElement => self.absent(key),
            error => self.cannot_store(key).because(error),
        }
    }

    fn kernel_refused(&self, key: &[u8], error: &skep_kernel::Error) -> Failure {
        match error.errno() {
            skep::isa::errno::EEXIST => self.exists(key),
            skep::isa::errno::ENOENT => self.absent(key),
            _ => self.cannot_store(key).because(error),
        }
    }

    fn exists(&self, key: &[u8]) -> Failure {
        Failure::failed(format!("map `{}` already has a key `{}`", self.name, self.key(key)))
    }

    fn absent(&self, key: &[u8]) -> Failure {
        Failure::failed(format!("map `{}` has no key `{}`", self.name, self.key(key)))
    }

    fn cannot_store(&self, key: &[u8]) -> Failure {
        Failure::failed(match self.entries.shape().keys.max_len() {
            0 => format!("cannot push to map `{}`", self.name),
            _ => format!("cannot store `{}` in map `{}`", self.key(key), self.name),
        })
    }

    fn key(&self, key: &[u8]) -> String {
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
