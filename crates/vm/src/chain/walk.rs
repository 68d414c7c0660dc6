//! A plan followed one step at a time.

use super::{Exhausted, Plan, To};

impl Plan {
    /// Follows the plan from its first step on: `run` runs the program of a step and says its
    /// verdict, `refused` is told the step and the number of its edge when a run may not go further
    /// that way. Returns what the chain answers.
    ///
    /// ```
    /// use skep_vm::chain::{PlanEdge, Plan, Step, To, plan};
    ///
    /// let on_pass = PlanEdge { on: 1 << plan::slot(2), to: To::Node(1), bound: None };
    /// let steps = vec![Step { edges: vec![on_pass] }, Step::default()];
    /// let plan = Plan { steps, budget: 32, exhausted: Default::default() };
    /// let says = [2, 1];
    /// assert_eq!(plan.walk(|step| Ok::<_, ()>(says[step]), |_, _| {}), Ok(1));
    /// ```
    ///
    /// # Errors
    /// With the error of `run`.
    pub fn walk<E>(
        &self,
        mut run: impl FnMut(usize) -> Result<u32, E>,
        mut refused: impl FnMut(usize, usize),
    ) -> Result<u32, E> {
        let mut left = self.budget;
        // Edges that have a bound.
        let mut taken: Vec<(usize, usize)> = Vec::new();
        let mut step = 0;
        while let Some(at) = self.steps.get(step) {
            let verdict = run(step)?;
            left = left.saturating_sub(1);
            let found = at.edge(verdict).and_then(|n| Some((n, at.edges.get(n)?)));
            let Some((number, edge)) = found else { return Ok(verdict) };
            let next = match edge.to {
                To::Keep => return Ok(verdict),
                To::End(end) => return Ok(end),
                To::Node(next) => next,
            };
            if let Some(bound) = edge.bound {
                let times = taken.iter().filter(|t| **t == (step, number)).count();
                if times >= bound as usize {
                    refused(step, number);
                    return Ok(verdict);
                }
                taken.push((step, number));
            }
            if left == 0 {
                refused(step, number);
                return Ok(if self.exhausted == Exhausted::Abort { 0 } else { verdict });
            }
            step = next;
        }
        // A plan that was checked leads nowhere else.
        Ok(0)
    }
}
