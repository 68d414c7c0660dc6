//! What each map type is like: one row each (kernel/bpf/*map*.c, and `check_map_func_compatibility`
//! of the verifier).

use crate::helper::{HelperId, id};
use crate::key::{KeyForm, KeyShape};
use crate::map::{MapFlags as F, MapType};

/// Tells which sizes a key or value may have.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub enum Size {
    /// One of these.
    OneOf(&'static [u32]),
    /// Between two sizes, both allowed.
    Between(u32, u32),
    /// A multiple of eight between two sizes.
    Words(u32, u32),
}

impl Size {
    /// Tells whether a size is allowed.
    #[must_use]
    pub fn allows(self, size: u32) -> bool {
        match self {
            Self::OneOf(list) => list.contains(&size),
            Self::Between(low, high) => (low..=high).contains(&size),
            Self::Words(low, high) => (low..=high).contains(&size) && size.is_multiple_of(8),
        }
    }
}

/// Tells what a program gets from `bpf_map_lookup_elem`.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub enum Lookup {
    /// The address of a value, or null.
    Value,
    /// The address of a value that the program may only read, or null.
    ReadOnlyValue,
    /// An inner map, or null.
    InnerMap,
    /// Programs cannot look up.
    Nothing,
}

/// Tells whether skep makes maps of a type.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Offer {
    /// It does.
    Yes,
    /// It does not, for this reason.
    No(&'static str),
}

/// One map type.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct MapTypeRow {
    /// The type.
    pub map_type: MapType,
    /// The name bpftool and libbpf print.
    pub name: &'static str,
    /// Whether skep makes such maps.
    pub offer: Offer,
    /// Sizes of keys; 0 means that there are none.
    pub key: Size,
    /// Whether keys are of a fixed size.
    pub keys: KeyForm,
    /// Sizes of values.
    pub value: Size,
    /// Flags allowed at creation.
    pub flags: u32,
    /// There is a value for each CPU.
    pub per_cpu: bool,
    /// What a program's lookup gives.
    pub lookup: Lookup,
    /// The helpers that take a map of this type as argument, in order.
    pub helpers: &'static [HelperId],
}

impl MapTypeRow {
    /// Tells whether a map of this type may be an argument of a helper.
    #[must_use]
    pub fn allows(&self, helper: HelperId) -> bool {
        self.helpers.contains(&helper)
    }

    /// Returns what the keys of a map of this type look like.
    #[must_use]
    pub const fn key_shape(&self, key_size: u32, map_extra: u64) -> KeyShape {
        self.keys.shape(key_size, map_extra)
    }
}

const NONE: Size = Size::OneOf(&[0]);
const INDEX: Size = Size::OneOf(&[4]);
const ANY: Size = Size::Between(1, u32::MAX);
const PERCPU_VALUE: Size = Size::Between(1, 32 << 10);

const SIDES: u32 = F::RDONLY | F::WRONLY | F::NUMA_NODE;
const HASH: u32 = F::NO_PREALLOC | F::ZERO_SEED | F::ACCESS | F::NUMA_NODE;
const PERCPU_HASH: u32 = F::NO_PREALLOC | F::ZERO_SEED | F::ACCESS;
/// `NO_PREALLOC` is a known flag, for which there is an error of its own.
const LRU: u32 = F::NO_PREALLOC | F::NO_COMMON_LRU | F::ZERO_SEED | F::ACCESS;

/// Lookup, update, delete, and `for_each_map_elem`.
const ELEMENTS: &[HelperId] =
    &[id::MAP_LOOKUP_ELEM, id::MAP_UPDATE_ELEM, id::MAP_DELETE_ELEM, id::FOR_EACH_MAP_ELEM];
/// These, and `map_lookup_percpu_elem`.
const PERCPU_ELEMENTS: &[HelperId] = &[
    id::MAP_LOOKUP_ELEM,
    id::MAP_UPDATE_ELEM,
    id::MAP_DELETE_ELEM,
    id::FOR_EACH_MAP_ELEM,
    id::MAP_LOOKUP_PERCPU_ELEM,
];

const fn row(
    map_type: MapType,
    name: &'static str,
    key: Size,
    value: Size,
    flags: u32,
    helpers: &'static [HelperId],
) -> MapTypeRow {
    MapTypeRow {
        map_type,
        name,
        offer: Offer::Yes,
        key,
        keys: KeyForm::Fixed,
        value,
        flags,
        per_cpu: false,
        lookup: Lookup::Nothing,
        helpers,
    }
}

const fn refused(map_type: MapType, name: &'static str, why: &'static str) -> MapTypeRow {
    MapTypeRow { offer: Offer::No(why), ..row(map_type, name, ANY, ANY, 0, &[]) }
}

impl MapTypeRow {
    const fn gives(self, lookup: Lookup) -> Self {
        Self { lookup, ..self }
    }

    const fn each_cpu(self) -> Self {
        Self { per_cpu: true, ..self }
    }

    const fn keys(self, keys: KeyForm) -> Self {
        Self { keys, ..self }
    }
}

use Lookup::{InnerMap, ReadOnlyValue, Value};
use MapType as T;

/// Every map type, in order of number.
pub const MAP_TYPES: &[MapTypeRow] = &[
    row(T::Hash, "hash", ANY, ANY, HASH, ELEMENTS).gives(Value),
    row(
        T::Array,
        "array",
        INDEX,
        ANY,
        F::MMAPABLE | F::INNER_MAP | F::ACCESS | F::NUMA_NODE,
        ELEMENTS,
    )
    .gives(Value),
    row(T::ProgArray, "prog_array", INDEX, INDEX, SIDES, &[id::TAIL_CALL]),
    row(
        T::PerfEventArray,
        "perf_event_array",
        INDEX,
        INDEX,
        SIDES | F::PRESERVE_ELEMS,
        &[
            id::PERF_EVENT_READ,
            id::PERF_EVENT_OUTPUT,
            id::PERF_EVENT_READ_VALUE,
            id::SKB_OUTPUT,
            id::XDP_OUTPUT,
        ],
    ),
    row(T::PercpuHash, "percpu_hash", ANY, PERCPU_VALUE, PERCPU_HASH, PERCPU_ELEMENTS)
        .gives(Value)
        .each_cpu(),
    row(T::PercpuArray, "percpu_array", INDEX, PERCPU_VALUE, F::ACCESS, PERCPU_ELEMENTS)
        .gives(Value)
        .each_cpu(),
    row(
        T::StackTrace,
        "stack_trace",
        INDEX,
        Size::Words(8, 127 * 8),
        SIDES | F::STACK_BUILD_ID,
        &[id::GET_STACKID],
    ),
    row(
        T::CgroupArray,
        "cgroup_array",
        INDEX,
        INDEX,
        SIDES,
        &[id::SKB_UNDER_CGROUP, id::CURRENT_TASK_UNDER_CGROUP],
    ),
    row(T::LruHash, "lru_hash", ANY, ANY, LRU | F::NUMA_NODE, ELEMENTS).gives(Value),
    row(T::LruPercpuHash, "lru_percpu_hash", ANY, PERCPU_VALUE, LRU, PERCPU_ELEMENTS)
        .gives(Value)
        .each_cpu(),
    row(
        T::LpmTrie,
        "lpm_trie",
        Size::Between(5, 260),
        ANY,
        F::NO_PREALLOC | F::ACCESS | F::NUMA_NODE,
        &[id::MAP_LOOKUP_ELEM, id::MAP_UPDATE_ELEM, id::MAP_DELETE_ELEM],
    )
    .gives(Value),
    row(T::ArrayOfMaps, "array_of_maps", INDEX, INDEX, SIDES, &[id::MAP_LOOKUP_ELEM])
        .gives(InnerMap),
    row(T::HashOfMaps, "hash_of_maps", ANY, INDEX, HASH, &[id::MAP_LOOKUP_ELEM]).gives(InnerMap),
    row(
        T::Devmap,
        "devmap",
        INDEX,
        Size::OneOf(&[4, 8]),
        SIDES,
        &[id::MAP_LOOKUP_ELEM, id::REDIRECT_MAP],
    )
    .gives(ReadOnlyValue),
    refused(T::Sockmap, "sockmap", "it holds kernel sockets"),
    row(T::Cpumap, "cpumap", INDEX, Size::OneOf(&[4, 8]), F::NUMA_NODE, &[id::REDIRECT_MAP]),
    row(T::Xskmap, "xskmap", INDEX, INDEX, SIDES, &[id::MAP_LOOKUP_ELEM, id::REDIRECT_MAP])
        .gives(ReadOnlyValue),
    refused(T::Sockhash, "sockhash", "it holds kernel sockets"),
    refused(T::CgroupStorage, "cgroup_storage", "it belongs to kernel control groups"),
    refused(T::ReuseportSockarray, "reuseport_sockarray", "it holds kernel sockets"),
    refused(T::PercpuCgroupStorage, "percpu_cgroup_storage", "it belongs to kernel control groups"),
    row(
        T::Queue,
        "queue",
        NONE,
        ANY,
        F::ACCESS | F::NUMA_NODE,
        &[id::MAP_PUSH_ELEM, id::MAP_POP_ELEM, id::MAP_PEEK_ELEM],
    ),
    row(
        T::Stack,
        "stack",
        NONE,
        ANY,
        F::ACCESS | F::NUMA_NODE,
        &[id::MAP_PUSH_ELEM, id::MAP_POP_ELEM, id::MAP_PEEK_ELEM],
    ),
    refused(T::SkStorage, "sk_storage", "it belongs to kernel sockets"),
    row(
        T::DevmapHash,
        "devmap_hash",
        INDEX,
        Size::OneOf(&[4, 8]),
        SIDES,
        &[id::MAP_LOOKUP_ELEM, id::REDIRECT_MAP],
    )
    .gives(ReadOnlyValue),
    refused(T::StructOps, "struct_ops", "it replaces functions of the kernel"),
    row(
        T::Ringbuf,
        "ringbuf",
        NONE,
        NONE,
        F::NUMA_NODE,
        &[id::RINGBUF_OUTPUT, id::RINGBUF_RESERVE, id::RINGBUF_QUERY, id::RINGBUF_RESERVE_DYNPTR],
    ),
    refused(T::InodeStorage, "inode_storage", "it belongs to kernel inodes"),
    refused(T::TaskStorage, "task_storage", "it belongs to kernel tasks"),
    row(
        T::BloomFilter,
        "bloom_filter",
        NONE,
        ANY,
        F::ZERO_SEED | F::ACCESS | F::NUMA_NODE,
        &[id::MAP_PUSH_ELEM, id::MAP_PEEK_ELEM],
    ),
    row(T::UserRingbuf, "user_ringbuf", NONE, NONE, F::NUMA_NODE, &[id::USER_RINGBUF_DRAIN]),
    refused(T::CgrpStorage, "cgrp_storage", "it belongs to kernel control groups"),
    refused(T::Arena, "arena", "it is memory at an address the kernel chooses"),
    row(
        T::QpTrie,
        "qp_trie",
        Size::Between(1, 256),
        ANY,
        F::NO_PREALLOC | F::ACCESS | F::NUMA_NODE | F::NO_LEAF_CACHE,
        ELEMENTS,
    )
    .gives(Value)
    .keys(KeyForm::Dynptr),
];
