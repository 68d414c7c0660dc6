//! Elements before they are stored.

use skep_isa::KeyShape;

/// Elements before they are stored.
#[derive(Debug)]
pub struct Elements {
    /// What keys look like.
    pub shape: KeyShape,
    /// Keys, one behind the other: a cell for each would take as much as the longest.
    pub keys: Vec<u8>,
    /// Where each byte string ends.
    ends: Vec<usize>,
    /// Values, those of per-CPU maps with one for each CPU.
    pub values: Vec<u8>,
    /// How many.
    pub count: usize,
}

impl Elements {
    /// None, for a map with such keys.
    pub fn new(shape: KeyShape) -> Self {
        Self { shape, keys: Vec::new(), ends: Vec::new(), values: Vec::new(), count: 0 }
    }

    /// Adds a key that the map allows; its value is added as well.
    pub fn push_key(&mut self, key: &[u8]) {
        self.keys.extend_from_slice(key);
        self.end_key();
    }

    /// Counts a key that was added to the others.
    pub fn end_key(&mut self) {
        if let KeyShape::Bytes { .. } = self.shape {
            self.ends.push(self.keys.len());
        }
        self.count += 1;
    }

    /// The key of an element.
    pub fn key(&self, i: usize) -> &[u8] {
        let range = match self.shape {
            KeyShape::Fixed(size) => i * size as usize..(i + 1) * size as usize,
            KeyShape::Bytes { .. } => {
                let begin = i.checked_sub(1).and_then(|before| self.ends.get(before));
                begin.copied().unwrap_or(0)..self.ends.get(i).copied().unwrap_or(0)
            }
        };
        self.keys.get(range).unwrap_or_default()
    }

    /// Turns the order of values around, which have no keys.
    pub fn reverse(&mut self) {
        let size = self.values.len().checked_div(self.count).unwrap_or(0).max(1);
        self.values = self.values.chunks_exact(size).rev().flatten().copied().collect();
    }
}
