//! The part of a program that finds what it looks up first, as a program of its own.
//!
//! On a batch of packets that part can run for all of them before the program does, so that the
//! memory of all their lookups is waited for at once, and not for one after the other. It has no
//! consequences but what is told of its lookups, and goes only as far as that can be said:
//!
//! | instruction | becomes |
//! |---|---|
//! | arithmetic, jumps, loads, stores to the stack by r10 | itself |
//! | other stores, atomics | nothing: what is read back later is another value at worst |
//! | a lookup in a map that may be far away | a call of [`LOOK_AHEAD`], and the end if it says 1 |
//! | lookups in other maps, and calls that change nothing | themselves |
//! | everything else | the end |
//!
//! **Why that is safe.** A verifier that accepted the program did so for any contents of packets and
//! maps, and for every result of a lookup. Each run of this part is the beginning of a run of the
//! program with some such contents: stores to the stack, which a verifier does follow, are all there.
//! A store whose address may be one on the stack, and is not taken from r10 at once, is an end; and
//! there is no such part of a program that stores an address of its stack.

use skep_isa::helper::{LOOK_AHEAD, id};
use skep_isa::{Insn, op};

/// What becomes of an instruction.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Becomes {
    Itself,
    Nothing,
    Ask,
    End,
}

/// What is known before an instruction.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
struct State {
    /// Registers that may hold an address on the stack, as bits.
    stack: u16,
    /// The map that r1 holds, as a number of the program's list.
    map: Option<u32>,
}

const START: State = State { stack: 1 << op::FP, map: None };

impl State {
    fn may_be_stack(self, register: u8) -> bool {
        self.stack >> register & 1 != 0
    }

    fn set(&mut self, register: u8, stack: bool) {
        self.stack = self.stack & !(1 << register) | u16::from(stack) << register;
        if register == 1 {
            self.map = None;
        }
    }

    /// Says what becomes of an instruction, and changes the state as it does; `None` when it stores
    /// an address of the stack.
    fn step(&mut self, i: Insn, is_far: &dyn Fn(Option<u32>) -> bool) -> Option<Becomes> {
        let from_register = i.code & op::X != 0;
        let (dst, src) = (i.dst(), self.may_be_stack(i.src()));
        Some(match i.class() {
            op::ALU | op::ALU64 => match i.code & 0xf0 {
                op::MOV if from_register && i.off == op::ADDR_SPACE_CAST => Becomes::End,
                op::MOV => {
                    self.set(dst, from_register && src);
                    Becomes::Itself
                }
                op::NEG | op::END => {
                    self.set(dst, self.may_be_stack(dst));
                    Becomes::Itself
                }
                _ => {
                    self.set(dst, self.may_be_stack(dst) || from_register && src);
                    Becomes::Itself
                }
            },
            op::LD if i.is_ld_imm64() => {
                self.set(dst, false);
                if dst == 1 && i.src() == op::PSEUDO_MAP_IDX {
                    self.map = Some(i.imm as u32);
                }
                Becomes::Itself
            }
            op::LDX if i.code & 0xe0 != op::IMM && i.code & 0xe0 != op::ATOMIC => {
                self.set(dst, false);
                Becomes::Itself
            }
            op::ST | op::STX if i.code & 0xe0 == op::MEM => {
                if i.class() == op::STX && src {
                    return None;
                }
                self.store(dst)
            }
            op::STX if i.code & 0xe0 == op::ATOMIC && i.imm == op::ATOMIC_LOAD_ACQ => {
                self.set(dst, false);
                Becomes::Itself
            }
            op::STX if i.code & 0xe0 == op::ATOMIC => {
                if src {
                    return None;
                }
                self.store(dst)
            }
            op::JMP | op::JMP32 if i.code == op::CALL => {
                let becomes = match i.imm as u32 {
                    _ if !i.is_helper_call() => Becomes::End,
                    id::MAP_LOOKUP_ELEM if is_far(self.map) => Becomes::Ask,
                    id::MAP_LOOKUP_ELEM
                    | id::KTIME_GET_NS
                    | id::KTIME_GET_BOOT_NS
                    | id::KTIME_GET_COARSE_NS
                    | id::GET_SMP_PROCESSOR_ID
                    | id::CSUM_DIFF
                    | id::XDP_GET_BUFF_LEN => Becomes::Itself,
                    _ => Becomes::End,
                };
                (0..=5).for_each(|register| self.set(register, false));
                becomes
            }
            op::JMP | op::JMP32 => Becomes::Itself,
            _ => Becomes::End,
        })
    }

    fn store(self, base: u8) -> Becomes {
        match self.may_be_stack(base) {
            _ if base == op::FP => Becomes::Itself,
            true => Becomes::End,
            false => Becomes::Nothing,
        }
    }

    /// Returns what is known when either is true.
    fn or(self, other: Self) -> Self {
        let map = if self.map == other.map { self.map } else { None };
        Self { stack: self.stack | other.stack, map }
    }
}

/// Lists where an instruction leads.
fn next(at: usize, i: Insn) -> [Option<usize>; 2] {
    let to = |distance: i32| (at + 1).checked_add_signed(distance as isize);
    match i.class() {
        op::JMP if i.code == op::EXIT => [None, None],
        op::JMP | op::JMP32 if i.code == op::CALL => [Some(at + 1), None],
        op::JMP if i.code & 0xf0 == op::JA => [to(i.off.into()), None],
        op::JMP32 if i.code & 0xf0 == op::JA => [to(i.imm), None],
        op::JMP | op::JMP32 => [Some(at + 1), to(i.off.into())],
        _ => [Some(at + if i.is_ld_imm64() { 2 } else { 1 }), None],
    }
}

/// Builds a jump from one slot to another.
fn jump(from: usize, to: usize) -> Insn {
    let distance = to as i64 - from as i64 - 1;
    Insn::new(op::JMP32 | op::JA, 0, 0, 0, distance as i32)
}

/// Returns the part of a program that finds its first lookups in maps that may be far away: `is_far`
/// says that of a map by its number in the program's list, or of one that is not known. `None` when
/// the program has no such part.
#[must_use]
pub fn program(insns: &[Insn], is_far: &dyn Fn(Option<u32>) -> bool) -> Option<Vec<Insn>> {
    let mut states: Vec<Option<State>> = vec![None; insns.len()];
    *states.first_mut()? = Some(START);
    let mut todo = vec![0];
    while let Some(at) = todo.pop() {
        let (i, mut state) = (*insns.get(at)?, states.get(at).copied().flatten()?);
        if state.step(i, is_far)? == Becomes::End {
            continue;
        }
        for to in next(at, i).into_iter().flatten() {
            let known = states.get_mut(to)?;
            let joined = known.map_or(state, |known| known.or(state));
            if *known != Some(joined) {
                *known = Some(joined);
                todo.push(to);
            }
        }
    }
    // What is known at last may end it before what was reached meanwhile.
    let mut reached = vec![false; insns.len()];
    todo.push(0);
    while let Some(at) = todo.pop() {
        let (i, mut state) = (*insns.get(at)?, states.get(at).copied().flatten()?);
        if !std::mem::replace(reached.get_mut(at)?, true) && state.step(i, is_far)? != Becomes::End
        {
            todo.extend(next(at, i).into_iter().flatten());
        }
    }
    let end = insns.len();
    let mut part = vec![Insn::new(op::JMP | op::JA, 0, 0, 0, 0); end];
    part.extend([Insn::mov64_imm(0, 0), Insn::exit()]);
    let mut asks = false;
    for (at, i) in insns.iter().enumerate().filter(|(at, _)| reached.get(*at) == Some(&true)) {
        let mut state = states.get(at).copied().flatten()?;
        let becomes = state.step(*i, is_far)?;
        let stub = part.len();
        let with = match becomes {
            Becomes::Nothing => continue,
            Becomes::End => jump(at, end),
            Becomes::Ask => {
                asks = true;
                part.extend([
                    Insn::call(LOOK_AHEAD),
                    Insn::new(op::JMP | op::JNE, 0, 0, 2, 1),
                    Insn::mov64_imm(0, 0),
                    Insn::exit(),
                    jump(stub + 4, at + 1),
                ]);
                jump(at, stub)
            }
            // The address of a function goes to calls only, which are ends.
            Becomes::Itself if i.is_ld_imm64() && i.src() == op::PSEUDO_FUNC => {
                Insn { imm: 0, ..i.with_src(0) }
            }
            Becomes::Itself => *i,
        };
        *part.get_mut(at)? = with;
        if i.is_ld_imm64() {
            *part.get_mut(at + 1)? = *insns.get(at + 1)?;
        }
    }
    asks.then_some(part)
}

#[cfg(test)]
mod tests {
    use super::*;
    use skep_isa::text::{assemble, source};

    /// The part of a program, where map 7 alone is near.
    fn part(text: &str) -> Option<String> {
        let insns = assemble(text).expect("it is good");
        let part = program(&insns, &|map| map != Some(7))?;
        let whole = source(&part).expect("it can be written");
        // What lies behind the program is the same for all: the end, and the questions.
        Some(whole.lines().take(insns.len()).collect::<Vec<_>>().join("\n"))
    }

    #[test]
    fn it_goes_up_to_the_lookup_without_consequences() {
        let text = "ldxw r6, [r1+0]\nldxdw r2, [r6+20]\nstxdw [r10-8], r2\nstxw [r6+0], r2\n\
            lddw r1, map 0\nmov r2, r10\nadd r2, -8\ncall 1\njeq r0, 0, +1\nstxdw [r0+0], r6\n\
            mov r0, 2\nexit";
        let insns = assemble(text).expect("it is good");
        let part = program(&insns, &|map| map == Some(0)).expect("it looks something up");
        let same = [0, 1, 2, 4, 5, 6, 7, 9, 11, 12];
        let nothing = Insn::new(op::JMP | op::JA, 0, 0, 0, 0);
        for (at, (was, is)) in insns.iter().zip(&part).enumerate() {
            match at {
                3 | 10 => assert_eq!(*is, nothing, "a store to the packet, and to the value"),
                8 => assert_eq!(next(8, *is)[0], Some(insns.len() + 2), "the question"),
                _ => assert!(same.contains(&at) && is == was, "{at}: {is:?}"),
            }
        }
        assert_eq!(part[insns.len() + 2], Insn::call(LOOK_AHEAD));
        assert_eq!(next(part.len() - 1, part[part.len() - 1])[0], Some(9), "it may go on");
        assert_eq!(program(&insns, &|map| map == Some(1)), None, "all maps are near");
    }

    #[test]
    fn near_maps_are_looked_up_and_unknown_ones_asked_about() {
        let near = "stw [r10-4], 0\nlddw r1, map 7\nmov r2, r10\nadd r2, -4\ncall 1\n";
        assert_eq!(part(&format!("{near}exit")), None);
        let far = "jeq r0, 0, +5\nmov r1, r0\nmov r2, r10\nadd r2, -4\ncall 1\nmov r0, 1\nexit";
        let both = part(&format!("{near}{far}")).expect("a map that is not known is far");
        let calls = both.lines().filter(|line| line.starts_with("call")).count();
        assert_eq!(calls, 1, "{both}");
    }

    #[test]
    fn what_has_consequences_ends_it() {
        let lookup = "lddw r1, map 0\nmov r2, r10\nadd r2, -8\ncall 1\nmov r0, 0\nexit";
        assert!(part(&format!("stdw [r10-8], 1\n{lookup}")).is_some());
        for before in [
            // bpf_map_update_elem, bpf_xdp_adjust_head, bpf_tail_call, a local call.
            "stdw [r10-8], 1\ncall 2",
            "stdw [r10-8], 1\ncall 44",
            "stdw [r10-8], 1\ncall 12",
            // The address of the stack is stored, or hidden in another register.
            "stdw [r10-8], 1\nstxdw [r10-16], r10",
            "stdw [r10-8], 1\nmov r3, r10\nadd r3, -16\nstdw [r3+0], 1",
            "stdw [r10-8], 1\nmov r3, 0\nadd r3, r10\nstdw [r3-16], 1",
        ] {
            assert_eq!(part(&format!("{before}\n{lookup}")), None, "{before}");
        }
    }

    #[test]
    fn ways_that_meet_know_what_both_know() {
        // r3 is the stack's on one way; r1 another map.
        let store = "stdw [r10-8], 1\nmov r3, r1\njeq r1, 0, +1\nmov r3, r10\nstdw [r3-16], 1\n\
            lddw r1, map 0\nmov r2, r10\nadd r2, -8\ncall 1\nmov r0, 0\nexit";
        assert_eq!(part(store), None);
        let maps = "stdw [r10-8], 1\nmov r3, r1\nlddw r1, map 7\njeq r3, 0, +2\nlddw r1, map 7\n\
            mov r2, r10\nadd r2, -8\ncall 1\nmov r0, 0\nexit";
        assert_eq!(part(maps), None, "both are near");
        let maps = maps.replacen("map 7", "map 6", 1);
        assert!(part(&maps).is_some(), "one is far");
    }

    #[test]
    fn no_instructions_make_it_panic() {
        let mut state = 1_u64;
        let mut random = move || {
            state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
            (state >> 33) as u32
        };
        for _ in 0..20_000 {
            let insns: Vec<Insn> = (0..1 + random() % 12)
                .map(|_| {
                    let code = [1, 5, 0x18, 0x63, 0x7b, 0x85, 0x95, 0xbf, 0xdb, random() as u8];
                    let near = |n: u32| (n % 9) as i32 - 4;
                    let code = code[random() as usize % code.len()];
                    let off = near(random()) as i16;
                    Insn { code, regs: random() as u8, off, imm: near(random()) }
                })
                .collect();
            if let Some(part) = program(&insns, &|_| true) {
                assert!(part.len() > insns.len() + 2);
            }
        }
    }
}
