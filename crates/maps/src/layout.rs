//! What a map type needs of its file: computed from the definition alone, so that every process
//! computes the same.

/// What a map type needs of its file, from its definition.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Layout {
    /// Bytes of payload.
    pub(crate) payload_len: u64,
    /// From here on the payload is mapped a second time behind itself.
    pub(crate) mirror: Option<u64>,
    /// How many rows of the payload have an insertion epoch: those that elements come into and go
    /// out of.
    pub(crate) epochs: u64,
    /// What of the payload has memory from the beginning; the rest gets it before it is used.
    pub(crate) initial: InitialMemory,
}

/// What of a payload has memory when the map is made: its first bytes, and the first bytes of each
/// of some areas.
#[derive(Clone, Copy, Debug)]
pub(crate) struct InitialMemory {
    pub(crate) prefix: u64,
    pub(crate) areas: Areas,
}

#[derive(Clone, Copy, Debug)]
pub(crate) enum Areas {
    /// This many, the first of which begins where the payload does.
    Number { count: u64, stride: u64, len: u64 },
    /// One for each slot.
    Slots(PercpuLayout),
}

/// Where the values of the slots lie, one area for each.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct PercpuLayout {
    pub(crate) at: u64,
    pub(crate) stride: u64,
    /// Elements get memory when they are first used, and then in all areas.
    pub(crate) on_demand: bool,
}

impl Areas {
    pub(crate) const NONE: Self = Self::Number { count: 0, stride: 0, len: 0 };
}

impl Layout {
    /// Describes a payload without insertion epochs: nothing is put into it after the map was made,
    /// or positions tell the order of insertion.
    pub(crate) const fn plain(payload_len: u64) -> Self {
        Self::with_epochs(payload_len, 0)
    }

    /// Describes a payload with `rows` insertion epochs.
    pub(crate) const fn with_epochs(payload_len: u64, rows: u64) -> Self {
        let initial = InitialMemory { prefix: payload_len, areas: Areas::NONE };
        Self { payload_len, mirror: None, epochs: rows, initial }
    }

    /// Limits the initial memory to the first bytes and some areas.
    pub(crate) const fn with_initial(self, prefix: u64, areas: Areas) -> Self {
        Self { initial: InitialMemory { prefix, areas }, ..self }
    }

    /// Lists the ranges that have memory in a new map for this many slots.
    pub(crate) fn reserved(&self, slots: u32) -> Vec<(u64, u64)> {
        let mut ranges = vec![(0, self.initial.prefix)];
        match self.initial.areas {
            Areas::Number { count, stride, len } => {
                ranges.extend((0..count).map(|i| (i * stride, len)))
            }
            Areas::Slots(area) if area.on_demand => {}
            Areas::Slots(area) => ranges.push((area.at, u64::from(slots) * area.stride)),
        }
        ranges
    }

    /// Returns where the values of slots lie, for per-CPU types.
    pub(crate) fn percpu(&self) -> Option<PercpuLayout> {
        if let Areas::Slots(area) = self.initial.areas { Some(area) } else { None }
    }
}
