//! `skep map load`: puts into a map what `skep map dump` printed.
//!
//! All of a file is read before the first element is stored, so a file with a mistake changes
//! nothing.

use std::io::Read;
use std::path::Path;

use skep::isa::MapType;
use skep::maps::Access;
use skep_text::entries::{Entries, Shape};
use skep_text::read::parse;

use super::change::flags;
use super::destination::{Destination, Stored};
use super::{find, no_elements};
use crate::args::LoadArgs;
use crate::directory;
use crate::failure::{Failure, Result};
use crate::files;
use crate::printer::Printer;
use crate::signals::Signals;
use crate::units;

/// Loads a file.
pub fn load(args: &LoadArgs, printer: Printer) -> Result<u8> {
    let dir = directory::open()?;
    let map = find::find(&dir, &args.map, Access::ReadWrite, printer)?;
    let shape = Shape::from(&map);
    let types = match map.def().btf_id {
        0 => None,
        id => skep::btf::open(&dir, id),
    };
    if !Entries::of(shape.clone(), None, false).has_elements() {
        return Err(no_elements(&args.map, shape.map_type));
    }
    let name = args.file.to_string_lossy();
    let name = if name == "-" { "stdin" } else { &name };
    let bytes =
        read(&args.file).map_err(|e| Failure::environment(format!("cannot read `{name}`: {e}")))?;
    let cpus = map.user_value_size() / shape.value_size.next_multiple_of(8).max(1);
    let (mut elements, interrupted) = parse(&bytes, &shape, types.as_ref(), args.raw, cpus)
        .map_err(|(problem, hint)| {
            let what = format!(
                "cannot load `{name}` into map `{}`: {}: {}",
                args.map, problem.at, problem.what
            );
            let mut failure = Failure::environment(what);
            failure.details.push("nothing was loaded".to_owned());
            hint.into_iter().fold(failure, Failure::hint)
        })?;
    drop(bytes);
    if interrupted {
        printer.warning(&format!("`{name}` is a dump that was interrupted: it lacks elements"));
    }
    if shape.map_type == MapType::Stack {
        // What was printed first was pushed last.
        elements.reverse();
    }
    let entries = Entries::of(shape, types.as_ref(), args.raw);
    let destination = Destination::ours(&map, &args.map, &entries);
    let mut signals = Signals::install()?;
    let flags = flags(args.noexist, args.exist);
    let total = elements.count;
    let Stored { count, failure } =
        destination.store(&elements, flags, || signals.take().map(|signal| signal.number));
    if let Some(mut failure) = failure {
        failure.details.push(format!("loaded {count} of {}", units::entries(total as u64)));
        return Err(failure);
    }
    if count < total {
        printer
            .warning(&format!("interrupted: loaded {count} of {}", units::entries(total as u64)));
        return Ok(destination.interrupted());
    }
    printer.note(&format!("loaded {}", units::entries(total as u64)));
    Ok(0)
}

fn read(file: &Path) -> std::io::Result<Vec<u8>> {
    if file != Path::new("-") {
        return files::read(file);
    }
    let mut bytes = Vec::new();
    std::io::stdin().lock().read_to_end(&mut bytes)?;
    Ok(bytes)
}
