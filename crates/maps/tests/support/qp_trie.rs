//! Tries of ordered keys: how tests make them, and reach them as a program does.

use std::collections::BTreeSet;

use skep_isa::map::DynptrUser;
use skep_isa::map::update::NOEXIST;
use skep_isa::{KeyShape, MapFlags, MapType};
use skep_maps::{Map, MapDef, MapError, ProgWalk, slots};

use super::Random;

/// Keys of 1 to `longest` bytes.
pub fn strings(longest: u32, value_size: u32, max_entries: u32) -> MapDef {
    MapDef::new(MapType::QpTrie, DynptrUser::SIZE, value_size, max_entries)
        .extra(longest.into())
        .flags(MapFlags::NO_PREALLOC)
}

/// Keys of one size.
pub fn fixed(key_size: u32, value_size: u32, max_entries: u32) -> MapDef {
    MapDef::new(MapType::QpTrie, key_size, value_size, max_entries).flags(MapFlags::NO_PREALLOC)
}

/// The same without the cache of leaves.
pub fn uncached(mut def: MapDef) -> MapDef {
    def.flags.0 |= MapFlags::NO_LEAF_CACHE;
    def
}

pub fn errno<T>(done: Result<T, MapError>) -> i32 {
    done.map_or_else(|e| e.errno(), |_| 0)
}

/// Runs `f` as a run of a program.
pub fn as_program<T>(f: impl FnOnce() -> T) -> T {
    let entered = slots::enter();
    assert!(!entered.is_refused(), "there is a slot");
    let done = f();
    slots::exit(entered);
    done
}

fn with_key<T>(map: &Map, key: &[u8], f: impl FnOnce(*const u8) -> T) -> T {
    let bytes = DynptrUser { data: key.as_ptr() as u64, size: key.len() as u32, reserved: 0 };
    match map.key_shape() {
        KeyShape::Bytes { .. } => f((&raw const bytes).cast()),
        KeyShape::Fixed(n) => {
            assert_eq!(key.len(), n as usize, "programs cannot pass others");
            f(key.as_ptr())
        }
    }
}

/// What a program finds. Nobody may remove it meanwhile.
pub fn prog_lookup(map: &Map, key: &[u8]) -> Option<Vec<u8>> {
    as_program(|| {
        // SAFETY: the key is as the map's programs pass it.
        let value = with_key(map, key, |key| unsafe { map.prog_lookup(key) });
        // SAFETY: a value of the map, which stays while this runs.
        (!value.is_null())
            .then(|| unsafe { std::slice::from_raw_parts(value, map.user_value_size()) }.to_vec())
    })
}

/// Stores as a program: 0, or the error number.
pub fn prog_update(map: &Map, key: &[u8], value: &[u8], flags: u64) -> i32 {
    assert_eq!(value.len(), map.user_value_size());
    as_program(|| {
        // SAFETY: key and value are as the map's programs pass them.
        with_key(map, key, |key| -unsafe { map.prog_update(key, value.as_ptr(), flags) } as i32)
    })
}

/// Removes as a program: 0, or the error number.
pub fn prog_delete(map: &Map, key: &[u8]) -> i32 {
    // SAFETY: the key is as the map's programs pass it.
    as_program(|| with_key(map, key, |key| -unsafe { map.prog_delete(key) } as i32))
}

/// All keys and values as `bpf_for_each_map_elem` gives them. Nobody may change the map meanwhile.
pub fn prog_walk(map: &Map) -> Vec<(Vec<u8>, Vec<u8>)> {
    let mut all = vec![];
    prog_for_each(map, |key, value| all.push((key.to_vec(), value.to_vec())));
    all
}

/// Calls `f` for each element, as `bpf_for_each_map_elem` its callback. It gets what was there when
/// the element was met, and may change the map by [`Callback`].
pub fn prog_for_each(map: &Map, mut f: impl FnMut(&[u8], &[u8])) {
    let mut walk = ProgWalk::default();
    as_program(|| {
        // SAFETY: in a run; keys and values are the map's, which nobody changes before they are
        // copied.
        while let Some((key, value)) = unsafe { map.prog_next(&mut walk) } {
            let (key, len) = match map.key_shape() {
                KeyShape::Fixed(n) => (key, n as usize),
                KeyShape::Bytes { .. } => {
                    // SAFETY: as above.
                    let key = unsafe { key.cast::<DynptrUser>().read_unaligned() };
                    (key.data as *const u8, key.size as usize)
                }
            };
            // SAFETY: as above.
            let bytes = |at, len| unsafe { std::slice::from_raw_parts(at, len) }.to_vec();
            let (key, value) = (bytes(key, len), bytes(value, map.user_value_size()));
            f(&key, &value);
        }
    });
}

/// What a callback does with the map, in the run that called it.
pub struct Callback<'m>(pub &'m Map);

impl Callback<'_> {
    /// Stores: 0, or the error number.
    pub fn update(&self, key: &[u8], value: &[u8], flags: u64) -> i32 {
        assert_eq!(value.len(), self.0.user_value_size());
        let (map, value) = (self.0, value.as_ptr());
        // SAFETY: key and value are as the map's programs pass them.
        with_key(map, key, |key| -unsafe { map.prog_update(key, value, flags) } as i32)
    }

    /// Removes: 0, or the error number.
    pub fn delete(&self, key: &[u8]) -> i32 {
        // SAFETY: the key is as the map's programs pass it.
        with_key(self.0, key, |key| -unsafe { self.0.prog_delete(key) } as i32)
    }
}

/// All keys by `next_key`, one after the other.
pub fn by_next_key(map: &Map) -> Vec<Vec<u8>> {
    let next = |key: Option<&[u8]>| match map.next_key(key) {
        Ok(key) => Some(key),
        Err(MapError::NoElement) => None,
        Err(e) => panic!("{e}"),
    };
    std::iter::successors(next(None), |key| next(Some(key))).collect()
}

/// Different keys of a map, in random order: of few symbols, so that they part late; zeros; keys
/// that others begin with; bytes of the longest and of the shortest key.
pub fn hostile_keys(shape: KeyShape, count: usize, seed: u64) -> Vec<Vec<u8>> {
    let mut random = Random(seed);
    let (mut all, mut in_order) = (BTreeSet::new(), Vec::<Vec<u8>>::new());
    let symbols = [0, 1, b'a', b'b', 0x80, 0xff];
    while in_order.len() < count {
        let len = match (shape, random.below(8)) {
            (KeyShape::Fixed(n), _) => n as u64,
            (KeyShape::Bytes { max }, 0) => max.into(),
            (KeyShape::Bytes { max }, 1..=4) => 1 + random.below(u64::from(max).min(12)),
            (KeyShape::Bytes { max }, _) => 1 + random.below(max.into()),
        } as usize;
        let mut key: Vec<u8> = (0..len)
            .map(|_| match random.below(16) {
                0 => random.next() as u8,
                _ => symbols[random.below(6) as usize],
            })
            .collect();
        // Half of them go on as another one does.
        if let Some(other) = in_order.get(random.below(2 * count as u64) as usize) {
            let same = random.below(other.len().min(len) as u64 + 1) as usize;
            key[..same].copy_from_slice(&other[..same]);
        }
        if all.insert(key.clone()) {
            in_order.push(key);
        }
    }
    in_order
}

/// A value whose every byte follows from a key and a number.
pub fn stamped(map: &Map, key: &[u8], n: u64) -> Vec<u8> {
    let hash = key
        .iter()
        .fold(n ^ 0xcbf2_9ce4_8422_2325, |h, b| (h ^ u64::from(*b)).wrapping_mul(0x100_0000_01b3));
    let mut random = Random(hash);
    // The number itself, where there is room.
    let words = std::iter::once(n).chain(std::iter::repeat_with(|| random.next()));
    words.flat_map(u64::to_le_bytes).take(map.user_value_size()).collect()
}

/// The number in such a value of at least eight bytes, if the value is whole.
pub fn stamp(map: &Map, key: &[u8], value: &[u8]) -> Option<u64> {
    let n = u64::from_le_bytes(*value.first_chunk()?);
    (stamped(map, key, n) == value).then_some(n)
}

/// What must be true of every trie that nobody changes: all ways to look at it show the same, in
/// order. Returns that.
pub fn looked_through(map: &Map) -> Vec<(Vec<u8>, Vec<u8>)> {
    let walked: Vec<_> = map.iter().map(|e| e.expect("whole")).collect();
    assert!(walked.windows(2).all(|pair| pair[0].0 < pair[1].0), "in order, and once");
    for (key, value) in &walked {
        assert_eq!(map.lookup(key).as_ref().ok(), Some(value), "{key:x?}");
        assert_eq!(prog_lookup(map, key).as_ref(), Some(value), "{key:x?}");
    }
    let (mut walk, mut backward) = (map.walk().reversed(), vec![]);
    let mut rows = vec![0; 7 * walk.element_size()];
    loop {
        let n = walk.rows(&mut rows).expect("whole");
        if n == 0 {
            break;
        }
        backward.extend(walk.elements(&rows, n).map(|(k, v)| (k.to_vec(), v.to_vec())));
    }
    backward.reverse();
    assert_eq!(backward, walked, "backward");
    assert_eq!(prog_walk(map), walked, "as a program");
    assert!(by_next_key(map).iter().eq(walked.iter().map(|(key, _)| key)), "by next_key");
    walked
}

/// Fills a map to exactly its limit with keys that begin with four bytes of 0xfe, and removes them
/// again.
pub fn fill_to_the_limit(map: &Map, there: usize) {
    let max = map.def().max_entries as usize;
    let len = match map.key_shape() {
        KeyShape::Fixed(n) => n as usize,
        KeyShape::Bytes { max } => max.min(9) as usize,
    };
    let key = |i: usize| {
        let mut key = vec![0xfe; len];
        key[4..8].copy_from_slice(&(i as u32).to_le_bytes());
        key
    };
    let value = vec![3; map.user_value_size()];
    for i in there..max {
        map.update(&key(i), &value, 1).unwrap_or_else(|e| panic!("{i} of {max}: {e}"));
    }
    assert_eq!(errno(map.update(&key(max), &value, 0)), 28, "full");
    assert_eq!(map.iter().count(), max);
    for i in there..max {
        map.delete(&key(i)).expect("just put in");
    }
}

/// What a dead writer had written down is done by the next one who meets a lock of his; who finds
/// the trie full meets all.
pub fn settle(map: &Map) {
    let len = map.key_shape().max_len().min(8);
    let key = |i: u32| [&i.to_le_bytes(), &[0xfd; 4][..]].concat()[8 - len..].to_vec();
    let value = vec![3; map.user_value_size()];
    let new = (0..).take_while(|i| map.update(&key(*i), &value, NOEXIST).is_ok()).count();
    assert_eq!(errno(map.update(&key(new as u32), &value, NOEXIST)), 28);
    (0..new as u32).for_each(|i| map.delete(&key(i)).expect("just put in"));
}
