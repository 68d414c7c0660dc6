//! Where instructions end, and the little of them that most questions need.
//!
//! To attach to a module all of its code is looked at, and iced tells everything of each instruction,
//! which takes ten times as long as what is asked: where does it go on, does it touch the stack?
//! Compilers emit few forms, which tables tell apart here. All others are [`Kind::Unknown`], and
//! iced has to be asked. A test compares both on all opcodes, and on the code of libraries.

mod instructions;
mod lengths;

pub(crate) use instructions::Instructions;
pub(crate) use lengths::Pass;

/// An instruction.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Predecoded {
    pub(crate) kind: Kind,
    /// Its length in bytes, where it is known.
    pub(crate) len: u8,
    /// How far it jumps from its end, what it adds, or the displacement of its memory.
    pub(crate) by: i32,
}

/// What an instruction does, as far as anybody asks.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Kind {
    /// Iced has to be asked.
    Unknown,
    /// Goes on at the next instruction; touches no memory through rsp or rbp, and leaves both as they are.
    Plain,
    /// The same, but accesses memory at a distance from the instruction.
    Relative,
    /// The same, but accesses memory through rsp, and perhaps an index.
    Rsp,
    /// The same through rbp.
    Rbp,
    /// Pushes 8 bytes, that are in no memory.
    Push,
    /// Pops 8 bytes into a register other than rsp and rbp.
    Pop,
    /// Adds to rsp.
    Adjust,
    /// Jumps.
    Jump,
    /// Jumps on a condition.
    Branch,
    /// Calls.
    Call,
    /// Calls what a register or memory says, which is not found through rsp or rbp.
    IndirectCall,
    /// Jumps there.
    IndirectJump,
    /// The same, where memory at a distance from the instruction says, as in the linkage table.
    LinkageJump,
    /// Returns.
    Return,
}

impl Predecoded {
    /// Where it jumps or calls, if it ends at `end`.
    pub(crate) fn target(self, end: u64) -> u64 {
        end.wrapping_add_signed(self.by.into())
    }
}

const UNKNOWN: Predecoded = Predecoded { kind: Kind::Unknown, len: 0, by: 0 };

/// Bytes that must be readable where an instruction is asked for: more than any has.
pub(crate) const WINDOW: usize = 16;

/// An opcode's operands: registers or memory.
const MODRM: u8 = 1;
/// A constant of 8 bits.
const IMM8: u8 = 2;
/// A constant of 32 bits, or of 16 with the operand size prefix.
const IMM: u8 = 4;
/// Has a row of its own in [`special`], which the bits of [`ROW`] say.
const SPECIAL: u8 = 8;
/// Iced is asked.
const ASK: u8 = 16;
/// A prefix.
const PREFIX: u8 = 32;
/// Whatever is not done by [`plain`].
const UNUSUAL: u8 = SPECIAL | ASK | PREFIX;
/// Of the operands' two numbers one is part of the opcode.
const GROUP: u8 = 64;

/// The rows of special opcodes: as numbers without gaps, one jump finds them.
const ROW: u8 = !UNUSUAL;
const OTHER: u8 = SPECIAL;
const PUSH: u8 = SPECIAL | 1;
const POP: u8 = SPECIAL | 2;
const BRANCH: u8 = SPECIAL | 3;
const CALL: u8 = SPECIAL | 4;
const CONSTANT: u8 = SPECIAL | 5;
const ESCAPE: u8 = SPECIAL | 6;
const ARITHMETIC: u8 = SPECIAL | 7;

/// Opcodes of one byte.
static ONE_BYTE: [u8; 256] = one_byte();
/// Opcodes behind 0x0f.
static TWO_BYTES: [u8; 256] = two_bytes();
/// How many bytes operands have with the displacement, by their first byte; behind an index it may be
/// another.
static OPERANDS: [u8; 256] = operand_sizes();

const fn fill(mut table: [u8; 256], from: usize, to: usize, what: u8) -> [u8; 256] {
    let mut i = from;
    while i <= to {
        table[i] = what;
        i += 1;
    }
    table
}

const fn set(mut table: [u8; 256], opcodes: &[usize], what: u8) -> [u8; 256] {
    let mut i = 0;
    while i < opcodes.len() {
        table[opcodes[i]] = what;
        i += 1;
    }
    table
}

const fn one_byte() -> [u8; 256] {
    let mut t = [ASK; 256];
    // add, or, adc, sbb, and, sub, xor, cmp
    let mut row = 0;
    while row < 0x40 {
        t = fill(t, row, row + 3, MODRM);
        t[row + 4] = IMM8;
        t[row + 5] = IMM;
        row += 8;
    }
    t = fill(t, 0x40, 0x4f, PREFIX);
    t = fill(t, 0x50, 0x57, PUSH);
    t = fill(t, 0x58, 0x5f, POP);
    t[0x63] = MODRM;
    t[0x68] = OTHER;
    t[0x69] = MODRM | IMM;
    t[0x6a] = OTHER;
    t[0x6b] = MODRM | IMM8;
    t = fill(t, 0x70, 0x7f, BRANCH);
    t[0x80] = MODRM | GROUP | IMM8;
    t[0x81] = ARITHMETIC;
    t[0x83] = ARITHMETIC;
    t = fill(t, 0x84, 0x8e, MODRM);
    t = fill(t, 0x90, 0x93, 0);
    t = fill(t, 0x96, 0x99, 0);
    t = fill(t, 0x9e, 0x9f, 0);
    t = fill(t, 0xa4, 0xa7, 0);
    t[0xa8] = IMM8;
    t[0xa9] = IMM;
    t = fill(t, 0xaa, 0xaf, 0);
    t = fill(t, 0xb0, 0xb7, IMM8);
    t = fill(t, 0xb8, 0xbf, CONSTANT);
    t = fill(t, 0xc0, 0xc1, MODRM | GROUP | IMM8);
    t[0xc3] = OTHER;
    t = fill(t, 0xc4, 0xc5, OTHER);
    t = fill(t, 0xc6, 0xc7, OTHER);
    t = fill(t, 0xd0, 0xd3, MODRM | GROUP);
    t = fill(t, 0xd8, 0xdf, MODRM);
    t[0xe8] = CALL;
    t[0xe9] = OTHER;
    t[0xeb] = OTHER;
    t = fill(t, 0xf6, 0xf7, OTHER);
    t = fill(t, 0xfe, 0xff, OTHER);
    t[0x0f] = ESCAPE;
    t = set(t, &[0x26, 0x2e, 0x36, 0x3e, 0x64, 0x65, 0x66, 0xf0, 0xf2, 0xf3], PREFIX);
    // In 64-bit code these are no opcodes.
    set(t, &[0x06, 0x07, 0x0e, 0x16, 0x17, 0x1e, 0x1f, 0x27, 0x2f, 0x37, 0x3f], ASK)
}

const fn operand_sizes() -> [u8; 256] {
    let mut t = [1; 256];
    let mut modrm = 0;
    while modrm < 0xc0 {
        let index = if modrm & 7 == 4 { 1 } else { 0 };
        let displacement = match modrm >> 6 {
            0 if modrm & 7 == 5 => 4,
            0 => 0,
            1 => 1,
            _ => 4,
        };
        t[modrm] = 1 + index + displacement;
        modrm += 1;
    }
    t
}

const fn two_bytes() -> [u8; 256] {
    let mut t = [ASK; 256];
    t = fill(t, 0x10, 0x19, MODRM);
    t = fill(t, 0x1c, 0x1f, MODRM);
    t = fill(t, 0x28, 0x2f, MODRM);
    t[0x31] = 0;
    t = fill(t, 0x40, 0x6f, MODRM);
    t = fill(t, 0x70, 0x73, MODRM | IMM8);
    t = fill(t, 0x74, 0x76, MODRM);
    t[0x77] = 0;
    t = fill(t, 0x7c, 0x7f, MODRM);
    t = fill(t, 0x80, 0x8f, SPECIAL);
    t = fill(t, 0x90, 0x9f, MODRM);
    t[0xa2] = 0;
    t[0xa3] = MODRM;
    t[0xa4] = MODRM | IMM8;
    t[0xa5] = MODRM;
    t[0xab] = MODRM;
    t[0xac] = MODRM | IMM8;
    t[0xad] = MODRM;
    t[0xaf] = MODRM;
    t = fill(t, 0xb0, 0xb1, MODRM);
    t[0xb3] = MODRM;
    t = fill(t, 0xb6, 0xb7, MODRM);
    t[0xba] = MODRM | GROUP | IMM8;
    t = fill(t, 0xbb, 0xbf, MODRM);
    t = fill(t, 0xc0, 0xc1, MODRM);
    t[0xc2] = MODRM | IMM8;
    t[0xc3] = MODRM;
    t = fill(t, 0xc4, 0xc6, MODRM | IMM8);
    t = fill(t, 0xc8, 0xcb, 0);
    t = fill(t, 0xce, 0xcf, 0);
    t = fill(t, 0xd0, 0xfe, MODRM);
    t
}

/// The bytes from an instruction's start, which end before a [`WINDOW`] does.
struct Bytes<'a>(&'a [u8; WINDOW]);

impl Bytes<'_> {
    #[inline(always)]
    fn at(&self, n: usize) -> u8 {
        self.0[n & (WINDOW - 1)]
    }

    #[inline(always)]
    fn i8(&self, n: usize) -> i32 {
        i32::from(self.at(n) as i8)
    }

    #[inline(always)]
    fn i32(&self, n: usize) -> i32 {
        // An instruction that ends behind the window is not known anyway.
        let bytes = self.0.get(n..).and_then(|rest| rest.first_chunk());
        bytes.map_or(0, |bytes| i32::from_le_bytes(*bytes))
    }
}

/// The prefixes of an instruction.
#[derive(Clone, Copy, Default)]
struct Prefixes {
    /// The operand size is 16 bits.
    small: bool,
    rex: u8,
}

impl Prefixes {
    fn wide(self) -> bool {
        self.rex & REX_W != 0
    }
}

/// Bits of REX: the operands have 64 bits, and the registers in `reg` and in `rm` are of the upper eight.
const REX_W: u8 = 8;
const REX_R: u8 = 4;
const REX_B: u8 = 1;

/// Looks at the instruction at the start of `window`.
#[inline(always)]
pub(crate) fn predecode(window: &[u8; WINDOW]) -> Predecoded {
    let bytes = Bytes(window);
    let (mut at, mut opcode, mut rex) = (1, bytes.at(0), 0);
    if opcode & 0xf0 == 0x40 {
        (at, opcode, rex) = (2, bytes.at(1), opcode);
    }
    let form = ONE_BYTE[usize::from(opcode)];
    let prefixes = Prefixes { rex, small: false };
    if form & UNUSUAL == 0 {
        return plain(&bytes, at, form, prefixes, opcode >= 0xd8);
    }
    match form & (PREFIX | ASK) {
        0 => special(&bytes, at, opcode, form, prefixes),
        // Behind another prefix REX has no effect.
        PREFIX if rex == 0 => prefixed(&bytes),
        _ => UNKNOWN,
    }
}

/// Instructions that begin with a prefix which is not REX.
fn prefixed(bytes: &Bytes<'_>) -> Predecoded {
    let mut prefixes = Prefixes::default();
    let mut at = 0;
    let (opcode, form) = loop {
        let opcode = bytes.at(at);
        let form = ONE_BYTE[usize::from(opcode)];
        at += 1;
        if form & PREFIX == 0 {
            break (opcode, form);
        }
        if at > 8 || prefixes.rex != 0 {
            return UNKNOWN;
        }
        if opcode & 0xf0 == 0x40 {
            prefixes.rex = opcode;
        }
        prefixes.small |= opcode == 0x66;
    };
    match form & UNUSUAL {
        0 => operands(bytes, at, form, prefixes, opcode >= 0xd8),
        SPECIAL => special(bytes, at, opcode, form, prefixes),
        _ => UNKNOWN,
    }
}

/// An instruction, if it is as short as instructions are.
#[inline(always)]
fn known(len: usize, kind: Kind, by: i32) -> Predecoded {
    if len < WINDOW { Predecoded { kind, len: len as u8, by } } else { UNKNOWN }
}

/// Opcodes that do more, or that have their operands otherwise: `form` has the row.
fn special(bytes: &Bytes<'_>, at: usize, opcode: u8, form: u8, prefixes: Prefixes) -> Predecoded {
    let has_low_register = prefixes.rex & REX_B == 0;
    match SPECIAL | form & ROW {
        // AMD's processors and Intel's differ.
        PUSH | POP | BRANCH | CALL if prefixes.small => UNKNOWN,
        PUSH => known(at, Kind::Push, 0),
        POP if has_low_register && matches!(opcode, 0x5c | 0x5d) => UNKNOWN,
        POP => known(at, Kind::Pop, 0),
        BRANCH => known(at + 1, Kind::Branch, bytes.i8(at)),
        CALL => known(at + 4, Kind::Call, bytes.i32(at)),
        CONSTANT if !prefixes.wide() => {
            known(at + if prefixes.small { 2 } else { 4 }, Kind::Plain, 0)
        }
        CONSTANT if has_low_register && matches!(opcode, 0xbc | 0xbd) => UNKNOWN,
        CONSTANT => known(at + 8, Kind::Plain, 0),
        ESCAPE => two(bytes, at, prefixes),
        ARITHMETIC => arithmetic(bytes, at, opcode, prefixes),
        _ => other(bytes, at, opcode, prefixes),
    }
}

/// Opcodes with a constant operand: rsp may be the other one.
fn arithmetic(bytes: &Bytes<'_>, at: usize, opcode: u8, prefixes: Prefixes) -> Predecoded {
    // add rsp, n; sub rsp, n
    if prefixes.rex == 0x48 && !prefixes.small && matches!(bytes.at(at), 0xc4 | 0xec) {
        let (len, n) = match opcode {
            0x81 => (at + 5, bytes.i32(at + 1)),
            _ => (at + 2, bytes.i8(at + 1)),
        };
        let by = if bytes.at(at) == 0xc4 { Some(n) } else { n.checked_neg() };
        return by.map_or(UNKNOWN, |by| known(len, Kind::Adjust, by));
    }
    let constant = if opcode == 0x81 { IMM } else { IMM8 };
    operands(bytes, at, MODRM | GROUP | constant, prefixes, false)
}

/// The rest of [`special`].
fn other(bytes: &Bytes<'_>, at: usize, opcode: u8, prefixes: Prefixes) -> Predecoded {
    match opcode {
        0xe9 | 0xeb | 0x68 | 0x6a if prefixes.small => UNKNOWN,
        0x68 => known(at + 4, Kind::Push, 0),
        0x6a => known(at + 1, Kind::Push, 0),
        0xe9 => known(at + 4, Kind::Jump, bytes.i32(at)),
        0xeb => known(at + 1, Kind::Jump, bytes.i8(at)),
        0xc3 => known(at, Kind::Return, 0),
        0xc6 | 0xc7 if bytes.at(at) & 0x38 != 0 => UNKNOWN,
        0xc6 => operands(bytes, at, MODRM | GROUP | IMM8, prefixes, false),
        0xc7 => operands(bytes, at, MODRM | GROUP | IMM, prefixes, false),
        0xf6 | 0xf7 => {
            let constant = match (bytes.at(at) & 0x30, opcode) {
                (0, 0xf6) => IMM8,
                (0, _) => IMM,
                _ => 0,
            };
            operands(bytes, at, MODRM | GROUP | constant, prefixes, false)
        }
        0xfe | 0xff => match bytes.at(at) >> 3 & 7 {
            0 | 1 => operands(bytes, at, MODRM | GROUP, prefixes, false),
            operation @ (2 | 4) if opcode == 0xff && !prefixes.small => {
                // They have 64 bits always.
                let prefixes = Prefixes { rex: prefixes.rex | REX_W, ..prefixes };
                let found = operands(bytes, at, MODRM | GROUP, prefixes, false);
                let kind = match operation {
                    _ if !matches!(found.kind, Kind::Plain | Kind::Relative) => return UNKNOWN,
                    2 => Kind::IndirectCall,
                    _ if found.kind == Kind::Relative => Kind::LinkageJump,
                    _ => Kind::IndirectJump,
                };
                Predecoded { kind, ..found }
            }
            _ => UNKNOWN,
        },
        0xc5 => vex(bytes, at + 1, 1, 0),
        // Integers of 64 bits may be in rsp and rbp, here even in a third operand.
        0xc4 if bytes.at(at + 1) & 0x80 != 0 => UNKNOWN,
        // Its bits are the inverted ones of REX.
        0xc4 => vex(bytes, at + 2, bytes.at(at) & 0x1f, u8::from(bytes.at(at) & 0x20 == 0)),
        _ => UNKNOWN,
    }
}

/// Opcodes behind 0x0f.
fn two(bytes: &Bytes<'_>, at: usize, prefixes: Prefixes) -> Predecoded {
    let opcode = bytes.at(at);
    let at = at + 1;
    match (TWO_BYTES[usize::from(opcode)], opcode) {
        (SPECIAL, _) if prefixes.small => UNKNOWN,
        (SPECIAL, _) => known(at + 4, Kind::Branch, bytes.i32(at)),
        (ASK, 0x38) => match bytes.at(at) {
            // Their register has 64 bits always.
            0x80..=0x82 | 0xf8.. => UNKNOWN,
            _ => operands(bytes, at + 1, MODRM, prefixes, false),
        },
        (ASK, 0x3a) => operands(bytes, at + 1, MODRM | IMM8, prefixes, false),
        (ASK, _) => UNKNOWN,
        (form, _) => operands(bytes, at, form, prefixes, false),
    }
}

/// Opcodes behind a VEX prefix. `rex`: what of it says as REX does.
fn vex(bytes: &Bytes<'_>, at: usize, map: u8, rex: u8) -> Predecoded {
    let opcode = bytes.at(at);
    let form = match map {
        1 if opcode == 0x77 => 0,
        1 if matches!(opcode, 0x70..=0x73 | 0xc2 | 0xc4..=0xc6) => MODRM | IMM8,
        1 | 2 => MODRM,
        3 => MODRM | IMM8,
        _ => return UNKNOWN,
    };
    // Operations on masks, and on integers.
    let masks = map == 1 && matches!(opcode, 0x41..=0x4f | 0x90..=0x9f);
    if masks || map != 1 && opcode >= 0xf0 {
        return UNKNOWN;
    }
    operands(bytes, at + 1, form, Prefixes { rex, small: false }, false)
}

/// As [`plain`], for the rarer ones.
fn operands(
    bytes: &Bytes<'_>,
    at: usize,
    form: u8,
    prefixes: Prefixes,
    no_registers: bool,
) -> Predecoded {
    plain(bytes, at, form, prefixes, no_registers)
}

/// Opcodes whose operands are as the form says, behind the opcode. `no_registers`: those that are named
/// are none of the general ones.
#[inline(always)]
fn plain(
    bytes: &Bytes<'_>,
    at: usize,
    form: u8,
    prefixes: Prefixes,
    no_registers: bool,
) -> Predecoded {
    let mut at = at;
    let (mut kind, mut by) = (Kind::Plain, 0);
    if form & MODRM != 0 {
        let modrm = bytes.at(at);
        let is_register = modrm >= 0xc0;
        // Registers of 64 bits that are rsp or rbp; others do not change those as a whole, which is
        // how iced's answers are understood, too.
        if prefixes.wide() && !no_registers {
            let is_stack = |number: u8, upper: u8| number & 6 == 4 && prefixes.rex & upper == 0;
            let named = form & GROUP == 0 && is_stack(modrm >> 3 & 7, REX_R);
            if named || is_register && is_stack(modrm & 7, REX_B) {
                return UNKNOWN;
            }
        }
        let mut size = usize::from(OPERANDS[usize::from(modrm)]);
        if modrm & 0xc7 == 5 {
            kind = Kind::Relative;
        } else if modrm & 6 == 4 && !is_register {
            let (mode, mut base) = (modrm >> 6, modrm & 7);
            if base == 4 {
                base = bytes.at(at + 1) & 7;
                size += if mode == 0 && base == 5 { 4 } else { 0 };
            }
            let has_base = base == 4 || base == 5 && mode != 0;
            if has_base && prefixes.rex & REX_B == 0 {
                kind = if base == 4 { Kind::Rsp } else { Kind::Rbp };
                by = match mode {
                    0 => 0,
                    1 => bytes.i8(at + size - 1),
                    _ => bytes.i32(at + size - 4),
                };
            }
        }
        at += size;
    }
    if form & IMM8 != 0 {
        at += 1;
    }
    if form & IMM != 0 {
        at += if prefixes.small && !prefixes.wide() { 2 } else { 4 };
    }
    known(at, kind, by)
}

#[cfg(test)]
pub(crate) mod tests;
