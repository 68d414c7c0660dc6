//! Changes of maps by a writer that stands, or was killed, at each of its instructions: others see
//! the map as it was before or as it is after, and go on.

mod support;

use skep_isa::map::update::{ANY, EXIST};
use skep_isa::{MapFlags, MapType};
use skep_maps::{Map, MapDef};
use skep_testkit::skip;
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
const KINDS: [(MapType, u32, u32, &[Change]); 10] = [
    (MapType::Hash, 0, 8, KEYED),
    (MapType::Hash, 0, 40, KEYED),
    (MapType::Hash, MapFlags::NO_PREALLOC, 40, KEYED),
    (MapType::LruHash, 0, 40, &[Insert, Evict, Overwrite, Delete]),
    (MapType::LruPercpuHash, 0, 24, &[Insert, Evict, Overwrite, Delete]),
    (MapType::PercpuHash, 0, 24, KEYED),
    (MapType::LpmTrie, MapFlags::NO_PREALLOC, 8, KEYED),
    (MapType::LpmTrie, MapFlags::NO_PREALLOC, 40, KEYED),
    (MapType::Queue, 0, 40, &[Push, PushOver, Pop]),
    (MapType::Stack, 0, 40, &[Push, PushOver, Pop]),
];

/// Those of a trie have forks between them.
fn key(t: MapType, i: u32) -> Vec<u8> {
    match t {
        MapType::LpmTrie => [32u32.to_ne_bytes(), i.to_be_bytes()].concat(),
        MapType::Queue | MapType::Stack => vec![],
        _ => u64::from(i).to_ne_bytes().to_vec(),
    }
}

fn put(map: &Map, i: u32, value: u8, flags: u64) -> Result<(), skep_maps::MapError> {
    map.update(&key(map.def().map_type, i), &vec![value; map.user_value_size()], flags)
}

fn make(
    dir: &Dir,
    (t, flags, value_size, _): (MapType, u32, u32, &[Change]),
    change: Change,
) -> Map {
    let key_size = key(t, 0).len() as u32;
    let map = dir.make(&MapDef::new(t, key_size, value_size, MAX).flags(flags));
    for i in 0..if matches!(change, PushOver | Evict) { MAX } else { MAX - 2 } {
        put(&map, i, i as u8 + 1, ANY).expect("room");
    }
    // The spare of a hash has been used, and the pool of its stripe has something.
    if !key(t, 0).is_empty() && change != Evict {
        put(&map, 3, 77, ANY).expect("there");
        map.delete(&key(t, 4)).expect("there");
    }
    map
}

fn make_change(map: &Map, change: Change) {
    let t = map.def().map_type;
    match change {
        Insert | Evict => put(map, 100, 100, ANY).expect("room"),
        Overwrite => put(map, 3, 100, ANY).expect("there"),
        Delete => map.delete(&key(t, 3)).expect("there"),
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
    for missing in [3, 4, 100].map(|i| key(map.def().map_type, i)).iter().filter(|k| !k.is_empty())
    {
        assert!(walked.iter().any(|(key, _)| key == missing) || map.lookup(missing).is_err());
    }
    walked
}

/// Takes all locks, and so has done what a dead writer left.
fn take_all_locks(map: &Map) {
    let t = map.def().map_type;
    for i in 1000..1064 {
        assert!(key(t, i).is_empty() || map.delete(&key(t, i)).is_err(), "never there");
    }
}

/// Puts in as much as there is room for, beside what is there.
fn fill_up(map: &Map, mut there: Contents) {
    let t = map.def().map_type;
    for i in 0..MAX - there.len() as u32 {
        put(map, 200 + i, 200, ANY).unwrap_or_else(|e| panic!("{i} beside {}: {e}", there.len()));
        there.push((key(t, 200 + i), vec![200; map.user_value_size()]));
    }
    there.sort();
    assert_eq!(looked_through(map), there);
    if !matches!(t, MapType::LruHash | MapType::LruPercpuHash) {
        put(map, 300, 200, ANY).expect_err("full");
    }
}

#[test]
fn a_change_is_made_or_not_at_each_instruction() {
    for kind in KINDS {
        for change in kind.3 {
            let what = format!("{} of values of {}, {change:?}", kind.0, kind.2);
            let dir = Dir::new();
            table(&dir, 256);
            let map = make(&dir, kind, *change);
            let before = looked_through(&map);
            let after = {
                let twin = make(&dir, kind, *change);
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
                let left = looked_through(&map);
                assert!(allowed(&left), "{what}, state {i}: {left:?}");
                take_all_locks(&map);
                assert_eq!(looked_through(&map), left, "{what}, state {i}: what was seen stays");
                fill_up(&map, left);
            }
        }
    }
}
