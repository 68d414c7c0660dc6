//! Protocol buffers, as far as they are written here: profiles for pprof, timelines for Perfetto.
//!
//! <https://protobuf.dev/programming-guides/encoding/>

/// A message that is being written.
#[derive(Default)]
pub struct Message(pub Vec<u8>);

impl Message {
    pub fn varint(&mut self, mut n: u64) {
        while n > 0x7f {
            self.0.push(n as u8 | 0x80);
            n >>= 7;
        }
        self.0.push(n as u8);
    }

    /// A number; 0 is left out, as it is what a field without value has.
    pub fn number(&mut self, field: u64, n: u64) -> &mut Self {
        if n != 0 {
            self.varint(field << 3);
            self.varint(n);
        }
        self
    }

    pub fn bytes(&mut self, field: u64, bytes: &[u8]) -> &mut Self {
        self.varint(field << 3 | 2);
        self.varint(bytes.len() as u64);
        self.0.extend_from_slice(bytes);
        self
    }

    pub fn packed(&mut self, field: u64, numbers: impl Iterator<Item = u64>) -> &mut Self {
        let mut list = Self::default();
        numbers.for_each(|n| list.varint(n));
        self.bytes(field, &list.0)
    }
}
