//! Objects the program allocates, and the lists and trees that hold them.

use super::Walk;
use super::lock::check_field_access;
use crate::fields::FieldKind;
use crate::reg::{Flags, Id, Kind, Reg};
use crate::reject::Reason;
use crate::state::Frame;
use skep_isa::kfunc::{KFlags, Kfunc};
use skep_isa::op;
use skep_object::btf::{Kind as Type, TypeId};

impl Walk<'_> {
    /// The type of a new object, checked.
    pub(super) fn new_type(&self, id: u64, percpu: bool) -> Result<TypeId, Reason> {
        let bad = |what| Reason::BadObjectType { what };
        let id = u32::try_from(id)
            .map_err(|_| bad("local type ID argument must be in range [0, U32_MAX]"))?;
        let btf = self
            .prog
            .btf
            .as_deref()
            .ok_or(bad("bpf_obj_new/bpf_percpu_obj_new requires prog BTF"))?;
        match btf.get(id).map(|t| &t.kind) {
            Ok(Type::Struct(_))
                if percpu
                    && self.object_fields(id).is_empty()
                    && !crate::fields::is_numbers(btf, id, 4) =>
            {
                Err(bad("bpf_percpu_obj_new type ID argument must be of a struct of scalars"))
            }
            Ok(Type::Struct(s)) if percpu && s.size > 512 => {
                Err(bad("bpf_percpu_obj_new type size is greater than 512"))
            }
            Ok(Type::Struct(_)) if percpu && !self.object_fields(id).is_empty() => {
                Err(bad("bpf_percpu_obj_new type ID argument must not contain special fields"))
            }
            Ok(Type::Struct(s)) if s.size > 0 => Ok(id),
            _ => Err(bad("bpf_obj_new/bpf_percpu_obj_new type ID argument must be of a struct")),
        }
    }

    /// Bytes of an object of the program's.
    fn object_size(&self, ty: TypeId) -> u32 {
        self.prog
            .btf
            .as_deref()
            .and_then(|b| b.size_of(ty).ok())
            .and_then(|n| u32::try_from(n).ok())
            .unwrap_or(0)
    }

    /// Checks a load or store through a pointer to an object of the program's.
    pub(super) fn check_local(
        &self,
        reg: u8,
        r: &Reg,
        ty: TypeId,
        off: i32,
        size: u32,
    ) -> Result<(), Reason> {
        if r.flags.has(Flags::PERCPU) {
            return Err(Reason::NotMemory { reg, kind: r.type_name() });
        }
        if r.val.as_const() != Some(0) {
            return Err(Reason::VariablePointer { kind: "ptr_", bits: r.val.bits.to_string() });
        }
        let start = i64::from(r.off) + i64::from(off);
        if start < 0 || start + i64::from(size) > i64::from(self.object_size(ty)) {
            return Err(Reason::OutOfBounds {
                what: "object",
                size_name: "size",
                region: self.object_size(ty),
                off: start,
                size,
            });
        }
        let fields = self.object_fields(ty);
        let mut plain = *r;
        plain.off = 0;
        check_field_access(&fields, &plain, start as i32, size, true).map_err(|e| match e {
            Reason::FieldAccess { field, .. } => {
                Reason::FieldAccess { field, how: "directly: its direct access is disallowed" }
            }
            e => e,
        })
    }

    /// An object that is given away for good.
    pub(super) fn local_release(&self, k: &Kfunc, reg: u8, r: &Reg) -> Result<(), Reason> {
        let percpu = k.flags.has(KFlags::PERCPU);
        if !matches!(r.kind, Kind::Local(_))
            || r.nullable
            || r.flags.has(Flags::UNTRUSTED)
            || r.flags.has(Flags::PERCPU) != percpu
        {
            return Err(Reason::NotAllocated { arg: reg - 1 });
        }
        if r.reference == 0 || !self.state.refs.iter().any(|held| held.id == r.reference) {
            return Err(Reason::ObjectNotReferenced);
        }
        if r.off != 0 || r.val.as_const() != Some(0) {
            return Err(Reason::ReleaseOffset { reg });
        }
        Ok(())
    }

    /// An object with a reference count.
    pub(super) fn refcounted(&self, reg: u8, r: &Reg) -> Result<(), Reason> {
        let owned = r.reference != 0 || r.flags.has(Flags::NON_OWNING) || r.flags.has(Flags::RCU);
        let Kind::Local(ty) = r.kind else { return Err(Reason::NeitherOwning { arg: reg - 1 }) };
        if r.nullable || !owned {
            return Err(Reason::NeitherOwning { arg: reg - 1 });
        }
        if !self.object_fields(ty).iter().any(|f| f.kind == FieldKind::Refcount) {
            return Err(Reason::NoRefcount { arg: reg - 1 });
        }
        Ok(())
    }

    /// The head of a list or root of a tree: what it contains. Its lock must be held.
    pub(super) fn graph_root(
        &self,
        reg: u8,
        r: &Reg,
        name: &'static str,
    ) -> Result<(TypeId, u32), Reason> {
        if r.nullable
            || (matches!(r.kind, Kind::Local(_))
                && r.reference == 0
                && !r.flags.has(Flags::NON_OWNING))
        {
            return Err(Reason::WrongType {
                reg,
                found: r.type_name(),
                expected: "map_value, ptr_",
            });
        }
        self.field_place(reg, r, name)?;
        if self.state.lock != Some((r.kind, r.id)) {
            return Err(if self.state.lock.is_none() {
                Reason::NoLockForRoot { name }
            } else {
                Reason::OtherAllocation
            });
        }
        let fields = match r.kind {
            Kind::Value(map) => self.fields_of(map),
            Kind::Local(ty) => self.object_fields(ty),
            _ => {
                return Err(Reason::WrongType {
                    reg,
                    found: r.type_name(),
                    expected: "map_value, ptr_",
                });
            }
        };
        let (off, _) = r.offsets();
        let field = fields.iter().find(|f| i64::from(f.off) == off && f.kind.name() == name);
        match field.map(|f| &f.kind) {
            Some(FieldKind::ListHead(Some(c)) | FieldKind::RbRoot(Some(c))) => {
                Ok((c.object, c.node))
            }
            _ => Err(Reason::Unsupported {
                what: "a list or tree that does not say what it contains",
            }),
        }
    }

    /// The node of an object that goes into a list or tree, or is in it.
    pub(super) fn graph_node(
        &self,
        reg: u8,
        r: &Reg,
        contains: Option<(TypeId, u32)>,
        goes_in: bool,
    ) -> Result<(), Reason> {
        let Kind::Local(ty) = r.kind else { return Err(Reason::NotAllocated { arg: reg - 1 }) };
        if r.nullable {
            return Err(Reason::NotAllocated { arg: reg - 1 });
        }
        if goes_in && r.reference == 0 {
            return Err(Reason::ObjectNotReferenced);
        }
        if !goes_in && (!r.flags.has(Flags::NON_OWNING) || r.reference != 0) {
            return Err(Reason::NotNonOwning);
        }
        // The function that compares nodes cannot come here: nothing leads it to the tree.
        let Some((object, node)) = contains else {
            return Err(Reason::NotAllocated { arg: reg - 1 });
        };
        let at = (r.val.as_const() == Some(0)).then_some(i64::from(r.off));
        if ty != object || at != Some(i64::from(node)) {
            return Err(Reason::OtherNode { arg: reg - 1 });
        }
        Ok(())
    }

    /// The object now belongs to a list or tree: it may be looked at while the lock is held.
    pub(super) fn give_to_graph(&mut self, reference: Id) {
        self.state.refs.retain(|r| r.id != reference);
        self.state.each(|r| {
            if r.reference == reference {
                r.reference = 0;
                r.flags = r.flags.with(Flags::NON_OWNING);
            }
        });
    }

    /// The function that compares two nodes of a tree, any number of times.
    pub(super) fn call_less(
        &mut self,
        to: usize,
        ty: TypeId,
        node: u32,
        at: usize,
    ) -> Result<Option<usize>, Reason> {
        let mut called = self.state.clone();
        let frames = called.frames.len() + 1;
        if frames > op::MAX_CALL_FRAMES {
            return Err(Reason::CallStackTooDeep { frames });
        }
        let mut callee = Frame::new(called.depth() as u8 + 1, self.cfg.func_of(to), at + 1);
        callee.held = Some(called.refs.iter().map(|r| r.id).collect());
        callee.less = true;
        let mut arg = Reg::of(Kind::Local(ty));
        arg.off = node as i32;
        arg.flags = Flags::NON_OWNING;
        callee.regs[1] = arg;
        callee.regs[2] = arg;
        called.frames.push(callee);
        self.info.calls.insert((self.cfg.func_of(at), self.cfg.func_of(to)));
        let called = self.enter(called);
        self.fork(called, to);
        Ok(Some(at + 1))
    }
}
