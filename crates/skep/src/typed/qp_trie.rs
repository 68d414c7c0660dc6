//! Qp-tries: elements in the order of their keys, which may be text of any length.

use std::fmt;
use std::marker::PhantomData;
use std::ops::{Bound, ControlFlow, RangeBounds};

use skep_isa::map::update;
use skep_isa::{KeyShape, MapType};
use skep_maps::{KeyRange, MapError, Nearest};

use super::{Entries, Plain, Typed, value};
use crate::error::{Error, Result};
use crate::map::Map;

/// What can be a key of a [`QpTrie`]: `str` and `[u8]` where keys are byte strings, and whatever is
/// [`Plain`] where all keys have one size.
///
/// Keys are in the order of their bytes. That is the order of text and of unsigned numbers in
/// big-endian bytes (`u32::to_be_bytes`), but not of `u32` itself on this machine.
pub trait TrieKey: ToOwned {
    /// The size of every key; `None` where keys are byte strings.
    const SIZE: Option<usize>;

    /// Returns the key's bytes.
    fn key_bytes(&self) -> &[u8];

    /// Makes a key from its bytes; `None` if they are none.
    fn from_key_bytes(bytes: &[u8]) -> Option<Self::Owned>;

    /// Calls `f` with a key that is not made to be kept; `None` if the bytes are none.
    fn with_key_bytes<T>(bytes: &[u8], f: impl FnOnce(&Self) -> T) -> Option<T>;
}

impl TrieKey for str {
    const SIZE: Option<usize> = None;

    fn key_bytes(&self) -> &[u8] {
        self.as_bytes()
    }

    fn from_key_bytes(bytes: &[u8]) -> Option<String> {
        str::from_utf8(bytes).ok().map(str::to_owned)
    }

    fn with_key_bytes<T>(bytes: &[u8], f: impl FnOnce(&Self) -> T) -> Option<T> {
        str::from_utf8(bytes).ok().map(f)
    }
}

impl TrieKey for [u8] {
    const SIZE: Option<usize> = None;

    fn key_bytes(&self) -> &[u8] {
        self
    }

    fn from_key_bytes(bytes: &[u8]) -> Option<Vec<u8>> {
        Some(bytes.to_vec())
    }

    fn with_key_bytes<T>(bytes: &[u8], f: impl FnOnce(&Self) -> T) -> Option<T> {
        Some(f(bytes))
    }
}

impl<K: Plain> TrieKey for K {
    const SIZE: Option<usize> = Some(size_of::<K>());

    fn key_bytes(&self) -> &[u8] {
        self.as_bytes()
    }

    fn from_key_bytes(bytes: &[u8]) -> Option<K> {
        K::read_from_bytes(bytes).ok()
    }

    fn with_key_bytes<T>(bytes: &[u8], f: impl FnOnce(&Self) -> T) -> Option<T> {
        K::read_from_bytes(bytes).ok().as_ref().map(f)
    }
}

/// A trie: its elements are in the order of their keys' bytes, and keys may be text of any length
/// up to the map's longest.
///
/// Beside what a [`HashMap`](crate::HashMap) does, it goes through ranges of keys in both
/// directions, finds the element nearest to a key, and the longest key that another one begins with.
/// Every operation is atomic by itself; those that consist of several ([`Entry`], and removing a
/// range) say so.
///
/// ```
/// use skep::isa::{MapFlags, MapType};
/// use skep::maps::MapDef;
/// use skep::{QpTrie, Session};
///
/// # fn main() -> Result<(), skep::Error> {
/// let session = Session::scratch()?;
/// // Byte strings of up to 255 bytes.
/// let def = MapDef::new(MapType::QpTrie, 16, 8, 1000).extra(255).flags(MapFlags::NO_PREALLOC);
/// let opened: QpTrie<str, u64> = session.create_map(&def.named("opened"))?.typed()?;
/// for path in ["/etc/passwd", "/etc/hosts", "/usr/bin/env", "/etc/hosts"] {
///     opened.entry(path).and_modify(|n| *n += 1).or_insert(1)?;
/// }
/// assert_eq!(opened.get("/etc/hosts")?, Some(2));
/// let below_etc = opened.prefix("/etc/").map(|entry| entry.map(|(path, _)| path));
/// assert_eq!(below_etc.collect::<Result<Vec<_>, _>>()?, ["/etc/hosts", "/etc/passwd"]);
/// assert_eq!(opened.floor("/etc/z")?, Some(("/etc/passwd".to_owned(), 1)));
/// assert_eq!(opened.remove_prefix("/etc/")?, 2);
/// # Ok(())
/// # }
/// ```
#[doc(alias = "BPF_MAP_TYPE_QP_TRIE")]
pub struct QpTrie<K: ?Sized, V> {
    map: Map,
    types: PhantomData<fn(&K) -> V>,
}

impl<K: TrieKey + ?Sized, V: Plain> Typed for QpTrie<K, V> {
    fn of(map: Map) -> Result<Self> {
        map.check_type(&[MapType::QpTrie], "qp-trie")?;
        match (map.key_shape(), K::SIZE) {
            (KeyShape::Bytes { .. }, None) => {}
            (KeyShape::Fixed(is), Some(wanted)) if is as usize == wanted => {}
            (KeyShape::Fixed(is), Some(wanted)) => {
                let (map, rust) = (map.name().to_owned(), std::any::type_name::<K>());
                return Err(Error::Size { map, what: "key", rust, wanted, is: is as usize });
            }
            (KeyShape::Fixed(_), None) => map.check_type(&[], "qp-trie of byte strings")?,
            (KeyShape::Bytes { .. }, Some(_)) => {
                map.check_type(&[], "qp-trie of keys of one size")?
            }
        }
        map.check_size::<V>("value", map.def().value_size as usize)?;
        Ok(Self { map, types: PhantomData })
    }
}

impl<K: ?Sized, V> Clone for QpTrie<K, V> {
    fn clone(&self) -> Self {
        Self { map: self.map.clone(), types: PhantomData }
    }
}

impl<K: ?Sized, V> fmt::Debug for QpTrie<K, V> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("QpTrie").field("map", &self.map).finish()
    }
}

impl<'m, K: TrieKey + ?Sized, V: Plain> IntoIterator for &'m QpTrie<K, V> {
    type Item = Result<(K::Owned, V)>;
    type IntoIter = OrderedEntries<'m, K, V>;

    fn into_iter(self) -> Self::IntoIter {
        self.iter()
    }
}

impl<K: TrieKey + ?Sized, V: Plain> QpTrie<K, V> {
    /// Returns the value of a key; `None` when there is none.
    ///
    /// # Errors
    /// When the key is empty, the map's memory is damaged, or it may not be read.
    pub fn get(&self, key: &K) -> Result<Option<V>> {
        let mut out = V::new_zeroed();
        let done = self.map.lookup_into(key.key_bytes(), out.as_mut_bytes(), 0);
        Ok(self.map.found(done)?.map(|()| out))
    }

    /// Stores a value, whether the key is there or not.
    ///
    /// # Errors
    /// When the key is empty or longer than the map's longest, or the map is full or may not be
    /// written.
    pub fn insert(&self, key: &K, value: &V) -> Result<()> {
        self.update(key, value, update::ANY)
    }

    /// Stores a value with the flags of `bpf_map_update_elem`: `BPF_NOEXIST`, `BPF_EXIST`.
    ///
    /// # Errors
    /// As [`QpTrie::insert`], or a flag forbids it.
    pub fn update(&self, key: &K, value: &V, flags: u64) -> Result<()> {
        self.map.named(self.map.update(key.key_bytes(), value.as_bytes(), flags))
    }

    /// Removes an element; tells whether there was one.
    ///
    /// # Errors
    /// When the key is empty, or the map may not be written.
    pub fn remove(&self, key: &K) -> Result<bool> {
        Ok(self.map.found(self.map.delete(key.key_bytes()))?.is_some())
    }

    /// Begins an operation on one key, whether it is there or not.
    pub fn entry<'a>(&'a self, key: &'a K) -> Entry<'a, K, V> {
        Entry { trie: self, key, modify: None }
    }

    /// Walks through all elements, the least key first.
    pub fn iter(&self) -> OrderedEntries<'_, K, V> {
        OrderedEntries::new(&self.map, None)
    }

    /// Walks through the elements with keys in a range, such as `"a".."c"` or `&2..=&5`.
    ///
    /// An empty range, also one whose end is before its beginning, has no elements.
    pub fn range<'k>(&self, range: impl RangeBounds<&'k K>) -> OrderedEntries<'_, K, V>
    where
        K: 'k,
    {
        OrderedEntries::new(&self.map, Some(key_range(&range)))
    }

    /// Walks through the elements whose keys begin with some bytes. For text, `prefix` is text; for
    /// keys of one size, it is bytes.
    pub fn prefix(&self, prefix: impl AsRef<[u8]>) -> OrderedEntries<'_, K, V> {
        OrderedEntries::new(&self.map, Some(KeyRange::prefix(prefix.as_ref())))
    }

    /// Calls `visit` with each element whose key is in a range, the least key first, until it breaks.
    /// That is the fastest way through many: keys and values are lent, and nothing is allocated for
    /// one. What [`QpTrie::range`] promises of a map that changes meanwhile holds here, and `visit`
    /// may change it.
    ///
    /// ```
    /// # use skep::isa::{MapFlags, MapType};
    /// # use skep::maps::MapDef;
    /// use std::ops::ControlFlow;
    ///
    /// # fn main() -> Result<(), skep::Error> {
    /// # let session = skep::Session::scratch()?;
    /// # let def = MapDef::new(MapType::QpTrie, 16, 8, 10).extra(64).flags(MapFlags::NO_PREALLOC);
    /// # let map = session.create_map(&def.named("sizes"))?;
    /// let sizes: skep::QpTrie<str, u64> = map.typed()?;
    /// for (name, size) in [("a.c", 10), ("b.c", 20), ("c.c", 40)] {
    ///     sizes.insert(name, &size)?;
    /// }
    /// let mut total = 0;
    /// sizes.visit("b".., |_, size| {
    ///     total += size;
    ///     ControlFlow::Continue(())
    /// })?;
    /// assert_eq!(total, 60);
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    /// When the map may not be read, or an element's key is no `K`.
    pub fn visit<'k>(
        &self,
        range: impl RangeBounds<&'k K>,
        mut visit: impl FnMut(&K, V) -> ControlFlow<()>,
    ) -> Result<()>
    where
        K: 'k,
    {
        let mut wrong = Ok(());
        let done = self.map.visit(&key_range(&range), false, |key, bytes| {
            let done = match V::read_from_bytes(bytes) {
                Ok(value) => K::with_key_bytes(key, |key| visit(key, value)),
                Err(_) => None,
            };
            done.unwrap_or_else(|| {
                wrong = Err(not_a_key::<K>(&self.map, key));
                ControlFlow::Break(())
            })
        });
        self.map.named(done).and(wrong)
    }

    /// Returns the element with the greatest key that is not above `key`; `None` when there is none.
    /// The key may be longer than the map's longest.
    ///
    /// # Errors
    /// When the map may not be read, or the element's key is no `K`.
    pub fn floor(&self, key: &K) -> Result<Option<(K::Owned, V)>> {
        self.nearest(key, Nearest::Floor)
    }

    /// Returns the element with the least key that is not below `key`; `None` when there is none.
    /// The key may be longer than the map's longest.
    ///
    /// # Errors
    /// When the map may not be read, or the element's key is no `K`.
    pub fn ceiling(&self, key: &K) -> Result<Option<(K::Owned, V)>> {
        self.nearest(key, Nearest::Ceiling)
    }

    /// Returns the element with the longest key that `key` begins with; `None` when there is none.
    /// The key may be longer than the map's longest.
    ///
    /// # Errors
    /// When the map may not be read, or the element's key is no `K`.
    pub fn longest_prefix(&self, key: &K) -> Result<Option<(K::Owned, V)>> {
        self.nearest(key, Nearest::LongestPrefix)
    }

    /// Removes the elements with keys in a range, one by one; returns how many. Those that others
    /// put in meanwhile may stay.
    ///
    /// # Errors
    /// When the map may not be written. What was removed before an error is gone.
    pub fn remove_range<'k>(&self, range: impl RangeBounds<&'k K>) -> Result<u64>
    where
        K: 'k,
    {
        self.map.named(self.map.delete_range(&key_range(&range)))
    }

    /// Removes the elements whose keys begin with some bytes, as [`QpTrie::remove_range`] does.
    ///
    /// # Errors
    /// When the map may not be written. What was removed before an error is gone.
    pub fn remove_prefix(&self, prefix: impl AsRef<[u8]>) -> Result<u64> {
        self.map.named(self.map.delete_range(&KeyRange::prefix(prefix.as_ref())))
    }

    /// Returns the map as bytes.
    #[must_use]
    pub fn as_map(&self) -> &Map {
        &self.map
    }

    fn nearest(&self, key: &K, which: Nearest) -> Result<Option<(K::Owned, V)>> {
        let found = self.map.found(self.map.lookup_nearest(key.key_bytes(), which))?;
        found
            .map(|(key, bytes)| Ok((owned::<K>(&self.map, &key)?, value(&self.map, &bytes)?)))
            .transpose()
    }
}

fn key_range<'k, K: TrieKey + ?Sized + 'k>(range: &impl RangeBounds<&'k K>) -> KeyRange {
    let bytes = |bound: Bound<&&'k K>| bound.map(|key| key.key_bytes());
    KeyRange::new(bytes(range.start_bound()), bytes(range.end_bound()))
}

fn owned<K: TrieKey + ?Sized>(map: &Map, bytes: &[u8]) -> Result<K::Owned> {
    K::from_key_bytes(bytes).ok_or_else(|| not_a_key::<K>(map, bytes))
}

fn not_a_key<K: ?Sized>(map: &Map, bytes: &[u8]) -> Error {
    let (map, rust) = (map.name().to_owned(), std::any::type_name::<K>());
    Error::Key { map, key: bytes.to_vec(), rust }
}

/// One key of a [`QpTrie`], of which it is not known whether it is there.
///
/// An entry holds no lock: it consists of single operations, between which programs and other
/// processes may change or remove the same element. Two that modify it at once may lose one of the
/// changes. Of several that [insert](Entry::or_insert) a key, one does. For counters that nobody may
/// lose, let a program count, or keep one writer.
pub struct Entry<'a, K: TrieKey + ?Sized, V> {
    trie: &'a QpTrie<K, V>,
    key: &'a K,
    modify: Option<Modify<'a, V>>,
}

type Modify<'a, V> = Box<dyn FnMut(&mut V) + 'a>;

impl<K: TrieKey + ?Sized, V> fmt::Debug for Entry<'_, K, V> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Entry").field("key", &self.key.key_bytes()).finish_non_exhaustive()
    }
}

impl<'a, K: TrieKey + ?Sized, V: Plain> Entry<'a, K, V> {
    /// Changes the value, if the key is there, when the entry is finished by
    /// [`or_insert`](Entry::or_insert) or [`finish`](Entry::finish). It may be called again, with
    /// the value of then, where the element came or went meanwhile.
    #[must_use]
    pub fn and_modify(mut self, mut change: impl FnMut(&mut V) + 'a) -> Self {
        self.modify = Some(match self.modify.take() {
            None => Box::new(change),
            Some(mut before) => Box::new(move |value| {
                before(value);
                change(value);
            }),
        });
        self
    }

    /// Returns the value of the key, changed if there is something to change, or stores this one and
    /// returns it.
    ///
    /// # Errors
    /// As [`QpTrie::insert`].
    pub fn or_insert(self, value: V) -> Result<V> {
        self.or_insert_with(|| value)
    }

    /// As [`Entry::or_insert`], with a value that is made where it is needed.
    ///
    /// # Errors
    /// As [`QpTrie::insert`].
    pub fn or_insert_with(mut self, make: impl FnOnce() -> V) -> Result<V> {
        if let Some(value) = self.step()? {
            return Ok(value);
        }
        let value = make();
        loop {
            let map = &self.trie.map;
            match map.update(self.key.key_bytes(), value.as_bytes(), update::NOEXIST) {
                Ok(()) => return Ok(value),
                // Somebody was first.
                Err(MapError::Exists) => {
                    if let Some(value) = self.step()? {
                        return Ok(value);
                    }
                }
                Err(e) => return map.named(Err(e)),
            }
        }
    }

    /// Changes the value, if the key is there, and returns it.
    ///
    /// # Errors
    /// As [`QpTrie::insert`].
    pub fn finish(mut self) -> Result<Option<V>> {
        self.step()
    }

    /// Changes and returns the value; `None` when there is none, or it went before it was changed.
    fn step(&mut self) -> Result<Option<V>> {
        loop {
            let Some(mut value) = self.trie.get(self.key)? else { return Ok(None) };
            let Some(modify) = &mut self.modify else { return Ok(Some(value)) };
            modify(&mut value);
            let map = &self.trie.map;
            match map.update(self.key.key_bytes(), value.as_bytes(), update::EXIST) {
                Ok(()) => return Ok(Some(value)),
                Err(MapError::NoElement) => {}
                Err(e) => return map.named(Err(e)),
            }
        }
    }
}

/// A walk through elements in the order of their keys. What [`Entries`] promises of a map that
/// changes meanwhile holds here.
///
/// ```
/// # use skep::isa::{MapFlags, MapType};
/// # use skep::maps::MapDef;
/// # fn main() -> Result<(), skep::Error> {
/// # let session = skep::Session::scratch()?;
/// # let def = MapDef::new(MapType::QpTrie, 4, 8, 10).flags(MapFlags::NO_PREALLOC);
/// # let map = session.create_map(&def.named("squares"))?;
/// let squares: skep::QpTrie<[u8; 4], u64> = map.typed()?;
/// for n in 1..=5_u32 {
///     squares.insert(&n.to_be_bytes(), &u64::from(n * n))?;
/// }
/// let last = squares.iter().reversed().next().transpose()?;
/// assert_eq!(last, Some((5_u32.to_be_bytes(), 25)));
/// let (from, to) = (2_u32.to_be_bytes(), 4_u32.to_be_bytes());
/// let values = squares.range(&from..&to).map(|entry| entry.map(|(_, n)| n));
/// assert_eq!(values.collect::<Result<Vec<_>, _>>()?, [4, 9]);
/// # Ok(())
/// # }
/// ```
pub struct OrderedEntries<'m, K: TrieKey + ?Sized, V>(Entries<'m, K::Owned, V>);

impl<K: TrieKey + ?Sized, V> fmt::Debug for OrderedEntries<'_, K, V> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("OrderedEntries")
    }
}

impl<'m, K: TrieKey + ?Sized, V: Plain> OrderedEntries<'m, K, V> {
    fn new(map: &'m Map, range: Option<KeyRange>) -> Self {
        let entries = Entries::new(map, map.key_shape().cell_size(), |map, cell, bytes| {
            let key = map.named(map.key_shape().read_cell(cell).ok_or(MapError::KeyCell))?;
            Ok((owned::<K>(map, key)?, value(map, bytes)?))
        });
        Self(match range {
            Some(range) => entries.with_walk(|walk| walk.range(range)),
            None => entries,
        })
    }

    /// Goes from the greatest key to the least. To be called before the first element.
    #[must_use]
    pub fn reversed(self) -> Self {
        Self(self.0.with_walk(skep_maps::dump::Walk::reversed))
    }

    /// Removes what it returns, as [`Entries::taken`].
    #[must_use]
    pub fn taken(self) -> Self {
        Self(self.0.taken())
    }

    /// Returns only what was there when the walk began, as [`Entries::strict`].
    #[must_use]
    pub fn strict(self) -> Self {
        Self(self.0.strict())
    }
}

impl<K: TrieKey + ?Sized, V> Iterator for OrderedEntries<'_, K, V> {
    type Item = Result<(K::Owned, V)>;

    fn next(&mut self) -> Option<Self::Item> {
        self.0.next()
    }
}
