use super::*;
use crate::flow::{Flow, flow};
use iced_x86::{Decoder, DecoderOptions, Instruction, Mnemonic, OpKind, Register};

const HERE: u64 = 0x7f00_1234_5678;

/// Calls `look` with all opcodes, with prefixes and all forms of operands.
pub(crate) fn each_encoding(mut look: impl FnMut(&[u8; WINDOW])) {
    let prefixes: [&[u8]; 15] = [
        &[],
        &[0x66],
        &[0xf2],
        &[0xf3],
        &[0x2e],
        &[0xf0],
        &[0x67],
        &[0x41],
        &[0x48],
        &[0x49],
        &[0x4c],
        &[0x66, 0x48],
        &[0xf2, 0x48],
        &[0x48, 0x66],
        &[0x66, 0x66, 0x2e],
    ];
    let escapes: [&[u8]; 4] = [&[], &[0x0f], &[0x0f, 0x38], &[0x0f, 0x3a]];
    let legacy = prefixes.iter().flat_map(|p| escapes.map(|e| [*p, e].concat()));
    let vex = [
        &[0xc5, 0xf8][..],
        &[0xc5, 0x79],
        &[0xc5, 0xfe],
        &[0xc5, 0x6b],
        &[0xc4, 0xe1, 0x79],
        &[0xc4, 0xc1, 0x7a],
        &[0xc4, 0xe1, 0xf9],
        &[0xc4, 0xe2, 0x79],
        &[0xc4, 0x62, 0x7d],
        &[0xc4, 0xc2, 0x78],
        &[0xc4, 0xe2, 0xfb],
        &[0xc4, 0xe3, 0x79],
        &[0xc4, 0x43, 0x7d],
        &[0xc4, 0xe3, 0xf9],
        &[0x62, 0xf1, 0x7c, 0x48],
    ];
    for head in legacy.chain(vex.map(<[u8]>::to_vec)) {
        for (opcode, operands) in (0..=255).flat_map(|o| (0..=255).map(move |m| (o, m))) {
            let memory = operands < 0xc0 && operands & 7 == 4;
            let indexes: &[u8] = if memory { &[0x24, 0x25, 0x65, 0x8c] } else { &[0x24] };
            for index in indexes {
                let tail: &[u8] = if opcode & 1 == 0 {
                    &[0x11, 0x12, 0x13, 0x14, 0x15, 0x16, 0x17, 0x18, 0x19]
                } else {
                    &[0xf0, 0xef, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff]
                };
                let mut bytes = [0x90; WINDOW];
                let all = head.iter().chain([&opcode, &operands, index]).chain(tail);
                bytes.iter_mut().zip(all).for_each(|(to, from)| *to = *from);
                look(&bytes);
            }
        }
    }
}

/// Compares what is said of the instruction at the start with what iced says.
fn compare(bytes: &[u8; WINDOW], i: &Instruction) {
    let ours = predecode(bytes);
    if ours.kind == Kind::Unknown {
        return;
    }
    assert_eq!(usize::from(ours.len), i.len(), "{bytes:02x?}: {i:?}");
    let expected = match ours.kind {
        Kind::Unknown
        | Kind::Plain
        | Kind::Relative
        | Kind::Rsp
        | Kind::Rbp
        | Kind::Push
        | Kind::Pop
        | Kind::Adjust => Flow::Next,
        Kind::Jump => Flow::UnconditionalBranch,
        Kind::Branch => Flow::ConditionalBranch,
        Kind::Call => Flow::Call,
        Kind::IndirectCall => Flow::IndirectCall,
        Kind::IndirectJump | Kind::LinkageJump => Flow::IndirectBranch,
        Kind::Return => Flow::Return,
    };
    assert_eq!(flow(i), expected, "{bytes:02x?}: {:?}", ours.kind);
    if expected == Flow::IndirectBranch {
        assert_eq!(ours.kind == Kind::LinkageJump, i.is_ip_rel_memory_operand(), "{bytes:02x?}");
    }
    let jumps = matches!(ours.kind, Kind::Jump | Kind::Branch | Kind::Call);
    assert_eq!(jumps, matches!(i.op0_kind(), OpKind::NearBranch64), "{bytes:02x?}");
    if jumps {
        assert_eq!(ours.target(i.next_ip()), i.near_branch_target(), "{bytes:02x?}");
    }
    let is_relative = matches!(ours.kind, Kind::Relative | Kind::LinkageJump);
    let may_be = is_relative || ours.kind == Kind::IndirectCall;
    assert!(may_be || !i.is_ip_rel_memory_operand(), "{bytes:02x?}: {:?}", ours.kind);
    assert!(!is_relative || i.is_ip_rel_memory_operand(), "{bytes:02x?}: {:?}", ours.kind);
    let base = match i.memory_base() {
        Register::RSP => Some(Kind::Rsp),
        Register::RBP => Some(Kind::Rbp),
        _ => None,
    };
    let found = Some(ours.kind).filter(|kind| matches!(kind, Kind::Rsp | Kind::Rbp));
    assert_eq!(found, base, "{bytes:02x?}: {:?}", ours.kind);
    if found.is_some() {
        assert_eq!(i64::from(ours.by), i.memory_displacement64() as i64, "{bytes:02x?}");
    }
    let moved = match ours.kind {
        Kind::Push => -8,
        Kind::Pop => 8,
        Kind::Call | Kind::IndirectCall | Kind::Return => return,
        _ => 0,
    };
    assert_eq!(i.stack_pointer_increment(), moved, "{bytes:02x?}: {:?}", ours.kind);
    let writes = i.op0_kind() == OpKind::Register
        && matches!(i.op0_register(), Register::RSP | Register::RBP)
        && !matches!(i.mnemonic(), Mnemonic::Cmp | Mnemonic::Test | Mnemonic::Push);
    assert!(!writes || ours.kind == Kind::Adjust, "{bytes:02x?}: {:?}", ours.kind);
}

/// Tells whether something is said.
fn is_known(bytes: &[u8; WINDOW]) -> bool {
    predecode(bytes).kind != Kind::Unknown
}

#[test]
fn what_is_said_is_what_iced_says() {
    let (mut known, mut asked) = (0, 0);
    each_encoding(|bytes| {
        let i = Decoder::with_ip(64, bytes, HERE, DecoderOptions::NONE).decode();
        if !i.is_invalid() {
            compare(bytes, &i);
            *(if is_known(bytes) { &mut known } else { &mut asked }) += 1;
        }
    });
    assert!(known > 1_000_000 && known > asked, "{known} {asked}");
}

#[test]
fn few_instructions_of_libraries_are_asked_for() {
    let maps = std::fs::read_to_string("/proc/self/maps").expect("there is /proc");
    let number = |text: &str| u64::from_str_radix(text, 16).expect("a number");
    let (mut all, mut asked) = (0, 0);
    for line in maps.lines() {
        let fields: Vec<&str> = line.split_whitespace().collect();
        let [range, "r-xp", offset, _, _, path] = fields[..] else { continue };
        let Ok(file) = std::fs::read(path) else { continue };
        let (start, end) = range.split_once('-').expect("two addresses");
        let range = number(start)..number(end);
        let rest = &file[(number(offset) as usize).min(file.len())..];
        let bytes = &rest[..rest.len().min((range.end - range.start) as usize)];
        let mut decoder = Decoder::with_ip(64, bytes, range.start, DecoderOptions::NONE);
        let mut i = Instruction::default();
        let mut ours = Instructions::new(bytes, range.start, DecoderOptions::NONE);
        while decoder.can_decode() {
            let position = decoder.position();
            decoder.decode_out(&mut i);
            if let Some(window) = bytes[position..].first_chunk()
                && !i.is_invalid()
            {
                compare(window, &i);
                all += 1;
                asked += u32::from(!is_known(window));
            }
            // One after the other, as long as both are at the same place.
            let found = ours.next().expect("there is one as long as iced finds one");
            assert_eq!(ours.ip(), i.ip());
            if i.is_invalid() || found.kind == Kind::Unknown {
                assert_eq!(*ours.full(), i, "{:02x?}", &bytes[position..][..8]);
            }
            if ours.next_ip() != i.next_ip() {
                assert!(i.is_invalid(), "{:02x?}", &bytes[position..][..8]);
                break;
            }
        }
    }
    assert!(all > 300_000 && asked < all / 10, "{asked} of {all}");
}
