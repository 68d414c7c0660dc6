//! Elements of an ordered map in private memory, one behind another and each as long as its key:
//! what [`Map::visit`](crate::Map::visit) reads many of at a time.

/// Bytes of elements that are read at once: few enough to stay in a processor's first cache.
const BYTES: usize = 24 << 10;
/// What is copied of every element, at least: longer ones are rare in most maps.
pub(crate) const AT_LEAST: usize = 48;
/// Pieces that elements are copied in.
const PIECE: usize = 16;

/// Where the parts of an element are: its value at the beginning, the length of its key, the key.
#[derive(Clone, Copy, Debug)]
pub(crate) struct ElementLayout {
    pub(crate) value_size: usize,
    pub(crate) length_at: usize,
    /// Of the four bytes there, those that are the length.
    pub(crate) length_mask: u32,
    pub(crate) key_at: usize,
    /// Bytes of the longest key.
    pub(crate) max_key: usize,
}

/// Elements that were read at one time.
#[derive(Debug)]
pub(crate) struct Packed {
    bytes: Vec<u8>,
    used: usize,
    /// Where the last element begins.
    last: usize,
    layout: ElementLayout,
}

impl Packed {
    pub(crate) fn new(layout: ElementLayout) -> Self {
        let longest = layout.key_at + layout.max_key;
        let bytes = vec![0; BYTES.max(longest + AT_LEAST + PIECE)];
        Self { bytes, used: 0, last: 0, layout }
    }

    pub(crate) fn clear(&mut self) {
        self.used = 0;
    }

    /// Puts elements in, of which `find` tells the address and the length of the key, until there is
    /// no room; tells how many. `copy` gets an element's address and length, and memory for it and less
    /// than 64 bytes more: what it puts behind the element does not matter.
    #[inline(always)]
    pub(crate) fn push<T>(
        &mut self,
        elements: &[T],
        mut find: impl FnMut(&T) -> Option<(*mut u8, usize)>,
        mut copy: impl FnMut(&mut [u8], *mut u8, usize),
    ) -> usize {
        let ElementLayout { key_at, max_key, .. } = self.layout;
        let (mut used, mut last, mut n) = (self.used, self.last, 0);
        for element in elements {
            let Some((from, key_len)) = find(element) else { break };
            let len = key_at + key_len.min(max_key);
            let copied = len.next_multiple_of(PIECE).max(AT_LEAST);
            let Some(to) = self.bytes.get_mut(used..used + copied) else { break };
            copy(to, from, len);
            last = used;
            used += len;
            n += 1;
        }
        (self.used, self.last) = (used, last);
        n
    }

    /// Calls `visit` with the key and value of each, until it says no, and tells whether it did not;
    /// `None` when the bytes are no elements.
    #[inline]
    pub(crate) fn visit(&self, mut visit: impl FnMut(&[u8], &[u8]) -> bool) -> Option<bool> {
        let mut at = 0;
        while at < self.used {
            let (key, value, next) = self.element(at)?;
            if !visit(key, value) {
                return Some(false);
            }
            at = next;
        }
        Some(true)
    }

    /// Returns the key of the last element.
    pub(crate) fn last_key(&self) -> Option<&[u8]> {
        if self.used == 0 {
            return None;
        }
        self.element(self.last).map(|(key, _, _)| key)
    }

    /// Returns the key and value of the element at a place, and the place of the next one.
    #[inline(always)]
    fn element(&self, at: usize) -> Option<(&[u8], &[u8], usize)> {
        let ElementLayout { value_size, length_at, length_mask, key_at, max_key } = self.layout;
        let element = self.bytes.get(at..)?;
        // There are some bytes behind the last one.
        let length = element.get(length_at..)?.first_chunk::<4>()?;
        let length = (u32::from_le_bytes(*length) & length_mask) as usize;
        let len = key_at + length.min(max_key);
        Some((element.get(key_at..len)?, element.get(..value_size)?, at + len))
    }
}
