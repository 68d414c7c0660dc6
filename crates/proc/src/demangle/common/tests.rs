use std::process::Command;

use super::demangle;

/// Each is what `nm -C` prints.
#[test]
fn usual_names_are_read_as_others_read_them() {
    for (mangled, plain) in [
        ("_Z3addii", "add(int, int)"),
        ("_ZNSt6vectorIiSaIiEED1Ev", "std::vector<int, std::allocator<int> >::~vector()"),
        ("_ZNK1A1bERKS_", "A::b(A const&) const"),
        ("_ZN12_GLOBAL__N_11fEz", "(anonymous namespace)::f(...)"),
        ("_ZlsRSoRK1A", "operator<<(std::ostream&, A const&)"),
        // A reference to a reference to an array; constant arrays; one of unknown length.
        (
            "_ZN1a1fIJRA19_KcNS_1bEEEEvDpOT_",
            "void a::f<char const (&) [19], a::b>(char const (&) [19], a::b&&)",
        ),
        (
            "_ZN1a1fIJA12_cNS_1bEEEEvDpRKT_",
            "void a::f<char [12], a::b>(char const (&) [12], a::b const&)",
        ),
        (
            "_ZN1a1fIJRA5_KcOiEEEvDpRT_",
            "void a::f<char const (&) [5], int&&>(char const (&) [5], int&)",
        ),
        ("_ZN1a1fERSt10unique_ptrIA_S_IA_iEE", "a::f(std::unique_ptr<a<int []> []>&)"),
        ("_ZN1a1fIA3_iEEDaRKT_", "auto a::f<int [3]>(int const (&) [3])"),
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
        ("_Z1fILb1ELj7ELn3EEvv", "void f<true, 7u, (__int128)3>()"),
        ("_ZN1AC2IiEET_", "A::A<int>(int)"),
        ("_Z1fILln5ELm6ELx7ELy8ELin9EEvv", "void f<-5l, 6ul, 7ll, 8ull, -9>()"),
        ("_Z1fI1AI1BIiEJEEEvv", "void f<A<B<int>> >()"),
        (
            "_ZNSsC1ERKSs",
            "std::basic_string<char, std::char_traits<char>, std::allocator<char> >::basic_string(std::string const&)",
        ),
        ("_ZNSiD1Ev", "std::basic_istream<char, std::char_traits<char> >::~basic_istream()"),
        ("_ZN1A1fERSiRSd", "A::f(std::istream&, std::iostream&)"),
        ("_Z1fDn", "f(decltype(nullptr))"),
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

/// All names of the machine's C++ library.
#[test]
fn names_of_the_cpp_library_are_those_of_binutils() {
    let nm = |flag: &str| {
        let script = format!("nm -D --defined-only {flag} $(gcc -print-file-name=libstdc++.so.6)");
        let output = Command::new("sh").args(["-c", &script]).output().ok()?;
        let text = String::from_utf8(output.stdout).ok().filter(|_| output.status.success())?;
        // `address kind name@@version`
        let name = |line: &str| line.get(19..)?.split('@').next().map(str::to_owned);
        Some(text.lines().filter_map(name).collect::<Vec<_>>())
    };
    let (Some(names), Some(plain)) = (nm("--no-demangle"), nm("-C")) else {
        skep_testkit::skip::skip("needs binutils, gcc and the C++ library");
        return;
    };
    let mut answered = 0;
    for (name, theirs) in names.iter().zip(&plain) {
        if let Some(ours) = name.strip_prefix("_Z").and_then(demangle) {
            assert_eq!(ours, *theirs, "{name}");
            answered += 1;
        }
    }
    assert_eq!(names.len(), plain.len());
    assert!(answered * 10 > names.len() * 9, "{answered} of {}", names.len());
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
