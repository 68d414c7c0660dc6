//! Changes of maps by a writer that stands, or was killed, at each of its instructions: others see
//! the map as it was before or as it is after, and go on.

mod support;

use skep_isa::map::update::{ANY, EXIST};
use skep_isa::{KeyShape, MapFlags, MapType};
use skep_maps::{Map, MapDef};
use skep_testkit::skip;
use support::qp_trie::{fixed, strings, uncached};
use support::{Dir, contents, each_state, restore, table};

const NEEDS: &str = "ptrace(2)";
const MAX: u32 = 8;

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Change {
    Insert,
    /// An insertion into a full map, which throws an element out.
    Evict,
    Overwrite,
    Delete,
    Push,
    PushOver,
    Pop,
}
use Change::{Delete, Evict, Insert, Overwrite, Pop, Push, PushOver};

const KEYED: &[Change] = &[Insert, Overwrite, Delete];
const LRU: &[Change] = &[Insert, Evict, Overwrite, Delete];
const QUEUED: &[Change] = &[Push, PushOver, Pop];

fn kinds() -> Vec<(MapDef, &'static [Change])> {
    use MapFlags as F;
    let def = |t, key_size, value_size| MapDef::new(t, key_size, value_size, MAX);
    vec![
        (def(MapType::Hash, 8, 8), KEYED),
        (def(MapType::Hash, 8, 40), KEYED),
        (def(MapType::Hash, 8, 40).flags(F::NO_PREALLOC), KEYED),
        (def(MapType::LruHash, 8, 40), LRU),
        (def(MapType::LruPercpuHash, 8, 24), LRU),
        (def(MapType::PercpuHash, 8, 24), KEYED),
        (def(MapType::LpmTrie, 8, 8).flags(F::NO_PREALLOC), KEYED),
        (def(MapType::LpmTrie, 8, 40).flags(F::NO_PREALLOC), KEYED),
        (strings(30, 8, MAX), KEYED),
        (strings(30, 40, MAX), KEYED),
        (uncached(strings(30, 40, MAX)), KEYED),
        (fixed(8, 8, MAX), KEYED),
        (uncached(fixed(8, 8, MAX)), KEYED),
        (def(MapType::Queue, 0, 40), QUEUED),
        (def(MapType::Stack, 0, 40), QUEUED),
    ]
}

/// Those of a trie have forks between them; byte strings begin as others do.
fn key(map: &Map, i: u32) -> Vec<u8> {
    match (map.def().map_type, map.key_shape()) {
        (MapType::LpmTrie, _) => [32u32.to_ne_bytes(), i.to_be_bytes()].concat(),
        (MapType::Queue | MapType::Stack, _) => vec![],
        (_, KeyShape::Bytes { .. }) if i < 8 => vec![b'k'; 1 + i as usize],
        (_, KeyShape::Bytes { .. }) => {
            [vec![b'k'; 1 + i as usize % 8], i.to_string().into_bytes()].concat()
        }
        _ => u64::from(i).to_ne_bytes().to_vec(),
    }
}

fn put(map: &Map, i: u32, value: u8, flags: u64) -> Result<(), skep_maps::MapError> {
    map.update(&key(map, i), &vec![value; map.user_value_size()], flags)
}

fn make(dir: &Dir, def: &MapDef, change: Change) -> Map {
    let map = dir.make(def);
    for i in 0..if matches!(change, PushOver | Evict) { MAX } else { MAX - 2 } {
        put(&map, i, i as u8 + 1, ANY).expect("room");
    }
    // The spare of a hash has been used, and the pool of its stripe has something.
    if !key(&map, 0).is_empty() && change != Evict {
        put(&map, 3, 77, ANY).expect("there");
        map.delete(&key(&map, 4)).expect("there");
    }
    map
}

fn make_change(map: &Map, change: Change) {
    match change {
        Insert | Evict => put(map, 100, 100, ANY).expect("room"),
        Overwrite => put(map, 3, 100, ANY).expect("there"),
        Delete => map.delete(&key(map, 3)).expect("there"),
        Push => put(map, 0, 100, ANY).expect("room"),
        PushOver => put(map, 0, 100, EXIST).expect("room is made"),
        Pop => {
            map.lookup_and_delete(&[], &mut vec![0; map.user_value_size()], 0).expect("not empty")
        }
    }
}

type Contents = Vec<(Vec<u8>, Vec<u8>)>;

/// All of a map, by a walk; single elements are found as the walk shows them, if nobody changes the
/// map.
fn looked_through(map: &Map) -> Contents {
    let walked = contents(map);
    for (key, value) in walked.iter().filter(|(key, _)| !key.is_empty()) {
        assert_eq!(map.lookup(key).as_ref().ok(), Some(value));
    }
    for missing in [3, 4, 100].map(|i| key(map, i)).iter().filter(|k| !k.is_empty()) {
        assert!(walked.iter().any(|(key, _)| key == missing) || map.lookup(missing).is_err());
    }
    walked
}

/// Takes all locks, and so has done what a dead writer left. In a qp-trie, whoever finds it full
/// does that.
fn take_all_locks(map: &Map) {
    for i in 1000..1064 {
        let key = key(map, i);
        assert!(key.is_empty() || map.delete(&key).is_err(), "never there");
    }
    if map.def().map_type == MapType::QpTrie {
        let new = (1000..).take_while(|i| put(map, *i, 1, ANY).is_ok()).count() as u32;
        (1000..1000 + new).for_each(|i| map.delete(&key(map, i)).expect("just put in"));
    }
}

/// Puts in as much as there is room for, beside what is there.
fn fill_up(map: &Map, mut there: Contents, what: &str) {
    let t = map.def().map_type;
    for i in 0..MAX - there.len() as u32 {
        put(map, 200 + i, 200, ANY)
            .unwrap_or_else(|e| panic!("{what}: beside {}: {e}", there.len()));
        there.push((key(map, 200 + i), vec![200; map.user_value_size()]));
    }
    there.sort();
    assert_eq!(looked_through(map), there);
    if !matches!(t, MapType::LruHash | MapType::LruPercpuHash) {
        put(map, 300, 200, ANY).expect_err("full");
    }
}

#[test]
fn a_change_is_made_or_not_at_each_instruction() {
    for (def, changes) in kinds() {
        for change in changes {
            let what = format!("{def:?}, {change:?}");
            let dir = Dir::new();
            table(&dir, 256);
            let map = make(&dir, &def, *change);
            let before = looked_through(&map);
            let after = {
                let twin = make(&dir, &def, *change);
                make_change(&twin, *change);
                looked_through(&twin)
            };
            // The oldest value goes first.
            let between: Contents = before.iter().filter(|e| after.contains(e)).cloned().collect();
            let kept = |c: &Contents| c.iter().filter(|e| before.contains(e)).count() as u32;
            let is_made = |c: &Contents| {
                // Which one is thrown out is another matter.
                let evicted = *change == Evict && c.len() == before.len() && kept(c) == MAX - 1;
                *c == after || evicted && c.iter().all(|e| before.contains(e) || after.contains(e))
            };
            let allowed = |c: &Contents| match change {
                PushOver if *c == between => true,
                Evict if c.len() as u32 == MAX - 1 && kept(c) == MAX - 1 => true,
                _ => *c == before || is_made(c),
            };
            let mut made = false;
            let prepare = |map: &Map| take_all_locks(map);
            let states = each_state(
                &map,
                prepare,
                |map| make_change(map, *change),
                |_| {
                    let seen = looked_through(&map);
                    assert!(allowed(&seen), "{what}: {seen:?}");
                    assert!(!made || is_made(&seen), "{what}: what was made stays");
                    made = is_made(&seen);
                },
            );
            let Some(states) = states else { return skip(NEEDS) };
            assert!(made && states.len() > 3, "{what}: {}", states.len());
            for (i, state) in states.iter().enumerate() {
                restore(&map, state);
                let mut left = looked_through(&map);
                assert!(allowed(&left), "{what}, state {i}: {left:?}");
                take_all_locks(&map);
                if def.map_type == MapType::QpTrie && !is_made(&left) {
                    // What a dead writer had written down is done by the next one.
                    left = looked_through(&map);
                    assert!(allowed(&left), "{what}, state {i}: {left:?}");
                }
                assert_eq!(looked_through(&map), left, "{what}, state {i}: what was seen stays");
                fill_up(&map, left, &format!("{what}, state {i}"));
            }
        }
    }
}
