//! `skep map copy`: the elements of a map, put into another one, of ours or of the kernel.

use skep::isa::{KeyShape, MapType};
use skep::maps::{Access, Map};
use skep_text::elements::Elements;
use skep_text::entries::{Entries, Shape};
use skep_text::value::bytes;

use super::change::flags;
use super::destination::{Destination, Stored, fit_cpus};
use super::find::Source;
use super::no_elements;
use crate::args::{CopyArgs, KernelSide, MapArgs};
use crate::failure::{Failure, Result};
use crate::printer::Printer;
use crate::signals::Signals;
use crate::units;

/// Bytes of elements that are read together.
const BATCH: usize = 256 << 10;

/// Copies all elements.
pub fn copy(args: &CopyArgs, printer: Printer) -> Result<u8> {
    let find = |map: &str, sides: [KernelSide; 2], access| {
        let kernel = args.kernel.is_some_and(|kernel| sides.contains(&kernel));
        Source::find(&MapArgs { map: map.to_owned(), kernel }, access, printer)
    };
    let from = find(&args.from, [KernelSide::From, KernelSide::Both], Access::ReadOnly)?;
    let to = find(&args.to, [KernelSide::To, KernelSide::Both], Access::ReadWrite)?;
    let (source, target) = (from.shape()?, to.shape()?);
    check(args, (&from, &source), (&to, &target))?;
    let types = to.btf();
    let entries = Entries::of(target, types.as_ref(), false);
    let destination = match &to {
        Source::Ours(map, _) => Destination::ours(map, &args.to, &entries),
        Source::Kernel(map) => Destination::kernel(map, &args.to, &entries),
    };
    let value_size = match &to {
        Source::Ours(map, _) => map.user_value_size(),
        Source::Kernel(map) => map.value_size(),
    };
    let mut signals = Signals::install()?;
    let mut copy = Copy {
        shape: entries.shape(),
        value_size,
        destination: &destination,
        flags: flags(args.noexist, args.exist),
        signals: &mut signals,
        elements: Elements::new(entries.shape().keys),
        copied: 0,
        refused: None,
        done: Ok(true),
    };
    let read = match (&from, source.map_type) {
        (Source::Ours(map, _), MapType::Stack) => {
            // The last one of a walk is the next one to be popped: it has to be pushed last.
            let read = read_ours(map, |elements| copy.add(elements));
            copy.elements.reverse();
            if read.is_ok() && copy.refused.is_none() {
                copy.flush();
            }
            read
        }
        (Source::Ours(map, _), _) => read_ours(map, |elements| copy.batch(elements)),
        (Source::Kernel(map), _) => {
            let (key, value) = (source.keys.max_len(), map.value_size());
            map.walk(|keys, values, n| {
                let elements = keys.chunks_exact(key.max(1)).zip(values.chunks_exact(value.max(1)));
                copy.batch(&mut elements.take(n))
            })
        }
    };
    let copied = copy.copied;
    let done = match copy.refused {
        Some(refused) if matches!(copy.done, Ok(true)) => Err(refused),
        _ => copy.done,
    };
    let told = |mut failure: Failure| {
        failure.details.push(format!("copied {}", units::entries(copied as u64)));
        failure
    };
    read.map_err(told)?;
    if !done.map_err(told)? {
        printer.warning(&format!("interrupted: copied {}", units::entries(copied as u64)));
        return Ok(destination.interrupted());
    }
    printer.note(&format!("copied {}", units::entries(copied as u64)));
    Ok(0)
}

/// Refuses maps whose elements are not alike.
fn check(args: &CopyArgs, from: (&Source, &Shape), to: (&Source, &Shape)) -> Result {
    let (from_name, to_name) = (&args.from, &args.to);
    for (name, shape) in [(from_name, from.1), (to_name, to.1)] {
        if !Entries::of(shape.clone(), None, false).has_elements() {
            return Err(no_elements(name, shape.map_type));
        }
    }
    let kernel = |source: &Source| matches!(source, Source::Kernel(_));
    // Ids of ours count in each skep directory anew.
    let same = match (from.0, to.0) {
        (Source::Ours(from, _), Source::Ours(to, _)) => from.file().is_that_of(to.file()),
        (Source::Kernel(_), Source::Kernel(_)) => from.1.id == to.1.id,
        _ => false,
    };
    if same {
        return Err(Failure::failed(format!("`{from_name}` and `{to_name}` are the same map")));
    }
    let differ = |what: &str, a: String, b: String| {
        Err(Failure::failed(format!(
            "map `{from_name}` cannot be copied to map `{to_name}`: {what} {a}, and there {b}"
        )))
    };
    let keys = |shape: &Shape| match shape.keys {
        KeyShape::Fixed(size) => bytes(size as usize),
        KeyShape::Bytes { max } => format!("1 to {max} bytes"),
    };
    let (source, target) = (from.1, to.1);
    match (source.keys, target.keys) {
        // A key that is too long there is refused when it comes.
        (KeyShape::Bytes { .. }, KeyShape::Bytes { .. }) => {}
        (a, b) if a == b => {}
        (KeyShape::Fixed(0), _) | (_, KeyShape::Fixed(0)) => {
            let without = if source.keys == KeyShape::Fixed(0) { from_name } else { to_name };
            return Err(Failure::failed(format!(
                "map `{from_name}` cannot be copied to map `{to_name}`: `{without}` has no keys"
            )));
        }
        _ => return differ("its keys have", keys(source), keys(target)),
    }
    if source.value_size != target.value_size {
        let size = |shape: &Shape| bytes(shape.value_size);
        return differ("its values have", size(source), size(target));
    }
    if source.per_cpu != target.per_cpu {
        let values = |shape: &Shape| {
            (if shape.per_cpu { "one value for each CPU" } else { "one value" }).to_owned()
        };
        return differ("a key has", values(source), values(target));
    }
    let names = |shape: &Shape| {
        matches!(
            shape.map_type,
            MapType::ProgArray
                | MapType::ArrayOfMaps
                | MapType::HashOfMaps
                | MapType::CgroupArray
                | MapType::Xskmap
        )
    };
    let across = kernel(from.0) != kernel(to.0);
    if let Some(shape) = [source, target].into_iter().find(|shape| across && names(shape)) {
        return Err(Failure::failed(format!(
            "map `{from_name}` cannot be copied to map `{to_name}`: what is in a {} exists on its own side only",
            shape.map_type
        )));
    }
    Ok(())
}

/// Gives all elements of a map of ours to `each`, many at a time, until that returns `false`.
fn read_ours(
    map: &Map,
    mut each: impl FnMut(&mut dyn Iterator<Item = (&[u8], &[u8])>) -> bool,
) -> Result {
    let mut walk = map.walk();
    let size = walk.element_size().max(1);
    let mut buf = vec![0; (BATCH / size).max(1) * size];
    loop {
        let n = walk.rows(&mut buf).map_err(|e| {
            Failure::failed(format!("cannot read map `{}`", map.def().name)).because(&e)
        })?;
        if n == 0 || !each(&mut walk.elements(&buf, n)) {
            return Ok(());
        }
    }
}

struct Copy<'a> {
    /// Of the map that is changed.
    shape: &'a Shape,
    value_size: usize,
    destination: &'a Destination<'a>,
    flags: u64,
    signals: &'a mut Signals,
    elements: Elements,
    copied: usize,
    /// An element that does not go into the map.
    refused: Option<Failure>,
    /// `false` after a signal.
    done: Result<bool>,
}

impl Copy<'_> {
    /// Copies elements; `false` when there is no getting on.
    fn batch(&mut self, elements: &mut dyn Iterator<Item = (&[u8], &[u8])>) -> bool {
        let all = self.add(elements);
        self.flush() && all
    }

    /// Takes elements in; `false` when one cannot be copied.
    fn add(&mut self, elements: &mut dyn Iterator<Item = (&[u8], &[u8])>) -> bool {
        for (key, value) in elements {
            let fits = self.shape.check_key(key.len());
            let values = &mut self.elements.values;
            let done = fits.and_then(|()| fit_cpus(value, self.value_size, values));
            if let Err(what) = done {
                self.refused = Some(self.destination.unfit(key, &what));
                return false;
            }
            self.elements.push_key(key);
        }
        true
    }

    /// Stores what was taken in; `false` when there was no getting on.
    fn flush(&mut self) -> bool {
        let elements = std::mem::replace(&mut self.elements, Elements::new(self.shape.keys));
        let signals = &mut *self.signals;
        let Stored { count, failure } =
            self.destination.store(&elements, self.flags, || signals.take().map(|s| s.number));
        self.copied += count;
        self.done = match failure {
            Some(failure) => Err(failure),
            None => Ok(count == elements.count),
        };
        matches!(self.done, Ok(true))
    }
}
