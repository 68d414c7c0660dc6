use std::io::Write;
use std::process::{Command, Stdio};

use super::demangle;

/// Each is what `c++filt` prints, with numbers as `cpp_demangle` has them.
#[test]
fn usual_names_are_read_as_others_read_them() {
    for (mangled, plain) in [
        ("_Z3addii", "add(int, int)"),
        ("_ZNSt6vectorIiSaIiEED1Ev", "std::vector<int, std::allocator<int> >::~vector()"),
        ("_ZNK1A1bERKS_", "A::b(A const&) const"),
        ("_ZN12_GLOBAL__N_11fEz", "(anonymous namespace)::f(...)"),
        ("_ZlsRSoRK1A", "operator<<(std::ostream&, A const&)"),
        ("_ZlsIiERSoS0_T_", "std::ostream& operator<< <int>(std::ostream&, int)"),
        ("_Z1fPFvRK3FooE", "f(void (*)(Foo const&))"),
        ("_Z1fPFvRK3FooES0_", "f(void (*)(Foo const&), Foo const)"),
        // The text of the second one has become that of the first.
        ("_Z1fPFvRK3FooES2_", ""),
        ("_Z1fPFvRK3FooEPS3_", "f(void (*)(Foo const&), void (**)(Foo const&))"),
        ("_Z1fRA5_KcPA2_i", "f(char const (&) [5], int (*) [2])"),
        ("_Z1fIJicEEvDpOT_", "void f<int, char>(int&&, char&&)"),
        ("_Z1fIJRiPcEEvDpOT_", "void f<int&, char*>(int&, char*&&)"),
        ("_Z1fI1AIJEEEvT_", "void f<A<> >(A<>)"),
        ("_Z1fISt5tupleIJiEEJcEEvT_DpT0_", "void f<std::tuple<int>, char>(std::tuple<int>, char)"),
        ("_Z1fILb1ELj7ELn3EEvv", "void f<true, (unsigned int)7, (__int128)3>()"),
        ("_ZN1AC2IiEET_", "A::A<int>(int)"),
        ("_ZZ4mainENKUlRKT_E_clIiEEDaS1_", ""),
        ("_ZZ1fvENKUliE0_clEi", "f()::{lambda(int)#2}::operator()(int) const"),
        (
            "_ZN1A1bB5cxx11Ev.constprop.0.cold",
            "A::b[abi:cxx11]() [clone .constprop.0] [clone .cold]",
        ),
        ("_ZTI1A", "typeinfo for A"),
        ("_ZTV3FooIiE", "vtable for Foo<int>"),
        ("_ZTT3Foo", "VTT for Foo"),
        ("_ZTHN1A1xE", "TLS init function for A::x"),
        ("_ZTWN1A1xE", "TLS wrapper function for A::x"),
        ("_ZGVZ4mainE1x", "guard variable for main::x"),
        ("_ZThn8_N1A1fEv", "non-virtual thunk to A::f()"),
        ("_ZTv0_n24_NK1A1fEi.cold", "virtual thunk to A::f(int) const [clone .cold]"),
        ("_ZTcv0_n24_v0_n32_N1A1fEv", "covariant return thunk to A::f()"),
        ("_ZTC1A0_1B", ""),
        ("_ZTh", ""),
        ("_ZThx8_N1A1fEv", ""),
        ("_ZTv0_N1A1fEv", ""),
        ("_Zli3_kmy", "operator\"\" _km(unsigned long long)"),
        (
            "_ZNSt8literals15string_literalsli1sB5cxx11EPKcm",
            "std::literals::string_literals::operator\"\" s[abi:cxx11](char const*, unsigned long)",
        ),
        ("_ZN1AcvbEv", "A::operator bool()"),
        ("_ZNK1AcvPKcEv", "A::operator char const*() const"),
        ("_ZN1AcvT_IiEEv", ""),
        ("_Z1fS_", ""),
        ("_Z1fT_", ""),
        ("_Z3fo", ""),
        ("_Z", ""),
    ] {
        let found = demangle(mangled.strip_prefix("_Z").unwrap());
        assert_eq!(found.as_deref().unwrap_or(""), plain, "{mangled}");
    }
}

/// Writes `4ul` as `(unsigned long)4`.
fn with_casts(text: &str) -> String {
    let words = text.split_inclusive(['<', ' ', ',', '>']);
    let cast = |word: &str| {
        let end = word.find(|c: char| !c.is_ascii_digit())?;
        let (number, suffix) = word.split_at_checked(end).filter(|_| end > 0)?;
        for (short, long) in [("ul", "unsigned long"), ("u", "unsigned int"), ("l", "long")] {
            if let Some(after) = suffix.strip_prefix(short) {
                return Some(format!("({long}){number}{after}"));
            }
        }
        None
    };
    words.map(|word| cast(word).unwrap_or_else(|| word.to_owned())).collect()
}

/// All names of the machine's C++ library. What stands in the way are spellings of binutils.
#[test]
fn names_of_the_cpp_library_are_those_of_binutils() {
    let symbols = Command::new("sh")
        .args([
            "-c",
            "nm -D --defined-only $(gcc -print-file-name=libstdc++.so.6) | awk '{print $3}'",
        ])
        .output();
    let filter = Command::new("c++filt").stdin(Stdio::piped()).stdout(Stdio::piped()).spawn();
    let (Ok(symbols), Ok(mut filter)) = (symbols, filter) else {
        skep_testkit::skip::skip("needs binutils");
        return;
    };
    let text = String::from_utf8(symbols.stdout).unwrap();
    let names: Vec<&str> = text.lines().map(|l| l.split('@').next().unwrap_or(l)).collect();
    let mut stdin = filter.stdin.take().unwrap();
    let input = names.join("\n") + "\n";
    let writer = std::thread::spawn(move || stdin.write_all(input.as_bytes()));
    let output = filter.wait_with_output().unwrap();
    writer.join().unwrap().unwrap();
    let output = String::from_utf8(output.stdout).unwrap();
    let mut answered = 0;
    for (name, theirs) in names.iter().zip(output.lines()) {
        // `std::string` and its like are written out there.
        if ["Ss", "So", "Si"].iter().any(|word| name.contains(word)) {
            continue;
        }
        let Some(ours) = name.strip_prefix("_Z").and_then(demangle) else { continue };
        answered += 1;
        let ours = ours.replace("std::nullptr_t", "decltype(nullptr)");
        let theirs = with_casts(theirs);
        assert_eq!(ours, theirs, "{name}");
    }
    if names.is_empty() {
        skep_testkit::skip::skip("needs gcc and the C++ library");
    } else {
        assert!(answered * 10 > names.len() * 8, "{answered} of {}", names.len());
    }
}

/// Names with bytes changed, left out, or doubled: no panic, and no more output than is allowed.
#[test]
fn damaged_names_are_survived() {
    let names = [
        "_ZNSt6vectorIN5clang4DeclESaIS1_EE17_M_realloc_insertIJRKS1_EEEvN9__gnu_cxx17__normal_iteratorIPS1_S3_EEDpOT_",
        "_ZN4llvm23SmallVectorTemplateBaseISt8functionIFvRNS_11PassManagerINS_6ModuleENS_15AnalysisManagerIS3_JEEEJEEENS_17OptimizationLevelEEELb0EE4growEm",
        "_ZZN9unit_02124workEiPPcENKUlRKT_RKT0_E_clIiS0_EEDaS3_S6_",
        "_ZNK1A1bB5cxx11EPFvRA5_KcEPS4_.constprop.0",
        "_ZN1AC2IiJcRdEEET_DpOT0_ILb1ELj7EE",
    ];
    let mut random = skep_testkit::random::Random::new(11);
    let letters = b"_ISTNEKPRFAJDplCLZUt0123456789abv.";
    let mut answered = 0;
    for round in 0..60_000 {
        let mut name = names[round % names.len()].as_bytes().to_vec();
        for _ in 0..=random.below(4) {
            if name.len() < 6 {
                break;
            }
            let at = 2 + random.below(name.len() - 3);
            match random.below(4) {
                0 => drop(name.remove(at)),
                1 => name.insert(at, letters[random.below(letters.len())]),
                2 => name.truncate(at + 1),
                _ => name[at] = letters[random.below(letters.len())],
            }
        }
        let name = String::from_utf8(name).unwrap();
        if let Some(text) = demangle(name.get(2..).unwrap_or_default()) {
            assert!(text.len() < 100_000, "{name}");
            answered += 1;
        }
    }
    assert!(answered > 1000, "{answered}");
}
