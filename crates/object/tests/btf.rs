//! Type information: compared with bpftool's listing, and values with what the compiler put into
//! the data section.

use skep_object::btf::{Kind, Linkage, Value, ValueMember};
use skep_object::{Btf, MapSpec, Object};
use std::fmt::Write;

fn data(file: &str) -> Vec<u8> {
    let path = format!("{}/tests/data/{file}", env!("CARGO_MANIFEST_DIR"));
    std::fs::read(&path).unwrap_or_else(|e| panic!("{path}: {e}"))
}

fn object(name: &str) -> Object {
    Object::parse_named(name, &data(&format!("{name}.bpf.o"))).expect("the fixture is good")
}

/// Lists all types as `bpftool btf dump file X format raw` does.
fn list(btf: &Btf) -> String {
    let mut out = String::new();
    let anon = |s: &str| if s.is_empty() { "(anon)".to_owned() } else { s.to_owned() };
    let linkage = |l: &Linkage| match l {
        Linkage::Static => "static",
        Linkage::Global => "global",
        Linkage::Extern => "extern",
    };
    for (id, t) in btf.types() {
        let kind = t.kind.name().to_uppercase();
        write!(out, "[{id}] {kind} '{}'", anon(btf.string(t.name_off)))
            .expect("strings take everything");
        let mut lines = Vec::new();
        let rest = match &t.kind {
            Kind::Int(i) => {
                let encoding = [(i.signed, "SIGNED"), (i.char, "CHAR"), (i.bool, "BOOL")]
                    .into_iter()
                    .find(|(on, _)| *on);
                format!(
                    " size={} bits_offset={} nr_bits={} encoding={}",
                    i.size,
                    i.offset,
                    i.bits,
                    encoding.map_or("(none)", |(_, n)| n)
                )
            }
            Kind::Array(a) => {
                format!(" type_id={} index_type_id={} nr_elems={}", a.elem, a.index, a.len)
            }
            Kind::Struct(c) | Kind::Union(c) => {
                for m in &c.members {
                    let width = if m.bitfield == 0 {
                        String::new()
                    } else {
                        format!(" bitfield_size={}", m.bitfield)
                    };
                    lines.push(format!(
                        "'{}' type_id={} bits_offset={}{width}",
                        anon(btf.string(m.name_off)),
                        m.type_id,
                        m.bit_offset
                    ));
                }
                format!(" size={} vlen={}", c.size, c.members.len())
            }
            Kind::Enum(e) | Kind::Enum64(e) => {
                let wide = matches!(t.kind, Kind::Enum64(_));
                for v in &e.values {
                    let value = match (wide, e.signed) {
                        (true, true) => format!("{}LL", v.value),
                        (true, false) => format!("{}ULL", v.value as u64),
                        _ => v.value.to_string(),
                    };
                    lines.push(format!("'{}' val={value}", btf.string(v.name_off)));
                }
                format!(
                    " encoding={} size={} vlen={}",
                    if e.signed { "SIGNED" } else { "UNSIGNED" },
                    e.size,
                    e.values.len()
                )
            }
            Kind::Fwd { union } => format!(" fwd_kind={}", if *union { "union" } else { "struct" }),
            Kind::Func(f) => format!(" type_id={} linkage={}", f.proto, linkage(&f.linkage)),
            Kind::FuncProto(p) => {
                lines.extend(
                    p.params.iter().map(|p| {
                        format!("'{}' type_id={}", anon(btf.string(p.name_off)), p.type_id)
                    }),
                );
                format!(" ret_type_id={} vlen={}", p.ret, p.params.len())
            }
            Kind::Var(v) => format!(" type_id={}, linkage={}", v.type_id, linkage(&v.linkage)),
            Kind::DataSec(d) => {
                for v in &d.vars {
                    let kind = btf.get(v.type_id).map_or("?", |t| t.kind.name()).to_uppercase();
                    lines.push(format!(
                        "type_id={} offset={} size={} ({kind} '{}')",
                        v.type_id,
                        v.offset,
                        v.size,
                        btf.name(v.type_id)
                    ));
                }
                format!(" size={} vlen={}", d.size, d.vars.len())
            }
            Kind::Float(size) => format!(" size={size}"),
            Kind::DeclTag(d) => format!(
                " type_id={} component_idx={}",
                d.type_id,
                d.component.map_or(-1, i64::from)
            ),
            Kind::Ptr(t)
            | Kind::Typedef(t)
            | Kind::Volatile(t)
            | Kind::Const(t)
            | Kind::Restrict(t)
            | Kind::TypeTag(t) => {
                format!(" type_id={t}")
            }
            Kind::Void => String::new(),
        };
        out += &rest;
        out.push('\n');
        lines.iter().for_each(|l| writeln!(out, "\t{l}").expect("strings take everything"));
    }
    out
}

/// Cuts the `.BTF` section out of an ELF file, without this crate's own reader.
fn section(elf: &[u8], name: &str) -> Vec<u8> {
    use object::{Object as _, ObjectSection as _};
    let file = object::File::parse(elf).expect("an ELF file");
    file.section_by_name(name).and_then(|s| s.data().ok()).expect("it has the section").to_vec()
}

#[test]
fn all_kinds_are_listed_as_bpftool_lists_them() {
    let mut seen = std::collections::BTreeSet::new();
    for name in ["values", "externs", "several"] {
        let btf = Btf::parse(&section(&data(&format!("{name}.bpf.o")), ".BTF"))
            .expect("the compiler's types are good");
        assert_eq!(
            list(&btf),
            String::from_utf8(data(&format!("{name}.btf.txt"))).expect("listings are text"),
            "{name}"
        );
        seen.extend(btf.types().map(|(_, t)| t.kind.name()));
    }
    assert_eq!(seen.len(), 19, "a kind without a test: only {seen:?}");
}

fn initial(o: &Object, section: &str) -> (MapSpec, Value) {
    let spec = o.maps[o.map(section).expect("the fixture has it")].clone();
    let value = o
        .btf
        .as_ref()
        .expect("built with -g")
        .decode(spec.value_type_id, spec.data.as_deref().expect("global data"));
    (spec, value.expect("the data is of its type"))
}

#[test]
fn a_value_of_every_type_reads_as_in_the_source() {
    let (_, value) = initial(&object("values"), ".data");
    let first = value.get("first").expect("the variable is there").to_string();
    let want = "{ .s8 = -1, .u8 = 255, .s16 = -32768, .u16 = 65535, .s32 = -7, .u32 = 4000000000, .s64 = -9223372036854775808, \
        .u64 = 18446744073709551615, .s128 = -1267650600228229401496703205376, .u128 = 340282366920938463463374607431768211455, \
        .flag = true, .letter = 120, .text = \"hello\\n\", .raw = [1, 2, 3, 4], .f = 1.5, .d = -0.1, .color = BLUE, .signed_color = COLD, \
        .big = LARGE, .pid = 77, .pointer = 0xffff800012345678, .opaque = 0x0, .function = 0x0, \
        .view = { .word = 67305985, .bytes = [1, 2, 3, 4], { .lo = 513, .hi = 1027 } }, { .inside = 5, { .left = 6, .right = 6 } }, \
        .bits = { .low = 5, .neg = -3, .c = GREEN, .yes = true, .wide = 737894400291, .tail = 576460752303423488 }, \
        .matrix = [[1, 2, 3], [4, 5, -6]], .last = -1, .empty = {}, .flexible = [] }";
    assert_eq!(first, want);
    assert_eq!(value.get("after").and_then(Value::as_i128), Some(0xabcd));
}

#[test]
fn members_are_found_through_anonymous_ones_and_by_walking() {
    let (_, value) = initial(&object("values"), ".data");
    let first = value.get("first").expect("the variable is there");
    assert_eq!(first.get("right").and_then(Value::as_i128), Some(6));
    let mut found = None;
    value.walk(&mut |path, v| {
        if path == ".first.matrix[1][2]" {
            found = v.as_i128();
        }
    });
    assert_eq!(found, Some(-6));
}

#[test]
fn encoding_is_the_reverse_of_decoding() {
    for (name, sections) in
        [("values", &[".data"][..]), ("several", &[".data", ".rodata", ".data.custom"])]
    {
        let o = object(name);
        let btf = o.btf.as_ref().expect("built with -g");
        for section in sections {
            let (spec, value) = initial(&o, section);
            let bytes = btf.encode(spec.value_type_id, &value).expect("it came out of these types");
            assert_eq!(Some(bytes), spec.data, "{section}");
        }
    }
}

/// Whatever bytes a map holds, what they are printed as is the same value when it is read again: also a
/// `bool` of 7, an enumeration without a name, a character that has none.
#[test]
fn what_any_bytes_are_printed_as_is_read_again() {
    let o = object("values");
    let btf = o.btf.as_ref().expect("built with -g");
    let mut seed = 1_u64;
    for name in ["all", "bits", "view"] {
        let id = btf
            .find(name, |k| matches!(k, Kind::Struct(_) | Kind::Union(_)))
            .expect("the fixture has it");
        let size = btf.size_of(id).expect("it is complete") as usize;
        for _ in 0..200 {
            let bytes: Vec<u8> = (0..size)
                .map(|_| {
                    seed = seed.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
                    (seed >> 56) as u8
                })
                .collect();
            let text = btf.decode(id, &bytes).expect("enough bytes").to_string();
            let value = btf.read_text(id, &text).unwrap_or_else(|e| panic!("{text}: {e}"));
            let again = btf.encode(id, &value).unwrap_or_else(|e| panic!("{text}: {e}"));
            assert_eq!(btf.decode(id, &again).expect("enough bytes").to_string(), text);
        }
    }
}

#[test]
fn values_as_people_write_them_are_taken_and_misfits_are_named() {
    let o = object("values");
    let btf = o.btf.as_ref().expect("built with -g");
    let all = btf.find("all", |k| matches!(k, Kind::Struct(_))).expect("the fixture has it");
    let with =
        |name: &str, value: Value| Value::Struct(vec![ValueMember { name: name.into(), value }]);
    let read = |v: Value, member: &str| -> Result<String, String> {
        let bytes = btf.encode(all, &v).map_err(|e| e.to_string())?;
        Ok(btf
            .decode(all, &bytes)
            .map_err(|e| e.to_string())?
            .get(member)
            .map(ToString::to_string)
            .unwrap_or_default())
    };
    assert_eq!(read(with("color", Value::Text("GREEN".into())), "color"), Ok("GREEN".into()));
    assert_eq!(read(with("color", Value::Int(7)), "color"), Ok("7".into()));
    assert_eq!(read(with("left", Value::Uint(9)), "right"), Ok("9".into()));
    assert_eq!(read(with("text", Value::Text("abc".into())), "text"), Ok("\"abc\"".into()));
    assert_eq!(
        read(with("raw", Value::Array(vec![Value::Uint(9)])), "raw"),
        Ok("[9, 0, 0, 0]".into())
    );
    assert_eq!(read(with("d", Value::Float(2.5)), "d"), Ok("2.5".into()));
    assert_eq!(read(with("u8", Value::Int(-1)), "u8"), Err("`.u8`: -1 does not fit `__u8`".into()));
    assert_eq!(
        read(with("u8", Value::Int(256)), "u8"),
        Err("`.u8`: 256 does not fit `__u8`".into())
    );
    assert_eq!(
        read(with("s8", Value::Int(-129)), "s8"),
        Err("`.s8`: -129 does not fit `__s8`".into())
    );
    assert_eq!(
        read(with("u64", Value::Uint(u128::from(u64::MAX))), "u64"),
        Ok("18446744073709551615".into())
    );
    assert_eq!(
        read(with("nothing", Value::Int(1)), ""),
        Err("`value`: `struct all` has no member `nothing`".into())
    );
    assert_eq!(
        read(with("color", Value::Text("PINK".into())), ""),
        Err("`.color`: \"PINK\" is no `enum color`".into())
    );
    let bits = with("bits", with("neg", Value::Int(16)));
    assert_eq!(read(bits, ""), Err("`.bits.neg`: 16 does not fit `__s32`".into()));
    let matrix = with("matrix", Value::Array(vec![Value::Array(vec![Value::Int(1); 4])]));
    assert!(read(matrix, "").is_err_and(|e| e.starts_with("`.matrix[0]`: [1, 1, 1, 1] is no")));
}

#[test]
fn short_data_is_refused_and_longer_data_taken() {
    let o = object("several");
    let btf = o.btf.as_ref().expect("built with -g");
    let event = btf.find("event", |k| matches!(k, Kind::Struct(_))).expect("the fixture has it");
    assert_eq!(btf.size_of(event), Ok(32));
    let e = btf.decode(event, &[0; 31]).expect_err("one byte is missing");
    assert_eq!(e.to_string(), "`struct event` takes 32 bytes, there are 31");
    let mut bytes = [0; 40];
    bytes[12..16].copy_from_slice(b"cat\0");
    bytes[16..20].copy_from_slice(b"left");
    let text = btf.decode(event, &bytes).expect("enough bytes").to_string();
    assert_eq!(text, "{ .when = 0, .pid = 0, .comm = \"cat\" }");
}

#[test]
fn unions_that_multiply_end_in_an_error() {
    // 32 unions, each of two of the one before: four billion views of four bytes.
    let mut words: Vec<u32> = vec![1, 1 << 24, 4, 32];
    for id in 2..34u32 {
        words.extend([0, 5 << 24 | 2, 4, 1, id - 1, 0, 1, id - 1, 0]);
    }
    let len = (words.len() * 4) as u32;
    let mut raw = vec![0x9f, 0xeb, 1, 0];
    [24, 0, len, len, 3].into_iter().chain(words).for_each(|w: u32| raw.extend(w.to_le_bytes()));
    raw.extend(b"\0u\0");
    let btf = Btf::parse(&raw).expect("every type exists");
    assert!(btf.decode(33, &[0; 4]).is_err(), "too deep");
    assert!(btf.decode(28, &[0; 4]).is_err(), "not too deep, but too many");
    assert!(btf.decode(10, &[0; 4]).is_ok());
}
