//! What a seccomp filter does to a system call: classic BPF over `struct seccomp_data`
//! (kernel/seccomp.c, net/core/filter.c).

/// One instruction, `struct sock_filter`.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Insn {
    pub(super) code: u16,
    pub(super) jt: u8,
    pub(super) jf: u8,
    pub(super) k: u32,
}

/// Most instructions of a filter (`BPF_MAXINSNS`).
pub(super) const MAX_INSNS: usize = 4096;

/// What becomes of a system call.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Action {
    /// It is made.
    Made,
    /// It fails with an error number.
    Refused,
    /// The process ends, gets a signal, waits for somebody else, or is told that the call was made.
    Punished,
}

impl Insn {
    /// Reads one as it lies in memory.
    pub(super) fn new(bytes: [u8; 8]) -> Self {
        let [a, b, jt, jf, k @ ..] = bytes;
        Self { code: u16::from_le_bytes([a, b]), jt, jf, k: u32::from_le_bytes(k) }
    }
}

/// Runs a filter on a system call of this machine. One that the kernel would not take punishes
/// everything.
pub(super) fn run(filter: &[Insn], nr: u32, args: [u64; 6]) -> Action {
    const ARCH_X86_64: u32 = 0xc000_003e;
    let mut data = [0_u32; 16];
    data[0] = nr;
    data[1] = ARCH_X86_64;
    for (to, arg) in data.as_chunks_mut::<2>().0.iter_mut().skip(2).zip(args) {
        *to = [arg as u32, (arg >> 32) as u32];
    }
    match value(filter, &data) {
        None => Action::Punished,
        Some(value) => match value & 0xffff_0000 {
            0x7fff_0000 | 0x7ffc_0000 => Action::Made,
            0x0005_0000 if value & 0xffff != 0 => Action::Refused,
            _ => Action::Punished,
        },
    }
}

fn value(filter: &[Insn], data: &[u32; 16]) -> Option<u32> {
    const LEN: u32 = 64;
    let (mut a, mut x, mut mem) = (0_u32, 0_u32, [0_u32; 16]);
    let mut pc = 0_usize;
    // Jumps go forward only.
    loop {
        let Insn { code, jt, jf, k } = *filter.get(pc)?;
        pc += 1;
        let operand = if code & 0x08 == 0 { k } else { x };
        let mut jump = |taken: bool| pc += usize::from(if taken { jt } else { jf });
        match code {
            // ld [k], ld #len, ldx #len, ld #k, ldx #k, ld M[k], ldx M[k]
            0x20 => a = *data.get(k as usize / 4).filter(|_| k.is_multiple_of(4))?,
            0x80 => a = LEN,
            0x81 => x = LEN,
            0x00 => a = k,
            0x01 => x = k,
            0x60 => a = *mem.get(k as usize)?,
            0x61 => x = *mem.get(k as usize)?,
            // st, stx
            0x02 => *mem.get_mut(k as usize)? = a,
            0x03 => *mem.get_mut(k as usize)? = x,
            // alu
            0x04 | 0x0c => a = a.wrapping_add(operand),
            0x14 | 0x1c => a = a.wrapping_sub(operand),
            0x24 | 0x2c => a = a.wrapping_mul(operand),
            // A division by zero ends the filter with 0.
            0x34 | 0x3c => match a.checked_div(operand) {
                Some(quotient) => a = quotient,
                None => return Some(0),
            },
            0x44 | 0x4c => a |= operand,
            0x54 | 0x5c => a &= operand,
            0x64 | 0x6c => a = a.wrapping_shl(operand),
            0x74 | 0x7c => a = a.wrapping_shr(operand),
            0x84 => a = a.wrapping_neg(),
            0xa4 | 0xac => a ^= operand,
            // jumps
            0x05 => pc = pc.checked_add(k as usize)?,
            0x15 | 0x1d => jump(a == operand),
            0x25 | 0x2d => jump(a > operand),
            0x35 | 0x3d => jump(a >= operand),
            0x45 | 0x4d => jump(a & operand != 0),
            // ret #k, ret a
            0x06 => return Some(k),
            0x16 => return Some(a),
            // tax, txa
            0x07 => x = a,
            0x87 => a = x,
            _ => return None,
        }
    }
}

/// Tells whether the kernel takes a filter (`bpf_check_classic` in net/core/filter.c,
/// `seccomp_check_filter` in kernel/seccomp.c).
pub(super) fn is_valid(filter: &[Insn]) -> bool {
    const LAST: usize = 16;
    // Words of scratch memory that are stored to on every path to an instruction.
    let mut stored = vec![u16::MAX; filter.len()];
    let mut here = 0_u16;
    let reaches = |stored: &mut [u16], pc: usize, by: usize, here: u16| {
        let to = pc
            .checked_add(1)
            .and_then(|next| next.checked_add(by))
            .and_then(|to| stored.get_mut(to));
        to.map(|to| *to &= here).is_some()
    };
    for (pc, Insn { code, jt, jf, k }) in filter.iter().copied().enumerate() {
        let word = || usize::try_from(k).ok().filter(|k| *k < LAST).map(|k| 1_u16 << k);
        here &= stored.get(pc).copied().unwrap_or_default();
        let good = match code {
            0x20 => k < 64 && k.is_multiple_of(4),
            // Loads of constants and the length, arithmetic, ret, tax, txa.
            0x80 | 0x81 | 0x00 | 0x01 | 0x06 | 0x16 | 0x07 | 0x87 => true,
            0x04 | 0x0c | 0x14 | 0x1c | 0x24 | 0x2c | 0x3c | 0x44 | 0x4c | 0x54 | 0x5c | 0x6c
            | 0x7c | 0x84 | 0xa4 | 0xac => true,
            0x34 => k != 0,
            0x64 | 0x74 => k < 32,
            0x60 | 0x61 => word().is_some_and(|word| here & word != 0),
            0x02 | 0x03 => word().map(|word| here |= word).is_some(),
            0x05 => {
                let good = reaches(&mut stored, pc, k as usize, here);
                here = u16::MAX;
                good
            }
            0x15 | 0x1d | 0x25 | 0x2d | 0x35 | 0x3d | 0x45 | 0x4d => {
                let good = reaches(&mut stored, pc, usize::from(jt), here)
                    && reaches(&mut stored, pc, usize::from(jf), here);
                here = u16::MAX;
                good
            }
            _ => false,
        };
        if !good {
            return false;
        }
    }
    matches!(filter.last(), Some(Insn { code: 0x06 | 0x16, .. }))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn insn(code: u16, jt: u8, jf: u8, k: u32) -> Insn {
        Insn { code, jt, jf, k }
    }

    const ALLOW: u32 = 0x7fff_0000;
    const KILL: u32 = 0x8000_0000;
    const ERRNO: u32 = 0x0005_0001;

    /// As OpenSSH and libseccomp write them: the architecture, then a list of numbers, and one with
    /// an argument.
    #[test]
    fn a_list_of_system_calls() {
        let filter = [
            insn(0x20, 0, 0, 4),
            insn(0x15, 1, 0, 0xc000_003e),
            insn(0x06, 0, 0, KILL),
            insn(0x20, 0, 0, 0),
            insn(0x35, 0, 1, 0x4000_0000),
            insn(0x06, 0, 0, KILL),
            insn(0x15, 5, 0, 0),  // read
            insn(0x15, 4, 0, 1),  // write
            insn(0x15, 4, 0, 39), // getpid
            insn(0x15, 0, 3, 9),  // mmap, without execution
            insn(0x20, 0, 0, 32),
            insn(0x45, 1, 0, 4),
            insn(0x06, 0, 0, ALLOW),
            insn(0x06, 0, 0, KILL),
        ];
        // getpid's jump leads to the last but one line but two: rewritten below with its own
        // return.
        let mut filter = filter.to_vec();
        filter[8] = insn(0x15, 5, 0, 39);
        filter.push(insn(0x06, 0, 0, ERRNO));
        let action = |nr, args| run(&filter, nr, args);
        assert_eq!(action(0, [0; 6]), Action::Made);
        assert_eq!(action(1, [0; 6]), Action::Made);
        assert_eq!(action(39, [0; 6]), Action::Refused);
        assert_eq!(action(186, [0; 6]), Action::Punished);
        assert_eq!(action(9, [0, 4096, 3, 0x22, 0, 0]), Action::Made);
        assert_eq!(action(9, [0, 4096, 7, 0x22, 0, 0]), Action::Punished);
        // Who has been told that memory is there dies of it.
        assert_eq!(run(&[insn(0x06, 0, 0, ERRNO - 1)], 9, [0; 6]), Action::Punished);
    }

    #[test]
    fn every_instruction_of_the_kernel_works() {
        let of = |filter: &[Insn]| value(filter, &[7; 16]);
        let ret_a = insn(0x16, 0, 0, 0);
        for (alu, k, result) in [
            (0x04, 5, 15),
            (0x14, 5, 5),
            (0x24, 5, 50),
            (0x34, 5, 2),
            (0x44, 5, 15),
            (0x54, 6, 2),
            (0x64, 2, 40),
            (0x74, 1, 5),
            (0x84, 0, 10_u32.wrapping_neg()),
            (0xa4, 3, 9),
        ] {
            assert_eq!(
                of(&[insn(0x00, 0, 0, 10), insn(alu, 0, 0, k), ret_a]),
                Some(result),
                "{alu:x} k"
            );
            if alu != 0x84 {
                let by_x =
                    [insn(0x01, 0, 0, k), insn(0x00, 0, 0, 10), insn(alu | 8, 0, 0, 99), ret_a];
                assert_eq!(of(&by_x), Some(result), "{alu:x} x");
            }
        }
        assert_eq!(of(&[insn(0x34, 0, 0, 0), ret_a]), Some(0));
        assert_eq!(
            of(&[
                insn(0x80, 0, 0, 0),
                insn(0x02, 0, 0, 3),
                insn(0x61, 0, 0, 3),
                insn(0x87, 0, 0, 0),
                ret_a
            ]),
            Some(64)
        );
        assert_eq!(
            of(&[insn(0x81, 0, 0, 0), insn(0x03, 0, 0, 15), insn(0x60, 0, 0, 15), ret_a]),
            Some(64)
        );
        assert_eq!(of(&[insn(0x05, 0, 0, 1), insn(0x06, 0, 0, 1), insn(0x06, 0, 0, 2)]), Some(2));
        assert_eq!(
            of(&[
                insn(0x20, 0, 0, 60),
                insn(0x07, 0, 0, 0),
                insn(0x00, 0, 0, 7),
                insn(0x1d, 0, 1, 0),
                insn(0x06, 0, 0, 4)
            ]),
            Some(4)
        );
        // What it would not take.
        assert_eq!(of(&[insn(0x20, 0, 0, 64), ret_a]), None);
        assert_eq!(of(&[insn(0x20, 0, 0, 2), ret_a]), None);
        assert_eq!(of(&[insn(0x60, 0, 0, 16), ret_a]), None);
        assert_eq!(of(&[insn(0xff, 0, 0, 0)]), None);
        assert_eq!(of(&[insn(0x00, 0, 0, 0)]), None);
    }

    /// All of them were given to a kernel (6.18), which took those of the first list and refused
    /// those of the second.
    #[test]
    fn what_the_kernel_takes_is_known() {
        let (ret, st, ld) = (insn(0x06, 0, 0, ALLOW), insn(0x02, 0, 0, 3), insn(0x60, 0, 0, 3));
        for good in [
            &[ret][..],
            &[insn(0x16, 0, 0, 0)],
            &[insn(0x20, 0, 0, 60), ret],
            &[insn(0x15, 0, 1, 7), ret, ret],
            &[st, ld, ret],
            &[insn(0x15, 1, 1, 7), ret, st, ld, ret],
            &[insn(0x05, 0, 0, 1), ret, ret],
            &[insn(0x74, 0, 0, 31), insn(0x34, 0, 0, 1), insn(0x3c, 0, 0, 0), ret],
        ] {
            assert!(is_valid(good), "{good:?}");
        }
        for bad in [
            &[][..],
            &[insn(0x00, 0, 0, 7)],
            &[insn(0x20, 0, 0, 64), ret],
            &[insn(0x20, 0, 0, 2), ret],
            &[insn(0x28, 0, 0, 0), ret],
            &[insn(0x30, 0, 0, 0), ret],
            &[insn(0x94, 0, 0, 3), ret],
            &[insn(0x15, 0, 1, 7), ret],
            &[insn(0x05, 0, 0, 1), ret],
            &[insn(0x05, 0, 0, u32::MAX), ret],
            &[ld, ret],
            &[insn(0x15, 1, 0, 7), st, ld, ret],
            &[insn(0x02, 0, 0, 16), ret],
            &[insn(0x64, 0, 0, 32), ret],
            &[insn(0x34, 0, 0, 0), ret],
            &[insn(0xff, 0, 0, 0), ret],
            &[ret, insn(0x15, 0, 0, 0)],
        ] {
            assert!(!is_valid(bad), "{bad:?}");
        }
    }
}
