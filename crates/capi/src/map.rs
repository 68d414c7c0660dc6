//! Maps, one element at a time.

use std::ffi::{c_char, c_int, c_void};
use std::os::unix::fs::MetadataExt;
use std::path::Path;

use skep::dir::Kind as Files;
use skep::isa::{KeyShape, MapType};
use skep::maps::{Cursor, MapDef};
use skep::{Map, Session};

use crate::call::{Answer, Failure, call};
use crate::errno;
use crate::handle::{self, Handle, Kind, Table};
use crate::memory::{self, Key, Plain};
use crate::session::OpenSession;

static MAPS: Table<Map> = Table::new("map");

impl Kind for Map {
    fn table() -> &'static Table<Self> {
        &MAPS
    }
}

/// `struct skep_map_def`.
#[repr(C)]
#[derive(Clone, Copy)]
#[expect(missing_docs, reason = "the header documents them")]
pub struct MapDefinition {
    pub map_type: u32,
    pub key_size: u32,
    pub value_size: u32,
    pub max_entries: u32,
    pub map_flags: u32,
    pub reserved: u32,
    pub map_extra: u64,
    pub name: *const c_char,
    pub inner: Handle,
}

// SAFETY: six words, and three double words at a multiple of eight.
unsafe impl Plain for MapDefinition {
    const LEAST: usize = 48;
    const NAME: &'static str = "struct skep_map_def";
}

/// `struct skep_map_info`.
#[repr(C)]
#[derive(Clone, Copy)]
#[expect(missing_docs, reason = "the header documents them")]
pub struct MapInfo {
    pub map_type: u32,
    pub id: u32,
    pub key_size: u32,
    pub value_size: u32,
    pub max_entries: u32,
    pub map_flags: u32,
    pub map_extra: u64,
    pub key_cell_size: u32,
    pub lookup_size: u32,
    pub cursor_size: u32,
    pub strict_cursor_size: u32,
    pub btf_id: u32,
    pub frozen: u32,
    pub name: [u8; 16],
}

// SAFETY: words, a double word at a multiple of eight, and bytes up to one.
unsafe impl Plain for MapInfo {
    const LEAST: usize = 72;
    const NAME: &'static str = "struct skep_map_info";
}

/// A failure of an operation on a map.
pub fn failed(map: &Map) -> impl Fn(skep::maps::MapError) -> Failure {
    let name = map.name().to_owned();
    move |e| Failure::new(e.errno(), format!("map `{name}`: {e}"))
}

/// Refuses values of another size than the map's. (The library takes those of per-CPU maps with
/// another number of CPUs, which files of other machines have.)
pub fn check_value(map: &Map, size: usize) -> Result<(), Failure> {
    let want = map.user_value_size();
    if size == want {
        return Ok(());
    }
    let text = format!("map `{}`: values have {want} bytes, not {size}", map.name());
    Err(Failure::new(errno::EINVAL, text))
}

fn number(n: usize) -> u32 {
    u32::try_from(n).unwrap_or(u32::MAX)
}

/// # Safety
/// As the header says.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn skep_map_create(
    session: Handle,
    def: *const MapDefinition,
    size: usize,
    out: *mut Handle,
) -> c_int {
    // SAFETY: `def` has `size` bytes, the texts in it are texts, `out` is a place for a handle: the
    // caller's promise.
    call(|| unsafe {
        let session = handle::get::<OpenSession>(session)?;
        let given = memory::read(def, size)?;
        let map_type = MapType::from_raw(given.map_type).ok_or_else(|| {
            Failure::new(errno::EINVAL, format!("there is no map type {}", given.map_type))
        })?;
        memory::check_reserved(given.reserved)?;
        let name = memory::text_or_none(given.name, "name")?.unwrap_or_default();
        let mut def = MapDef::new(map_type, given.key_size, given.value_size, given.max_entries)
            .named(name)
            .flags(given.map_flags)
            .extra(given.map_extra);
        if !given.inner.is_null() {
            def = def.inner(handle::get::<Map>(given.inner)?.def());
        }
        session.makes_one();
        handle::give(out, || Ok(session.create_map(&def)?))
    })
}

/// # Safety
/// As the header says.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn skep_map_open_id(session: Handle, id: u32, out: *mut Handle) -> c_int {
    // SAFETY: `out` is a place for a handle: the caller's promise.
    call(|| unsafe {
        let session = handle::get::<OpenSession>(session)?;
        handle::give(out, || Ok(session.open_map(id)?))
    })
}

/// # Safety
/// As the header says.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn skep_map_open_name(
    session: Handle,
    name: *const c_char,
    out: *mut Handle,
) -> c_int {
    // SAFETY: `name` is a text, `out` a place for a handle: the caller's promise.
    call(|| unsafe {
        let session = handle::get::<OpenSession>(session)?;
        let name = memory::text(name, "name")?;
        handle::give(out, || Ok(session.find_map(name)?))
    })
}

/// # Safety
/// As the header says.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn skep_map_open_path(
    session: Handle,
    path: *const c_char,
    out: *mut Handle,
) -> c_int {
    // SAFETY: `path` is a text, `out` a place for a handle: the caller's promise.
    call(|| unsafe {
        let session = handle::get::<OpenSession>(session)?;
        let path = memory::text(path, "path")?;
        handle::give(out, || Ok(session.open_map_at(path)?))
    })
}

/// Tells whether a map is in the directory of a session, by whatever path it was opened.
fn is_of(session: &Session, map: &Map) -> bool {
    let file = |path: &Path| std::fs::metadata(path).ok().map(|file| (file.dev(), file.ino()));
    let there = file(&session.dir().object(Files::Map, map.id()));
    there.is_some() && there == file(map.file().path())
}

/// # Safety
/// As the header says.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn skep_map_pin(session: Handle, map: Handle, name: *const c_char) -> c_int {
    call(|| {
        let (session, map) = (handle::get::<OpenSession>(session)?, handle::get::<Map>(map)?);
        if !is_of(&session, &map) {
            let (name, dir) = (map.name(), session.dir().path().display());
            let text = format!("map `{name}` is in another directory than the session's, `{dir}`");
            return Err(Failure::new(errno::EINVAL, text));
        }
        // SAFETY: `name` is a text: the caller's promise.
        session.pin_map(&map, unsafe { memory::text(name, "name") }?)?;
        Ok(0)
    })
}

/// # Safety
/// As the header says.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn skep_map_unpin(session: Handle, name: *const c_char) -> c_int {
    call(|| {
        let session = handle::get::<OpenSession>(session)?;
        // SAFETY: `name` is a text: the caller's promise.
        session.unpin_map(unsafe { memory::text(name, "name") }?)?;
        Ok(0)
    })
}

/// # Safety
/// As the header says.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn skep_map_info(map: Handle, info: *mut MapInfo, size: usize) -> c_int {
    call(|| {
        let map = handle::get::<Map>(map)?;
        let def = map.def();
        let mut name = [0; 16];
        for (to, from) in name.iter_mut().take(15).zip(def.name.bytes()) {
            *to = from;
        }
        let all = MapInfo {
            map_type: def.map_type as u32,
            id: map.id(),
            key_size: def.key_size,
            value_size: def.value_size,
            max_entries: def.max_entries,
            map_flags: def.flags.0,
            map_extra: def.map_extra,
            key_cell_size: number(map.key_shape().cell_size()),
            lookup_size: number(map.user_value_size()),
            cursor_size: number(Cursor::len_in(&map)),
            strict_cursor_size: number(Cursor::strict_len_in(&map)),
            btf_id: def.btf_id,
            frozen: u32::from(map.is_frozen()),
            name,
        };
        // SAFETY: `info` has `size` bytes: the caller's promise.
        unsafe { memory::write(info, size, &all) }.map(|()| 0)
    })
}

/// Buffers of an operation on an element, as C gives them.
struct Element {
    map: Handle,
    key: (*const c_void, usize),
    value: (*mut c_void, usize),
}

impl Element {
    /// Runs an operation that writes the value.
    ///
    /// # Safety
    /// The buffers have these sizes, and nobody else uses them.
    unsafe fn read(
        self,
        run: impl FnOnce(&Map, &[u8], &mut [u8]) -> Result<(), skep::maps::MapError>,
    ) -> Answer {
        let map = handle::get::<Map>(self.map)?;
        memory::check_apart(self.key, self.value)?;
        check_value(&map, self.value.1)?;
        // SAFETY: the caller's promise; they do not overlap.
        let (key, value) = unsafe {
            (
                memory::input(self.key.0, self.key.1, "key")?,
                memory::output(self.value.0, self.value.1, "value")?,
            )
        };
        run(&map, key, value).map_err(failed(&map)).map(|()| 0)
    }
}

/// A key of a map in memory that nobody writes to.
fn own_key<'a>(map: &Map, given: &'a [u8]) -> Key<'a> {
    Key::of(given, map.key_shape().max_len())
}

/// # Safety
/// As the header says.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn skep_map_lookup(
    map: Handle,
    key: *const c_void,
    key_size: usize,
    value: *mut c_void,
    value_size: usize,
    flags: u64,
) -> c_int {
    let element = Element { map, key: (key, key_size), value: (value, value_size) };
    // SAFETY: the caller's promise.
    call(|| unsafe { element.read(|map, key, value| map.lookup_into(key, value, flags)) })
}

/// # Safety
/// As the header says.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn skep_map_lookup_and_delete(
    map: Handle,
    key: *const c_void,
    key_size: usize,
    value: *mut c_void,
    value_size: usize,
    flags: u64,
) -> c_int {
    let element = Element { map, key: (key, key_size), value: (value, value_size) };
    // SAFETY: the caller's promise.
    call(|| unsafe {
        element.read(|map, key, value| map.lookup_and_delete(&own_key(map, key), value, flags))
    })
}

/// # Safety
/// As the header says.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn skep_map_update(
    map: Handle,
    key: *const c_void,
    key_size: usize,
    value: *const c_void,
    value_size: usize,
    flags: u64,
) -> c_int {
    // SAFETY: the buffers have these sizes: the caller's promise.
    call(|| unsafe {
        let map = handle::get::<Map>(map)?;
        let key = own_key(&map, memory::input(key, key_size, "key")?);
        let value = memory::input(value, value_size, "value")?;
        check_value(&map, value_size)?;
        map.update(&key, value, flags).map_err(failed(&map)).map(|()| 0)
    })
}

/// # Safety
/// As the header says.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn skep_map_delete(
    map: Handle,
    key: *const c_void,
    key_size: usize,
) -> c_int {
    call(|| {
        let map = handle::get::<Map>(map)?;
        // SAFETY: the buffer has this size: the caller's promise.
        let key = own_key(&map, unsafe { memory::input(key, key_size, "key") }?);
        map.delete(&key).map_err(failed(&map)).map(|()| 0)
    })
}

/// # Safety
/// As the header says.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn skep_map_next_key(
    map: Handle,
    key: *const c_void,
    key_size: usize,
    next: *mut c_void,
    next_size: *mut usize,
) -> c_int {
    // SAFETY: the buffers have these sizes: the caller's promise. The key is not used any more when
    // the next one is written, which may go to the same place.
    call(|| unsafe {
        let map = handle::get::<Map>(map)?;
        let room = memory::number(next_size, "size of the next key")?;
        memory::check_beside(next_size, (next, room))?;
        let found = if key.is_null() {
            map.next_key(None)
        } else {
            map.next_key(Some(memory::input(key, key_size, "key")?))
        };
        let found = found.map_err(failed(&map))?;
        memory::set(next_size, found.len(), "size of the next key")?;
        let Some(out) = memory::output(next, room, "next key")?.get_mut(..found.len()) else {
            let text = format!("the next key has size {}, the buffer {room}", found.len());
            return Err(Failure::new(errno::ENOSPC, text));
        };
        out.copy_from_slice(&found);
        Ok(0)
    })
}

/// Forbids users to write.
#[unsafe(no_mangle)]
pub extern "C" fn skep_map_freeze(map: Handle) -> c_int {
    call(|| {
        let map = handle::get::<Map>(map)?;
        map.freeze().map_err(failed(&map)).map(|()| 0)
    })
}

/// Frees a map's handle.
#[unsafe(no_mangle)]
pub extern "C" fn skep_map_free(map: Handle) -> c_int {
    handle::free::<Map>(map)
}

/// # Safety
/// As the header says.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn skep_map_cell_key(
    map: Handle,
    cell: *const c_void,
    key: *mut *const c_void,
    key_size: *mut usize,
) -> c_int {
    // SAFETY: the cell has the size that `skep_map_info` says: the caller's promise.
    call(|| unsafe {
        let map = handle::get::<Map>(map)?;
        let shape = map.key_shape();
        let bytes = memory::input(cell, shape.cell_size(), "cell")?;
        let (found, size) = match shape {
            // Of a queue, too, whose keys have no bytes.
            KeyShape::Fixed(_) => (cell, bytes.len()),
            shape => {
                let found = shape.read_cell(bytes);
                let found = found.ok_or_else(|| failed(&map)(skep::maps::MapError::KeyCell))?;
                (found.as_ptr().cast(), found.len())
            }
        };
        memory::set(key, found, "address of the key")?;
        memory::set(key_size, size, "size of the key")?;
        Ok(0)
    })
}
