//! Object files: locks, names, and what happens to damaged ones.
//!
//! No test here forks: a child would keep its parent's locks.

mod support;

use skep_isa::MapType;
use skep_maps::{Access, Map, MapDef};
use support::Dir;

fn errno<T: std::fmt::Debug>(r: Result<T, skep_maps::MapError>) -> i32 {
    r.expect_err("refused").errno()
}

#[test]
fn a_file_is_garbage_when_nobody_has_it_open() {
    let dir = Dir::new();
    let map = dir.make(&MapDef::new(MapType::Array, 4, 4, 2));
    let path = map.file().path().to_owned();
    assert!(!skep_maps::remove_if_unused(&path).expect("asks"), "in use");
    let pin = dir.path().join("pin");
    std::fs::hard_link(&path, &pin).expect("same file system");
    drop(map);
    assert!(!skep_maps::remove_if_unused(&path).expect("asks"), "pinned");
    std::fs::remove_file(&pin).expect("unpins");
    assert!(skep_maps::remove_if_unused(&path).expect("asks"));
    assert!(!path.exists());
    assert_eq!(errno(Map::open(&path, Access::ReadWrite)), 2);
}
