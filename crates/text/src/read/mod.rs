//! Reads what [`layout`](crate::layout) and [`csv`](crate::csv) wrote, for `skep map load`.
//!
//! `json`, `csv` and `lines` read, each by way of `encoder`; most JSON takes the short way of
//! `direct`.

mod csv;
mod direct;
mod encoder;
mod json;
mod lines;

use skep_isa::KeyShape;
use skep_object::Btf;

use crate::csv::Columns;
use crate::elements::Elements;
use crate::entries::{Entries, Shape};
pub use encoder::Encoder;

/// What is wrong with a file, and where.
#[derive(Debug)]
pub struct Problem {
    /// The line, or the number of the element.
    pub at: String,
    /// What is wrong.
    pub what: String,
}

/// Reads a dump of any form; `true` when it was interrupted. Fails with what is wrong, and what to do
/// about it.
pub fn parse(
    bytes: &[u8],
    shape: &Shape,
    btf: Option<&Btf>,
    raw: bool,
    cpus: usize,
) -> Result<(Elements, bool), (Problem, Option<String>)> {
    parse_whole(bytes, shape, btf, raw, cpus).map_err(|(mut problem, hint)| {
        shorten(&mut problem.what);
        (problem, hint)
    })
}

/// Of a text that names what was found, which can be very long, what stands at its ends.
fn shorten(text: &mut String) {
    const MOST: usize = 600;
    if text.len() > MOST {
        let (first, last) =
            (text.floor_char_boundary(MOST / 2), text.ceil_char_boundary(text.len() - MOST / 2));
        text.replace_range(first..last, " … ");
    }
}

fn parse_whole(
    bytes: &[u8],
    shape: &Shape,
    btf: Option<&Btf>,
    raw: bool,
    cpus: usize,
) -> Result<(Elements, bool), (Problem, Option<String>)> {
    let first = |what: String| Problem { at: "line 1".to_owned(), what };
    let mut encoder = Encoder::new(shape, btf, raw, cpus);
    if is_json(bytes) {
        let interrupted = json::read(bytes, &mut encoder).map_err(|problem| (problem, None))?;
        return Ok((encoder.out, interrupted));
    }
    let text = str::from_utf8(bytes).map_err(|e| {
        let line = 1 + bytes.iter().take(e.valid_up_to()).filter(|b| **b == b'\n').count();
        let what = "it is not text: a dump of `skep map dump` is";
        (Problem { at: format!("line {line}"), what: what.to_owned() }, None)
    })?;
    if text.trim().is_empty() {
        // The lines of an empty map.
        return Ok((encoder.out, false));
    }
    let names = csv::first(text);
    let columns = |raw| Columns::of(&Entries::of(shape.clone(), btf, raw));
    let (typed, bare) = (columns(raw), columns(true));
    let hint = |problem: Problem| {
        let raw = problem.what.contains("`dump --raw`");
        let hint = raw.then(|| "`--raw` reads keys and values as bytes in hex".to_owned());
        (problem, hint)
    };
    match names {
        Ok(names) if names == typed.names() => {
            csv::read(text, &typed, &mut encoder).map_err(hint)?;
        }
        // Structures have columns of their members otherwise.
        Ok(names) if names == bare.names() => {
            encoder.raw = true;
            csv::read(text, &bare, &mut encoder).map_err(hint)?;
        }
        _ if is_lines(text, shape) => {
            lines::read(text, &mut encoder).map_err(hint)?;
        }
        _ => {
            let what = format!(
                "it is no dump of such a map: neither JSON, nor lines of a key, a colon and a value, nor the columns {}",
                typed.names().join(",")
            );
            return Err((first(what), None));
        }
    }
    Ok((encoder.out, false))
}

fn is_json(bytes: &[u8]) -> bool {
    let mut rest = bytes.iter().copied().filter(|b| !b.is_ascii_whitespace());
    match rest.next() {
        // A structure is printed as `{ .member = …`, and a list of them as `[{ .member = …`.
        Some(b'[') => match rest.next() {
            Some(b'{') => !matches!(rest.next(), Some(b'.')),
            next => next == Some(b']'),
        },
        Some(b'{') => !matches!(rest.next(), Some(b'.')),
        _ => false,
    }
}

/// Tells whether the first line has a key and a value.
fn is_lines(text: &str, shape: &Shape) -> bool {
    let first = text.lines().find(|line| !line.trim().is_empty()).unwrap_or_default();
    shape.keys == KeyShape::Fixed(0) || lines::find(first, ": ").is_some()
}

fn looks_raw(text: &str) -> String {
    format!("`{text}` looks like bytes in hex, as `dump --raw` prints them")
}

#[cfg(test)]
mod tests {
    use skep_isa::MapType;
    use skep_object::Object;

    use super::*;
    use crate::csv::Csv;
    use crate::layout::{Layout, Style};

    fn shape(map_type: MapType, keys: KeyShape, size: usize, per_cpu: bool) -> Shape {
        Shape {
            id: 1,
            name: "m".to_owned(),
            map_type,
            keys,
            value_size: size,
            per_cpu,
            key_type_id: 0,
            value_type_id: 0,
        }
    }

    /// Bytes of all kinds: mostly zero, all ones, letters, or anything.
    struct Random(u64);

    impl Random {
        fn next(&mut self) -> u64 {
            self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
            self.0 >> 32
        }

        fn bytes(&mut self, len: usize) -> Vec<u8> {
            let kind = self.next() % 4;
            let byte = |n: u64| match (kind, n % 5) {
                (0, 1..) => 0,
                (1, 1..) => 0xff,
                (2, _) => b"ab: ,\"'\\{}[]=.\n(cpu 1)"[n as usize % 22],
                _ => (n >> 8) as u8,
            };
            (0..len).map(|_| byte(self.next())).collect()
        }
    }

    /// All forms of a dump, whether each is raw and whether `load` has to be told.
    fn dumps(
        shape: &Shape,
        btf: Option<&Btf>,
        elements: &[(Vec<u8>, Vec<u8>)],
    ) -> Vec<(&'static str, bool, Vec<u8>)> {
        let mut all = Vec::new();
        for raw in [false, true] {
            let entries = Entries::of(shape.clone(), btf, raw);
            let mut json = format!("{{\"raw\":{raw},\"entries\":[").into_bytes();
            let mut text = Vec::new();
            let mut csv = Vec::new();
            Csv::new(&entries).head(&mut csv);
            for (i, (key, value)) in elements.iter().enumerate() {
                if i > 0 {
                    json.push(b',');
                }
                Layout::new(&entries, Style::Json).write(&mut json, key, value);
                Layout::new(&entries, Style::Text).write(&mut text, key, value);
                Csv::new(&entries).write(&mut csv, key, value);
            }
            json.extend_from_slice(b"]}");
            all.extend([("json", raw, json), ("csv", raw, csv), ("text", raw, text)]);
        }
        all
    }

    /// What was dumped and loaded is dumped the same way, whatever the types. Bytes behind the end
    /// of a text and between members are not in a dump by types, so dumps are compared, and bytes
    /// where the dump was raw.
    #[test]
    fn what_was_loaded_is_dumped_the_same() {
        let mut random = Random(5);
        let (mut compared, mut refused) = (0, 0);
        for object in [
            "bpf/trace.bpf.o",
            "bpf/args.bpf.o",
            "tests/data/typed.bpf.o",
            "tests/data/kinds.bpf.o",
            "tests/data/numbers.bpf.o",
            "../object/tests/data/values.bpf.o",
        ] {
            let bytes = std::fs::read(format!("{}/../cli/{object}", env!("CARGO_MANIFEST_DIR")))
                .expect("committed");
            let btf = Object::parse(&bytes).expect("ours").btf.expect("made with -g");
            for id in 0..btf.len() as u32 {
                let size = btf.size_of(id).ok().and_then(|n| usize::try_from(n).ok());
                let Some(size) = size.filter(|n| (1..4096).contains(n)) else { continue };
                for (per_cpu, byte_keys) in [(false, false), (true, false), (false, true)] {
                    let keys = match byte_keys {
                        true => KeyShape::Bytes { max: 24 },
                        false => KeyShape::Fixed(size as u32),
                    };
                    let mut shape = shape(MapType::Hash, keys, size, per_cpu);
                    (shape.key_type_id, shape.value_type_id) = (id, id);
                    let types = Some(&*btf).filter(|_| id % 5 != 0);
                    let cpus = if per_cpu { 3 } else { 1 };
                    let stride = if per_cpu { size.next_multiple_of(8) } else { size };
                    let mut element = || {
                        let key = match byte_keys {
                            true => 1 + random.next() as usize % 24,
                            false => size,
                        };
                        (random.bytes(key), random.bytes(stride * cpus))
                    };
                    let elements: Vec<_> = (0..6).map(|_| element()).collect();
                    let first = dumps(&shape, types, &elements);
                    for (i, (form, raw, dump)) in first.iter().enumerate() {
                        let what = || {
                            format!(
                                "{object}: type {id}, {}: {form} {raw} {per_cpu} {byte_keys}\n{}",
                                btf.describe(id),
                                String::from_utf8_lossy(dump)
                            )
                        };
                        let loaded = parse(dump, &shape, types, *raw, cpus);
                        // Text is for people: a truth value of 7 and global variables are not read.
                        if loaded.is_err() && *form == "text" && !raw && types.is_some() {
                            refused += 1;
                            continue;
                        }
                        let (loaded, _) =
                            loaded.unwrap_or_else(|e| panic!("{}\n{:?}", what(), e.0));
                        assert_eq!(loaded.count, 6, "{}", what());
                        let again: Vec<_> = (0..6)
                            .map(|i| {
                                let size = stride * cpus;
                                (loaded.key(i).to_vec(), loaded.values[i * size..][..size].to_vec())
                            })
                            .collect();
                        let (_, _, second) = &dumps(&shape, types, &again)[i];
                        assert_eq!(
                            String::from_utf8_lossy(second),
                            String::from_utf8_lossy(dump),
                            "{}",
                            what()
                        );
                        compared += 1;
                    }
                }
            }
        }
        assert!(compared > 1000 && refused < compared / 20, "{compared} {refused}");
    }

    fn btf_of(object: &str) -> std::sync::Arc<Btf> {
        let path = format!("{}/../cli/tests/data/{object}", env!("CARGO_MANIFEST_DIR"));
        let object = Object::parse(&std::fs::read(path).expect("committed")).expect("ours");
        object.btf.expect("made with -g")
    }

    /// What is no number is printed as such, and has many forms: all that is known of them is what
    /// other members of a union say.
    #[test]
    fn integers_beside_floating_point_numbers_keep_all_bits() {
        let btf = btf_of("numbers.bpf.o");
        let find = |name: &str| (0..btf.len() as u32).find(|id| btf.name(*id) == name);
        let value_type = find("reading").expect("a structure");
        let mut shape = shape(MapType::Hash, KeyShape::Fixed(4), 24, false);
        shape.value_type_id = value_type;
        let words = [u64::MAX, 0x7ff0_0000_0000_0001, 0xfff8_0000_0000_1234, f64::to_bits(-0.5)];
        let bits = [u32::MAX, 0x7f80_0001, 0x7f80_0000, f32::to_bits(1.5)];
        let elements: Vec<_> = (0..4)
            .map(|i| {
                let mut value = words[i].to_le_bytes().to_vec();
                value.extend(bits[i].to_le_bytes());
                value.extend(bits[3 - i].to_le_bytes());
                value.extend(f32::NEG_INFINITY.to_le_bytes());
                value.extend([0; 4]);
                ((i as u32).to_le_bytes().to_vec(), value)
            })
            .collect();
        for (form, raw, dump) in dumps(&shape, Some(&btf), &elements) {
            let (loaded, _) = parse(&dump, &shape, Some(&btf), raw, 1)
                .unwrap_or_else(|e| panic!("{form}: {}", e.0.what));
            for (i, (_, value)) in elements.iter().enumerate() {
                assert_eq!(&loaded.values[i * 24..][..24], value, "{form} {raw}");
            }
        }
        let large = br#"[{"key":1,"value":{"far":1e39}}]"#;
        let (problem, _) = parse(large, &shape, Some(&btf), false, 1).expect_err("too large");
        assert!(problem.what.contains("far"), "{}", problem.what);
    }

    /// Members of JSON have no order: other programs sort them.
    #[test]
    fn a_document_may_say_at_its_end_that_it_is_raw() {
        let read = |text: &str, size| {
            let shape = shape(MapType::QpTrie, KeyShape::Bytes { max: 9 }, size, false);
            let done = parse(text.as_bytes(), &shape, None, false, 1);
            done.map(|(e, _)| (e.count, e.keys, e.values)).map_err(|e| e.0.what)
        };
        let elements = r#""entries":[{"key":"616263","value":"010203"}]"#;
        let raw = Ok((1, b"abc".to_vec(), vec![1, 2, 3]));
        assert_eq!(read(&format!(r#"{{{elements},"id":3,"raw":true}}"#), 3), raw);
        assert_eq!(read(&format!(r#"{{"raw":true,{elements}}}"#), 3), raw);
        let text = Ok((1, b"616263".to_vec(), vec![1, 2, 3]));
        assert_eq!(read(&format!(r#"{{{elements},"raw":false}}"#), 3), text);
        // Numbers are wanted, and found to be raw only later.
        let four = r#""entries":[{"key":"616263","value":"01020304"}]"#;
        let raw = Ok((1, b"abc".to_vec(), vec![1, 2, 3, 4]));
        assert_eq!(read(&format!(r#"{{{four},"raw":true}}"#), 4), raw);
        assert!(read(&format!("{{{four}}}"), 4).is_err());
    }

    #[test]
    fn what_is_wrong_is_said_shortly() {
        let shape = shape(MapType::Hash, KeyShape::Fixed(4), 4, false);
        let long = "x".repeat(1 << 20);
        for text in [
            format!(r#"[{{"key":"{long}","value":2}}]"#),
            format!("key,value\n{long},2\n"),
            format!("{long}: 2\n"),
            format!("hex {long}: 2\n"),
        ] {
            let (problem, _) = parse(text.as_bytes(), &shape, None, false, 1).expect_err("no key");
            assert!(problem.what.len() < 1000, "{}", problem.what.len());
        }
        let twice = br#"{"key":1,"key":2,"value":1}"#;
        let (problem, _) = parse(twice, &shape, None, false, 1).expect_err("two keys");
        assert!(problem.what.contains("key"), "{}", problem.what);
    }

    /// What other programs write: an element a line, or one behind the other.
    #[test]
    fn elements_may_come_one_after_the_other() {
        let shape = shape(MapType::Hash, KeyShape::Fixed(4), 4, false);
        let read = |text: &str| match parse(text.as_bytes(), &shape, None, false, 1) {
            Ok((elements, interrupted)) => {
                assert!(!interrupted);
                Ok((elements.count, elements.keys, elements.values))
            }
            Err((problem, _)) => Err(format!("{}: {}", problem.at, problem.what)),
        };
        let list = read(r#"[{"key":1,"value":2},{"key":3,"value":4}]"#);
        assert_eq!(list, Ok((2, vec![1, 0, 0, 0, 3, 0, 0, 0], vec![2, 0, 0, 0, 4, 0, 0, 0])));
        for lines in [
            "{\"key\":1,\"value\":2}\n{\"key\":3,\"value\":4}\n",
            "\n{\"value\":2,\"key\":1,\"more\":{}}\r\n\r\n{\"key\":3,\n\"value\":4}",
            "{\"key\":1,\"value\":2}{\"key\":3,\"value\":4}",
        ] {
            assert_eq!(read(lines), list, "{lines}");
        }
        let one = "{\"key\":1,\"value\":2}\n";
        assert_eq!(read(one).map(|(n, ..)| n), Ok(1));
        for (second, why) in [
            ("{\"key\":3}", "entry 2: it has no `value`"),
            ("{\"value\":3}", "entry 2: it has no `key`"),
            ("{\"kez\":3}", "entry 2: after an element comes what is none: it has no `key`"),
            ("[{\"key\":3,\"value\":4}]", "entry 2: after an element comes a list of them"),
            ("{\"entries\":[]}", "entry 2: after an element comes a list of them"),
            (
                "{\"key\":\"x\",\"value\":4}",
                "entry 2: the map has no types: numbers are wanted, or with `--raw` bytes in hex",
            ),
            ("x", "line 2, column 1: expected value"),
            (
                "{\"key\":3,",
                "line 2, column 9: the document ends too early: EOF while parsing a value",
            ),
        ] {
            let error = read(&format!("{one}{second}")).expect_err(second);
            assert!(error.ends_with(why.split_once(": ").expect("a place").1), "{error}");
            assert_eq!(
                error.split_once(": ").map(|e| e.0),
                why.split_once(": ").map(|w| w.0),
                "{error}"
            );
        }
        for second in ["tru", "\"a}", "{\"key\":3,\"value\":{}", "12"] {
            read(&format!("{one}{second}")).expect_err(second);
        }
        // As many as take long if each looks at those before it.
        let many: String = (0..100_000).map(|i| format!("{{\"key\":{i},\"value\":1}}\n")).collect();
        assert_eq!(read(&many).map(|(n, ..)| n), Ok(100_000));
        let behind = format!("[]{one}");
        assert_eq!(read(&behind), Err("line 1, column 3: trailing characters".to_owned()));
    }
}
