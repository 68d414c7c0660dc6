//! Where the kernel counts: a per-CPU array, whose values are pages of words.
//!
//! A page has the words of as many steps as fit in the largest value that a per-CPU map may have. A
//! step has the words of [`skep_vm::chain::counters`], and behind them one for each edge: how often
//! it was refused.

use skep_vm::chain::Plan;
use skep_vm::chain::counters::{Layout, STEP};

/// Bytes of the largest value of a per-CPU map (`PCPU_MIN_UNIT_SIZE`).
const PAGE: usize = 32 << 10;

/// Where each step's words are.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Pages {
    /// Page, first word in it, edges.
    steps: Vec<(usize, usize, usize)>,
    /// Pages, and words of the longest.
    pub pages: usize,
    pub words: usize,
}

impl Pages {
    pub fn of(plan: &Plan) -> Self {
        let (mut page, mut used, mut words) = (0, 0, 0);
        let mut steps = Vec::new();
        for step in &plan.steps {
            let size = STEP + step.edges.len();
            if (used + size) * 8 > PAGE {
                (page, used) = (page + 1, 0);
            }
            steps.push((page, used, step.edges.len()));
            used += size;
            words = words.max(used);
        }
        Self { steps, pages: page + 1, words }
    }

    /// Returns a step's page, and the first of its words there.
    pub fn step(&self, step: usize) -> (usize, usize) {
        self.steps.get(step).map_or((0, 0), |(page, word, _)| (*page, *word))
    }

    /// Puts the words of all pages into the order of a plan's own layout.
    pub fn in_order(&self, plan: &Plan, pages: &[Vec<u64>]) -> Vec<u64> {
        let layout = Layout::of(plan);
        let mut out = vec![0; layout.words()];
        for (step, (page, first, edges)) in self.steps.iter().enumerate() {
            let word = |n: usize| pages.get(*page).and_then(|p| p.get(first + n)).copied();
            let own = (0..STEP).map(|n| (layout.step(step) + n, n));
            let refused = (0..*edges).map(|n| (layout.refused(step, n), STEP + n));
            for (to, from) in own.chain(refused) {
                if let (Some(to), Some(word)) = (out.get_mut(to), word(from)) {
                    *to = word;
                }
            }
        }
        out
    }
}
