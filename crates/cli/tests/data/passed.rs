//! Prints what its calls look like.

use std::hint::black_box;
use std::io;

pub struct Point {
    pub x: f64,
    pub y: f64,
}
pub struct Near(pub f32, pub f32);
pub struct Two(pub u32, pub u32);
pub struct Mixed {
    pub tag: u8,
    pub value: u64,
}
pub struct Three {
    pub a: u16,
    pub b: u16,
    pub c: u16,
}
pub struct Large {
    pub a: u64,
    pub b: [u32; 3],
    pub text: &'static str,
}
pub struct Wrapped(pub &'static str, pub ());
#[derive(Clone, Copy)]
pub enum Shape {
    Empty,
    Square(u32),
    Circle { radius: u32 },
}
pub enum Wide {
    Number(u64),
    Text(String),
}

#[inline(never)]
pub fn text(s: &str, n: u32) -> &str {
    black_box(n);
    black_box(s)
}
#[inline(never)]
pub fn owned(s: Large, n: u32) -> Large {
    black_box(n);
    black_box(s)
}
#[inline(never)]
pub fn point(p: Point, n: u32, q: Near) -> Point {
    black_box((q, n));
    black_box(p)
}
#[inline(never)]
pub fn small(p: Two, q: Mixed, r: Three, n: u32) -> Two {
    black_box((q, r, n));
    black_box(p)
}
#[inline(never)]
pub fn bytes(a: [u8; 4], b: [u32; 4], n: u32) -> [u8; 4] {
    black_box((b, n));
    black_box(a)
}
#[inline(never)]
pub fn option(a: Option<u32>, b: Option<&'static str>, c: Option<f64>, n: u32) -> Option<u32> {
    black_box((b, c, n));
    black_box(a)
}
#[inline(never)]
pub fn shape(s: Shape, w: &Wide, n: u32) -> Shape {
    black_box((w, n));
    black_box(s)
}
#[inline(never)]
pub fn result(n: u32) -> io::Result<usize> {
    black_box(if n > 2 { Err(io::Error::from_raw_os_error(2)) } else { Ok(n as usize) })
}
#[inline(never)]
pub fn wrapped(a: Wrapped, nothing: (), b: Wrapped) -> Wrapped {
    black_box((a, nothing));
    black_box(b)
}
#[inline(never)]
pub fn many(
    a: u64,
    b: u64,
    c: u64,
    d: u64,
    e: u64,
    s: &'static str,
    t: &'static str,
    n: u32,
) -> u32 {
    black_box((a, b, c, d, e, s, t));
    black_box(n)
}
#[inline(never)]
pub fn floats(a: f64, n: u32, b: f32) -> f64 {
    black_box((a, n));
    black_box(b).into()
}
#[inline(never)]
pub fn both((a, b): (u32, u64), n: u32) -> u64 {
    black_box((a, n));
    black_box(b)
}

#[inline(never)]
pub fn letter(c: char, p: (char, f32), n: u32) -> char {
    black_box((p, n));
    black_box(c)
}

fn main() {
    let long: &'static str = Box::leak("é".repeat(80).into_boxed_str());
    for i in 1..4u32 {
        let (i, f) = (black_box(i), f64::from(i) + 0.5);
        let s = ["hello", "", long][i as usize - 1];
        black_box(text(black_box(s), i));
        let shown = if i == 3 { "é".repeat(59) + "\"…" } else { format!("{s}\"") };
        println!(
            "text(s=\"{}, n={i}) = \"{}",
            shown.replace("\"…", "…\""),
            shown.replace("\"…", "…\"")
        );
        black_box(owned(Large { a: i.into(), b: [i, 2, 3], text: "abc" }, i));
        black_box(point(Point { x: f, y: -f }, i, Near(i as f32, 0.25)));
        println!(
            "point(p={{ .x = {f}, .y = -{f} }}, n={i}, q={{ .__0 = {i}, .__1 = 0.25 }}) = {{ .x = {f}, .y = -{f} }}"
        );
        black_box(small(
            Two(i, 8),
            Mixed { tag: 200, value: u64::MAX - u64::from(i) },
            Three { a: 1, b: i as u16, c: 3 },
            i,
        ));
        println!(
            "small(p={{ .__0 = {i}, .__1 = 8 }}, q={{ .tag = 200, .value = {} }}, r={{ .a = 1, .b = {i}, .c = 3 }}, n={i}) = {{ .__0 = {i}, .__1 = 8 }}",
            u64::MAX - u64::from(i)
        );
        black_box(bytes(black_box([1, 2, 3, i as u8]), [i; 4], i));
        black_box(option(
            Some(i).filter(|i| *i != 2),
            Some("some").filter(|_| i != 3),
            Some(f).filter(|_| i != 1),
            i,
        ));
        let some = |there: bool, value: String| {
            if there {
                format!("{{ .Some = {{ .__0 = {value} }} }}")
            } else {
                "{ .None = {} }".to_owned()
            }
        };
        let (a, c) = (some(i != 2, i.to_string()), some(i != 1, f.to_string()));
        if i == 3 {
            println!("option(a={a}, b={{ .None = {{}} }}, c={c}, n={i}) = {a}");
        }
        let wide = if i == 2 { Wide::Text("x".to_owned()) } else { Wide::Number(7) };
        let one = [Shape::Empty, Shape::Square(i), Shape::Circle { radius: i }][i as usize - 1];
        black_box(shape(one, &wide, i));
        let said = [
            "{ .Empty = {} }".to_owned(),
            format!("{{ .Square = {{ .__0 = {i} }} }}"),
            format!("{{ .Circle = {{ .radius = {i} }} }}"),
        ];
        println!("shape(s={}, w=0x, n={i}) = {}", said[i as usize - 1], said[i as usize - 1]);
        drop(black_box(result(i)));
        black_box(wrapped(Wrapped("a", ()), (), Wrapped("b", ())));
        black_box(many(1, 2, 3, 4, 5, "six", "seven", i));
        println!("many(a=1, b=2, c=3, d=4, e=5, s=\"six\", t=\"seven\", n={i}) = {i}");
        black_box(floats(f, i, 1.5));
        println!("floats(a={f}, n={i}, b=1.5) = 1.5");
        black_box(both((i, 9), i));
        println!("both({{ .__0 = {i}, .__1 = 9 }}, n={i}) = 9");
    }
    for (n, s) in [(5, "he\0"), (6, "he")] {
        black_box(text(black_box(s), n));
        println!("text(s={s:?}, n={n}) = {s:?}");
    }
    for (n, c) in ['é', '€', '\n', '𝄞'].into_iter().enumerate() {
        black_box(letter(black_box(c), (c, 0.1), n as u32));
        println!("letter(c={c:?}, p={{ .__0 = {c:?}, .__1 = 0.1 }}, n={n}) = {c:?}");
    }
}
