//! Helper calls: every argument against the helper's row in [`skep_isa::helper`], then the result.

use super::Walk;
use super::mem::{Access, pristine};
use crate::reg::{Kind, Reg};
use crate::reject::Reason;
use crate::state::Reference;
use skep_isa::{ArgType, AttachType as A, Helper, Insn, MapFlags, MapType, RetType, helper};

/// Sizes beyond this are refused (include/linux/bpf_verifier.h `BPF_MAX_VAR_SIZ`).
const MAX_SIZE: u64 = 1 << 29;

/// What the arguments of one call taught.
#[derive(Default)]
struct Call {
    map: Option<u32>,
    alloc: u32,
    release: Option<u32>,
    format: Option<(u8, Reg, u32)>,
}

impl Walk<'_> {
    pub(super) fn call_helper(&mut self, i: Insn) -> Result<(), Reason> {
        let id = i.imm as u32;
        let h = helper::by_id(id).ok_or(Reason::NoSuchHelper { id })?;
        self.check_allowed(h)?;
        if let (true, Some(why)) = (self.opts.offered_only, h.refused) {
            return Err(Reason::NotOffered { name: full_name(h), id, why });
        }
        check_known(h)?;
        let mut call = Call::default();
        for (n, arg) in h.args.iter().enumerate() {
            self.argument(h, n as u8 + 1, *arg, &mut call)?;
        }
        if let Some(id) = call.release {
            self.state.refs.retain(|r| r.id != id);
            self.state.invalidate(|r| r.reference == id);
        }
        if h.moves_packet {
            self.state.invalidate(|r| r.kind.is_packet() || r.kind == Kind::PacketEnd);
        }
        self.info.helpers.insert(id);
        for r in 0..=5 {
            self.state.set(r, Reg::UNINIT);
        }
        self.result(h, &call);
        Ok(())
    }

    fn check_allowed(&self, h: &Helper) -> Result<(), Reason> {
        let refused = Reason::HelperNotAllowed { name: full_name(h), id: h.id };
        if !h.allows(self.prog.prog_type) {
            return Err(refused);
        }
        let attach = self.prog.attach_type;
        let session = matches!(attach, Some(A::TraceFsession | A::TraceFsessionMulti | A::TraceKprobeSession | A::TraceUprobeSession));
        let trampoline = matches!(
            attach,
            Some(
                A::TraceFentry
                    | A::TraceFexit
                    | A::ModifyReturn
                    | A::TraceFsession
                    | A::TraceFentryMulti
                    | A::TraceFexitMulti
                    | A::ModifyReturnMulti
                    | A::TraceFsessionMulti
            )
        );
        let entry_only = matches!(attach, Some(A::TraceFentry | A::TraceFentryMulti));
        let tracing = self.prog.prog_type == skep_isa::ProgramType::Tracing;
        let allowed = match h.name {
            // The words these read are only there in the right kind of trampoline.
            "bpf_session_is_return" | "bpf_session_cookie" => session,
            "get_func_arg" | "get_func_arg_cnt" => trampoline,
            "get_func_ret" => trampoline && !entry_only,
            "get_func_ip" | "get_attach_cookie" => !tracing || trampoline,
            "seq_printf" | "seq_write" | "seq_printf_btf" => attach == Some(A::TraceIter),
            _ => true,
        };
        if !allowed {
            return Err(refused);
        }
        if h.gpl_only && !self.prog.gpl {
            return Err(Reason::NeedsGpl { name: full_name(h) });
        }
        if h.sleeps && !self.prog.sleepable {
            return Err(Reason::MightSleep);
        }
        Ok(())
    }

    fn argument(&mut self, h: &Helper, reg: u8, arg: ArgType, call: &mut Call) -> Result<(), Reason> {
        if arg == ArgType::None {
            return Ok(());
        }
        let r = self.read(reg)?;
        match arg {
            ArgType::Anything => Ok(()),
            ArgType::ConstMapPtr => {
                let Kind::Map(map) = r.kind else { return Err(wrong(reg, &r, "map_ptr")) };
                self.check_map(h, map)?;
                call.map = Some(map);
                Ok(())
            }
            ArgType::MapKey => {
                let size = self.call_spec(call).map_or(0, |m| m.key_size);
                self.memory(h, reg, &r, size, Access::Read)
            }
            ArgType::MapValue => {
                let size = self.call_spec(call).map_or(0, |m| m.value_size);
                self.memory(h, reg, &r, size, Access::Read)
            }
            ArgType::UninitMapValue => {
                let size = self.call_spec(call).map_or(0, |m| m.value_size);
                self.memory(h, reg, &r, size, Access::Write)
            }
            ArgType::Scalar if r.is_scalar() => Ok(()),
            ArgType::Scalar => Err(wrong(reg, &r, "scalar")),
            ArgType::CtxOrNull if r.is_zero() => Ok(()),
            ArgType::FixedMem(size) => self.memory(h, reg, &r, size, Access::Read),
            ArgType::FixedMemWrite(size) => {
                aligned(&r, size)?;
                self.memory(h, reg, &r, size, Access::Read)?;
                self.memory(h, reg, &r, size, Access::Write)
            }
            // Checked with their sizes.
            ArgType::Mem | ArgType::MemWrite | ArgType::UninitMem => {
                if r.is_scalar() || r.nullable {
                    return Err(wrong(reg, &r, MEMORY));
                }
                Ok(())
            }
            ArgType::MemOrNull | ArgType::UninitMemOrNull => {
                if (r.is_scalar() && !r.is_zero()) || r.nullable {
                    return Err(wrong(reg, &r, MEMORY));
                }
                self.flow.mark(r.node);
                Ok(())
            }
            ArgType::Size | ArgType::SizeOrZero => self.size(h, reg, &r, arg == ArgType::SizeOrZero, call),
            ArgType::ConstAllocSize => {
                if !r.is_scalar() {
                    return Err(wrong(reg, &r, "scalar"));
                }
                let n = r.as_const().ok_or(Reason::NotConstant { reg })?;
                self.flow.mark(r.node);
                call.alloc = u32::try_from(n).ok().filter(|n| u64::from(*n) < MAX_SIZE).ok_or(Reason::UnboundedSize { reg })?;
                Ok(())
            }
            ArgType::Ctx | ArgType::CtxOrNull => {
                if r.kind != Kind::Ctx {
                    return Err(wrong(reg, &r, "ctx"));
                }
                pristine(reg, &r, "ctx")
            }
            ArgType::AllocMemRelease => {
                if !matches!(r.kind, Kind::Record(_)) || r.nullable {
                    return Err(wrong(reg, &r, "ringbuf_mem"));
                }
                if r.off != 0 || r.val.as_const() != Some(0) {
                    return Err(Reason::ReleaseOffset { reg });
                }
                if !self.state.refs.iter().any(|held| held.id == r.reference) {
                    return Err(Reason::NotReferenced { reg });
                }
                call.release = Some(r.reference);
                Ok(())
            }
            ArgType::UninitLong => {
                aligned(&r, 8)?;
                self.memory(h, reg, &r, 8, Access::Write)
            }
            ArgType::ConstStr => self.string(h, reg, &r, call),
            ArgType::Func if matches!(r.kind, Kind::Func(_)) => Ok(()),
            ArgType::Func => Err(wrong(reg, &r, "func")),
            ArgType::StackOrNull => {
                self.flow.mark(r.node);
                if matches!(r.kind, Kind::Stack(_)) || r.is_zero() { Ok(()) } else { Err(wrong(reg, &r, "fp")) }
            }
            ArgType::SpinLock => Err(Reason::Unsupported { what: "this kind of helper argument" }),
            _ => Err(Reason::Unsupported { what: "this kind of helper argument" }),
        }
    }

    fn call_spec(&self, call: &Call) -> Option<&skep_object::MapSpec> {
        self.spec(call.map?)
    }

    /// Checks that the helper and the map go together (`check_map_func_compatibility`).
    fn check_map(&self, h: &Helper, map: u32) -> Result<(), Reason> {
        let Some(spec) = self.spec(map) else { return Err(Reason::NoSuchMap { index: map as i32, maps: self.prog.maps.len() }) };
        use MapType as T;
        let keyed =
            matches!(spec.map_type, T::Hash | T::Array | T::PercpuHash | T::PercpuArray | T::LruHash | T::LruPercpuHash | T::LpmTrie);
        let fits = match h.name {
            "map_lookup_elem" | "map_update_elem" | "map_delete_elem" => keyed,
            "map_lookup_percpu_elem" => matches!(spec.map_type, T::PercpuArray | T::PercpuHash | T::LruPercpuHash),
            n if n.starts_with("ringbuf_") => spec.map_type == T::Ringbuf,
            _ => keyed,
        };
        if !fits {
            return Err(Reason::WrongMap { kind: spec.map_type.name(), name: full_name(h), id: h.id });
        }
        let writes = matches!(h.name, "map_update_elem" | "map_delete_elem");
        if writes && (spec.flags.has(MapFlags::RDONLY_PROG) || spec.frozen) {
            return Err(Reason::ReadOnlyMapUpdate);
        }
        Ok(())
    }

    /// Checks the size in `reg` and the memory in the register before it.
    fn size(&mut self, h: &Helper, reg: u8, r: &Reg, zero_ok: bool, call: &mut Call) -> Result<(), Reason> {
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
        let arg = h.args.get(of as usize - 1).copied().unwrap_or(ArgType::None);
        if matches!(arg, ArgType::MemOrNull | ArgType::UninitMemOrNull) && mem.is_zero() {
            return if range.umax == 0 { Ok(()) } else { Err(wrong(of, &mem, MEMORY)) };
        }
        let access = if matches!(arg, ArgType::UninitMem | ArgType::UninitMemOrNull) { Access::Write } else { Access::Read };
        if let Some((at, text, data)) = call.format.take() {
            // snprintf: the format is known, so is the number of words it reads.
            let words = self.format_words(&text, data)?;
            if words.checked_mul(8).map(u64::from) != r.as_const() {
                return Err(Reason::BadFormat { what: "the number of arguments differs from that of the conversions" });
            }
            call.format = Some((at, text, data));
        }
        self.memory(h, of, &mem, range.umax as u32, access)?;
        if arg == ArgType::MemWrite { self.memory(h, of, &mem, range.umax as u32, Access::Write) } else { Ok(()) }
    }

    /// Checks `size` bytes of memory for a helper.
    fn memory(&mut self, h: &Helper, reg: u8, r: &Reg, size: u32, access: Access) -> Result<(), Reason> {
        if r.nullable {
            return Err(wrong(reg, r, MEMORY));
        }
        match r.kind {
            Kind::Stack(frame) if size > 0 => self.helper_stack(reg, r, frame, size, access),
            // Nothing is touched.
            Kind::Stack(_) => Ok(()),
            Kind::Value(map) => self.check_value(reg, r, map, 0, size, access),
            Kind::Mem(_) | Kind::Record(_) => self.check_region(reg, r, 0, size),
            Kind::Packet | Kind::PacketMeta if !h.packet => Err(Reason::PacketToHelper),
            Kind::Packet | Kind::PacketMeta if access.reads() || self.may_write_packet() => self.check_region(reg, r, 0, size),
            _ => Err(wrong(reg, r, MEMORY)),
        }
    }

    fn string(&mut self, h: &Helper, reg: u8, r: &Reg, call: &mut Call) -> Result<(), Reason> {
        let Kind::Value(map) = r.kind else { return Err(wrong(reg, r, "map_value")) };
        let frozen = self.spec(map).is_some_and(|m| m.frozen && m.flags.has(MapFlags::RDONLY_PROG) && m.data.is_some());
        if !frozen || r.nullable {
            return Err(Reason::NotReadOnlyMap { reg });
        }
        if r.val.as_const().is_none() {
            return Err(Reason::NotConstAddress { reg });
        }
        let text = self.constant_bytes(r, map, 0).ok_or(Reason::NotTerminated)?;
        if !text.contains(&0) {
            return Err(Reason::NotTerminated);
        }
        if h.name == "snprintf" {
            call.format = Some((reg, *r, map));
        }
        Ok(())
    }

    /// Counts the argument words of a format, refusing what `bpf_bprintf_prepare` refuses.
    fn format_words(&self, r: &Reg, map: u32) -> Result<u32, Reason> {
        let text = self.constant_bytes(r, map, 0).and_then(|t| t.split(|b| *b == 0).next()).unwrap_or_default();
        count_conversions(text)
    }

    fn result(&mut self, h: &Helper, call: &Call) {
        let r0 = match h.ret {
            RetType::Void => Reg::UNINIT,
            RetType::MapValueOrNull => {
                let mut r = Reg::of(Kind::Value(call.map.unwrap_or(u32::MAX)));
                r.nullable = true;
                r.id = self.fresh_id();
                r
            }
            RetType::AllocMemOrNull => {
                let mut r = Reg::of(Kind::Record(call.alloc));
                r.nullable = true;
                r.id = self.fresh_id();
                r.reference = r.id;
                self.state.refs.push(Reference { id: r.id, insn: self.insn });
                r
            }
            RetType::Mem(n) => Reg::of(Kind::Mem(n)),
            // Also where C says u32 or bool: what a helper leaves in the upper half is its own affair.
            _ => Reg::UNKNOWN,
        };
        self.state.set(0, r0);
    }
}

/// Refuses helpers whose arguments or results are of kinds that the walk does not model.
fn check_known(h: &Helper) -> Result<(), Reason> {
    use RetType as R;
    if matches!(h.ret, R::Integer | R::Void | R::MapValueOrNull | R::AllocMemOrNull | R::Mem(_)) {
        return Ok(());
    }
    Err(Reason::Unsupported { what: "what this helper returns" })
}

fn aligned(r: &Reg, size: u32) -> Result<(), Reason> {
    let low = r.val.bits.add(crate::tnum::Tnum::constant(i64::from(r.off) as u64));
    let known = matches!(r.kind, Kind::Stack(_) | Kind::Value(_) | Kind::Mem(_) | Kind::Record(_));
    if known && (low.value | low.mask) & u64::from(size - 1) != 0 {
        return Err(Reason::Misaligned { what: "memory", off: format!("{}+{}", r.val.bits, r.off), size });
    }
    Ok(())
}

const MEMORY: &str = "fp, pkt, pkt_meta, map_key, map_value, mem, ringbuf_mem, buf, trusted_ptr_";

fn wrong(reg: u8, r: &Reg, expected: &'static str) -> Reason {
    Reason::WrongType { reg, found: r.type_name(), expected }
}

fn full_name(h: &Helper) -> String {
    if h.id >= helper::KFUNC_BASE { h.name.to_owned() } else { format!("bpf_{}", h.name) }
}

/// Counts conversions of a kernel format string (kernel/bpf/helpers.c `bpf_bprintf_prepare`).
fn count_conversions(text: &[u8]) -> Result<u32, Reason> {
    let bad = |what| Err(Reason::BadFormat { what });
    let space = |c: u8| matches!(c, b' ' | 9..=13);
    let ends = |c: Option<&u8>| c.is_none_or(|c| space(*c) || c.is_ascii_punctuation());
    if !text.iter().all(|c| c.is_ascii_graphic() || space(*c)) {
        return bad("a character that cannot be printed");
    }
    let mut words = 0;
    let mut rest = text;
    while let Some(at) = rest.iter().position(|c| *c == b'%') {
        rest = &rest[at + 1..];
        if let [b'%', after @ ..] = rest {
            rest = after;
            continue;
        }
        rest = &rest[rest.iter().take_while(|c| matches!(c, b'0' | b'+' | b'-' | b' ')).count()..];
        rest = &rest[rest.iter().take_while(|c| c.is_ascii_digit()).count()..];
        rest = match rest {
            [b'p', after @ ..] if ends(after.first()) => after,
            [b'p', b'k' | b'u', b's', after @ ..] if ends(after.first()) => after,
            [b'p', b'K' | b'x' | b's' | b'S' | b'B', after @ ..] => after,
            [b'p', b'i' | b'I', b'4' | b'6', after @ ..] => after,
            [b's', after @ ..] if ends(after.first()) => after,
            [b'c', after @ ..] => after,
            [b'i' | b'd' | b'u' | b'x' | b'X', after @ ..]
            | [b'l', b'i' | b'd' | b'u' | b'x' | b'X', after @ ..]
            | [b'l', b'l', b'i' | b'd' | b'u' | b'x' | b'X', after @ ..] => after,
            _ => return bad("unknown conversion"),
        };
        words += 1;
        if words > 12 {
            return bad("more than 12 conversions");
        }
    }
    Ok(words)
}
