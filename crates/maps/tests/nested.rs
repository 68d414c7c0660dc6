//! Maps of maps and other tables of ids: what they hold stays, and what they let go of is garbage.
//!
//! No test here forks: a child would keep its parent's locks.

mod support;

use skep_isa::MapType;
use skep_isa::map::update::{ANY, EXIST, NOEXIST};
use skep_maps::{Access, Map, MapDef, MapError, drop_references, remove_if_unused};
use support::Dir;

fn errno<T: std::fmt::Debug>(r: Result<T, MapError>) -> i32 {
    r.expect_err("refused").errno()
}

fn inner_def() -> MapDef {
    MapDef::new(MapType::Hash, 4, 8, 10)
}

fn outer_def(t: MapType) -> MapDef {
    MapDef::new(t, 4, 4, 4).inner(&inner_def())
}

const NESTED: [MapType; 2] = [MapType::ArrayOfMaps, MapType::HashOfMaps];

/// Looks an inner map up as a program does.
fn found(outer: &Map, key: u32) -> Option<&Map> {
    // SAFETY: keys have four bytes, and what is found is a map that lives as long as the outer one.
    unsafe { outer.prog_lookup(key.to_ne_bytes().as_ptr()).cast::<Map>().as_ref() }
}

#[test]
fn inner_maps_are_found_by_programs_and_must_be_alike() {
    for t in NESTED {
        let dir = Dir::new();
        let (outer, inner) = (dir.make(&outer_def(t)), dir.make(&inner_def()));
        let key = 1u32.to_ne_bytes();
        assert!(found(&outer, 1).is_none());
        outer.update(&key, &inner.id().to_ne_bytes(), ANY).expect("alike");
        assert_eq!(outer.lookup(&key).expect("there"), inner.id().to_ne_bytes());
        inner.update(&[7; 4], &[9; 8], ANY).expect("room");
        let seen = found(&outer, 1).expect("there");
        assert_eq!(
            (seen.id(), seen.lookup(&[7; 4]).expect("the same file")),
            (inner.id(), vec![9; 8])
        );
        assert_eq!(found(&outer, 0).map(Map::id), None);
        for (def, want) in [
            (MapDef::new(MapType::Hash, 4, 16, 10), 22),
            (MapDef::new(MapType::Array, 4, 8, 10), 22),
        ] {
            let other = dir.make(&def);
            assert_eq!(errno(outer.update(&key, &other.id().to_ne_bytes(), ANY)), want);
        }
        // A hash may have another size.
        let larger = dir.make(&MapDef::new(MapType::Hash, 4, 8, 20));
        outer.update(&key, &larger.id().to_ne_bytes(), ANY).expect("alike enough");
        assert_eq!(errno(outer.update(&key, &77u32.to_ne_bytes(), ANY)), 9, "no such map");
        outer.delete(&key).expect("there");
        assert_eq!(errno(outer.delete(&key)), 2);
        assert!(found(&outer, 1).is_none());
    }
    let dir = Dir::new();
    assert_eq!(
        errno(dir.create(&MapDef::new(MapType::ArrayOfMaps, 4, 4, 4))),
        9,
        "no inner definition"
    );
    assert_eq!(
        errno(dir.create(&outer_def(MapType::ArrayOfMaps).inner(&outer_def(MapType::HashOfMaps)))),
        22
    );
    let hash = dir.make(&outer_def(MapType::HashOfMaps));
    let inner = dir.make(&inner_def());
    assert_eq!(errno(hash.update(&[1; 4], &inner.id().to_ne_bytes(), EXIST)), 2);
    hash.update(&[1; 4], &inner.id().to_ne_bytes(), NOEXIST).expect("new");
    assert_eq!(errno(hash.update(&[1; 4], &inner.id().to_ne_bytes(), NOEXIST)), 17);
}

#[test]
fn an_inner_map_lives_as_long_as_it_is_in_an_outer_one() {
    for t in NESTED {
        let dir = Dir::new();
        let outer = dir.make(&outer_def(t));
        let inner = dir.make(&inner_def());
        let (path, id) = (inner.file().path().to_owned(), inner.id());
        for key in [1u32, 2] {
            outer.update(&key.to_ne_bytes(), &id.to_ne_bytes(), ANY).expect("alike");
        }
        drop(inner);
        let outer_path = outer.file().path().to_owned();
        // Nobody has either open, but for a pin of the outer one.
        drop(outer);
        std::fs::hard_link(&outer_path, dir.path().join("pin")).expect("same file system");
        assert!(!remove_if_unused(&path).expect("asks"));
        let outer = Map::open(&dir.path().join("pin"), Access::ReadWrite).expect("pinned");
        assert_eq!(found(&outer, 2).map(Map::id), Some(id), "opened with the outer one");
        outer.delete(&1u32.to_ne_bytes()).expect("there");
        drop(outer);
        assert!(!remove_if_unused(&path).expect("asks"), "still in there once");
        let outer = Map::open(&outer_path, Access::ReadWrite).expect("there");
        outer.delete(&2u32.to_ne_bytes()).expect("there");
        drop(outer);
        assert!(remove_if_unused(&path).expect("asks"));

        // When the outer map goes, so do its references.
        let (outer, inner) = (dir.make(&outer_def(t)), dir.make(&inner_def()));
        outer.update(&1u32.to_ne_bytes(), &inner.id().to_ne_bytes(), ANY).expect("alike");
        let (outer_path, path) = (outer.file().path().to_owned(), inner.file().path().to_owned());
        assert_eq!(drop_references(dir.path()).expect("reads"), 0);
        drop((outer, inner));
        assert!(
            remove_if_unused(&outer_path).expect("asks") && !remove_if_unused(&path).expect("asks")
        );
        assert_eq!(drop_references(dir.path()).expect("reads"), 1);
        assert!(remove_if_unused(&path).expect("asks"));
    }
}

/// An id that was mistyped was stored, and the tail call never found its program.
#[test]
fn an_array_refuses_programs_that_its_directory_does_not_have() {
    let dir = Dir::new();
    let map = dir.make(&MapDef::new(MapType::ProgArray, 4, 4, 3));
    for kind in ["progs", "links"] {
        std::fs::create_dir(dir.path().join(kind)).expect("a folder");
    }
    std::fs::write(dir.path().join("progs/5"), b"a program").expect("a file");
    let (key, five, six) = (1u32.to_ne_bytes(), 5u32.to_ne_bytes(), 6u32.to_ne_bytes());
    map.update(&key, &five, ANY).expect("it is there");
    let refused = map.update(&key, &six, ANY).expect_err("it is not there");
    assert_eq!(
        (refused.errno(), refused.to_string().as_str()),
        (9, "the map cannot hold `6`: there is no such program")
    );
    assert_eq!(map.lookup(&key).expect("there"), five);
    map.delete(&key).expect("it is there");
}

#[test]
fn programs_in_an_array_are_kept_when_they_have_files() {
    let dir = Dir::new();
    let map = dir.make(&MapDef::new(MapType::ProgArray, 4, 4, 3));
    std::fs::create_dir(dir.path().join("progs")).expect("a folder");
    let program = dir.path().join("progs/5");
    std::fs::write(&program, b"a program").expect("a file");
    map.update(&1u32.to_ne_bytes(), &5u32.to_ne_bytes(), ANY).expect("a row");
    map.update(&2u32.to_ne_bytes(), &6u32.to_ne_bytes(), ANY).expect("known to this process only");
    assert_eq!(map.lookup(&1u32.to_ne_bytes()).expect("there"), 5u32.to_ne_bytes());
    assert!(!remove_if_unused(&program).expect("asks"));
    map.update(&1u32.to_ne_bytes(), &6u32.to_ne_bytes(), ANY).expect("a row");
    assert!(remove_if_unused(&program).expect("asks"));
    let seen: Vec<_> = map.iter().map(|e| e.expect("walks")).collect();
    let six = 6u32.to_ne_bytes().to_vec();
    assert_eq!(
        seen,
        [(1u32.to_ne_bytes().to_vec(), six.clone()), (2u32.to_ne_bytes().to_vec(), six)]
    );
}
