//! The structures in a recording, part by part.

use serde_json::Value as Json;
use skep::link::{AgentRecord, FunctionRecord, LinkTarget, Untraced};

use super::{Done, Event, Summary, Unreadable};
use crate::trace::tree::{Node, Thread};

/// Goes through the parts of a structure: writes them, or reads them in their place.
pub(super) trait Pass {
    fn number(&mut self, n: &mut u64) -> Done;
    fn text(&mut self, text: &mut String) -> Done;
    /// Elements that there can be in the rest; each takes a byte at least.
    fn most(&self) -> usize;
}

pub(super) fn small(pass: &mut dyn Pass, n: &mut u32) -> Done {
    let mut wide = u64::from(*n);
    pass.number(&mut wide)?;
    *n = u32::try_from(wide).map_err(|_| Unreadable::Damaged)?;
    Ok(())
}

fn list<T>(
    pass: &mut dyn Pass,
    list: &mut Vec<T>,
    blank: fn() -> T,
    each: &mut dyn FnMut(&mut dyn Pass, &mut T) -> Done,
) -> Done {
    let mut len = list.len() as u64;
    pass.number(&mut len)?;
    let len = usize::try_from(len).map_err(|_| Unreadable::Damaged)?;
    if len > list.len() {
        if len > pass.most() {
            return Err(Unreadable::Damaged);
        }
        list.resize_with(len, blank);
    }
    list.iter_mut().try_for_each(|element| each(pass, element))
}

fn option<T>(
    pass: &mut dyn Pass,
    value: &mut Option<T>,
    blank: fn() -> T,
    part: &mut dyn FnMut(&mut dyn Pass, &mut T) -> Done,
) -> Done {
    let mut there = u64::from(value.is_some());
    pass.number(&mut there)?;
    if there == 0 {
        return Ok(());
    }
    part(pass, value.get_or_insert_with(blank))
}

fn texts(pass: &mut dyn Pass, all: &mut Vec<String>) -> Done {
    list(pass, all, String::new, &mut |pass, text| pass.text(text))
}

fn reason(pass: &mut dyn Pass, reason: &mut Option<String>) -> Done {
    option(pass, reason, String::new, &mut |pass, text| pass.text(text))
}

fn float(pass: &mut dyn Pass, value: &mut f64) -> Done {
    let mut bits = value.to_bits();
    pass.number(&mut bits)?;
    *value = f64::from_bits(bits);
    Ok(())
}

pub(super) fn summary(pass: &mut dyn Pass, s: &mut Summary) -> Done {
    option(pass, &mut s.command, Vec::new, &mut texts)?;
    list(pass, &mut s.pids, || 0, &mut small)?;
    option(pass, &mut s.status, || 0, &mut |pass, status| {
        let mut bits = status.cast_unsigned();
        small(pass, &mut bits)?;
        *status = bits.cast_signed();
        Ok(())
    })?;
    let m = &mut s.missed;
    let counts =
        [&mut s.wall.ns, &mut s.wall.ended_unix_ns, &mut s.lost, &mut s.lost_pages, &mut s.dropped];
    let missed = [&mut m.inside, &mut m.stack, &mut m.thread, &mut m.slots, &mut m.namespace];
    counts.into_iter().chain(missed).try_for_each(|n| pass.number(n))?;
    float(pass, &mut s.overhead_ns)?;
    option(pass, &mut s.caller_overhead_ns, || 0.0, &mut float)?;
    let state = &mut s.state;
    let mut patterns: Vec<String> = state.spec.include.iter().map(|t| t.pattern.clone()).collect();
    texts(pass, &mut patterns)?;
    state.spec.include = LinkTarget::all(patterns.iter().map(String::as_str));
    texts(pass, &mut state.modules)?;
    let modules = state.modules.len();
    list(pass, &mut state.functions, blank_function, &mut |pass, f| {
        small(pass, &mut f.module)?;
        if f.module as usize >= modules {
            return Err(Unreadable::Damaged);
        }
        pass.text(&mut f.name)?;
        pass.number(&mut f.vaddr)?;
        pass.number(&mut f.size)?;
        reason(pass, &mut f.skipped)?;
        reason(pass, &mut f.entry_only)
    })?;
    list(pass, &mut state.agents, blank_agent, &mut |pass, a| {
        small(pass, &mut a.pid)?;
        pass.text(&mut a.exe)?;
        pass.number(&mut a.start_ns)?;
        pass.number(&mut a.attach_ns)?;
        small(pass, &mut a.attached)?;
        reason(pass, &mut a.error)
    })?;
    list(pass, &mut state.untraced, blank_untraced, &mut |pass, u| {
        pass.text(&mut u.path)?;
        pass.text(&mut u.reason)
    })?;
    let functions = s.state.functions.len();
    option(pass, &mut s.paths, Default::default, &mut |pass, (nodes, threads)| {
        list(pass, threads, Thread::default, &mut |pass, t| {
            small(pass, &mut t.pid)?;
            small(pass, &mut t.tid)?;
            pass.text(&mut t.name)
        })?;
        let (threads, mut at) = (threads.len(), 0);
        list(pass, nodes, Node::default, &mut |pass, node| {
            // How far back its caller is.
            let mut back = node.caller.map_or(0, |caller| at - caller);
            place(pass, &mut back, at + 1)?;
            node.caller = (back > 0).then(|| at - back);
            at += 1;
            place(pass, &mut node.function, functions)?;
            let mut thread = node.thread.map_or(0, |t| t + 1);
            place(pass, &mut thread, threads + 1)?;
            node.thread = thread.checked_sub(1);
            let numbers =
                [&mut node.calls, &mut node.running, &mut node.self_ns, &mut node.longest_ns];
            numbers.into_iter().try_for_each(|n| pass.number(n))
        })
    })
}

fn blank_function() -> FunctionRecord {
    FunctionRecord {
        module: 0,
        name: String::new(),
        vaddr: 0,
        size: 0,
        skipped: None,
        entry_only: None,
    }
}

pub(super) fn blank_agent() -> AgentRecord {
    AgentRecord { pid: 0, exe: String::new(), start_ns: 0, attach_ns: 0, attached: 0, error: None }
}

fn blank_untraced() -> Untraced {
    Untraced { path: String::new(), reason: String::new() }
}

/// A number below `end`.
fn place(pass: &mut dyn Pass, n: &mut usize, end: usize) -> Done {
    let mut wide = *n as u64;
    pass.number(&mut wide)?;
    match usize::try_from(wide) {
        Ok(small) if small < end => *n = small,
        _ => return Err(Unreadable::Damaged),
    }
    Ok(())
}

pub(super) fn event(pass: &mut dyn Pass, e: &mut Event) -> Done {
    for n in [&mut e.function, &mut e.pid, &mut e.tid] {
        small(pass, n)?;
    }
    pass.number(&mut e.depth)?;
    pass.number(&mut e.start_ns)?;
    option(pass, &mut e.took_ns, || 0, &mut |pass, n| pass.number(n))?;
    let mut ended = u64::from(e.running) | u64::from(e.left) << 1;
    pass.number(&mut ended)?;
    (e.running, e.left) = (ended & 1 != 0, ended & 2 != 0);
    pass.text(&mut e.values)?;
    json(pass, &mut e.args)?;
    option(pass, &mut e.ret, || Json::Null, &mut json)
}

/// A value as the text that JSON has for it; null is nothing.
fn json(pass: &mut dyn Pass, value: &mut Json) -> Done {
    let mut text = if value.is_null() { String::new() } else { value.to_string() };
    pass.text(&mut text)?;
    if value.is_null() && !text.is_empty() {
        *value = serde_json::from_str(&text).map_err(|_| Unreadable::Damaged)?;
    }
    Ok(())
}
