//! What a relocation's question is answered with.

use super::spec::{Spec, composite, enumeration};
use super::{CoreError, Question};
use crate::Btf;
use crate::btf::{Kind, TypeId};

/// The answer: what the compiler wrote and what belongs there.
#[derive(Clone, Debug)]
pub(super) struct Answer {
    /// What the instruction must hold before; `None` when the compiler's value is not to be relied
    /// on.
    pub old: Option<u64>,
    /// What it must hold afterwards; `None` when the target does not have what is asked for.
    pub new: Option<u64>,
    /// Widths of the memory access, before and after, where the question is an offset.
    pub widths: Option<(u64, u64)>,
    /// The access cannot change its width: signs or kinds differ.
    pub width_is_fixed: bool,
}

/// A value from one side.
struct Side {
    value: u64,
    /// The compiler's own value is certain to be the same.
    certain: bool,
    /// Width and type of the memory behind an offset.
    memory: Option<(u64, TypeId)>,
}

impl Side {
    fn sure(value: u64) -> Self {
        Self { value, certain: true, memory: None }
    }
}

impl Answer {
    pub fn unchecked(new: u64) -> Self {
        Self { old: None, new: Some(new), widths: None, width_is_fixed: false }
    }

    /// Answers a question about a path, given the path in the target if it leads anywhere there.
    pub fn of(
        question: Question,
        btf: &Btf,
        local: &Spec,
        target: Option<(&Btf, &Spec)>,
    ) -> Result<Self, CoreError> {
        let old = side(question, btf, local)?;
        let Some((target_btf, spec)) = target else {
            let absent = match question {
                Question::FieldExists | Question::EnumValueExists => Some(0),
                q if q.is_type() => Some(0),
                _ => None,
            };
            return Ok(Self {
                old: old.certain.then_some(old.value),
                new: absent,
                widths: None,
                width_is_fixed: false,
            });
        };
        let new = side(question, target_btf, spec)?;
        let mut answer = Self {
            old: old.certain.then_some(old.value),
            new: Some(new.value),
            widths: None,
            width_is_fixed: false,
        };
        if let (Some((before, a)), Some((after, b))) = (old.memory, new.memory) {
            answer.widths = Some((before, after));
            let unsigned = |btf: &Btf, id: TypeId| matches!(btf.resolve(id).map(|(_, t)| &t.kind), Ok(Kind::Int(i)) if !i.signed);
            let pointer = |btf: &Btf, id: TypeId| {
                matches!(btf.resolve(id).map(|(_, t)| &t.kind), Ok(Kind::Ptr(_)))
            };
            let both = |is: &dyn Fn(&Btf, TypeId) -> bool| is(btf, a) && is(target_btf, b);
            answer.width_is_fixed = before != after && !both(&unsigned) && !both(&pointer);
        }
        Ok(answer)
    }

    /// Tells whether two candidates give the same.
    pub fn same(&self, other: &Self) -> bool {
        self.new == other.new
    }
}

fn side(question: Question, btf: &Btf, spec: &Spec) -> Result<Side, CoreError> {
    match question {
        Question::FieldExists
        | Question::EnumValueExists
        | Question::TypeExists
        | Question::TypeMatches => Ok(Side::sure(1)),
        Question::LocalTypeId | Question::TargetTypeId => {
            Ok(Side { certain: false, ..Side::sure(u64::from(spec.root)) })
        }
        Question::TypeSize => Ok(Side::sure(btf.size_of(spec.root)?)),
        Question::EnumValue => {
            let step = spec.steps.last().ok_or("an empty path")?;
            let value = enumeration(&btf.get(step.type_id)?.kind)
                .and_then(|e| e.values.get(step.index as usize));
            Ok(Side::sure(value.ok_or("no such value of the enumeration")?.value as u64))
        }
        _ => field(question, btf, spec),
    }
}

/// Answers a question about a member or an element.
fn field(question: Question, btf: &Btf, spec: &Spec) -> Result<Side, CoreError> {
    let step = spec.steps.last().ok_or("an empty path")?;
    if !step.named {
        let size = btf.size_of(step.type_id)?;
        return match question {
            Question::ByteOffset => Ok(Side {
                value: spec.bit_offset / 8,
                certain: true,
                memory: Some((size, step.type_id)),
            }),
            Question::ByteSize => Ok(Side::sure(size)),
            _ => Err("this cannot be asked of an element of an array".into()),
        };
    }
    let member =
        composite(&btf.get(step.type_id)?.kind).and_then(|c| c.members.get(step.index as usize));
    let member = member.ok_or("no such member")?;
    let (type_id, t) = btf.resolve(member.type_id)?;
    let at = spec.bit_offset;
    let is_bitfield = member.bitfield != 0;
    let size = btf.size_of(type_id)?;
    let (start, bytes, bits) = if is_bitfield {
        unit(at, u64::from(member.bitfield), size)?
    } else {
        (at / 8, size, size * 8)
    };
    let value = match question {
        Question::ByteOffset => start,
        Question::ByteSize => bytes,
        Question::Signed => u64::from(match &t.kind {
            Kind::Int(i) => i.signed,
            Kind::Enum(e) | Kind::Enum64(e) => e.signed,
            _ => false,
        }),
        Question::LeftShift => 64u64
            .checked_sub((at + bits).saturating_sub(start * 8))
            .ok_or("a member wider than 64 bits")?,
        Question::RightShift => 64u64.checked_sub(bits).ok_or("a member wider than 64 bits")?,
        _ => return Err("this cannot be asked of a member".into()),
    };
    let certain = !is_bitfield || matches!(question, Question::Signed | Question::RightShift);
    let memory = (question == Question::ByteOffset && !is_bitfield).then_some((bytes, type_id));
    Ok(Side { value, certain, memory })
}

/// Finds the smallest aligned unit that holds a bit field: its offset, its bytes, and the field's
/// width.
fn unit(at: u64, bits: u64, size: u64) -> Result<(u64, u64, u64), CoreError> {
    let mut bytes = size;
    while matches!(bytes, 1 | 2 | 4 | 8) {
        let start = at / 8 / bytes * bytes;
        if at + bits <= (start + bytes) * 8 {
            return Ok((start, bytes, bits));
        }
        bytes *= 2;
    }
    Err("a bit field that no load can reach".into())
}
