//! The same loop over maps of Rust that the threads of one process share: what a user's operation
//! costs beside one that crosses no border.
//!
//! Both have room for all keys from the beginning, as ours has, and the hasher that comes with
//! them. `hashbrown` is in 64 shards, as many as our tables have locks, each behind a lock of the
//! standard library.

use std::hash::BuildHasher;
use std::hint::black_box;
use std::sync::{Mutex, MutexGuard, PoisonError};

use dashmap::DashMap;
use hashbrown::{DefaultHashBuilder, HashMap};

use crate::{Case, Op, Part, Result, Side};

const SHARDS: usize = 64;

/// A map of Rust as a contestant.
pub struct Rival<M> {
    map: M,
    keys: Vec<u64>,
}

/// What is asked of it.
pub trait Operations: Sync {
    /// Copies a value out.
    fn get(&self, key: u64) -> Option<u64>;
    /// Stores a value.
    fn put(&self, key: u64, value: u64);
}

impl Operations for DashMap<u64, u64> {
    #[inline]
    fn get(&self, key: u64) -> Option<u64> {
        DashMap::get(self, &key).map(|value| *value)
    }

    #[inline]
    fn put(&self, key: u64, value: u64) {
        self.insert(key, value);
    }
}

/// A hash table in parts, each with a lock.
pub struct Sharded {
    hasher: DefaultHashBuilder,
    shards: Vec<Mutex<HashMap<u64, u64>>>,
}

impl Sharded {
    #[inline]
    fn shard(&self, key: u64) -> MutexGuard<'_, HashMap<u64, u64>> {
        // Other bits than those that choose a place in the table.
        let hash = self.hasher.hash_one(key) >> 40;
        self.shards[hash as usize % SHARDS].lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Operations for Sharded {
    #[inline]
    fn get(&self, key: u64) -> Option<u64> {
        self.shard(key).get(&key).copied()
    }

    #[inline]
    fn put(&self, key: u64, value: u64) {
        self.shard(key).insert(key, value);
    }
}

fn keys(case: &Case) -> Vec<u64> {
    case.all_keys(false).as_chunks::<8>().0.iter().map(|key| u64::from_ne_bytes(*key)).collect()
}

/// The most used concurrent map.
pub fn dashmap(case: &Case) -> Rival<DashMap<u64, u64>> {
    Rival { map: DashMap::with_capacity(case.keys as usize), keys: keys(case) }
}

/// The fastest table, made concurrent in the simplest way.
pub fn sharded(case: &Case) -> Rival<Sharded> {
    // Some shards get more than their part.
    let room = case.keys as usize / SHARDS * 17 / 16;
    let shards = (0..SHARDS).map(|_| Mutex::new(HashMap::with_capacity(room))).collect();
    Rival { map: Sharded { hasher: DefaultHashBuilder::default(), shards }, keys: keys(case) }
}

impl<M: Operations> Side for Rival<M> {
    fn part(&self, op: Op, part: u32, threads: u32) -> Result<Part<'_>> {
        let each = self.keys.len() / threads as usize;
        let mine = &self.keys[each * part as usize..each * (part as usize + 1)];
        let get = match op {
            Op::Read | Op::ReadMany => true,
            Op::Store | Op::StoreMany | Op::Insert => false,
            _ => return Err("no operation of a map of Rust".into()),
        };
        Ok(Box::new(move || {
            let mut count = 0;
            for key in mine {
                let key = *black_box(key);
                if get {
                    count += usize::from(black_box(self.map.get(key)).is_some());
                } else {
                    self.map.put(key, 1);
                    count += 1;
                }
            }
            if count == mine.len() {
                Ok(None)
            } else {
                Err(format!("{op:?}: only {count} of {} are there", mine.len()))
            }
        }))
    }

    fn consumer(&self, _records: u32) -> Result<Part<'_>> {
        Err("no ring".into())
    }
}
