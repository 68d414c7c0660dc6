//! Dynptrs in the checking machine.

use skep_isa::helper::id;

use super::memory::{Kind, Tag, Value};
use super::{Machine, Stop};

/// What a dynptr leads to.
#[derive(Clone, Copy, PartialEq, Eq)]
enum To {
    Nothing,
    /// An object, from that byte on.
    Memory(usize, u64),
    /// The packet, as it is when it is asked for.
    Packet(u64),
}

/// A dynptr on a stack.
#[derive(Clone)]
pub struct Dynptr {
    /// What was put there: nobody else may write it.
    bytes: Vec<u8>,
    to: To,
    size: u64,
    /// The program may only read what it leads to.
    read_only: bool,
    /// The record that must be given back, whether there is memory or not.
    record: Option<usize>,
}

const SIZE: u64 = 16;
const FAILED: u64 = -22i64 as u64;

impl Machine<'_> {
    /// Where a dynptr is, or will be: on the stack, or where a callback is shown one.
    fn dynptr_place(&self, v: Value) -> Result<(usize, u64), Stop> {
        let Tag::Memory(object) = v.tag else {
            return Err(Stop::trap("a dynptr that is no memory"));
        };
        let off = v.bits.wrapping_sub(self.memory.objects[object].base);
        let shown = || self.dynptrs.contains_key(&(object, off));
        let stack = self.memory.objects[object].kind == Kind::Stack;
        if !off.is_multiple_of(8) || !stack && !shown() {
            return Err(Stop::trap("a dynptr that is not on the stack, or not aligned"));
        }
        Ok((object, off))
    }

    /// A dynptr of a map's key, for a callback.
    pub fn show_dynptr(&mut self, key: &[u8]) -> Value {
        let to = self.memory.make(Kind::Lent, key.len() as u64, Some(key));
        let at = self.memory.make_random(Kind::Lent, SIZE, self.r);
        for object in [to, at] {
            self.memory.objects[object].writable = false;
        }
        let bytes = (0..SIZE).filter_map(|n| self.memory.peek(at, n)).collect();
        let (size, to) = (key.len() as u64, To::Memory(to, 0));
        self.dynptrs.insert((at, 0), Dynptr { bytes, to, size, read_only: true, record: None });
        self.memory.pointer(at, 0)
    }

    /// The bytes that a dynptr in place of a key describes.
    pub fn dynptr_key(&mut self, v: Value) -> Result<Vec<u8>, Stop> {
        let d = self.dynptr_at(v)?;
        match d.to {
            To::Nothing => Ok(Vec::new()),
            To::Memory(object, at) => {
                Ok(self.memory.read(self.memory.pointer(object, at), d.size)?)
            }
            To::Packet(_) => Err(Stop::trap("a key in a packet")),
        }
    }

    /// The dynptr at a place, which must be as it was made.
    pub fn dynptr_at(&mut self, v: Value) -> Result<Dynptr, Stop> {
        let place = self.dynptr_place(v)?;
        let bytes = self.memory.read(v, SIZE)?;
        match self.dynptrs.get(&place) {
            Some(d) if d.bytes == bytes => Ok(d.clone()),
            Some(_) => Err(Stop::trap("the program wrote over a dynptr")),
            None => Err(Stop::trap("there is no such dynptr")),
        }
    }

    /// What is there ends, and must not be needed any more.
    pub fn room_for_dynptr(&mut self, v: Value) -> Result<(), Stop> {
        let (stack, off) = self.dynptr_place(v)?;
        let over = |(o, at): &(usize, u64)| *o == stack && *at < off + SIZE && off < *at + SIZE;
        let needed = |d: &Dynptr| d.record.is_some_and(|o| self.memory.objects[o].alive);
        if self.dynptrs.iter().any(|(place, d)| {
            over(place) && needed(d) && self.memory.peek(stack, place.1) == d.bytes.first().copied()
        }) {
            return Err(Stop::trap("a dynptr over one that must be given back"));
        }
        self.dynptrs.retain(|place, _| !over(place));
        Ok(self.memory.fill(v, SIZE, 0, self.r)?)
    }

    fn put_dynptr(
        &mut self,
        v: Value,
        to: To,
        size: u64,
        record: Option<usize>,
    ) -> Result<(), Stop> {
        let place = self.dynptr_place(v)?;
        let bytes = self.memory.read(v, SIZE)?;
        self.dynptrs.insert(place, Dynptr { bytes, to, size, read_only: false, record });
        Ok(())
    }

    /// Memory of a dynptr; NULL where there is not so much.
    fn slice(&self, d: &Dynptr, off: u64, len: u64) -> Value {
        let fits = off <= d.size && len <= d.size - off;
        match d.to {
            To::Memory(o, at) if fits => self.memory.pointer(o, at + off),
            To::Packet(at) if fits && at + off + len <= self.memory.objects[self.packet].size() => {
                self.memory.pointer(self.packet, at + off)
            }
            _ => Value::number(0),
        }
    }

    /// The helpers; memory was read and filled already.
    pub fn dynptr_helper(&mut self, number: u32, alloc: u64) -> Result<Option<Value>, Stop> {
        let status = |done: bool| Some(Value::number(if done { 0 } else { FAILED }));
        match number {
            id::DYNPTR_FROM_MEM => {
                let (mem, size, flags, to) =
                    (self.get(1)?, self.get(2)?.bits, self.get(3)?.bits, self.get(4)?);
                let Tag::Memory(o) = mem.tag else {
                    return Err(Stop::trap("a dynptr of no memory"));
                };
                if !matches!(self.memory.objects[o].kind, Kind::Element(_)) {
                    return Err(Stop::trap("a dynptr of memory that may go"));
                }
                let at = mem.bits.wrapping_sub(self.memory.objects[o].base);
                let made = flags == 0;
                self.put_dynptr(
                    to,
                    if made { To::Memory(o, at) } else { To::Nothing },
                    if made { size } else { 0 },
                    None,
                )?;
                Ok(status(made))
            }
            id::RINGBUF_RESERVE_DYNPTR => {
                let (size, flags, to) = (self.get(2)?.bits as u32, self.get(3)?.bits, self.get(4)?);
                let made = flags == 0 && size < 4096 && self.r.chance(75);
                let size = if made { size.into() } else { 0 };
                let o = self.memory.make_random(Kind::Record, size, self.r);
                self.put_dynptr(
                    to,
                    if made { To::Memory(o, 0) } else { To::Nothing },
                    size,
                    Some(o),
                )?;
                Ok(status(made))
            }
            id::RINGBUF_SUBMIT_DYNPTR | id::RINGBUF_DISCARD_DYNPTR => {
                let v = self.get(1)?;
                let Some(record) =
                    self.dynptr_at(v)?.record.filter(|o| self.memory.objects[*o].alive)
                else {
                    return Err(Stop::trap("a release of what is no record"));
                };
                self.memory.objects[record].alive = false;
                self.dynptrs.retain(|_, d| d.record != Some(record));
                Ok(None)
            }
            id::DYNPTR_DATA => {
                let (v, off) = (self.get(1)?, self.get(2)?.bits);
                let d = self.dynptr_at(v)?;
                let there = if matches!(d.to, To::Packet(_)) || d.read_only {
                    Value::number(0)
                } else {
                    self.slice(&d, off & u64::from(u32::MAX), alloc)
                };
                self.slices.push((there.bits, alloc));
                Ok(Some(there))
            }
            _ => Ok(status(self.r.chance(50))),
        }
    }

    /// The functions of the kernel.
    pub fn call_dynptr(&mut self, name: &'static str) -> Result<Option<Value>, Stop> {
        let first = self.get(1)?;
        match name {
            "bpf_dynptr_from_xdp" | "bpf_dynptr_from_skb" => {
                if first != self.memory.pointer(self.ctx, 0) {
                    return Err(Stop::trap("a function wants the context as it was"));
                }
                let (flags, to) = (self.get(2)?.bits, self.get(3)?);
                self.room_for_dynptr(to)?;
                let size = self.memory.objects[self.packet].size();
                let made = flags == 0;
                self.put_dynptr(
                    to,
                    if made { To::Packet(0) } else { To::Nothing },
                    if made { size } else { 0 },
                    None,
                )?;
                Ok(Some(Value::number(if made { 0 } else { FAILED })))
            }
            "bpf_dynptr_slice" | "bpf_dynptr_slice_rdwr" => {
                let (off, buffer, len) =
                    (self.get(2)?.bits as u32, self.get(3)?, self.get(4)?.bits);
                let d = self.dynptr_at(first)?;
                let there = if d.read_only && name == "bpf_dynptr_slice_rdwr" {
                    Value::number(0)
                } else {
                    self.slice(&d, off.into(), len)
                };
                self.slices.extend([(there.bits, len), (buffer.bits, len)]);
                if buffer == Value::number(0) {
                    return Ok(Some(there));
                }
                if len == 0 && !matches!(buffer.tag, Tag::Memory(_)) {
                    return Err(Stop::trap("a buffer that is no memory"));
                }
                let copied = there.bits != 0 && matches!(d.to, To::Packet(_)) && self.r.chance(50);
                if copied {
                    self.memory.fill(buffer, len, 0, self.r)?;
                } else if len > 0 {
                    self.memory.place(buffer, 0, len, true)?;
                }
                Ok(Some(if copied { buffer } else { there }))
            }
            "bpf_dynptr_adjust" => {
                let (from, to) =
                    (u64::from(self.get(2)?.bits as u32), u64::from(self.get(3)?.bits as u32));
                let place = self.dynptr_place(first)?;
                let mut d = self.dynptr_at(first)?;
                let fits = d.to != To::Nothing && from <= to && to <= d.size;
                if fits {
                    d.size = to - from;
                    match &mut d.to {
                        To::Memory(_, at) | To::Packet(at) => *at += from,
                        To::Nothing => {}
                    }
                    self.dynptrs.insert(place, d);
                }
                Ok(Some(Value::number(if fits { 0 } else { FAILED })))
            }
            "bpf_dynptr_clone" => {
                let d = self.dynptr_at(first)?;
                let to = self.get(2)?;
                self.room_for_dynptr(to)?;
                self.put_dynptr(to, d.to, d.size, d.record)?;
                let place = self.dynptr_place(to)?;
                if let Some(clone) = self.dynptrs.get_mut(&place) {
                    clone.read_only = d.read_only;
                }
                Ok(Some(Value::number(0)))
            }
            "bpf_dynptr_size" | "bpf_dynptr_is_null" | "bpf_dynptr_is_rdonly" => {
                self.dynptr_at(first)?;
                Ok(Some(Value::number(self.r.number())))
            }
            _ => Err(Stop::Unmodeled("that kernel function")),
        }
    }
}
