//! What other processes and other users see of a map. Tests of locks on files are elsewhere: these
//! fork.

mod support;

use skep_isa::MapType;
use skep_isa::map::update::ANY;
use skep_maps::{Access, InnerMaps, Map, MapDef, MapError, set_inner_opener};
use support::{Dir, forked};

fn errno<T: std::fmt::Debug>(r: Result<T, MapError>) -> i32 {
    r.expect_err("refused").errno()
}

/// Looks an inner map up as a program does.
fn found(outer: &Map, key: u32) -> Option<&Map> {
    // SAFETY: keys have four bytes, and what is found is a map that lives as long as the outer one.
    unsafe { outer.prog_lookup(key.to_ne_bytes().as_ptr()).cast::<Map>().as_ref() }
}

unsafe extern "C" fn opener(maps: *const InnerMaps, id: u32) {
    // SAFETY: called by a lookup, with what it looked in.
    unsafe { (*maps).open(id) };
}

#[test]
fn what_another_process_stores_is_found_at_the_first_lookup() {
    for t in [MapType::ArrayOfMaps, MapType::HashOfMaps] {
        let dir = Dir::new();
        let inner = MapDef::new(MapType::Hash, 4, 8, 10);
        let outer = dir.make(&MapDef::new(t, 4, 4, 4).inner(&inner));
        let path = outer.file().path().to_owned();
        let inner = dir.make(&inner);
        let id = inner.id();
        assert_eq!(
            forked(|| {
                let outer = Map::open(&path, Access::ReadWrite).expect("opens");
                i32::from(outer.update(&3u32.to_ne_bytes(), &id.to_ne_bytes(), ANY).is_err())
            })
            .join(),
            0
        );
        // SAFETY: it is called by this test only, which keeps nothing in vector registers.
        unsafe { set_inner_opener(opener) };
        assert_eq!(found(&outer, 3).map(Map::id), Some(id));
        // An id that is none stays none, in whatever way it came there.
        assert!(found(&outer, 2).is_none());
    }
}

unsafe extern "C" {
    fn setuid(uid: u32) -> i32;
    fn geteuid() -> u32;
}

/// A map belongs to its user: another one is refused by the file system, whatever he asks for.
#[test]
fn another_user_is_not_permitted() {
    // SAFETY: asks only.
    if unsafe { geteuid() } != 0 {
        return skep_testkit::skip("root, to become another user");
    }
    let dir = Dir::new();
    let map = dir.make(&MapDef::new(MapType::Hash, 4, 12, 20));
    let path = map.file().path().to_owned();
    let child = forked(|| {
        // SAFETY: changes the child only.
        assert_eq!(unsafe { setuid(65534) }, 0);
        for access in [Access::ReadOnly, Access::ReadWrite] {
            assert_eq!(errno(Map::open(&path, access)), 13);
        }
        let mine = MapDef::new(MapType::Hash, 4, 4, 4);
        assert_eq!(errno(Map::create(path.parent().expect("a folder"), 99, &mine)), 13);
        0
    });
    assert_eq!(child.join(), 0);
    map.update(&[1; 4], &[1; 12], 0).expect("the map's own user");
}
