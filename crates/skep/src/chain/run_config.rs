//! What the author of a program says of its place in a chain: libxdp's `.xdp_run_config`.
//!
//! It is a section of an object's types. A variable `_NAME` there is of a structure whose members are
//! `priority` and verdicts by name; the value of each is the length of an array that it points to,
//! as in definitions of maps:
//!
//! ```c
//! struct {
//!     __uint(priority, 10);
//!     __uint(XDP_PASS, 1);
//!     __uint(XDP_DROP, 1);
//! } XDP_RUN_CONFIG(filter);
//! ```

use skep_net::chain::priority::{DEFAULT_ACTIONS, DEFAULT_PRIORITY, RunConfig};
use skep_object::Btf;
use skep_object::btf::{Kind, Member, TypeId};

const SECTION: &str = ".xdp_run_config";
/// Names of verdicts, by bit.
const VERDICTS: [&str; 5] = ["XDP_ABORTED", "XDP_DROP", "XDP_PASS", "XDP_TX", "XDP_REDIRECT"];

/// Says that the place of a program in a chain is described by something unknown.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
#[error(
    "`XDP_RUN_CONFIG({program})` has `{}`: it may have `priority`, and verdicts such as `XDP_PASS`",
    // Nobody checked what the object has there.
    member.escape_debug()
)]
pub struct UnknownMember {
    /// The program.
    pub program: String,
    /// The member.
    pub member: String,
}

/// Returns what an object's types say of one of its programs; the defaults where they say nothing.
///
/// As in libxdp, a verdict that is named with a value is added to the default, and one that is named
/// with 0 is taken away.
///
/// # Errors
/// When something else is named.
pub fn run_config(btf: &Btf, program: &str) -> Result<RunConfig, UnknownMember> {
    let mut config = RunConfig { priority: DEFAULT_PRIORITY, actions: DEFAULT_ACTIONS };
    for member in members(btf, program).unwrap_or_default() {
        let name = btf.string(member.name_off);
        let bit = VERDICTS.iter().position(|v| *v == name);
        match (value(btf, member.type_id), bit) {
            (Some(priority), None) if name == "priority" => config.priority = priority,
            (Some(value), Some(bit)) => {
                config.actions = config.actions & !(1 << bit) | u32::from(value != 0) << bit;
            }
            _ => {
                let (program, member) = (program.to_owned(), name.to_owned());
                return Err(UnknownMember { program, member });
            }
        }
    }
    Ok(config)
}

/// The members of the structure that describes a program.
fn members<'a>(btf: &'a Btf, program: &str) -> Option<&'a [Member]> {
    let section = btf.find(SECTION, |kind| matches!(kind, Kind::DataSec(_)))?;
    let Kind::DataSec(section) = &btf.get(section).ok()?.kind else { return None };
    let is_its = |id: TypeId| btf.name(id).strip_prefix('_') == Some(program);
    let variable = section.vars.iter().map(|v| v.type_id).find(|id| is_its(*id))?;
    let Kind::Var(variable) = &btf.get(variable).ok()?.kind else { return None };
    match &btf.resolve(variable.type_id).ok()?.1.kind {
        Kind::Struct(composite) => Some(&composite.members),
        _ => None,
    }
}

/// The length of the array that a type points to.
fn value(btf: &Btf, id: TypeId) -> Option<u32> {
    let Kind::Ptr(to) = btf.get(id).ok()?.kind else { return None };
    match btf.get(to).ok()?.kind {
        Kind::Array(array) => Some(array.len),
        _ => None,
    }
}
