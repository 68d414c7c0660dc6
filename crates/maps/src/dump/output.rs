//! Where a walk puts what it finds.

/// Room for elements in the caller's memory, and how much of it is used.
pub(crate) struct Output<'a> {
    memory: Memory<'a>,
    key_size: usize,
    value_size: usize,
    room: usize,
    used: usize,
}

enum Memory<'a> {
    /// Key and value side by side, elements `stride` bytes apart, the value at `value_at` of each.
    Rows { buf: &'a mut [u8], stride: usize, value_at: usize },
    /// All keys, and all values.
    Columns { keys: &'a mut [u8], values: &'a mut [u8] },
}

impl<'a> Output<'a> {
    /// Rows as the DUMP command has them; `aligned` puts values at multiples of eight. Sizes must
    /// not both be zero.
    pub(crate) fn rows(
        buf: &'a mut [u8],
        key_size: usize,
        value_size: usize,
        aligned: bool,
    ) -> Self {
        let (stride, value_at) = row_layout(key_size, value_size, aligned);
        let room = buf.len().checked_div(stride).unwrap_or(0);
        Self { memory: Memory::Rows { buf, stride, value_at }, key_size, value_size, room, used: 0 }
    }

    /// Columns as the BATCH commands have them, for as many elements as fit both.
    pub(crate) fn columns(
        keys: &'a mut [u8],
        values: &'a mut [u8],
        key_size: usize,
        value_size: usize,
    ) -> Self {
        let fit = |len: usize, size: usize| len.checked_div(size).unwrap_or(usize::MAX);
        let room = fit(keys.len(), key_size).min(fit(values.len(), value_size));
        let room = if key_size == 0 && value_size == 0 { 0 } else { room };
        Self { memory: Memory::Columns { keys, values }, key_size, value_size, room, used: 0 }
    }

    /// Takes fewer elements than there is memory for.
    pub(crate) fn limit(mut self, count: usize) -> Self {
        self.room = self.room.min(count);
        self
    }

    /// Runs `f` as if there were room for no more than `count` elements more.
    pub(super) fn with_room_for<T>(&mut self, count: usize, f: impl FnOnce(&mut Self) -> T) -> T {
        let room = self.room;
        self.room = room.min(self.used.saturating_add(count));
        let result = f(self);
        self.room = room;
        result
    }

    /// Copies the key of a later element to where [`Output::next`] has one.
    pub(super) fn bring_key(&mut self, from: usize) {
        if from == self.used {
            return;
        }
        let (buf, stride) = match &mut self.memory {
            Memory::Rows { buf, stride, .. } => (buf, *stride),
            Memory::Columns { keys, .. } => (keys, self.key_size),
        };
        let (from, to) = (from * stride, self.used * stride);
        if from + self.key_size <= buf.len() {
            buf.copy_within(from..from + self.key_size, to);
        }
    }

    /// Elements put in.
    #[inline]
    pub(crate) fn used(&self) -> usize {
        self.used
    }

    /// Elements that fit in all.
    pub(crate) fn room(&self) -> usize {
        self.room
    }

    #[inline]
    pub(crate) fn is_full(&self) -> bool {
        self.used >= self.room
    }

    /// The memory of the next element, `None` when there is no room.
    #[inline(always)]
    pub(crate) fn next(&mut self) -> Option<(&mut [u8], &mut [u8])> {
        if self.is_full() {
            return None;
        }
        let at = self.used;
        self.element(at)
    }

    /// The memory of an element.
    #[inline(always)]
    pub(crate) fn element(&mut self, at: usize) -> Option<(&mut [u8], &mut [u8])> {
        let (k, v) = (self.key_size, self.value_size);
        match &mut self.memory {
            Memory::Rows { buf, stride, value_at } => {
                let row = buf.get_mut(at.checked_mul(*stride)?..)?.get_mut(..*value_at + v)?;
                let (key, rest) = row.split_at_mut_checked(*value_at)?;
                Some((key.get_mut(..k)?, rest))
            }
            Memory::Columns { keys, values } => {
                let key = keys.get_mut(at.checked_mul(k)?..)?.get_mut(..k)?;
                Some((key, values.get_mut(at.checked_mul(v)?..)?.get_mut(..v)?))
            }
        }
    }

    /// Elements that still fit.
    pub(crate) fn left(&self) -> usize {
        self.room - self.used
    }

    /// Puts `n` elements in with `write`, which is given their number from 0 on. They must fit.
    #[inline(always)]
    pub(crate) fn put(&mut self, n: usize, mut write: impl FnMut(usize, &mut [u8], &mut [u8])) {
        let (k, v, used) = (self.key_size, self.value_size, self.used);
        match &mut self.memory {
            Memory::Rows { buf, stride, value_at } => {
                let rows = buf.get_mut(used * *stride..).unwrap_or_default();
                // What most rows are: sizes that the compiler knows make of a copy a load and a
                // store.
                if (k, v, *value_at, *stride) == (4, 8, 4, 12) {
                    let rows = rows.as_chunks_mut::<12>().0;
                    let n = n.min(rows.len());
                    for (i, row) in rows[..n].iter_mut().enumerate() {
                        let (key, value) = row.split_at_mut(4);
                        write(i, key, value);
                    }
                } else {
                    for (i, row) in rows.chunks_exact_mut((*stride).max(1)).take(n).enumerate() {
                        let (key, rest) = row.split_at_mut(*value_at);
                        write(i, &mut key[..k], &mut rest[..v]);
                    }
                }
            }
            Memory::Columns { keys, values } => {
                let values = values.chunks_exact_mut(v.max(1)).skip(used);
                for (i, (key, value)) in
                    keys.chunks_exact_mut(k.max(1)).skip(used).zip(values).take(n).enumerate()
                {
                    write(i, key, value);
                }
            }
        }
        self.used += n;
    }

    /// Writes to the memory of `n` elements behind `before` others that are not put in yet, with
    /// `write` until it says no; tells how many. They must fit.
    #[inline(always)]
    pub(crate) fn write_ahead(
        &mut self,
        before: usize,
        n: usize,
        mut write: impl FnMut(&mut [u8], &mut [u8]) -> bool,
    ) -> usize {
        let (k, v, first) = (self.key_size, self.value_size, self.used + before);
        let mut done = 0;
        match &mut self.memory {
            Memory::Rows { buf, stride, value_at } => {
                let rows = buf.get_mut(first * *stride..).unwrap_or_default();
                for row in rows.chunks_exact_mut((*stride).max(1)).take(n) {
                    let (key, rest) = row.split_at_mut(*value_at);
                    if !write(&mut key[..k], &mut rest[..v]) {
                        break;
                    }
                    done += 1;
                }
            }
            Memory::Columns { keys, values } => {
                let values = values.chunks_exact_mut(v.max(1)).skip(first);
                for (key, value) in keys.chunks_exact_mut(k.max(1)).skip(first).zip(values).take(n)
                {
                    if !write(key, value) {
                        break;
                    }
                    done += 1;
                }
            }
        }
        done
    }

    /// Keeps what was written to [`Output::next`].
    #[inline]
    pub(crate) fn push(&mut self) {
        self.used += 1;
    }

    /// Forgets all but the first `used` elements.
    #[inline]
    pub(crate) fn rewind(&mut self, used: usize) {
        self.used = self.used.min(used);
    }
}

/// Bytes from one row to the next, and from its key to its value.
pub(super) fn row_layout(key_size: usize, value_size: usize, aligned: bool) -> (usize, usize) {
    if aligned {
        let value_at = key_size.next_multiple_of(8);
        (value_at + value_size.next_multiple_of(8), value_at)
    } else {
        (key_size + value_size, key_size)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rows_are_packed_or_aligned_and_columns_apart() {
        let put = |out: &mut Output<'_>| {
            while let Some((k, v)) = out.next() {
                k.fill(1);
                v.fill(2);
                out.push();
            }
            out.used()
        };
        let mut buf = [0; 26];
        assert_eq!(put(&mut Output::rows(&mut buf, 4, 8, false)), 2);
        assert_eq!(
            (&buf[..4], &buf[4..12], &buf[12..16], &buf[24..]),
            (&[1; 4][..], &[2; 8][..], &[1; 4][..], &[0; 2][..])
        );
        let mut buf = [0; 33];
        assert_eq!(put(&mut Output::rows(&mut buf, 4, 6, true)), 2);
        assert_eq!(
            (&buf[4..8], &buf[8..14], &buf[14..16], buf[16]),
            (&[0; 4][..], &[2; 6][..], &[0; 2][..], 1)
        );
        let (mut keys, mut values) = ([0; 12], [0; 20]);
        assert_eq!(put(&mut Output::columns(&mut keys, &mut values, 4, 8)), 2);
        assert_eq!(
            (&keys[..], &values[..]),
            (
                &[1, 1, 1, 1, 1, 1, 1, 1, 0, 0, 0, 0][..],
                &[[2; 16].as_slice(), &[0; 4]].concat()[..]
            )
        );
        assert_eq!(
            put(&mut Output::columns(&mut [], &mut [0; 16], 0, 8)),
            2,
            "queues have no keys"
        );
        assert_eq!(put(&mut Output::columns(&mut [0; 8], &mut [0; 8], 0, 0)), 0);
        assert_eq!(put(&mut Output::rows(&mut [0; 64], 4, 4, false).limit(3)), 3);
    }

    #[test]
    fn there_is_less_room_for_a_while_and_keys_move_up() {
        let (mut rows, mut keys, mut values) = ([0; 32], [0; 16], [0; 16]);
        for mut out in
            [Output::rows(&mut rows, 4, 4, false), Output::columns(&mut keys, &mut values, 4, 4)]
        {
            let used = out.with_room_for(3, |out| {
                while out.next().is_some() {
                    out.push();
                }
                out.used()
            });
            assert_eq!((used, out.room(), out.left()), (3, 4, 1));
            for (at, n) in [(0, 1), (1, 2), (2, 3)] {
                out.element(at).expect("there").0.fill(n);
            }
            out.rewind(1);
            out.bring_key(2);
            out.push();
            assert_eq!(
                [0, 1, 2].map(|at| out.element(at).expect("there").0.to_vec()),
                [[1; 4], [3; 4], [3; 4]]
            );
            out.bring_key(2);
            assert_eq!(out.next().expect("room").0, [3; 4]);
        }
    }
}
