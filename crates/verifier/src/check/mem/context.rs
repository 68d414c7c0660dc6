//! Accesses to the context.

use super::{Access, At, pristine};
use crate::check::Walk;
use crate::reg::Reg;
use crate::reject::Reason;
use skep_isa::ctx::FieldKind;
use skep_isa::{AttachType as A, ProgramType as P};
use skep_object::Access as Words;

impl Walk<'_> {
    /// Checks a context access; also for pointers a helper will read through.
    pub(super) fn check_ctx(
        &mut self,
        at: &At,
        r: &Reg,
        access: Access,
    ) -> Result<FieldKind, Reason> {
        pristine(at.reg, r, "ctx")?;
        let bad = Reason::BadContext { off: at.off.into(), size: at.size };
        let Ok(off) = u32::try_from(at.off) else { return Err(bad) };
        let end = off + at.size;
        if off < self.layout.first || end > self.layout.size || !off.is_multiple_of(at.size) {
            return Err(bad);
        }
        let kind = if self.layout.fields.is_empty() {
            if access.writes() && !self.layout.writable {
                return Err(bad);
            }
            FieldKind::Scalar
        } else {
            let field = self
                .layout
                .fields
                .iter()
                .find(|f| f.off <= off && end <= f.off + f.size)
                .ok_or(bad.clone())?;
            let whole = field.size == at.size;
            let allowed = match access {
                _ if field.kind == FieldKind::Bytes => access.reads() || field.writable,
                Access::Read => field.is_read(off, at.size),
                Access::Write | Access::Spare => field.writable && whole,
            };
            // Only programs of device maps know where the packet goes.
            let devmap = field.name == "egress_ifindex"
                && self.prog.prog_type == P::Xdp
                && self.prog.attach_type != Some(A::XdpDevmap);
            if !allowed || devmap {
                return Err(bad);
            }
            if matches!(
                field.kind,
                FieldKind::Packet | FieldKind::PacketEnd | FieldKind::PacketMeta
            ) {
                self.info.packet_loads.insert(self.insn);
            }
            field.kind
        };
        self.info.max_ctx_read = self.info.max_ctx_read.max(end);
        Ok(kind)
    }

    /// Checks words of a tracing program's context against the function, as far as that is known.
    pub(super) fn read_words(&mut self, off: u32, size: u32) -> Result<(), Reason> {
        if self.prog.prog_type == P::Tracing {
            let access = Words { off, size };
            let entry_only =
                matches!(self.prog.attach_type, Some(A::TraceFentry | A::TraceFentryMulti));
            self.opts.attached.check(access, !entry_only)?;
            self.info.ctx_reads.insert(access);
        }
        Ok(())
    }

    /// Checks `size` bytes of a context that is plain memory, for a helper.
    pub(in crate::check) fn check_ctx_bytes(
        &mut self,
        reg: u8,
        r: &Reg,
        size: u32,
        access: Access,
    ) -> Result<(), Reason> {
        let last = i32::try_from(size - 1).map_err(|_| Reason::UnboundedSize { reg })?;
        let at = At { reg, off: last, size: 1, aligned: false };
        self.check_ctx(&at, r, access)?;
        self.read_words(0, size)?;
        self.info.ctx_write |= access.writes();
        Ok(())
    }
}
