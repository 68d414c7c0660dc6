//! Chains as tcx makes them (kernel/bpf/mprog.c): a list of programs to which others are attached
//! before or after one that is there.
//!
//! A program goes on to the next one with `TCX_NEXT` and no other verdict. `TCX_PASS`, `TCX_DROP`
//! and `TCX_REDIRECT` are the list's answer; whatever else ends it with `TCX_NEXT`
//! (include/net/tcx.h, `tcx_action_code`).

use bitflags::bitflags;
use skep_isa::{ProgramType, errno};
use skep_vm::chain::plan::{OTHER, slot};

use super::graph::{Edge, Graph, Node, NodeId, ProgramRef, To};
use super::verdicts::tcx;

/// Most programs of a list (`BPF_MPROG_MAX` less the end mark).
pub const MOST: usize = 63;

bitflags! {
    /// How a program is attached (include/uapi/linux/bpf.h).
    #[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
    pub struct Flags: u32 {
        /// In place of another program.
        const REPLACE = 1 << 2;
        /// Before the relative, or at the head.
        const BEFORE = 1 << 3;
        /// After the relative, or at the end.
        const AFTER = 1 << 4;
        /// The relative is given by id. Who finds the relative uses this flag.
        const ID = 1 << 5;
        /// The relative is a link. Who finds the relative uses this flag.
        const LINK = 1 << 13;
    }
}

/// A program of the list, and the link that attached it.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Attached {
    /// The program.
    pub program: ProgramRef,
    /// The link's id; none for a program that was attached without.
    pub link: Option<u32>,
}

/// A program that is there, by which a place is named.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Relative {
    /// The program's id.
    pub program: u32,
    /// Its type.
    pub prog_type: ProgramType,
    /// The link's id, if a link was named.
    pub link: Option<u32>,
}

/// What an attach or detach asks for.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct How {
    /// Where.
    pub flags: Flags,
    /// Beside what.
    pub relative: Option<Relative>,
    /// The program to be replaced.
    pub replace: Option<u32>,
    /// The revision that this builds on; 0 for any.
    pub revision: u64,
}

/// The list of one place.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct List {
    prog_type: ProgramType,
    all: Vec<Attached>,
    revision: u64,
}

impl List {
    /// Makes an empty list for programs of a type.
    #[must_use]
    pub fn new(prog_type: ProgramType) -> Self {
        Self { prog_type, all: Vec::new(), revision: 1 }
    }

    /// Returns the programs in order.
    #[must_use]
    pub fn all(&self) -> &[Attached] {
        &self.all
    }

    /// Returns the number of changes since the list was empty, from 1.
    #[must_use]
    pub fn revision(&self) -> u64 {
        self.revision
    }

    fn position(&self, program: u32, link: Option<u32>) -> Option<i64> {
        let is = |a: &Attached| a.program.id == program && (link.is_none() || a.link == link);
        self.all.iter().position(is).map(|n| n as i64)
    }

    /// Finds the program itself, attached as it says.
    fn exact(&self, program: u32, link: Option<u32>) -> Result<i64, i32> {
        let at = self.position(program, None).ok_or(errno::ENOENT)?;
        let same = usize::try_from(at).ok().and_then(|n| self.all.get(n));
        if same.is_some_and(|a| a.link == link) { Ok(at) } else { Err(errno::EBUSY) }
    }

    /// Finds the place that flags and relative name: -1 is before the first. `found` is what
    /// another rule has said already, and all must agree.
    fn place(&self, how: &How, mut found: Option<i64>) -> Result<i64, i32> {
        let relative =
            how.relative.map(|r| self.position(r.program, r.link).ok_or(errno::ENOENT)).transpose();
        let rules = [
            (Flags::BEFORE, relative.map(|at| at.map_or(-1, |n| n - 1))),
            (Flags::AFTER, relative.map(|at| at.map_or(self.all.len() as i64, |n| n + 1))),
        ];
        for (flag, place) in rules {
            if how.flags.contains(flag) {
                let place = place?;
                if found.is_some_and(|f| f != place) {
                    return Err(errno::ERANGE);
                }
                found = Some(place);
            }
        }
        match found {
            Some(place) => Ok(place),
            // A relative, or a flag that says nothing of the place.
            None if how.relative.is_some() || !how.flags.is_empty() => Err(errno::EINVAL),
            None => Ok(self.all.len() as i64),
        }
    }

    /// Attaches a program.
    ///
    /// # Errors
    /// `ESTALE`, `EEXIST`, `ENOENT`, `ERANGE`, `EBUSY` and `EINVAL`, as the kernel.
    pub fn attach(&mut self, program: ProgramRef, link: Option<u32>, how: &How) -> Result<(), i32> {
        let replaces = how.flags.contains(Flags::REPLACE);
        if program.prog_type != self.prog_type || replaces != how.replace.is_some() {
            return Err(errno::EINVAL);
        }
        self.fresh(how.revision)?;
        if self.position(program.id, None).is_some() {
            return Err(errno::EEXIST);
        }
        self.same_type(how)?;
        let how = How { flags: how.flags - Flags::ID - Flags::LINK, ..*how };
        let old = how.replace.map(|old| self.exact(old, link)).transpose()?;
        if old.is_none() && self.all.len() == MOST {
            return Err(errno::ERANGE);
        }
        let place = self.place(&how, old)?;
        let new = Attached { program, link };
        match old.and_then(|n| usize::try_from(n).ok()).and_then(|n| self.all.get_mut(n)) {
            Some(old) => *old = new,
            None => {
                // Before the program behind `place`, or where the one at `place` is.
                let before = how.flags.contains(Flags::BEFORE);
                let at = (place + i64::from(before)).clamp(0, self.all.len() as i64);
                self.all.insert(at as usize, new);
            }
        }
        self.revision += 1;
        Ok(())
    }

    /// Detaches a program; without one, that which the flags name, or the last.
    ///
    /// # Errors
    /// As [`List::attach`].
    pub fn detach(
        &mut self,
        program: Option<u32>,
        link: Option<u32>,
        how: &How,
    ) -> Result<Attached, i32> {
        if how.flags.contains(Flags::REPLACE) {
            return Err(errno::EINVAL);
        }
        if self.all.is_empty() {
            return Err(errno::ENOENT);
        }
        self.fresh(how.revision)?;
        let how = How { flags: how.flags - Flags::ID - Flags::LINK, ..*how };
        if program.is_some() {
            self.same_type(&how)?;
        }
        let exact = program.map(|p| self.exact(p, link)).transpose()?;
        let place = self.place(&how, exact)?;
        let at = place.clamp(0, self.all.len() as i64 - 1) as usize;
        if self.all.get(at).is_some_and(|a| a.link.is_some() && link.is_none()) {
            return Err(errno::EBUSY);
        }
        let gone = self.all.remove(at);
        // The kernel frees an empty list, and the next one begins anew.
        self.revision = if self.all.is_empty() { 1 } else { self.revision + 1 };
        Ok(gone)
    }

    fn same_type(&self, how: &How) -> Result<(), i32> {
        let other = how.relative.is_some_and(|r| r.prog_type != self.prog_type);
        if other { Err(errno::EINVAL) } else { Ok(()) }
    }

    fn fresh(&self, revision: u64) -> Result<(), i32> {
        if revision != 0 && revision != self.revision { Err(errno::ESTALE) } else { Ok(()) }
    }

    /// Returns the chain of the list. Node n is the n-th program.
    #[must_use]
    pub fn graph(&self) -> Graph {
        let mut graph = Graph::new(self.prog_type);
        for (n, attached) in (1..).zip(&self.all) {
            let mut node = Node::new(attached.program.clone());
            let last = n as usize == self.all.len();
            let next = if last { To::Keep } else { To::Node(NodeId(n + 1)) };
            let mut set = |slot: usize, to| {
                if let Some(edge) = node.edges.get_mut(slot) {
                    *edge = Some(Edge::to(to));
                }
            };
            set(slot(tcx::NEXT), next);
            [tcx::PASS, tcx::DROP, tcx::REDIRECT].iter().for_each(|v| set(slot(*v), To::Keep));
            set(OTHER, To::End(tcx::NEXT));
            graph.nodes.insert(NodeId(n), node);
        }
        graph.entry = (!self.all.is_empty()).then_some(NodeId(1));
        graph.next = self.all.len() as u32 + 1;
        graph.budget = graph.budget.max(MOST as u32);
        graph.revision = self.revision;
        graph
    }
}
