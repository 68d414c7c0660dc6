//! The names of a module's functions: all of them in one text, as there may be a million.

use std::fmt::{self, Write};
use std::str;

/// The names of all functions.
#[derive(Debug, Default)]
pub(super) struct NameTable(String);

/// Where the names of one function are in the table of its module: the best one, and behind it the
/// others. None without a table.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Names {
    start: u32,
    best_end: u32,
    end: u32,
}

/// No symbol has it in its name.
const BETWEEN: char = '\0';

impl NameTable {
    /// About so many bytes of names are going to be added.
    pub(super) fn with_capacity(bytes: usize) -> Self {
        Self(String::with_capacity(bytes))
    }

    /// Adds a function with its names, the best one first.
    pub(super) fn add<'n>(&mut self, names: impl IntoIterator<Item = &'n [u8]>) -> Names {
        let start = self.0.len();
        let mut best_end = None;
        for name in names {
            if best_end.is_some() {
                self.0.push(BETWEEN);
            }
            match str::from_utf8(name) {
                Ok(name) => self.0.push_str(name),
                Err(_) => self.0.push_str(&String::from_utf8_lossy(name)),
            }
            best_end = best_end.or(Some(self.0.len()));
        }
        self.since(start, best_end.unwrap_or(start))
    }

    /// Adds a function with one name.
    pub(super) fn add_formatted(&mut self, name: fmt::Arguments<'_>) -> Names {
        let start = self.0.len();
        // A text takes all that is written to it.
        let _ = self.0.write_fmt(name);
        self.since(start, self.0.len())
    }

    fn since(&self, start: usize, best_end: usize) -> Names {
        // Behind 4 GiB of names there are none.
        let at = |place| u32::try_from(place).unwrap_or(u32::MAX);
        Names { start: at(start), best_end: at(best_end), end: at(self.0.len()) }
    }

    /// The best name.
    pub(super) fn best(&self, names: Names) -> &str {
        self.0.get(names.start as usize..names.best_end as usize).unwrap_or_default()
    }

    /// The other names.
    pub(super) fn aliases(&self, names: Names) -> impl Iterator<Item = &str> + Clone {
        aliases(self.others(names))
    }

    /// The other names, each behind what is between them.
    pub(super) fn others(&self, names: Names) -> &str {
        self.0.get(names.best_end as usize..names.end as usize).unwrap_or_default()
    }
}

/// Each of the [other names](NameTable::others).
pub(super) fn aliases(others: &str) -> impl Iterator<Item = &str> + Clone {
    others.split(BETWEEN).skip(1)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_function_has_its_own_names() {
        let functions: [&[&[u8]]; 6] = [
            &[b"read", b"__read", b"_libc_read"],
            &[b"f"],
            &[],
            &[b"", b"g", b""],
            &[b"\xffx"],
            &[b"write"],
        ];
        let mut table = NameTable::default();
        let names: Vec<Names> = functions.iter().map(|f| table.add(f.iter().copied())).collect();
        let formatted = table.add_formatted(format_args!("sub_{:x}", 0x1234));
        for (expected, names) in functions.iter().zip(&names) {
            let text: Vec<_> = expected.iter().map(|name| String::from_utf8_lossy(name)).collect();
            assert_eq!(table.best(*names), text.first().map_or("", |name| name));
            assert!(table.aliases(*names).eq(text.iter().skip(1)), "{text:?}");
        }
        assert_eq!((table.best(formatted), table.aliases(formatted).count()), ("sub_1234", 0));
        let none = NameTable::default();
        assert_eq!((none.best(formatted), none.aliases(formatted).count()), ("", 0));
    }
}
