//! Calls by call path, as `bpf/tree.bpf.c` counts them: the tree that is printed, and what functions
//! and pairs of caller and function add up to.

use std::collections::{BTreeMap, HashMap};
use std::io::{self, Write};

use serde::Serialize;
use skep::link::LinkState;
use skep::maps::Map;
use skep_proc::demangle::demangle;

use crate::estimate::{Clock, Running};
use crate::failure::{Context, Result};
use crate::report::{Figures, Part, Row, cut, file_name};
use crate::sites::module_path;
use crate::stacks::{Frames, Location, Named, NamedStack, Unit};
use crate::{stats, units};

/// Bytes of one thread's `struct stat` in `bpf/tree.bpf.c`.
pub const STAT_SIZE: usize = 64;
/// The calls deepest in a tree that the program writes, and more.
const DEEPEST: usize = 1 << 12;

/// The nodes that exist: for each number the caller's node and the function. A caller has a smaller
/// number than what it calls, else the traced process has written over the map.
pub type Edges = BTreeMap<u32, (u32, u32)>;

/// Reads the map `edges`.
pub fn edges(map: &Map) -> Result<Edges> {
    let word = |b: &[u8], at: usize| {
        b.get(at..at + 4).and_then(|b| b.try_into().ok()).map_or(0, u32::from_le_bytes)
    };
    let mut all = Edges::new();
    for element in map {
        let (key, value) = element.context("cannot read the call paths")?;
        let (caller, id) = (word(&key, 0), word(&value, 0));
        if caller < id {
            all.insert(id, (caller, word(&key, 4)));
        }
    }
    Ok(all)
}

/// What thread nodes stand for: numbers with these bits in place of functions (`bpf/tree.bpf.c`).
const PROCESS: u32 = 2 << 30;
const THREAD: u32 = 3 << 30;
/// Names by node.
type Names = HashMap<u32, String>;

/// Reads the map `names`: names of threads by node.
pub fn names(map: &Map) -> Result<Names> {
    let mut all = Names::new();
    for element in map {
        let (key, value) = element.context("cannot read the names of threads")?;
        let node = key.try_into().map_or(0, u32::from_le_bytes);
        let name = value.split(|b| *b == 0).next().unwrap_or_default();
        all.insert(node, String::from_utf8_lossy(name).into_owned());
    }
    Ok(all)
}

/// A thread that has calls.
#[derive(Debug, Default)]
pub struct Thread {
    pub pid: u32,
    pub tid: u32,
    pub name: String,
}

/// Calls of one function from one call path.
#[derive(Debug, Default)]
pub struct Node {
    /// Where its caller is; `None`: no traced function called it.
    pub caller: Option<usize>,
    /// Its number in the link.
    pub function: usize,
    /// Its number among threads, where they are told apart.
    pub thread: Option<usize>,
    pub calls: u64,
    pub running: u64,
    /// With all that they called.
    pub total_ns: u64,
    pub self_ns: u64,
    pub longest_ns: u64,
    /// Calls that returned.
    pub returned: u64,
}

/// A node in JSON.
#[derive(Serialize)]
pub struct NodeJson<'a> {
    id: usize,
    /// The id of the caller's node.
    parent: Option<usize>,
    /// Where threads are told apart.
    #[serde(skip_serializing_if = "Option::is_none")]
    tid: Option<u32>,
    name: &'a str,
    module: &'a str,
    calls: u64,
    total_ns: u64,
    self_ns: u64,
    longest_ns: u64,
    running: u64,
}

/// All call paths; callers stand before what they call.
#[derive(Debug)]
pub struct Tree<'a> {
    pub nodes: Vec<Node>,
    pub threads: Vec<Thread>,
    state: &'a LinkState,
}

/// A caller and a function it called.
pub type Pair = (Option<usize>, usize);

/// What several nodes add up to.
#[derive(Clone, Copy, Debug, Default)]
pub struct Sum {
    pub calls: u64,
    pub running: u64,
    pub total_ns: u64,
    pub self_ns: u64,
}

impl Sum {
    fn add(&mut self, other: Self) {
        self.calls = self.calls.saturating_add(other.calls);
        self.running = self.running.saturating_add(other.running);
        self.total_ns = self.total_ns.saturating_add(other.total_ns);
        self.self_ns = self.self_ns.saturating_add(other.self_ns);
    }
}

impl<'a> Tree<'a> {
    /// Adds the statistics of all threads up. `outside`: ticks that timing a call takes before and
    /// after its readings of the clock, which are its caller's.
    pub fn read(
        stats: &Map,
        edges: &Edges,
        mut names: Names,
        clock: Clock,
        outside: u32,
        running: &HashMap<u32, Running>,
        state: &'a LinkState,
    ) -> Result<Self> {
        let mut nodes: Vec<Node> = Vec::new();
        let mut places = HashMap::new();
        let (mut pids, mut roots, mut threads) = (HashMap::new(), HashMap::new(), Vec::new());
        for (id, (caller, function)) in edges {
            let number = *function & !THREAD;
            match (*function & THREAD, pids.get(caller)) {
                (PROCESS, _) => {
                    pids.insert(*id, number);
                    continue;
                }
                (THREAD, Some(pid)) => {
                    roots.insert(*id, threads.len());
                    // A name of a thread that runs may be newer than what was written down.
                    let path = format!("/proc/{pid}/task/{number}/comm");
                    let known = names.remove(id).unwrap_or_default();
                    let name = std::fs::read_to_string(path).unwrap_or(known);
                    // The traced process chose it: nothing in it may steer a terminal.
                    let name = name.trim_end_matches('\n').replace(char::is_control, "?");
                    threads.push(Thread { pid: *pid, tid: number, name });
                    continue;
                }
                _ => {}
            }
            let (caller, thread) = match (caller, roots.get(caller), places.get(caller)) {
                (0, ..) => (None, None),
                (_, Some(thread), _) => (None, Some(*thread)),
                (.., Some(place)) => {
                    (Some(*place), nodes.get(*place).and_then(|n: &Node| n.thread))
                }
                _ => continue,
            };
            if state.functions.len() <= *function as usize {
                continue;
            }
            places.insert(*id, nodes.len());
            nodes.push(Node { caller, thread, function: *function as usize, ..Node::default() });
        }
        let count = edges.last_key_value().map_or(0, |(id, _)| id.saturating_add(1));
        stats::each(stats, count, |id, value| {
            let Some(node) = places.get(&id).and_then(|p| nodes.get_mut(*p)) else { return };
            let running = running.get(&id).copied().unwrap_or_default();
            node.add(value, clock, running);
        })
        .context("cannot read the statistics")?;
        let outside = f64::from(outside) * clock.tick;
        for place in 0..nodes.len() {
            let Some((caller, returned)) = nodes.get(place).map(|n| (n.caller, n.returned)) else {
                continue;
            };
            if let Some(caller) = caller.and_then(|c| nodes.get_mut(c)) {
                caller.self_ns = caller.self_ns.saturating_sub((returned as f64 * outside) as u64);
            }
        }
        Ok(Self::new(nodes, threads, state))
    }

    /// Adds up what paths took with all that they called. Callers stand before what they call.
    pub fn new(mut nodes: Vec<Node>, threads: Vec<Thread>, state: &'a LinkState) -> Self {
        for place in (0..nodes.len()).rev() {
            let Some(node) = nodes.get_mut(place) else { continue };
            node.total_ns = node.total_ns.saturating_add(node.self_ns);
            let (caller, total) = (node.caller, node.total_ns);
            if let Some(caller) = caller.and_then(|c| nodes.get_mut(c)) {
                caller.total_ns = caller.total_ns.saturating_add(total);
            }
        }
        Self { nodes, threads, state }
    }

    /// The tree as it would be if calls nested deeper than `depth` had not been looked at, and, if
    /// not `by_thread`, threads not been told apart.
    pub fn reduced(self, depth: usize, by_thread: bool) -> Self {
        let mut nodes: Vec<Node> = Vec::new();
        // Where each node went, and its depth.
        let mut places: Vec<(usize, usize)> = Vec::with_capacity(self.nodes.len());
        let mut known = HashMap::new();
        for node in self.nodes {
            let above = node.caller.and_then(|c| places.get(c)).copied();
            let level = above.map_or(1, |(_, level)| level + 1);
            if let (Some((place, _)), true) = (above, level > depth) {
                if let Some(caller) = nodes.get_mut(place) {
                    caller.self_ns = caller.self_ns.saturating_add(node.self_ns);
                }
                places.push((place, level));
                continue;
            }
            let caller = above.map(|(place, _)| place);
            let thread = node.thread.filter(|_| by_thread);
            let place = *known.entry((caller, thread, node.function)).or_insert(nodes.len());
            if place == nodes.len() {
                nodes.push(Node { caller, thread, function: node.function, ..Node::default() });
            }
            if let Some(sum) = nodes.get_mut(place) {
                sum.calls = sum.calls.saturating_add(node.calls);
                sum.running = sum.running.saturating_add(node.running);
                sum.self_ns = sum.self_ns.saturating_add(node.self_ns);
                sum.longest_ns = sum.longest_ns.max(node.longest_ns);
            }
            places.push((place, level));
        }
        Self::new(nodes, self.threads, self.state)
    }

    /// The symbol and the module's path of a function.
    fn symbol(&self, function: usize) -> (&'a str, &'a str) {
        self.state
            .functions
            .get(function)
            .map_or(("", ""), |f| (f.name.as_str(), module_path(self.state, f.module)))
    }

    /// For each node, the nodes it called, the longest first.
    fn callees(&self) -> (Vec<usize>, Vec<Vec<usize>>) {
        let mut roots = Vec::new();
        let mut all = vec![Vec::new(); self.nodes.len()];
        for (place, node) in self.nodes.iter().enumerate() {
            match node.caller {
                None => roots.push(place),
                Some(caller) => {
                    if let Some(list) = all.get_mut(caller) {
                        list.push(place);
                    }
                }
            }
        }
        let total = |place: &usize| self.nodes.get(*place).map_or(0, |n| n.total_ns);
        for list in all.iter_mut().chain([&mut roots]) {
            list.sort_by_cached_key(|place| std::cmp::Reverse(total(place)));
        }
        (roots, all)
    }

    /// Visits nodes with their depth, callers first; what `visit` refuses, and all below it, is
    /// passed over.
    fn walk(&self, mut visit: impl FnMut(usize, &Node, usize) -> bool) {
        let (mut roots, mut callees) = self.callees();
        roots.reverse();
        let mut open: Vec<(usize, usize)> = roots.into_iter().map(|r| (r, 0)).collect();
        while let Some((place, depth)) = open.pop() {
            let Some(node) = self.nodes.get(place).filter(|_| depth < DEEPEST) else { continue };
            if visit(place, node, depth)
                && let Some(list) = callees.get_mut(place)
            {
                open.extend(std::mem::take(list).into_iter().rev().map(|c| (c, depth + 1)));
            }
        }
    }

    /// Adds up calls and times by function, and by caller and function. The total of calls inside of
    /// another call of the function is in that.
    pub fn sums(&self) -> (BTreeMap<usize, Sum>, BTreeMap<Pair, Sum>) {
        let (mut functions, mut pairs) = (BTreeMap::new(), BTreeMap::new());
        self.each_path(|_, caller, function, sum| {
            functions.entry(function).or_insert_with(Sum::default).add(sum);
            pairs.entry((caller, function)).or_insert_with(Sum::default).add(sum);
        });
        (functions, pairs)
    }

    /// Visits nodes with their thread, caller, function and what they add to sums.
    fn each_path(&self, mut visit: impl FnMut(Option<usize>, Option<usize>, usize, Sum)) {
        let mut path: Vec<usize> = Vec::new();
        let mut inside: HashMap<usize, usize> = HashMap::new();
        self.walk(|_, node, depth| {
            while path.len() > depth {
                if let Some(count) = path.pop().and_then(|f| inside.get_mut(&f)) {
                    *count -= 1;
                }
            }
            let above = inside.entry(node.function).or_default();
            let total = if *above == 0 { node.total_ns } else { 0 };
            *above += 1;
            let caller = path.last().copied();
            path.push(node.function);
            let Node { calls, running, self_ns, .. } = *node;
            let sum = Sum { calls, running, total_ns: total, self_ns };
            visit(node.thread, caller, node.function, sum);
            true
        });
    }

    /// The functions, as without call paths.
    pub fn rows(&self) -> Vec<Row<'a>> {
        let called = self.sums().0.into_iter().filter(|(_, sum)| sum.calls > 0);
        called.map(|(function, sum)| self.row(function, sum)).collect()
    }

    /// A row for each function and function that called it.
    pub fn rows_by_caller(&self) -> Vec<Row<'a>> {
        let called = self.sums().1.into_iter().filter(|(_, sum)| sum.calls > 0);
        let row = |((caller, function), sum): (Pair, Sum)| Row {
            part: Some(Part::Caller(caller.map(|c| demangle(self.symbol(c).0)))),
            ..self.row(function, sum)
        };
        called.map(row).collect()
    }

    /// A row for each function and thread, or process.
    pub fn rows_by_thread(&self, by_process: bool) -> Vec<Row<'_>> {
        let mut sums = BTreeMap::new();
        self.each_path(|thread, _, function, sum| {
            let Some(Thread { pid, tid, .. }) = thread.and_then(|t| self.threads.get(t)) else {
                return;
            };
            // All calls of a process are those of its first thread.
            let tid = if by_process { *pid } else { *tid };
            sums.entry((*pid, tid, function)).or_insert_with(Sum::default).add(sum);
        });
        let names: HashMap<(u32, u32), &str> =
            self.threads.iter().map(|t| ((t.pid, t.tid), t.name.as_str())).collect();
        let called = sums.into_iter().filter(|(_, sum)| sum.calls > 0);
        let row = |((pid, tid, function), sum)| {
            // The first thread may have called nothing.
            let other = || self.threads.iter().find(|t| t.pid == pid).map(|t| t.name.as_str());
            let name = names.get(&(pid, tid)).copied().or_else(other).unwrap_or_default();
            let part = match by_process {
                true => Part::Process { pid, name },
                false => Part::Thread { pid, tid, name },
            };
            Row { part: Some(part), ..self.row(function, sum) }
        };
        called.map(row).collect()
    }

    fn row(&self, function: usize, sum: Sum) -> Row<'a> {
        let (symbol, path) = self.symbol(function);
        let Sum { calls, running, total_ns, self_ns } = sum;
        Row {
            name: demangle(symbol),
            symbol,
            path,
            entry_only: self.state.functions.get(function).and_then(|f| f.entry_only.as_deref()),
            stat: Figures {
                calls,
                total_ns,
                self_ns,
                error_ns: None,
                self_error_ns: None,
                running,
                p50_ns: None,
                p99_ns: None,
            },
            part: None,
        }
    }

    /// Writes the tree: the `limit` paths that took longest, and at least `min` ns. Returns how many
    /// of those that took so long are not shown.
    pub fn write(
        &self,
        out: &mut dyn Write,
        limit: usize,
        min: u64,
        width: Option<usize>,
    ) -> io::Result<usize> {
        let mut order: Vec<usize> = (0..self.nodes.len()).collect();
        order.retain(|p| self.nodes.get(*p).is_some_and(|n| n.calls > 0 && n.total_ns >= min));
        let total = |p: &usize| self.nodes.get(*p).map_or(0, |n| n.total_ns);
        // A caller takes no less than what it calls, and stands before it.
        order.sort_by_cached_key(|p| std::cmp::Reverse(total(p)));
        let hidden = order.split_off(order.len().min(limit)).len();
        let shown: std::collections::HashSet<usize> = order.into_iter().collect();
        let room = width.map(|w| w.saturating_sub(32).max(16));
        let mut done = heading(out, "function");
        self.walk(|place, node, depth| {
            if done.is_err() || !shown.contains(&place) {
                return false;
            }
            let name = demangle(self.symbol(node.function).0);
            let name = cut(&format!("{}{name}", "  ".repeat(depth)), room);
            let plus = if node.running > 0 { "+" } else { "" };
            let time = |ns| format!("{}{plus}", units::time(ns));
            let (total, own) = (time(node.total_ns), time(node.self_ns));
            done = writeln!(out, "{:>10}{total:>10}{own:>10}  {name}", node.calls);
            true
        });
        done.map(|()| hidden)
    }

    /// All nodes.
    pub fn json<'n>(&'n self, names: &'n [String]) -> Vec<NodeJson<'n>> {
        let node = |(id, node): (usize, &'n Node)| NodeJson {
            id,
            parent: node.caller,
            tid: node.thread.and_then(|t| self.threads.get(t)).map(|t| t.tid),
            name: names.get(node.function).map_or("", String::as_str),
            module: file_name(self.symbol(node.function).1),
            calls: node.calls,
            total_ns: node.total_ns,
            self_ns: node.self_ns,
            longest_ns: node.longest_ns,
            running: node.running,
        };
        self.nodes.iter().enumerate().map(node).collect()
    }

    /// The demangled name of each function of the link that is in the tree.
    pub fn names(&self) -> Vec<String> {
        let mut names = vec![String::new(); self.state.functions.len()];
        for node in &self.nodes {
            if let Some(name) = names.get_mut(node.function).filter(|n| n.is_empty()) {
                *name = demangle(self.symbol(node.function).0).into_owned();
            }
        }
        names
    }

    /// The call paths as stacks that weigh what their last function took by itself.
    pub fn frames(&self) -> Frames {
        let mut frames = Frames { unit: Unit::Nanoseconds, ..Frames::default() };
        for (function, name) in self.names().into_iter().enumerate() {
            let module = self.symbol(function).1.to_owned();
            frames.functions.push(Named { name, file: String::new(), line: 0 });
            let functions = vec![(function, 0)];
            frames.locations.push(Location { addr: function as u64, module, functions });
        }
        for node in self.nodes.iter().filter(|n| n.self_ns > 0) {
            let mut locations = Vec::new();
            let mut at = Some(node);
            while let Some(node) = at {
                locations.push(node.function);
                at = node.caller.and_then(|c| self.nodes.get(c));
            }
            let root = node.thread.and_then(|t| self.threads.get(t)).map(|t| t.name.clone());
            frames.stacks.push(NamedStack { root, locations, weight: node.self_ns });
        }
        frames
    }
}

impl Node {
    /// Adds the threads' values to a node, and its calls that have not returned.
    fn add(&mut self, value: &[u8], clock: Clock, running: Running) {
        let ns = |ticks: f64| (ticks.max(0.0) * clock.tick) as u64;
        let overhead = f64::from(clock.overhead);
        let mut own = running.own as f64;
        for thread in value.chunks_exact(STAT_SIZE) {
            let word = |i: usize| {
                thread
                    .chunks_exact(8)
                    .nth(i)
                    .and_then(|b| b.try_into().ok())
                    .map_or(0, u64::from_le_bytes)
            };
            self.calls = self.calls.saturating_add(word(0));
            self.returned = self.returned.saturating_add(word(1));
            own += (word(2) as f64 - overhead * word(1) as f64).max(0.0);
            self.longest_ns = self.longest_ns.max(ns(word(3) as f64 - overhead));
        }
        self.running = running.calls;
        self.self_ns = ns(own);
    }
}

/// The line above the numbers.
pub fn heading(out: &mut dyn Write, last: &str) -> io::Result<()> {
    writeln!(out, "{:>10}{:>10}{:>10}  {last}", "calls", "total", "self")
}
