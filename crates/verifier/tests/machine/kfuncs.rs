//! Calls of kernel functions in the checking machine: iterators over numbers and bits, and
//! sections.

use super::memory::{Kind, Tag, Value};
use super::{Machine, Stop};
use skep_isa::kfunc;

/// An iterator on a stack.
pub struct Iter {
    kind: &'static str,
    /// What was put there: nobody else may write it.
    bytes: Vec<u8>,
    /// The element, lent until the end.
    element: usize,
    left: u64,
}

/// Which iterator a function is of, how many bytes it takes, and what the function does.
fn parts(name: &'static str) -> Option<(&'static str, u64, &'static str)> {
    let rest = name.strip_prefix("bpf_iter_")?;
    let (kind, what) = rest.rsplit_once('_')?;
    let size = match kind {
        "num" => 8,
        "bits" => 16,
        _ => return None,
    };
    Some((kind, size, what))
}

impl Machine<'_> {
    /// Calls a kernel function; the next instruction.
    pub fn call_kernel(&mut self, pc: usize, id: u32) -> Result<usize, Stop> {
        let Some(k) = kfunc::by_id(id) else {
            return Err(Stop::trap(format!("there is no function {id}")));
        };
        if self.lock.is_some() && !k.name.starts_with("bpf_iter_num_") {
            return Err(Stop::trap("a kernel function is called under a lock"));
        }
        let r0 = match k.name {
            "bpf_rcu_read_lock" | "bpf_preempt_disable" => {
                self.sections += 1;
                None
            }
            "bpf_rcu_read_unlock" | "bpf_preempt_enable" => {
                self.sections = self
                    .sections
                    .checked_sub(1)
                    .ok_or_else(|| Stop::trap("a section ends that never began"))?;
                None
            }
            // Bytes anywhere.
            "bpf_rdonly_cast" if self.get(2)? == Value::number(0) => {
                let bits = self.top().regs[1].map_or(0, |v| v.bits);
                Some(Value { bits, tag: Tag::Wild })
            }
            name if name.starts_with("bpf_dynptr_") => self.call_dynptr(name)?,
            name => {
                let Some((kind, size, what)) = parts(name) else {
                    return Err(Stop::Unmodeled("that kernel function"));
                };
                self.iterate(kind, size, what)?
            }
        };
        self.clobber(r0);
        Ok(pc + 1)
    }

    fn iterate(
        &mut self,
        kind: &'static str,
        size: u64,
        what: &str,
    ) -> Result<Option<Value>, Stop> {
        let place = self.get(1)?;
        let Tag::Memory(stack) = place.tag else {
            return Err(Stop::trap("an iterator that is no memory"));
        };
        let off = place.bits.wrapping_sub(self.memory.objects[stack].base);
        if self.memory.objects[stack].kind != Kind::Stack || !off.is_multiple_of(8) {
            return Err(Stop::trap("an iterator that is not on the stack, or not aligned"));
        }
        if what == "new" {
            if self.iters.iter().any(|((o, at), it)| {
                *o == stack && *at < off + size && off < at + it.bytes.len() as u64
            }) {
                return Err(Stop::trap("an iterator over another one"));
            }
            let numbers: &[u8] = if kind == "num" { &[2, 3] } else { &[3] };
            for r in numbers {
                if self.get(*r)?.tag != Tag::Number {
                    return Err(Stop::trap("a pointer where a number belongs"));
                }
            }
            self.memory.fill(place, size, 0, self.r)?;
            let bytes = self.memory.read(place, size)?;
            let element = self.memory.make_random(Kind::Lent, 4, self.r);
            self.memory.objects[element].writable = false;
            let fails = self.steady.is_none() && self.r.chance(25);
            let left = if fails { 0 } else { self.steady.unwrap_or_else(|| self.r.below(6)) };
            self.iters.insert((stack, off), Iter { kind, bytes, element, left });
            return Ok(Some(Value::number(if fails { 0xffff_ffea } else { 0 })));
        }
        let bytes = self.memory.read(place, size)?;
        let Some(it) = self.iters.get_mut(&(stack, off)).filter(|it| it.kind == kind) else {
            return Err(Stop::trap("there is no such iterator"));
        };
        if it.bytes != bytes {
            return Err(Stop::trap("the program wrote over an iterator"));
        }
        let element = it.element;
        if what == "destroy" {
            self.iters.remove(&(stack, off));
            self.memory.objects[element].alive = false;
            return Ok(None);
        }
        if it.left == 0 {
            return Ok(Some(Value::number(0)));
        }
        it.left -= 1;
        self.memory.objects[element].writable = true;
        let place = self.memory.pointer(element, 0);
        self.memory.fill(place, 4, 0, self.r)?;
        self.memory.objects[element].writable = false;
        Ok(Some(place))
    }
}
