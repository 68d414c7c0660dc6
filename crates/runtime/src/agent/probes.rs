//! Probes that programs declare themselves (USDT): places in their code that the loader has found in
//! the notes of their files, and semaphores, which tell the program that somebody listens.

use std::sync::Arc;
use std::sync::atomic::{AtomicU16, Ordering::Relaxed};

use skep_attach::sites::{Function, Module};
use skep_proc::maps::{self, Perms};
use skep_store::link::LinkProbe;

/// Adds the probes of a module, and their cookies.
pub(super) fn select(
    probes: &[LinkProbe],
    module: &Arc<Module>,
    all: &mut Vec<Function>,
    cookies: &mut Vec<u64>,
    semaphores: &mut Semaphores,
) {
    let path = module.path().to_string_lossy();
    for probe in probes.iter().filter(|probe| *path == *probe.module) {
        let place = module.place(probe.vaddr, &probe.name);
        if probe.semaphore != 0 {
            let semaphore = module.bias().wrapping_add(probe.semaphore);
            semaphores.known.push((place.addr(), semaphore));
        }
        all.push(place);
        cookies.push(probe.cookie);
    }
}

/// The semaphores of a link's probes: counters of 16 bits in the program's own data.
#[derive(Default, Debug)]
pub(super) struct Semaphores {
    /// By the address of the probe.
    known: Vec<(u64, u64)>,
    raised: Vec<u64>,
}

impl Semaphores {
    /// Counts the listener of a probe that hooks were attached to.
    pub(super) fn raise(&mut self, probe: u64) {
        let known = self.known.iter().filter(|(at, _)| *at == probe);
        let all: Vec<u64> = known.map(|(_, semaphore)| *semaphore).collect();
        for semaphore in all {
            if add(semaphore, 1) {
                self.raised.push(semaphore);
            }
        }
    }

    /// Takes all that were counted back.
    pub(super) fn lower(&mut self) {
        for semaphore in self.raised.drain(..) {
            add(semaphore, u16::MAX);
        }
    }
}

/// Adds to a semaphore, around its end; false where there is none: its library may be gone.
fn add(semaphore: u64, n: u16) -> bool {
    let wanted = Perms::READ | Perms::WRITE;
    let there = semaphore.is_multiple_of(2)
        && maps::own()
            .unwrap_or_default()
            .iter()
            .any(|v| v.perms.contains(wanted) && v.start <= semaphore && semaphore < v.end);
    if there {
        // SAFETY: two aligned bytes of memory that can be written, which the program's notes name.
        unsafe { (*(semaphore as *const AtomicU16)).fetch_add(n, Relaxed) };
    }
    there
}
