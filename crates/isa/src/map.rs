//! Map types and flags, and the little that generated code knows of a map. What each type is like
//! stands in [`MAP_TYPES`], one row each.

pub use crate::key::{DynptrUser, KeyForm, KeyShape};
pub use crate::map_type::{Lookup, MAP_TYPES, MapTypeRow, Offer, Size};

/// Names a kind of map by its kernel number (`enum bpf_map_type`), or one of skep's own.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, PartialOrd, Ord)]
#[non_exhaustive]
#[repr(u32)]
#[allow(missing_docs, reason = "the names are the kernel's own")]
pub enum MapType {
    Hash = 1,
    Array = 2,
    ProgArray = 3,
    PerfEventArray = 4,
    PercpuHash = 5,
    PercpuArray = 6,
    StackTrace = 7,
    CgroupArray = 8,
    LruHash = 9,
    LruPercpuHash = 10,
    LpmTrie = 11,
    ArrayOfMaps = 12,
    HashOfMaps = 13,
    Devmap = 14,
    Sockmap = 15,
    Cpumap = 16,
    Xskmap = 17,
    Sockhash = 18,
    CgroupStorage = 19,
    ReuseportSockarray = 20,
    PercpuCgroupStorage = 21,
    Queue = 22,
    Stack = 23,
    SkStorage = 24,
    DevmapHash = 25,
    StructOps = 26,
    Ringbuf = 27,
    InodeStorage = 28,
    TaskStorage = 29,
    BloomFilter = 30,
    UserRingbuf = 31,
    CgrpStorage = 32,
    Arena = 33,
    /// skep's own: Linux has no such maps.
    #[doc(alias = "BPF_MAP_TYPE_QP_TRIE")]
    QpTrie = FIRST_OWN,
}

/// The number of the first map type that Linux does not have, far outside its range.
const FIRST_OWN: u32 = 0x0363_0001;

impl MapType {
    /// Finds the type with the kernel's number.
    #[must_use]
    pub fn from_raw(n: u32) -> Option<Self> {
        MAP_TYPES.iter().map(|r| r.map_type).find(|t| *t as u32 == n)
    }

    /// Returns the type's row in [`MAP_TYPES`].
    #[must_use]
    pub fn row(self) -> &'static MapTypeRow {
        // Rows stand in order of number (a test says so), skep's own behind the kernel's; the first
        // one is only for the compiler's peace.
        let at = match (self as u32).checked_sub(FIRST_OWN) {
            Some(own) => own.wrapping_add(Self::Arena as u32),
            None => (self as u32).wrapping_sub(1),
        };
        MAP_TYPES.get(at as usize).unwrap_or(&MAP_TYPES[0])
    }

    /// Returns the name bpftool prints.
    #[must_use]
    pub fn name(self) -> &'static str {
        self.row().name
    }

    /// Finds a type by the name bpftool prints.
    #[must_use]
    pub fn from_name(name: &str) -> Option<Self> {
        MAP_TYPES.iter().find(|r| r.name == name).map(|r| r.map_type)
    }
}

impl std::fmt::Display for MapType {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.pad(self.name())
    }
}

/// Bits of `map_flags` at creation (include/uapi/linux/bpf.h `BPF_F_*`).
#[derive(Clone, Copy, PartialEq, Eq, Hash, Default, Debug)]
pub struct MapFlags(pub u32);

#[allow(missing_docs, reason = "the names are the kernel's own")]
impl MapFlags {
    pub const NO_PREALLOC: u32 = 1 << 0;
    pub const NO_COMMON_LRU: u32 = 1 << 1;
    pub const NUMA_NODE: u32 = 1 << 2;
    pub const RDONLY: u32 = 1 << 3;
    pub const WRONLY: u32 = 1 << 4;
    pub const STACK_BUILD_ID: u32 = 1 << 5;
    pub const ZERO_SEED: u32 = 1 << 6;
    pub const RDONLY_PROG: u32 = 1 << 7;
    pub const WRONLY_PROG: u32 = 1 << 8;
    pub const CLONE: u32 = 1 << 9;
    pub const MMAPABLE: u32 = 1 << 10;
    pub const PRESERVE_ELEMS: u32 = 1 << 11;
    pub const INNER_MAP: u32 = 1 << 12;
    /// skep's own, for tries of byte strings: leave out the cache of leaves, which makes lookups of
    /// single keys about as fast as a hash's for 7 bytes a key.
    pub const NO_LEAF_CACHE: u32 = 1 << 30;
    /// The flags that say who may read and write.
    pub const ACCESS: u32 = Self::RDONLY | Self::WRONLY | Self::RDONLY_PROG | Self::WRONLY_PROG;

    /// Tells whether all of `bits` are set.
    #[must_use]
    pub const fn has(self, bits: u32) -> bool {
        self.0 & bits == bits
    }
}

/// Update flags (`BPF_ANY`, `BPF_NOEXIST`, `BPF_EXIST`, and `BPF_F_LOCK`, which may be added to one
/// of them).
#[allow(missing_docs, reason = "the names are the kernel's own")]
pub mod update {
    pub const ANY: u64 = 0;
    pub const NOEXIST: u64 = 1;
    pub const EXIST: u64 = 2;
    /// Copy under the value's spin lock.
    pub const LOCK: u64 = 4;
}

/// Everything the code generator knows of a map: where values lie when they can be found without a
/// call.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct MapShape {
    /// Address of value 0 in this process.
    pub base: u64,
    /// Distance between two values in bytes.
    pub stride: u64,
    /// Number of values; a larger index has none.
    pub entries: u32,
    /// How a key becomes an address.
    pub kind: ShapeKind,
}

/// Tells how a key becomes the address of a value.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub enum ShapeKind {
    /// Only the map's own code can tell: lookups are calls.
    Opaque,
    /// `base + key * stride`, the key a u32.
    Array,
    /// `base + slot * slot_stride + key * stride`, where `slot` is the 64-bit word at
    /// `fs:[slot_tls]`, or `gs:[slot_tls]`: the number of the per-CPU slot the running thread owns (always valid
    /// while a program runs).
    PercpuArray {
        /// Distance between two slots' values in bytes.
        slot_stride: u64,
        /// Offset of the slot number from the thread pointer.
        slot_tls: i32,
        /// Whether the word is reached by `gs`.
        by_gs: bool,
    },
    /// The map's own code tells, and `func(map, key)` is the part of it that does so for keys of
    /// this map's size: it returns the value's address or 0, and keeps vector registers.
    Direct {
        /// Address of the function.
        func: u64,
        /// Its first argument.
        map: u64,
    },
    /// A program array: at `base + key * stride` lies the id of a program as a u32, 0 for none, and
    /// may change at any time. `targets` is the address of `entries` pointers of this process,
    /// to the program each slot was last seen to name (`skep_vm::tail::Table`); 0 when this
    /// process has no such table, and then every tail call asks the helper.
    ProgArray {
        /// The table's address.
        targets: u64,
    },
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn map_types_are_complete_and_in_kernel_order() {
        let numbers = (1..=MapType::Arena as u32).chain(FIRST_OWN..);
        for (row, number) in MAP_TYPES.iter().zip(numbers) {
            assert_eq!(row.map_type as u32, number, "{}", row.name);
            assert_eq!(row.map_type.row(), row);
            assert_eq!(MapType::from_raw(row.map_type as u32), Some(row.map_type));
            assert_eq!(MapType::from_name(row.name), Some(row.map_type));
            assert!(row.helpers.is_sorted(), "{}", row.name);
        }
        assert_eq!(MapType::from_raw(0), None);
    }
}
