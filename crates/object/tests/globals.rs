//! Global variables set before loading: what is put in comes out at the right place, and nothing
//! else changes.

use skep_object::btf::Value;
use skep_object::{GlobalError, Object};

fn object(name: &str) -> Object {
    let path = format!("{}/tests/data/{name}.bpf.o", env!("CARGO_MANIFEST_DIR"));
    Object::parse_named(name, &std::fs::read(path).expect("the fixture is committed"))
        .expect("the fixture is good")
}

fn set(o: &mut Object, path: &str, text: &str) -> Result<String, String> {
    o.set_global(path, text).map_err(|e| e.to_string())?;
    o.global(path).map(|v| v.to_string()).map_err(|e| e.to_string())
}

#[test]
fn variables_are_listed_with_their_places() {
    let names = |name: &str| {
        object(name).globals().into_iter().map(|g| (g.name, g.offset)).collect::<Vec<_>>()
    };
    let several = names("several");
    assert!(several.contains(&("hidden_count".to_owned(), 0)), "{several:?}");
    assert_eq!(names("plain"), []);
    let kconfig = names("kconfig");
    assert!(kconfig.iter().any(|(n, _)| n == "CONFIG_HZ"), "{kconfig:?}");
}

#[test]
fn every_type_is_read_as_people_write_it() {
    let mut o = object("values");
    let before = o.maps[o.map(".data").expect("it has data")].data.clone().expect("it is data");
    for (path, text, want) in [
        ("first.s8", "-128", "-128"),
        ("first.u8", "0xff", "255"),
        ("first.s16", "-0x8000", "-32768"),
        ("first.u32", "0b101", "5"),
        ("first.s64", "-9223372036854775808", "-9223372036854775808"),
        ("first.u64", "18446744073709551615", "18446744073709551615"),
        (
            "first.u128",
            "340282366920938463463374607431768211455",
            "340282366920938463463374607431768211455",
        ),
        ("first.s32", "017", "15"),
        ("first.s32", "+8", "8"),
        ("first.flag", "false", "false"),
        ("first.flag", "1", "true"),
        ("first.letter", "q", "113"),
        ("first.letter", "'\\n'", "10"),
        ("first.letter", "'\\xff'", "-1"),
        ("first.letter", "-3", "-3"),
        ("first.text", "12", "\"12\""),
        ("first.text", "a b, c", "\"a b, c\""),
        ("first.text", "\"tab\\t\\\"\"", "\"tab\\t\\\"\""),
        ("first.text", "", "\"\""),
        ("first.raw", "{9, 0x8, 7}", "[9, 8, 7, 0]"),
        ("first.raw[3]", "1", "1"),
        ("first.f", "-2.5", "-2.5"),
        ("first.d", "3", "3"),
        ("first.d", "1e-3", "0.001"),
        ("first.color", "GREEN", "GREEN"),
        ("first.color", "5", "GREEN"),
        ("first.color", "0x80000000", "BLUE"),
        ("first.signed_color", "-1", "COLD"),
        ("first.big", "LARGE", "LARGE"),
        ("first.pid", "4194304", "4194304"),
        ("first.pointer", "0xffff800000000000", "0xffff800000000000"),
        ("first.view.hi", "0x1234", "4660"),
        ("first.right", "77", "77"),
        ("first.bits.neg", "-16", "-16"),
        ("first.bits.low", "7", "7"),
        ("first.bits.c", "RED", "RED"),
        ("first.matrix[1]", "{ -1, -2, -3 }", "[-1, -2, -3]"),
        ("first.matrix[0][2]", "99", "99"),
        ("first.matrix", "{{1,2,3},[4,5,6]}", "[[1, 2, 3], [4, 5, 6]]"),
        ("after", " 3 ", "3"),
        (
            "first.view",
            "{ .word = 0x01020304 }",
            "{ .word = 16909060, .bytes = [4, 3, 2, 1], { .lo = 772, .hi = 258 } }",
        ),
    ] {
        assert_eq!(set(&mut o, path, text).as_deref(), Ok(want), "{path} = {text}");
    }
    assert_eq!(o.global("first.left").map(|v| v.to_string()), Ok("77".to_owned()));
    // Bit fields beside the ones that were set keep what they had.
    assert_eq!(o.global("first.bits.wide").ok().and_then(|v| v.as_i128()), Some(0xab_cdef_0123));
    let all = o.global("first").expect("it is there").to_string();
    assert_eq!(
        set(&mut object("values"), "first", &all),
        Ok(all),
        "what is printed is read back as the same"
    );
    assert_eq!(
        o.maps[o.map(".data").expect("it has data")].data.as_ref().map(Vec::len),
        Some(before.len())
    );
}

#[test]
fn what_does_not_fit_is_named_and_changes_nothing() {
    let mut o = object("values");
    let before = o.maps.clone();
    for (path, text, want) in [
        ("first.u8", "256", "`first.u8`: 256 does not fit `__u8`"),
        ("first.s8", "-129", "`first.s8`: -129 does not fit `__s8`"),
        ("first.u64", "-1", "`first.u64`: -1 does not fit `__u64`"),
        ("first.u32", "12x", "`first.u32`: `12x` is no `__u32` (character 0)"),
        ("first.u32", "", "`first.u32`: `` is no `__u32` (character 0)"),
        ("first.u32", "1 2", "`first.u32`: `1 2` is no `__u32` (character 2)"),
        ("first.u32", "abc", "`first.u32`: `abc` is no `__u32` (character 0)"),
        ("first.flag", "2", "`first.flag`: 2 does not fit `_Bool`"),
        ("first.flag", "yes", "`first.flag`: `yes` is no `_Bool` (character 0)"),
        ("first.color", "PINK", "`first.color`: \"PINK\" is no `enum color`"),
        (
            "first.text",
            "much too long a text",
            "`first.text`: \"much too long a text\" has 20 bytes, too many for `char[12]`",
        ),
        (
            "first.raw",
            "{1,2,3,4,5}",
            "`first.raw`: `{1,2,3,4,5}` is no `unsigned char[4]` (character 10)",
        ),
        ("first.raw", "{1,2", "`first.raw`: `{1,2` is no `unsigned char[4]` (character 4)"),
        ("first.bits.low", "8", "`first.bits.low`: 8 does not fit `__u32`"),
        ("first.view", "{ .nothing = 1 }", "`first.view`: `union view` has no member `nothing`"),
        ("first.nothing", "1", "`first.nothing`: `struct all` has no `nothing`"),
        ("first.raw[4]", "1", "`first.raw[4]`: `unsigned char[4]` has no `[4]`"),
        ("first.raw.x", "1", "`first.raw.x`: `unsigned char[4]` has no `x`"),
        ("first.u8.x", "1", "`first.u8.x`: `__u8` has no `x`"),
        ("first.", "1", "`first.`: `struct all` has no ``"),
    ] {
        assert_eq!(set(&mut o, path, text), Err(want.to_owned()), "{path} = {text}");
    }
    assert_eq!(o.maps, before);
    let e = o.set_global("frist", "1").expect_err("a misspelt name");
    let GlobalError::Unknown { known, .. } = &e else { panic!("{e}") };
    assert!(
        known.contains(&"first".to_owned()) && known.contains(&"after".to_owned()),
        "{known:?}"
    );
    let e =
        object("legacy").set_global("anything", "1").expect_err("it was compiled without types");
    assert!(
        e.to_string().contains("no types") || e.to_string().contains("no global variable"),
        "{e}"
    );
}

#[test]
fn zeroed_and_read_only_sections_take_values_too() {
    let mut o = object("several");
    assert_eq!(set(&mut o, "counts", "{1,2}").as_deref(), Ok("[1, 2, 0, 0]"));
    let bss = &o.maps[o.map(".bss").expect("it has one")];
    let words: Vec<u64> = bss
        .data
        .as_deref()
        .expect("it is data")
        .as_chunks::<8>()
        .0
        .iter()
        .map(|b| u64::from_le_bytes(*b))
        .collect();
    assert_eq!(words, [0, 1, 2, 0, 0]);
    let rodata =
        o.globals().into_iter().find(|g| o.maps[g.map].section == ".rodata").expect("it has one");
    o.set_global_value(&rodata.name, &Value::Uint(42)).expect("a number");
    assert_eq!(o.global(&rodata.name).map(|v| v.to_string()), Ok("42".to_owned()));
}

#[test]
fn configuration_values_given_by_hand_stay() {
    let mut o = object("kconfig");
    assert_eq!(set(&mut o, "CONFIG_HZ", "1000").as_deref(), Ok("1000"));
    assert_eq!(set(&mut o, "CONFIG_IPV6", "m").as_deref(), Ok("TRI_MODULE"));
    assert_eq!(set(&mut o, "CONFIG_IPV6", "TRI_YES").as_deref(), Ok("TRI_YES"));
    assert_eq!(set(&mut o, "CONFIG_BPF", "y").as_deref(), Ok("true"));
    assert_eq!(set(&mut o, "CONFIG_CC_VERSION_TEXT", "\"clang\"").as_deref(), Ok("\"clang\""));
    o.set_kconfig(|name| {
        Some(if name == "LINUX_KERNEL_VERSION" { "7" } else { "n" }.to_owned())
            .filter(|_| name != "CONFIG_NO_SUCH_THING")
    })
    .expect("all fit");
    assert_eq!(o.global("CONFIG_HZ").map(|v| v.to_string()), Ok("1000".to_owned()));
    assert_eq!(o.global("LINUX_KERNEL_VERSION").map(|v| v.to_string()), Ok("7".to_owned()));
    assert!(set(&mut o, "CONFIG_HZ", "often").is_err());
}
