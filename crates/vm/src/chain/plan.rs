//! Which program follows which: steps by number, edges by sets of verdicts.
//!
//! A verdict is the lower half of r0. It falls into one of [`SLOTS`] slots, `min(verdict + 1, 33)`
//! in 32-bit arithmetic:
//!
//! | slot | verdict |
//! |---|---|
//! | 0 | 0xffffffff (`TCX_NEXT`, -1) |
//! | 1 to 32 | 0 to 31 |
//! | 33 | any other |
//!
//! One `lea` and one comparison find it, and every front end can name the codes it knows: those of
//! XDP and of the proposed chain calls are 0 to 6, libxdp's bitmap has 0 to 31, tcx has -1.

/// Number of slots that verdicts fall into.
pub const SLOTS: usize = 34;
/// The slot of verdicts that have none of their own.
pub const OTHER: usize = SLOTS - 1;
/// All slots, as bits.
pub const ALL: u64 = (1 << SLOTS) - 1;

/// Returns the slot of a verdict.
#[inline]
#[must_use]
pub fn slot(verdict: u32) -> usize {
    (verdict.wrapping_add(1) as usize).min(OTHER)
}

/// Where a run goes on after a program. In a plan programs are known by the numbers of their steps,
/// elsewhere perhaps by names that stay.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum To<N = usize> {
    /// With another program.
    Node(N),
    /// Nowhere: the chain answers this.
    End(u32),
    /// Nowhere: the chain answers what the program said.
    Keep,
}

/// A way out of a step, for all verdicts that take it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct PlanEdge {
    /// The slots of the verdicts that take it, as bits.
    pub on: u64,
    /// Where it leads.
    pub to: To,
    /// How often a run may take it; for edges that close a cycle. The verdict stands after that.
    pub bound: Option<u32>,
}

/// One program's place in a chain. The edges share no slot; verdicts without an edge stand.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Step {
    /// The ways out.
    pub edges: Vec<PlanEdge>,
}

impl Step {
    /// Finds the edge of a verdict.
    #[must_use]
    pub fn edge(&self, verdict: u32) -> Option<usize> {
        self.edges.iter().position(|e| e.on >> slot(verdict) & 1 != 0)
    }
}

/// What becomes of a run when another program would be one too many.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum Exhausted {
    /// The last verdict stands.
    #[default]
    Stop,
    /// The verdict is 0, `XDP_ABORTED`.
    Abort,
}

/// A chain as the engines run it. Step 0 is the first.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Plan {
    /// The steps.
    pub steps: Vec<Step>,
    /// Most programs of one run.
    pub budget: u32,
    /// What happens then.
    pub exhausted: Exhausted,
}

/// Says why a plan cannot be followed.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
#[non_exhaustive]
pub enum PlanError {
    /// It has no step, or more than [`Plan::MOST`].
    #[error("a chain has 1 to {} programs, not {steps}", Plan::MOST)]
    Steps {
        /// How many there are.
        steps: usize,
    },
    /// The budget allows nothing.
    #[error("the budget of a chain is 1 at least")]
    Budget,
    /// An edge leads to a step that is not there.
    #[error("step {step} leads to step {to}, which is not there")]
    Target {
        /// Where the edge starts.
        step: usize,
        /// Where it leads.
        to: usize,
    },
    /// Two edges of a step take the same verdict, or one takes none.
    #[error("step {step} has edges of overlapping or unknown verdicts")]
    Verdicts {
        /// Which step.
        step: usize,
    },
}

impl Plan {
    /// Most steps of a plan.
    pub const MOST: usize = 4096;

    /// Checks that every edge leads somewhere, and that no two take the same verdict.
    ///
    /// # Errors
    /// The first that is wrong.
    pub fn check(&self) -> Result<(), PlanError> {
        let steps = self.steps.len();
        if !(1..=Self::MOST).contains(&steps) {
            return Err(PlanError::Steps { steps });
        }
        if self.budget == 0 {
            return Err(PlanError::Budget);
        }
        for (step, node) in self.steps.iter().enumerate() {
            let mut seen = 0;
            for edge in &node.edges {
                if edge.on == 0 || edge.on & !ALL != 0 || edge.on & seen != 0 {
                    return Err(PlanError::Verdicts { step });
                }
                seen |= edge.on;
                match edge.to {
                    To::Node(to) if to >= steps => return Err(PlanError::Target { step, to }),
                    _ => {}
                }
            }
        }
        Ok(())
    }

    /// Counts the programs of the longest run; `None` when there is a cycle.
    #[must_use]
    pub fn longest(&self) -> Option<u32> {
        #[derive(Clone, Copy)]
        enum Seen {
            No,
            Open,
            Done(u32),
        }
        let next = |step: usize, n: usize| match self.steps.get(step)?.edges.get(n)?.to {
            To::Node(to) => Some(Some(to)),
            _ => Some(None),
        };
        let mut seen = vec![Seen::No; self.steps.len()];
        // Step, its next edge, and the longest run behind it so far.
        let mut path = vec![(0usize, 0usize, 0u32)];
        let mut last = 0;
        *seen.first_mut()? = Seen::Open;
        while let Some((step, edge, behind)) = path.pop() {
            let behind = behind.max(last);
            last = 0;
            match next(step, edge) {
                None => {
                    last = behind + 1;
                    if let Some(s) = seen.get_mut(step) {
                        *s = Seen::Done(last);
                    }
                }
                Some(to) => {
                    path.push((step, edge + 1, behind));
                    let Some(to) = to else { continue };
                    match seen.get(to).copied()? {
                        Seen::Open => return None,
                        Seen::Done(n) => last = n,
                        Seen::No => {
                            if let Some(s) = seen.get_mut(to) {
                                *s = Seen::Open;
                            }
                            path.push((to, 0, 0));
                        }
                    }
                }
            }
        }
        Some(last)
    }

    /// Tells whether a run can come to its budget, so that programs must be counted.
    #[must_use]
    pub fn is_counted(&self) -> bool {
        self.longest().is_none_or(|n| n > self.budget)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn plan(edges: &[(usize, usize)], steps: usize) -> Plan {
        let mut all = vec![Step::default(); steps];
        for (n, (from, to)) in edges.iter().enumerate() {
            all[*from].edges.push(PlanEdge { on: 1 << n, to: To::Node(*to), bound: None });
        }
        Plan { steps: all, budget: 32, exhausted: Exhausted::Stop }
    }

    #[test]
    fn verdicts_fall_into_their_slots() {
        assert_eq!([u32::MAX, 0, 1, 31, 32, u32::MAX - 1].map(slot), [0, 1, 2, 32, 33, 33]);
    }

    #[test]
    fn the_longest_run_is_found_through_diamonds_and_not_in_cycles() {
        assert_eq!(plan(&[], 1).longest(), Some(1));
        assert_eq!(plan(&[(0, 1), (1, 2)], 3).longest(), Some(3));
        assert_eq!(plan(&[(0, 1), (0, 2), (1, 3), (2, 3), (3, 4)], 5).longest(), Some(4));
        assert_eq!(plan(&[(0, 3), (0, 1), (1, 2), (2, 3)], 4).longest(), Some(4));
        assert_eq!(plan(&[(0, 0)], 1).longest(), None);
        assert_eq!(plan(&[(0, 1), (1, 2), (2, 1)], 3).longest(), None);
        // What cannot be reached does not count.
        assert_eq!(plan(&[(1, 1)], 2).longest(), Some(1));
        let line: Vec<_> = (0..32).map(|n| (n, n + 1)).collect();
        assert!(plan(&line, 33).is_counted() && !plan(&line[..31], 32).is_counted());
    }

    #[test]
    fn a_plan_that_leads_nowhere_is_refused() {
        assert_eq!(plan(&[], 0).check(), Err(PlanError::Steps { steps: 0 }));
        assert_eq!(plan(&[(0, 5)], 1).check(), Err(PlanError::Target { step: 0, to: 5 }));
        assert_eq!(Plan { budget: 0, ..plan(&[], 1) }.check(), Err(PlanError::Budget));
        let mut twice = plan(&[(0, 1)], 2);
        twice.steps[0].edges.push(PlanEdge { on: 3, to: To::Keep, bound: None });
        assert_eq!(twice.check(), Err(PlanError::Verdicts { step: 0 }));
        let mut unknown = plan(&[], 1);
        unknown.steps[0].edges.push(PlanEdge { on: 1 << SLOTS, to: To::Keep, bound: None });
        assert_eq!(unknown.check(), Err(PlanError::Verdicts { step: 0 }));
        assert_eq!(plan(&[(0, 1)], 2).check(), Ok(()));
    }
}
