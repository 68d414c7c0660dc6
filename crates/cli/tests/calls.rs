//! `skep trace` of calls one by one: arguments and results by debug information, conditions and
//! timelines, beside what the programs themselves say of their calls.

mod common;

use std::collections::BTreeMap;
use std::fs;
use std::path::PathBuf;
use std::process::{Command, Stdio};

use common::live::{Target, Tracer};
use common::{Skep, fails, json, out, text};
use serde_json::Value as Json;
use skep_testkit::TempDir;
use skep_testkit::cc::Cc;
use skep_testkit::skip::{has_command, skip};

/// Prints what its calls look like.
const PROGRAM: &str = r#"
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#define N __attribute__((noinline, noclone))
#define KEEP(p) asm volatile("" :: "r"(p) : "memory")
enum color { RED, GREEN = 5, BLUE };
struct point { int x, y; };
struct wide { long a, b; };
struct huge { long a[4]; };
struct big { long id; char name[16]; struct point at; union { unsigned char tag; int whole; }; void *next; char rest[600]; };
N int paint(enum color c, const char *what, struct point p) { KEEP(what); return c + p.x; }
N long sum(int8_t a, uint16_t b, int c, unsigned long d, char e, _Bool f, long g, short h) { return a + b + c + d + e + f + g + h; }
N char *name_of(struct big *b, double d) { KEEP(b); return b->name; }
N double mix(float a, int n, double b) { KEEP(&a); return a * n + b; }
N struct point mirror(struct wide w, struct huge h) { KEEP(&h); return (struct point){ (int)w.b, (int)w.a }; }
N unsigned fill(char *buf, size_t size) { memset(buf, 'x', 3); KEEP(buf); return -(unsigned)size; }
N void nothing(void *p, int *q) { KEEP(p); }
N long inner(long n) { KEEP(n); return n / 2; }
N long outer(long n) { long r = inner(n) + inner(n + 1); KEEP(r); return r; }
static const char *colors[] = { "RED", "1", "2", "3", "4", "GREEN", "BLUE" };
int main(void) {
    static struct big b = { 42, "hello", { 3, -4 }, { 7 }, 0, "" };
    for (int i = 0; i < 6; i++) {
        enum color c = (enum color)(i == 4 ? 3 : i % 2 ? GREEN : BLUE);
        const char *what = i == 3 ? "window" : "door \"x\"";
        struct point p = { i, -i };
        int painted = paint(c, what, p);
        printf("paint(c=%s, what=%s, p={ .x = %d, .y = %d }) = %d\n", colors[c], i == 3 ? "\"window\"" : "\"door \\\"x\\\"\"", i, -i, painted);
        long s = sum(-i, 65535 - i, -7, 1UL << 63 | i, 'a' + i, i & 1, -5000000000, -1);
        printf("sum(a=%d, b=%d, c=-7, d=%lu, e='%c', f=%s, g=-5000000000, h=-1) = %ld\n", -i, 65535 - i, 1UL << 63 | i, 'a' + i, i & 1 ? "true" : "false", s);
        b.id = 42 + i;
        b.next = i ? &b : 0;
        name_of(&b, i + 0.5);
        printf("name_of(b=%p, d=%d.5) = \"hello\"\n", (void *)&b, i);
        double m = mix(1.5f, i, 0.25);
        printf("mix(a=1.5, n=%d, b=0.25) = %g\n", i, m);
        mirror((struct wide){ i, -1 }, (struct huge){ { 1 } });
        printf("mirror(w={ .a = %d, .b = -1 }, h={ .a = [1, 0, 0, 0] }) = { .x = -1, .y = %d }\n", i, i);
        char buf[8] = "abc";
        unsigned f = fill(buf, i * 1000);
        printf("fill(buf=\"abc\", size=%d) = %u\n", i * 1000, f);
        nothing(0, &i);
        printf("nothing(p=NULL, q=%p)\n", (void *)&i);
        long o = outer(i * 10);
        printf("inner(n=%d) = %d\ninner(n=%d) = %d\nouter(n=%d) = %ld\n", i * 10, i * 5, i * 10 + 1, (i * 10 + 1) / 2, i * 10, o);
    }
    return 0;
}
"#;

const FUNCTIONS: &str = "values:paint,sum,name_of,mix,mirror,fill,nothing,inner,outer";

fn build(dir: &TempDir, name: &str, source: &str, flags: &[&str]) -> String {
    let file = dir.path().join(format!("{name}.c"));
    fs::write(&file, source).expect("written");
    let path: PathBuf = Cc::c().args(flags).compile(&[&file], &dir.path().join(name));
    path.to_str().expect("text").to_owned()
}

fn values(dir: &TempDir) -> String {
    build(dir, "values", PROGRAM, &["-g", "-O1", "-falign-functions=16"])
}

/// Runs a trace; returns what the program said, and the calls that were printed, without times.
fn traced(skep: &Skep, dir: &TempDir, args: &[&str]) -> (Vec<String>, Vec<String>) {
    let file = dir.path().join("calls.txt");
    let mut all = vec!["trace", "-o", file.to_str().expect("text")];
    all.extend(args);
    let said = out(skep, &all).lines().map(str::to_owned).collect();
    let calls = fs::read_to_string(&file).expect("there is a report");
    let mut lines = calls.lines();
    let head: Vec<&str> = lines.next().expect("a head").split_ascii_whitespace().collect();
    assert_eq!(head, ["TIME", "THREAD", "TOOK", "CALL"]);
    let call = |line: &str| {
        let rest = (0..3).fold(line.trim_start(), |rest, _| {
            rest.split_once(' ').expect("a field").1.trim_start()
        });
        rest.to_owned()
    };
    (said, lines.map(call).collect())
}

/// Calls of a JSON document.
fn list(document: &Json) -> &Vec<Json> {
    document["calls"].as_array().expect("calls")
}

#[test]
fn arguments_and_results_are_what_the_program_says() {
    let (dir, skep) = (TempDir::new(), Skep::new());
    let program = values(&dir);
    let (said, calls) = traced(&skep, &dir, &[FUNCTIONS, "--args", "--ret", "--", &program]);
    assert_eq!(said.len(), 6 * 10);
    assert_eq!(calls, said);
    let (_, calls) = traced(&skep, &dir, &["values:paint", "--args", "--", &program]);
    assert_eq!(calls[3], "paint(c=GREEN, what=\"window\", p={ .x = 3, .y = -3 })");
    let (_, calls) = traced(&skep, &dir, &["values:paint", "--ret", "--", &program]);
    assert_eq!(calls[3], "paint(…) = 8");
}

#[test]
fn structures_behind_pointers_are_read_up_to_a_size() {
    let (dir, skep) = (TempDir::new(), Skep::new());
    let program = values(&dir);
    let file = dir.path().join("calls.json");
    let name = file.to_str().expect("text");
    out(&skep, &["trace", "values:name_of", "--deref", "--json", "-o", name, "--", &program]);
    let document = json(&fs::read(&file).expect("written"));
    let calls = list(&document);
    assert_eq!(calls.len(), 6);
    for (i, call) in calls.iter().enumerate() {
        let b = &call["args"]["b"];
        assert_eq!(b["id"], 42 + i as u64);
        assert_eq!(
            (&b["name"], &b["at"]["y"], &b["tag"]),
            (&"hello".into(), &(-4).into(), &7.into())
        );
        assert_eq!(b["next"] == "0x0", i == 0);
        assert_eq!(b.get("rest"), None, "what was not read is not shown");
        assert_eq!(call["args"]["d"], i as f64 + 0.5);
        assert_eq!(call.get("ret"), None);
        assert!(call["took_ns"].is_u64());
    }
}

#[test]
fn conditions_are_decided_in_the_program() {
    let (dir, skep) = (TempDir::new(), Skep::new());
    let program = values(&dir);
    type Holds = dyn Fn(&str) -> bool;
    let conditions: [(&str, &Holds); 14] = [
        ("size > 2500", &|l| {
            l.starts_with("fill") && !["=0)", "=1000)", "=2000)"].iter().any(|s| l.contains(s))
        }),
        ("what == \"win*\"", &|l| l.contains("window")),
        ("what != \"window\"", &|l| l.starts_with("paint") && !l.contains("window")),
        ("what == \"wind\"", &|_| false),
        ("c == 5 && what != \"w*\"", &|l| l.contains("GREEN") && !l.contains("window")),
        ("a < -2", &|l| ["a=-3,", "a=-4,", "a=-5,"].iter().any(|s| l.contains(s))),
        ("d > 0x8000000000000003", &|l| {
            ["d=9223372036854775812", "d=9223372036854775813"].iter().any(|s| l.contains(s))
        }),
        ("e == 'c' || f == true", &|l| l.contains("e='c'") || l.contains("f=true")),
        ("ret < 0 && g", &|l| l.starts_with("sum") && l.contains("= -")),
        ("ret == n - 5", &|l| l.starts_with("inner(n=10)")),
        ("b->id == 44", &|l| l.contains("d=2.5")),
        ("b->at.x == 3 && b->tag == 7 && b->next == NULL", &|l| l.contains("d=0.5")),
        ("b->name == \"hel*\" && b->id & 1", &|l| {
            l.starts_with("name_of") && ["1.5", "3.5", "5.5"].iter().any(|d| l.contains(d))
        }),
        ("*q >= 4", &|l| l.starts_with("nothing")),
    ];
    for (condition, holds) in conditions {
        let (said, calls) =
            traced(&skep, &dir, &[FUNCTIONS, "--if", condition, "--args", "--ret", "--", &program]);
        let mut wanted: Vec<&String> = said.iter().filter(|l| holds(l)).collect();
        if condition.starts_with("*q") {
            wanted.drain(..4);
        }
        assert_eq!(calls.iter().collect::<Vec<_>>(), wanted, "{condition}");
    }
}

/// Structures in vector registers, on the stack, behind pointers that the compiler makes, and results of
/// all these kinds.
const BY_VALUE: &str = r#"
#include <cstdio>
#define N __attribute__((noinline, noclone))
#define USE(x) asm volatile("" :: "r"(&x) : "memory")
struct copied { long a, b; copied(long x, long y) : a(x), b(y) {} copied(const copied &o) : a(o.a), b(o.b) {} ~copied() {} };
struct flat { double x, y; };
struct deep { double x, y, z; };
struct left { double d; int i; };
struct right { int i; float f; double d; };
struct floats { float a, b, c; };
struct large { long v[40]; int k; };
struct two { long a, b; };
extern "C" {
N long copied_one(copied r, long q) { USE(r); return r.a + q; }
N double in_vectors(flat v, int k, flat w, floats f) { USE(v); return v.x + w.y + k; }
N double on_stack(deep v, int k, large b, deep w) { USE(v); return v.x + w.y + k + b.k; }
N int in_both(left m, right r) { USE(m); return m.i + r.i; }
N long used_up(long a, long b, long c, long d, long e, two t, left m, long f, long double ld, two u) { USE(t); return a + t.b + u.a; }
N long far_away(long a, long b, long c, long d, long e, long f, deep v, deep w, long far, char on) { USE(v); return far; }
N flat flat_of(int k) { USE(k); return { k + 0.5, k + 1.5 }; }
N floats floats_of(int k) { USE(k); return { k + 0.5f, k + 1.5f, k + 2.5f }; }
N right right_of(int k) { USE(k); return { k, 1.5f, k + 0.25 }; }
N left left_of(int k) { USE(k); return { k + 0.5, k }; }
N deep deep_of(int k) { USE(k); return { k + 0.5, k + 1.5, k + 2.5 }; }
N copied copied_of(int k) { USE(k); return copied(k, k + 7); }
}
int main() {
    for (int i = 1; i < 4; i++) {
        copied r(i, i + 1);
        large b = { { 1, 2 }, 7 };
        copied_one(r, 5);
        printf("copied_one(r={ .a = %d, .b = %d }, q=5) = %d\n", i, i + 1, i + 5);
        in_vectors({ i + .25, 2 }, i, { 3, i + .5 }, { 1, 2, i + .5f });
        printf("in_vectors(v={ .x = %d.25, .y = 2 }, k=%d, w={ .x = 3, .y = %d.5 }, f={ .a = 1, .b = 2, .c = %d.5 }) = %g\n", i, i, i, i, 3 * i + .75);
        on_stack({ i + .125, 2, 3 }, i, b, { 4, 5, i + .75 });
        printf("on_stack(v={ .x = %d.125, .y = 2, .z = 3 }, k=%d, b={ .v = [1, 2", i, i);
        for (int n = 2; n < 40; n++) printf(", 0");
        printf("], .k = 7 }, w={ .x = 4, .y = 5, .z = %d.75 }) = %g\n", i, 2 * i + 12.125);
        in_both({ i + .5, i }, { i, 1.5f, i + .25 });
        printf("in_both(m={ .d = %d.5, .i = %d }, r={ .i = %d, .f = 1.5, .d = %d.25 }) = %d\n", i, i, i, i, 2 * i);
        used_up(1, 2, 3, 4, 5, { i, 8 }, { i + .5, i }, 6, 2.5L, { 9, i });
        printf("used_up(a=1, b=2, c=3, d=4, e=5, t={ .a = %d, .b = 8 }, m={ .d = %d.5, .i = %d }, f=6, ld=2.5, u={ .a = 9, .b = %d }) = 18\n", i, i, i, i);
        far_away(1, 2, 3, 4, 5, 6, { 7, 8, 9 }, { 10, 11, i + .5 }, 12 + i, 'x');
        printf("far_away(a=1, b=2, c=3, d=4, e=5, f=6, v={ .x = 7, .y = 8, .z = 9 }, w={ .x = 10, .y = 11, .z = %d.5 }, far=%d, on='x') = %d\n", i, 12 + i, 12 + i);
        flat_of(i);
        printf("flat_of(k=%d) = { .x = %d.5, .y = %d.5 }\n", i, i, i + 1);
        floats_of(i);
        printf("floats_of(k=%d) = { .a = %d.5, .b = %d.5, .c = %d.5 }\n", i, i, i + 1, i + 2);
        right_of(i);
        printf("right_of(k=%d) = { .i = %d, .f = 1.5, .d = %d.25 }\n", i, i, i);
        left_of(i);
        printf("left_of(k=%d) = { .d = %d.5, .i = %d }\n", i, i, i);
        deep_of(i);
        printf("deep_of(k=%d) = { .x = %d.5, .y = %d.5, .z = %d.5 }\n", i, i, i + 1, i + 2);
        copied_of(i);
        printf("copied_of(k=%d) = { .a = %d, .b = %d }\n", i, i, i + 7);
    }
}
"#;

#[test]
fn structures_by_value_are_what_the_program_says() {
    let (dir, skep) = (TempDir::new(), Skep::new());
    let source = dir.path().join("by_value.cc");
    fs::write(&source, BY_VALUE).expect("written");
    let program = Cc::cxx().args(&["-g", "-O1"]).compile(&[&source], &dir.path().join("by_value"));
    let program = program.to_str().expect("text");
    let functions = "by_value:copied_*,in_*,on_stack,used_up,far_away,*_of";
    let (said, calls) = traced(&skep, &dir, &[functions, "--args", "--ret", "--", program]);
    assert_eq!(said.len(), 3 * 12);
    assert_eq!(calls, said);
    for (condition, wanted) in [
        ("r.b == 3", "copied_one(r={ .a = 2,"),
        ("b.k == 7 && k == 3", "on_stack(v={ .x = 3.125"),
        ("m.i == 2 && r.i < 3", "in_both(m={ .d = 2.5"),
        ("t.a == 1 && u.b == 1 && m.i == 1", "used_up(a=1, b=2, c=3, d=4, e=5, t={ .a = 1,"),
        ("ret.i == 2 && k < 9", "right_of(k=2)"),
        ("ret.b == 9", "copied_of(k=2)"),
    ] {
        let args = [functions, "--args", "--ret", "--if", condition, "--", program];
        let (_, calls) = traced(&skep, &dir, &args);
        let all = said.iter().filter(|line| line.starts_with(wanted));
        // `left_of` has a result with `.i`, too.
        let left = said
            .iter()
            .filter(|line| condition.contains("ret.i") && line.starts_with("left_of(k=2)"));
        assert_eq!(
            calls.iter().collect::<Vec<_>>(),
            all.chain(left).collect::<Vec<_>>(),
            "{condition}"
        );
    }
}

/// Numbers of narrow unsigned types were 64 bits wide in arithmetic, and signed in comparisons: the
/// compiler says what C makes of each condition.
#[test]
fn arithmetic_of_conditions_is_that_of_c() {
    const CONDITIONS: [&str; 30] = [
        "u - 1 > 0",
        "u - 2 < 0",
        "u > -1",
        "u == -1",
        "u != -1 && i < u",
        "i > u",
        "i == 0xffffffff",
        "i == 4294967295",
        "u == 0xffffffff",
        "u == 4294967295",
        "-u > 5",
        "-u == 4294967295",
        "u * u == 1",
        "u * 2 == 0xfffffffe",
        "u + 1 == 0",
        "(u ^ -1) == 0",
        "(u & -1) == u",
        "(i | u) > 0",
        "c - 1 < 0",
        "s - 1 < 0 && c < -1 == 0",
        "u - 2 < l",
        "(u - 2) + l > 0",
        "u + l - 2 > 0",
        "l > u && l < q",
        "q - 1 > 0",
        "q > -1",
        "l - 1 < q",
        "(u > 5) - 1 < 0",
        "e - 1 > FEW",
        "-1 < w - 1",
    ];
    let cases: String = CONDITIONS.iter().map(|c| format!("printf(\"%d\", !!({c})); ")).collect();
    let source = format!(
        r#"
        #include <stdio.h>
        enum e {{ FEW, MANY = 7 }};
        __attribute__((noinline)) void f(unsigned u, int i, unsigned char c, unsigned short s, long l, unsigned long q, enum e e, unsigned w) {{
            asm volatile("" ::: "memory");
            {cases}
            puts("");
        }}
        int main(void) {{
            unsigned numbers[] = {{ 0, 1, 2, 5, 0x7fffffff, 0x80000000, 0xffffffff }};
            for (int a = 0; a < 7; a++)
                for (int b = 0; b < 7; b++)
                    f(numbers[a], numbers[b], numbers[a], numbers[b], (int)numbers[b], (long)(int)numbers[a], b % 2 ? FEW : MANY, numbers[b]);
            return 0;
        }}
        "#
    );
    let (dir, skep) = (TempDir::new(), Skep::new());
    let program = build(&dir, "ranks", &source, &["-g", "-O0", "-w"]);
    let numbers = [0_u32, 1, 2, 5, 0x7fff_ffff, 0x8000_0000, 0xffff_ffff];
    for (at, condition) in CONDITIONS.iter().enumerate() {
        let (said, calls) =
            traced(&skep, &dir, &["ranks:f", "--if", condition, "--args", "--", &program]);
        let wanted: Vec<String> = said
            .iter()
            .enumerate()
            .filter(|(_, line)| line.as_bytes()[at] == b'1')
            .map(|(n, _)| format!("f(u={}, i={}, ", numbers[n / 7], numbers[n % 7].cast_signed()))
            .collect();
        let begins = |call: &String| call.split("c=").next().expect("a part").to_owned();
        let calls: Vec<String> = calls.iter().map(begins).collect();
        assert_eq!((said.len(), &calls), (49, &wanted), "{condition}");
    }
}

/// Base classes, numbers of more than eight bytes, and pointers to members. The C library writes a
/// `long double` with as few digits as are read back as it.
const ODD: &str = r#"
#include <cstdio>
#include <cstdlib>
#include <cstring>
#define N __attribute__((noinline, noclone))
#define USE(x) asm volatile("nop; nop; nop; nop" :: "r"(&x) : "memory")
struct one { int a; };
struct none {};
struct two : one, none { int b; };
struct three : two { long rest[70]; };
struct same : one { int c; };
struct both : two, same { int d; };
struct precise { long double x; int k; };
struct wide { __int128 i; unsigned __int128 u; };
struct virt { virtual int v(int n) { return n; } int f(int n) { return n + 1; } };
struct first { virtual ~first() {} };
struct late : first, one, virt { int z; };
struct members { int one::*p; int (late::*f)(int); };
struct turned { _Complex double z; _Complex float w; };
struct letters { char a; signed char b; unsigned char c; float f; double d; };
typedef float four __attribute__((vector_size(16)));
struct lanes { four x; };
static const char *of(long double x) {
    static char all[8][64];
    static int next;
    char *text = all[next++ % 8];
    for (int digits = 1; digits < 22; digits++) {
        snprintf(text, 64, "%.*Lg", digits, x);
        if (strtold(text, 0) == x) break;
    }
    if (char *plus = strchr(text, '+')) memmove(plus, plus + 1, strlen(plus));
    return text;
}
static const char *of(__int128 n) {
    static char all[8][64];
    static int next;
    char *at = all[next++ % 8] + 63;
    unsigned __int128 left = n < 0 ? -(unsigned __int128)n : n;
    do *--at = '0' + left % 10; while (left /= 10);
    if (n < 0) *--at = '-';
    return at;
}
extern "C" {
N int bases(both x, three *y) { USE(x); USE(*y); return x.d; }
N int exact(precise p, long double y) { USE(p); return p.k; }
N __int128 wides(wide w, __int128 a) { USE(w); return a - 1; }
N int to_members(members m, int one::*p, int (virt::*f)(int)) { USE(m); return 1; }
N int complex_of(turned t) { USE(t); return 2; }
N int letters_of(letters l, none n, float f) { USE(l); return l.b; }
N double after_lanes(lanes v, double d) { USE(v); return d; }
}
int main() {
    long double numbers[] = { 0, 1.25L, -0.1L, 1.0L / 3, 3e-4L, 1e4000L, -3.5e-4940L, 123456789.0L, 2.0L / 3 * 1e14L };
    for (long double x : numbers) {
        exact({ x, 7 }, -x);
        printf("exact(p={ .x = %s, .k = 7 }, y=%s) = 7\n", of(x), of(-x));
    }
    both x; x.two::a = 1; x.b = 2; x.same::a = 3; x.c = 4; x.d = 5;
    three y; y.a = 6; y.b = 7;
    bases(x, &y);
    printf("bases(x={ .two = { .one = { .a = 1 }, .none = {}, .b = 2 }, .same = { .one = { .a = 3 }, .c = 4 }, .d = 5 }, y={ .two = { .one = { .a = 6 }, .none = {}, .b = 7 } }) = 5\n");
    for (int shift = 0; shift < 127; shift += 42) {
        __int128 n = -((__int128)5 << shift);
        wides({ n, (unsigned __int128)-n }, n);
        printf("wides(w={ .i = %s, .u = %s }, a=%s) = %s\n", of(n), of(-n), of(n), of(n - 1));
    }
    auto plain = (int (late::*)(int))&virt::f;
    long words[2];
    memcpy(words, &plain, 16);
    to_members({ &late::a, plain }, &one::a, &virt::f);
    printf("to_members(m={ .p = 0, .f = { .ptr = %#lx, .adj = %ld } }, p=0, f={ .ptr = %#lx, .adj = 0 }) = 1\n", words[0], words[1], words[0]);
    auto last = &virt::v;
    memcpy(words, &last, 16);
    to_members({ nullptr, nullptr }, nullptr, last);
    printf("to_members(m={ .p = -1, .f = { .ptr = 0x0, .adj = 0 } }, p=-1, f={ .ptr = %#lx, .adj = 0 }) = 1\n", words[0]);
    complex_of({ 1.5 + 2.5j, -0.5f + 1.0jf });
    printf("complex_of(t={ .z = [1.5, 2.5], .w = [-0.5, 1] }) = 2\n");
    letters_of({ 'a', -7, 200, 0.1f, 1e300 }, {}, 3.3f);
    printf("letters_of(l={ .a = 'a', .b = -7, .c = 200, .f = %g, .d = 1e300 }, n={}, f=%g) = -7\n", 0.1f, 3.3f);
    after_lanes(lanes{ four{ 1, 2, 3, 4 } }, 5.5);
    printf("after_lanes(v=…, d=5.5) = 5.5\n");
}
"#;

#[test]
fn odd_types_of_cpp_are_what_the_program_says() {
    let (dir, skep) = (TempDir::new(), Skep::new());
    let source = dir.path().join("odd.cc");
    fs::write(&source, ODD).expect("written");
    let flags = ["-g", "-O1", "-std=gnu++17", "-falign-functions=16"];
    let program = Cc::cxx().args(&flags).compile(&[&source], &dir.path().join("odd"));
    let program = program.to_str().expect("text");
    let functions = "odd:bases,exact,wides,to_members,*_of,after_lanes";
    let (said, calls) =
        traced(&skep, &dir, &[functions, "--args", "--deref", "--ret", "--", program]);
    assert_eq!(said.len(), 19);
    assert_eq!(calls, said);
    // A number of more than 64 bits is a text in JSON, however small it is.
    let file = dir.path().join("odd.json");
    let name = file.to_str().expect("text");
    let args = ["trace", "odd:exact,wides", "--args", "--ret", "--json", "-o", name, "--", program];
    out(&skep, &args);
    let document = json(&fs::read(&file).expect("written"));
    let calls = list(&document);
    let all = |call: &Json| [call["args"].clone(), call["ret"].clone()];
    assert_eq!(
        all(&calls[1]),
        [serde_json::json!({"p": {"x": "1.25", "k": 7}, "y": "-1.25"}), 7.into()]
    );
    assert_eq!(
        all(&calls[9]),
        [serde_json::json!({"w": {"i": "-5", "u": "5"}, "a": "-5"}), "-6".into()]
    );
}

/// Bit fields, pointers and texts in structures that are passed by value.
const MEMBERS: &str = r#"
#include <stdio.h>
#define N __attribute__((noinline, noclone))
#define KEEP(p) asm volatile("" :: "r"(p) : "memory")
struct node { int id; const char *name; struct node *next; };
struct bits { unsigned a : 3; int b : 5; unsigned long c : 40; short d; };
struct held { const char *what; struct node *node; };
struct box { char label[12]; struct { struct bits bits; struct node *node; } in; long rest[4]; };
union either { long number; struct { short low, high; }; };
N int packed(struct bits v, int i) { KEEP(&v); return i; }
N int held(struct held h, int i) { KEEP(&h); return i; }
N int boxed(int i, struct box b) { KEEP(&b); return i; }
N struct held give(struct node *n) { KEEP(n); return (struct held){ n->name, n }; }
N struct box wrap(int i) { struct box b = { "box 0", { { 1, i, i, i }, 0 }, { 0 } }; b.label[4] += i; KEEP(&b); return b; }
N int any(union either e, int i) { KEEP(&e); return i; }
int main(void) {
    struct node second = { 2, "second", 0 }, first = { 1, "first", &second };
    for (int i = 0; i < 6; i++) {
        struct bits v = { i, -i, (1UL << 39) + i, -i };
        packed(v, i);
        held((struct held){ i % 2 ? "odd" : "even", i % 3 ? &first : &second }, i);
        struct box b = { "label", { v, &first }, { 0 } };
        boxed(i, b);
        give(i % 2 ? &first : &second);
        wrap(i);
        any((union either){ .number = i << 16 | 7 }, i);
    }
}
"#;

#[test]
fn conditions_look_at_members_of_structures_by_value() {
    let (dir, skep) = (TempDir::new(), Skep::new());
    let program = build(&dir, "members", MEMBERS, &["-g", "-O1"]);
    // Which of the six rounds a condition means.
    type Holds = fn(usize) -> bool;
    let conditions: [(&str, &str, Holds); 20] = [
        ("packed", "v.a == 5", |i| i == 5),
        ("packed", "v.b == -3", |i| i == 3),
        ("packed", "v.b < -1 && v.d > -4", |i| (2..4).contains(&i)),
        ("packed", "v.c == 0x8000000004", |i| i == 4),
        ("packed", "v.a == i", |_| true),
        ("held", "h.what == \"odd\"", |i| i % 2 == 1),
        ("held", "h.what != \"o*\" && h.node->id == 1", |i| i % 2 == 0 && i % 3 > 0),
        ("held", "h.node->next->name == \"sec*\"", |i| i % 3 > 0),
        ("held", "h.node->next == NULL", |i| i % 3 == 0),
        ("boxed", "b.label == \"label\" && b.in.bits.b == -2", |i| i == 2),
        ("boxed", "b.in.bits.c - i == 0x8000000000", |_| true),
        ("boxed", "b.in.node->name == \"first\" && b.in.bits.d == -1", |i| i == 1),
        ("boxed", "b.label == \"labe\"", |_| false),
        ("give", "ret.node->id == 2", |i| i % 2 == 0),
        ("give", "ret.what == \"first\"", |i| i % 2 == 1),
        ("wrap", "ret.in.bits.b == 4", |i| i == 4),
        ("wrap", "ret.label == \"box 3\"", |i| i == 3),
        ("any", "e.high == 2", |i| i == 2),
        ("any", "e.low == 7 && e.number > 0x30000", |i| i >= 3),
        ("any", "e.high == 9", |_| false),
    ];
    for (function, condition, holds) in conditions {
        let pattern = format!("members:{function}");
        let args = [&pattern, "--args", "--ret", "--if", condition, "--", &program];
        let calls = traced(&skep, &dir, &args).1;
        let rounds: Vec<usize> = (0..6).filter(|i| holds(*i)).collect();
        assert_eq!(calls.len(), rounds.len(), "{function}, {condition}: {calls:#?}");
        let shown = calls.iter().filter_map(|call| {
            let (_, rest) = call.split_once("i=")?;
            rest.split([',', ')']).next()?.parse::<usize>().ok()
        });
        let shown: Vec<usize> = shown.collect();
        // It is not told the round.
        assert!(shown == rounds || function == "give", "{function}, {condition}: {calls:#?}");
    }
    for (condition, why) in [
        ("h.nothing == 1", "none has `h.nothing`"),
        ("i.x == 1", "none has `i.x`"),
        ("h->what == \"a\"", "none has `h->what`"),
        ("h. == 1", "a member's name stands behind `.`"),
    ] {
        let refused = skep.run(["trace", "members:held", "--if", condition, "--", &program]);
        let text = text(&refused.stderr);
        assert!(refused.shell_status() == 2 && text.contains(why), "{condition}: {text}");
    }
}

/// Without optimization every function is known; with it those that rustc did not change.
#[test]
fn values_of_rust_are_what_the_program_says() {
    if !has_command("rustc") {
        return skip("rustc");
    }
    let (dir, skep) = (TempDir::new(), Skep::new());
    let program = dir.path().join("passed");
    let path = program.to_str().expect("text");
    let own = |call: &String| {
        ["owned", "bytes", "result", "wrapped", "option"].iter().any(|f| call.starts_with(f))
    };
    for level in ["0", "2"] {
        let mut rustc = Command::new("rustc");
        let level = format!("-Copt-level={level}");
        let source = common::data("passed.rs");
        rustc.args(["--edition=2024", "-g", &level, "-o", path, &source]);
        assert!(rustc.status().is_ok_and(|s| s.success()));
        let all = ["passed:passed::*", "--exclude", "*closure*", "--args", "--ret", "--", path];
        let (said, calls) = traced(&skep, &dir, &all);
        if level.ends_with('0') {
            let find =
                ["passed:passed::small", "--args", "--if", "p.0 == 2 && q.tag > 199", "--", path];
            let calls = traced(&skep, &dir, &find).1;
            let begins = "passed::small(p={ .__0 = 2, .__1 = 8 }, q={ .tag = 200,";
            assert!(calls.len() == 1 && calls[0].starts_with(begins), "{calls:?}");
            let find = "c == '€' && p.0 == '\\xe2\\x82\\xac'";
            let find = ["passed:passed::letter", "--args", "--if", find, "--", path];
            let calls = traced(&skep, &dir, &find).1;
            let letter = "passed::letter(c='€', p={ .__0 = '€', .__1 = 0.1 }, n=1)";
            assert_eq!(calls, [letter]);
        }
        let call = |line: String| {
            let line = line.trim_start_matches("passed::").to_owned();
            let Some((before, rest)) = line.split_once("w=0x") else { return line };
            let rest = rest.trim_start_matches(|c: char| c.is_ascii_hexdigit());
            format!("{before}w=0x{rest}")
        };
        let calls: Vec<String> = calls.into_iter().map(call).filter(|c| c != "main()").collect();
        let (mut known, unknown): (Vec<_>, Vec<_>) =
            calls.into_iter().partition(|c| !c.contains("(…)"));
        assert_eq!(unknown.is_empty(), level.ends_with('0'), "{unknown:?}");
        // Not all functions print what they were given.
        let large = |n: u32, text: &str| {
            let (head, rest) = text.split_once(", .text = { .data_ptr = 0x").expect("a pointer");
            assert_eq!(head, format!("{{ .a = {n}, .b = [{n}, 2, 3]"));
            assert!(rest.contains(", .length = 3 } }"), "{text}");
        };
        for (n, call) in (1..).zip(known.iter().filter(|c| c.starts_with("owned"))) {
            let (argument, result) = call.split_once(") = ").expect("a result");
            large(n, argument.strip_prefix("owned(s=").expect("an argument"));
            large(n, result);
        }
        let results: Vec<&str> = known.iter().filter_map(|c| c.strip_prefix("result(n=")).collect();
        assert_eq!(results[..2], ["1) = { .Ok = { .__0 = 1 } }", "2) = { .Ok = { .__0 = 2 } }"]);
        assert!(results[2].starts_with("3) = { .Err = "), "{results:?}");
        let bytes: Vec<&String> = known.iter().filter(|c| c.starts_with("bytes")).collect();
        assert_eq!(bytes[1], "bytes(a=0x01020302, b=…, n=2) = 0x01020302");
        known.retain(|c| !own(c) || c.starts_with("option") && c.contains("n=3"));
        let is_known = |line: &String| {
            let name = line.split('(').next();
            !unknown.iter().any(|c| c.split('(').next() == name)
        };
        let wanted: Vec<String> = said.into_iter().filter(is_known).collect();
        assert!(wanted.iter().any(|l| l.starts_with("text(") && l.ends_with("…\"")), "{wanted:?}");
        assert_eq!(known, wanted, "{level}");
    }
    let find = ["passed:passed::text", "--args", "--if", "s == \"hel*\"", "--", path];
    assert_eq!(traced(&skep, &dir, &find).1, ["passed::text(s=\"hello\", n=1)"]);
    // A text of Rust ends where its length says: `he\0` is not `he`.
    let find = ["passed:passed::text", "--args", "--if", "s == \"he\"", "--", path];
    assert_eq!(traced(&skep, &dir, &find).1, ["passed::text(s=\"he\", n=6)"]);
    let find = ["passed:passed::text", "--args", "--if", "s == \"he*\" && n > 4", "--", path];
    let calls = traced(&skep, &dir, &find).1;
    assert_eq!(calls, ["passed::text(s=\"he\\0\", n=5)", "passed::text(s=\"he\", n=6)"]);
    let find = ["passed:passed::text", "--ret", "--if", "ret == \"\"", "--", path];
    assert_eq!(traced(&skep, &dir, &find).1, ["passed::text(…) = \"\""]);
}

/// Debug information without types, as that of Rust's own libraries, was taken for functions without
/// arguments and results.
#[test]
fn functions_without_types_are_not_functions_without_arguments() {
    const SOURCE: &str = r#"
#define N __attribute__((noinline, noclone))
N void nothing(void) { asm volatile("nop; nop; nop; nop; nop" ::: "memory"); }
N int one(int a) { asm volatile("nop; nop; nop; nop; nop" : "+r"(a)); return a; }
int main(void) { nothing(); return one(3) - 3; }
"#;
    let (dir, skep) = (TempDir::new(), Skep::new());
    for (level, wanted) in
        [("-g1", ["nothing(…)", "one(…)"]), ("-g", ["nothing()", "one(a=3) = 3"])]
    {
        let program = build(&dir, "lines", SOURCE, &[level, "-O1"]);
        let args = ["lines:nothing,one", "--args", "--ret", "--", &program];
        assert_eq!(traced(&skep, &dir, &args).1, wanted, "{level}");
    }
}

/// Types of one name in different places: each argument has the members of its own.
const SAME_NAMES: [&str; 3] = [
    r#"
struct node { int x, y; };
typedef struct { short s; int t[2]; } unnamed;
#define N __attribute__((noinline, noclone))
N int first(struct node n) { asm volatile("nop; nop; nop; nop" :: "r"(&n)); return n.x; }
N int first_at(struct node *n) { asm volatile("nop; nop; nop; nop" :: "r"(n)); return n->x; }
N int without(unnamed u) { asm volatile("nop; nop; nop; nop" :: "r"(&u)); return u.t[1]; }
enum kind { SOME = 2 };
N int kind_of(enum kind k) { asm volatile("nop; nop; nop; nop" :: "r"(k)); return 1; }
int second_and_third(void);
int main(void) {
    struct node n = { 1, 2 };
    unnamed u = { 3, { 4, 5 } };
    return first(n) + first_at(&n) + without(u) + kind_of(SOME) + second_and_third() > 1000;
}
"#,
    r#"
struct node { short u, v, w, z; };
enum kind { OTHER = 2 };
#define N __attribute__((noinline, noclone))
N int second(struct node n) { asm volatile("nop; nop; nop; nop" :: "r"(&n)); return n.u; }
N int second_at(struct node *n) { asm volatile("nop; nop; nop; nop" :: "r"(n)); return n->u; }
N int other_kind(enum kind k) { asm volatile("nop; nop; nop; nop" :: "r"(k)); return 1; }
int opaque(struct node *n);
int second_and_third(void) {
    struct node n = { 3, 4, 5, 6 };
    return second(n) + second_at(&n) + opaque(&n) + other_kind(OTHER);
}
"#,
    r#"
struct node;
__attribute__((noinline, noclone)) int opaque(struct node *n) { asm volatile("nop; nop; nop; nop" :: "r"(n)); return 7; }
"#,
];

#[test]
fn types_of_one_name_are_told_apart() {
    let (dir, skep) = (TempDir::new(), Skep::new());
    let files: Vec<PathBuf> = SAME_NAMES
        .iter()
        .enumerate()
        .map(|(n, source)| {
            let file = dir.path().join(format!("part{n}.c"));
            fs::write(&file, source).expect("written");
            file
        })
        .collect();
    let files: Vec<&std::path::Path> = files.iter().map(PathBuf::as_path).collect();
    for version in ["-gdwarf-5", "-gdwarf-4"] {
        for kind in ["-fno-debug-types-section", "-fdebug-types-section"] {
            let cc = Cc::c().args(&[version, kind, "-O1"]);
            let program = cc.compile(&files, &dir.path().join("same"));
            let functions = "same:first*,second,second_at,opaque,without,*kind*";
            let args = [functions, "--deref", "--", program.to_str().expect("text")];
            let (_, mut calls) = traced(&skep, &dir, &args);
            let pointer = calls.iter().position(|c| c.starts_with("opaque(n=0x"));
            // Nobody says which of both it is.
            assert!(pointer.is_some_and(|at| !calls.remove(at).contains('{')), "{calls:?}");
            assert_eq!(
                calls,
                [
                    "first(n={ .x = 1, .y = 2 })",
                    "first_at(n={ .x = 1, .y = 2 })",
                    "without(u={ .s = 3, .t = [4, 5] })",
                    "kind_of(k=SOME)",
                    "second(n={ .u = 3, .v = 4, .w = 5, .z = 6 })",
                    "second_at(n={ .u = 3, .v = 4, .w = 5, .z = 6 })",
                    "other_kind(k=OTHER)",
                ],
                "{version} {kind}"
            );
        }
    }
}

/// Both lambdas were called `main::{lambda`, and the template `void run<void `.
#[test]
fn names_of_cpp_lose_their_parameters_only() {
    let (dir, skep) = (TempDir::new(), Skep::new());
    let source = dir.path().join("lambdas.cc");
    let code = "
        #define N __attribute__((noinline))
        volatile int sink;
        template <typename F> N void run(F f, int n) { f(n); sink += n; }
        N void plain(int n) { sink += n; }
        int main() {
            auto one = [](int n) N { sink += n; };
            auto two = [](int n) N { sink -= n; };
            one(1);
            two(2);
            run<void (*)(int)>(plain, 3);
        }
    ";
    fs::write(&source, code).expect("written");
    let program = Cc::cxx().args(&["-O1"]).compile(&[&source], &dir.path().join("lambdas"));
    let program = program.to_str().expect("text");
    let trace = |functions: &str| traced(&skep, &dir, &[functions, "--args", "--", program]).1;
    let second = "main::{lambda(int)#2}::operator()";
    assert_eq!(trace(&format!("lambdas:{second}")), [format!("{second}(…)")]);
    let mut calls = trace("lambdas:main::*,*run*");
    calls.sort();
    let wanted = [
        "main::{lambda(int)#1}::operator()(…)",
        "main::{lambda(int)#2}::operator()(…)",
        "void run<void (*)(int)>(…)",
    ];
    assert_eq!(calls, wanted);
}

/// A list of nodes with bit fields, names behind pointers and constants that two enumerations have.
const LIST: &str = r#"
#include <stdio.h>
#define N __attribute__((noinline, noclone))
#define KEEP(p) asm volatile("" :: "r"(p) : "memory")
enum color { RED, GREEN = 5, BLUE, DARK = -3 };
enum light { OFF, HIGH = 0x80000000 };
enum other { AMBER = 1, SAME = 7 };
enum third { OCHRE = 2, SAMEAS = 7, };
struct at { short x; signed low : 3, middle : 11; unsigned high : 13, odd : 2; };
struct node { const char *name; struct node *next; struct at at; enum color color; unsigned long flag : 1, wide : 47; };
struct lamp { enum light light; enum other other; enum third third; };
N int visit(struct node *n, enum color c, int round) { KEEP(n); return c + round; }
N struct node *step(struct node *n) { KEEP(n); return n->next; }
N int shine(struct lamp *l, int round) { KEEP(l); return round; }
N unsigned __int128 wide(unsigned __int128 a, __int128 b, long c) { return a + b + c; }
int main(void) {
    struct node third = { "third", 0, { 3, -1, -1024, 8191, 1 }, DARK, 1, 1ul << 46 };
    struct node second = { "second node", &third, { 2, 3, 77, 5, 2 }, GREEN, 0, 5 };
    struct node first = { "first", &second, { 1, -4, 0, 0, 3 }, BLUE, 1, 0 };
    enum color colors[] = { RED, GREEN, BLUE, DARK };
    struct node *nodes[] = { &first, &second, &third };
    for (int i = 0; i < 12; i++) {
        visit(nodes[i % 3], colors[i % 4], i);
        step(nodes[i % 3]);
        struct lamp lamp = { i % 2 ? HIGH : OFF, i % 3 ? AMBER : SAME, i % 4 ? OCHRE : SAMEAS };
        shine(&lamp, i);
        wide((unsigned __int128)i << 100 | 7, -((__int128)i << 90), i);
    }
    return 0;
}
"#;

#[test]
fn conditions_follow_pointers_and_know_constants() {
    let (dir, skep) = (TempDir::new(), Skep::new());
    let program = build(&dir, "list", LIST, &["-g"]);
    type Holds = fn(usize) -> bool;
    let conditions: [(&str, Holds); 20] = [
        ("c == GREEN", |i| i % 4 == 1),
        ("c == DARK && n != NULL", |i| i % 4 == 3),
        ("c == color::BLUE", |i| i % 4 == 2),
        ("n->color == DARK", |i| i % 3 == 2),
        ("n->color == c", |i| matches!((i % 3, i % 4), (0, 2) | (1, 1) | (2, 3))),
        ("n->next->color == GREEN && round > 0", |i| i % 3 == 0 && i > 0),
        ("n->next->next->at.x == 3 && round < 9", |i| i % 3 == 0 && i < 9),
        ("n->next == NULL", |i| i % 3 == 2),
        ("n->name == \"second*\"", |i| i % 3 == 1),
        ("n->next->name == \"third\"", |i| i % 3 == 1),
        ("n->next->name != \"third\"", |i| i % 3 == 0),
        ("n->at.low == -4", |i| i % 3 == 0),
        ("n->at.middle == -1024", |i| i % 3 == 2),
        ("n->at.high == 8191 && n->at.odd == 1", |i| i % 3 == 2),
        ("n->at.odd == 3 && n->flag", |i| i % 3 == 0),
        ("n->wide == 0x400000000000 && n->flag == 1", |i| i % 3 == 2),
        ("l->light == HIGH", |i| i % 2 == 1),
        ("l->other == SAME && l->third == SAMEAS", |i| i % 12 == 0),
        ("ret->color == DARK", |i| i % 3 == 1),
        ("ret->next->name == \"third\"", |i| i % 3 == 0),
    ];
    for (condition, holds) in conditions {
        let function = match condition.split("->").next() {
            Some("l") => "list:shine",
            Some("ret") => "list:step",
            _ => "list:visit",
        };
        let command = [function, "--if", condition, "--args", "--", &program];
        let (_, calls) = traced(&skep, &dir, &command);
        let wanted: Vec<usize> = (0..12).filter(|i| holds(*i)).collect();
        assert_eq!(calls.len(), wanted.len(), "{condition}: {calls:?}");
        if function != "list:step" {
            let round = |call: &String| call.rsplit_once("round=").map(|(_, n)| n.to_owned());
            let found: Vec<_> = calls.iter().filter_map(round).collect();
            let wanted: Vec<String> = wanted.iter().map(|i| format!("{i})")).collect();
            assert_eq!(found, wanted, "{condition}");
        }
    }
    let (_, calls) = traced(&skep, &dir, &["list:wide", "--args", "--", &program]);
    for (i, call) in calls.iter().enumerate() {
        let (a, b) = ((i as u128) << 100 | 7, -((i as i128) << 90));
        assert_eq!(*call, format!("wide(a={a}, b={b}, c={i})"));
    }
    for (condition, words) in [
        (
            "c == YELLOW",
            "none has `YELLOW`; `visit` has (struct node * n, enum color c, int round)",
        ),
        ("n->next->nobody == 1", "none has `n->next->nobody`"),
        ("n->at.x->y == 1", "none has `n->at.x->y`"),
        ("n->at == 1", "none has `n->at`"),
    ] {
        let command = ["trace", "list:visit,step", "--if", condition, "--", &program];
        fails(&skep, &command, 2, words);
    }
}

#[test]
fn what_has_no_types_is_declared_or_shown_without() {
    let (dir, skep) = (TempDir::new(), Skep::new());
    let source = r#"
        extern int rmdir(const char *path);
        __attribute__((noinline)) long twice(const char *s, long n) { asm volatile("" :: "r"(s)); return 2 * n; }
        int main(void) { return twice("both", 21) == 42 ? rmdir("/own/path") : 1; }
    "#;
    let library = "int rmdir(const char *path) { return path[1] == 'o' ? 0 : 9; }";
    let library =
        build(&dir, "libc-own.so", library, &["-O1", "-fPIC", "-shared", "-fvisibility=default"]);
    let program =
        build(&dir, "bare", source, &["-O1", "-Wl,--no-as-needed,-rpath,$ORIGIN", &library]);
    let both = ["bare:twice", "libc-own.so:rmdir", "--args", "--ret"];
    let ask = |more: &[&str]| {
        let args: Vec<&str> = both.iter().chain(more).copied().chain(["--", &program]).collect();
        traced(&skep, &dir, &args).1
    };
    assert_eq!(ask(&[]), ["twice(…)", "rmdir(path=\"/own/path\") = 0"]);
    let declared = ask(&["--prototype", "long twice(const char *text, long n)"]);
    assert_eq!(declared[0], "twice(text=\"both\", n=21) = 42");
    // By registers.
    assert_eq!(ask(&["--if", "arg1 == 21"]), ["twice(…)"]);
    assert_eq!(ask(&["--if", "arg0 == \"bo*\" && ret == 42"]), ["twice(…)"]);
    assert_eq!(ask(&["--if", "arg1 == 22"]).len(), 0);
    let ended = skep.run(["trace", "bare:twice", "--args", "--", &program]);
    let notes = text(&ended.stderr);
    assert!(
        notes.contains("the arguments of `twice` are not known") && notes.contains("--prototype"),
        "{notes}"
    );
}

/// Each thread's and process's calls are there once, with its own values, and in timelines they lie
/// inside each other.
#[test]
fn threads_processes_and_timelines() {
    const SOURCE: &str = r#"
        #include <pthread.h>
        #include <sys/wait.h>
        #include <unistd.h>
        #define N __attribute__((noinline, noclone))
        N long leaf(long who, long n) { asm volatile("" :: "r"(n)); return who * 1000000 + n; }
        N long trunk(long who, long n) { long r = leaf(who, n); asm volatile("" :: "r"(r)); return r + 1; }
        static void *work(void *p) { for (long i = 0; i < 500; i++) trunk((long)p, i); return 0; }
        int main(void) {
            pthread_t t[4];
            for (long i = 0; i < 4; i++) pthread_create(t + i, 0, work, (void *)i);
            for (int i = 0; i < 4; i++) pthread_join(t[i], 0);
            pid_t child = fork();
            if (!child) { work((void *)4); _exit(0); }
            waitpid(child, 0, 0);
            return 0;
        }
    "#;
    let (dir, skep) = (TempDir::new(), Skep::new());
    let program = build(&dir, "many", SOURCE, &["-g", "-O1", "-pthread"]);
    let chrome = dir.path().join("chrome.json");
    let chrome_arg = chrome.to_str().expect("text");
    let document = json(
        out(
            &skep,
            &[
                "trace",
                "many:leaf,trunk",
                "--args",
                "--ret",
                "--json",
                "--chrome",
                chrome_arg,
                "--",
                &program,
            ],
        )
        .as_bytes(),
    );
    assert_eq!((document["dropped"].as_u64(), document["lost"].as_u64()), (Some(0), Some(0)));
    let mut seen: BTreeMap<(String, u64), Vec<u64>> = BTreeMap::new();
    let mut threads: BTreeMap<u64, (u64, u64)> = BTreeMap::new();
    for call in list(&document) {
        let who = call["args"]["who"].as_u64().expect("a number");
        let n = call["args"]["n"].as_u64().expect("a number");
        let name = call["function"].as_str().expect("a name").to_owned();
        let extra = u64::from(name == "trunk");
        assert_eq!(call["ret"], who * 1_000_000 + n + extra);
        assert_eq!(call["depth"], 1 - extra);
        seen.entry((name, who)).or_default().push(n);
        let thread = (call["pid"].as_u64().unwrap(), call["tid"].as_u64().unwrap());
        assert_eq!(*threads.entry(who).or_insert(thread), thread);
    }
    assert_eq!(seen.len(), 10);
    assert!(seen.values().all(|all| *all == (0..500).collect::<Vec<_>>()));
    assert_eq!(
        threads.values().map(|(pid, _)| pid).collect::<std::collections::BTreeSet<_>>().len(),
        2
    );
    let timeline = json(&fs::read(&chrome).expect("written"));
    let events = timeline["traceEvents"].as_array().expect("events");
    assert_eq!(events.iter().filter(|e| e["ph"] == "X").count(), 5000);
    let names: Vec<&Json> =
        events.iter().filter(|e| e["ph"] == "M").map(|e| &e["args"]["name"]).collect();
    assert_eq!(names, ["many", "many"]);
    let mut open: BTreeMap<u64, (f64, f64)> = BTreeMap::new();
    for e in events.iter().filter(|e| e["ph"] == "X") {
        let (begin, took) = (e["ts"].as_f64().unwrap(), e["dur"].as_f64().unwrap());
        let tid = e["tid"].as_u64().unwrap();
        match e["name"].as_str() {
            Some("leaf") => drop(open.insert(tid, (begin, begin + took))),
            _ => {
                let (first, last) = open[&tid];
                assert!(begin <= first && last <= begin + took + 0.002, "{e} {first} {last}");
            }
        }
    }
}

#[test]
fn calls_of_a_process_that_runs_already_and_those_that_have_not_returned() {
    const SOURCE: &str = r#"
        #include <pthread.h>
        #include <signal.h>
        #include <stdio.h>
        #include <stdlib.h>
        #include <sys/prctl.h>
        #include <unistd.h>
        static int last;
        static volatile int ticks;
        __attribute__((noinline)) int tick(const char *what, int n) { asm volatile("" :: "r"(what)); usleep(1000); ticks++; return n + 1; }
        __attribute__((noinline)) int stay(int n) { asm volatile("" ::: "memory"); for (;;) { n = tick("tock", n); if (n == last) raise(SIGKILL); } return n; }
        /* Waits until some more calls have returned, each time it is asked. */
        static void *answer(void *p) {
            prctl(PR_SET_PTRACER, PR_SET_PTRACER_ANY, 0, 0, 0);
            setvbuf(stdout, 0, _IONBF, 0);
            for (puts("ready"); getchar() != EOF; puts("done"))
                for (int before = ticks; ticks < before + 6;) usleep(1000);
            _exit(7);
            return p;
        }
        int main(int argc, char **argv) {
            pthread_t t;
            if (argc > 1) last = atoi(argv[1]);
            else pthread_create(&t, 0, answer, 0);
            stay(0);
        }
    "#;
    let (dir, skep) = (TempDir::new(), Skep::new());
    let program = build(&dir, "ticks", SOURCE, &["-g", "-O1", "-pthread"]);
    let path = PathBuf::from(&program);
    let mut target = Target::start(TempDir::new(), path, &Command::new(&program));
    let tracer = Tracer::attach(&skep, &target, &["ticks:tick", "--args", "--ret"]);
    target.tell("");
    let document = tracer.end();
    target.end();
    let calls: Vec<&Json> = list(&document).iter().filter(|c| c["running"] != true).collect();
    assert!(calls.len() > 3, "{document}");
    let first = calls[0]["args"]["n"].as_u64().expect("a number");
    for (at, call) in calls.iter().enumerate() {
        assert_eq!(
            (&call["args"]["what"], &call["args"]["n"]),
            (&"tock".into(), &(first + at as u64).into())
        );
        assert_eq!(call["ret"], first + at as u64 + 1);
    }
    let ended = skep.run(["trace", "ticks:tick,stay", "--args", "--", &program, "9"]);
    assert_eq!(ended.status.code(), Some(137));
    let lines = text(&ended.stdout);
    assert_eq!(lines.matches("tick(what=\"tock\", n=").count(), 9, "{lines}");
    assert!(lines.contains("stay(n=0) has not returned"), "{lines}");
}

/// Says how each of its calls ended: by a return, a jump, an exception, or not before its thread or
/// process did.
const LEFT: &str = r#"
#include <csetjmp>
#include <cstdio>
#include <cstdlib>
#include <pthread.h>
#include <sys/wait.h>
#include <unistd.h>
#define N __attribute__((noinline, noclone))
#define KEEP asm volatile("nop; nop; nop; nop; nop" ::: "memory")
static jmp_buf env;
extern "C" {
N int leaf(int n) { KEEP; printf("leaf(n=%d) = %d\n", n, n + 1); return n + 1; }
N void jump(int n) { printf("jump(n=%d) was left\n", n); leaf(n); if (!n) longjmp(env, 1); jump(n - 1); KEEP; }
N int jumps(int n) { printf("jumps(n=%d) = %d\n", n, n); if (!setjmp(env)) jump(n); leaf(90); return n; }
N void throws(int n) { printf("throws(n=%d) was left\n", n); if (!n) throw 7; throws(n - 1); KEEP; }
N int catches(int n) { printf("catches(n=%d) = %d\n", n, n); try { throws(n); } catch (int) { } return n; }
N void ends(int n) { printf("ends(n=%d) has not returned\n", n); KEEP; pthread_exit(0); }
N void quits(int n) { printf("quits(n=%d) has not returned\n", n); fflush(stdout); KEEP; _exit(n); }
N void executes(int n) { printf("executes(n=%d) has not returned\n", n); fflush(stdout); execl("/proc/self/exe", "left", "again", nullptr); }
}
static void *work(void *) { ends(5); return 0; }
int main(int argc, char **) {
    if (argc > 1) return 0;
    for (int i = 0; i < 3; i++) jumps(2);
    for (int i = 0; i < 2; i++) catches(80);
    catches(3);
    leaf(91);
    pthread_t t;
    for (int i = 0; i < 2; i++) { pthread_create(&t, 0, work, 0); pthread_join(t, 0); }
    fflush(stdout);
    for (int i = 0; i < 2; i++) {
        pid_t child = fork();
        if (!child && i) executes(2);
        if (!child) quits(1);
        waitpid(child, 0, 0);
    }
    catches(2);
}
"#;

/// Such calls were missing, and nothing said so.
#[test]
fn calls_that_do_not_return_are_there_too() {
    let (dir, skep) = (TempDir::new(), Skep::new());
    let source = dir.path().join("exits.cc");
    fs::write(&source, LEFT).expect("written");
    let flags = ["-g", "-O1", "-pthread", "-falign-functions=16"];
    let program = Cc::cxx().args(&flags).compile(&[&source], &dir.path().join("exits"));
    let program = program.to_str().expect("text");
    let functions = "exits:leaf,jump,jumps,throws,catches,ends,quits,executes";
    let (mut said, mut calls) = traced(&skep, &dir, &[functions, "--args", "--ret", "--", program]);
    let is_left = |line: &&String| line.ends_with("was left");
    let left = said.iter().filter(is_left).count();
    assert_eq!(left, 3 * 3 + 2 * 81 + 4 + 3);
    said.sort();
    calls.sort();
    assert_eq!(calls, said);
    // What looks at results has none of them, and `--min` none that took less.
    for args in [&["--if", "n < 9 || ret < 0"][..], &["--min", "10h", "--args"]] {
        let args: Vec<&str> =
            [functions].iter().chain(args).chain(&["--", program]).copied().collect();
        let calls = traced(&skep, &dir, &args).1;
        assert_eq!(calls.iter().filter(is_left).count(), 0, "{calls:?}");
    }
    // All forms have the same calls, and each lies inside its caller.
    let file = |name: &str| dir.path().join(name).to_str().expect("text").to_owned();
    let [recording, chrome, perfetto] = ["a.skep", "a.json", "a.pftrace"].map(file);
    out(&skep, &["trace", functions, "--calls", "--record", &recording, "--", program]);
    let report = |args: &[&str]| {
        let all: Vec<&str> = ["report", &recording].iter().chain(args).copied().collect();
        out(&skep, &all)
    };
    assert_eq!(report(&["--calls"]).lines().filter(|l| l.ends_with("was left")).count(), left);
    let document = json(report(&["--calls", "--json"]).as_bytes());
    assert_eq!((&document["lost"], &document["dropped"]), (&0.into(), &0.into()));
    assert_eq!(list(&document).iter().filter(|c| c["left"] == true).count(), left);
    report(&["--chrome", &chrome]);
    let events = json(&fs::read(&chrome).expect("written"));
    let events = events["traceEvents"].as_array().expect("events");
    let of =
        |cat: &str, ph: &str| events.iter().filter(|e| e["cat"] == cat && e["ph"] == ph).count();
    assert_eq!((of("exits,left", "X"), of("exits", "B")), (left, 4));
    assert_eq!(of("exits", "X"), said.iter().filter(|l| l.contains(" = ")).count());
    report(&["--perfetto", &perfetto]);
    let bytes = fs::read(&perfetto).expect("written");
    assert_eq!(bytes.windows(6).filter(|w| w == b"\x12\x04left").count(), 1);
    // Of paths in the program, and of those that the calls make.
    let tree = |args: &[&str]| {
        let file = file("tree.json");
        let end = args.iter().position(|a| *a == "--").unwrap_or(args.len());
        let (head, command) = args.split_at(end);
        out(&skep, &[head, &["--json", "-o", &file], command].concat());
        let document = json(&fs::read(&file).expect("written"));
        let nodes = document["tree"].as_array().expect("a tree").clone();
        let path = |node: &Json| {
            let mut at = node.clone();
            let mut path = vec![at["name"].as_str().expect("a name").to_owned()];
            while let Some(caller) = at["parent"].as_u64() {
                at = nodes[caller as usize].clone();
                path.push(at["name"].as_str().expect("a name").to_owned());
            }
            (path.join("<"), node["calls"].as_u64())
        };
        nodes.iter().map(path).collect::<BTreeMap<_, _>>()
    };
    let counted = tree(&["trace", functions, "--tree", "--", program]);
    let later = tree(&["report", &recording, "--tree"]);
    let other = later.iter().find(|(path, calls)| counted.get(*path) != Some(calls));
    assert_eq!((later.len(), other), (counted.len(), None));
}

#[test]
fn limits_depths_and_times_leave_calls_out() {
    let (dir, skep) = (TempDir::new(), Skep::new());
    let program = values(&dir);
    let count = |args: &[&str]| traced(&skep, &dir, args).1.len();
    let both = "values:inner,outer";
    assert_eq!(count(&[both, "--args", "--", &program]), 18);
    assert_eq!(count(&[both, "--args", "--limit", "5", "--", &program]), 5);
    assert_eq!(count(&[both, "--args", "--depth", "1", "--", &program]), 6);
    assert_eq!(count(&[both, "--args", "--min", "10s", "--", &program]), 0);
    // A reader that goes away ends nothing but the printing.
    let source = "__attribute__((noinline)) int f(int n) { asm volatile(\"\"); return n + 1; }
        int main(void) { for (int i = 0; i < 100000; i++) f(i); return 7; }";
    let quiet = build(&dir, "quiet", source, &["-g", "-O1", "-falign-functions=16"]);
    let args = ["trace", "quiet:f", "--args", "--", &quiet];
    let mut child = skep.command(args).stdout(Stdio::piped()).spawn().expect("runs");
    drop(child.stdout.take());
    assert_eq!(child.wait().expect("ended").code(), Some(7));
}

/// Calls take 10 ms at least; one in the middle is an error, and one takes 150 ms. The program says
/// between which microseconds each of them ended: on a busy machine all may take longer.
#[test]
fn the_last_calls_before_something_happens() {
    const SOURCE: &str = r#"
        #include <stdio.h>
        #include <stdlib.h>
        #include <time.h>
        #include <unistd.h>
        #define N __attribute__((noinline, noclone))
        static long now(void) { struct timespec t; clock_gettime(CLOCK_MONOTONIC, &t); return t.tv_sec * 1000000 + t.tv_nsec / 1000; }
        N int step(int n) { usleep(n == 60 ? 150000 : 10000); return n; }
        N void error(const char *what) { asm volatile("" :: "r"(what) : "memory"); }
        void an_error(const char *what) __attribute__((alias("error")));
        int main(int argc, char **argv) {
            for (int n = 0; n < 80; n++) {
                long begin = now() + 10000;
                step(n);
                printf("%ld %ld\n", begin, now());
                if (n != 30) continue;
                begin = now();
                error("bad");
                printf("%ld %ld\n", begin, now());
            }
            if (argc > 1) abort();
            return 0;
        }
    "#;
    let (dir, skep) = (TempDir::new(), Skep::new());
    let program = build(&dir, "steps", SOURCE, &["-g", "-O1", "-falign-functions=16"]);
    // Of the steps up to the error: how many ended in the 100 ms before its end, at least and at most.
    let counts = |said: &[String]| {
        let ends: Vec<(i64, i64)> = said
            .iter()
            .map(|line| line.split_once(' ').expect("two numbers"))
            .map(|(first, last)| {
                (first.parse().expect("a number"), last.parse().expect("a number"))
            })
            .collect();
        let (error, steps) = (ends[31], &ends[..31]);
        // The clocks may differ a little.
        let least = steps.iter().filter(|step| step.0 > error.1 - 99_900).count();
        let most = steps.iter().filter(|step| step.1 > error.0 - 100_100).count();
        least..=most
    };
    let steps = |args: &[&str]| -> (Vec<String>, Vec<String>) {
        let all: Vec<&str> = ["steps:step,error", "--args", "--last", "100ms"]
            .iter()
            .chain(args)
            .copied()
            .chain(["--", &program])
            .collect();
        traced(&skep, &dir, &all)
    };
    let number = |line: &String| -> u32 {
        line.trim_start_matches("step(n=").trim_end_matches(')').parse().expect("a step")
    };
    let (said, lines) = steps(&["--on", "steps:err*"]);
    let (last, before) = lines.split_last().expect("calls");
    assert_eq!(last, "error(what=\"bad\")");
    let before: Vec<u32> = before.iter().map(number).collect();
    assert!(counts(&said).contains(&before.len()), "{:?}: {lines:?}", counts(&said));
    assert_eq!(before, ((31 - before.len() as u32)..31).collect::<Vec<_>>());
    let slow: Vec<u32> = steps(&["--on", ">140ms"]).1.iter().map(number).collect();
    assert!(slow.contains(&60), "{slow:?}");
    let (said, both) = steps(&["--on", "steps:error", "--on", "> 140ms"]);
    assert!(both.contains(&"step(n=60)".to_owned()), "{both:?}");
    assert!(both.contains(&"step(n=30)".to_owned()) || counts(&said).contains(&0), "{both:?}");
    let other_name = steps(&["--on", "steps:an_error"]).1;
    assert!(
        other_name.last().is_some_and(|call| call.ends_with("(what=\"bad\")")),
        "{other_name:?}"
    );
    // Nothing would be printed.
    for (pattern, words) in [
        ("steps:main", "`main` is there, but is not traced"),
        ("nosuch", "--on: `nosuch` matches none of the functions that are traced"),
        ("steps:error,none*", "--on: `steps:none*` matches none"),
    ] {
        let trace = ["trace", "steps:step,error", "--last", "5ms", "--on", pattern, "--", &program];
        fails(&skep, &trace, 2, words);
        let ended = skep.run(trace[..1].iter().chain(&["--allow-unmatched"]).chain(&trace[1..]));
        assert!(ended.status.success(), "{pattern}");
    }
    let mut left_out = ["trace", "steps:*", "--exclude", "err*", "--last", "5ms"].to_vec();
    left_out.extend(["--on", "steps:error", "--", &program]);
    fails(&skep, &left_out, 2, "`error` is there, but is not traced");
    let file = dir.path().join("last.txt");
    let name = file.to_str().expect("text");
    let ended = skep.run([
        "trace",
        "steps:step",
        "--args",
        "--last",
        "100ms",
        "-o",
        name,
        "--",
        &program,
        "crash",
    ]);
    assert_eq!(ended.status.code(), Some(134));
    let text = fs::read_to_string(&file).expect("written");
    assert!(text.contains("step(n=79)") && !text.contains("step(n=60)"), "{text}");
    fails(&skep, &["trace", "steps:step", "--on", "steps:main", "--", &program], 2, "--last");
    fails(&skep, &["trace", "steps:step", "--last", "5", "--", &program], 2, "unit");
}

#[test]
fn mistakes_are_told_before_the_command_runs() {
    let (dir, skep) = (TempDir::new(), Skep::new());
    let program = values(&dir);
    let tries: [(&[&str], &str); 8] = [
        (&["--if", "size >"], "--if: `size >` is no condition: it ends too early"),
        (&["--if", "sizes > 1"], "no function that is to be traced has all that `sizes > 1` names"),
        (&["--if", "p.z > 1"], "has all that `p.z > 1` names"),
        (&["--if", "b->nobody == 1"], "has all that `b->nobody == 1` names"),
        (&["--if", "5 > 4"], "it names no argument"),
        (&["--args", "--prototype", "int f(struct point p)"], "is no declaration"),
        (&["--args", "--tree"], "cannot be used with"),
        (&["--chrome", "/nonexistent/x.json"], "cannot create `/nonexistent/x.json`"),
    ];
    for (args, words) in tries {
        let mut all = vec!["trace", FUNCTIONS];
        all.extend(args);
        all.extend(["--", &program]);
        fails(&skep, &all, 2, words);
    }
    // An attachment that fails prints nothing, and leaves an older report as it was.
    let file = dir.path().join("older.json");
    fs::write(&file, "older").expect("written");
    let name = file.to_str().expect("text");
    for more in [&["--json"][..], &[], &["-o", name]] {
        let mut all = vec!["trace", "libc:getenv", "--args", "-p", "4194303"];
        all.extend(more);
        let ended = skep.run(&all);
        assert_eq!((ended.status.code(), text(&ended.stdout).as_str()), (Some(2), ""));
    }
    assert_eq!(fs::read_to_string(&file).expect("still there"), "older");
}
