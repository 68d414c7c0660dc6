//! Maps that objects want pinned by name are those that are pinned, whoever made them.

use std::sync::Barrier;

use skep::dir::Kind;
use skep::isa::MapType;
use skep::link::{Link, describe};
use skep::load::Loader;
use skep::maps::MapDef;
use skep::{Object, Session};
use skep_testkit::TempDir;

/// Its map `hits` has `pinning`: eight values of 8 bytes for each CPU; the others have not.
const OBJECT: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../object/tests/data/several.bpf.o");

type Result<T = (), E = Box<dyn std::error::Error>> = std::result::Result<T, E>;

fn ids(object: &Object) -> Result<(u32, u32)> {
    Ok((object.map("hits")?.id(), object.map("seen")?.id()))
}

fn load(session: &Session) -> Result<Object> {
    Ok(session.loader().autoload("on_malloc", true).load(OBJECT)?)
}

#[test]
fn a_pinned_map_is_taken_with_its_contents_until_it_is_unpinned() -> Result {
    let dir = TempDir::in_memory();
    let session = Session::open_in(dir.path())?;
    let first = load(&session)?;
    let second = load(&session)?;
    let (hits, seen) = ids(&first)?;
    assert_eq!(ids(&second)?.0, hits);
    assert_ne!(ids(&second)?.1, seen);
    assert_eq!(session.find_map("hits")?.id(), hits);
    let values = first.map("hits")?.lookup(&3_u32.to_ne_bytes())?.len();
    let value: Vec<u8> = (0..values).map(|n| n as u8).collect();
    first.map("hits")?.update(&3_u32.to_ne_bytes(), &value, 0)?;
    assert_eq!(second.map("hits")?.lookup(&3_u32.to_ne_bytes())?, value);

    // It stays when nobody uses it, and others go.
    drop((first, second));
    session.dir().collect()?;
    assert!(session.open_map(seen).is_err());
    let third = load(&session)?;
    assert_eq!(ids(&third)?.0, hits);
    assert_eq!(third.map("hits")?.lookup(&3_u32.to_ne_bytes())?, value);

    session.unpin_map("hits")?;
    let fourth = load(&session)?;
    assert_ne!(ids(&fourth)?.0, hits);
    assert_eq!(fourth.map("hits")?.lookup(&3_u32.to_ne_bytes())?, vec![0; values]);
    // The one that was pinned before is still the others'.
    assert_eq!(third.map("hits")?.lookup(&3_u32.to_ne_bytes())?, value);

    // In a directory of its own nobody finds it.
    let scratch = Session::scratch()?;
    assert_eq!(load(&scratch)?.map("hits")?.lookup(&3_u32.to_ne_bytes())?, vec![0; values]);
    Ok(())
}

#[test]
fn a_pinned_map_that_does_not_fit_is_refused_and_stays() -> Result {
    let dir = TempDir::in_memory();
    let session = Session::open_in(dir.path())?;
    let fitting = MapDef::new(MapType::PercpuArray, 4, 8, 8).named("hits");
    let others = [
        (MapDef { map_type: MapType::Array, ..fitting.clone() }, "it is of another type"),
        (
            MapDef { max_entries: 9, ..fitting.clone() },
            "its keys, values or number of entries are of another size",
        ),
    ];
    for (other, why) in others {
        let map = session.create_map(&other)?;
        session.pin_map(&map, "hits")?;
        let error = load(&session).err().map(|e| e.to_string());
        let wanted =
            format!("map `hits` cannot be map {}, which is pinned under its name: {why}", map.id());
        assert_eq!(error, Some(wanted));
        let pin = session.dir().path().join("pins/hits");
        assert_eq!(session.open_map_at(pin)?.id(), map.id());
        session.unpin_map("hits")?;
    }
    // Made by hand, and as the object wants it.
    let map = session.create_map(&fitting)?;
    session.pin_map(&map, "hits")?;
    assert_eq!(ids(&load(&session)?)?.0, map.id());
    session.unpin_map("hits")?;

    // What is no map.
    std::fs::write(session.dir().path().join("pins/hits"), b"")?;
    assert!(load(&session).is_err_and(|e| e.to_string().contains("`hits`")));
    Ok(())
}

#[test]
fn of_an_object_that_cannot_be_loaded_no_pin_stays() -> Result {
    let dir = TempDir::in_memory();
    let session = Session::open_in(dir.path())?;
    // Programs cannot be written, which shows when the maps are there.
    let programs = session.dir().path().join("progs");
    std::fs::rename(&programs, programs.with_extension("away"))?;
    std::fs::write(&programs, b"")?;
    assert!(load(&session).is_err());
    assert!(!std::fs::exists(session.dir().path().join("pins/hits"))?);

    // One that was there before stays.
    let map = session.create_map(&MapDef::new(MapType::PercpuArray, 4, 8, 8).named("hits"))?;
    session.pin_map(&map, "hits")?;
    assert!(load(&session).is_err());
    assert_eq!(session.open_map_at(session.dir().path().join("pins/hits"))?.id(), map.id());
    std::fs::remove_file(&programs)?;
    std::fs::rename(programs.with_extension("away"), &programs)?;
    assert_eq!(ids(&load(&session)?)?.0, map.id());
    Ok(())
}

#[test]
fn those_who_load_at_once_have_one_map() -> Result {
    const LOADERS: usize = 6;
    let dir = TempDir::in_memory();
    for _ in 0..8 {
        let start = Barrier::new(LOADERS);
        let one = || -> std::result::Result<u32, String> {
            let load = || -> Result<u32> {
                let session = Session::open_in(dir.path())?;
                start.wait();
                Ok(ids(&load(&session)?)?.0)
            };
            load().map_err(|e| e.to_string())
        };
        let found: Vec<_> = std::thread::scope(|scope| {
            let all: Vec<_> = (0..LOADERS).map(|_| scope.spawn(one)).collect();
            all.into_iter().map(|thread| thread.join().expect("no panic")).collect()
        });
        let session = Session::open_in(dir.path())?;
        // There is no other one left, either.
        let pinned = session.find_map("hits")?.id();
        assert_eq!(found, vec![Ok(pinned); LOADERS]);
        session.unpin_map("hits")?;
        session.dir().collect()?;
    }
    Ok(())
}

/// Between loading and pinning, another `skep` took maps that only the program of a link used for garbage.
#[test]
fn a_link_keeps_the_maps_of_its_programs() -> Result {
    let session = Session::scratch()?;
    let dir = session.dir();
    let file = skep::object::Object::parse(&std::fs::read(OBJECT)?)?;
    let loaded = Loader::new(dir).autoload_only("on_malloc").load(&file)?;
    let patterns = ["malloc".to_owned()];
    let program = loaded.programs().first().ok_or("it has programs")?;
    let maps = program.program().maps().to_vec();
    assert!(!maps.is_empty());
    let link = Link::create(dir, describe(program, &patterns)?, None)?;
    drop(loaded);
    dir.collect()?;
    let gone = || maps.iter().filter(|id| !dir.object(Kind::Map, **id).exists()).count();
    assert_eq!(gone(), 0);
    drop(link);
    dir.collect()?;
    // One is pinned.
    assert_eq!(gone(), maps.len() - 1);
    Ok(())
}
