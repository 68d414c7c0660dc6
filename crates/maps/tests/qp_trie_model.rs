//! The qp-trie against a `BTreeMap`: random operations of users and programs, one after the other,
//! give the same answers, over alphabets from one symbol to all.
//!
//! `SKEP_STRESS=1` does a hundred times as many.

mod support;

use std::collections::BTreeMap;
use std::ops::{
    Bound::{self, Excluded, Included, Unbounded},
    ControlFlow,
};

use skep_isa::KeyShape;
use skep_isa::map::update::{ANY, EXIST, NOEXIST};
use skep_maps::dump::{Walk, batch};
use skep_maps::{Access, Cursor, KeyRange, Map, MapDef, Nearest, Take, Verdict};
use support::qp_trie::{
    errno, fill_to_the_limit, fixed, looked_through, prog_delete, prog_lookup, prog_update,
    strings, uncached,
};
use support::{Dir, Random, rounds, table};

type Model = BTreeMap<Vec<u8>, Vec<u8>>;
type Element = (Vec<u8>, Vec<u8>);

/// A map, its model, and what makes keys for both.
struct Subject {
    what: String,
    map: Map,
    /// Another opener, who may only read.
    reader: Map,
    model: Model,
    random: Random,
    symbols: Vec<u8>,
    step: u32,
}

/// Alphabets: how many symbols there are; the zero byte and the last one are among them.
fn symbols(count: usize) -> Vec<u8> {
    match count {
        1 => vec![0],
        2 => vec![0, 0xff],
        3 => vec![0, b'a', 0xff],
        20 => (0..20).map(|i| (i * 13) as u8).collect(),
        _ => (0..=255).collect(),
    }
}

impl Subject {
    fn new(dir: &Dir, def: &MapDef, alphabet: usize, seed: u64) -> Self {
        let map = dir.make(def);
        let reader = Map::open(map.file().path(), Access::ReadOnly).expect("opens");
        let what = format!(
            "{:?}, values of {}, {} entries, flags {:#x}, {alphabet} symbols",
            def.key_shape(),
            def.value_size,
            def.max_entries,
            def.flags.0
        );
        let symbols = symbols(alphabet);
        Self { what, map, reader, model: Model::new(), random: Random(seed), symbols, step: 0 }
    }

    fn says(&self) -> String {
        format!("{}: step {}", self.what, self.step)
    }

    fn symbol(&mut self) -> u8 {
        self.symbols[self.random.below(self.symbols.len() as u64) as usize]
    }

    /// A key that is there, if any is.
    fn present(&mut self) -> Option<Vec<u8>> {
        let n = self.random.below(self.model.len().max(1) as u64) as usize;
        self.model.keys().nth(n).cloned()
    }

    fn bytes(&mut self, len: usize) -> Vec<u8> {
        (0..len).map(|_| self.symbol()).collect()
    }

    /// A key that may be in the map: short, long, the longest, one that is there, its beginning,
    /// one that goes on behind it, its neighbor.
    fn key(&mut self) -> Vec<u8> {
        let shape = self.map.key_shape();
        let max = match shape {
            KeyShape::Fixed(n) => n as usize,
            KeyShape::Bytes { max } => max as usize,
        };
        let base = self.present();
        let mut key = match (shape, self.random.below(8), base) {
            (KeyShape::Fixed(_), 0..4, Some(base)) | (_, 0, Some(base)) => base,
            (KeyShape::Fixed(n), ..) => self.bytes(n as usize),
            (_, 1, Some(mut base)) => {
                base.truncate(1 + self.random.below(base.len() as u64) as usize);
                base
            }
            (_, 2, Some(mut base)) => {
                let more = self.random.below(4) as usize;
                base.extend(self.bytes(more));
                base
            }
            (_, 3, _) => self.bytes(max),
            _ => {
                let len = 1 + self.random.below(max.min(6) as u64) as usize;
                self.bytes(len)
            }
        };
        key.truncate(max);
        if self.random.below(4) == 0 {
            let at = self.random.below(key.len() as u64) as usize;
            key[at] = self.symbol();
        }
        key
    }

    /// Any bytes, for what takes keys of any length.
    fn any_bytes(&mut self) -> Vec<u8> {
        match self.random.below(6) {
            0 => vec![],
            1 => vec![0xff; self.random.below(9) as usize],
            2 => {
                let mut key = self.key();
                key.extend([0; 300]);
                key
            }
            3 => {
                let mut key = self.key();
                key.truncate(self.random.below(key.len() as u64 + 1) as usize);
                key
            }
            _ => self.key(),
        }
    }

    fn value(&mut self) -> Vec<u8> {
        (0..self.map.user_value_size()).map(|_| self.random.next() as u8).collect()
    }

    /// What an update answers.
    fn update_errno(&self, key: &[u8], flags: u64) -> i32 {
        let there = self.model.contains_key(key);
        match flags {
            NOEXIST if there => 17,
            EXIST if !there => 2,
            _ if !there && self.model.len() == self.map.def().max_entries as usize => 28,
            _ => 0,
        }
    }

    fn update(&mut self) {
        let (key, value) = (self.key(), self.value());
        let flags = [ANY, ANY, NOEXIST, EXIST][self.random.below(4) as usize];
        let want = self.update_errno(&key, flags);
        let got = match self.random.below(2) {
            0 => errno(self.map.update(&key, &value, flags)),
            _ => prog_update(&self.map, &key, &value, flags),
        };
        assert_eq!(got, want, "{}: update of {key:x?}", self.says());
        if want == 0 {
            self.model.insert(key, value);
        }
    }

    fn delete(&mut self) {
        let key = self.key();
        let was = self.model.remove(&key);
        let want = if was.is_some() { 0 } else { 2 };
        let mut value = vec![0; self.map.user_value_size()];
        let got = match self.random.below(3) {
            0 => errno(self.map.delete(&key)),
            1 => prog_delete(&self.map, &key),
            _ => {
                let done = errno(self.map.lookup_and_delete(&key, &mut value, 0));
                assert!(was.is_none_or(|was| was == value), "{}: last value", self.says());
                done
            }
        };
        assert_eq!(got, want, "{}: delete of {key:x?}", self.says());
    }

    fn lookup(&mut self) {
        let key = self.key();
        let want = self.model.get(&key);
        let got = match self.random.below(3) {
            0 => self.map.lookup(&key).ok(),
            1 => self.reader.lookup(&key).ok(),
            _ => prog_lookup(&self.map, &key),
        };
        assert_eq!(got.as_ref(), want, "{}: lookup of {key:x?}", self.says());
        let next = match want {
            Some(_) => self.model.range::<[u8], _>((Excluded(&key[..]), Unbounded)).next(),
            None => self.model.iter().next(),
        };
        let got = self.reader.next_key(Some(&key)).ok();
        assert_eq!(got.as_ref(), next.map(|(key, _)| key), "{}: behind {key:x?}", self.says());
    }

    fn nearest(&mut self) {
        let key = self.any_bytes();
        let below = self.model.range::<[u8], _>((Unbounded, Included(&key[..]))).next_back();
        let above = self.model.range::<[u8], _>((Included(&key[..]), Unbounded)).next();
        let longest =
            self.model.iter().filter(|(k, _)| key.starts_with(k)).max_by_key(|(k, _)| k.len());
        for (which, want) in
            [(Nearest::Floor, below), (Nearest::Ceiling, above), (Nearest::LongestPrefix, longest)]
        {
            let got = self.reader.lookup_nearest(&key, which);
            let got = got.map_err(|e| e.errno());
            let want = want.map(|(k, v)| (k.clone(), v.clone())).ok_or(2);
            assert_eq!(got, want, "{}: {which:?} of {key:x?}", self.says());
        }
    }

    fn range(&mut self) -> KeyRange {
        let mut bound = |other: bool| -> Bound<Vec<u8>> {
            match self.random.below(4) {
                0 => Unbounded,
                1 if other => Excluded(self.any_bytes()),
                2 => Excluded(self.any_bytes()),
                _ => Included(self.any_bytes()),
            }
        };
        let (from, to) = (bound(false), bound(true));
        match self.random.below(4) {
            0 => KeyRange::prefix(&self.any_bytes()),
            1 => {
                // A short prefix, that many have.
                let mut prefix = self.key();
                prefix.truncate(1 + self.random.below(2) as usize);
                KeyRange::prefix(&prefix)
            }
            _ => KeyRange::new(from.as_ref().map(Vec::as_slice), to.as_ref().map(Vec::as_slice)),
        }
    }

    fn in_range(&self, range: &KeyRange, backward: bool) -> Vec<Element> {
        let all = self.model.iter().filter(|(key, _)| range.contains(key));
        let mut all: Vec<_> = all.map(|(k, v)| (k.clone(), v.clone())).collect();
        if backward {
            all.reverse();
        }
        all
    }

    /// A part of the map, in a direction, in steps of some size, going on from bytes.
    fn walk(&mut self) {
        let range = self.range();
        let (backward, aligned) = (self.random.below(2) == 0, self.random.below(2) == 0);
        let (room, by_bytes) = (1 + self.random.below(9) as usize, self.random.below(2) == 0);
        let want = self.in_range(&range, backward);
        let says = format!("{}: {range:?}, backward {backward}, room {room}", self.says());
        let prepared = |map| -> Walk<'_> {
            let walk = Map::walk(map).range(range.clone());
            let walk = if backward { walk.reversed() } else { walk };
            if aligned { walk.aligned() } else { walk }
        };
        let (mut walk, mut seen) = (prepared(&self.reader), vec![]);
        let mut rows = vec![0xee; room * walk.element_size()];
        loop {
            let n = walk.rows(&mut rows).expect("walks");
            if n == 0 {
                break;
            }
            seen.extend(walk.elements(&rows, n).map(|(k, v)| (k.to_vec(), v.to_vec())));
            assert!(seen.len() <= want.len(), "{says}");
            if by_bytes {
                let mut bytes = walk.cursor().to_bytes();
                assert!(bytes.len() <= Cursor::len_in(&self.map));
                bytes.resize(Cursor::len_in(&self.map), 0);
                let cursor = Cursor::from_bytes(&bytes).expect("ours");
                walk = prepared(&self.map).from_cursor(cursor);
            }
        }
        assert_eq!(seen, want, "{says}");
        // The same, lent.
        let (mut seen, least) = (vec![], self.random.below(2 + want.len() as u64) as usize);
        let visited = self.reader.visit(&range, backward, |key, value| {
            seen.push((key.to_vec(), value.to_vec()));
            if seen.len() == least { ControlFlow::Break(()) } else { ControlFlow::Continue(()) }
        });
        visited.expect("visits");
        let most = if least == 0 { want.len() } else { least.min(want.len()) };
        assert_eq!(seen, want[..most], "{says}: visited");
        // Only some of it.
        let odd = |value: &[u8]| value[0] % 2 == 1;
        let mut walk = prepared(&self.map);
        let mut rows = vec![0; want.len().max(1) * walk.element_size()];
        let keep = |_: &[u8], v: &[u8]| if odd(v) { Verdict::Keep } else { Verdict::Skip };
        let n = walk.rows_where(&mut rows, keep).expect("walks");
        let seen: Vec<_> = walk.elements(&rows, n).map(|(k, v)| (k.to_vec(), v.to_vec())).collect();
        assert!(seen.iter().eq(want.iter().filter(|(_, v)| odd(v))), "{says}: filtered");
    }

    fn delete_range(&mut self) {
        let range = self.range();
        let want = self.in_range(&range, false);
        // Few, most of the time: else nothing is ever there.
        if want.len() > 20 && self.random.below(6) != 0 {
            return;
        }
        let says = self.says();
        match self.random.below(2) {
            0 => assert_eq!(
                self.map.delete_range(&range).expect("deletes"),
                want.len() as u64,
                "{says}"
            ),
            _ => {
                let mut walk = self.map.walk().range(range.clone()).taking(Take::Fast);
                let mut rows = vec![0; (want.len() + 1) * walk.element_size()];
                let n = walk.rows(&mut rows).expect("takes");
                let taken: Vec<_> =
                    walk.elements(&rows, n).map(|(k, v)| (k.to_vec(), v.to_vec())).collect();
                assert_eq!(taken, want, "{says}: {range:?}");
            }
        }
        self.model.retain(|key, _| !range.contains(key));
    }

    fn cells(&self, keys: &[Vec<u8>]) -> Vec<u8> {
        let shape = self.map.key_shape();
        let mut cells = vec![0xee; keys.len() * shape.cell_size()];
        for (cell, key) in cells.chunks_mut(shape.cell_size()).zip(keys) {
            assert!(shape.write_cell(cell, key));
        }
        cells
    }

    fn batches(&mut self) {
        let n = self.random.below(40) as usize;
        let keys: Vec<_> = (0..n).map(|_| self.key()).collect();
        let cells = self.cells(&keys);
        let size = self.map.user_value_size();
        let (mut values, mut found) = (vec![0; n * size], vec![false; n]);
        let there =
            batch::lookup_keys(&self.reader, &cells, &mut values, &mut found).expect("good sizes");
        assert_eq!(there, found.iter().filter(|f| **f).count());
        for ((key, found), value) in keys.iter().zip(&found).zip(values.chunks(size)) {
            let got = found.then(|| value.to_vec());
            assert_eq!(got.as_ref(), self.model.get(key), "{}: {key:x?} of {n}", self.says());
        }
        match self.random.below(3) {
            0 => {
                let values: Vec<_> = (0..n).map(|_| self.value()).collect();
                let flags = [ANY, ANY, NOEXIST][self.random.below(3) as usize];
                let mut want = Ok(n);
                for (i, (key, value)) in keys.iter().zip(&values).enumerate() {
                    match self.update_errno(key, flags) {
                        0 => drop(self.model.insert(key.clone(), value.clone())),
                        errno => {
                            want = Err((i, errno));
                            break;
                        }
                    }
                }
                let got = batch::update_batch(&self.map, &cells, &values.concat(), n, flags);
                assert_eq!(got.map_err(|e| (e.count, e.error.errno())), want, "{}", self.says());
            }
            1 => {
                let failed = keys.iter().position(|key| self.model.remove(key).is_none());
                let got = batch::delete_batch(&self.map, &cells, n, 0);
                let want = failed.map_or(Ok(n), |i| Err((i, 2)));
                assert_eq!(got.map_err(|e| (e.count, e.error.errno())), want, "{}", self.says());
            }
            _ => self.lookup_batches(n + 1),
        }
    }

    /// All of the map, by so many a call; or from any key on.
    fn lookup_batches(&mut self, room: usize) {
        let (cell, size) = (self.map.key_shape().cell_size(), self.map.user_value_size());
        let begin = (self.random.below(2) == 0).then(|| self.key());
        let mut want: Vec<_> = self.model.iter().collect();
        if let Some(begin) = &begin {
            want.retain(|(key, _)| *key > begin);
        }
        let mut from = begin.map(|key| self.cells(&[key]));
        let (mut seen, shape) = (vec![], self.map.key_shape());
        loop {
            let (mut keys, mut values) = (vec![0; room * cell], vec![0; room * size]);
            let mut next = vec![0; batch::cursor_len(&self.map)];
            let columns = (&mut keys[..], &mut values[..]);
            let done = batch::lookup_batch(
                &self.reader,
                from.as_deref(),
                &mut next,
                columns,
                room,
                0,
                None,
            );
            let (n, ended) = match done {
                Ok(n) => (n, false),
                Err(e) => {
                    assert_eq!(e.error.errno(), 2, "{}", self.says());
                    (e.count, true)
                }
            };
            for (key, value) in keys.chunks(cell).zip(values.chunks(size)).take(n) {
                seen.push((shape.read_cell(key).expect("a key").to_vec(), value.to_vec()));
            }
            if ended {
                break;
            }
            from = Some(next);
        }
        assert!(
            seen.iter().map(|(k, v)| (k, v)).eq(want.iter().copied()),
            "{}: {room} a call",
            self.says()
        );
    }

    fn same(&self) {
        let got = looked_through(&self.map);
        let want: Vec<_> = self.model.iter().map(|(k, v)| (k.clone(), v.clone())).collect();
        assert_eq!(got, want, "{}", self.says());
    }

    fn run(mut self, steps: u32) {
        while self.step < steps {
            self.step += 1;
            // There are times of growth and times of decline.
            let growing = self.step / 512 % 3 != 2;
            match self.random.below(32) {
                0..10 => self.update(),
                10..14 if growing => self.update(),
                10..20 => self.delete(),
                20..26 => self.lookup(),
                26..28 => self.nearest(),
                28 | 29 => self.walk(),
                30 => self.batches(),
                _ => self.delete_range(),
            }
            if self.step.is_multiple_of(256) {
                self.same();
            }
        }
        self.same();
        // No memory was lost: it takes as many as it should, and nothing in the end.
        let max = self.map.def().max_entries as usize;
        if self.map.key_shape().max_len() >= 8 {
            self.map.delete_range(&KeyRange::prefix(&[0xfe])).expect("deletes");
            self.model.retain(|key, _| key[0] != 0xfe);
            fill_to_the_limit(&self.map, self.model.len());
            self.same();
        }
        assert!(self.map.iter().count() <= max);
        let n = self.model.len() as u64;
        assert_eq!(self.map.delete_range(&KeyRange::ALL).expect("deletes"), n);
        self.model.clear();
        self.same();
    }
}

const ALPHABETS: [usize; 5] = [1, 2, 3, 20, 256];

fn run(defs: &[MapDef], seed: u64) {
    let dir = Dir::new();
    table(&dir, 64);
    for (n, def) in (0..).zip(defs) {
        for alphabet in ALPHABETS {
            let subject = Subject::new(&dir, def, alphabet, seed << 16 | n << 8 | alphabet as u64);
            subject.run(rounds(1_500, 150_000));
        }
    }
}

#[test]
fn byte_strings_are_the_model() {
    run(
        &[
            strings(9, 8, 150),
            strings(40, 4, 300),
            strings(1, 4, 100),
            strings(9, 1, 60),
            strings(300, 12, 100),
        ],
        1,
    );
}

#[test]
fn byte_strings_without_a_cache_are_the_model() {
    let defs = [strings(9, 8, 150), strings(40, 4, 300), strings(9, 12, 60), strings(2, 1, 300)];
    run(&defs.map(uncached), 2);
}

#[test]
fn large_values_are_the_model() {
    run(&[strings(9, 64, 150), strings(20, 300, 100), uncached(strings(9, 5000, 60))], 3);
}

#[test]
fn keys_of_one_size_are_the_model() {
    run(
        &[
            fixed(4, 8, 150),
            uncached(fixed(8, 12, 150)),
            fixed(1, 4, 200),
            fixed(16, 1, 300),
            fixed(256, 64, 60),
            uncached(fixed(9, 300, 100)),
        ],
        4,
    );
}

/// So many that caches, and all that is made for a number of entries, fill up.
#[test]
fn many_keys_are_the_model() {
    let dir = Dir::new();
    table(&dir, 64);
    for def in [strings(30, 8, 20_000), uncached(fixed(8, 4, 20_000))] {
        let map = dir.make(&def);
        let mut model = Model::new();
        let keys = support::qp_trie::hostile_keys(map.key_shape(), 22_000, 9);
        let mut random = Random(10);
        for key in &keys {
            let value = support::qp_trie::stamped(&map, key, random.next());
            let want = if model.len() == 20_000 { 28 } else { 0 };
            assert_eq!(errno(map.update(key, &value, NOEXIST)), want);
            if want == 0 {
                model.insert(key.clone(), value);
            }
        }
        for _ in 0..rounds(2, 40) {
            for key in &keys {
                match random.below(4) {
                    0 => assert_eq!(map.delete(key).is_ok(), model.remove(key).is_some()),
                    1 if model.len() < 20_000 => {
                        let value = support::qp_trie::stamped(&map, key, random.next());
                        map.update(key, &value, ANY).expect("room");
                        model.insert(key.clone(), value);
                    }
                    _ => assert_eq!(map.lookup(key).ok().as_ref(), model.get(key)),
                }
            }
            let walked = looked_through(&map);
            assert!(walked.iter().map(|(k, v)| (k, v)).eq(&model));
        }
    }
}
