//! Arrays and per-CPU arrays: the kernel's rules, the place of every value in the file, and walks.

mod support;

use skep_isa::map::update::{ANY, EXIST, NOEXIST};
use skep_isa::{MapFlags, MapType, ShapeKind};
use skep_maps::{Access, Cursor, Map, MapDef, slots};
use support::Dir;

fn key(i: u32) -> [u8; 4] {
    i.to_ne_bytes()
}

fn errno<T: std::fmt::Debug>(r: Result<T, skep_maps::MapError>) -> i32 {
    r.expect_err("refused").errno()
}

#[test]
fn definitions_are_refused_as_the_kernel_does() {
    let dir = Dir::new();
    let both = [MapType::Array, MapType::PercpuArray];
    for t in both {
        for (k, v, n, e) in [(8, 8, 1, 22), (4, 0, 1, 22), (4, 8, 0, 22), (4, u32::MAX, 1, 7)] {
            assert_eq!(errno(dir.create(&MapDef::new(t, k, v, n))), e, "{t} {k} {v} {n}");
        }
        assert_eq!(errno(dir.create(&MapDef::new(t, 4, 8, 1).flags(1 << 31))), 22);
        assert_eq!(errno(dir.create(&MapDef::new(t, 4, 8, 1).named("a b"))), 22);
        assert_eq!(
            errno(dir.create(&MapDef::new(t, 4, 8, 1).flags(MapFlags::RDONLY | MapFlags::WRONLY))),
            22
        );
    }
    assert_eq!(errno(dir.create(&MapDef::new(MapType::Array, 4, 1 << 20, u32::MAX))), 12);
    assert_eq!(errno(dir.create(&MapDef::new(MapType::Sockmap, 4, 4, 1))), 22);
}

#[test]
fn operations_answer_with_the_kernels_errno() {
    let dir = Dir::new();
    for t in [MapType::Array, MapType::PercpuArray] {
        let map = dir.make(&MapDef::new(t, 4, 8, 3));
        let zero = vec![0; map.user_value_size()];
        assert_eq!(map.lookup(&key(2)).expect("exists from the start"), zero);
        assert_eq!(errno(map.lookup(&key(3))), 2);
        assert_eq!(errno(map.lookup(&[0; 3])), 22);
        assert_eq!(errno(map.update(&key(3), &zero, ANY)), 7);
        assert_eq!(errno(map.update(&key(0), &zero, NOEXIST)), 17);
        assert_eq!(errno(map.update(&key(0), &zero, 3)), 22);
        assert_eq!(errno(map.update(&key(0), &[0; 7], ANY)), 22);
        map.update(&key(0), &zero, EXIST).expect("exists");
        assert_eq!(errno(map.delete(&key(0))), 22);
        assert_eq!(map.next_key(None).expect("first"), key(0));
        assert_eq!(map.next_key(Some(&key(0))).expect("second"), key(1));
        assert_eq!(map.next_key(Some(&key(9))).expect("first again"), key(0));
        assert_eq!(errno(map.next_key(Some(&key(2)))), 2);
        map.freeze().expect("once");
        assert_eq!(errno(map.freeze()), 1);
        assert_eq!(errno(map.update(&key(0), &zero, ANY)), 1);
        let k = key(1);
        // SAFETY: key and value have the map's sizes.
        unsafe {
            assert_eq!(
                map.prog_update(k.as_ptr(), 5u64.to_ne_bytes().as_ptr(), ANY),
                0,
                "programs may still write"
            );
            assert_eq!(map.prog_update(key(3).as_ptr(), k.as_ptr(), ANY), -7);
            assert_eq!(map.prog_update(k.as_ptr(), k.as_ptr(), NOEXIST), -17);
            assert_eq!(map.prog_update(k.as_ptr(), k.as_ptr(), 4), -22);
            assert_eq!(map.prog_delete(k.as_ptr()), -22);
            assert!(map.prog_lookup(key(3).as_ptr()).is_null());
            assert!(map.prog_lookup(key(u32::MAX).as_ptr()).is_null());
        }
        assert_eq!(map.lookup(&k).expect("value 1")[..8], 5u64.to_ne_bytes());
    }
}

#[test]
fn value_zero_is_byte_zero_of_the_file() {
    let dir = Dir::new();
    let map = dir.make(&MapDef::new(MapType::Array, 4, 12, 4).named("x.bss"));
    for i in 0..4u8 {
        map.update(&key(u32::from(i)), &[i + 1; 12], ANY).expect("in range");
    }
    let bytes = std::fs::read(map.file().path()).expect("readable");
    for i in 0..4u8 {
        let at = usize::from(i) * 16;
        assert_eq!(bytes[at..at + 16], [[i + 1; 12].as_slice(), &[0; 4]].concat());
    }
    let shape = map.shape();
    assert_eq!(
        (shape.base, shape.stride, shape.entries, shape.kind),
        (map.value_base(), 16, 4, ShapeKind::Array)
    );
    // SAFETY: a four-byte key.
    assert_eq!(unsafe { map.prog_lookup(key(3).as_ptr()) } as u64, shape.base + 48);
}

#[test]
fn another_process_finds_the_same_map_and_may_be_held_to_reading() {
    let dir = Dir::new();
    let mut def = MapDef::new(MapType::Array, 4, 4, 2).named("cfg");
    (def.btf_id, def.key_type_id, def.value_type_id) = (3, 4, 5);
    let map = dir.make(&def);
    let child = support::forked(|| {
        let map = Map::open(&dir.maps().join("1"), Access::ReadWrite).expect("opens");
        map.update(&key(1), &7u32.to_ne_bytes(), ANY).expect("writable");
        0
    });
    assert_eq!(child.join(), 0);
    assert_eq!(map.lookup(&key(1)).expect("there"), 7u32.to_ne_bytes());
    let reader = Map::open(&dir.maps().join("1"), Access::ReadOnly).expect("opens");
    assert_eq!((reader.def(), reader.id(), reader.generation()), (&def, 1, map.generation()));
    assert_eq!(errno(reader.update(&key(1), &[0; 4], ANY)), 1);
    // SAFETY: sizes as the map's.
    assert_eq!(unsafe { reader.prog_update(key(1).as_ptr(), key(1).as_ptr(), ANY) }, -1);
    assert_eq!(reader.lookup(&key(1)).expect("there"), 7u32.to_ne_bytes());
    assert_eq!(errno(Map::create(&dir.maps(), 1, &def)), 17, "the id is taken");
}

#[test]
fn users_see_as_many_per_cpu_values_as_possible_cpus() {
    let dir = Dir::new();
    let map = dir.make(&MapDef::new(MapType::PercpuArray, 4, 4, 1000));
    let n = slots::possible_cpus() as usize;
    assert_eq!(map.user_value_size(), 8 * n);
    let given: Vec<u8> = (0..n).flat_map(|i| [i as u8 + 1, 0, 0, 9, 0, 0, 0, 0]).collect();
    map.update(&key(999), &given, ANY).expect("in range");
    assert_eq!(map.lookup(&key(999)).expect("in range"), given);
    map.update(&key(999), &given[..8], ANY).expect("fewer values");
    let mut want = vec![0; 8 * n];
    want[..8].copy_from_slice(&given[..8]);
    assert_eq!(map.lookup(&key(999)).expect("in range"), want, "the rest became zero");
    let ShapeKind::PercpuArray { slot_stride, slot_tls, by_gs } = map.shape().kind else {
        panic!("a per-CPU shape")
    };
    assert_eq!((slot_stride, slot_tls, by_gs), (8192, slots::tls_offset(), false));
}

#[test]
fn walks_return_every_element_once_whatever_the_buffer() {
    let dir = Dir::new();
    for t in [MapType::Array, MapType::PercpuArray] {
        let map = dir.make(&MapDef::new(t, 4, 8, 1000));
        for i in 0..1000u32 {
            let mut value = vec![0; map.user_value_size()];
            value[..4].copy_from_slice(&key(i * 3));
            map.update(&key(i), &value, ANY).expect("in range");
        }
        let size = 4 + map.user_value_size();
        for room in [1, 2, 230, 999, 1000, 5000] {
            let mut cursor = Cursor::default();
            let mut buf = vec![0; size * room + 3];
            let mut all = Vec::new();
            loop {
                let used = map.dump(&mut cursor, &mut buf).expect("dumps");
                if used == 0 {
                    break;
                }
                all.extend_from_slice(&buf[..used]);
                cursor = Cursor::from_bytes(&cursor.to_bytes()).expect("a cursor");
            }
            assert_eq!(all.len(), size * 1000, "room for {room}");
            for (i, e) in all.chunks(size).enumerate() {
                assert_eq!((&e[..4], &e[4..8]), (&key(i as u32)[..], &key(i as u32 * 3)[..]));
            }
        }
        assert_eq!(map.iter().count(), 1000);
        assert_eq!(errno(map.dump(&mut Cursor::default(), &mut vec![0; size - 1])), 22);
        let other = dir.make(&MapDef::new(t, 4, 8, 1000));
        let mut cursor = Cursor::default();
        map.dump(&mut cursor, &mut vec![0; size]).expect("dumps");
        assert_eq!(errno(other.dump(&mut cursor, &mut vec![0; size])), 116);
    }
}
