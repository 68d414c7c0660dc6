//! What is found out about code is found by who comes later, if it is about the same code.

mod support;

use skep_attach::{Engine, Position, Skip, keep_code_in};
use std::collections::BTreeMap;
use std::fs::{self, Permissions};
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime};
use support::{Dir, Library, Seen};

/// Functions that can be hooked, and some that cannot: jumps lead into their first bytes, or tables do.
fn source(changed: u32) -> String {
    let mut text = format!("int changed(int n) {{ return n + {changed}; }}\n");
    for n in 0..300 {
        text.push_str(&format!(
            "int f{n}(int a, int b, int c, int d, int e, int g, long h, long i) {{
               switch (a) {{ case 0: return b + {n}; case 1: return c * {n}; case 2: return d;
                 case 3: return e - {n}; case 4: return g ^ {n}; case 5: return (int)h; }}
               return a + (int)i + {n}; }}
             int t{n}(int a, int b, int c, int d, int e, int g, long h, long i) {{
               return f{n}(a + 1, b, c, d, e, g, h, i); }}
             __asm__(\".text\\n.globl loop{n}\\n.type loop{n}, @function\\nloop{n}: .cfi_startproc\\n\"
               \"1: dec %edi\\n inc %eax\\n jnz 1b\\n jns 1b+2\\n ret\\n .cfi_endproc\\n.size loop{n}, .-loop{n}\\n\");
            "
        ));
    }
    text
}

type Results = BTreeMap<String, Result<(), Skip>>;

/// Attaches to all functions of a library, and detaches; the results are without addresses.
fn attach_all(library: &Library) -> Results {
    let functions = library.module.functions().expect("functions");
    let all: Vec<_> = functions.iter().map(|f| (f, 0)).collect();
    let engine = Engine::get().expect("engine");
    let done = engine.attach(&all, &[Seen::leaked().hook(Position::Exit)]);
    // SAFETY: the type is that of the C source.
    let call: extern "C" fn(i32, i32, i32, i32, i32, i32, i64, i64) -> i32 =
        unsafe { library.get("t7") };
    assert_eq!((call(4, 2, 3, 4, 5, 6, 77, 8), call(9, 2, 3, 4, 5, 6, 7, 80)), (77, 97));
    engine.detach(done.id).expect("attached");
    functions.iter().map(|f| f.name().to_owned()).zip(done.results).collect()
}

fn files(place: &Path) -> Vec<PathBuf> {
    let mut all: Vec<_> = fs::read_dir(place).unwrap().map(|e| e.unwrap().path()).collect();
    all.sort();
    all
}

/// Has a file look as if it was not used for hours; tells of each later whether it was used since.
fn age(file: &Path) -> impl Fn() -> bool + use<> {
    let old = SystemTime::now() - Duration::from_secs(5 * 60 * 60);
    fs::File::options().write(true).open(file).unwrap().set_modified(old).unwrap();
    let (file, before) = (file.to_owned(), fs::metadata(file).unwrap().ino());
    move || {
        let now = fs::metadata(&file).unwrap();
        now.ino() == before && now.modified().unwrap() > old + Duration::from_secs(60)
    }
}

/// One test: where things are kept is the same for the whole process.
#[test]
fn code_that_was_read_is_found_and_other_code_is_not() {
    let place = Dir::new("kept");
    // Without a directory.
    keep_code_in(None);
    let unkept = Library::new("cache", &source(1), "c", &["-O1"]);
    let changed = Library::new("changed", &source(2), "c", &["-O1"]);
    let expected = attach_all(&unkept);
    let failed = expected.values().filter(|result| result.is_err()).count();
    assert!(failed >= 300 && expected.len() - failed >= 600, "{failed} of {}", expected.len());

    keep_code_in(Some(&place.0));
    let first = unkept.copy("cachea");
    assert_eq!(attach_all(&first), expected);
    let [file] = &files(&place.0)[..] else { panic!("{:?}", files(&place.0)) };
    assert_eq!(fs::metadata(file).unwrap().mode() & 0o777, 0o600);
    let written = fs::read(file).unwrap();

    // Another library of the same code, at another address.
    let was_used = age(file);
    let second = unkept.copy("cacheb");
    assert_ne!(first.function("f7").addr(), second.function("f7").addr());
    assert_eq!(attach_all(&second), expected);
    assert!(was_used());
    assert_eq!(files(&place.0), std::slice::from_ref(file));
    assert_eq!(fs::read(file).unwrap(), written);

    // Other code; functions at the same places.
    let was_used = age(file);
    let other = changed.copy("cachec");
    assert_eq!(attach_all(&other), expected);
    assert!(!was_used());
    assert_eq!(files(&place.0).len(), 2);

    // What is not as it was written counts for nothing, and is written anew.
    let mut number = 0;
    // Under a name of its own: the engine knows a library by that.
    let mut load = || {
        number += 1;
        unkept.copy(&format!("copy{number}"))
    };
    let damages: [fn(&mut Vec<u8>); 8] = [
        |bytes| bytes[0] ^= 1,
        |bytes| bytes[9] ^= 1,
        |bytes| bytes[33] ^= 1,
        |bytes| bytes[38] ^= 0x80,
        |bytes| bytes[60] ^= 4,
        |bytes| *bytes.last_mut().unwrap() ^= 1,
        |bytes| bytes.truncate(bytes.len() - 1),
        |bytes| bytes.clear(),
    ];
    for damage in damages {
        let mut bytes = written.clone();
        damage(&mut bytes);
        fs::write(file, &bytes).unwrap();
        let again = load();
        assert_eq!(attach_all(&again), expected);
        again.close();
        assert_eq!(fs::read(file).unwrap(), written);
    }
    // So does what others may write to, what is a link, a queue, or a directory.
    let is_a_file = || fs::symlink_metadata(file).unwrap().is_file();
    let elsewhere = Dir::new("elsewhere");
    for (n, is_replaced) in [true, true, true, false].into_iter().enumerate() {
        match n {
            0 => fs::set_permissions(file, Permissions::from_mode(0o666)).unwrap(),
            1 => {
                fs::rename(file, elsewhere.0.join("file")).unwrap();
                std::os::unix::fs::symlink(elsewhere.0.join("file"), file).unwrap();
            }
            2 => {
                fs::remove_file(file).unwrap();
                let made = std::process::Command::new("mkfifo").arg(file).status().unwrap();
                assert!(made.success());
            }
            _ => {
                fs::remove_file(file).unwrap();
                fs::create_dir(file).unwrap();
            }
        }
        let again = load();
        assert_eq!(attach_all(&again), expected);
        again.close();
        assert_eq!(is_a_file(), is_replaced, "{n}");
        assert_eq!(files(&place.0).len(), 2);
    }
    fs::remove_dir(file).unwrap();

    // A few functions first, then all: the file has all in the end.
    let last = load();
    let one = last.function("t3");
    let engine = Engine::get().expect("engine");
    let done = engine.attach(&[(&one, 0)], &[Seen::leaked().hook(Position::Exit)]);
    engine.detach(done.id).expect("attached");
    assert!(fs::read(file).unwrap() != written);
    assert_eq!(attach_all(&last), expected);
    assert_eq!(fs::read(file).unwrap(), written);

    // A place that is not there, and one that nothing can be put in.
    for (place, name) in [("/nowhere/at/all", "cachee"), ("/proc/self/fd", "cachef")] {
        keep_code_in(Some(Path::new(place)));
        assert_eq!(attach_all(&unkept.copy(name)), expected);
    }
}
