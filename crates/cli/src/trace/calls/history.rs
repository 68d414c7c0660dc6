//! The last calls before something happened: `--last`, `--on`.

use std::collections::VecDeque;

use skep::link::{LinkState, Pattern};

use super::record::Record;
use crate::args::{TraceArgs, Trigger};
use crate::failure::{Failure, Result};
use crate::sites::module_path;
use crate::unmatched;

/// Records that are kept at most.
const MOST: usize = 1 << 20;

/// The calls that ended not long ago.
pub struct History {
    /// In ticks.
    window: u64,
    functions: Vec<Pattern>,
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
    pub fn new(args: &TraceArgs, ticks: f64) -> Result<Option<Self>> {
        let Some(last) = args.last else { return Ok(None) };
        let ticks = |time: std::time::Duration| (time.as_nanos() as f64 * ticks) as u64;
        let mut functions = Vec::new();
        let mut longer = None;
        for trigger in &args.on {
            match trigger {
                Trigger::Longer(time) => {
                    let time = ticks(*time);
                    longer = Some(longer.map_or(time, |l: u64| l.min(time)));
                }
                Trigger::Function(patterns) => {
                    for pattern in unmatched::patterns(std::slice::from_ref(patterns))? {
                        let pattern = pattern
                            .parse()
                            .map_err(|e| Failure::environment(format!("--on: `{pattern}`: {e}")))?;
                        functions.push(pattern);
                    }
                }
            }
        }
        Ok(Some(Self {
            window: ticks(last),
            functions,
            longer,
            at_end: args.on.is_empty(),
            calls: VecDeque::new(),
            newest: 0,
        }))
    }

    /// Takes a call; returns whether those that are kept are to be printed now.
    pub fn take(&mut self, record: &Record<'_>, bytes: &[u8], state: &LinkState) -> bool {
        let end = record.start.saturating_add(record.took.unwrap_or(0));
        self.newest = self.newest.max(end);
        self.calls.push_back((end, bytes.to_vec()));
        self.forget();
        let longer = self.longer.is_some_and(|l| record.took.is_some_and(|took| took > l));
        longer || self.is_meant(record, state)
    }

    fn is_meant(&self, record: &Record<'_>, state: &LinkState) -> bool {
        let Some(f) = state.functions.get(record.function as usize) else { return false };
        let demangled = skep_proc::demangle::demangle(&f.name);
        let plain = skep_proc::demangle::bare(&demangled);
        self.functions.iter().any(|p| {
            p.matches_module(module_path(state, f.module))
                && [f.name.as_str(), &demangled, plain].iter().any(|n| p.matches_function(n))
        })
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
        self.calls.drain(..).map(|(_, bytes)| bytes).collect()
    }

    /// The trace has ended: the calls that are to be printed then. What counts is the last of them: a
    /// program that hung did so after it.
    pub fn end(&mut self) -> Option<Vec<Vec<u8>>> {
        self.at_end.then(|| self.drain())
    }
}
