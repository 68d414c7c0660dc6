//! Every operation of every map type beside the kernel's: the same definitions, keys and flags must
//! give the same errno, and where the answer is not a matter of chance, the same bytes.

mod support;

use skep_isa::map::Offer;
use skep_isa::{MAP_TYPES, MapFlags as F, MapType, ProgramType};
use skep_kernel::{Command, Map as Theirs, MapSpec, Program, ProgramSpec, possible_cpus};
use skep_maps::{Map, MapDef, MapError, map_types};
use skep_testkit::skip::without_bpf;
use support::{Dir, Random, rounds};

fn errno<T>(r: Result<T, skep_kernel::Error>) -> i32 {
    r.map_or_else(|e| e.errno(), |_| 0)
}

/// The same map in the kernel, as far as the definition's name goes: it has none.
fn create(def: &MapDef, inner: Option<&Theirs>) -> Result<Theirs, i32> {
    let spec = MapSpec {
        flags: def.flags,
        map_extra: def.map_extra,
        inner,
        ..MapSpec::new(def.map_type, def.key_size, def.value_size, def.max_entries)
    };
    Theirs::create(&spec).map_err(|e| e.errno())
}

fn ours<T>(r: &Result<T, MapError>) -> i32 {
    r.as_ref().map_or_else(MapError::errno, |_| 0)
}

/// What creation answers on both sides.
fn both(dir: &Dir, def: &MapDef) -> (i32, i32) {
    (ours(&dir.create(def)), create(def, None).map_or_else(|e| e, |_| 0))
}

/// The types that both have: the kernel was never given a qp-trie.
fn both_have() -> Vec<MapType> {
    map_types().into_iter().filter(|t| *t != MapType::QpTrie).collect()
}

fn nested(t: MapType) -> bool {
    matches!(t, MapType::ArrayOfMaps | MapType::HashOfMaps)
}

/// What no file says by its length has a bound too: who reads an element makes room for it.
#[test]
fn values_that_are_not_in_the_file_have_the_kernels_bound() {
    let dir = Dir::new();
    let sizes = [4 << 20, (4 << 20) + 1, u32::MAX];
    let made = sizes.map(|size| ours(&dir.create(&MapDef::new(MapType::BloomFilter, 0, size, 3))));
    assert_eq!(made, [0, 7, 7]);
    if without_bpf() {
        return;
    }
    for (key, size, entries) in sizes.into_iter().flat_map(|s| [(0, s, 3), (4, s, 3), (0, s, 0)]) {
        let (ours, theirs) = both(&dir, &MapDef::new(MapType::BloomFilter, key, size, entries));
        assert_eq!(ours, theirs, "key {key}, value {size}, {entries} entries");
    }
}

#[test]
fn definitions_are_accepted_and_refused_as_by_the_kernel() {
    if without_bpf() {
        return;
    }
    let dir = Dir::new();
    let mut differ = Vec::new();
    for t in both_have().into_iter().filter(|t| !nested(*t)) {
        for key in [0, 4, 5, 260, 261] {
            for value in [0, 4, 7, 8, 127 * 8, 128 * 8, (32 << 10) + 8] {
                // How many processors a cpumap may have is a matter of the kernel's configuration.
                for entries in [0, 3, if t == MapType::Cpumap { 2 } else { 4096 }] {
                    for flags in [0, F::NO_PREALLOC] {
                        let def = MapDef::new(t, key, value, entries).flags(flags);
                        let (ours, theirs) = both(&dir, &def);
                        if ours != theirs {
                            differ.push(format!("{t} key {key} value {value} entries {entries} flags {flags:#x}: {ours}, kernel {theirs}"));
                        }
                    }
                }
            }
        }
    }
    assert!(differ.is_empty(), "{}:\n{}", differ.len(), differ[..differ.len().min(60)].join("\n"));
}

/// A good definition of a type.
fn good(t: MapType) -> MapDef {
    let row = t.row();
    let key = [4, 0, 8].into_iter().find(|k| row.key.allows(*k)).expect("one of them fits");
    let value = [16, 8, 4, 0].into_iter().find(|v| row.value.allows(*v)).expect("one of them fits");
    let entries = if matches!(t, MapType::Ringbuf | MapType::UserRingbuf) { 4096 } else { 4 };
    let (key, flags) = if t == MapType::LpmTrie { (8, F::NO_PREALLOC) } else { (key, 0) };
    let value = if matches!(t, MapType::Devmap | MapType::DevmapHash | MapType::Cpumap) {
        4
    } else {
        value
    };
    MapDef::new(t, key, value, entries).flags(flags)
}

#[test]
fn flags_and_extremes_are_judged_as_by_the_kernel() {
    if without_bpf() {
        return;
    }
    let dir = Dir::new();
    let mut differ = Vec::new();
    for t in both_have().into_iter().filter(|t| !nested(*t)) {
        let mut defs = Vec::new();
        for bit in 0..16 {
            // Build ids need the kernel's view of files.
            if 1 << bit == F::STACK_BUILD_ID && t == MapType::StackTrace {
                continue;
            }
            let mut def = good(t);
            def.flags.0 |= 1 << bit;
            defs.push(def);
        }
        for pair in [
            F::RDONLY | F::WRONLY,
            F::RDONLY_PROG | F::WRONLY_PROG,
            F::RDONLY | F::WRONLY_PROG,
            F::NO_PREALLOC | F::NO_COMMON_LRU,
        ] {
            let mut def = good(t);
            def.flags.0 |= pair;
            defs.push(def);
        }
        for extra in [1, 15, 16, 1 << 40] {
            defs.push(good(t).extra(extra));
        }
        for name in ["a.b_C9", "a b", "x-y"] {
            defs.push(good(t).named(name));
        }
        for def in defs {
            let mut attr_def = def.clone();
            attr_def.name.clear();
            let theirs = if def.name.is_empty() {
                create(&attr_def, None).map_or_else(|e| e, |_| 0)
            } else {
                i32::from(def.name != "a.b_C9") * 22
            };
            let ours = ours(&dir.create(&def));
            if ours != theirs {
                differ.push(format!(
                    "{t} flags {:#x} extra {:#x} name {:?}: {ours}, kernel {theirs}",
                    def.flags.0, def.map_extra, def.name
                ));
            }
        }
    }
    // Too many entries.
    for t in [MapType::Hash, MapType::Array, MapType::PercpuHash, MapType::LruHash] {
        let mut def = good(t);
        def.max_entries = u32::MAX;
        let (ours, theirs) = both(&dir, &def);
        if ours != theirs {
            differ.push(format!("{t} of 2^32-1: {ours}, kernel {theirs}"));
        }
    }
    assert!(differ.is_empty(), "{}:\n{}", differ.len(), differ[..differ.len().min(60)].join("\n"));
}

/// Both maps, and what may be stored in them: pairs of our value and the kernel's.
struct Pair {
    def: MapDef,
    ours: Map,
    theirs: Theirs,
    values: Vec<(Vec<u8>, Vec<u8>)>,
    /// Values are the same bytes on both sides.
    plain: bool,
    _keep: (Vec<Map>, Vec<Theirs>, Option<Program>),
}

fn pair(dir: &Dir, t: MapType) -> Pair {
    let mut def = if nested(t) { MapDef::new(t, 4, 4, 4) } else { good(t) };
    let (mut keep_ours, mut keep_theirs, mut keep_program) = (Vec::new(), Vec::new(), None);
    let mut values = Vec::new();
    let mut plain = false;
    let inner = MapDef::new(MapType::Array, 4, 8, 2);
    if nested(t) {
        def = def.inner(&inner);
        for def in [
            inner.clone(),
            inner.clone(),
            MapDef::new(MapType::Array, 4, 16, 2),
            MapDef::new(MapType::Hash, 4, 8, 2),
        ] {
            let (a, b) = (dir.make(&def), create(&def, None).expect("a good definition"));
            values.push((a.id().to_ne_bytes().to_vec(), b.fd().to_ne_bytes().to_vec()));
            keep_ours.push(a);
            keep_theirs.push(b);
        }
        values.push((vec![0xff, 0xff, 0xff, 0x7f], vec![0xff, 0xff, 0xff, 0x7f]));
    } else if t == MapType::ProgArray {
        let exit = [[0xb7, 0, 0, 0, 0, 0, 0, 0], [0x95, 0, 0, 0, 0, 0, 0, 0]];
        let program =
            Program::load(&ProgramSpec::new(ProgramType::SocketFilter, exit.as_flattened()))
                .expect("a good program");
        values.push((7u32.to_ne_bytes().to_vec(), program.fd().to_ne_bytes().to_vec()));
        values.push((8u32.to_ne_bytes().to_vec(), program.fd().to_ne_bytes().to_vec()));
        keep_program = Some(program);
    }
    let ours = dir.make(&def);
    let theirs = create(&def, keep_theirs.first()).expect("a good definition");
    if values.is_empty() {
        plain = true;
        let size = ours.user_value_size();
        let stride = (def.value_size as usize).next_multiple_of(8).max(1);
        for fill in [1u8, 2, 3] {
            let mut v = vec![0; size];
            if t.row().per_cpu {
                for part in v.chunks_mut(stride) {
                    part[..def.value_size as usize].fill(fill);
                }
            } else if matches!(t, MapType::Devmap | MapType::DevmapHash | MapType::Cpumap) {
                // The loopback interface, or a queue of one; or none.
                v[0] = fill & 1;
            } else {
                v.fill(fill);
            }
            values.push((v.clone(), v));
        }
    }
    Pair { def, ours, theirs, values, plain, _keep: (keep_ours, keep_theirs, keep_program) }
}

fn keys(def: &MapDef) -> Vec<Vec<u8>> {
    match (def.map_type, def.key_size) {
        (MapType::LpmTrie, _) => {
            let key = |len: u32, a: [u8; 4]| [len.to_ne_bytes(), a].concat();
            [
                (0, [0, 0, 0, 0]),
                (8, [10, 0, 0, 0]),
                (8, [11, 9, 9, 9]),
                (16, [10, 1, 0, 0]),
                (24, [10, 1, 2, 0]),
                (32, [10, 1, 2, 3]),
                (32, [9, 0, 0, 1]),
            ]
            .into_iter()
            .chain([(33, [10, 1, 2, 3]), (u32::MAX, [0; 4])])
            .map(|(len, a)| key(len, a))
            .collect()
        }
        (_, 0) => vec![vec![]],
        _ => [0u32, 1, 2, 3, 4, 5, 100, u32::MAX]
            .into_iter()
            .map(|k| k.to_ne_bytes().to_vec())
            .collect(),
    }
}

/// Types of which every answer is exact; others may only be compared by their errno, and some not
/// when they are full.
fn exact_order(t: MapType) -> bool {
    matches!(
        t,
        MapType::Array
            | MapType::PercpuArray
            | MapType::ProgArray
            | MapType::LpmTrie
            | MapType::Devmap
            | MapType::Cpumap
            | MapType::ArrayOfMaps
            | MapType::Xskmap
    )
}

#[test]
fn operations_answer_as_the_kernels() {
    if without_bpf() {
        return;
    }
    let mut differ = Vec::new();
    for t in both_have() {
        // Sockets, events and control groups are the kernel's own; see the next test.
        if matches!(t, MapType::Xskmap | MapType::PerfEventArray | MapType::CgroupArray) {
            continue;
        }
        let mut random = Random(
            t as u64 + std::env::var("SKEP_SEED").ok().and_then(|s| s.parse().ok()).unwrap_or(0),
        );
        for round in 0..rounds(4, 100) {
            let dir = Dir::new();
            let p = pair(&dir, t);
            assert!(
                !t.row().per_cpu
                    || p.ours.user_value_size()
                        == (p.def.value_size as usize).next_multiple_of(8)
                            * possible_cpus().unwrap()
            );
            // An LRU map of the kernel throws elements out before it is full; two keys are safe.
            let mut keys = keys(&p.def);
            if matches!(t, MapType::LruHash | MapType::LruPercpuHash) {
                keys.truncate(2);
            }
            let mut said = 0;
            for step in 0..400 {
                let key = &keys[random.below(keys.len() as u64) as usize];
                let flags = [0, 0, 0, 1, 2, 3, 4, 8, 1 << 40][random.below(9) as usize];
                let op = random.below(16);
                let size = p.ours.user_value_size();
                let (a, b, what) = match op {
                    0..=4 => {
                        let (our, their) = &p.values[random.below(p.values.len() as u64) as usize];
                        let a = ours(&p.ours.update(key, our, flags));
                        (
                            a,
                            errno(p.theirs.update(key, their, flags)),
                            format!("update {key:?} {our:?} flags {flags:#x}"),
                        )
                    }
                    5..=7 => (
                        ours(&p.ours.delete(key)),
                        errno(p.theirs.element(Command::MapDeleteElem, Some(key), &mut [], 0)),
                        format!("delete {key:?}"),
                    ),
                    8..=11 => {
                        let flags = if op == 8 { flags } else { 0 };
                        // Bloom filters are asked for the value.
                        let start = p.values.first().map_or(vec![0; size], |v| v.0.clone());
                        let (mut x, mut y) = (start.clone(), start);
                        let a = ours(&p.ours.lookup_into(key, &mut x, flags));
                        let b = errno(p.theirs.element(
                            Command::MapLookupElem,
                            Some(key),
                            &mut y,
                            flags,
                        ));
                        if a == 0 && b == 0 && p.plain && x != y {
                            differ.push(format!("{t} round {round} step {step}: lookup {key:?} gives {x:?}, kernel {y:?}"));
                        }
                        (a, b, format!("lookup {key:?} flags {flags:#x}"))
                    }
                    12..=13 => {
                        let flags = if op == 12 { flags } else { 0 };
                        let (mut x, mut y) = (vec![0; size], vec![0; size]);
                        let a = ours(&p.ours.lookup_and_delete(key, &mut x, flags));
                        let b = errno(p.theirs.element(
                            Command::MapLookupAndDeleteElem,
                            Some(key),
                            &mut y,
                            flags,
                        ));
                        if a == 0 && b == 0 && p.plain && x != y {
                            differ.push(format!("{t} round {round} step {step}: lookup and delete {key:?} gives {x:?}, kernel {y:?}"));
                        }
                        (a, b, format!("lookup and delete {key:?} flags {flags:#x}"))
                    }
                    _ => {
                        let none = key.is_empty() || op == 14;
                        let mut y = vec![0; p.def.key_size as usize];
                        let x = p.ours.next_key(if none { None } else { Some(key) });
                        let b = errno(p.theirs.element(
                            Command::MapGetNextKey,
                            if none { None } else { Some(key) },
                            &mut y,
                            0,
                        ));
                        if exact_order(t) && x.as_ref().is_ok_and(|x| b == 0 && *x != y) {
                            differ
                                .push(format!("{t} round {round} step {step}: next key of {key:?} (none: {none}) is {x:?}, kernel {y:?}"));
                        }
                        (ours(&x), b, format!("next key of {key:?}, none: {none}"))
                    }
                };
                // After the last key of a hash depends on the order; a hash says so by its errno.
                let by_chance = !exact_order(t)
                    && what.starts_with("next key")
                    && [a, b].iter().all(|e| [0, 2].contains(e));
                if a != b && !by_chance {
                    differ.push(format!("{t} round {round} step {step}: {what}: {a}, kernel {b}"));
                    said += 1;
                    if said > 3 {
                        break;
                    }
                }
            }
            // Freezing, twice, and writing after it.
            let freeze = || errno(p.theirs.freeze());
            let (a, b) = ((ours(&p.ours.freeze()), ours(&p.ours.freeze())), (freeze(), freeze()));
            if a != b {
                differ.push(format!("{t}: freeze {a:?}, kernel {b:?}"));
            }
            let (our, their) = &p.values[0];
            let (a, b) = (
                ours(&p.ours.update(&keys[0], our, 0)),
                errno(p.theirs.update(&keys[0], their, 0)),
            );
            let (c, d) = (
                ours(&p.ours.delete(&keys[0])),
                errno(p.theirs.element(Command::MapDeleteElem, Some(&keys[0]), &mut [], 0)),
            );
            if (a, c) != (b, d) {
                differ.push(format!(
                    "{t}: frozen: update and delete {:?}, kernel {:?}",
                    (a, c),
                    (b, d)
                ));
            }
        }
    }
    assert!(differ.is_empty(), "{}:\n{}", differ.len(), differ[..differ.len().min(60)].join("\n"));
}

/// Tables of what only the kernel has: the rows cannot be filled alike, the refusals can be
/// compared.
#[test]
fn tables_of_kernel_objects_refuse_alike() {
    if without_bpf() {
        return;
    }
    let dir = Dir::new();
    let mut differ = Vec::new();
    for t in [MapType::Xskmap, MapType::PerfEventArray, MapType::CgroupArray] {
        let def = good(t);
        let (map, theirs) = (dir.make(&def), create(&def, None).expect("a good definition"));
        for key in keys(&def) {
            let mut v = vec![0; 4];
            let answers = [
                (
                    "lookup",
                    ours(&map.lookup(&key)),
                    errno(theirs.element(Command::MapLookupElem, Some(&key), &mut v, 0)),
                ),
                (
                    "delete",
                    ours(&map.delete(&key)),
                    errno(theirs.element(Command::MapDeleteElem, Some(&key), &mut [], 0)),
                ),
                (
                    "take",
                    ours(&map.lookup_and_delete(&key, &mut [0; 4], 0)),
                    errno(theirs.element(Command::MapLookupAndDeleteElem, Some(&key), &mut v, 0)),
                ),
                (
                    "next",
                    ours(&map.next_key(Some(&key))),
                    errno(theirs.element(Command::MapGetNextKey, Some(&key), &mut v, 0)),
                ),
                (
                    "flags",
                    ours(&map.update(&key, &[9, 0, 0, 0], 8)),
                    errno(theirs.update(&key, &[9, 0, 0, 0], 8)),
                ),
            ];
            for (what, a, b) in answers {
                if a != b {
                    differ.push(format!("{t} {what} {key:?}: {a}, kernel {b}"));
                }
            }
        }
    }
    assert!(differ.is_empty(), "{}", differ.join("\n"));
}

/// What a map's own flags forbid to users is forbidden.
#[test]
fn one_way_maps_are_one_way() {
    if without_bpf() {
        return;
    }
    let dir = Dir::new();
    for t in both_have().into_iter().filter(|t| t.row().flags & F::RDONLY != 0 && !nested(*t)) {
        for flag in [F::RDONLY, F::WRONLY] {
            let mut def = good(t);
            def.flags.0 |= flag;
            let (map, theirs) = (dir.make(&def), create(&def, None).expect("a good definition"));
            let key = keys(&def).remove(0);
            let size = map.user_value_size();
            let mut v = vec![0; size];
            let a = [
                ours(&map.lookup(&key)),
                ours(&map.delete(&key)),
                ours(&map.next_key(Some(&key).filter(|k| !k.is_empty()).map(Vec::as_slice))),
                ours(&map.lookup_and_delete(&key, &mut vec![0; size], 0)),
            ];
            let b = [
                errno(theirs.element(Command::MapLookupElem, Some(&key), &mut v, 0)),
                errno(theirs.element(Command::MapDeleteElem, Some(&key), &mut [], 0)),
                errno(theirs.element(Command::MapGetNextKey, Some(&key), &mut v, 0)),
                errno(theirs.element(Command::MapLookupAndDeleteElem, Some(&key), &mut v, 0)),
            ];
            assert_eq!(a, b, "{t} flag {flag:#x}");
        }
    }
}

#[test]
fn every_type_offered_is_made() {
    let offered: Vec<_> =
        MAP_TYPES.iter().filter(|r| r.offer == Offer::Yes).map(|r| r.map_type).collect();
    assert_eq!(map_types(), offered);
}
