//! Maps of Rust, with keys as their users write them: a heap block each.

use std::alloc::{GlobalAlloc, Layout, System};
use std::collections::BTreeMap;
use std::ffi::{CStr, CString};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering::Relaxed};

use hashbrown::HashMap;
use rustc_hash::FxBuildHasher;

use crate::{Orders, Result, Table, fill, measure};

/// Counts the bytes of all heap blocks while it is told to.
struct Counting;

static COUNTS: AtomicBool = AtomicBool::new(false);
static BYTES: AtomicUsize = AtomicUsize::new(0);

unsafe extern "C" {
    fn malloc_usable_size(block: *const u8) -> usize;
}

/// A block's bytes, and its header.
fn taken(block: *const u8) -> usize {
    // SAFETY: only called with blocks of the system's allocator, or null.
    unsafe { malloc_usable_size(block) + 8 }
}

// SAFETY: all is done by the system's allocator.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        // SAFETY: the caller's duty.
        let block = unsafe { System.alloc(layout) };
        if COUNTS.load(Relaxed) {
            BYTES.fetch_add(taken(block), Relaxed);
        }
        block
    }

    unsafe fn dealloc(&self, block: *mut u8, layout: Layout) {
        if COUNTS.load(Relaxed) {
            BYTES.fetch_sub(taken(block), Relaxed);
        }
        // SAFETY: the caller's duty.
        unsafe { System.dealloc(block, layout) }
    }
}

#[global_allocator]
static ALLOCATOR: Counting = Counting;

/// Measures a map of Rust.
pub fn run<T: Table + Default>(orders: &Orders) -> Result<()> {
    {
        COUNTS.store(true, Relaxed);
        let mut table = T::default();
        fill(&mut table, &orders.insert);
        println!("memory {}", BYTES.load(Relaxed) as f64 / orders.len() as f64);
        COUNTS.store(false, Relaxed);
    }
    measure(&mut T::default(), orders);
    Ok(())
}

/// The fastest hash table, with the fastest hash for keys that nobody chooses to its harm.
#[derive(Default)]
pub struct Hashbrown(HashMap<Box<[u8]>, u32, FxBuildHasher>);

impl Table for Hashbrown {
    fn insert(&mut self, key: &[u8], value: u32) {
        self.0.insert(key.into(), value);
    }

    #[inline]
    fn get(&self, key: &[u8]) -> Option<u32> {
        self.0.get(key).copied()
    }

    fn remove(&mut self, key: &[u8]) -> bool {
        self.0.remove(key).is_some()
    }

    fn walk(&self) -> (usize, u64) {
        sum(self.0.iter().map(|(key, value)| (&**key, *value)))
    }
}

#[derive(Default)]
pub struct BTree(BTreeMap<Box<[u8]>, u32>);

impl Table for BTree {
    fn insert(&mut self, key: &[u8], value: u32) {
        self.0.insert(key.into(), value);
    }

    #[inline]
    fn get(&self, key: &[u8]) -> Option<u32> {
        self.0.get(key).copied()
    }

    fn remove(&mut self, key: &[u8]) -> bool {
        self.0.remove(key).is_some()
    }

    fn walk(&self) -> (usize, u64) {
        sum(self.0.iter().map(|(key, value)| (&**key, *value)))
    }
}

/// An adaptive radix tree. Its keys must not begin with one another, so they are strings of C; a
/// key with the bytes 0 or 1 in it is written with others, in the same order. That is part of what
/// an operation takes.
#[derive(Default)]
pub struct Blart(blart::TreeMap<CString, u32>);

fn encode(key: &[u8], out: &mut Vec<u8>) {
    out.clear();
    for b in key {
        match b {
            0 | 1 => out.extend([1, b + 1]),
            b => out.push(*b),
        }
    }
    out.push(0);
}

fn with_c_str<T>(key: &[u8], f: impl FnOnce(&CStr) -> T) -> T {
    thread_local!(static BUFFER: std::cell::RefCell<Vec<u8>> = const { std::cell::RefCell::new(vec![]) });
    BUFFER.with_borrow_mut(|buffer| {
        encode(key, buffer);
        f(CStr::from_bytes_until_nul(buffer).expect("it ends with one"))
    })
}

impl Table for Blart {
    fn insert(&mut self, key: &[u8], value: u32) {
        let key = with_c_str(key, CStr::to_owned);
        self.0.try_insert(key, value).expect("none begins with another");
    }

    #[inline]
    fn get(&self, key: &[u8]) -> Option<u32> {
        with_c_str(key, |key| self.0.get(key).copied())
    }

    fn remove(&mut self, key: &[u8]) -> bool {
        with_c_str(key, |key| self.0.remove(key).is_some())
    }

    fn walk(&self) -> (usize, u64) {
        sum(self.0.iter().map(|(key, value)| (key.to_bytes(), *value)))
    }
}

/// What all walks add up.
pub fn sum<'a>(all: impl Iterator<Item = (&'a [u8], u32)>) -> (usize, u64) {
    all.fold((0, 0), |(n, sum), (key, value)| {
        let first = u64::from(key.first().copied().unwrap_or(0));
        (n + 1, sum + key.len() as u64 + first + u64::from(value))
    })
}
