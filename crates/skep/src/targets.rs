//! The functions that a program's section names.

use skep_store::link::Pattern;

/// Splits what a section says after its slash.
pub(crate) fn listed(target: Option<&str>) -> Vec<String> {
    Pattern::list(target.unwrap_or_default())
}

/// The functions that a section names, without their modules. Patterns that cannot be read are left
/// out.
pub(crate) fn functions(target: Option<&str>) -> Vec<String> {
    listed(target).iter().filter_map(|n| n.parse::<Pattern>().ok()).map(|p| p.function).collect()
}
