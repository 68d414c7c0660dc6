//! The maps of a chain's objects, made in the kernel.

use std::collections::BTreeMap;

use skep_isa::{KeyShape, MapType};
use skep_kernel::{Btf, Map, MapSpec as KernelSpec};
use skep_object::{InnerValue, MapSpec, Object};

use super::error::KernelChainError as Error;
use crate::load::definition::{entries, short_name};

/// Finds a map that is there already, by object and definition.
pub type Existing<'a> = dyn Fn(usize, &MapSpec) -> Result<Option<Map>, Error> + 'a;

/// A map of an object, in the kernel.
#[derive(Debug)]
pub struct KernelMap {
    /// The object's number.
    pub object: usize,
    /// The map's, in the object.
    pub index: usize,
    /// Its whole name.
    pub name: String,
    /// The map.
    pub map: Map,
    /// It was there before.
    pub existed: bool,
}

/// Makes maps when they are asked for first.
pub struct Maps<'a> {
    objects: Vec<&'a Object>,
    existing: Option<&'a Existing<'a>>,
    types: Vec<Option<Option<Btf>>>,
    /// Place in `all` of an object's map.
    places: BTreeMap<(usize, usize), usize>,
    pub all: Vec<KernelMap>,
}

impl<'a> Maps<'a> {
    pub fn new(objects: Vec<&'a Object>, existing: Option<&'a Existing<'a>>) -> Self {
        let types = objects.iter().map(|_| None).collect();
        Self { objects, existing, types, places: BTreeMap::new(), all: Vec::new() }
    }

    /// Returns the place of an object's map, which is made if it is not there yet.
    pub fn place(&mut self, object: usize, index: usize) -> Result<usize, Error> {
        if let Some(place) = self.places.get(&(object, index)) {
            return Ok(*place);
        }
        let of = self.objects.get(object).copied().ok_or(Error::Parts)?;
        let spec = of.maps.get(index).ok_or(Error::Parts)?;
        let found = match self.existing {
            Some(existing) => existing(object, spec)?,
            None => None,
        };
        let existed = found.is_some();
        let map = match found {
            Some(map) => map,
            None => self.create(object, spec)?,
        };
        self.all.push(KernelMap { object, index, name: spec.name.clone(), map, existed });
        self.places.insert((object, index), self.all.len() - 1);
        Ok(self.all.len() - 1)
    }

    /// Returns a map by its place.
    pub fn get(&self, place: usize) -> Option<&Map> {
        self.all.get(place).map(|m| &m.map)
    }

    fn create(&mut self, object: usize, spec: &MapSpec) -> Result<Map, Error> {
        let refused = |why: String| Error::Map { map: spec.name.clone(), why };
        let name = short_name(&spec.name);
        let plain = plain(spec, &name).map_err(refused)?;
        let inner = match &spec.inner {
            Some(inner) => Some(self.create(object, inner)?),
            None => None,
        };
        let plain = KernelSpec { inner: inner.as_ref(), ..plain };
        let types = (spec.value_type_id != 0).then(|| self.types(object)).flatten();
        let types = types.map(|btf| (btf, [spec.key_type_id, spec.value_type_id]));
        let typed = types.is_some();
        let map = Map::create(&KernelSpec { types, ..plain });
        // Not all types of maps take types of keys and values.
        let map = if map.is_err() && typed { Map::create(&plain) } else { map };
        let map = map.map_err(|e| refused(e.to_string()))?;
        if let Some(data) = &spec.data {
            let mut value = data.clone();
            value.resize(spec.value_size as usize, 0);
            map.update(&0u32.to_ne_bytes(), &value, 0).map_err(|e| refused(e.to_string()))?;
        }
        if spec.frozen {
            map.freeze().map_err(|e| refused(e.to_string()))?;
        }
        Ok(map)
    }

    /// The object's types in the kernel; none where it does not take them.
    fn types(&mut self, object: usize) -> Option<&Btf> {
        let load = || Btf::load(self.objects.get(object)?.btf.as_deref()?.raw()).ok();
        let loaded = self.types.get_mut(object)?;
        if loaded.is_none() {
            *loaded = Some(load());
        }
        loaded.as_ref()?.as_ref()
    }

    /// Puts maps into maps of maps, and programs, which `program` loads, into program arrays.
    pub fn initialize(
        &mut self,
        mut program: impl FnMut(&mut Self, usize, &str) -> Result<i32, Error>,
    ) -> Result<(), Error> {
        let mut next = 0;
        // Maps that are made on the way come behind the others.
        while let Some((object, index, existed)) =
            self.all.get(next).map(|m| (m.object, m.index, m.existed))
        {
            let place = next;
            next += 1;
            let spec = self.objects.get(object).and_then(|o| o.maps.get(index));
            let Some(spec) = spec.filter(|_| !existed) else { continue };
            for (slot, value) in &spec.values {
                let fd = match value {
                    InnerValue::Map(inner) => {
                        let inner = self.place(object, *inner)?;
                        self.get(inner).map_or(-1, Map::fd)
                    }
                    InnerValue::Program(name) => program(self, object, name)?,
                };
                let Some(map) = self.get(place) else { continue };
                map.update(&slot.to_ne_bytes(), &fd.to_ne_bytes(), 0)
                    .map_err(|e| Error::Map { map: spec.name.clone(), why: e.to_string() })?;
            }
        }
        Ok(())
    }
}

/// What the kernel is asked for, without types and inner map.
pub fn plain<'n>(spec: &MapSpec, name: &'n str) -> Result<KernelSpec<'n>, String> {
    if let KeyShape::Bytes { .. } = spec.keys {
        return Err("the kernel has no maps whose keys are of any length".to_owned());
    }
    let value_size = match spec.map_type {
        MapType::Ringbuf => 0,
        _ => spec.value_size,
    };
    let most = entries(spec.map_type, spec.max_entries);
    Ok(KernelSpec {
        map_extra: spec.map_extra,
        name,
        ..KernelSpec::new(spec.map_type, spec.key_size(), value_size, most).flags(spec.flags.0)
    })
}
