//! Which unwind table covers an address, and what was found in tables.
//!
//! The agent says where modules lie; events read. Both the list and the steps that were found are
//! fixed in size and without locks: whoever reads while the list changes knows nothing, for this
//! once, and follows frame pointers.

use std::ops::Range;
use std::sync::atomic::Ordering::{Acquire, Relaxed, Release};
use std::sync::atomic::{AtomicU64, fence};

use skep_proc::unwind::{Memory, Step};

/// Pieces of code with a table; what is beyond has none.
const MAX: usize = 512;
/// Steps that are kept.
const KEPT_BITS: u32 = 11;
/// Spreads numbers over all bits of a word.
const FACTOR: u64 = 0x9e37_79b9_7f4a_7c15;

/// Odd while the list changes.
static SEQUENCE: AtomicU64 = AtomicU64::new(0);
static COUNT: AtomicU64 = AtomicU64::new(0);
/// Start, end, and address of the table; sorted.
static CODE: [[AtomicU64; 3]; MAX] = [const { [const { AtomicU64::new(0) }; 3] }; MAX];
/// The agent's own, as in [`CODE`].
static OWN: [AtomicU64; 3] = [const { AtomicU64::new(0) }; 3];
/// A place and its step; the place is [`mixed`] with the step and with the number of the list, so that
/// words of two threads, or of an earlier list, match nothing.
static KEPT: [[AtomicU64; 2]; 1 << KEPT_BITS] =
    [const { [const { AtomicU64::new(0) }; 2] }; 1 << KEPT_BITS];

/// Says where code lies and where its unwind table does (`.eh_frame_hdr`). One caller at a time.
pub fn set_modules(code: impl Iterator<Item = (Range<u64>, u64)>) {
    let mut code: Vec<_> = code.collect();
    // A few, by a number: such sorts share their code.
    code.sort_by_cached_key(|(range, _)| range.start);
    code.truncate(MAX);
    let words = |(range, table): &(Range<u64>, u64)| [range.start, range.end, *table];
    let is_known = COUNT.load(Relaxed) == code.len() as u64
        && CODE.iter().zip(&code).all(|(known, new)| {
            known.iter().zip(words(new)).all(|(known, new)| known.load(Relaxed) == new)
        });
    if is_known {
        return;
    }
    let before = SEQUENCE.load(Relaxed);
    SEQUENCE.store(before | 1, Relaxed);
    // Pairs with the fence in `table_of`.
    fence(Release);
    COUNT.store(code.len() as u64, Relaxed);
    for (known, new) in CODE.iter().zip(&code) {
        known.iter().zip(words(new)).for_each(|(known, new)| known.store(new, Relaxed));
    }
    // Numbers of lists come again after a while.
    KEPT.iter().for_each(|[place, _]| place.store(0, Relaxed));
    SEQUENCE.store((before | 1).wrapping_add(1), Release);
}

/// Says where the agent's own code and its table lie, before there are events.
pub fn set_own_code(code: Range<u64>, table: u64) {
    let words = [code.start, code.end, table];
    OWN.iter().zip(words).for_each(|(word, new)| word.store(new, Relaxed));
}

/// Tells whether a place is in the agent: in the trampoline that has called a function.
pub(super) fn is_own(place: u64) -> bool {
    let [start, end, _] = &OWN;
    place >= start.load(Relaxed) && place < end.load(Relaxed)
}

/// The step from a place to its caller.
pub(super) fn step<M: Memory>(memory: &mut M, place: u64) -> Step {
    let sequence = SEQUENCE.load(Acquire);
    let hash = place.wrapping_mul(FACTOR) >> (64 - KEPT_BITS);
    let Some([kept_place, kept_step]) = KEPT.get(hash as usize) else { return Step::UNKNOWN };
    let bits = kept_step.load(Relaxed);
    if kept_place.load(Relaxed) == mixed(place, bits, sequence) {
        return Step::from_bits(bits);
    }
    let Some(table) = table_of(place, sequence) else { return Step::UNKNOWN };
    let step = Step::find(memory, table, place);
    kept_step.store(step.to_bits(), Relaxed);
    kept_place.store(mixed(place, step.to_bits(), sequence), Relaxed);
    step
}

/// What stands beside a step: another place, step or list makes another word of it.
fn mixed(place: u64, step: u64, sequence: u64) -> u64 {
    // Addresses of programs have 47 bits.
    (place ^ sequence << 48).wrapping_add(step.wrapping_mul(FACTOR))
}

/// The table of the code at a place.
fn table_of(place: u64, sequence: u64) -> Option<u64> {
    if is_own(place) {
        return Some(OWN[2].load(Relaxed));
    }
    let (mut low, mut high) = (0, COUNT.load(Relaxed) as usize);
    while low < high {
        let middle = low.midpoint(high);
        if CODE.get(middle)?[0].load(Relaxed) <= place { low = middle + 1 } else { high = middle }
    }
    let [_, end, table] = CODE.get(low.checked_sub(1)?)?;
    let (end, table) = (end.load(Relaxed), table.load(Relaxed));
    // Pairs with the fence in `set_modules`: words of a list that has changed since are not used.
    fence(Acquire);
    let unchanged = sequence & 1 == 0 && SEQUENCE.load(Relaxed) == sequence;
    (unchanged && place < end).then_some(table)
}

#[cfg(test)]
mod tests {
    use super::*;
    use skep_proc::unwind::Registers;
    use std::sync::atomic::AtomicBool;

    const RANGE: Range<u64> = 0x10000..0x20000;

    /// A table at an address, for which all code has pushed so many bytes, and a stack of sevens.
    struct Table {
        at: u64,
        bytes: Vec<u8>,
    }

    impl Table {
        fn new(at: u64, pushed: u8) -> Self {
            let mut bytes = vec![1, 0x1b, 3, 0x3b, 0, 0, 0, 0, 1, 0, 0, 0];
            bytes.extend(((RANGE.start - at) as u32).to_le_bytes());
            bytes.extend(44_u32.to_le_bytes());
            // CIE: augmentation `zR`, factors 1 and -8, the CFA is rsp+8.
            bytes.extend([20, 0, 0, 0, 0, 0, 0, 0, 1, b'z', b'R', 0, 1, 0x78, 16, 1, 0x1b]);
            bytes.extend([0x0c, 7, 8, 0x90, 1, 0, 0]);
            // FDE: the CFA is rsp and what was pushed.
            bytes.extend([16, 0, 0, 0, 28, 0, 0, 0]);
            bytes.extend(((RANGE.start - at - 52) as u32).to_le_bytes());
            bytes.extend(((RANGE.end - RANGE.start) as u32).to_le_bytes());
            bytes.extend([0, 0x0e, pushed, 0]);
            Self { at, bytes }
        }
    }

    struct Tables([Table; 2]);

    impl Memory for Tables {
        fn number(&mut self, addr: u64, size: u64) -> Option<u64> {
            let Some(table) = self.0.iter().find(|t| addr.wrapping_sub(t.at) < 64) else {
                return Some(7);
            };
            let bytes = table.bytes.get((addr - table.at) as usize..)?.get(..size as usize)?;
            Some(bytes.iter().rev().fold(0, |value, byte| value << 8 | u64::from(*byte)))
        }
    }

    /// Modules come and go at one address while others look: none gets the step of a list that had
    /// ended when it began.
    #[test]
    fn steps_are_those_of_the_list() {
        let tables = || Tables([Table::new(0x1000, 16), Table::new(0x2000, 32)]);
        let pushed = |memory: &mut Tables, place: u64| {
            let found = step(memory, place);
            let frame = Registers { ip: place, sp: 0x7000, bp: 0x9000, is_return: false };
            let caller = found.take(memory, frame).expect("there is a stack");
            (found != Step::UNKNOWN).then(|| caller.sp - frame.sp)
        };
        let done = AtomicBool::new(false);
        std::thread::scope(|s| {
            let _done = skep_testkit::run::SetOnDrop(&done);
            s.spawn(|| {
                let mut memory = tables();
                while !done.load(Relaxed) {
                    for place in RANGE.step_by(0x101).take(40) {
                        assert!(matches!(pushed(&mut memory, place), None | Some(16 | 32)));
                    }
                }
            });
            let mut memory = tables();
            for turn in 0..20_000 {
                let (table, want) = if turn % 2 == 0 { (0x1000, 16) } else { (0x2000, 32) };
                set_modules([(RANGE, table)].into_iter());
                for place in RANGE.step_by(0x101).take(40) {
                    assert_eq!(pushed(&mut memory, place), Some(want), "{turn} {place:#x}");
                }
            }
        });
        set_modules(std::iter::empty());
        assert_eq!(pushed(&mut tables(), RANGE.start), None);
    }
}
