//! Records that programs send: ring buffers, and arrays of perf events.

use std::marker::PhantomData;
use std::time::{Duration, Instant};

use skep_isa::MapType;
use skep_maps::{Consumer, PerfReader};

use crate::error::{Error, Result};
use crate::map::Map;
use crate::typed::Plain;

/// How long one wait is when there is no end to it.
const LONG: Duration = Duration::from_secs(3600);

#[derive(Debug)]
enum Source {
    Ring(Consumer),
    Perf(PerfReader),
}

/// The reading side of a ring buffer, or of an array of perf events. There is one at a time among
/// all processes; it ends with the value, and what was not read stays for the next.
///
/// A forked child has it in common with its parent, as it would have a descriptor of the kernel's ring: what
/// the child takes out, the parent does not get. One of them may read; it ends with the parent.
#[derive(Debug)]
pub struct Ring {
    map: Map,
    source: Source,
}

impl Ring {
    pub(crate) fn of(map: Map) -> Result<Self> {
        map.check_type(&[MapType::Ringbuf, MapType::PerfEventArray], "ring buffer")?;
        let source = if map.map_type() == MapType::Ringbuf {
            Source::Ring(map.named(map.consumer())?)
        } else {
            Source::Perf(map.named(map.perf_reader())?)
        };
        Ok(Self { map, source })
    }

    /// Takes the next record out; `None` when there is none yet.
    ///
    /// # Errors
    /// When the ring's memory is damaged.
    pub fn try_next(&mut self) -> Result<Option<&[u8]>> {
        let next = match &mut self.source {
            Source::Ring(consumer) => consumer.next_record(),
            Source::Perf(reader) => reader.next_record().map(|next| next.map(|(_, record)| record)),
        };
        next.map_err(|source| Error::Map { map: self.map.name().to_owned(), source })
    }

    /// Waits until there may be a record, at most so long; the thread sleeps meanwhile.
    pub fn wait(&self, timeout: Duration) -> bool {
        match &self.source {
            Source::Ring(consumer) => consumer.wait(timeout),
            Source::Perf(reader) => reader.wait(timeout),
        }
    }

    /// Counts the records that got lost, because nobody took them out in time. A program whose
    /// record finds no room in a ring buffer is told so itself, and this is 0.
    #[must_use]
    pub fn lost(&self) -> u64 {
        match &self.source {
            Source::Ring(_) => 0,
            Source::Perf(reader) => reader.lost().sum(),
        }
    }

    /// Takes the records for values of a type.
    #[must_use]
    pub fn typed<T: Plain>(self) -> Events<T> {
        Events { ring: self, limit: None, damaged: false, types: PhantomData }
    }
}

/// The records of a ring as values. As an iterator it waits for the next one, without an end.
///
/// ```no_run
/// # #[derive(skep::zerocopy::FromBytes, skep::zerocopy::IntoBytes, skep::zerocopy::Immutable)]
/// # #[derive(Clone, Copy)]
/// # #[repr(C)]
/// # struct Event { pid: u32, size: u32 }
/// # fn read(object: &skep::Object) -> Result<(), skep::Error> {
/// for event in object.ring("events")?.typed::<Event>() {
///     let event = event?;
///     println!("{}: {} bytes", event.pid, event.size);
/// }
/// # Ok(())
/// # }
/// ```
#[derive(Debug)]
pub struct Events<T> {
    ring: Ring,
    limit: Option<Duration>,
    /// The ring is damaged: there is no next record.
    damaged: bool,
    types: PhantomData<fn() -> T>,
}

impl<T: Plain> Events<T> {
    /// Ends the iteration when no record has come for so long; at once with a limit of zero.
    #[must_use]
    pub fn until_idle(self, limit: Duration) -> Self {
        Self { limit: Some(limit), ..self }
    }

    /// Takes the next record out; `None` when there is none yet.
    ///
    /// # Errors
    /// When it is of another size than `T`, or the ring's memory is damaged.
    pub fn try_next(&mut self) -> Result<Option<T>> {
        let map = self.ring.map.clone();
        let Some(record) = self.ring.try_next()? else { return Ok(None) };
        // Perf events are padded to eight bytes.
        let bytes = record.get(..size_of::<T>());
        let whole = record.len() == size_of::<T>()
            || (map.map_type() == MapType::PerfEventArray
                && record.len() < size_of::<T>().saturating_add(8));
        if let Some(Ok(value)) = bytes.filter(|_| whole).map(T::read_from_bytes) {
            return Ok(Some(value));
        }
        map.check_size::<T>("record", record.len()).map(|()| None)
    }

    /// Takes the next record out, and waits for it, at most so long.
    ///
    /// # Errors
    /// As for [`Events::try_next`].
    pub fn next_within(&mut self, limit: Duration) -> Result<Option<T>> {
        let begin = Instant::now();
        loop {
            if let Some(event) = self.try_next()? {
                return Ok(Some(event));
            }
            let left = limit.saturating_sub(begin.elapsed());
            if left.is_zero() {
                return Ok(None);
            }
            self.ring.wait(left);
        }
    }

    /// Returns the reading side, to count lost records, or to read bytes.
    pub fn ring(&mut self) -> &mut Ring {
        &mut self.ring
    }
}

impl<T: Plain> Iterator for Events<T> {
    type Item = Result<T>;

    fn next(&mut self) -> Option<Self::Item> {
        while !self.damaged {
            match self.next_within(self.limit.unwrap_or(LONG)) {
                Ok(None) if self.limit.is_none() => {}
                done => {
                    self.damaged = matches!(done, Err(Error::Map { .. }));
                    return done.transpose();
                }
            }
        }
        None
    }
}
