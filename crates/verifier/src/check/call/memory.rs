//! Memory in a helper's arguments, and the sizes that go with it.

use super::{Call, MAX_SIZE, MEMORY, wrong};
use crate::check::Walk;
use crate::check::mem::Access;
use crate::reg::{Flags, Kind, Reg};
use crate::reject::Reason;
use skep_isa::helper::{self, ArgType, Helper, id};

impl Walk<'_> {
    /// Checks the size in `reg` and the memory in the register before it.
    pub(super) fn size(
        &mut self,
        h: &Helper,
        reg: u8,
        r: &Reg,
        zero_ok: bool,
        call: &mut Call,
    ) -> Result<(), Reason> {
        if !r.is_scalar() {
            return Err(wrong(reg, r, "scalar"));
        }
        let of = reg - 1;
        let mem = self.read(of)?;
        let range = &r.val.r64;
        self.flow.mark(r.node);
        if range.smin < 0 {
            return Err(Reason::NegativeSize { reg });
        }
        if range.umin == 0 && !zero_ok {
            return Err(Reason::ZeroSize { reg, min: range.umin, max: range.umax });
        }
        if range.umax >= MAX_SIZE {
            return Err(Reason::UnboundedSize { reg });
        }
        if let Some((text, data)) = call.format.take() {
            // snprintf: the format is known, so is the number of words it reads.
            let words = self.format_words(&text, data)?;
            if words.checked_mul(8).map(u64::from) != r.as_const() {
                return Err(Reason::BadFormat {
                    what: "the number of arguments differs from that of the conversions",
                });
            }
        }
        let arg = h.args.get(of as usize - 1).copied().unwrap_or(ArgType::None);
        if matches!(arg, ArgType::MemOrNull | ArgType::UninitMemOrNull) && mem.is_zero() {
            return if range.umax == 0 { Ok(()) } else { Err(wrong(of, &mem, MEMORY)) };
        }
        call.size = Some(range.umax as u32);
        if matches!(arg, ArgType::Mem | ArgType::MemOrNull)
            && let Some(checked) = self.object_memory(of, &mem, range.umax as u32)
        {
            return checked;
        }
        let access = if matches!(arg, ArgType::UninitMem | ArgType::UninitMemOrNull) {
            Access::Write
        } else {
            Access::Read
        };
        self.memory(h, of, &mem, range.umax as u32, access)?;
        if arg == ArgType::MemWrite {
            self.memory(h, of, &mem, range.umax as u32, Access::Write)
        } else {
            Ok(())
        }
    }

    /// Checks `size` bytes of memory for a helper.
    pub(super) fn memory(
        &mut self,
        h: &Helper,
        reg: u8,
        r: &Reg,
        size: u32,
        access: Access,
    ) -> Result<(), Reason> {
        if r.nullable {
            return Err(wrong(reg, r, MEMORY));
        }
        match r.kind {
            Kind::Stack(frame) => self.helper_stack(reg, r, frame, size, access),
            Kind::Value(map) => self.check_helper_value(reg, r, map, size, access),
            Kind::Packet | Kind::PacketMeta if !h.packet || !self.may_read_packet() => {
                Err(Reason::PacketToHelper)
            }
            Kind::Packet | Kind::PacketMeta if access.writes() && !self.may_write_packet() => {
                Err(Reason::PacketWrite)
            }
            Kind::Key(_) if access.writes() => {
                Err(Reason::ReadOnlyPointer { reg, kind: r.type_name() })
            }
            // Helpers do not expect that there is nothing.
            Kind::Mem(_) if r.flags.has(Flags::UNTRUSTED) => Err(wrong(reg, r, MEMORY)),
            Kind::Mem(_) | Kind::Record(_) if access.writes() && r.flags.has(Flags::RDONLY) => {
                Err(Reason::ReadOnlyPointer { reg, kind: r.type_name() })
            }
            Kind::Mem(_) | Kind::Record(_) | Kind::Key(_) | Kind::Packet | Kind::PacketMeta => {
                self.check_region(reg, r, 0, size)
            }
            // Only a context that nobody rewrites is memory.
            Kind::Ctx if self.layout.fields.is_empty() && size > 0 => {
                self.check_ctx_bytes(reg, r, size, access)
            }
            _ => Err(wrong(reg, r, MEMORY)),
        }
    }

    /// Checks `size` bytes of memory for a function of the program.
    pub(in crate::check) fn plain_memory(
        &mut self,
        reg: u8,
        r: &Reg,
        size: u32,
        access: Access,
    ) -> Result<(), Reason> {
        // A helper that takes all kinds of memory.
        let id = id::MAP_LOOKUP_ELEM;
        let h = helper::by_id(id).ok_or(Reason::NoSuchHelper { id })?;
        self.memory(h, reg, r, size, access)
    }
}

pub(super) fn aligned(r: &Reg, size: u32) -> Result<(), Reason> {
    let low = r.val.bits.add(crate::tnum::Tnum::constant(i64::from(r.off) as u64));
    let known = matches!(r.kind, Kind::Stack(_) | Kind::Value(_) | Kind::Mem(_) | Kind::Record(_));
    if known && (low.value | low.mask) & u64::from(size - 1) != 0 {
        return Err(Reason::Misaligned {
            what: "memory",
            off: format!("{}+{}", r.val.bits, r.off),
            size,
        });
    }
    Ok(())
}
