//! Typed qp-tries, beside a `BTreeMap` that does the same.

use std::collections::BTreeMap;
use std::ops::Bound;

use skep::isa::map::update;
use skep::isa::{MapFlags, MapType};
use skep::maps::{MapDef, MapError};
use skep::{Error, HashMap, QpTrie, Session, TrieKey};

/// A trie of byte strings in a directory of its own.
fn byte_strings(longest: u64, max_entries: u32) -> Result<(Session, skep::Map), Error> {
    let session = Session::scratch()?;
    let def = MapDef::new(MapType::QpTrie, 16, 8, max_entries)
        .extra(longest)
        .flags(MapFlags::NO_PREALLOC);
    let map = session.create_map(&def.named("trie"))?;
    Ok((session, map))
}

/// A trie of keys of one size.
fn fixed(size: u32, max_entries: u32) -> Result<(Session, skep::Map), Error> {
    let session = Session::scratch()?;
    let def = MapDef::new(MapType::QpTrie, size, 8, max_entries).flags(MapFlags::NO_PREALLOC);
    let map = session.create_map(&def.named("fixed"))?;
    Ok((session, map))
}

/// Few letters, so that keys begin with each other, and neighbors differ late.
fn key(n: u64) -> Vec<u8> {
    let mut n = n.wrapping_mul(0x9e37_79b9_7f4a_7c15);
    let len = 1 + (n >> 60) as usize % 9;
    let letter = |n: &mut u64| {
        *n = n.rotate_left(5);
        [0, b'a', b'b', 0xff][*n as usize % 4]
    };
    (0..len).map(|_| letter(&mut n)).collect()
}

type Model = BTreeMap<Vec<u8>, u64>;

fn filled(trie: &QpTrie<[u8], u64>, n: u64) -> Result<Model, Error> {
    let mut model = Model::new();
    for i in 0..n {
        trie.insert(&key(i), &i)?;
        model.insert(key(i), i);
    }
    Ok(model)
}

fn all(
    entries: impl Iterator<Item = Result<(Vec<u8>, u64), Error>>,
) -> Result<Vec<(Vec<u8>, u64)>, Error> {
    entries.collect()
}

#[test]
fn walks_are_in_order_in_both_directions() -> Result<(), Error> {
    let (_session, map) = byte_strings(9, 10_000)?;
    let trie: QpTrie<[u8], u64> = map.typed()?;
    let model = filled(&trie, 3000)?;
    let want: Vec<_> = model.clone().into_iter().collect();
    assert!(want.len() > 500, "{}", want.len());
    assert_eq!(all(trie.iter())?, want);
    assert_eq!(all((&trie).into_iter())?, want);
    assert_eq!(all(trie.iter().reversed())?, want.iter().rev().cloned().collect::<Vec<_>>());
    assert_eq!(all(trie.iter().strict())?, want);
    // Those that are no text are refused as such.
    let text: Result<Vec<_>, _> = map.typed::<QpTrie<str, u64>>()?.iter().collect();
    assert!(matches!(text, Err(Error::Key { .. })), "{text:?}");
    Ok(())
}

#[test]
fn ranges_prefixes_and_neighbors_are_those_of_a_model() -> Result<(), Error> {
    let (_session, map) = byte_strings(9, 10_000)?;
    let trie: QpTrie<[u8], u64> = map.typed()?;
    let model = filled(&trie, 1500)?;
    let pairs = |range: &mut dyn DoubleEndedIterator<Item = (&Vec<u8>, &u64)>| -> Vec<_> {
        range.map(|(k, v)| (k.clone(), *v)).collect()
    };
    for i in 0..400 {
        // Some are there, others not; also longer than any key may be.
        let mut at = key(i * 7 + 1400);
        if i % 5 == 0 {
            at.extend_from_slice(b"aaaaaaaaaa");
        }
        let other = key(i * 11);
        let (low, high) = if at < other { (&at, &other) } else { (&other, &at) };
        assert_eq!(
            all(trie.range(low.as_slice()..high.as_slice()))?,
            pairs(&mut model.range(low.clone()..high.clone())),
            "{low:?} {high:?}"
        );
        let ends = (Bound::Excluded(low.as_slice()), Bound::Included(high.as_slice()));
        if low != high {
            assert_eq!(
                all(trie.range(ends).reversed())?,
                pairs(
                    &mut model
                        .range((Bound::Excluded(low.clone()), Bound::Included(high.clone())))
                        .rev()
                )
            );
        }
        assert_eq!(all(trie.range(..low.as_slice()))?, pairs(&mut model.range(..low.clone())));
        assert_eq!(all(trie.range(high.as_slice()..))?, pairs(&mut model.range(high.clone()..)));
        assert_eq!(
            all(trie.prefix(&at))?,
            pairs(
                &mut model
                    .iter()
                    .filter(|(k, _)| k.starts_with(&at))
                    .collect::<Vec<_>>()
                    .into_iter()
            )
        );
        let pair = |found: Option<(&Vec<u8>, &u64)>| found.map(|(k, v)| (k.clone(), *v));
        assert_eq!(trie.floor(&at)?, pair(model.range(..=at.clone()).next_back()), "{at:?}");
        assert_eq!(trie.ceiling(&at)?, pair(model.range(at.clone()..).next()), "{at:?}");
        let longest = model.iter().filter(|(k, _)| at.starts_with(k)).max_by_key(|(k, _)| k.len());
        assert_eq!(trie.longest_prefix(&at)?, pair(longest), "{at:?}");
        if at.len() <= 9 {
            assert_eq!(trie.get(&at)?, model.get(&at).copied(), "{at:?}");
        }
    }
    assert_eq!(all(trie.range(b"b".as_slice()..b"a".as_slice()))?, [], "it ends before it begins");
    Ok(())
}

#[test]
fn elements_are_removed_one_by_one_by_prefix_and_by_range() -> Result<(), Error> {
    let (_session, map) = byte_strings(9, 10_000)?;
    let trie: QpTrie<[u8], u64> = map.typed()?;
    let mut model = filled(&trie, 1500)?;
    for i in (0..300).step_by(3) {
        assert_eq!(trie.remove(&key(i))?, model.remove(&key(i)).is_some());
    }
    let with: Vec<_> = model.keys().filter(|k| k.starts_with(b"ab")).cloned().collect();
    assert!(!with.is_empty());
    assert_eq!(trie.remove_prefix(b"ab")?, with.len() as u64);
    model.retain(|k, _| !k.starts_with(b"ab"));
    let (from, to) = (b"b".to_vec(), b"ba\xff".to_vec());
    let before = model.len();
    model.retain(|k, _| !(&from..=&to).contains(&k));
    assert!(model.len() < before);
    assert_eq!(trie.remove_range(&from[..]..=&to[..])?, (before - model.len()) as u64);
    assert_eq!(all(trie.iter())?, model.clone().into_iter().collect::<Vec<_>>());
    let taken = all(trie.prefix(b"a").taken())?;
    model.retain(|k, _| !k.starts_with(b"a"));
    assert!(!taken.is_empty());
    assert_eq!(all(trie.iter())?, model.into_iter().collect::<Vec<_>>());
    let left = all(trie.iter())?.len() as u64;
    assert_eq!((trie.remove_range(..)?, trie.iter().count()), (left, 0));
    Ok(())
}

#[test]
fn an_entry_is_changed_or_inserted() -> Result<(), Error> {
    let (_session, map) = byte_strings(20, 3)?;
    let trie: QpTrie<str, u64> = map.typed()?;
    assert_eq!(trie.entry("a").or_insert(5)?, 5);
    assert_eq!(trie.entry("a").or_insert(6)?, 5);
    assert_eq!(trie.entry("a").and_modify(|n| *n += 1).and_modify(|n| *n *= 2).or_insert(0)?, 12);
    assert_eq!(trie.get("a")?, Some(12));
    assert_eq!(trie.entry("b").and_modify(|n| *n += 1).finish()?, None);
    assert_eq!(trie.get("b")?, None);
    assert_eq!(trie.entry("b").or_insert_with(|| 7)?, 7);
    assert_eq!(trie.entry("b").and_modify(|n| *n += 1).finish()?, Some(8));
    trie.insert("c", &0)?;
    let full = trie.entry("d").or_insert(1);
    assert!(
        matches!(&full, Err(Error::Map { source: MapError::NoSpace { max_entries: 3 }, .. })),
        "{full:?}"
    );
    // An element that somebody else puts in at the worst moment: no change is lost.
    let racing = trie.clone();
    let made = trie.entry("a").and_modify(|n| {
        if *n == 12 {
            assert!(racing.remove("a").unwrap());
        }
        *n += 1;
    });
    assert_eq!(made.or_insert(100)?, 100, "it went before it was changed");
    racing.remove("a")?;
    let made = trie.entry("a").and_modify(|n| *n += 1).or_insert_with(|| {
        racing.insert("a", &40).unwrap();
        1
    })?;
    assert_eq!((made, trie.get("a")?), (41, Some(41)));
    Ok(())
}

#[test]
fn several_threads_insert_a_key_once() -> Result<(), Error> {
    let (_session, map) = byte_strings(20, 1000)?;
    let trie: QpTrie<str, u64> = map.typed()?;
    let inserted: Vec<u64> = std::thread::scope(|scope| {
        let threads: Vec<_> = (0..4)
            .map(|thread| {
                let trie = trie.clone();
                scope.spawn(move || {
                    let made = |i: &u64| {
                        trie.entry(&format!("key/{i}")).or_insert(thread).unwrap() == thread
                    };
                    (0..200).filter(made).count() as u64
                })
            })
            .collect();
        threads.into_iter().map(|t| t.join().expect("no panic")).collect()
    });
    assert_eq!(inserted.iter().sum::<u64>(), 200, "{inserted:?}");
    assert_eq!(trie.prefix("key/").count(), 200);
    Ok(())
}

#[test]
fn keys_of_one_size_are_what_is_plain() -> Result<(), Error> {
    let (_session, map) = fixed(4, 1000)?;
    let numbers: QpTrie<[u8; 4], u64> = map.typed()?;
    for n in (0..500_u32).rev() {
        numbers.insert(&(n * 1000).to_be_bytes(), &u64::from(n))?;
    }
    let values: Result<Vec<u64>, _> = numbers.iter().map(|entry| entry.map(|(_, n)| n)).collect();
    assert_eq!(values?, (0..500).collect::<Vec<_>>());
    assert_eq!(numbers.floor(&1999_u32.to_be_bytes())?, Some((1000_u32.to_be_bytes(), 1)));
    assert_eq!(numbers.ceiling(&1001_u32.to_be_bytes())?, Some((2000_u32.to_be_bytes(), 2)));
    let (from, to) = (10_000_u32.to_be_bytes(), 12_000_u32.to_be_bytes());
    assert_eq!(numbers.range(&from..&to).count(), 2);
    assert_eq!(numbers.prefix([0, 0]).count(), 66, "0 to 65,535 by thousands");
    // As numbers of this machine, they are in the order of their bytes there.
    let same: QpTrie<u32, u64> = map.typed()?;
    assert_eq!(same.iter().count(), 500);
    assert_eq!(same.get(&u32::from_ne_bytes(7000_u32.to_be_bytes()))?, Some(7));
    Ok(())
}

#[test]
fn what_a_trie_is_not_taken_for() -> Result<(), Error> {
    let (_a, strings) = byte_strings(9, 10)?;
    let (_b, numbers) = fixed(4, 10)?;
    let said = |done: Option<Error>| done.map(|e| e.to_string()).unwrap_or_default();
    assert_eq!(
        said(strings.typed::<QpTrie<u32, u64>>().err()),
        "map `trie` is of type qp_trie, and no qp-trie of keys of one size"
    );
    assert_eq!(
        said(numbers.typed::<QpTrie<str, u64>>().err()),
        "map `fixed` is of type qp_trie, and no qp-trie of byte strings"
    );
    assert!(
        said(numbers.typed::<QpTrie<u64, u64>>().err()).contains("a key has 4 bytes, `u64` has 8")
    );
    assert!(said(strings.typed::<QpTrie<str, u32>>().err()).contains("a value has 8 bytes"));
    assert!(said(strings.typed::<HashMap<u64, u64>>().err()).contains("is of type qp_trie"));
    let trie: QpTrie<str, u64> = strings.typed()?;
    for (key, why) in
        [("", "a key of this map has 1 to 9 bytes, not 0"), ("longer than that", "not 16")]
    {
        assert!(said(trie.insert(key, &1).err()).contains(why), "{key}");
    }
    assert_eq!(trie.get("longer than that")?, None);
    assert!(!trie.remove("longer than that")?);
    assert!(said(trie.update("a", &1, update::EXIST).err()).contains("no such element"));
    trie.update("a", &1, update::NOEXIST)?;
    assert!(said(trie.update("a", &1, update::NOEXIST).err()).contains("exists already"));
    assert_eq!((<str as TrieKey>::SIZE, <u32 as TrieKey>::SIZE), (None, Some(4)));
    Ok(())
}
