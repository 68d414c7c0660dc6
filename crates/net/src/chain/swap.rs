//! What is current: one value that threads read while another is put in its place.
//!
//! A reader keeps the value that it saw last, and before each use compares one number with the
//! number of values so far. So a packet runs through one chain from its beginning to its end, the
//! usual case is one load and one comparison, and an old chain is freed when the last reader has
//! come to the new one. A reader that gets no packets keeps the old one until it gets one.
//!
//! The value itself is behind a lock, which is only taken when the number has changed.

use std::sync::atomic::{
    AtomicU64,
    Ordering::{Acquire, Release},
};
use std::sync::{Arc, Mutex, PoisonError};

/// A value that is replaced as a whole.
///
/// ```
/// use std::sync::Arc;
/// use skep_net::chain::swap::Current;
///
/// let current = Arc::new(Current::new("old"));
/// let mut reader = Current::reader(&current);
/// assert_eq!(**reader.get(), "old");
/// current.publish("new");
/// assert_eq!(**reader.get(), "new");
/// ```
#[derive(Debug)]
pub struct Current<T> {
    /// How many values there were before this one.
    number: AtomicU64,
    value: Mutex<Arc<T>>,
}

/// A thread's view of the current value.
#[derive(Debug)]
pub struct Reader<T> {
    current: Arc<Current<T>>,
    number: u64,
    value: Arc<T>,
}

impl<T> Current<T> {
    /// Begins with a value.
    #[must_use]
    pub fn new(value: T) -> Self {
        Self { number: AtomicU64::new(0), value: Mutex::new(Arc::new(value)) }
    }

    /// Puts another value in place of the current one. What readers have begun with the old one
    /// they end with it.
    pub fn publish(&self, value: T) {
        let new = Arc::new(value);
        let mut value = self.value.lock().unwrap_or_else(PoisonError::into_inner);
        let old = std::mem::replace(&mut *value, new);
        // Pairs with the Acquire of `Reader::get`. Only who has the lock adds.
        self.number.fetch_add(1, Release);
        drop(value);
        // What may take long happens without the lock.
        drop(old);
    }

    /// Returns the current value, and its number.
    #[must_use]
    pub fn load(&self) -> (Arc<T>, u64) {
        let value = self.value.lock().unwrap_or_else(PoisonError::into_inner);
        (Arc::clone(&value), self.number.load(Acquire))
    }

    /// Makes a view for one thread.
    #[must_use]
    pub fn reader(current: &Arc<Self>) -> Reader<T> {
        let (value, number) = current.load();
        Reader { current: Arc::clone(current), number, value }
    }
}

impl<T> Reader<T> {
    /// Returns the current value, which stays the same until the next call.
    #[inline]
    pub fn get(&mut self) -> &Arc<T> {
        // Pairs with the Release of `publish`.
        if self.current.number.load(Acquire) != self.number {
            (self.value, self.number) = self.current.load();
        }
        &self.value
    }

    /// Tells whether what [`Reader::get`] returned last is still the current value.
    #[inline]
    #[must_use]
    pub fn is_current(&self) -> bool {
        // Pairs with the Release of `publish`.
        self.current.number.load(Acquire) == self.number
    }
}
