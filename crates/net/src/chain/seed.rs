//! Chains as the proposed `PROG_CHAIN_ADD`, `PROG_CHAIN_DEL` and `PROG_CHAIN_GET` make them: edges
//! belong to programs, and every program is the head of a chain.
//!
//! This is the last version of that series (October 2019), bug for bug, so that what was written
//! for it runs:
//!
//! * a program has eight slots: the wildcard, and return codes 0 to 6. Codes from 7 on can only be
//!   caught by the wildcard;
//! * the type of the next program is not looked at, nor whether it was loaded for chains, nor
//!   cycles, which keep their programs for ever;
//! * the 33rd program of a run is not run, and the last verdict stands;
//! * adding replaces silently.

use std::collections::BTreeMap;

use skep_isa::errno;
use skep_vm::chain::Exhausted;
use skep_vm::chain::plan::{OTHER, slot};

use super::graph::{BUDGET, Cycles, Edge, Graph, Node, NodeId, ProgramRef};

/// What a call does. The series' numbers of these commands are those of others in Linux.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Command {
    /// Puts a program into a slot.
    #[doc(alias = "BPF_PROG_CHAIN_ADD")]
    Add,
    /// Empties a slot.
    #[doc(alias = "BPF_PROG_CHAIN_DEL")]
    Del,
    /// Asks which program is in a slot.
    #[doc(alias = "BPF_PROG_CHAIN_GET")]
    Get,
}

/// The return code that means the wildcard.
pub const WILDCARD: u32 = u32::MAX;
/// Slots of a program.
pub const SLOTS: usize = 8;
/// Bytes of what a call is given.
pub const ATTR_SIZE: usize = 16;

/// What a file descriptor of the caller is.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Handle {
    /// Not open.
    Closed,
    /// Something else than a program.
    Other,
    /// The program with this id.
    Program(u32),
}

#[derive(Clone, Debug)]
struct Program {
    info: ProgramRef,
    /// It was loaded with `BPF_F_CHAIN_CALLS`.
    chained: bool,
    slots: [Option<u32>; SLOTS],
    /// Slots that it is in, and one for the user's descriptors.
    references: u32,
    open: bool,
}

/// Programs and their slots.
#[derive(Clone, Debug, Default)]
pub struct Programs {
    all: BTreeMap<u32, Program>,
}

/// Returns the slot of a return code.
fn slot_of(code: u32) -> usize {
    let n = code.wrapping_add(1) as usize;
    if n < SLOTS { n } else { 0 }
}

impl Programs {
    /// Adds a program that somebody has open. `chained`: it was loaded with `BPF_F_CHAIN_CALLS`.
    pub fn load(&mut self, info: ProgramRef, chained: bool) {
        let (slots, references, open) = ([None; SLOTS], 1, true);
        self.all.insert(info.id, Program { info, chained, slots, references, open });
    }

    /// Closes the user's descriptors of a program. It goes when it is in no slot, and then what
    /// only its slots kept.
    pub fn close(&mut self, id: u32) {
        if let Some(p) = self.all.get_mut(&id)
            && std::mem::take(&mut p.open)
        {
            self.release(id);
        }
    }

    /// Tells whether a user has a program open.
    #[must_use]
    pub fn is_open(&self, id: u32) -> bool {
        self.all.get(&id).is_some_and(|p| p.open)
    }

    /// Returns how many references keep a program; `None` when it is gone.
    #[must_use]
    pub fn references(&self, id: u32) -> Option<u32> {
        self.all.get(&id).map(|p| p.references)
    }

    fn release(&mut self, id: u32) {
        let mut todo = vec![id];
        while let Some(id) = todo.pop() {
            let Some(p) = self.all.get_mut(&id) else { continue };
            p.references -= 1;
            if p.references == 0
                && let Some(gone) = self.all.remove(&id)
            {
                todo.extend(gone.slots.into_iter().flatten());
            }
        }
    }

    /// Carries a call out: `attr` is `{prev_prog_fd, next_prog_fd, retcode, next_prog_id}`, and
    /// perhaps zeros. A slot's program is written to the last.
    ///
    /// # Errors
    /// With the error number of the first check that fails, in the order of the series.
    pub fn call(
        &mut self,
        command: Command,
        attr: &mut [u8],
        resolve: impl Fn(u32) -> Handle,
    ) -> Result<(), i32> {
        if attr.get(ATTR_SIZE..).unwrap_or_default().iter().any(|b| *b != 0) {
            return Err(errno::EINVAL);
        }
        let word = |attr: &[u8], n: usize| {
            let mut bytes = [0; 4];
            let given = attr.get(4 * n..).unwrap_or_default();
            bytes.iter_mut().zip(given).for_each(|(to, from)| *to = *from);
            u32::from_ne_bytes(bytes)
        };
        let (prev, next, code) = (word(attr, 0), word(attr, 1), word(attr, 2));
        if code >= SLOTS as u32 - 1 && code != WILDCARD {
            return Err(errno::E2BIG);
        }
        let program = |fd: u32| match resolve(fd) {
            Handle::Closed => Err(errno::EBADF),
            Handle::Other => Err(errno::EINVAL),
            Handle::Program(id) => Ok(id),
        };
        let slot = slot_of(code);
        let prev = program(prev)?;
        let known = |all: &BTreeMap<u32, Program>, id| {
            all.get(&id).map(|p| (p.chained, p.slots)).ok_or(errno::EBADF)
        };
        let (chained, slots) = known(&self.all, prev)?;
        if !chained {
            return Err(errno::EOPNOTSUPP);
        }
        let old = slots.get(slot).copied().flatten();
        let occupant = match command {
            Command::Add => {
                let next = program(next)?;
                self.all.get_mut(&next).ok_or(errno::EBADF)?.references += 1;
                Some(next)
            }
            Command::Del => {
                old.ok_or(errno::ENOENT)?;
                None
            }
            Command::Get => {
                let id = old.ok_or(errno::ENOENT)?;
                let out = attr.get_mut(12..ATTR_SIZE).ok_or(errno::EFAULT)?;
                out.copy_from_slice(&id.to_ne_bytes());
                return Ok(());
            }
        };
        if let Some(place) = self.all.get_mut(&prev).and_then(|p| p.slots.get_mut(slot)) {
            *place = occupant;
        }
        if let Some(old) = old {
            self.release(old);
        }
        Ok(())
    }

    /// Returns the chain that runs where this program is attached: the program alone, unless it
    /// was loaded for chains. Nodes are numbered in the order in which they are found.
    #[must_use]
    pub fn graph(&self, head: u32) -> Option<Graph> {
        let first = self.all.get(&head)?;
        let mut graph = Graph::new(first.info.prog_type);
        (graph.budget, graph.exhausted) = (BUDGET, Exhausted::Stop);
        graph.cycles = Cycles::Any;
        let mut order = vec![head];
        let mut done = 0;
        while let Some(program) = order.get(done).and_then(|id| self.all.get(id)) {
            done += 1;
            let mut node = Node::new(program.info.clone());
            let runs = first.chained;
            for (n, next) in program.slots.iter().enumerate().filter(|_| runs) {
                let Some(next) = next else { continue };
                let place = order.iter().position(|id| id == next).unwrap_or_else(|| {
                    order.push(*next);
                    order.len() - 1
                });
                // Slot n + 1 is return code n here, as is the graph's slot of that code.
                let at = if n == 0 { OTHER } else { slot(n as u32 - 1) };
                if let Some(edge) = node.edges.get_mut(at) {
                    *edge = Some(Edge::from(NodeId(place as u32 + 1)));
                }
            }
            graph.nodes.insert(NodeId(done as u32), node);
        }
        graph.next = done as u32 + 1;
        graph.entry = Some(NodeId(1));
        Some(graph)
    }
}
