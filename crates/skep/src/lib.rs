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
