//! A few types out of many: those of one map out of a kernel's.

use std::collections::HashMap;

use super::build::Builder;
use super::kind::{Kind, TypeId};
use super::{Btf, BtfError};

impl Btf {
    /// Copies `roots` and the types that they are made of; returns the copies' ids in the order of
    /// `roots`.
    ///
    /// Pointers lose what they point to: it is no part of a value, and leads to every other type in
    /// a kernel's.
    ///
    /// # Errors
    /// When a root does not exist.
    pub fn subset(&self, roots: &[TypeId]) -> Result<(Self, Vec<TypeId>), BtfError> {
        let mut wanted = Wanted::default();
        let ids = roots.iter().map(|id| wanted.id(*id)).collect();
        let mut builder = Builder::new();
        let mut next = 0;
        while let Some(id) = wanted.order.get(next).copied() {
            next += 1;
            let t = self.get(id)?;
            let mut kind = t.kind.clone();
            match &mut kind {
                Kind::Ptr(to) => *to = 0,
                Kind::Array(a) => (a.elem, a.index) = (wanted.id(a.elem), wanted.id(a.index)),
                Kind::Struct(c) | Kind::Union(c) => c.members.iter_mut().for_each(|m| {
                    m.type_id = wanted.id(m.type_id);
                    m.name_off = builder.string(self.string(m.name_off));
                }),
                Kind::Enum(e) | Kind::Enum64(e) => e
                    .values
                    .iter_mut()
                    .for_each(|v| v.name_off = builder.string(self.string(v.name_off))),
                Kind::Typedef(to)
                | Kind::Volatile(to)
                | Kind::Const(to)
                | Kind::Restrict(to)
                | Kind::TypeTag(to) => *to = wanted.id(*to),
                Kind::Var(v) => v.type_id = wanted.id(v.type_id),
                Kind::DataSec(d) => {
                    d.vars.iter_mut().for_each(|v| v.type_id = wanted.id(v.type_id))
                }
                Kind::DeclTag(d) => d.type_id = wanted.id(d.type_id),
                Kind::Func(f) => f.proto = wanted.id(f.proto),
                Kind::FuncProto(p) => {
                    p.ret = wanted.id(p.ret);
                    p.params.iter_mut().for_each(|p| {
                        p.type_id = wanted.id(p.type_id);
                        p.name_off = builder.string(self.string(p.name_off));
                    });
                }
                Kind::Void | Kind::Int(_) | Kind::Fwd { .. } | Kind::Float(_) => {}
            }
            let name = builder.string(self.string(t.name_off));
            builder.add(name, kind);
        }
        Ok((builder.finish()?, ids))
    }
}

/// Types in the order in which they were first referred to, which is that of their new ids.
#[derive(Default)]
struct Wanted {
    order: Vec<TypeId>,
    new: HashMap<TypeId, TypeId>,
}

impl Wanted {
    fn id(&mut self, old: TypeId) -> TypeId {
        if old == 0 {
            return 0;
        }
        *self.new.entry(old).or_insert_with(|| {
            self.order.push(old);
            self.order.len() as TypeId
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Values print the same by the copy, whatever they are made of.
    #[test]
    fn values_look_the_same_by_the_copy() {
        let path = format!("{}/tests/data/values.bpf.o", env!("CARGO_MANIFEST_DIR"));
        let elf = std::fs::read(path).expect("the fixture is committed");
        let all = Btf::parse(crate::elf::btf_section(&elf).expect("built with -g"))
            .expect("the compiler's types are good");
        let mut compared = 0;
        for (id, _) in all.types() {
            let Ok(size) = all.size_of(id) else { continue };
            let (few, ids) = all.subset(&[id, id]).expect("the type exists");
            assert_eq!(ids, [1, 1]);
            assert!(few.len() <= all.len());
            assert_eq!(few.size_of(1), Ok(size), "{}", all.describe(id));
            let bytes: Vec<u8> =
                (0..size).map(|i| (i as u8).wrapping_mul(3).wrapping_add(1)).collect();
            match (all.decode(id, &bytes), few.decode(1, &bytes)) {
                (Ok(a), Ok(b)) => assert_eq!(a.to_string(), b.to_string(), "{}", all.describe(id)),
                (a, b) => assert_eq!(a.is_err(), b.is_err(), "{}", all.describe(id)),
            }
            compared += 1;
        }
        assert!(compared > 20);
        assert_eq!(
            all.subset(&[all.len() as TypeId]).map(drop),
            Err(BtfError::NoType { id: all.len() as TypeId })
        );
    }
}
