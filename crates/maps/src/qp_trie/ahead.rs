//! What a walk has before it: references in order, which become leaves.
//!
//! The way of a walk cannot be foreseen: which children are leaves, and how many there are. Where
//! each of that is a branch, wrong guesses are most of what a walk takes, and the memory of one node
//! is waited for after that of another. So many references are looked at together: a pass over a
//! [list](List) of them puts children in the place of each node, eight at a time without a look at
//! what they are, and a bit for each reference tells which are nodes. The next pass goes from one such
//! bit to the next. After some passes all are leaves.
//!
//! What that takes on one machine, of visits of strings, paths and random bytes: 35, 35 and 40 % less
//! than a branch for each child. Nothing came of asking for the leaves of the next list while those of
//! one are read, and of lists that begin with fewer references.

use std::sync::atomic::Ordering::Acquire;

use super::QpTrie;
use super::node::{Links, Node};
use crate::shm::PAGE;
use crate::shm::qp::{Arena, LEAF};

/// References in a list, at most.
pub(super) const LIST: usize = 64;

/// References that are copied at a time.
const PIECE: usize = 16;

/// Nodes that are entered for some elements, besides those that the longest keys could have.
const NODES: u64 = 1 << 20;

const _: () = assert!(LIST == u64::BITS as usize);

/// A node on the way to a key: its children that are left.
#[derive(Clone, Copy)]
pub(super) struct Step {
    links: Links,
    /// The next one, and behind the last one, counted from the side that the walk begins on.
    next: u32,
    children: u32,
}

impl Step {
    #[inline(always)]
    pub(super) fn new(node: &Node, next: u32) -> Self {
        let children = node.children();
        Self { links: node.links(), next: next.min(children), children }
    }
}

/// Some of the references: at most [`LIST`].
struct List {
    /// Behind the last one there may be anything. There is room for as many again, so that references
    /// can be copied before it is known whether they fit, and for a piece.
    all: [u32; 2 * LIST + PIECE],
    len: usize,
    /// Those that are no leaves: no bits from `len` on.
    nodes: u64,
}

impl List {
    const EMPTY: Self = Self { all: [0; 2 * LIST + PIECE], len: 0, nodes: 0 };

    /// Copies leaves of another list to a place.
    #[inline(always)]
    fn copy(&mut self, at: usize, from: &Self, first: usize, n: usize) {
        debug_assert!(at <= LIST && first + n <= LIST);
        let mut i = 0;
        loop {
            // SAFETY: `first + n` and `at` are at most the length of a list; from `i`, which is below
            // `n` or 0, pieces have room in both.
            unsafe {
                let piece = from.all.as_ptr().add(first + i).cast::<[u32; PIECE]>().read();
                self.all.as_mut_ptr().add(at + i).cast::<[u32; PIECE]>().write(piece);
            }
            i += PIECE;
            if i >= n {
                break;
            }
        }
    }

    /// # Safety
    /// `at` is at most the length of a list.
    #[inline(always)]
    unsafe fn piece(&mut self, at: usize) -> &mut [u32; 8] {
        // SAFETY: behind it there is room for more.
        unsafe { &mut *self.all.as_mut_ptr().add(at).cast::<[u32; 8]>() }
    }

    /// Copies children of a node that fit to a place, one at least, from a number on; tells which are no
    /// leaves.
    #[inline(always)]
    fn copy_children<const BACKWARD: bool>(
        &mut self,
        at: usize,
        arena: Arena,
        links: Links,
        (first, n): (usize, usize),
    ) -> u64 {
        debug_assert!(n != 0 && at + n <= LIST);
        // SAFETY: behind `at`, which is below the length of a list, there is room for more.
        let to = unsafe { self.all.as_mut_ptr().add(at) };
        let (mut leaves, mut i) = (0u64, 0usize);
        loop {
            let from = match BACKWARD {
                true => (first + n).wrapping_sub(8).wrapping_sub(i),
                false => first + i,
            };
            // SAFETY: `i` is below `n`, so there is room for a piece from there on.
            let to = unsafe { &mut *to.add(i).cast::<[u32; 8]>() };
            let some = links.copy_some::<BACKWARD>(from, (first, first + n), to);
            if i == 0 {
                // The first of them that is a node, which most often is the only one.
                let node = (!some | 0x80).trailing_zeros() & 7;
                arena.prefetch(to[node as usize & 7]);
            }
            leaves |= u64::from(some) << (i & 63);
            i += 8;
            if i >= n {
                break;
            }
        }
        let all = u64::MAX >> (n.wrapping_neg() & 63);
        (!leaves & all) << (at & 63)
    }
}

/// References that come later, in order.
struct Later {
    /// They lie at the end.
    all: Vec<u32>,
    first: usize,
    /// Only damage has more.
    most: usize,
    is_damaged: bool,
}

impl Later {
    fn new(trie: &QpTrie) -> Self {
        // A node is entered when less than a list comes before it, so of each length of a way there are no
        // more than the children of one and a list; and each has a place in the arena.
        let g = &trie.memory.geometry;
        let most = (512 * (g.max_key + 2)).min(g.arena_pages * (PAGE / 4));
        Self { all: Vec::new(), first: 0, most: most as usize, is_damaged: false }
    }

    fn clear(&mut self) {
        self.first = self.all.len();
    }

    /// Makes room before the first one.
    #[inline(never)]
    fn make_room(&mut self, n: usize) {
        if self.all.len() - self.first + n > self.most {
            self.is_damaged = true;
            self.clear();
        }
        let len = self.all.len() - self.first;
        let mut all = vec![0; (2 * self.all.len()).max(256).max(len + n)];
        let first = all.len() - len;
        all[first..].copy_from_slice(&self.all[self.first..]);
        (self.all, self.first) = (all, first);
    }

    /// Puts references before the others.
    fn push(&mut self, some: &[u32]) {
        if some.len() > self.first {
            self.make_room(some.len());
        }
        self.first -= some.len();
        self.all[self.first..self.first + some.len()].copy_from_slice(some);
    }

    fn push_children<const BACKWARD: bool>(&mut self, links: Links, n: usize) {
        if n > self.first {
            self.make_room(n);
        }
        self.first -= n;
        for (i, to) in self.all[self.first..self.first + n].iter_mut().enumerate() {
            let i = if BACKWARD { n - 1 - i } else { i };
            *to = links.get(i as u32).load(Acquire);
        }
    }
}

/// A way through the leaves in order.
pub(super) struct Ahead {
    pub(super) backward: bool,
    /// Nodes above, with children behind all references.
    steps: Vec<Step>,
    later: Later,
    lists: [List; 2],
    /// Nodes that may still be entered: only damage has as many without leaves.
    left: u64,
}

impl Ahead {
    pub(super) fn new(trie: &QpTrie, backward: bool) -> Self {
        Self {
            backward,
            steps: Vec::new(),
            later: Later::new(trie),
            lists: [List::EMPTY; 2],
            left: NODES + 4 * trie.memory.geometry.max_key,
        }
    }

    /// Puts a reference before all that there are.
    pub(super) fn push(&mut self, reference: u32) {
        self.later.push(&[reference]);
    }

    /// Puts children of nodes behind all references that there are, those of the last one first.
    pub(super) fn set_steps(&mut self, steps: Vec<Step>) {
        self.steps = steps;
    }

    /// Puts the children of a node before those of other nodes.
    pub(super) fn push_step(&mut self, step: Step) {
        self.steps.push(step);
    }

    /// Finds up to `most` of the next leaves; none only at the end.
    #[inline(always)]
    pub(super) fn find(&mut self, trie: &QpTrie, most: usize) -> &[u32] {
        if self.backward {
            self.find_in::<true>(trie, most)
        } else {
            self.find_in::<false>(trie, most)
        }
    }

    #[inline(never)]
    fn find_in<const BACKWARD: bool>(&mut self, trie: &QpTrie, most: usize) -> &[u32] {
        let most = most.min(LIST);
        let arena = trie.memory.arena();
        let Self { steps, later, lists, left, .. } = self;
        let [mut now, mut next] = lists.each_mut();
        loop {
            take::<BACKWARD>(arena, now, later, steps, most);
            if now.len == 0 {
                return &[];
            }
            while now.nodes != 0 {
                let entered = expand::<BACKWARD>(arena, now, next, later, most);
                let fewer = entered.and_then(|n| left.checked_sub(n));
                let Some(fewer) = fewer.filter(|_| !later.is_damaged) else {
                    // Damage, or what others do at this moment.
                    later.clear();
                    steps.clear();
                    return &[];
                };
                *left = fewer;
                std::mem::swap(&mut now, &mut next);
            }
            if now.len != 0 {
                return &now.all[..now.len];
            }
        }
    }
}

/// Fills a list with the next references.
#[inline(always)]
fn take<const BACKWARD: bool>(
    arena: Arena,
    list: &mut List,
    later: &mut Later,
    steps: &mut Vec<Step>,
    most: usize,
) {
    let some = &later.all[later.first..];
    let some = &some[..some.len().min(most)];
    later.first += some.len();
    list.all[..some.len()].copy_from_slice(some);
    (list.len, list.nodes) = (some.len(), 0);
    for (i, reference) in some.iter().enumerate() {
        list.nodes |= u64::from(!*reference & LEAF) << (i & 63);
    }
    while list.len < most
        && let Some(step) = steps.last_mut()
    {
        let n = ((step.children - step.next) as usize).min(most - list.len);
        if n != 0 {
            let first = if BACKWARD { step.children - step.next - n as u32 } else { step.next };
            let some = (first as usize, n);
            list.nodes |= list.copy_children::<BACKWARD>(list.len, arena, step.links, some);
            list.len += n;
            step.next += n as u32;
        }
        if step.next >= step.children {
            steps.pop();
        }
    }
}

/// Makes a list of another in which children are in the place of nodes, as many as there is room for;
/// the rest comes later. Tells how many nodes were entered; `None` for damage.
#[inline(always)]
fn expand<const BACKWARD: bool>(
    arena: Arena,
    from: &List,
    to: &mut List,
    later: &mut Later,
    most: usize,
) -> Option<u64> {
    let (mut i, mut nodes, mut entered) = (0usize, from.nodes, 0u64);
    let (mut len, mut new) = (0usize, 0u64);
    while nodes != 0 {
        // Most nodes: without calls there are enough registers.
        entered += u64::from(nodes.count_ones());
        while nodes != 0 {
            let at = nodes.trailing_zeros() as usize;
            let run = at - i;
            to.copy(len, from, i, run);
            let Some(block) = arena.node(from.all[at]) else { break };
            let node = Node::at(block);
            let Some((links, n)) = node.some_links() else { break };
            let behind = len + run;
            if behind + n > most {
                break;
            }
            // SAFETY: `behind` is at most the length of a list, and there is a piece more.
            let place = unsafe { to.piece(behind) };
            let leaves = links.copy_near::<BACKWARD>(n, place);
            // The first of them that is a node, which most often is the only one.
            let those = (leaves ^ 0xff) & (0xff >> (8usize.wrapping_sub(n) & 7));
            arena.prefetch(place[((those | 0x80).trailing_zeros() & 7) as usize]);
            new |= u64::from(those) << (behind & 63);
            (nodes, i, len) = (nodes & (nodes - 1), at + 1, behind + n);
        }
        entered -= u64::from(nodes.count_ones());
        if nodes == 0 {
            break;
        }
        let at = nodes.trailing_zeros() as usize;
        let run = at - i;
        to.copy(len, from, i, run);
        let reference = from.all[at];
        let Some(block) = arena.node(reference) else {
            if reference != 0 {
                return None;
            }
            // It leads nowhere.
            if len + run > most {
                break;
            }
            (nodes, i, len) = (nodes & (nodes - 1), at + 1, len + run);
            continue;
        };
        let (links, n) = Node::at(block).all_links();
        let behind = len + run;
        if behind + n > most || n == 0 {
            if behind == 0 {
                later.push(&from.all[at + 1..from.len]);
                later.push_children::<BACKWARD>(links, n);
                (to.len, to.nodes) = (0, 0);
                return Some(entered + 1);
            }
            break;
        }
        entered += 1;
        new |= to.copy_children::<BACKWARD>(behind, arena, links, (0, n));
        (nodes, i, len) = (nodes & (nodes - 1), at + 1, behind + n);
    }
    // Leaves up to the next node.
    let next = if nodes == 0 { from.len } else { nodes.trailing_zeros() as usize };
    let run = next - i;
    to.copy(len, from, i, run);
    let run = run.min(most - len);
    (to.len, to.nodes) = (len + run, new);
    if i + run < from.len {
        later.push(&from.all[i + run..from.len]);
    }
    Some(entered)
}
