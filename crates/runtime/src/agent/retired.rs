//! Links that were detached while a thread may have been inside one of their programs: they are
//! freed when none is.

use skep_attach::Engine;
use skep_sys::sandbox;

use super::link::ActiveLink;

/// Detached links.
#[derive(Default)]
pub(super) struct Retired(Vec<ActiveLink>);

impl Retired {
    pub(super) const fn new() -> Self {
        Self(Vec::new())
    }

    /// Takes a link whose hooks were taken out.
    pub(super) fn push(&mut self, link: ActiveLink) {
        self.0.push(link);
    }

    /// Tells whether one of them is meant.
    pub(super) fn any(&self, is_it: impl Fn(&ActiveLink) -> bool) -> bool {
        self.0.iter().any(is_it)
    }

    /// Frees what no thread is inside of.
    pub(super) fn free(&mut self, engine: &Engine) {
        let waits = self.0.iter().any(|link| !link.is_stuck());
        // To free is to call the system.
        if !waits || !sandbox::may_call_system() || !engine.drain() {
            return;
        }
        self.0.retain_mut(|link| {
            if !link.is_stuck() {
                link.set_drained();
            }
            link.is_stuck()
        });
    }
}
