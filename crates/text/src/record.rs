//! What the records of a ring buffer are, as far as the object tells.

use std::sync::Arc;

use skep_isa::MapType;
use skep_object::btf::{Kind, Type, TypeId, Value};
use skep_object::{Btf, MapSpec, Object};

/// The types that the records of a map may have, as far as the object tells.
///
/// No field of a ring buffer's definition says what is in it. Two conventions do: a definition with
/// `__type(value, struct event)` (which the kernel refuses for its own rings), and, as for bpf2go,
/// a global variable that keeps the type in the object: `const struct event *unused
/// __attribute__((unused))`. Its name must have `unused` in it.
#[derive(Debug)]
pub struct RecordTypes {
    btf: Arc<Btf>,
    /// Types and their sizes; a record has that of its size, if it is the only one.
    known: Vec<(TypeId, u64)>,
}

impl RecordTypes {
    /// Finds what an object tells of the records in one of its maps.
    pub fn of(object: &Object, map: &MapSpec) -> Option<Self> {
        let btf = Arc::clone(object.btf.as_ref()?);
        let sized = |id: TypeId| Some((id, btf.size_of(id).ok().filter(|size| *size > 0)?));
        let known: Vec<_> = if map.map_type == MapType::Ringbuf && map.value_type_id != 0 {
            sized(map.value_type_id).into_iter().collect()
        } else {
            btf.types().filter_map(|(_, t)| marked_type(&btf, t)).filter_map(sized).collect()
        };
        (!known.is_empty()).then_some(Self { btf, known })
    }

    /// Decodes a record, if its size tells which type it has.
    pub fn decode(&self, record: &[u8]) -> Option<Value> {
        let mut fitting = self.known.iter().filter(|(_, size)| *size == record.len() as u64);
        match (fitting.next(), fitting.next()) {
            (Some((id, _)), None) => self.btf.decode(*id, record).ok(),
            _ => None,
        }
    }
}

/// The structure that a variable is there for.
fn marked_type(btf: &Btf, t: &Type) -> Option<TypeId> {
    let Kind::Var(var) = &t.kind else { return None };
    let Kind::Ptr(to) = btf.resolve(var.type_id).ok()?.1.kind else { return None };
    let (id, to) = btf.resolve(to).ok()?;
    (is_marker(btf.string(t.name_off)) && matches!(to.kind, Kind::Struct(_) | Kind::Union(_)))
        .then_some(id)
}

/// Tells whether a variable is there only for its type.
pub fn is_marker(variable: &str) -> bool {
    variable.contains("unused")
}
