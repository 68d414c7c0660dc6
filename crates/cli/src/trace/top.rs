//! `skep trace --top`: the table of what runs, drawn anew each second, sorted and filtered by keys.

use std::collections::{HashMap, VecDeque};
use std::hash::{BuildHasher, BuildHasherDefault, DefaultHasher};
use std::io;
use std::os::fd::{AsFd, BorrowedFd};
use std::time::Instant;

use super::objects::Trace;
use super::report::{Counted, Ended, rows_of};
use crate::args::{ShownArgs, SortBy};
use crate::failure::Result;
use crate::held::Held;
use crate::printer::Printer;
use crate::report::{self, Figures, Row, Wall};
use crate::sites::Sites;
use crate::terminal::Terminal;
use crate::units;
use crate::watch::{LOOK, Watch};

const KEYS: &str =
    "c calls  t total  s self  5 p50  9 p99  n name  / filter  r per second  space pause  q end";
/// The keys that end what is typed.
const ENTER: [u8; 2] = [b'\r', b'\n'];
const ESCAPE: u8 = 0x1b;
const ERASE: [u8; 2] = [0x7f, 0x08];

/// What a row had: calls, total and self time.
type Had = HashMap<u64, [u64; 3]>;

/// The table on the screen; dropped, the terminal is as it was.
pub struct Top<'a> {
    terminal: Terminal,
    trace: &'a Trace,
    args: &'a ShownArgs,
    pids: Vec<u32>,
    since: Instant,
    view: View,
    /// What was there at former looks, the last one at least a second ago if there is one.
    before: VecDeque<(Instant, Had)>,
    /// What ended it.
    failure: Option<String>,
}

/// What keys change.
#[derive(PartialEq, Eq, Debug)]
struct View {
    sort: SortBy,
    filter: String,
    /// A filter is being typed.
    typing: bool,
    /// What was added since a second ago, and not since the beginning.
    is_rate: bool,
    is_paused: bool,
}

/// What a key asks for.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Asked {
    Nothing,
    Draw,
    End,
}

impl View {
    fn new(sort: SortBy) -> Self {
        Self { sort, filter: String::new(), typing: false, is_rate: false, is_paused: false }
    }

    fn key(&mut self, key: u8) -> Asked {
        if self.typing {
            match key {
                key if ENTER.contains(&key) => self.typing = false,
                ESCAPE => (self.typing, self.filter) = (false, String::new()),
                key if ERASE.contains(&key) => drop(self.filter.pop()),
                b' '..=b'~' => self.filter.push(char::from(key)),
                _ => return Asked::Nothing,
            }
            return Asked::Draw;
        }
        match key {
            b'q' | b'Q' => return Asked::End,
            b'c' => self.sort = SortBy::Calls,
            b't' => self.sort = SortBy::Total,
            b's' => self.sort = SortBy::SelfTime,
            b'5' => self.sort = SortBy::P50,
            b'9' => self.sort = SortBy::P99,
            b'n' => self.sort = SortBy::Name,
            b'r' => self.is_rate = !self.is_rate,
            b' ' => self.is_paused = !self.is_paused,
            b'/' => self.typing = true,
            ESCAPE => self.filter.clear(),
            _ => return Asked::Nothing,
        }
        Asked::Draw
    }

    /// Tells whether a row is shown.
    fn has(&self, row: &Row<'_>) -> bool {
        let wanted = self.filter.to_lowercase();
        let texts = [Some(&*row.name), Some(row.path)];
        let part = row.part.as_ref().map(|part| part.text(None));
        let mut texts = texts.into_iter().flatten().chain(part.as_deref());
        texts.any(|text| text.to_lowercase().contains(&wanted))
    }

    /// The line above the table.
    fn head(&self, what: &str, rows: usize) -> String {
        let sort = match self.sort {
            SortBy::Calls => "calls",
            SortBy::Total => "total",
            SortBy::SelfTime => "self",
            SortBy::P50 => "p50",
            SortBy::P99 => "p99",
            SortBy::Name => "name",
        };
        let rate = if self.is_rate { ", per second" } else { "" };
        let paused = if self.is_paused { ", paused" } else { "" };
        let filter = match (self.typing, self.filter.as_str()) {
            (true, filter) => format!("  /{filter}_"),
            (false, "") => String::new(),
            (false, filter) => format!("  /{filter}"),
        };
        format!("{what}: {}, by {sort}{rate}{paused}{filter}", units::count(rows as u64, "row"))
    }
}

impl<'a> Top<'a> {
    /// Prepares to show what a trace counts.
    pub fn new(terminal: Terminal, trace: &'a Trace, args: &'a ShownArgs, pids: Vec<u32>) -> Self {
        Self {
            terminal,
            trace,
            args,
            pids,
            since: Instant::now(),
            view: View::new(args.sort),
            before: VecDeque::new(),
            failure: None,
        }
    }

    fn draw(&mut self) -> Result {
        let state = self.trace.link.read()?;
        let sites = Sites::new(&state);
        let ended = Ended {
            command: None,
            pids: self.pids.clone(),
            status: None,
            wall: Wall::default(),
            end: self.trace.link.counter(),
            pid: None,
            let_go: Vec::new(),
        };
        let sums = self.trace.sums(&state, &sites, ended)?;
        let missed = sums.missed.total();
        let mut rows = match &sums.counted {
            Counted::Functions(rows) => rows.clone(),
            Counted::Paths(tree) => rows_of(tree, self.args),
        };
        report::carry(&mut rows);
        let now = Instant::now();
        let had = rows.iter().map(|row| (id(row), amounts(&row.stat))).collect();
        if self.view.is_rate {
            self.subtract(&mut rows, now);
        }
        if self.before.back().is_none_or(|(at, _)| now - *at >= LOOK) {
            self.before.push_back((now, had));
        }
        while self.before.get(1).is_some_and(|(at, _)| now - *at >= LOOK) {
            self.before.pop_front();
        }
        rows.retain(|row| row.stat.total_ns >= self.args.min_ns() && self.view.has(row));
        let (height, width) = self.terminal.size();
        let most = self.args.limit.filter(|n| *n > 0).unwrap_or(usize::MAX);
        // A line about the trace, one about keys, and the table's titles.
        let most = rows.len().min(most).min(height.saturating_sub(3));
        let shown = report::sorted(&rows, self.view.sort, most);
        let mut table = Vec::new();
        report::table(&mut table, &shown, Some(width))
            .map_err(|e| crate::failure::Failure::environment(e.to_string()))?;
        let seconds = self.since.elapsed().as_secs();
        let what = match missed {
            0 => format!("{seconds} s"),
            missed => format!("{seconds} s, {missed} calls missed"),
        };
        let mut lines = vec![self.view.head(&what, rows.len()), KEYS.to_owned()];
        lines.extend(String::from_utf8_lossy(&table).lines().map(str::to_owned));
        self.terminal.draw(&lines).map_err(gone)
    }

    /// Leaves what was added since a second ago, for a second. Percentiles are those of all calls.
    fn subtract(&self, rows: &mut Vec<Row<'_>>, now: Instant) {
        let Some((at, before)) = self.before.front() else { return };
        let seconds = (now - *at).as_secs_f64().max(1e-3);
        for row in rows.iter_mut() {
            let old = before.get(&id(row)).copied().unwrap_or_default();
            let rate =
                |new: u64, old: u64| (new.saturating_sub(old) as f64 / seconds).round() as u64;
            let stat = &mut row.stat;
            stat.calls = rate(stat.calls, old[0]);
            stat.total_ns = rate(stat.total_ns, old[1]);
            stat.self_ns = rate(stat.self_ns, old[2]);
        }
        rows.retain(|row| row.stat.calls > 0 || row.stat.running > 0);
    }
}

/// Gives the terminal back, prints what the command has printed meanwhile, and says what went wrong.
pub fn end(top: Option<Top<'_>>, held: Option<Held>, printer: Printer) {
    let failure = top.and_then(|Top { failure, .. }| failure);
    match held.map_or(Ok(0), Held::print) {
        Ok(0) => {}
        Ok(missing) => printer.note(&format!(
            "{} that the command printed before are left out; `> FILE` keeps all",
            units::size(missing)
        )),
        Err(e) => printer.warning(&format!("cannot print the command's output: {e}")),
    }
    if let Some(failure) = failure {
        printer.warning(&failure);
    }
}

/// Leaves keys out that send several bytes, such as the arrows: they are no orders.
fn plain(keys: &[u8]) -> Vec<u8> {
    let mut plain = Vec::new();
    let mut keys = keys.iter().copied().peekable();
    while let Some(key) = keys.next() {
        if key == ESCAPE && keys.next_if(|next| matches!(next, b'[' | b'O')).is_some() {
            while keys.next().is_some_and(|next| !(b'@'..=b'~').contains(&next)) {}
        } else {
            plain.push(key);
        }
    }
    plain
}

fn gone(e: io::Error) -> crate::failure::Failure {
    crate::failure::Failure::environment(format!("cannot write to the terminal: {e}"))
}

fn id(row: &Row<'_>) -> u64 {
    BuildHasherDefault::<DefaultHasher>::new().hash_one((row.symbol, row.path, &row.part))
}

fn amounts(stat: &Figures) -> [u64; 3] {
    [stat.calls, stat.total_ns, stat.self_ns]
}

impl Watch for Top<'_> {
    fn fd(&self) -> BorrowedFd<'_> {
        self.terminal.as_fd()
    }

    fn look(&mut self) -> bool {
        let done = self.terminal.keys().map_err(gone).and_then(|keys| {
            let mut asked = Asked::Nothing;
            for key in plain(&keys) {
                match self.view.key(key) {
                    Asked::End => return Ok(true),
                    Asked::Draw => asked = Asked::Draw,
                    Asked::Nothing => {}
                }
            }
            if !self.view.is_paused || asked == Asked::Draw {
                self.draw()?;
            }
            Ok(false)
        });
        done.unwrap_or_else(|failure| {
            self.failure = Some(failure.message);
            true
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keys_sort_filter_and_end() {
        let mut view = View::new(SortBy::SelfTime);
        let type_all = |view: &mut View, keys: &str| {
            keys.bytes().map(|key| view.key(key)).fold(None, |_, asked| Some(asked))
        };
        assert_eq!(type_all(&mut view, "c"), Some(Asked::Draw));
        assert_eq!(view.head("3 s", 1), "3 s: 1 row, by calls");
        // What is typed into a filter are no orders.
        assert_eq!(type_all(&mut view, "/qxq\x7f"), Some(Asked::Draw));
        assert_eq!(view.head("3 s", 2), "3 s: 2 rows, by calls  /qx_");
        type_all(&mut view, "\rr 9");
        assert_eq!(view.head("3 s", 2), "3 s: 2 rows, by p99, per second, paused  /qx");
        let row = |name: &'static str, path| Row {
            name: name.into(),
            symbol: name,
            path,
            entry_only: None,
            stat: Figures {
                calls: 1,
                total_ns: 0,
                self_ns: 0,
                error_ns: None,
                self_error_ns: None,
                running: 0,
                p50_ns: None,
                p99_ns: None,
            },
            part: None,
        };
        assert!(view.has(&row("doQX", "/lib/a")) && view.has(&row("x", "/lib/qx.so")));
        assert!(!view.has(&row("x", "/lib/a")));
        assert_eq!(type_all(&mut view, "\x1b"), Some(Asked::Draw));
        assert!(view.filter.is_empty() && view.has(&row("x", "/lib/a")));
        assert_eq!(plain(b"a\x1b[5~b\x1b[Ac\x1bOPd\x1b"), b"abcd\x1b");
        assert_eq!(type_all(&mut view, "y"), Some(Asked::Nothing));
        assert_eq!(type_all(&mut view, "q"), Some(Asked::End));
    }
}
