//! Keys of variable length through everything that is between a map type and its users: single
//! elements, walks, batches, the DUMP command, cursors, and programs. No type of the table has such
//! keys yet, so a naive one is put into a map here.

use std::collections::BTreeMap;
use std::ops::Bound::{Excluded, Unbounded};
use std::path::PathBuf;
use std::sync::Mutex;

use skep_isa::map::{DynptrUser, update};
use skep_isa::{KeyShape, MapType};

use super::{KeyLengths, Map};
use crate::dump::position::{Position, Strict};
use crate::dump::{Cursor, Take, Verdict, batch, command};
use crate::ops::{Element, ElementKey, KeyWalk, LastKey, ProgOps, UserOps, WalkOps};
use crate::{MapDef, MapError, ProgWalk};

const KEYS: KeyShape = KeyShape::Bytes { max: 6 };
const CELL: usize = 12;
type Value = [u8; 8];

/// A map of byte strings in this process's memory. Values are leaked, so that programs may keep
/// their addresses.
#[derive(Default)]
struct Strings(Mutex<BTreeMap<Vec<u8>, &'static mut Value>>);

impl Strings {
    fn after(&self, key: Option<&[u8]>) -> Option<(Vec<u8>, Value)> {
        let map = self.0.lock().expect("no panic");
        let from = key.map_or(Unbounded, |k| Excluded(k.to_vec()));
        map.range((from, Unbounded)).next().map(|(k, v)| (k.clone(), **v))
    }

    fn put(&self, key: &[u8], value: Value, flags: u64) -> Result<(), MapError> {
        let mut map = self.0.lock().expect("no panic");
        match flags {
            update::NOEXIST if map.contains_key(key) => Err(MapError::Exists),
            update::EXIST if !map.contains_key(key) => Err(MapError::NoElement),
            _ => {
                map.insert(key.to_vec(), Box::leak(Box::new(value)));
                Ok(())
            }
        }
    }
}

impl UserOps for Strings {
    fn user_value_size(&self) -> usize {
        8
    }

    fn lookup(&self, key: &[u8], out: &mut [u8], _flags: u64) -> Result<(), MapError> {
        let map = self.0.lock().expect("no panic");
        out.copy_from_slice(&**map.get(key).ok_or(MapError::NoElement)?);
        Ok(())
    }

    fn prefetch(&self, _keys: &[u8]) {
        panic!("only for fixed keys");
    }

    fn update(&self, key: &[u8], value: &[u8], flags: u64) -> Result<(), MapError> {
        assert!(KEYS.allows(key.len()), "the front end checks the length");
        self.put(key, value.try_into().expect("eight bytes"), flags)
    }

    fn delete(&self, key: &[u8]) -> Result<(), MapError> {
        let mut map = self.0.lock().expect("no panic");
        map.remove(key).map(drop).ok_or(MapError::NoElement)
    }

    fn next_key(&self, key: Option<&[u8]>, cell: &mut [u8]) -> Result<(), MapError> {
        let (key, _) = self.after(key).ok_or(MapError::NoElement)?;
        assert!(KEYS.write_cell(cell, &key));
        Ok(())
    }
}

impl WalkOps for Strings {
    fn by_key(&self) -> Option<&dyn KeyWalk> {
        Some(self)
    }

    fn ordered(&self) -> bool {
        true
    }
}

impl KeyWalk for Strings {
    fn step_behind(
        &self,
        last: &[u8],
        _strict: &mut Strict,
        cell: &mut [u8],
        value: &mut [u8],
    ) -> Result<bool, MapError> {
        let Some((key, v)) = self.after((!last.is_empty()).then_some(last)) else {
            return Ok(false);
        };
        assert!(KEYS.write_cell(cell, &key));
        value.copy_from_slice(&v);
        Ok(true)
    }

    fn take(&self, key: &[u8], value: &mut [u8]) -> Result<(), MapError> {
        let mut map = self.0.lock().expect("no panic");
        value.copy_from_slice(&*map.remove(key).ok_or(MapError::NoElement)?);
        Ok(())
    }
}

impl ProgOps for Strings {
    unsafe fn prog_lookup(&self, key: *const u8) -> *mut u8 {
        // SAFETY: the caller's key is a description of readable bytes.
        let key = unsafe {
            let key = key.cast::<DynptrUser>().read_unaligned();
            std::slice::from_raw_parts(key.data as *const u8, key.size as usize)
        };
        let mut map = self.0.lock().expect("no panic");
        map.get_mut(key).map_or(std::ptr::null_mut(), |value| value.as_mut_ptr())
    }

    unsafe fn prog_next(&self, at: &mut Position, _last: &mut LastKey) -> Option<Element> {
        let mut map = self.0.lock().expect("no panic");
        let (key, value) = map.iter_mut().nth(at.major as usize)?;
        at.major += 1;
        let key = ElementKey::Bytes(key.as_ptr(), key.len() as u32);
        Some(Element { key, value: value.as_mut_ptr() })
    }
}

/// A map whose file is a hash's and whose operations are [`Strings`].
struct Test {
    dir: PathBuf,
    map: Map,
}

impl Test {
    fn new(name: &str) -> Self {
        let pid = std::process::id();
        let dir = PathBuf::from(format!("/dev/shm/skep-bytes-keys-{name}-{pid}"));
        std::fs::create_dir_all(dir.join("maps")).expect("tmpfs is writable");
        let def = MapDef::new(MapType::Hash, 4, 8, 1);
        let map = Map::create(&dir.join("maps"), 1, &def).expect("a good definition");
        let map = Map {
            ops: Box::new(Strings::default()),
            keys: KEYS,
            key_lengths: KeyLengths::of(KEYS),
            ..map
        };
        Self { dir, map }
    }

    fn filled(name: &str) -> Self {
        let test = Self::new(name);
        for (i, key) in ALL.iter().enumerate() {
            test.map.update(key, &value(i), update::NOEXIST).expect("there is no limit");
        }
        test
    }
}

impl Drop for Test {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.dir);
    }
}

/// In their order; a trailing zero counts.
const ALL: [&[u8]; 6] = [b"\0", b"a", b"ab", b"ab\0", b"abcdef", b"b"];

fn value(i: usize) -> Value {
    (i as u64).to_ne_bytes()
}

fn cells(keys: &[&[u8]]) -> Vec<u8> {
    let mut cells = vec![0xee; keys.len() * CELL];
    for (cell, key) in cells.chunks_mut(CELL).zip(keys) {
        assert!(KEYS.write_cell(cell, key));
    }
    cells
}

fn errno<T>(result: Result<T, MapError>) -> i32 {
    result.map_or_else(|e| e.errno(), |_| 0)
}

#[test]
fn users_give_and_get_keys_of_any_length() {
    let test = Test::filled("users");
    let map = &test.map;
    assert_eq!(map.lookup(b"ab").expect("there"), value(2));
    assert_eq!(map.lookup(b"ab\0").expect("there"), value(3));
    assert_eq!(errno(map.lookup(b"abc")), 2);
    assert_eq!(errno(map.lookup(b"")), 22, "no key is empty");
    assert_eq!(errno(map.lookup(b"abcdefg")), 2, "too long is just not there");
    assert_eq!(errno(map.delete(b"abcdefg")), 2);
    let long = map.update(b"abcdefg", &value(9), 0).expect_err("too long");
    assert_eq!(
        (long.errno(), long.to_string()),
        (22, "a key of this map has 1 to 6 bytes, not 7".to_owned())
    );
    map.delete(b"ab").expect("there");
    let (mut key, mut seen) = (None, Vec::new());
    while let Ok(next) = map.next_key(key.as_deref()) {
        seen.push(next.clone());
        key = Some(next);
    }
    assert_eq!(seen, [b"\0", &b"a"[..], b"ab\0", b"abcdef", b"b"]);
    assert_eq!(map.next_key(Some(b"abcdefg")).expect("begins anew"), b"\0");
}

#[test]
fn walks_yield_keys_of_their_length() {
    let test = Test::filled("walks");
    let map = &test.map;
    let all: Vec<_> = map.iter().map(|e| e.expect("readable")).collect();
    let want: Vec<_> = (0..).zip(ALL).map(|(i, key)| (key.to_vec(), value(i).to_vec())).collect();
    assert_eq!(all, want);
    for room in 1..=7 {
        let (mut walk, mut seen) = (map.walk().aligned(), Vec::new());
        let mut buf = vec![0xee; room * walk.element_size()];
        loop {
            let n = walk.rows(&mut buf).expect("readable");
            if n == 0 {
                break;
            }
            seen.extend(walk.elements(&buf, n).map(|(k, v)| (k.to_vec(), v.to_vec())));
            // The place survives the cursor's bytes.
            let cursor = Cursor::from_bytes(&walk.cursor().to_bytes()).expect("ours");
            assert_eq!(cursor, walk.cursor());
            assert!(cursor.to_bytes().len() <= Cursor::len_in(map));
            walk = map.walk().aligned().from_cursor(cursor);
        }
        assert_eq!(seen, want, "{room} rows");
    }
    let (mut keys, mut values) = ([0; 3 * CELL], [0; 3 * 8]);
    assert_eq!(map.walk().columns(&mut keys, &mut values).expect("readable"), 3);
    assert_eq!(keys[..], cells(&ALL[..3]));
}

#[test]
fn filters_and_takes_see_the_key_itself() {
    let test = Test::filled("filters");
    let map = &test.map;
    let mut walk = map.walk().taking(Take::Fast);
    let mut buf = vec![0; 10 * walk.element_size()];
    let short = |key: &[u8], _: &[u8]| match key.len() {
        1 => Verdict::Keep,
        _ => Verdict::Skip,
    };
    let n = walk.rows_where(&mut buf, short).expect("readable");
    let keys: Vec<_> = walk.elements(&buf, n).map(|(key, _)| key).collect();
    assert_eq!(keys, [b"\0", b"a", b"b"]);
    let left: Vec<_> = map.iter().map(|e| e.expect("readable").0).collect();
    assert_eq!(left, [&b"ab"[..], b"ab\0", b"abcdef"]);
}

#[test]
fn batches_have_a_cell_for_each_key() {
    let test = Test::new("batches");
    let map = &test.map;
    let values: Vec<u8> = (0..6).flat_map(value).collect();
    assert_eq!(batch::update_batch(map, &cells(&ALL), &values, 6, 0).expect("no limit"), 6);
    let mut bad = cells(&ALL);
    bad[CELL] = 7;
    let failed = batch::update_batch(map, &bad, &values, 6, 0).expect_err("a length of 7");
    assert_eq!((failed.count, failed.error.errno()), (1, 22));

    let (mut cursor, mut from, mut seen) = (vec![0; batch::cursor_len(map)], None, Vec::new());
    assert_eq!(cursor.len(), CELL);
    loop {
        let (mut keys, mut out) = ([0; 4 * CELL], [0; 4 * 8]);
        let done = batch::lookup_batch(
            map,
            from.as_deref(),
            &mut cursor,
            (&mut keys, &mut out),
            4,
            0,
            None,
        );
        let n = done.as_ref().map_or_else(|e| e.count, |n| *n);
        seen.extend(keys.chunks(CELL).take(n).map(|c| KEYS.read_cell(c).expect("good").to_vec()));
        if let Err(e) = done {
            assert_eq!(e.error.errno(), 2);
            break;
        }
        from = Some(cursor.clone());
    }
    assert_eq!(seen, ALL);

    let (mut out, mut found) = ([0; 3 * 8], [false; 3]);
    let asked = cells(&[b"b", b"c", b"ab\0"]);
    assert_eq!(batch::lookup_keys(map, &asked, &mut out, &mut found).expect("readable"), 2);
    assert_eq!((found, &out[..8], &out[16..]), ([true, false, true], &value(5)[..], &value(3)[..]));

    assert_eq!(batch::delete_batch(map, &cells(&ALL[1..3]), 2, 0).expect("there"), 2);
    assert_eq!(map.iter().count(), 4);
}

#[test]
fn the_dump_command_goes_on_from_a_cell_and_from_a_cursor() {
    let test = Test::filled("command");
    let map = &test.map;
    for flags in [0, command::F_CURSOR] {
        let size = if flags == 0 { CELL } else { Cursor::len_in(map) };
        let mut prev = vec![0; size];
        let (mut seen, mut given) = (Vec::new(), flags != 0);
        loop {
            let mut buf = vec![0; 2 * (CELL + 8)];
            let mut len = buf.len() as u32;
            let at = given.then_some(&mut prev[..]);
            if let Err(e) = command::dump(map, at, &mut buf, &mut len, flags) {
                assert_eq!(e.errno(), 2);
                break;
            }
            for row in buf[..len as usize].chunks(CELL + 8) {
                seen.push(KEYS.read_cell(&row[..CELL]).expect("good").to_vec());
            }
            if !given {
                prev.copy_from_slice(&buf[len as usize - CELL - 8..][..CELL]);
                given = true;
            }
        }
        assert_eq!(seen, ALL, "{flags:#x}");
    }
    let (mut buf, mut len) = (vec![0; 100], 100);
    let mut empty = vec![0; CELL];
    let refused = command::dump(map, Some(&mut empty), &mut buf, &mut len, 0);
    assert_eq!(errno(refused), 22, "a cell without a key");
}

#[test]
fn programs_pass_and_get_descriptions_of_keys() {
    let test = Test::filled("programs");
    let map = &test.map;
    let find = |key: &[u8]| {
        let key = DynptrUser { data: key.as_ptr() as u64, size: key.len() as u32, reserved: 0 };
        // SAFETY: the description is of readable bytes.
        unsafe { map.prog_lookup((&raw const key).cast()) }
    };
    for (i, key) in ALL.iter().enumerate() {
        // SAFETY: a value, which is leaked.
        assert_eq!(unsafe { find(key).cast::<Value>().read() }, value(i));
    }
    assert!(find(b"abc").is_null() && find(b"").is_null());
    let (mut walk, mut seen) = (ProgWalk::default(), Vec::new());
    // SAFETY: it has no values for slots.
    while let Some((key, _)) = unsafe { map.prog_next(&mut walk) } {
        // SAFETY: the walk has the description of a key of the map, which nobody changes.
        seen.push(unsafe {
            let key = key.cast::<DynptrUser>().read_unaligned();
            std::slice::from_raw_parts(key.data as *const u8, key.size as usize).to_vec()
        });
    }
    assert_eq!(seen, ALL);
}
