//! Elements come and go in the order of a model's.
mod support;
use skep_isa::{MapFlags, MapType};
use skep_maps::{KeyRange, MapDef, Nearest};
use std::collections::BTreeMap;
use support::Dir;

#[test]
fn as_a_model() {
    let dir = Dir::new();
    for (alphabet, max, entries, value, flags) in [
        (2u64, 12u32, 400u32, 4u32, 0),
        (256, 20, 3000, 8, 0),
        (3, 9, 2000, 12, MapFlags::NO_LEAF_CACHE),
        (20, 300, 500, 64, 0),
    ] {
        let map = dir.make(
            &MapDef::new(MapType::QpTrie, 16, value, entries)
                .extra(max.into())
                .flags(MapFlags::NO_PREALLOC | flags),
        );
        let mut model: BTreeMap<Vec<u8>, Vec<u8>> = BTreeMap::new();
        let mut x = 88172645463325252u64;
        let mut rnd = move || {
            x ^= x << 13;
            x ^= x >> 7;
            x ^= x << 17;
            x
        };
        for round in 0..60_000u64 {
            let len = 1 + rnd() % u64::from(max);
            let len = if rnd() % 3 == 0 { 1 + len % 4 } else { len };
            let key: Vec<u8> = (0..len).map(|_| (rnd() % alphabet) as u8).collect();
            let val: Vec<u8> = (0..value).map(|i| (round as u8).wrapping_add(i as u8)).collect();
            match rnd() % 8 {
                0..4 => {
                    let done = map.update(&key, &val, 0);
                    if model.contains_key(&key) || model.len() < entries as usize {
                        done.unwrap_or_else(|e| panic!("{round} {e}"));
                        model.insert(key, val);
                    } else {
                        assert_eq!(done.expect_err("full").errno(), 28);
                    }
                }
                4..6 => {
                    let victim =
                        model.range(key.clone()..).next().map(|(k, _)| k.clone()).unwrap_or(key);
                    assert_eq!(
                        map.delete(&victim).is_ok(),
                        model.remove(&victim).is_some(),
                        "{round}"
                    );
                }
                6 => assert_eq!(map.lookup(&key).ok(), model.get(&key).cloned(), "{round}"),
                _ => {
                    if let Some((k, v)) = model.range(key.clone()..).next() {
                        assert_eq!(map.lookup(k).ok().as_ref(), Some(v), "{round}");
                        assert_eq!(
                            map.lookup_nearest(&key, Nearest::Ceiling).expect("there"),
                            (k.clone(), v.clone())
                        );
                    }
                    let floor = model
                        .range(..=key.clone())
                        .next_back()
                        .map(|(k, v)| (k.clone(), v.clone()));
                    assert_eq!(map.lookup_nearest(&key, Nearest::Floor).ok(), floor);
                    let longest = (1..=key.len())
                        .rev()
                        .find_map(|n| model.get_key_value(&key[..n]))
                        .map(|(k, v)| (k.clone(), v.clone()));
                    assert_eq!(
                        map.lookup_nearest(&key, Nearest::LongestPrefix).ok(),
                        longest,
                        "{round} {key:?}"
                    );
                }
            }
            if round % 5000 == 0 {
                let all: Vec<_> = map.iter().map(|e| e.expect("readable")).collect();
                assert_eq!(all, model.clone().into_iter().collect::<Vec<_>>(), "{round}");
                let mut walk = map.walk().reversed();
                let mut buf = vec![0; 7 * walk.element_size()];
                let mut seen = Vec::new();
                loop {
                    let n = walk.rows(&mut buf).expect("readable");
                    if n == 0 {
                        break;
                    }
                    seen.extend(walk.elements(&buf, n).map(|(k, v)| (k.to_vec(), v.to_vec())));
                }
                seen.reverse();
                assert_eq!(seen, all);
                let prefix = &key_of(&model, round)[..1];
                let mut walk = map.walk().range(KeyRange::prefix(prefix));
                let mut n = 0;
                loop {
                    let got = walk.rows(&mut buf).expect("readable");
                    if got == 0 {
                        break;
                    }
                    n += got;
                }
                assert_eq!(n, model.keys().filter(|k| k.starts_with(prefix)).count());
            }
        }
        let n = map.delete_range(&KeyRange::ALL).expect("writable");
        assert_eq!(n, model.len() as u64);
        assert_eq!(map.iter().count(), 0);
    }
}

fn key_of(model: &BTreeMap<Vec<u8>, Vec<u8>>, n: u64) -> Vec<u8> {
    model.keys().nth(n as usize % model.len().max(1)).cloned().unwrap_or_else(|| vec![0])
}
