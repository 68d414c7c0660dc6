//! A path into a type: parsed from the access string for the local type, found again by names in
//! the target's.

use super::compat;
use super::{CoreError, CoreTarget, Question, Relocator, essential};
use crate::Btf;
use crate::btf::{Composite, CoreRelo, Enum, Kind, TypeId};

/// Longest path (relo_core.h `BPF_CORE_SPEC_MAX_LEN`).
const MAX_LEN: usize = 64;

/// A path into a type.
#[derive(Clone, Debug)]
pub(super) struct Spec {
    pub question: Question,
    pub root: TypeId,
    /// The steps that count: named members and array elements.
    pub steps: Vec<Step>,
    /// Where the path ends, in bits from the start of the root type.
    pub bit_offset: u64,
    /// Steps on the way, anonymous members included: what libbpf's limit is about.
    depth: usize,
}

/// One step of a path.
#[derive(Clone, Copy, Debug)]
pub(super) struct Step {
    /// The structure a member is taken from, or the type of the element.
    pub type_id: TypeId,
    /// Number of the member, the element, or the value of an enumeration.
    pub index: u32,
    /// It is a member or a value of an enumeration, not an element.
    pub named: bool,
}

impl Spec {
    /// Reads the path of a relocation.
    pub fn parse(btf: &Btf, relo: &CoreRelo, question: Question) -> Result<Self, CoreError> {
        let text = btf.string(relo.access_off);
        let path: Option<Vec<u32>> =
            text.split(':').take(MAX_LEN + 1).map(|n| n.parse().ok()).collect();
        let path = path
            .filter(|p| p.len() <= MAX_LEN)
            .ok_or_else(|| format!("unusable path `{text:.80}`"))?;
        let mut spec = Self {
            question,
            root: relo.type_id,
            steps: Vec::new(),
            bit_offset: 0,
            depth: path.len(),
        };
        if question.is_type() {
            return if path == [0] {
                Ok(spec)
            } else {
                Err(format!("path `{text:.80}` of a whole type").into())
            };
        }
        let (mut id, t) = btf.resolve(relo.type_id)?;
        let (Some(first), rest) = (path.first(), path.get(1..).unwrap_or(&[])) else {
            return Err("empty path".into());
        };
        if question.is_enum() {
            let known = enumeration(&t.kind).is_some_and(|e| (*first as usize) < e.values.len());
            if !known || !rest.is_empty() {
                return Err(format!("path `{text:.80}` leads to no value of an enumeration").into());
            }
            spec.steps.push(Step { type_id: id, index: *first, named: true });
            return Ok(spec);
        }
        spec.element(btf, id, *first)?;
        for index in rest {
            let (here, t) = btf.resolve(id)?;
            match &t.kind {
                Kind::Struct(c) | Kind::Union(c) => {
                    let m = c
                        .members
                        .get(*index as usize)
                        .ok_or_else(|| format!("path `{text:.80}` leads past the members"))?;
                    spec.bit_offset += u64::from(m.bit_offset);
                    if !btf.string(m.name_off).is_empty() {
                        spec.steps.push(Step { type_id: here, index: *index, named: true });
                    }
                    id = m.type_id;
                }
                Kind::Array(a) => {
                    if *index >= a.len && !spec.is_flexible(btf, a.len) {
                        return Err(format!("path `{text:.80}` leads past an array").into());
                    }
                    id = btf.resolve(a.elem)?.0;
                    spec.element(btf, id, *index)?;
                }
                other => {
                    return Err(format!("path `{text:.80}` goes into a {}", other.name()).into());
                }
            }
        }
        Ok(spec)
    }

    /// Counts a step in the target's type.
    fn deeper(&mut self) -> Result<(), CoreError> {
        if self.depth >= MAX_LEN {
            return Err("members nest too deep".into());
        }
        self.depth += 1;
        Ok(())
    }

    /// Adds a step to an element.
    fn element(&mut self, btf: &Btf, type_id: TypeId, index: u32) -> Result<(), CoreError> {
        let bits = btf
            .size_of(type_id)?
            .checked_mul(u64::from(index) * 8)
            .filter(|b| *b < 1 << 40)
            .ok_or("an offset without end")?;
        self.bit_offset = self.bit_offset.checked_add(bits).ok_or("an offset without end")?;
        self.steps.push(Step { type_id, index, named: false });
        Ok(())
    }

    /// Tells whether the array that the last step leads to is the open end of a structure.
    fn is_flexible(&self, btf: &Btf, len: u32) -> bool {
        let Some(last) = self.steps.last().filter(|s| s.named && len == 0) else { return false };
        btf.get(last.type_id)
            .ok()
            .and_then(|t| composite(&t.kind))
            .is_some_and(|c| last.index as usize + 1 == c.members.len())
    }
}

impl Relocator<'_> {
    /// Walks the local path in a type of the target, by names; `None` when it does not lead there.
    pub(super) fn matching(
        &self,
        local: &Spec,
        target: &CoreTarget,
        root: TypeId,
    ) -> Result<Option<Spec>, CoreError> {
        self.step()?;
        let btf = &*target.btf;
        let mut spec =
            Spec { question: local.question, root, steps: Vec::new(), bit_offset: 0, depth: 0 };
        if local.question.is_type() {
            let fits = match local.question {
                Question::TypeMatches => self.types_match(local.root, btf, root, false, 0)?,
                _ => self.types_compatible(local.root, btf, root, 0)?,
            };
            return Ok(fits.then_some(spec));
        }
        let (mut id, t) = btf.resolve(root)?;
        if local.question.is_enum() {
            let wanted = local.steps.first().and_then(|s| {
                let e = enumeration(&self.local.get(s.type_id).ok()?.kind)?;
                Some(essential(self.local.string(e.values.get(s.index as usize)?.name_off)))
            });
            let (Some(wanted), Some(e)) = (wanted, enumeration(&t.kind)) else { return Ok(None) };
            let index = e.values.iter().position(|v| essential(btf.string(v.name_off)) == wanted);
            spec.steps.extend(index.map(|i| Step { type_id: id, index: i as u32, named: true }));
            return Ok(index.is_some().then_some(spec));
        }
        for (i, step) in local.steps.iter().enumerate() {
            if step.named {
                let Some(next) = self.member(step, btf, id, &mut spec)? else { return Ok(None) };
                id = next;
                continue;
            }
            // The first step is into the array of which the root itself is an element.
            if i > 0 {
                let Kind::Array(a) = &btf.resolve(id)?.1.kind else { return Ok(None) };
                if step.index >= a.len && !spec.is_flexible(btf, a.len) {
                    return Ok(None);
                }
                id = btf.resolve(a.elem)?.0;
            }
            if btf.size_of(id).is_err() {
                return Ok(None);
            }
            spec.deeper()?;
            spec.element(btf, id, step.index)?;
        }
        Ok(Some(spec))
    }

    /// Finds the member that a local one means, also inside anonymous members, and returns its
    /// type.
    fn member(
        &self,
        step: &Step,
        btf: &Btf,
        id: TypeId,
        spec: &mut Spec,
    ) -> Result<Option<TypeId>, CoreError> {
        let (id, t) = btf.resolve(id)?;
        let Some(c) = composite(&t.kind) else { return Ok(None) };
        let own = self
            .local
            .get(step.type_id)
            .ok()
            .and_then(|t| composite(&t.kind))
            .and_then(|c| c.members.get(step.index as usize));
        let Some(own) = own else { return Ok(None) };
        let wanted = self.local.string(own.name_off);
        for (i, m) in c.members.iter().enumerate() {
            self.step()?;
            spec.deeper()?;
            let name = btf.string(m.name_off);
            let before = spec.bit_offset;
            spec.bit_offset =
                before.checked_add(u64::from(m.bit_offset)).ok_or("an offset without end")?;
            if name.is_empty() {
                if let Some(found) = self.member(step, btf, m.type_id, spec)? {
                    return Ok(Some(found));
                }
            } else if name == wanted {
                spec.steps.push(Step { type_id: id, index: i as u32, named: true });
                return Ok(
                    compat::fields(self.local, own.type_id, btf, m.type_id)?.then_some(m.type_id)
                );
            }
            spec.bit_offset = before;
            spec.depth -= 1;
        }
        Ok(None)
    }
}

pub(super) fn composite(kind: &Kind) -> Option<&Composite> {
    match kind {
        Kind::Struct(c) | Kind::Union(c) => Some(c),
        _ => None,
    }
}

pub(super) fn enumeration(kind: &Kind) -> Option<&Enum> {
    match kind {
        Kind::Enum(e) | Kind::Enum64(e) => Some(e),
        _ => None,
    }
}
