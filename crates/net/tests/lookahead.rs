//! Keys are noted of maps that are far away, and of no others.

use skep_isa::helper::LOOK_AHEAD;
use skep_isa::{MapType, ProgramType};
use skep_maps::{Map, MapDef};
use skep_net::lookahead::{fetch, is_far};
use skep_testkit::TempDir;

/// Calls the helper as compiled code does.
fn look_ahead(map: &Map, key: &[u8]) -> u64 {
    let helper = skep_net::implementation(ProgramType::Xdp, LOOK_AHEAD).expect("it is there");
    let (map, key) = (std::ptr::from_ref(map) as u64, key.as_ptr() as u64);
    // SAFETY: a map and a key of it.
    unsafe { (helper.func)(map, key, 0, 0, 0) }
}

#[test]
fn keys_of_far_maps_are_noted_and_near_ones_looked_up() {
    let dir = TempDir::in_memory();
    let create = |id, map_type, key, entries| {
        let def = MapDef::new(map_type, key, 8, entries);
        Map::create(dir.path(), id, &def).expect("there is room")
    };
    let near = create(1, MapType::Hash, 4, 100);
    let far = create(2, MapType::Hash, 4, 100_000);
    let lru = create(3, MapType::LruHash, 12, 100_000);
    let array = create(4, MapType::Array, 4, 1_000_000);
    assert_eq!([&near, &far, &lru, &array].map(is_far), [false, true, true, false]);
    near.update(&[1; 4], &[5; 8], 0).expect("there is room");
    far.update(&[1; 4], &[6; 8], 0).expect("there is room");
    let value = look_ahead(&near, &[1; 4]);
    // SAFETY: the map's value, which is there.
    assert_eq!(unsafe { *(value as *const u64) }.to_ne_bytes(), [5; 8]);
    assert_eq!(look_ahead(&near, &[2; 4]), 0);
    assert!(look_ahead(&array, &[9, 0, 0, 0]) > 1);
    // SAFETY: the maps are there.
    assert_eq!(unsafe { fetch() }, 0, "nothing is far");
    assert_eq!([look_ahead(&far, &[1; 4]), look_ahead(&far, &[2; 4])], [1, 1], "there or not");
    assert_eq!(look_ahead(&lru, &[3; 12]), 1);
    // SAFETY: as above.
    assert_eq!(unsafe { (fetch(), fetch()) }, (4 + 4 + 12, 0));
    let many: Vec<_> = (5..11).map(|id| create(id, MapType::Hash, 4, 100_000)).collect();
    many.iter().for_each(|map| assert_eq!(look_ahead(map, &[1; 4]), 1));
    // SAFETY: as above.
    assert_eq!(unsafe { fetch() }, 4 * 4, "of four maps at a time");
}
