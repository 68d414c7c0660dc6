//! Elements of an ordered map in private memory, one behind another and each as long as its key:
//! what [`Map::visit`](crate::Map::visit) reads many of at a time.

use crate::ops::READ_ELEMENTS;

/// Bytes of elements that are read at once: few enough to stay in a processor's first cache.
const BYTES: usize = 32 << 10;
/// Bytes that there is room for behind the beginning of each element, at least.
const PIECE: usize = 16;

/// Where the parts of an element are: its value at the beginning, its key at the end.
#[derive(Clone, Copy, Debug)]
pub(crate) struct ElementLayout {
    pub(crate) value_size: usize,
    pub(crate) key_at: usize,
    /// Bytes of the longest key.
    pub(crate) max_key: usize,
}

/// Elements that were read at one time.
#[derive(Debug)]
pub(crate) struct Packed {
    bytes: Vec<u8>,
    used: usize,
    /// Bytes of each element: who goes from one to the next does not wait for what it loads of either.
    lengths: Vec<u32>,
    count: usize,
    /// Elements that are read at a time.
    pub(crate) most: usize,
    is_full: bool,
    layout: ElementLayout,
}

impl Packed {
    pub(crate) fn new(layout: ElementLayout) -> Self {
        let longest = layout.key_at + layout.max_key;
        let bytes = vec![0; BYTES.max(longest + PIECE)];
        Self {
            bytes,
            used: 0,
            lengths: vec![0; READ_ELEMENTS],
            count: 0,
            most: READ_ELEMENTS,
            is_full: false,
            layout,
        }
    }

    /// Forgets all elements.
    pub(crate) fn clear(&mut self) {
        (self.used, self.count, self.is_full) = (0, 0, false);
    }

    /// Notes how many elements were read: as many of their kind are read next. Returns how many bytes
    /// most have.
    pub(crate) fn learn(&mut self, elements: usize) -> u64 {
        if self.is_full {
            self.most = elements.max(64) & !63;
        }
        (self.used / elements.max(1)) as u64
    }

    /// Puts elements in, of which `find` tells the address and the length of the key, until there is
    /// no room; tells how many. `copy` gets an element's address and length, and memory for it and a
    /// few bytes: what it puts behind the element does not matter.
    #[inline(always)]
    pub(crate) fn push<T>(
        &mut self,
        elements: &[T],
        mut find: impl FnMut(&T) -> Option<(*mut u8, usize)>,
        mut copy: impl FnMut(&mut [u8], *mut u8, usize),
    ) -> usize {
        let ElementLayout { key_at, max_key, .. } = self.layout;
        let (mut used, mut n) = (self.used, 0);
        let bytes = &mut self.bytes[..];
        let lengths = self.lengths.get_mut(self.count..).unwrap_or_default();
        for (element, length) in elements.iter().zip(lengths) {
            let Some((from, key_len)) = find(element) else { break };
            let len = key_at + key_len.min(max_key);
            let Some(to) = bytes.get_mut(used..used + len.max(PIECE)) else { break };
            copy(to, from, len);
            *length = len as u32;
            used += len;
            n += 1;
        }
        self.used = used;
        self.count += n;
        self.is_full |= n < elements.len();
        n
    }

    /// Calls `visit` with the key and value of each, until it says no, and tells whether it did not;
    /// `None` when the bytes are no elements.
    #[inline]
    pub(crate) fn visit(&self, mut visit: impl FnMut(&[u8], &[u8]) -> bool) -> Option<bool> {
        let ElementLayout { value_size, key_at, .. } = self.layout;
        let mut left = &self.bytes[..];
        for length in &self.lengths[..self.count] {
            let (element, behind) = left.split_at_checked(*length as usize)?;
            if !visit(element.get(key_at..)?, element.get(..value_size)?) {
                return Some(false);
            }
            left = behind;
        }
        Some(true)
    }

    /// Returns the key of the last element.
    pub(crate) fn last_key(&self) -> Option<&[u8]> {
        let length = *self.lengths[..self.count].last()? as usize;
        self.bytes.get(self.used - length + self.layout.key_at..self.used)
    }
}
