//! Keys and values as they are typed on the command line.

use serde_json::Value as Json;
use skep::isa::KeyShape;
use skep::object::Btf;
use skep_text::entries::Shape;
use skep_text::input::{self, BYTE_STRINGS, Role};

use crate::failure::{Failure, Result};

/// Makes the bytes of a key or a value from what was typed. `btf` is `None` when there are no
/// types.
pub fn bytes(
    shape: &Shape,
    btf: Option<&Btf>,
    role: Role,
    text: &str,
    raw: bool,
) -> Result<Vec<u8>> {
    input::read(shape, btf, role, text, raw).map_err(|why| {
        let (name, map) = (role.name(), &shape.name);
        let failure =
            Failure::environment(format!("`{text}` is not a {name} of map `{map}`: {why}"));
        match shape.keys {
            KeyShape::Bytes { .. } if role == Role::Key => failure.hint(BYTE_STRINGS),
            _ => failure,
        }
    })
}

/// Makes the value of a map from what was typed: for per-CPU maps, each CPU's from a list, or the
/// first one's alone.
pub fn value(
    shape: &Shape,
    btf: Option<&Btf>,
    text: &str,
    raw: bool,
    cpus: usize,
) -> Result<Vec<u8>> {
    if !shape.per_cpu {
        return bytes(shape, btf, Role::Value, text, raw);
    }
    let each: Vec<String> = match serde_json::from_str(text) {
        Ok(Json::Array(all)) if !raw => all.iter().map(Json::to_string).collect(),
        _ => vec![text.to_owned()],
    };
    let each = each.iter().map(|one| bytes(shape, btf, Role::Value, one, raw));
    input::of_cpus(shape, each.collect::<Result<_>>()?, cpus).map_err(Failure::environment)
}

#[cfg(test)]
mod tests {
    use skep::isa::MapType;

    use super::*;

    #[test]
    fn per_cpu_values_are_a_list_or_the_first_one() {
        let shape = Shape {
            id: 1,
            name: "m".to_owned(),
            map_type: MapType::PercpuHash,
            keys: KeyShape::Fixed(4),
            value_size: 4,
            per_cpu: true,
            key_type_id: 0,
            value_type_id: 0,
        };
        let value = |text, raw| value(&shape, None, text, raw, 3).map_err(|f| f.message);
        let words = |n: [u64; 3]| n.iter().flat_map(|w| w.to_le_bytes()).collect::<Vec<u8>>();
        assert_eq!(value("5", false), Ok(words([5, 0, 0])));
        assert_eq!(value("[1, 2, 3]", false), Ok(words([1, 2, 3])));
        assert_eq!(value("07000000", true), Ok(words([7, 0, 0])));
        assert_eq!(
            value("[1, 2, 3, 4]", false),
            Err("there are values for 4 CPUs, but the map has 3".to_owned())
        );
        assert_eq!(
            value("4294967296", false),
            Err("`4294967296` is not a value of map `m`: it does not fit in 4 bytes".to_owned())
        );
    }
}
