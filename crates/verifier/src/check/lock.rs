//! What must be given back before a path ends or waits: references, spin locks, read-side sections, preemption.

use super::Walk;
use crate::reject::Reason;

impl Walk<'_> {
    /// Checks that nothing is held that must be given back before `what`.
    pub(super) fn check_nothing_held(&self, what: &'static str) -> Result<(), Reason> {
        if let Some(r) = self.state.refs.first() {
            return Err(Reason::Unreleased { id: r.id, insn: r.insn });
        }
        if self.state.lock.is_some() {
            return Err(Reason::Inside { what, section: "bpf_spin_lock-ed" });
        }
        if self.state.rcu > 0 {
            return Err(Reason::Inside { what, section: "bpf_rcu_read_lock-ed" });
        }
        if self.state.preempt > 0 {
            return Err(Reason::Inside { what, section: "bpf_preempt_disable-ed" });
        }
        Ok(())
    }
}
