//! `skep map list` and `show`: what maps there are, but not what is in them.

use std::io::Write;

use serde_json::{Value as Json, json};
use skep::isa::MapFlags;
use skep::maps::{Access, Map};

use super::find::{self, Source, type_name};
use crate::args::MapArgs;
use crate::directory;
use crate::failure::Result;
use crate::kernel::KernelMap;
use crate::printer::{Output, Printer};
use crate::units;

/// Lists maps.
pub fn list(kernel: bool, as_json: bool, printer: Printer) -> Result {
    let maps: Vec<Json> = if kernel {
        KernelMap::all()?.iter().map(details_of_kernel).collect()
    } else {
        find::all(&directory::open()?, printer)?.iter().map(details).collect()
    };
    if as_json {
        return printer.json(Output::Stdout, &maps);
    }
    printer.data(Output::Stdout, |out| {
        let memory = |text: &str| if kernel { String::new() } else { format!(" {text:>8}") };
        writeln!(
            out,
            "{:>6}  {:15}  {:16} {:>6} {:>7} {:>9}{}",
            "id",
            "name",
            "type",
            "key",
            "value",
            "entries",
            memory("memory")
        )?;
        for map in &maps {
            let number = |name: &str| map[name].as_u64().unwrap_or(0);
            let name = map["name"].as_str().filter(|n| !n.is_empty()).unwrap_or("-");
            writeln!(
                out,
                "{:>6}  {name:15}  {:16} {:>6} {:>7} {:>9}{}",
                number("id"),
                map["type"].as_str().unwrap_or("?"),
                units::size(number("key_size")),
                units::size(number("value_size")),
                number("max_entries"),
                memory(&units::size(number("memory"))),
            )?;
        }
        Ok(())
    })
}

/// Tells everything about one map.
pub fn show(args: &MapArgs, as_json: bool, printer: Printer) -> Result {
    let details = match Source::find(args, Access::ReadOnly, printer)? {
        Source::Ours(map, _) => details(&map),
        Source::Kernel(map) => details_of_kernel(&map),
    };
    if as_json {
        return printer.json(Output::Stdout, &details);
    }
    printer.data(Output::Stdout, |out| lines(out, &details))
}

/// Memory that was touched.
fn memory(map: &Map) -> u64 {
    use std::os::unix::fs::MetadataExt;
    std::fs::metadata(map.file().path()).map_or(0, |m| m.blocks() * 512)
}

fn details(map: &Map) -> Json {
    let def = map.def();
    json!({
        "id": map.id(),
        "name": def.name,
        "type": def.map_type.name(),
        "key_size": def.key_size,
        "value_size": def.value_size,
        "max_entries": def.max_entries,
        "flags": def.flags.0,
        "map_extra": def.map_extra,
        "frozen": map.is_frozen(),
        "btf_id": def.btf_id,
        "key_type_id": def.key_type_id,
        "value_type_id": def.value_type_id,
        "memory": memory(map),
        "path": map.file().path().to_string_lossy(),
    })
}

fn details_of_kernel(map: &KernelMap) -> Json {
    let info = &map.info;
    json!({
        "id": info.id,
        "name": info.name,
        "type": type_name(info.map_type(), info.type_number),
        "key_size": info.key_size,
        "value_size": info.value_size,
        "max_entries": info.max_entries,
        "flags": info.flags.0,
        "map_extra": info.map_extra,
        "btf_id": info.btf_id,
        "key_type_id": info.key_type_id,
        "value_type_id": info.value_type_id,
    })
}

fn lines(out: &mut dyn Write, details: &Json) -> std::io::Result<()> {
    for (name, value) in details.as_object().into_iter().flatten() {
        let text = match (name.as_str(), value) {
            ("key_size" | "value_size" | "memory", Json::Number(n)) => {
                units::size(n.as_u64().unwrap_or(0))
            }
            ("flags", Json::Number(n)) => {
                flags(n.as_u64().and_then(|n| u32::try_from(n).ok()).unwrap_or(0))
            }
            (_, Json::String(s)) => s.clone(),
            (_, other) => other.to_string(),
        };
        writeln!(out, "{name:14} {text}")?;
    }
    Ok(())
}

/// Flags by name, as `skep map create` takes them.
pub const FLAGS: [(u32, &str); 11] = [
    (MapFlags::NO_PREALLOC, "no_prealloc"),
    (MapFlags::NO_COMMON_LRU, "no_common_lru"),
    (MapFlags::NUMA_NODE, "numa_node"),
    (MapFlags::RDONLY, "rdonly"),
    (MapFlags::WRONLY, "wronly"),
    (MapFlags::ZERO_SEED, "zero_seed"),
    (MapFlags::RDONLY_PROG, "rdonly_prog"),
    (MapFlags::WRONLY_PROG, "wronly_prog"),
    (MapFlags::MMAPABLE, "mmapable"),
    (MapFlags::INNER_MAP, "inner_map"),
    (MapFlags::NO_LEAF_CACHE, "no_leaf_cache"),
];

fn flags(bits: u32) -> String {
    let names: Vec<&str> = FLAGS.iter().filter(|(f, _)| bits & f != 0).map(|(_, n)| *n).collect();
    if names.is_empty() {
        format!("{bits:#x}")
    } else {
        format!("{bits:#x} ({})", names.join(", "))
    }
}
