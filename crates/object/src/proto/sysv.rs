//! Where arguments and results are, by the System V ABI for x86-64 (section 3.2.3, "Parameter
//! Passing").

use super::rust::{Passed, Scalar, ScalarKind};
use super::{MAX_WORDS, UNTYPED_WORDS as REGISTERS, ValueKind, Word};

/// Vector registers for arguments.
const VECTORS: usize = 8;
/// Largest structure that is not passed in memory, and the largest that a context shows.
const MAX_IN_REGISTERS: u64 = 16;
/// Words of the stack that a context has room for at most.
const STACK_WORDS: u64 = (MAX_WORDS - REGISTERS) as u64;

/// Where a word is.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Place {
    /// In this integer register: of arguments rdi, rsi, rdx, rcx, r8, r9; of results rax, rdx.
    Register(u8),
    /// On the caller's stack, this many words behind the return address.
    Stack(u8),
    /// In no integer register, and so not in a context.
    Vector,
}

/// Classes of the ABI, as far as they matter here.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Class {
    Integer,
    Sse,
    X87,
}

/// A part of a type that has no parts.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Leaf {
    /// From the start of the whole.
    pub bit_offset: u64,
    pub bits: u64,
    pub class: Class,
    /// Bytes; 1 for bit fields.
    pub align: u64,
}

/// A type as the ABI sees it.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct Type {
    pub text: String,
    pub kind: ValueKind,
    pub size: u64,
    pub align: u64,
    /// Empty for `void`, for types without members, and for those of more than 16 bytes.
    pub leaves: Vec<Leaf>,
    /// C++ passes a pointer to a copy: the type has a copy constructor or a destructor of its own.
    /// `None`: not known.
    pub by_reference: Option<bool>,
    /// As in [`Value`](super::Value).
    pub described_at: Option<u64>,
    /// How Rust passes it; `None`: not known.
    pub passed: Option<Passed>,
}

impl Type {
    /// A type without parts.
    pub fn scalar(text: &str, kind: ValueKind, size: u64, class: Class) -> Self {
        let leaf = Leaf { bit_offset: 0, bits: size.saturating_mul(8), class, align: size.max(1) };
        let leaves = if size == 0 { Vec::new() } else { vec![leaf] };
        let passed = match &kind {
            _ if size == 0 => Passed::Nothing,
            ValueKind::Pointer(_) => Passed::One(Scalar::new(size, ScalarKind::Pointer)),
            ValueKind::Float => Passed::One(Scalar::new(size, ScalarKind::Float)),
            _ => Passed::One(Scalar::new(size, ScalarKind::Integer)),
        };
        Self {
            text: text.to_owned(),
            kind,
            size,
            align: size.clamp(1, 16),
            leaves,
            by_reference: Some(false),
            described_at: None,
            passed: Some(passed),
        }
    }

    /// No type.
    pub fn void() -> Self {
        Self { align: 1, ..Self::scalar("void", ValueKind::Void, 0, Class::Integer) }
    }

    fn is_composite(&self) -> bool {
        matches!(self.kind, ValueKind::Struct | ValueKind::Union)
    }

    /// Words that a context has for it.
    fn slots(&self) -> usize {
        match self.kind {
            ValueKind::Void | ValueKind::Float => 0,
            _ if self.is_composite()
                && (self.size > MAX_IN_REGISTERS || self.leaves.is_empty()) =>
            {
                0
            }
            _ if self.leaves.iter().any(|l| l.class == Class::X87) => 0,
            _ => self.size.div_ceil(8) as usize,
        }
    }

    /// Classes of its eight bytes, which are none for padding; `None` when it is passed in memory.
    fn classes(&self) -> Option<Vec<Option<Class>>> {
        if self.size > MAX_IN_REGISTERS && self.kind != ValueKind::Float {
            return None;
        }
        let parts = self.size.div_ceil(8).min(2) as usize;
        let mut out: Vec<Option<Class>> = vec![None; parts];
        let mut wide = false;
        for leaf in &self.leaves {
            if leaf.align > 1 && !leaf.bit_offset.is_multiple_of(leaf.align.saturating_mul(8)) {
                return None;
            }
            if leaf.class == Class::X87 {
                return None;
            }
            // The upper half of a vector is in the register of the lower one.
            if leaf.class == Class::Sse && leaf.bits > 64 && self.is_composite() {
                wide = true;
                if let Some(c @ None) = out.first_mut() {
                    *c = Some(Class::Sse);
                }
                continue;
            }
            let (first, last) =
                (leaf.bit_offset / 64, leaf.bit_offset.saturating_add(leaf.bits.max(1) - 1) / 64);
            for part in first..=last.min(1) {
                if let Some(c) = out.get_mut(part as usize) {
                    *c = Some(if leaf.class == Class::Integer || *c == Some(Class::Integer) {
                        Class::Integer
                    } else {
                        Class::Sse
                    });
                }
            }
        }
        if let ([Some(Class::Integer), upper @ None], true) = (&mut *out, wide) {
            *upper = Some(Class::Sse);
        }
        Some(out)
    }

    /// Tells whether there is a vector in it, of which only a half can be read.
    fn is_wide(&self) -> bool {
        self.leaves.iter().any(|l| l.class == Class::Sse && l.bits > 64)
    }
}

/// The words of a function.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub(super) struct Layout {
    pub words: Vec<Word>,
    pub ret: Vec<Place>,
    /// Arguments with a decimal point, and their vector registers.
    pub vectors: Vec<(usize, u8)>,
    /// Structures whose parts are not all in words of the context, and what else on the stack no word has.
    pub composites: Vec<(usize, Composite)>,
    /// The same of the result.
    pub ret_composite: Option<Composite>,
}

/// Where an argument is that is not all in words of the context.
#[derive(Clone, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub enum Composite {
    /// Each eight bytes of it are in a register, some of them in vector registers.
    Parts(Vec<Part>),
    /// Two values of Rust, the second of which begins at this byte: in vector registers, or where the
    /// words say.
    Pair {
        /// The byte.
        second: u64,
        /// Where they are.
        parts: [Part; 2],
    },
    /// On the caller's stack, so many bytes behind the return address.
    Stack(u64),
    /// Where the one word of it says: of a C++ type that is not copied as its bytes are, of a Rust one
    /// of more than eight bytes; of a result, in the memory that the hidden argument said.
    Behind,
}

/// Where eight bytes of a structure are.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Part {
    /// As the next word says, in an integer register; of results rax, then rdx. One of a pair may be on
    /// the stack.
    Register,
    /// In this vector register, in its low half.
    Vector(u8),
}

/// Works out where the words of a function are; `None` for types whose place depends on more than
/// is known.
pub(super) fn layout<'t>(params: impl Iterator<Item = &'t Type>, ret: &Type) -> Option<Layout> {
    let mut out = Layout::default();
    let (mut integers, mut vectors, mut stack) = (0, 0, 0u64);
    ret.by_reference?;
    out.ret = result(ret)?;
    if returned_in_memory(ret) {
        integers = 1;
        out.ret_composite = Some(Composite::Behind);
    } else if ret.is_composite() {
        let classes = ret.classes().filter(|_| !ret.is_wide());
        let parts = classes.and_then(|classes| parts(&classes, 0));
        out.ret_composite = parts.map(Composite::Parts);
    }
    for (param, t) in params.enumerate() {
        let pointer;
        let t = if t.by_reference? {
            out.composites.push((param, Composite::Behind));
            pointer = Type::scalar(&t.text, ValueKind::Pointer(None), 8, Class::Integer);
            &pointer
        } else {
            t
        };
        if t.kind == ValueKind::Void {
            return None;
        }
        if t.leaves.is_empty() && t.size <= MAX_IN_REGISTERS {
            continue;
        }
        // A vector register of 32 or 64 bytes: whether it is one depends on how the function was
        // compiled.
        if t.kind == ValueKind::Float && t.size > MAX_IN_REGISTERS {
            return None;
        }
        // A vector or a number of 16 bytes fills one register.
        let one = t.kind == ValueKind::Float && t.leaves.len() == 1;
        let classes =
            t.classes().map(|c| if one { c.into_iter().take(1).collect::<Vec<_>>() } else { c });
        let count = |c: &[Option<Class>], class| c.iter().filter(|x| **x == Some(class)).count();
        let in_registers = classes.as_deref().filter(|c| {
            integers + count(c, Class::Integer) <= REGISTERS
                && vectors + count(c, Class::Sse) <= VECTORS
        });
        if one && t.size <= 8 && in_registers.is_some() {
            out.vectors.push((param, vectors as u8));
        }
        let place: Vec<Place> = if let Some(classes) = in_registers {
            if let Some(parts) =
                parts(classes, vectors as u8).filter(|_| t.is_composite() && !t.is_wide())
            {
                out.composites.push((param, Composite::Parts(parts)));
            }
            let each = classes.iter().map(|c| match c {
                Some(Class::Integer) => {
                    integers += 1;
                    Place::Register(integers as u8 - 1)
                }
                c => {
                    vectors += usize::from(c.is_some());
                    Place::Vector
                }
            });
            each.collect()
        } else {
            stack = stack.next_multiple_of(t.align.clamp(8, 1 << 16).next_power_of_two());
            let first = stack / 8;
            if t.is_composite() || t.kind == ValueKind::Float || first >= STACK_WORDS {
                out.composites.push((param, Composite::Stack(stack)));
            }
            stack = stack.checked_add(t.size.next_multiple_of(8))?;
            let at = |part: u64| u8::try_from(first + part).map_or(Place::Vector, Place::Stack);
            let integer = |part: u64| {
                classes
                    .as_deref()
                    .is_none_or(|c| c.get(part as usize) == Some(&Some(Class::Integer)))
            };
            (0..t.size.div_ceil(8).min(2))
                .map(|part| if integer(part) { at(part) } else { Place::Vector })
                .collect()
        };
        let slots = t.slots();
        let words = place.into_iter().take(slots).zip(0..).map(|(place, part)| Word {
            param,
            at: part * 8,
            place,
        });
        out.words.extend(words);
    }
    out.words.truncate(MAX_WORDS);
    Some(out)
}

/// The parts of a structure in registers, of which the next vector register is the first that is free;
/// `None` where all are in integer registers.
fn parts(classes: &[Option<Class>], vectors: u8) -> Option<Vec<Part>> {
    let mut next = vectors;
    let parts: Vec<Part> = classes
        .iter()
        .map(|class| match class {
            Some(Class::Integer) => Part::Register,
            class => {
                let register = next;
                // Padding is in none; what it is does not matter.
                next += u8::from(class.is_some());
                Part::Vector(register)
            }
        })
        .collect();
    parts.iter().any(|part| *part != Part::Register).then_some(parts)
}

fn returned_in_memory(t: &Type) -> bool {
    t.by_reference == Some(true)
        || (t.is_composite()
            && t.size > 0
            && (t.size > MAX_IN_REGISTERS || (t.classes().is_none() && !only_x87(t))))
}

/// A structure with nothing in it but one `long double` is returned on the x87 stack.
fn only_x87(t: &Type) -> bool {
    t.leaves.len() == 1 && t.leaves.iter().all(|l| l.class == Class::X87)
}

/// Where the words of a result are.
fn result(t: &Type) -> Option<Vec<Place>> {
    if t.kind == ValueKind::Float || t.slots() == 0 || returned_in_memory(t) {
        return Some(Vec::new());
    }
    let mut integers = 0;
    let place = |c| match c {
        Some(Class::Integer) => {
            integers += 1;
            Place::Register(integers - 1)
        }
        _ => Place::Vector,
    };
    Some(t.classes()?.into_iter().map(place).collect())
}

#[cfg(test)]
mod tests {
    use super::*;
    use Class::{Integer, Sse, X87};
    use Place::{Register, Stack, Vector};

    fn int(size: u64) -> Type {
        Type::scalar("int", ValueKind::Int, size, Integer)
    }

    fn double() -> Type {
        Type::scalar("double", ValueKind::Float, 8, Sse)
    }

    fn composite(size: u64, align: u64, parts: &[(u64, u64, Class)]) -> Type {
        let leaf = |&(at, size, class): &(u64, u64, Class)| Leaf {
            bit_offset: at * 8,
            bits: size * 8,
            class,
            align: size,
        };
        Type {
            size,
            align,
            leaves: parts.iter().map(leaf).collect(),
            ..Type::scalar("struct s", ValueKind::Struct, 0, Integer)
        }
    }

    fn places(params: &[Type], ret: &Type) -> (Vec<Place>, Vec<Place>) {
        let l = layout(params.iter(), ret).unwrap();
        (l.words.iter().map(|w| w.place).collect(), l.ret)
    }

    #[test]
    fn structures_are_where_the_abi_puts_them() {
        let doubles = composite(16, 8, &[(0, 8, Sse), (8, 8, Sse)]);
        let mixed = composite(16, 8, &[(0, 8, Sse), (8, 4, Integer)]);
        let floats = composite(12, 4, &[(0, 4, Sse), (4, 4, Sse), (8, 4, Sse)]);
        let pair = composite(16, 8, &[(0, 8, Integer), (8, 8, Integer)]);
        let (big, wide) = (composite(40, 8, &[]), composite(32, 16, &[]));
        let copied = Type { by_reference: Some(true), ..pair.clone() };
        let of = |params: &[&Type], ret: &Type| {
            let l = layout(params.iter().copied(), ret).unwrap();
            (l.composites, l.ret_composite)
        };
        let parts = |all: &[Part]| Composite::Parts(all.to_vec());
        let (r, v) = (Part::Register, Part::Vector);
        let void = Type::void();
        let got = of(&[&doubles, &int(4), &mixed, &double(), &floats, &pair], &doubles);
        let want =
            vec![(0, parts(&[v(0), v(1)])), (2, parts(&[v(2), r])), (4, parts(&[v(4), v(5)]))];
        assert_eq!(got, (want, Some(parts(&[v(0), v(1)]))));
        let got = of(&[&big, &int(8), &wide, &copied], &big);
        let want =
            vec![(0, Composite::Stack(0)), (2, Composite::Stack(48)), (3, Composite::Behind)];
        assert_eq!(got, (want, Some(Composite::Behind)));
        // When the registers of one kind are used up, the whole structure is on the stack.
        let many = [&doubles, &doubles, &doubles, &double(), &doubles, &mixed, &mixed];
        let got = of(&many, &mixed).0;
        assert_eq!(
            got[3..],
            [(4, Composite::Stack(0)), (5, parts(&[v(7), r])), (6, Composite::Stack(16))]
        );
        assert_eq!(of(&[&pair], &pair), (vec![], None));
        assert_eq!(of(&[], &void), (vec![], None));
    }

    #[test]
    fn words_are_where_the_abi_puts_them() {
        let pair = composite(16, 8, &[(0, 8, Integer), (8, 8, Integer)]);
        let mixed = composite(16, 8, &[(0, 8, Sse), (8, 4, Integer)]);
        let big = composite(24, 8, &[]);
        let packed = composite(9, 1, &[(0, 1, Integer), (1, 8, Integer)]);
        let long_double = Type::scalar("long double", ValueKind::Float, 16, X87);
        let r = |n: u8| (0..n).map(Register).collect::<Vec<_>>();
        let rax = vec![Register(0)];
        assert_eq!(places(&[int(4), int(8)], &int(4)), (r(2), rax.clone()));
        assert_eq!(
            places(&[int(4), double(), int(4)], &double()),
            (r(2), vec![]),
            "floats take no word"
        );
        assert_eq!(places(&[pair.clone(), int(4)], &pair), (r(3), vec![Register(0), Register(1)]));
        assert_eq!(
            places(std::slice::from_ref(&mixed), &mixed),
            (vec![Vector, Register(0)], vec![Vector, Register(0)])
        );
        assert_eq!(
            places(&[int(8)], &big),
            (vec![Register(1)], vec![]),
            "rdi says where the result goes"
        );
        assert_eq!(places(&[big, int(8)], &Type::void()), (r(1), vec![]));
        let mut many = vec![int(8); 9];
        let mut want = r(6);
        want.extend([Stack(0), Stack(1), Stack(2)]);
        assert_eq!(places(&many, &int(1)), (want, rax));
        // What does not fit into the registers that are left goes to the stack whole; what comes
        // later may still fit.
        many.truncate(5);
        many.extend([pair, int(4)]);
        let mut want = r(5);
        want.extend([Stack(0), Stack(1), Register(5)]);
        assert_eq!(places(&many, &Type::void()).0, want);
        assert_eq!(places(&[packed, int(4)], &Type::void()).0, [Stack(0), Stack(1), Register(0)]);
        assert_eq!(places(&[long_double.clone(), int(4)], &long_double), (r(1), vec![]));
        // Sixteen bytes are aligned to sixteen on the stack.
        let mut many = vec![int(8); 7];
        many.push(Type::scalar("__int128", ValueKind::Int, 16, Integer));
        let mut want = r(6);
        want.extend([Stack(0), Stack(2), Stack(3)]);
        assert_eq!(places(&many, &Type::void()).0, want);
        assert_eq!(places(&vec![int(8); 20], &Type::void()).0.len(), MAX_WORDS);
    }
}
