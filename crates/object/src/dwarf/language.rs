//! Languages of units, and what they say of how arguments are passed.

use super::file::{Entry, Slice};
use gimli::{AttributeValue as Value, UnitRef, constants as dw};

/// What languages say of how arguments are passed.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Language {
    /// As the ABI of C says, also structures.
    C,
    Cpp,
    /// Numbers and pointers as in C, structures by a convention of its own; the second number of rustc's
    /// version.
    Rust {
        minor: u32,
    },
    Other,
}

impl Language {
    /// Tells whether functions may be described inside of others and of classes, as GCC does it.
    pub fn has_inner(self) -> bool {
        matches!(self, Self::C | Self::Cpp)
    }
}

pub(super) fn language<'a>(unit: &UnitRef<'_, Slice<'a>>, root: &Entry<'a>) -> Language {
    match root.attr_value(dw::DW_AT_language) {
        Some(Value::Language(l)) => match l {
            dw::DW_LANG_C
            | dw::DW_LANG_C89
            | dw::DW_LANG_C99
            | dw::DW_LANG_C11
            | dw::DW_LANG_C17
            | dw::DW_LANG_ObjC => Language::C,
            dw::DW_LANG_C_plus_plus
            | dw::DW_LANG_C_plus_plus_03
            | dw::DW_LANG_C_plus_plus_11
            | dw::DW_LANG_C_plus_plus_14
            | dw::DW_LANG_C_plus_plus_17
            | dw::DW_LANG_C_plus_plus_20
            | dw::DW_LANG_ObjC_plus_plus => Language::Cpp,
            dw::DW_LANG_Rust => {
                let producer = root.attr_value(dw::DW_AT_producer);
                let text = producer.and_then(|p| unit.attr_string(p).ok());
                let text = text.and_then(|s| str::from_utf8(s.slice()).ok()).unwrap_or_default();
                Language::Rust { minor: minor_version(text) }
            }
            _ => Language::Other,
        },
        _ => Language::Other,
    }
}

/// What stands in front of the version in `DW_AT_producer`.
const PRODUCER: &str = "rustc version 1.";

/// The second number of the version of rustc that made a unit; 0 for other compilers.
pub(super) fn minor_version(producer: &str) -> u32 {
    let Some((_, rest)) = producer.split_once(PRODUCER) else { return 0 };
    rest.split('.').next().and_then(|minor| minor.parse().ok()).unwrap_or(0)
}

/// Tells whether a symbol is a name that rustc made: what others call by its own name seldom has Rust's
/// convention.
pub(super) fn is_mangled(symbol: &str) -> bool {
    symbol.starts_with("_R") || symbol.starts_with("_ZN")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn versions_and_names_of_rustc() {
        assert_eq!(minor_version("clang LLVM (rustc version 1.95.0 (59807616e 2026-04-14))"), 95);
        assert_eq!(minor_version("clang LLVM (rustc version 1.63.0)"), 63);
        assert_eq!(minor_version("GNU Rust frontend 14"), 0);
        assert!(is_mangled("_RNvCs1_1r4text") && is_mangled("_ZN1r4text17h53711b803699ca08E"));
        assert!(!is_mangled("main") && !is_mangled("callback"));
    }
}
