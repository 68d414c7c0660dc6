//! What a helper leaves in r0.

use super::Call;
use crate::PROCESSORS;
use crate::check::Walk;
use crate::check::mem::INNER;
use crate::reg::{Flags, Id, Kind, Reg};
use crate::scalar::Scalar;
use crate::state::Reference as Held;
use skep_isa::MapType;
use skep_isa::helper::{Helper, Reference, RetType};
use skep_isa::map::Lookup;

/// The largest error number (include/linux/err.h `MAX_ERRNO`).
const MAX_ERRNO: i64 = 4095;

impl Walk<'_> {
    pub(super) fn result(&mut self, h: &Helper, call: &Call) {
        let r0 = match h.ret {
            RetType::Void => Reg::UNINIT,
            RetType::MapValueOrNull => {
                let mut r = self.looked_up(call.map.unwrap_or(u32::MAX));
                if let (Some(key), Some(spec)) = (call.key, self.call_spec(call))
                    && key < u64::from(spec.max_entries)
                {
                    r.nullable = false;
                    if !self.may_hold_lock(r.kind) {
                        r.id = 0;
                    }
                }
                r
            }
            RetType::MapValue => Reg::of(Kind::Value(call.map.unwrap_or(u32::MAX))),
            RetType::SocketOrNull => self.socket(Kind::Socket, h.reference, call.reference),
            RetType::SockCommonOrNull => self.socket(Kind::SockCommon, h.reference, call.reference),
            RetType::TcpSockOrNull => self.socket(Kind::TcpSock, h.reference, call.reference),
            RetType::BtfId(name) => self.kernel_pointer(name, Flags::TRUSTED),
            RetType::KptrOrNull => match &call.kptr {
                Some(k) => self.kptr_old(k),
                None => Reg::UNKNOWN,
            },
            RetType::DynptrMemOrNull => {
                self.dynptr_slice(&call.dynptr.unwrap_or(Reg::UNKNOWN), call.alloc)
            }
            RetType::BtfIdOrNull(name) => {
                let mut r = self.kernel_pointer(name, Flags::TRUSTED);
                r.nullable = true;
                r.id = self.fresh_id();
                r.reference = call.reference;
                r
            }
            RetType::AllocMemOrNull => self.acquired(Kind::Record(call.alloc)),
            RetType::Mem(n) => Reg::of(Kind::Mem(n)),
            RetType::Processor => {
                Reg::scalar(Scalar::between(0, u64::from(self.processors().saturating_sub(1))))
            }
            RetType::BytesWritten => {
                let most = i64::from(call.size.unwrap_or(u32::MAX));
                let bytes = Scalar::UNKNOWN.meet(Scalar::signed_between(-MAX_ERRNO, most));
                Reg::scalar(bytes.unwrap_or(Scalar::UNKNOWN))
            }
            RetType::PercpuVar | RetType::PercpuVarOrNull => Reg::UNINIT,
            // Also where C says u32 or bool: what a helper leaves in the upper half is its own
            // affair.
            _ => Reg::UNKNOWN,
        };
        self.state.set(0, r0);
    }

    /// How many processors there may be. The number of those of this machine says nothing of the
    /// one where a program will run.
    fn processors(&self) -> u32 {
        if self.opts.offered_only {
            self.opts.processors.max(PROCESSORS)
        } else {
            self.opts.processors
        }
    }

    /// What a lookup in a map gives.
    fn looked_up(&mut self, map: u32) -> Reg {
        let Some(spec) = self.spec(map) else { return Reg::UNKNOWN };
        match (spec.map_type, spec.map_type.row().lookup) {
            (MapType::Sockmap | MapType::Sockhash, _) => self.acquired(Kind::Socket),
            (MapType::Xskmap, _) => self.or_null(Kind::XdpSock),
            (_, Lookup::InnerMap) => self.or_null(Kind::Map(map | INNER)),
            (_, Lookup::ReadOnlyValue) => {
                let mut r = self.or_null(Kind::Value(map));
                r.flags = Flags::RDONLY;
                r
            }
            _ => self.or_null(Kind::Value(map)),
        }
    }

    /// A pointer that may be NULL, and must be given back when it is not.
    pub(in crate::check) fn acquired(&mut self, kind: Kind) -> Reg {
        let mut r = self.or_null(kind);
        r.reference = r.id;
        self.state.refs.push(Held { id: r.id, insn: self.insn });
        r
    }

    /// A socket: looked up, or another view of the one in an argument.
    fn socket(&mut self, kind: Kind, reference: Reference, of_argument: Id) -> Reg {
        match reference {
            Reference::Acquired => self.acquired(kind),
            Reference::None => self.or_null(kind),
            Reference::OfArgument => {
                let mut r = self.or_null(kind);
                r.reference = of_argument;
                r
            }
        }
    }
}
