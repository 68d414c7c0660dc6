//! `skep symbolize --core FILE --stacks`: the call stacks of a process that left a core file.

use std::path::Path;

use serde_json::json;
use skep_proc::maps::{core_missing, core_vdso, open_core};
use skep_proc::module;
use skep_proc::symbolize::{AddressSpace, Fetch, Want};
use skep_proc::unwind::CoreStacks;

use super::Text;
use crate::args::SymbolizeArgs;
use crate::failure::{Context, FAILED, Failure, Result};
use crate::printer::{Output, Printer};

/// Frames of a thread that are printed.
const MOST: usize = 1000;

/// Adds the code that the kernel puts into each process, if the core file has it; says so if the file
/// was cut off.
pub fn add_vdso(space: &mut AddressSpace, core: &Path, printer: Printer) -> Result {
    let missing = core_missing(core).context(super::cannot_read(core))?;
    if missing > 0 {
        let path = core.display();
        printer.warning(&format!(
            "`{path}` was cut off, {missing} bytes are missing: names and stacks may be, too"
        ));
    }
    let vdso = core_vdso(core).context(super::cannot_read(core))?;
    // One that makes no sense is code without names.
    vdso.map(|(start, bytes)| space.add_image("[vdso]", start, bytes).ok());
    Ok(())
}

/// Prints the stacks; the exit status is 1 if a frame has no name.
pub fn print(
    path: &Path,
    args: &SymbolizeArgs,
    fetch: Option<Fetch>,
    printer: Printer,
) -> Result<u8> {
    let cannot = || super::cannot_read(path);
    let mut core = CoreStacks::open(path).context(cannot())?;
    let modules = module::saved(&open_core(path).context(cannot())?);
    let mut space =
        fetch.into_iter().fold(AddressSpace::of_modules(modules), AddressSpace::with_fetch);
    add_vdso(&mut space, path, printer)?;
    let threads = core.threads().to_vec();
    if threads.is_empty() {
        return Err(Failure::failed(format!("`{}` has no registers of threads", path.display())));
    }
    let want = Want { lines: !args.names, inlined: args.inlines };
    let mut named = true;
    let mut document = Vec::new();
    let stacks: Vec<_> =
        threads.iter().map(|t| (t.tid, core.walk(t.registers, MOST + 1))).collect();
    // All at once: each file is read once.
    let mut places: Vec<u64> =
        stacks.iter().flat_map(|(_, frames)| frames).map(|frame| frame.place()).collect();
    places.sort_unstable();
    places.dedup();
    let answers = space.find(&places, want);
    printer.data(Output::Stdout, |out| {
        for (tid, frames) in &stacks {
            let mut of_thread = Vec::new();
            if !args.format.json {
                writeln!(out, "thread {tid}")?;
            }
            for (number, frame) in frames.iter().take(MOST).enumerate() {
                let mut place = answers.get(frame.place());
                // The distance of the address that is printed.
                place.vaddr = place.vaddr.wrapping_add(frame.ip.wrapping_sub(frame.place()));
                let mangled = args.mangled;
                let text =
                    Text { mangled, place: &place, addr: frame.ip, vma: None, is_live: false };
                named &= text.function().is_some();
                if args.format.json {
                    of_thread.push(text.json());
                } else {
                    write!(out, "  #{number} ")?;
                    text.write(out)?;
                }
            }
            if frames.len() > MOST && !args.format.json {
                writeln!(out, "  more frames are left out")?;
            }
            if args.format.json {
                document
                    .push(json!({"thread": tid, "frames": of_thread, "cut": frames.len() > MOST}));
            }
        }
        Ok(())
    })?;
    if args.format.json {
        printer.json(Output::Stdout, &document)?;
    }
    Ok(if named { 0 } else { FAILED })
}
