//! What calls take, in a byte for each helper.
//!
//! A process that only runs programs needs no more: the rows, with what they refer to, would be a
//! twentieth of what each traced process has of skep.

use super::{ArgType, HELPERS, Helper, HelperId, KFUNC_BASE, KFUNCS};

/// Which of a helper's arguments are there, as [`Helper::args`] says it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Arguments(u8);

/// One of them may be the program's context.
const CONTEXT: u8 = 1 << 7;

static OF_HELPERS: [Arguments; HELPERS.len()] = all(HELPERS);
static OF_KFUNCS: [Arguments; KFUNCS.len()] = all(KFUNCS);

impl Arguments {
    const fn of(helper: &Helper) -> Self {
        let (mut n, mut context) = (0, 0);
        while n < helper.args.len() {
            if matches!(helper.args[n], ArgType::Ctx | ArgType::CtxOrNull | ArgType::CtxOrSocket) {
                context = CONTEXT;
            }
            n += 1;
        }
        Self(helper.registers() as u8 | context)
    }

    /// How many registers a call may read, as [`Helper::registers`] says it.
    #[must_use]
    pub fn registers(self) -> usize {
        usize::from(self.0 & !CONTEXT)
    }

    /// Tells whether the program's context may be among them.
    #[must_use]
    pub fn take_context(self) -> bool {
        self.0 & CONTEXT != 0
    }
}

const fn all<const N: usize>(rows: &[Helper]) -> [Arguments; N] {
    let (mut out, mut n) = ([Arguments(0); N], 0);
    while n < N {
        out[n] = Arguments::of(&rows[n]);
        n += 1;
    }
    out
}

/// Finds what a helper takes by its number.
///
/// ```
/// use skep_isa::helper::{arguments, id};
/// let lookup = arguments(id::MAP_LOOKUP_ELEM).unwrap();
/// assert_eq!((lookup.registers(), lookup.take_context()), (2, false));
/// ```
#[must_use]
pub fn arguments(id: HelperId) -> Option<Arguments> {
    let (all, first) =
        if id >= KFUNC_BASE { (&OF_KFUNCS[..], KFUNC_BASE) } else { (&OF_HELPERS[..], 1) };
    all.get(id.checked_sub(first)? as usize).copied()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::helper::by_id;

    #[test]
    fn the_bytes_say_what_the_rows_say() {
        for id in (0..300).chain(KFUNC_BASE - 1..KFUNC_BASE + 300) {
            let takes = |row: &Helper| {
                let context = [ArgType::Ctx, ArgType::CtxOrNull, ArgType::CtxOrSocket];
                (row.registers(), row.args.iter().any(|arg| context.contains(arg)))
            };
            let known = arguments(id).map(|args| (args.registers(), args.take_context()));
            assert_eq!(known, by_id(id).map(takes), "{id}");
        }
        assert!((1..300).filter_map(arguments).any(Arguments::take_context));
    }
}
