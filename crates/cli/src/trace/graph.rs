//! `skep trace --graph`: each function with those that called it and those it called.

use std::io::{self, Write};

use super::tree::{Sum, Tree, heading};
use crate::report::{NOT_TRACED, cut};
use crate::units;

/// Writes a block for each of the `limit` functions that took longest, and at least `min` ns: its
/// callers, itself, and what it called. Returns how many of those that took so long are not shown.
pub fn write(
    tree: &Tree<'_>,
    out: &mut dyn Write,
    limit: usize,
    min: u64,
    width: Option<usize>,
) -> io::Result<usize> {
    let (functions, pairs) = tree.sums();
    let names = tree.names();
    let mut all: Vec<(usize, Sum)> =
        functions.into_iter().filter(|(_, s)| s.calls > 0 && s.total_ns >= min).collect();
    all.sort_by_cached_key(|(_, sum)| std::cmp::Reverse(sum.total_ns));
    let hidden = all.split_off(all.len().min(limit)).len();
    // By callee as they are found by caller.
    let mut callers: Vec<Vec<(Option<usize>, Sum)>> = vec![Vec::new(); names.len()];
    let mut callees: Vec<Vec<(Option<usize>, Sum)>> = vec![Vec::new(); names.len()];
    for ((from, to), sum) in pairs {
        if let Some(list) = callers.get_mut(to) {
            list.push((from, sum));
        }
        if let Some(list) = from.and_then(|from| callees.get_mut(from)) {
            list.push((Some(to), sum));
        }
    }
    for list in callers.iter_mut().chain(&mut callees) {
        list.sort_by_cached_key(|(_, sum)| std::cmp::Reverse((sum.total_ns, sum.calls)));
    }
    let room = width.map(|w| w.saturating_sub(32).max(16));
    let name = |function: Option<usize>| match function {
        Some(function) => names.get(function).map_or("", String::as_str),
        None => NOT_TRACED,
    };
    let line = |out: &mut dyn Write, sum: &Sum, own: bool, text: String| {
        let plus = if sum.running > 0 { "+" } else { "" };
        let time = |ns| format!("{}{plus}", units::time(ns));
        let self_time = if own { time(sum.self_ns) } else { String::new() };
        let (total, text) = (time(sum.total_ns), cut(&text, room));
        writeln!(out, "{:>10}{total:>10}{self_time:>10}  {text}", sum.calls)
    };
    heading(out, "<- caller, function, -> callee")?;
    for (i, (function, sum)) in all.iter().enumerate() {
        if i > 0 {
            writeln!(out)?;
        }
        for (from, sum) in callers.get(*function).into_iter().flatten() {
            line(out, sum, false, format!("  <- {}", name(*from)))?;
        }
        line(out, sum, true, name(Some(*function)).to_owned())?;
        for (to, sum) in callees.get(*function).into_iter().flatten() {
            line(out, sum, false, format!("  -> {}", name(*to)))?;
        }
    }
    Ok(hidden)
}
