//! Helper calls in the checking machine: arguments are used as the helper's prototype says, results
//! are as wild as it allows.

use super::memory::{Kind, Tag, Value};
use super::{Machine, Return, Stop};
use skep_isa::helper::{self, PacketEffect, id};
use skep_isa::{ArgType, KeyShape, MapFlags, MapType, RetType};
use skep_object::btf::Kind as Type;
use skep_object::{Btf, MapSpec};

/// What a helper that failed returns.
const EFAULT: u64 = -(skep_isa::errno::EFAULT as i64) as u64;

impl Machine<'_> {
    /// The description of the map behind a tag.
    pub fn spec(&self, tag: Tag) -> Option<&MapSpec> {
        match tag {
            Tag::Map(m) => self.prog.maps.get(m as usize).map(|m| &m.spec),
            Tag::Inner(m) => self.prog.maps.get(m as usize).and_then(|m| m.spec.inner.as_deref()),
            _ => None,
        }
    }

    /// The memory of a map's value, made when it is first asked for.
    pub fn element(&mut self, map: Tag, key: Vec<u8>) -> Result<usize, Stop> {
        if let Some(o) = self.elements.get(&(map, key.clone())) {
            return Ok(*o);
        }
        let Some(spec) = self.spec(map) else { return Err(Stop::trap("no such map")) };
        let constant = spec.frozen && spec.flags.has(MapFlags::RDONLY_PROG);
        let (size, data) = (u64::from(spec.value_size), spec.data.clone().filter(|_| constant));
        let lock = self
            .prog
            .btf
            .as_deref()
            .filter(|_| spec.value_type_id != 0)
            .and_then(|btf| lock_in(btf, spec.value_type_id, 6));
        let readable = !spec.flags.has(MapFlags::WRONLY_PROG);
        let writable = !spec.frozen && !spec.flags.has(MapFlags::RDONLY_PROG);
        let o = match data {
            Some(d) => self.memory.make(Kind::Element(map), size, Some(&d)),
            None => self.memory.make_random(Kind::Element(map), size, self.r),
        };
        let object = &mut self.memory.objects[o];
        (object.readable, object.writable, object.shared) = (readable, writable, !constant);
        object.lock = lock;
        self.elements.insert((map, key), o);
        Ok(o)
    }

    fn lookup(&mut self, map: Tag, key: &[u8]) -> Result<Value, Stop> {
        let Some(spec) = self.spec(map) else { return Err(Stop::trap("no such map")) };
        let (kind, entries) = (spec.map_type, spec.max_entries);
        if !spec.keys.allows(key.len()) {
            return Ok(Value::number(0));
        }
        let index = key.first_chunk().map(|k| u32::from_le_bytes(*k)).unwrap_or(u32::MAX);
        let found = match kind {
            MapType::Array | MapType::PercpuArray => index < entries,
            _ => self.r.chance(75),
        };
        if !found {
            return Ok(Value::number(0));
        }
        match (kind, map) {
            (MapType::ArrayOfMaps | MapType::HashOfMaps, Tag::Map(m)) => {
                Ok(Value { bits: 0x7000_0000_0000 + u64::from(m), tag: Tag::Inner(m) })
            }
            (
                MapType::Hash
                | MapType::Array
                | MapType::PercpuHash
                | MapType::PercpuArray
                | MapType::LruHash
                | MapType::LruPercpuHash
                | MapType::LpmTrie
                | MapType::QpTrie
                | MapType::TaskStorage,
                _,
            ) => {
                let o = self.element(map, key.to_vec())?;
                Ok(self.memory.pointer(o, 0))
            }
            _ => Err(Stop::Unmodeled("a lookup in that kind of map")),
        }
    }

    /// Calls a helper; the next instruction.
    pub fn call(&mut self, pc: usize, number: u32) -> Result<usize, Stop> {
        let Some(h) = helper::by_id(number) else {
            return Err(Stop::trap(format!("there is no helper {number}")));
        };
        if self.lock.is_some() && number != id::SPIN_UNLOCK {
            return Err(Stop::trap("a helper is called under a lock"));
        }
        if number == id::TAIL_CALL {
            // Either it fails, or nothing of this program goes on.
            if self.r.chance(50) {
                return Err(Stop::TailCall);
            }
        } else if h.args.contains(&ArgType::Func)
            && !matches!(number, id::LOOP | id::FOR_EACH_MAP_ELEM)
        {
            return Err(Stop::Unmodeled("a callback of that helper"));
        }
        let (mut map, mut key, mut alloc, mut size) = (None, Vec::new(), 0, 0);
        for (n, arg) in h.args.into_iter().enumerate() {
            if arg == ArgType::None {
                break;
            }
            let v = self.get(n as u8 + 1)?;
            let value_size =
                |m: &Self| map.and_then(|t| m.spec(t)).map_or(0, |s| u64::from(s.value_size));
            match arg {
                ArgType::Zero if v != Value::number(0) => {
                    return Err(Stop::trap(format!("flags of {:#x}, which must be 0", v.bits)));
                }
                ArgType::Anything | ArgType::Zero => {}
                ArgType::SpinLock => self.spin_lock(v, number == id::SPIN_LOCK)?,
                ArgType::UninitDynptr(_) => self.room_for_dynptr(v)?,
                ArgType::Dynptr | ArgType::DynptrRelease => drop(self.dynptr_at(v)?),
                // There are no objects of the kernel here.
                ArgType::BtfIdOrNull(_) | ArgType::KptrValue if v == Value::number(0) => {}
                ArgType::BtfIdOrNull(_) | ArgType::KptrValue => {
                    return Err(Stop::trap(format!("{v:x?} in place of an object")));
                }
                ArgType::Scalar if v.tag == Tag::Number => {}
                ArgType::Scalar => return Err(Stop::trap("a pointer where a number belongs")),
                ArgType::FixedMem(len) => drop(self.memory.read(v, len.into())?),
                ArgType::FixedMemWrite(len) => {
                    if v.bits % u64::from(len) != 0 {
                        return Err(Stop::trap("a helper stores to a misaligned word"));
                    }
                    self.memory.read(v, len.into())?;
                    self.memory.fill(v, len.into(), 0, self.r)?;
                }
                ArgType::CtxOrNull | ArgType::MapValueOrNull if v == Value::number(0) => {}
                ArgType::ConstMapPtr => {
                    if self.spec(v.tag).is_none() {
                        return Err(Stop::trap(format!("argument {} is no map", n + 1)));
                    }
                    map = Some(v.tag);
                }
                ArgType::MapKey if map.and_then(|t| self.spec(t)).is_some_and(has_byte_keys) => {
                    key = self.dynptr_key(v)?;
                }
                ArgType::MapKey => {
                    let len = map.and_then(|t| self.spec(t)).map_or(0, |s| u64::from(s.key_size()));
                    key = self.memory.read(v, len)?;
                }
                ArgType::MapValue | ArgType::MapValueOrNull => {
                    let len = value_size(self);
                    self.memory.read(v, len)?;
                }
                ArgType::UninitMapValue => {
                    let len = value_size(self);
                    let filter = map
                        .and_then(|t| self.spec(t))
                        .is_some_and(|s| s.map_type == MapType::BloomFilter);
                    if filter {
                        // It is shown a value, and says whether it may have seen it.
                        self.memory.read(v, len)?;
                    } else {
                        self.memory.fill(v, len, 0, self.r)?;
                    }
                }
                ArgType::Mem
                | ArgType::MemOrNull
                | ArgType::MemWrite
                | ArgType::UninitMem
                | ArgType::UninitMemOrNull => {
                    let len = self.get(n as u8 + 2)?;
                    if len.tag != Tag::Number || len.bits >= 1 << 29 {
                        return Err(Stop::trap(format!("a size of {:#x}", len.bits)));
                    }
                    size = len.bits;
                    let null = matches!(arg, ArgType::MemOrNull | ArgType::UninitMemOrNull)
                        && v == Value::number(0);
                    let fills = matches!(arg, ArgType::UninitMem | ArgType::UninitMemOrNull);
                    if len.bits == 0 && h.args.get(n + 1) == Some(&ArgType::Size) {
                        return Err(Stop::trap("a size of 0"));
                    } else if !null && !matches!(v.tag, Tag::Memory(_)) {
                        return Err(Stop::trap(format!("{v:x?} in place of memory")));
                    } else if number == id::SNPRINTF && n == 3 && len.bits != self.format_words {
                        return Err(Stop::trap(format!(
                            "{} bytes for a format of {}",
                            len.bits, self.format_words
                        )));
                    } else if null && len.bits > 0 {
                        return Err(Stop::trap("NULL with a size"));
                    } else if fills && !null {
                        let reach = self.reach.get(&pc).copied().unwrap_or(0);
                        self.memory.fill(v, len.bits, reach, self.r)?;
                    } else if !null {
                        self.memory.read(v, len.bits)?;
                        if arg == ArgType::MemWrite {
                            self.memory.fill(v, len.bits, 0, self.r)?;
                        }
                    }
                }
                ArgType::Size | ArgType::SizeOrZero => {}
                ArgType::ConstAllocSize => alloc = v.bits,
                ArgType::Ctx | ArgType::CtxOrNull => {
                    if v != self.memory.pointer(self.ctx, 0) {
                        return Err(Stop::trap("a helper wants the context as it was"));
                    }
                }
                ArgType::AllocMemRelease => self.release(v)?,
                ArgType::UninitLong => {
                    if v.bits & 7 != 0 {
                        return Err(Stop::trap("a helper stores to a misaligned word"));
                    }
                    self.memory.fill(v, 8, 0, self.r)?;
                }
                ArgType::ConstStr => {
                    let Tag::Memory(o) = v.tag else {
                        return Err(Stop::trap("a string that is no memory"));
                    };
                    let at = v.bits.wrapping_sub(self.memory.objects[o].base);
                    let all = (at..self.memory.objects[o].size()).map(|k| self.memory.peek(o, k));
                    let text: Vec<u8> = all.take_while(|b| *b != Some(0)).flatten().collect();
                    let ended = at + (text.len() as u64) < self.memory.objects[o].size();
                    if self.memory.objects[o].shared || !ended {
                        return Err(Stop::trap("a string that may have no end"));
                    }
                    self.format_words = 8 * text.iter().filter(|c| **c == b'%').count() as u64;
                }
                ArgType::Func if matches!(v.tag, Tag::Func(_)) => {}
                ArgType::StackOrNull if v == Value::number(0) => {}
                ArgType::StackOrNull if matches!(v.tag, Tag::Memory(o) if self.memory.objects[o].kind == Kind::Stack) =>
                    {}
                ArgType::Func | ArgType::StackOrNull => {
                    return Err(Stop::trap(format!("argument {} is {v:?}", n + 1)));
                }
                _ => return Err(Stop::Unmodeled("an argument of that kind")),
            }
        }
        if matches!(number, id::LOOP | id::FOR_EACH_MAP_ELEM) {
            return self.call_back(pc, number, map);
        }
        if (id::DYNPTR_FROM_MEM..=id::DYNPTR_DATA).contains(&number) {
            let r0 = self.dynptr_helper(number, alloc)?;
            self.clobber(r0);
            return Ok(pc + 1);
        }
        let room = map.and_then(|m| self.spec(m)).map_or(0, |s| u64::from(s.max_entries));
        let r0 = match h.ret {
            RetType::MapValue => match map {
                Some(map) => {
                    let o = self.element(map, Vec::new())?;
                    Some(self.memory.pointer(o, 0))
                }
                None => return Err(Stop::Unmodeled("a result of that kind")),
            },
            RetType::Void => None,
            RetType::Integer => Some(Value::number(self.integer(number))),
            RetType::Processor => Some(Value::number(self.processor())),
            RetType::BytesWritten if self.r.chance(20) => Some(Value::number(EFAULT)),
            RetType::BytesWritten => Some(Value::number(self.r.below(size + 1))),
            RetType::MapValueOrNull => match map {
                Some(map) => Some(self.lookup(map, &key)?),
                None => return Err(Stop::Unmodeled("a result of that kind")),
            },
            // More than the ring can hold is never given out.
            RetType::AllocMemOrNull if alloc > room || self.r.chance(25) => Some(Value::number(0)),
            RetType::AllocMemOrNull => {
                let o = self.memory.make_random(Kind::Record, alloc, self.r);
                Some(self.memory.pointer(o, 0))
            }
            RetType::Mem(n) => {
                let o = self.memory.make_random(Kind::Lent, n.into(), self.r);
                Some(self.memory.pointer(o, 0))
            }
            _ => return Err(Stop::Unmodeled("a result of that kind")),
        };
        if h.packet_effect == PacketEffect::Moves {
            self.move_packet();
        }
        self.clobber(r0);
        Ok(pc + 1)
    }

    /// A number a helper may return: 64 random bits, unless its documentation promises less.
    fn integer(&self, number: u32) -> u64 {
        match number {
            id::PROBE_READ | id::PROBE_READ_USER | id::PROBE_READ_KERNEL => {
                self.r.pick(&[0, EFAULT])
            }
            id::GET_PRANDOM_U32 => u64::from(self.r.number() as u32),
            _ => self.r.number(),
        }
    }

    fn processor(&self) -> u64 {
        let all = u64::from(skep_verifier::PROCESSORS);
        if self.r.chance(50) { self.r.pick(&[0, all - 1]) } else { self.r.below(all) }
    }

    fn spin_lock(&mut self, v: Value, lock: bool) -> Result<(), Stop> {
        let Tag::Memory(o) = v.tag else { return Err(Stop::trap("a lock that is no memory")) };
        let object = &self.memory.objects[o];
        if object.lock != Some(v.bits.wrapping_sub(object.base)) {
            return Err(Stop::trap("no lock at that place"));
        }
        let held = self.lock;
        if held != if lock { None } else { Some(o) } {
            return Err(Stop::trap(format!("lock: {lock}, of {o}, while {held:?} is held")));
        }
        self.lock = lock.then_some(o);
        Ok(())
    }

    fn release(&mut self, v: Value) -> Result<(), Stop> {
        let Tag::Memory(o) = v.tag else {
            return Err(Stop::trap("a release of what is no record"));
        };
        let object = &mut self.memory.objects[o];
        if object.kind != Kind::Record || !object.alive || object.base != v.bits {
            return Err(Stop::trap(format!(
                "a release of {:?}, alive {}, at {}",
                object.kind,
                object.alive,
                v.bits - object.base
            )));
        }
        object.alive = false;
        Ok(())
    }

    /// After a call nothing is left of the arguments.
    pub fn clobber(&mut self, r0: Option<Value>) {
        let regs = &mut self.top().regs;
        regs[1..6].fill(None);
        regs[0] = r0;
    }

    /// A helper that calls a function of the program, a few times.
    fn call_back(&mut self, pc: usize, number: u32, map: Option<Tag>) -> Result<usize, Stop> {
        let (asked, func, ctx) = (self.get(1)?, self.get(2)?, self.get(3)?);
        let Tag::Func(func) = func.tag else {
            return Err(Stop::trap("the callback is no function"));
        };
        let n = match number {
            id::LOOP => {
                let most = self.steady.unwrap_or_else(|| self.r.below(6));
                u64::from(asked.bits as u32).min(most)
            }
            _ => self.steady.unwrap_or_else(|| self.r.below(4)),
        };
        self.next_lap(pc, number, func, ctx, map, 0, n)
    }

    /// Starts the callback once more, or goes on behind the call.
    #[allow(clippy::too_many_arguments, reason = "the fields of one callback")]
    pub fn next_lap(
        &mut self,
        pc: usize,
        number: u32,
        func: usize,
        ctx: Value,
        map: Option<Tag>,
        done: u64,
        n: u64,
    ) -> Result<usize, Stop> {
        if done == n {
            self.clobber(Some(Value::number(done)));
            return Ok(pc + 1);
        }
        let mut args = [None; 11];
        if number == id::LOOP {
            (args[1], args[2]) = (Some(Value::number(done)), Some(ctx));
        } else {
            let Some(map) = map else { return Err(Stop::trap("no map to walk")) };
            let spec = self.spec(map).map(|s| (s.keys, s.max_entries, s.map_type));
            let Some((keys, entries, kind)) = spec else {
                return Err(Stop::trap("no map to walk"));
            };
            let array = matches!(kind, MapType::Array | MapType::PercpuArray);
            let len = match keys {
                KeyShape::Fixed(n) => u64::from(n),
                KeyShape::Bytes { max } => self.r.below(max.into()) + 1,
            };
            let mut key = super::memory::random_bytes(len, self.r);
            if array {
                key = (self.r.below(entries.into()) as u32).to_le_bytes().to_vec();
            }
            let shown = if let KeyShape::Bytes { .. } = keys {
                self.show_dynptr(&key)
            } else {
                let at = self.memory.make(Kind::Lent, len, Some(&key));
                self.memory.objects[at].writable = false;
                self.memory.pointer(at, 0)
            };
            let value = self.element(map, key)?;
            (args[1], args[2], args[3], args[4]) = (
                Some(Value { bits: 0x6000_0000_0000, tag: map }),
                Some(shown),
                Some(self.memory.pointer(value, 0)),
                Some(ctx),
            );
        }
        self.enter(
            func,
            args,
            Return::Lap { call: pc, id: number, func, ctx, map, done: done + 1, n },
        )
    }
}

/// Where the lock of a type is, if it has one.
fn lock_in(btf: &Btf, of: u32, depth: u32) -> Option<u64> {
    let (number, ty) = btf.resolve(of).ok().filter(|_| depth > 0)?;
    match &ty.kind {
        Type::Struct(_) if btf.name(number) == "bpf_spin_lock" => Some(0),
        Type::Struct(s) => s
            .members
            .iter()
            .find_map(|m| Some(u64::from(m.bit_offset / 8) + lock_in(btf, m.type_id, depth - 1)?)),
        Type::DataSec(s) => s
            .vars
            .iter()
            .find_map(|v| Some(u64::from(v.offset) + lock_in(btf, v.type_id, depth - 1)?)),
        Type::Var(v) => lock_in(btf, v.type_id, depth - 1),
        _ => None,
    }
}

fn has_byte_keys(spec: &MapSpec) -> bool {
    matches!(spec.keys, KeyShape::Bytes { .. })
}
