//! skep: the eBPF subsystem outside the kernel, as a library.
pub mod btf;
mod convert;
pub mod kconfig;
pub mod link;
pub mod load;
pub mod prototypes;
pub mod prove;
pub mod test_run;

pub use skep_isa as isa;
pub use skep_maps as maps;
pub use skep_object as object;
pub use skep_runtime::memory;
pub use skep_store::{Dir, DirError, Error, RecordError, dir, prog};
pub use skep_verifier as verifier;

use skep_isa::{HelperId, ProgramType};
use skep_vm::HelperImpl;

/// Finds what the code generator needs to call a helper from a program that runs in this process,
/// packet programs among them; `None` when it cannot be called here.
#[must_use]
pub(crate) fn helper(prog: ProgramType, id: HelperId) -> Option<HelperImpl> {
    skep_net::implementation(prog, id).or_else(|| skep_runtime::helpers::implementation(prog, id))
}

#[cfg(test)]
mod tests {
    use skep_isa::helper::{HELPERS, KFUNCS};
    use skep_isa::kfunc;

    /// Verifier and engines go by two tables: what is offered to programs, and what is there.
    #[test]
    fn what_is_offered_is_there() {
        let here = |id| skep_net::has(id) || skep_runtime::helpers::has(id);
        for h in HELPERS.iter().chain(KFUNCS) {
            assert_eq!(here(h.id), h.refused.is_none(), "{} ({}): {:?}", h.name, h.id, h.refused);
        }
        for (id, k) in (kfunc::BASE..).zip(kfunc::KFUNCS) {
            assert_eq!(here(id), k.offered, "{}", k.name);
        }
    }
}
