//! The last calls before something happened: `--last`, `--on`.

use std::collections::VecDeque;

use skep::link::{FunctionRecord, LinkState, Pattern, Selection};
use skep::prototypes::{Catalog, Listed};

use super::record::Record;
use crate::args::{TraceArgs, Trigger};
use crate::failure::{Failure, Result};
use crate::sites::module_path;
use crate::unmatched;

/// Records that are kept at most.
const MOST: usize = 1 << 20;

/// The functions that `--on` names.
#[derive(Default)]
pub struct Triggers {
    patterns: Vec<Pattern>,
    /// Those that they mean by other names than reports show: files and addresses.
    aliases: Vec<(String, u64)>,
}

impl Triggers {
    /// Finds them. Fails when a pattern matches none of the functions that are traced, which
    /// `patterns` and `exclude` mean.
    pub fn find(
        args: &TraceArgs,
        patterns: &[String],
        exclude: &[String],
        catalog: &Catalog,
    ) -> Result<Self> {
        let mut out = Self::default();
        let traced = Selection::of(patterns, exclude)?;
        for trigger in &args.on {
            let Trigger::Function(list) = trigger else { continue };
            for text in unmatched::patterns(std::slice::from_ref(list))? {
                let pattern = text.parse()?;
                let named = catalog.list(&[text], &[])?;
                let place = |f: &Listed| {
                    let path = catalog.path(f.module)?.to_string_lossy();
                    let traced = traced.module(&path, f.module == 0, false)?;
                    traced.function(&f.name, f.aliases.iter().map(String::as_str))?;
                    let is_shown = means(&pattern, &f.name, &path);
                    Some((path.into_owned(), f.vaddr, is_shown))
                };
                let mut places = named.iter().filter_map(place).peekable();
                if places.peek().is_none() && !args.allow_unmatched && catalog.path(0).is_some() {
                    return Err(not_traced(&pattern, &named));
                }
                out.aliases.extend(
                    places
                        .filter(|(_, _, is_shown)| !is_shown)
                        .map(|(path, vaddr, _)| (path, vaddr)),
                );
                out.patterns.push(pattern);
            }
        }
        Ok(out)
    }

    fn mean(&self, f: &FunctionRecord, path: &str) -> bool {
        self.patterns.iter().any(|p| means(p, &f.name, path))
            || self.aliases.iter().any(|(file, vaddr)| *vaddr == f.vaddr && file == path)
    }
}

/// Tells whether a function is meant by the name that is shown.
fn means(pattern: &Pattern, name: &str, path: &str) -> bool {
    let demangled = skep_proc::demangle::demangle(name);
    let plain = skep_proc::demangle::bare(&demangled);
    pattern.matches_module(path)
        && [name, &demangled, plain].iter().any(|name| pattern.matches_function(name))
}

/// `named`: the functions that the pattern matches.
fn not_traced(pattern: &Pattern, named: &[Listed]) -> Failure {
    let failure = Failure::environment(format!(
        "--on: `{pattern}` matches none of the functions that are traced"
    ));
    failure.hint(match named.first() {
        Some(f) => format!(
            "`{}` is there, but is not traced: name it among the functions to trace, too",
            skep_proc::demangle::demangle(&f.name)
        ),
        None => "use `--allow-unmatched` if it is of a library or a program that is opened or executed later".to_owned(),
    })
}

/// The calls that ended not long ago.
pub struct History {
    /// In ticks.
    window: u64,
    triggers: Triggers,
    /// Which functions are such, by their numbers.
    meant: Vec<Option<bool>>,
    /// In ticks.
    longer: Option<u64>,
    /// Nothing triggers but the end.
    at_end: bool,
    /// When each call ended, and its record.
    calls: VecDeque<(u64, Vec<u8>)>,
    newest: u64,
}

impl History {
    /// What is asked for; `None`: all calls are printed. `ticks` is what a nanosecond has.
    pub fn new(args: &TraceArgs, triggers: Triggers, ticks: f64) -> Option<Self> {
        let ticks = |time: std::time::Duration| (time.as_nanos() as f64 * ticks) as u64;
        let longer = args.on.iter().filter_map(|trigger| match trigger {
            Trigger::Longer(time) => Some(ticks(*time)),
            Trigger::Function(_) => None,
        });
        Some(Self {
            window: ticks(args.last?),
            triggers,
            meant: Vec::new(),
            longer: longer.min(),
            at_end: args.on.is_empty(),
            calls: VecDeque::new(),
            newest: 0,
        })
    }

    /// Takes a call; returns whether those that are kept are to be printed now.
    pub fn take(&mut self, record: &Record<'_>, bytes: &[u8], state: &LinkState) -> bool {
        self.keep(record, bytes);
        let longer = self.longer.is_some_and(|l| record.took.is_some_and(|took| took > l));
        longer || self.is_meant(record.function as usize, state)
    }

    /// Keeps a call that ended not long ago. One that was left may come late.
    pub fn keep(&mut self, record: &Record<'_>, bytes: &[u8]) {
        let end = record.start.saturating_add(record.took.unwrap_or(0));
        self.newest = self.newest.max(end);
        if end >= self.newest.saturating_sub(self.window) {
            self.calls.push_back((end, bytes.to_vec()));
        }
        self.forget();
    }

    fn is_meant(&mut self, at: usize, state: &LinkState) -> bool {
        let Some(f) = state.functions.get(at) else { return false };
        self.meant.resize(self.meant.len().max(at + 1), None);
        let Some(known) = self.meant.get_mut(at) else { return false };
        *known.get_or_insert_with(|| self.triggers.mean(f, module_path(state, f.module)))
    }

    /// Calls come nearly in the order in which they ended.
    fn forget(&mut self) {
        let since = self.newest.saturating_sub(self.window);
        while self.calls.front().is_some_and(|(end, _)| *end < since) || self.calls.len() > MOST {
            self.calls.pop_front();
        }
    }

    /// The calls that are kept, which are forgotten.
    pub fn drain(&mut self) -> Vec<Vec<u8>> {
        let since = self.newest.saturating_sub(self.window);
        self.calls.drain(..).filter(|(end, _)| *end >= since).map(|(_, bytes)| bytes).collect()
    }

    /// The trace has ended: the calls that are to be printed then. What counts is the last of them: a
    /// program that hung did so after it.
    pub fn end(&mut self) -> Option<Vec<Vec<u8>>> {
        self.at_end.then(|| self.drain())
    }
}
