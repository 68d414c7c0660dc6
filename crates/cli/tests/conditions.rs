//! Conditions of `skep trace --if`, beside what C says of the same values.

mod common;

use std::fs;
use std::path::PathBuf;
use std::process::Command;

use common::{Skep, fails, text};
use skep_testkit::TempDir;
use skep_testkit::cc::Cc;
use skep_testkit::skip::{has_command, skip};

fn build(dir: &TempDir, name: &str, source: &str, flags: &[&str]) -> String {
    let is_cxx = name.ends_with("xx");
    let file = dir.path().join(format!("{name}.{}", if is_cxx { "cc" } else { "c" }));
    fs::write(&file, source).expect("written");
    let compiler = if is_cxx { Cc::cxx() } else { Cc::c() };
    let path: PathBuf = compiler.args(flags).compile(&[&file], &dir.path().join(name));
    path.to_str().expect("text").to_owned()
}

/// What `round` was in the calls for which a condition holds.
fn rounds(skep: &Skep, program: &str, function: &str, condition: &str) -> Vec<u32> {
    let ended = skep.run(["trace", function, "--args", "--if", condition, "--", program]);
    let (said, notes) = (text(&ended.stdout), text(&ended.stderr));
    assert!(ended.status.success(), "{condition}: {notes}");
    let round = |line: &str| {
        let (_, rest) = line.rsplit_once("round=")?;
        rest.split_once(')')?.0.parse().ok()
    };
    said.lines().filter_map(round).collect()
}

/// Values with the top bit of their type set are below zero only where the type has a sign.
#[test]
fn enumerations_have_the_sign_of_their_type() {
    const SOURCE: &str = r#"
        #define N __attribute__((noinline, noclone))
        #define KEEP(p) asm volatile("" :: "r"(p) : "memory")
        enum __attribute__((packed)) small { S0, S1 = 200 };
        enum __attribute__((packed)) half { H0, H1 = 40000 };
        enum whole { W0, W1 = 0x80000000u };
        enum large { L0, L1 = 0x8000000000000001, L2 = 0x100000000 };
        enum __attribute__((packed)) below { B0, B1 = -56 };
        struct all { enum small small; enum below below; enum large large; };
        N enum small small(enum small a, enum small *q, struct all *p, int round) { KEEP(q); KEEP(p); return a; }
        N int others(enum half h, enum whole w, enum large l, enum below b, int round) { KEEP(&w); return h + round; }
        int main(void) {
            for (int i = 0; i < 4; i++) {
                enum small s = i % 2 ? S1 : S0;
                struct all all = { s, i % 2 ? B1 : B0, i % 2 ? L1 : L0 };
                small(s, &s, &all, i);
                others(i % 2 ? H1 : H0, i % 2 ? W1 : W0, i == 3 ? L2 : i % 2 ? L1 : L0, i % 2 ? B1 : B0, i);
            }
            return 0;
        }
    "#;
    let (dir, skep) = (TempDir::new(), Skep::new());
    let program = build(&dir, "signs", SOURCE, &["-g", "-O1", "-falign-functions=16"]);
    for (condition, wanted) in [
        ("a == S1", &[1, 3][..]),
        ("a == 200", &[1, 3]),
        ("a > 100 && a != S0", &[1, 3]),
        ("ret == S1", &[1, 3]),
        ("*q == S1", &[1, 3]),
        ("p->small == S1 && p->below == B1 && p->large == L1", &[1, 3]),
        ("p->small == a && *q == p->small", &[0, 1, 2, 3]),
        ("h == H1 && h == 40000", &[1, 3]),
        ("w == W1 && w == 0x80000000 && w > 0", &[1, 3]),
        ("l == L1", &[1]),
        ("l == L2", &[3]),
        ("l > L2", &[1]),
        ("l == large::L1 || l == 0", &[0, 1, 2]),
        ("b == B1 && b < 0", &[1, 3]),
    ] {
        let is_small = ["a ", "ret", "*q", "p->"].iter().any(|s| condition.starts_with(s));
        let function = if is_small { "signs:small" } else { "signs:others" };
        assert_eq!(rounds(&skep, &program, function, condition), wanted, "{condition}");
    }
}

/// A scoped enumeration says what it is made of.
#[test]
fn enumerations_of_cpp_say_their_type() {
    const SOURCE: &str = r#"
        enum class low : signed char { a, b = -56 };
        enum class high : unsigned char { a, b = 200 };
        extern "C" __attribute__((noinline, noclone)) high f(low l, high h, int round) { asm volatile("" :: "r"(round)); return h; }
        int main() {
            f(low::a, high::a, 0);
            f(low::b, high::b, 1);
        }
    "#;
    let (dir, skep) = (TempDir::new(), Skep::new());
    let program = build(&dir, "signsxx", SOURCE, &["-g", "-O1", "-falign-functions=16"]);
    for condition in ["h == 200 && l == -56", "ret == 200", "h > 100 && l < 0"] {
        assert_eq!(rounds(&skep, &program, "signsxx:f", condition), [1], "{condition}");
    }
}

/// A text ends at its zero byte, or at the end of the array that it fills, whatever is behind that.
#[test]
fn texts_end_where_they_end() {
    const SOURCE: &str = r#"
        #include <string.h>
        #include <sys/mman.h>
        #define N __attribute__((noinline, noclone))
        #define KEEP(p) asm volatile("" :: "r"(p) : "memory")
        struct record { char code[4], next[4]; const char *text; char one[1], full[63], wide[80], open[]; };
        struct last { int n; char code[4]; };
        N void show(const char *s, int round) { KEEP(s); }
        N void look(struct record *r, int round) { KEEP(r); }
        N void edge(struct last *p, struct last **q, int round) { KEEP(p); }
        int main(void) {
            static char long_text[200], whole[64], shorter[63], quoted[] = "a\"b\\c\td*";
            memset(long_text, 'q', 199);
            memset(whole, 'q', 63);
            memset(shorter, 'q', 62);
            const char *texts[] = { "", "abc", whole, long_text, shorter, quoted, 0, (char *)1 };
            for (int i = 0; i < 8; i++) show(texts[i], i);
            static struct { struct record r; char open[80]; } r[4];
            const char *codes[] = { "abcd", "abc", "", "abce" };
            for (int i = 0; i < 4; i++) {
                strncpy(r[i].r.code, codes[i], 4);
                memcpy(r[i].r.next, "efg", 4);
                r[i].r.text = codes[i];
                r[i].r.one[0] = 'o';
                memset(r[i].r.full, 'f', 63);
                memset(r[i].r.wide, 'w', 60 + 2 * i);
                strcpy(r[i].open, "open");
                look(&r[i].r, i);
            }
            char *page = mmap(0, 8192, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
            munmap(page + 4096, 4096);
            struct last *at_end = (struct last *)(page + 4096) - 1;
            memcpy(at_end->code, "abcd", 4);
            edge(at_end, &at_end, 0);
            strcpy(at_end->code, "ab");
            edge(at_end, &at_end, 1);
            strcpy(page + 4093, "yz");
            show(page + 4093, 8);
            page[4095] = 'x';
            show(page + 4093, 9);
            return 0;
        }
    "#;
    let (dir, skep) = (TempDir::new(), Skep::new());
    let program = build(&dir, "texts", SOURCE, &["-g", "-O1", "-falign-functions=16"]);
    let long = |sign: &str, len, end: &str| format!("s {sign} \"{}{end}\"", "q".repeat(len));
    let shown: [(&str, &[u32]); 17] = [
        ("s == \"*\"", &[0, 1, 2, 3, 4, 5, 8]),
        ("s != \"*\"", &[]),
        ("s == \"*\" && round > 3", &[4, 5, 8]),
        ("round == 7 || s == \"*\"", &[0, 1, 2, 3, 4, 5, 8]),
        ("!(s != \"*\")", &[0, 1, 2, 3, 4, 5, 8]),
        ("s == \"abc\"", &[1]),
        ("s == \"y*\"", &[8]),
        ("s != \"abc\"", &[0, 2, 3, 4, 5, 8]),
        (&long("==", 62, ""), &[4]),
        (&long("==", 63, ""), &[2]),
        (&long("!=", 63, ""), &[0, 1, 3, 4, 5, 8]),
        (&long("==", 63, "*"), &[2, 3]),
        (&long("==", 62, "*"), &[2, 3, 4]),
        ("s == \"a\\\"b\\\\c\\td\\*\"", &[5]),
        ("s == \"a\\x22*\"", &[5]),
        ("-1 < round && -round == -5", &[5]),
        ("-6 == -round", &[6]),
    ];
    for (condition, wanted) in shown {
        assert_eq!(rounds(&skep, &program, "texts:show", condition), wanted, "{condition}");
    }
    let full = format!("r->full == \"{}\" && r->one == \"o\"", "f".repeat(63));
    let looked: [(&str, &[u32]); 11] = [
        ("r->code == \"abcd\"", &[0]),
        ("r->code == \"abcdefg\"", &[]),
        ("r->code == \"abc\"", &[1]),
        ("r->code == \"abc*\"", &[0, 1, 3]),
        ("r->code != \"abcd\"", &[1, 2, 3]),
        ("r->code == \"\"", &[2]),
        ("r->text == \"abcd\" && r->next == \"efg\"", &[0]),
        ("r->open == \"open\"", &[0, 1, 2, 3]),
        (&full, &[0, 1, 2, 3]),
        ("r->full == \"fff*\" && r->one != \"of\"", &[0, 1, 2, 3]),
        (&format!("r->wide == \"{}\"", "w".repeat(62)), &[1]),
    ];
    for (condition, wanted) in looked {
        assert_eq!(rounds(&skep, &program, "texts:look", condition), wanted, "{condition}");
    }
    for (condition, wanted) in [
        ("p->code == \"abcd\"", &[0][..]),
        ("p->code == \"a*\"", &[0, 1]),
        ("p->code == \"ab\"", &[1]),
        ("p->code != \"*\"", &[]),
    ] {
        assert_eq!(rounds(&skep, &program, "texts:edge", condition), wanted, "{condition}");
    }
}

/// Texts of Rust have a length, and numbers of its enumerations are what `repr` says.
#[test]
fn values_of_rust_are_compared_as_those_of_c() {
    if !has_command("rustc") {
        return skip("rustc");
    }
    const SOURCE: &str = r#"
        #[repr(u8)] #[derive(Clone, Copy)] pub enum Big { One = 1, Last = 250 }
        #[inline(never)] pub fn text(s: &str, e: Big, round: u32) -> usize { std::hint::black_box(e); s.len() + round as usize }
        fn main() {
            for (len, round) in [0, 62, 63, 64, 199].into_iter().zip(0..) {
                text(&"q".repeat(len), if round % 2 == 0 { Big::One } else { Big::Last }, round);
            }
        }
    "#;
    let (dir, skep) = (TempDir::new(), Skep::new());
    let file = dir.path().join("rusty.rs");
    fs::write(&file, SOURCE).expect("written");
    let path = dir.path().join("rusty");
    let mut rustc = Command::new("rustc");
    rustc.args(["--edition=2024", "-g", "-Copt-level=0", "-o"]).args([&path, &file]);
    assert!(rustc.status().is_ok_and(|status| status.success()));
    let program = path.to_str().expect("text");
    let long = |sign: &str, len, end: &str| format!("s {sign} \"{}{end}\"", "q".repeat(len));
    let conditions: [(&str, &[u32]); 8] = [
        ("s == \"*\"", &[0, 1, 2, 3, 4]),
        (&long("==", 62, ""), &[1]),
        (&long("==", 63, ""), &[2]),
        (&long("!=", 63, ""), &[0, 1, 3, 4]),
        (&long("==", 63, "*"), &[2, 3, 4]),
        ("e == Last", &[1, 3]),
        ("e == Big::Last && e == 250", &[1, 3]),
        ("e != Last && e > 0", &[0, 2, 4]),
    ];
    for (condition, wanted) in conditions {
        assert_eq!(rounds(&skep, program, "rusty:rusty::text", condition), wanted, "{condition}");
    }
}

/// Numbers that only an unsigned one can be are unsigned, as in C.
#[test]
fn large_constants_are_unsigned() {
    const SOURCE: &str = r#"
        __attribute__((noinline, noclone)) void f(long c, unsigned round) { asm volatile("" :: "r"(c)); }
        int main(void) { for (int i = 0; i < 5; i++) f(i - 2, i); }
    "#;
    let (dir, skep) = (TempDir::new(), Skep::new());
    let program = build(&dir, "large", SOURCE, &["-g", "-O1", "-falign-functions=16"]);
    for (condition, wanted) in [
        ("c < 0xffffffffffffffff", &[0, 2, 3, 4][..]),
        ("c < 0x8000000000000000", &[2, 3, 4]),
        ("c == 18446744073709551614", &[0]),
        ("c > -9223372036854775807", &[0, 1, 2, 3, 4]),
        ("c < 0x7fffffffffffffff", &[0, 1, 2, 3, 4]),
    ] {
        assert_eq!(rounds(&skep, &program, "large:f", condition), wanted, "{condition}");
    }
}

/// A condition says something else of functions whose arguments are unsigned.
#[test]
fn each_function_has_signs_of_its_own() {
    const SOURCE: &str = r#"
        #define N __attribute__((noinline, noclone))
        #define KEEP() asm volatile("nop; nop; nop" ::: "memory")
        N long f(long c, int round) { KEEP(); return c; }
        N unsigned long g(unsigned long c, int round) { KEEP(); return c; }
        N void *h(void *c, int round) { KEEP(); return c; }
        N int i(int c, int round) { KEEP(); return c; }
        int main(void) {
            for (int round = 0; round < 4; round++) {
                f(round - 2, round);
                g(round - 2, round + 10);
                h((void *)(long)(round - 2), round + 20);
                i(round - 2, round + 30);
            }
        }
    "#;
    let (dir, skep) = (TempDir::new(), Skep::new());
    let program = build(&dir, "signed", SOURCE, &["-g", "-O1", "-falign-functions=16"]);
    for (condition, wanted) in [
        ("ret < 0", &[0, 1, 30, 31][..]),
        ("c >= 0 && ret >= 0", &[2, 3, 10, 11, 12, 13, 20, 21, 22, 23, 32, 33]),
        ("1 > c", &[0, 1, 2, 12, 22, 30, 31, 32]),
        ("c + 1 <= ret", &[11, 21]),
        ("c < 0xffffffffffffffff", &[0, 2, 3, 10, 12, 13, 20, 22, 23, 30, 32, 33]),
    ] {
        let mut found = rounds(&skep, &program, "signed:f,g,h,i", condition);
        found.sort_unstable();
        assert_eq!(found, wanted, "{condition}");
    }
}

/// What is opened later has no types: `arg0` and so on are its registers.
#[test]
fn libraries_that_are_opened_later_have_registers() {
    const LIBRARY: &str =
        "int later(int x, const char *t) { asm volatile(\"nop; nop; nop\"); return x + 1; }";
    const SOURCE: &str = r#"
        #include <dlfcn.h>
        __attribute__((noinline, noclone)) int own(void) { asm volatile(""); return 3; }
        int main(int argc, char **argv) {
            void *h = dlopen(argv[1], RTLD_NOW);
            int (*later)(int, const char *) = h ? (int (*)(int, const char *))dlsym(h, "later") : 0;
            if (!later) return 1;
            for (int i = 0; i < 6; i++) later(i, i % 2 ? "odd" : "even");
            return own() - 3;
        }
    "#;
    let (dir, skep) = (TempDir::new(), Skep::new());
    let library = build(
        &dir,
        "liblater.so",
        LIBRARY,
        &["-g", "-O1", "-falign-functions=16", "-fPIC", "-shared"],
    );
    let program = build(&dir, "opens", SOURCE, &["-g", "-O1", "-falign-functions=16", "-ldl"]);
    let count = |patterns: &str, condition: &str| {
        let args =
            ["trace", patterns, "--allow-unmatched", "--if", condition, "--", &program, &library];
        let ended = skep.run(args);
        let said = text(&ended.stdout);
        assert!(ended.status.success(), "{condition}: {}", text(&ended.stderr));
        said.lines().filter(|line| line.contains("later(")).count()
    };
    assert_eq!(count("liblater.so:later", "arg0 == 3"), 1);
    assert_eq!(count("opens:own,liblater.so:later", "arg0 >= 3 && arg1 == \"odd\""), 2);
    assert_eq!(count("liblater.so:later", "ret == 3 || arg0 == 0"), 2);
    let trace = |pattern, condition| {
        ["trace", pattern, "--allow-unmatched", "--if", condition, "--", &program]
    };
    fails(&skep, &trace("liblater.so:later", "x == 3"), 2, "`arg0` to `arg5` are registers there");
    let own = ["trace", "opens:own", "--if", "arg0 == 3", "--", &program];
    fails(&skep, &own, 2, "none has `arg0`");
}
