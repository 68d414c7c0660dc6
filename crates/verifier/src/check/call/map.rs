//! The map in a helper's arguments: whether it and the helper go together, its keys.

use super::{Call, wrong};
use crate::check::Walk;
use crate::check::mem::Access;
use crate::reg::{Kind, Reg};
use crate::reject::Reason;
use crate::stack::{Byte, DynptrKind};
use skep_isa::helper::{ArgType, Helper, HelperId, id};
use skep_isa::{AttachType as A, KeyShape, MapFlags, MapType, ProgramType as P};

impl Walk<'_> {
    pub(super) fn call_spec(&self, call: &Call) -> Option<&skep_object::MapSpec> {
        self.spec(call.map?)
    }

    /// Checks an argument that is a map, or what a map's definition says the size of.
    pub(super) fn map_argument(
        &mut self,
        h: &Helper,
        reg: u8,
        r: &Reg,
        arg: ArgType,
        call: &mut Call,
    ) -> Result<(), Reason> {
        let (value_size, map_type) =
            self.call_spec(call).map_or((0, None), |m| (m.value_size, Some(m.map_type)));
        match arg {
            ArgType::ConstMapPtr => {
                let (Kind::Map(map), false) = (r.kind, r.nullable) else {
                    return Err(wrong(reg, r, "map_ptr"));
                };
                self.check_map(h, map)?;
                call.map = Some(map);
                Ok(())
            }
            ArgType::MapKey => self.map_key(h, reg, r, call),
            ArgType::MapValue if matches!(map_type, Some(MapType::Sockmap | MapType::Sockhash)) => {
                self.object_argument(reg, r, ArgType::BtfIdSockCommon, call)
            }
            ArgType::MapValueOrNull if r.is_zero() => {
                self.flow.mark(r.node);
                Ok(())
            }
            // A filter is shown a value, and says whether it may have seen it.
            ArgType::UninitMapValue if map_type != Some(MapType::BloomFilter) => {
                self.memory(h, reg, r, value_size, Access::Write)
            }
            _ => self.memory(h, reg, r, value_size, Access::Read),
        }
    }

    fn map_key(&mut self, h: &Helper, reg: u8, r: &Reg, call: &mut Call) -> Result<(), Reason> {
        let size = match self.call_spec(call).map(|m| m.keys) {
            Some(KeyShape::Bytes { .. }) => return self.dynptr_key(reg, r),
            Some(KeyShape::Fixed(size)) => size,
            None => 0,
        };
        self.memory(h, reg, r, size, Access::Read)?;
        if h.id == id::MAP_LOOKUP_ELEM
            && self
                .call_spec(call)
                .is_some_and(|m| matches!(m.map_type, MapType::Array | MapType::PercpuArray))
        {
            call.key = self.constant_key(r, size);
        }
        Ok(())
    }

    /// A key of any length: a dynptr on the stack, or one that a callback was shown, of memory
    /// that lies in one piece.
    fn dynptr_key(&mut self, reg: u8, r: &Reg) -> Result<(), Reason> {
        match self.dynptr_argument(reg, r)?.kind {
            Kind::Dynptr(DynptrKind::Local | DynptrKind::Ringbuf) => Ok(()),
            _ => Err(Reason::DynptrKey { reg }),
        }
    }

    /// Checks that the helper and the map go together (`check_map_func_compatibility`).
    fn check_map(&self, h: &Helper, map: u32) -> Result<(), Reason> {
        let Some(spec) = self.spec(map) else {
            return Err(Reason::NoSuchMap { index: map as i32, maps: self.prog.maps.len() });
        };
        let fits = spec.map_type.row().allows(h.id) || kernel_only(spec.map_type).contains(&h.id);
        if !fits {
            return Err(Reason::WrongMap {
                kind: spec.map_type.name(),
                name: h.full_name(),
                id: h.id,
            });
        }
        if h.changes_map && (spec.flags.has(MapFlags::RDONLY_PROG) || spec.frozen) {
            return Err(Reason::ReadOnlyMapUpdate);
        }
        let socks = matches!(spec.map_type, MapType::Sockmap | MapType::Sockhash);
        if socks && h.changes_map && !self.may_update_sockmap(h.id == id::MAP_DELETE_ELEM) {
            return Err(Reason::SockmapUpdate);
        }
        Ok(())
    }

    /// Tells whether programs of this type may change maps of sockets.
    fn may_update_sockmap(&self, delete: bool) -> bool {
        match self.prog.prog_type {
            P::SockOps => delete,
            P::Tracing => self.prog.attach_type == Some(A::TraceIter),
            P::SocketFilter
            | P::SchedCls
            | P::SchedAct
            | P::Xdp
            | P::SkReuseport
            | P::FlowDissector
            | P::SkLookup => true,
            _ => false,
        }
    }

    /// The number that stands on the stack as a key, as far as Linux looks for it
    /// (`get_constant_map_key`). A program that will run here asks a file that others may write
    /// how many elements there are: for it no element is there for certain.
    fn constant_key(&mut self, r: &Reg, size: u32) -> Option<u64> {
        let Kind::Stack(frame) = r.kind else { return None };
        if self.opts.strict || self.opts.offered_only || r.val.as_const().is_none() {
            return None;
        }
        let off = i32::try_from(r.offsets().0).ok()?;
        let slot = *self.state.slot(frame, off);
        let from = &slot.bytes[(off & 7) as usize..];
        let of = |kind| from.iter().take_while(|b| **b == kind).count() as u32;
        if of(Byte::Zero) >= size {
            return Some(0);
        }
        if of(Byte::Spill) != size {
            return None;
        }
        self.flow.mark(slot.reg.node);
        slot.reg.as_const()
    }
}

/// Helpers that take maps which exist in the kernel only, and those that skep's table leaves out
/// because they need it.
fn kernel_only(map: MapType) -> &'static [HelperId] {
    use MapType as T;
    match map {
        T::Sockmap => &[
            id::MAP_LOOKUP_ELEM,
            id::MAP_UPDATE_ELEM,
            id::MAP_DELETE_ELEM,
            id::SK_REDIRECT_MAP,
            id::SOCK_MAP_UPDATE,
            id::MSG_REDIRECT_MAP,
            id::SK_SELECT_REUSEPORT,
            id::SK_ASSIGN,
        ],
        T::Sockhash => &[
            id::MAP_LOOKUP_ELEM,
            id::MAP_UPDATE_ELEM,
            id::MAP_DELETE_ELEM,
            id::SOCK_HASH_UPDATE,
            id::MSG_REDIRECT_HASH,
            id::SK_REDIRECT_HASH,
            id::SK_SELECT_REUSEPORT,
        ],
        T::CgroupStorage | T::PercpuCgroupStorage => &[id::GET_LOCAL_STORAGE],
        T::ReuseportSockarray => &[id::SK_SELECT_REUSEPORT],
        T::SkStorage => &[id::SK_STORAGE_GET, id::SK_STORAGE_DELETE],
        T::InodeStorage => &[id::INODE_STORAGE_GET, id::INODE_STORAGE_DELETE],
        T::TaskStorage => &[id::TASK_STORAGE_GET, id::TASK_STORAGE_DELETE],
        T::CgrpStorage => &[id::CGRP_STORAGE_GET, id::CGRP_STORAGE_DELETE],
        // A timer or work queue names the map it lies in.
        T::Hash | T::Array | T::LruHash => &[id::TIMER_INIT],
        _ => &[],
    }
}
