//! What the checking machine's registers and memory hold: every value knows which object it points
//! into, every byte whether it was written, and every object whether it still exists.

use crate::random::Random;

/// Where a value came from.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Tag {
    Number,
    /// Points into that object, or past it.
    Memory(usize),
    /// The end of that packet: no memory.
    End(usize),
    /// A map of the program.
    Map(u32),
    /// The map that a map of maps holds.
    Inner(u32),
    /// A function, by first instruction.
    Func(usize),
    /// What a program calls an address: there may be something.
    Wild,
}

/// A register's contents.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Value {
    pub bits: u64,
    pub tag: Tag,
}

impl Value {
    pub const fn number(bits: u64) -> Self {
        Self { bits, tag: Tag::Number }
    }
}

/// What an object is for.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Kind {
    Ctx,
    Stack,
    /// A value of that map.
    Element(Tag),
    /// A ring buffer record.
    Record,
    Packet,
    /// The metadata before the packet.
    Meta,
    /// Lent by a helper.
    Lent,
}

#[derive(Clone, Copy)]
struct Byte {
    value: u8,
    written: bool,
    /// Part of a pointer: its tag, and which byte of it.
    of: Option<(Tag, u8)>,
}

pub struct Object {
    pub kind: Kind,
    pub base: u64,
    pub alive: bool,
    pub readable: bool,
    pub writable: bool,
    /// Other processes write to it too.
    pub shared: bool,
    /// A lock: bytes that nobody else may touch.
    pub lock: Option<u64>,
    bytes: Vec<Byte>,
    /// Lowest byte ever touched: how deep a stack was used.
    pub lowest: u64,
}

impl Object {
    pub fn size(&self) -> u64 {
        self.bytes.len() as u64
    }
}

/// All objects that ever were.
#[derive(Default)]
pub struct Memory {
    pub objects: Vec<Object>,
}

impl Memory {
    /// Makes an object; contents given are written bytes.
    pub fn make(&mut self, kind: Kind, size: u64, contents: Option<&[u8]>) -> usize {
        let n = self.objects.len();
        let byte = |k: usize| match contents {
            Some(c) => Byte { value: c.get(k).copied().unwrap_or(0), written: true, of: None },
            None => Byte { value: 0xa5, written: false, of: None },
        };
        // Far enough apart that no offset the verifier allows leads from one into another.
        let base = 0x1000_0000_0000 + ((n as u64) << 34);
        let bytes = (0..size as usize).map(byte).collect();
        self.objects.push(Object {
            kind,
            base,
            alive: true,
            readable: true,
            writable: true,
            shared: false,
            lock: None,
            bytes,
            lowest: size,
        });
        n
    }

    /// Makes an object with random contents.
    pub fn make_random(&mut self, kind: Kind, size: u64, r: &Random) -> usize {
        let bytes = random_bytes(size, r);
        self.make(kind, size, Some(&bytes))
    }

    pub fn pointer(&self, object: usize, off: u64) -> Value {
        Value { bits: self.objects[object].base.wrapping_add(off), tag: Tag::Memory(object) }
    }

    /// Finds the bytes an access touches.
    pub fn place(
        &mut self,
        p: Value,
        off: i64,
        size: u64,
        write: bool,
    ) -> Result<(usize, usize), String> {
        let Tag::Memory(n) = p.tag else {
            return Err(format!("{:?} {:#x} is no address", p.tag, p.bits));
        };
        let o = &mut self.objects[n];
        if !o.alive {
            return Err(format!("the {:?} is gone", o.kind));
        }
        if (write && !o.writable) || (!write && !o.readable) {
            return Err(format!(
                "the {:?} may not be {}",
                o.kind,
                if write { "written" } else { "read" }
            ));
        }
        let at = p.bits.wrapping_sub(o.base).wrapping_add(off as u64);
        let len = o.bytes.len() as u64;
        if at > len || size > len - at {
            return Err(format!("{size} bytes at {} of {len} of the {:?}", at as i64, o.kind));
        }
        if o.lock.is_some_and(|lock| at < lock + 4 && lock < at + size) {
            return Err(format!("a lock is {}", if write { "written" } else { "read" }));
        }
        o.lowest = o.lowest.min(at);
        Ok((n, at as usize))
    }

    pub fn load(&mut self, p: Value, off: i64, size: u64, r: &Random) -> Result<Value, String> {
        let (n, at) = self.place(p, off, size, false)?;
        let bytes = &mut self.objects[n];
        if bytes.shared && r.chance(10) {
            // Somebody else was faster.
            let other = r.number().to_le_bytes();
            bytes.bytes[at..at + size as usize]
                .iter_mut()
                .zip(other)
                .for_each(|(b, v)| b.value = v);
        }
        let bytes = &bytes.bytes[at..at + size as usize];
        if let Some(k) = bytes.iter().position(|b| !b.written) {
            return Err(format!(
                "byte {} of the {:?} was never written",
                at + k,
                self.objects[n].kind
            ));
        }
        let bits = bytes.iter().rev().fold(0, |n, b| (n << 8) | u64::from(b.value));
        let whole = |tag| size == 8 && bytes.iter().zip(0..).all(|(b, k)| b.of == Some((tag, k)));
        let tag = bytes[0].of.map(|(tag, _)| tag).filter(|tag| whole(*tag)).unwrap_or(Tag::Number);
        Ok(Value { bits, tag })
    }

    pub fn store(&mut self, p: Value, off: i64, size: u64, v: Value) -> Result<(), String> {
        let (n, at) = self.place(p, off, size, true)?;
        let keeps = self.objects[n].kind == Kind::Stack && size == 8 && v.tag != Tag::Number;
        for (k, b) in self.objects[n].bytes[at..at + size as usize].iter_mut().enumerate() {
            *b = Byte {
                value: (v.bits >> (8 * k)) as u8,
                written: true,
                of: keeps.then_some((v.tag, k as u8)),
            };
        }
        Ok(())
    }

    /// A helper reads memory.
    pub fn read(&mut self, p: Value, size: u64) -> Result<Vec<u8>, String> {
        if size == 0 {
            return Ok(Vec::new());
        }
        let (n, at) = self.place(p, 0, size, false)?;
        let bytes = &self.objects[n].bytes[at..at + size as usize];
        match bytes.iter().position(|b| !b.written) {
            Some(k) => Err(format!(
                "a helper reads byte {} of the {:?}, never written",
                at + k,
                self.objects[n].kind
            )),
            None => Ok(bytes.iter().map(|b| b.value).collect()),
        }
    }

    /// A helper fills memory, and leaves what is behind it up to `reach` bytes.
    pub fn fill(&mut self, p: Value, size: u64, reach: u64, r: &Random) -> Result<(), String> {
        let reach = reach.max(size);
        if reach == 0 {
            return Ok(());
        }
        let (n, at) = self.place(p, 0, reach, true)?;
        for (k, b) in self.objects[n].bytes[at..at + reach as usize].iter_mut().enumerate() {
            if (k as u64) < size {
                *b = Byte { value: r.next() as u8, written: true, of: None };
            }
            // Behind it all stays as it was: another state may know of a pointer there.
            b.written = true;
        }
        Ok(())
    }

    /// The byte of an object as it is, when it was written.
    pub fn peek(&self, object: usize, at: u64) -> Option<u8> {
        self.objects[object].bytes.get(at as usize).filter(|b| b.written).map(|b| b.value)
    }

    /// The eight bytes at `at` as they would be loaded.
    #[allow(dead_code, reason = "used by one of the tests that share this file")]
    pub fn peek_word(&self, object: usize, at: u64) -> Option<Value> {
        let bytes = self.objects[object].bytes.get(at as usize..at as usize + 8)?;
        let bits = bytes.iter().rev().fold(0, |n, b| (n << 8) | u64::from(b.value));
        let tag = bytes[0]
            .of
            .map(|(tag, _)| tag)
            .filter(|tag| bytes.iter().zip(0..).all(|(b, k)| b.of == Some((*tag, k))));
        Some(Value { bits, tag: tag.unwrap_or(Tag::Number) })
    }
}

pub fn random_bytes(size: u64, r: &Random) -> Vec<u8> {
    let mut bytes = Vec::with_capacity(size as usize + 8);
    while (bytes.len() as u64) < size {
        bytes.extend(r.number().to_le_bytes());
    }
    bytes.truncate(size as usize);
    bytes
}
