//! Global variables: found by name, given other first values before the object is loaded.

use crate::btf::{Bits, Kind, MAX_DEPTH, SecVar, TypeId, Value, ValueError};
use crate::{Btf, Object, kconfig};

/// Most names an error lists.
const MAX_LISTED: usize = 24;

/// One global variable of an object, settable before it is loaded.
#[derive(Clone, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub struct Global {
    /// The name in the source.
    pub name: String,
    /// The map it lies in: an index into the object's maps.
    pub map: usize,
    /// Where it lies in the map's only value.
    pub offset: u32,
    /// Its bytes.
    pub size: u32,
    /// Its type, in the object's BTF.
    pub type_id: TypeId,
}

/// Says why a global variable cannot be set.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
#[non_exhaustive]
pub enum GlobalError {
    /// The object was compiled without `-g`.
    #[error("`{name}`: the object has no types (BTF), so its variables have no names")]
    NoTypes {
        /// The variable asked for.
        name: String,
    },
    /// There is no such variable.
    #[error("there is no global variable `{name}`{}", listed(known))]
    Unknown {
        /// The variable asked for.
        name: String,
        /// Those there are, the likeliest first; at most 24.
        known: Vec<String>,
    },
    /// Several variables have this name.
    #[error("`{name}` is the name of {} variables: in {}", sections.len(), sections.join(", "))]
    Ambiguous {
        /// The variable asked for.
        name: String,
        /// The sections they lie in.
        sections: Vec<String>,
    },
    /// The path goes where its variable has nothing.
    #[error("`{path}`: `{ty}` has no `{step}`")]
    Path {
        /// The whole path.
        path: String,
        /// The type that the step does not lead into.
        ty: String,
        /// The step.
        step: String,
    },
    /// The value does not fit.
    #[error("{}{source}", before(path, source))]
    Value {
        /// The variable, or the member of it.
        path: String,
        /// What does not fit.
        source: ValueError,
    },
}

fn before(path: &str, source: &ValueError) -> String {
    if source.has_path() { String::new() } else { format!("`{path}`: ") }
}

fn misfit(path: &str) -> impl Fn(ValueError) -> GlobalError {
    move |source| GlobalError::Value { path: path.to_owned(), source: source.within(path) }
}

fn listed(known: &[String]) -> String {
    if known.is_empty() {
        "; the object has none".to_owned()
    } else {
        format!("; there is `{}`", known.join("`, `"))
    }
}

impl Object {
    /// Lists the global variables, `.kconfig` included, in order of map and place.
    #[must_use]
    pub fn globals(&self) -> Vec<Global> {
        let mut out = Vec::new();
        let Some(btf) = &self.btf else { return out };
        for (map, spec) in self.maps.iter().enumerate().filter(|(_, m)| m.is_global_data()) {
            let Ok(Kind::DataSec(sec)) = btf.get(spec.value_type_id).map(|t| &t.kind) else {
                continue;
            };
            let variables = sec.vars.iter().filter_map(|v| global(btf, map, v));
            out.extend(
                variables.filter(|g| {
                    u64::from(g.offset) + u64::from(g.size) <= u64::from(spec.value_size)
                }),
            );
        }
        out
    }

    /// Gives a global variable, or a part of one (`config.limits[2].max`), another value, as text.
    ///
    /// Values are read by their types: [`Btf::read_text`] says how, but a `bool` is 0 or 1. A configuration value (`extern
    /// … __kconfig`) also takes what a configuration file would say: `y`, `n`, `m`, `250`,
    /// `"text"`.
    ///
    /// ```no_run
    /// let bytes = std::fs::read("opens.bpf.o")?;
    /// let mut object = skep_object::Object::parse(&bytes)?;
    /// object.set_global("min_ns", "1000000")?;
    /// object.set_global("filter.comm", "sort")?;
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    /// When there is no such variable or part, when the text is no value of its type, or a number
    /// does not fit. The object is then as before.
    pub fn set_global(&mut self, path: &str, text: &str) -> Result<(), GlobalError> {
        let place = self.locate(path)?;
        if self.is_kconfig(&place) && path == place.global.name && self.fix_kconfig(path, text) {
            return Ok(());
        }
        let btf = self.btf.clone().ok_or_else(|| GlobalError::NoTypes { name: path.to_owned() })?;
        let value = btf.read_initializer(place.part.type_id, text).map_err(misfit(path))?;
        self.put(path, &place, &value)
    }

    /// Gives a global variable, or a part of one, another value.
    ///
    /// # Errors
    /// As [`set_global`](Self::set_global).
    pub fn set_global_value(&mut self, path: &str, value: &Value) -> Result<(), GlobalError> {
        let place = self.locate(path)?;
        self.put(path, &place, value)
    }

    /// Returns the value a global variable, or a part of one, will have at first.
    ///
    /// # Errors
    /// When there is no such variable or part.
    pub fn global(&self, path: &str) -> Result<Value, GlobalError> {
        let place = self.locate(path)?;
        let btf =
            self.btf.as_ref().ok_or_else(|| GlobalError::NoTypes { name: path.to_owned() })?;
        let spec = self.maps.get(place.global.map);
        let mut data = spec.and_then(|m| m.data.clone()).unwrap_or_default();
        data.resize(spec.map_or(0, |m| m.value_size as usize), 0);
        let bytes = data.get(place.global.offset as usize..).unwrap_or(&[]);
        if place.part.width != 0 {
            return btf
                .decode_bitfield(place.part.type_id, place.part.offset, place.part.width, bytes)
                .map_err(misfit(path));
        }
        btf.decode(place.part.type_id, bytes.get((place.part.offset / 8) as usize..).unwrap_or(&[]))
            .map_err(misfit(path))
    }

    fn put(&mut self, path: &str, place: &Place, value: &Value) -> Result<(), GlobalError> {
        let Some(btf) = self.btf.clone() else {
            return Err(GlobalError::NoTypes { name: path.to_owned() });
        };
        let is_kconfig = self.is_kconfig(place);
        let Some(spec) = self.maps.get_mut(place.global.map) else {
            return Err(GlobalError::NoTypes { name: path.to_owned() });
        };
        let Some(data) = &mut spec.data else {
            return Err(GlobalError::NoTypes { name: path.to_owned() });
        };
        let (start, end) = (
            place.global.offset as usize,
            place.global.offset as usize + place.global.size as usize,
        );
        // Sections without contents are stored as nothing.
        let stored = data.len();
        if stored < end {
            data.resize(spec.value_size as usize, 0);
        }
        let done = btf
            .encode_at(&place.part, value, data.get_mut(start..end).unwrap_or_default())
            .map_err(misfit(path));
        if done.is_err() {
            data.truncate(stored);
        } else if is_kconfig {
            self.kconfig
                .iter_mut()
                .filter(|v| v.name == place.global.name)
                .for_each(crate::KconfigVar::fix);
        }
        done
    }

    fn is_kconfig(&self, place: &Place) -> bool {
        self.maps.get(place.global.map).is_some_and(|m| m.section == kconfig::SECTION)
    }

    /// Finds a variable and the part of it that a path means.
    fn locate(&self, path: &str) -> Result<Place, GlobalError> {
        let Some(btf) = &self.btf else {
            return Err(GlobalError::NoTypes { name: path.to_owned() });
        };
        let all = self.globals();
        // Names of static variables in functions have dots themselves: the longest name that fits
        // counts.
        let is_end = |rest: &str| rest.is_empty() || rest.starts_with(['.', '[']);
        let fits = |g: &Global| path.strip_prefix(g.name.as_str()).is_some_and(is_end);
        let longest = all.iter().filter(|g| fits(g)).map(|g| g.name.len()).max();
        let Some(len) = longest else { return Err(unknown(path, &all)) };
        let mut found: Vec<Global> =
            all.into_iter().filter(|g| g.name.len() == len && fits(g)).collect();
        if found.len() > 1 {
            let section = |g: &Global| {
                self.maps.get(g.map).map_or_else(String::new, |m| format!("`{}`", m.section))
            };
            let name = path.get(..len).unwrap_or(path).to_owned();
            return Err(GlobalError::Ambiguous {
                name,
                sections: found.iter().map(section).collect(),
            });
        }
        let Some(global) = found.pop() else { return Err(unknown(path, &[])) };
        let part = walk(btf, global.type_id, path, path.get(len..).unwrap_or(""))?;
        Ok(Place { global, part })
    }
}

/// A variable and a part of it.
struct Place {
    global: Global,
    /// Counted from the variable's start.
    part: Bits,
}

fn global(btf: &Btf, map: usize, v: &SecVar) -> Option<Global> {
    let Kind::Var(var) = &btf.get(v.type_id).ok()?.kind else { return None };
    let name = btf.name(v.type_id).to_owned();
    (!name.is_empty()).then_some(Global {
        name,
        map,
        offset: v.offset,
        size: v.size,
        type_id: var.type_id,
    })
}

fn unknown(path: &str, all: &[Global]) -> GlobalError {
    let name = path.split(['.', '[']).next().unwrap_or(path);
    let mut known: Vec<&str> = all.iter().map(|g| g.name.as_str()).collect();
    let far = |k: &str| {
        let lower = k.to_ascii_lowercase();
        let name = name.to_ascii_lowercase();
        !(lower.contains(&name) || name.contains(&lower))
    };
    known.sort_by_cached_key(|k| u64::from(far(k)));
    GlobalError::Unknown {
        name: name.to_owned(),
        known: known.into_iter().take(MAX_LISTED).map(str::to_owned).collect(),
    }
}

/// Follows `.member` and `[index]` from a type.
fn walk(btf: &Btf, type_id: TypeId, path: &str, mut rest: &str) -> Result<Bits, GlobalError> {
    let mut at = Bits { type_id, offset: 0, width: 0 };
    while !rest.is_empty() {
        let no = |step: &str| GlobalError::Path {
            path: path.to_owned(),
            ty: btf.describe(at.type_id),
            step: step.to_owned(),
        };
        let damaged = |source: crate::btf::BtfError| GlobalError::Value {
            path: path.to_owned(),
            source: source.into(),
        };
        if let Some(inside) = rest.strip_prefix('[') {
            let (digits, after) = inside.split_once(']').ok_or_else(|| no(rest))?;
            let step = rest.get(..digits.len() + 2).unwrap_or(rest);
            let Kind::Array(a) = &btf.resolve(at.type_id).map_err(damaged)?.1.kind else {
                return Err(no(step));
            };
            let index =
                digits.parse::<u32>().ok().filter(|i| *i < a.len).ok_or_else(|| no(step))?;
            let size = btf.size_of(a.elem).map_err(damaged)?;
            let ahead = size
                .checked_mul(u64::from(index) * 8)
                .and_then(|bits| u32::try_from(bits).ok())
                .ok_or_else(|| no(step))?;
            at = Bits {
                type_id: a.elem,
                offset: at.offset.checked_add(ahead).ok_or_else(|| no(step))?,
                width: 0,
            };
            rest = after;
            continue;
        }
        let name = rest.strip_prefix('.').ok_or_else(|| no(rest))?;
        let end = name.find(['.', '[']).unwrap_or(name.len());
        let (name, after) = name.split_at_checked(end).unwrap_or((name, ""));
        let found = member(btf, at.type_id, name, 0).ok_or_else(|| no(name))?;
        at = Bits { offset: at.offset.checked_add(found.offset).ok_or_else(|| no(name))?, ..found };
        rest = after;
    }
    Ok(at)
}

/// Finds a member by name, also inside anonymous members.
fn member(btf: &Btf, id: TypeId, name: &str, depth: usize) -> Option<Bits> {
    let (Kind::Struct(c) | Kind::Union(c)) = &btf.resolve(id).ok()?.1.kind else { return None };
    if depth >= MAX_DEPTH || name.is_empty() {
        return None;
    }
    c.members.iter().find_map(|m| match btf.string(m.name_off) {
        n if n == name => {
            Some(Bits { type_id: m.type_id, offset: m.bit_offset, width: u32::from(m.bitfield) })
        }
        "" => {
            let inner = member(btf, m.type_id, name, depth + 1)?;
            Some(Bits { offset: m.bit_offset.checked_add(inner.offset)?, ..inner })
        }
        _ => None,
    })
}
