//! Finding maps: by number, by name, by pin, here or in the kernel.

use std::path::{Path, PathBuf};

use skep::Dir;
use skep::dir::Kind;
use skep::isa::{KeyShape, MapType};
use skep::maps::{Access, Map, MapError};
use skep::object::Btf;
use skep_text::entries::Shape;

use crate::args::MapArgs;
use crate::directory;
use crate::failure::{Failure, Result};
use crate::kernel::{KernelMap, in_bpf_fs};
use crate::printer::Printer;

/// A map that can be read.
#[derive(Debug)]
pub enum Source {
    /// One of ours.
    Ours(Box<Map>, Dir),
    /// One of the running kernel.
    Kernel(Box<KernelMap>),
}

impl Source {
    /// Finds the map that was asked for.
    pub fn find(args: &MapArgs, access: Access, printer: Printer) -> Result<Self> {
        if args.kernel || is_kernels(Path::new(&args.map)) {
            return in_kernel(&args.map, access).map(|map| Self::Kernel(Box::new(map)));
        }
        let dir = directory::open()?;
        let map = find(&dir, &args.map, access, printer)?;
        Ok(Self::Ours(Box::new(map), dir))
    }

    /// What its bytes look like.
    pub fn shape(&self) -> Result<Shape> {
        match self {
            Self::Ours(map, _) => Ok(Shape::from(&**map)),
            Self::Kernel(map) => {
                let info = &map.info;
                let unknown = || {
                    Failure::failed(format!(
                        "map {} has type {}, which this version does not know",
                        info.id, info.type_number
                    ))
                };
                Ok(Shape {
                    id: info.id,
                    name: info.name.clone(),
                    map_type: info.map_type().ok_or_else(unknown)?,
                    keys: KeyShape::Fixed(info.key_size),
                    value_size: info.value_size as usize,
                    per_cpu: info.is_per_cpu(),
                    key_type_id: info.key_type_id,
                    value_type_id: info.value_type_id,
                })
            }
        }
    }

    /// Its types, if it has any.
    pub fn btf(&self) -> Option<Btf> {
        match self {
            Self::Ours(map, dir) if map.def().btf_id != 0 => skep::btf::open(dir, map.def().btf_id),
            Self::Ours(..) => None,
            Self::Kernel(map) => map.btf(),
        }
    }

    /// Finds the key after another one, the first one after none; `None` at the end.
    pub fn next_key(&self, key: Option<&[u8]>) -> Result<Option<Vec<u8>>> {
        match self {
            Self::Kernel(map) => map.next_key(key),
            Self::Ours(map, _) => match map.next_key(key) {
                Ok(next) => Ok(Some(next)),
                Err(MapError::NoElement) => Ok(None),
                Err(e) => Err(Failure::failed(format!(
                    "cannot walk over the keys of map `{}`",
                    map.def().name
                ))
                .because(&e)),
            },
        }
    }

    /// Copies the value of a key out; `None` when there is none.
    pub fn lookup(&self, key: &[u8]) -> Result<Option<Vec<u8>>> {
        match self {
            Self::Kernel(map) => map.lookup(key),
            Self::Ours(map, _) => match map.lookup(key) {
                Ok(value) => Ok(Some(value)),
                Err(MapError::NoElement) => Ok(None),
                Err(e) => {
                    Err(Failure::failed(format!("cannot look into map `{}`", map.def().name))
                        .because(&e))
                }
            },
        }
    }
}

/// Opens every map that can be opened; the others are told of.
pub fn all(dir: &Dir, printer: Printer) -> Result<Vec<Map>> {
    let mut maps = Vec::new();
    for id in dir.ids(Kind::Map)? {
        let path = dir.object(Kind::Map, id);
        match open(&path, Access::ReadOnly) {
            Ok(map) => maps.push(map),
            // It was removed since the directory was read.
            Err(_) if !path.exists() => {}
            Err(e) => printer.warning(&format!("map {id} cannot be read: {e}")),
        }
    }
    Ok(maps)
}

/// Tells whether a path leads to something that is pinned in the kernel. A relative one is the name
/// of a pin of ours.
fn is_kernels(path: &Path) -> bool {
    path.is_absolute() && in_bpf_fs(path)
}

/// Opens a map. Where the file system is full, what it has no memory for reads as zero.
fn open(path: &Path, access: Access) -> Result<Map, MapError> {
    let map = Map::open(path, access)?;
    skep::memory::guard();
    Ok(map)
}

/// Finds a map by id, by a name that only one map has, by a pin, or by the path of its file or of a
/// pin. What an earlier command left counts by its name only if no other map has the name.
pub fn find(dir: &Dir, text: &str, access: Access, printer: Printer) -> Result<Map> {
    let unusable =
        |e: MapError| Failure::environment(format!("map `{text}` cannot be opened")).because(&e);
    let path = Path::new(text);
    if is_kernels(path) {
        return Err(Failure::failed(format!(
            "`{text}` is a map of the kernel, which skep only reads"
        )));
    }
    if path.is_absolute() {
        return if path.exists() {
            open(path, access).map_err(unusable)
        } else {
            Err(missing(text))
        };
    }
    if let Ok(id) = text.parse::<u32>() {
        let path = dir.object(Kind::Map, id);
        return match open(&path, access) {
            Err(_) if !path.exists() => Err(missing(text)),
            done => done.map_err(unusable),
        };
    }
    let named = all(dir, printer)?
        .into_iter()
        .filter(|m| m.def().name == text || short(text) == m.def().name);
    // Not the maps: whoever has one open uses it.
    let mut named: Vec<u32> = named.map(|m| m.id()).collect();
    let pin = pin_path(dir, text).ok().filter(|pin| pin.exists());
    if named.len() > 1 || pin.is_some() {
        let used = |id: &u32| dir.is_used(Kind::Map, *id);
        if pin.is_some() || named.iter().any(used) {
            named.retain(used);
        }
    }
    match (named.as_slice(), pin) {
        ([id], _) => open(&dir.object(Kind::Map, *id), access).map_err(unusable),
        ([], Some(pin)) => open(&pin, access).map_err(unusable),
        ([], None) => Err(missing(text)),
        (several, _) => {
            let ids: Vec<String> = several.iter().map(u32::to_string).collect();
            Err(Failure::failed(format!("several maps are named `{text}`: {}", ids.join(", ")))
                .hint("use the id"))
        }
    }
}

/// Returns where a pin lies.
pub fn pin_path(dir: &Dir, name: &str) -> Result<PathBuf> {
    dir.pin(name).map_err(|e| {
        Failure::environment(format!("`{name}` cannot be the name of a pin: {}", e.why()))
    })
}

fn missing(text: &str) -> Failure {
    Failure::failed(format!("there is no map `{text}`"))
        .hint("`skep map list` shows all; a map that nothing uses or pins is removed when the next command loads something")
}

/// A name as files keep it.
pub fn short(name: &str) -> &str {
    name.get(..15).unwrap_or(name)
}

fn in_kernel(text: &str, access: Access) -> Result<KernelMap> {
    let map = named_in_kernel(text)?;
    if access == Access::ReadOnly { Ok(map) } else { map.for_writing() }
}

fn named_in_kernel(text: &str) -> Result<KernelMap> {
    let missing = || {
        Failure::failed(format!("the kernel has no map `{text}`"))
            .hint("`skep map list --kernel` shows all")
    };
    if let Ok(id) = text.parse::<u32>() {
        return KernelMap::open(id)?.ok_or_else(missing);
    }
    if text.starts_with('/') {
        return KernelMap::pinned(Path::new(text))?.ok_or_else(missing);
    }
    let mut named: Vec<KernelMap> =
        KernelMap::all()?.into_iter().filter(|m| m.info.name == short(text)).collect();
    match (named.len(), named.pop()) {
        (1, Some(map)) => Ok(map),
        (0, _) | (_, None) => Err(missing()),
        (_, Some(last)) => {
            let mut ids: Vec<String> = named.iter().map(|m| m.info.id.to_string()).collect();
            ids.push(last.info.id.to_string());
            Err(Failure::failed(format!(
                "several maps of the kernel are named `{text}`: {}",
                ids.join(", ")
            ))
            .hint("use the id"))
        }
    }
}

/// The name of a type, also of one this version does not know.
pub fn type_name(map_type: Option<MapType>, number: u32) -> String {
    map_type.map_or_else(|| format!("type_{number}"), |t| t.name().to_owned())
}
