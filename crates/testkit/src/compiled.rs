//! Programs that were compiled before: many tests want the same ones, in processes of their own.
//!
//! They lie below cargo's target folder, under a hash of what they were made from: the compiler and
//! its linker, arguments, sources and the files beside these that they include. Headers of the
//! system are taken to change with the compiler. Tests get copies, which are theirs to change.
//!
//! Not kept is what depends on more than that: on other files that arguments name, or on the path of
//! a temporary source, which debug information and `__FILE__` tell. Nor is what has other files beside
//! it.

use std::collections::HashMap;
use std::hash::{DefaultHasher, Hash, Hasher};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::{LazyLock, Mutex};

use crate::program::copy;
use crate::temp::TempDir;

/// What has the compiler write more files than the program.
const MORE_FILES: [&str; 5] =
    ["-gsplit-dwarf", "--coverage", "-ftest-coverage", "-save-temps", "-M"];

/// Where a program is kept, or would be; `None` when it cannot be.
pub(crate) fn path(
    compiler: &str,
    args: &[String],
    sources: &[&Path],
    libraries: &[&str],
) -> Option<PathBuf> {
    let has_more = |arg: &String| MORE_FILES.iter().any(|flag| arg.starts_with(flag));
    if args.iter().any(|arg| arg.contains('/') || Path::new(arg).exists() || has_more(arg)) {
        return None;
    }
    let mut hash = DefaultHasher::new();
    (version(compiler), args, libraries).hash(&mut hash);
    let mut tells_path = args.iter().any(|arg| arg.starts_with("-g") && arg != "-g0");
    for source in sources {
        source.file_name().hash(&mut hash);
        tells_path |= add_file(source, &mut hash)?;
    }
    if tells_path {
        let workspace = Path::new(env!("CARGO_MANIFEST_DIR")).ancestors().nth(2)?;
        if !sources.iter().all(|source| source.starts_with(workspace)) {
            return None;
        }
        (sources, std::env::current_dir().ok()?).hash(&mut hash);
    }
    Some(target_dir()?.join("compiled").join(format!("{:016x}", hash.finish())))
}

/// The build directory this program was built into: the nearest folder above it that cargo has
/// marked.
pub(crate) fn target_dir() -> Option<PathBuf> {
    let exe = std::env::current_exe().expect("the system knows our executable");
    exe.ancestors().find(|dir| dir.join("CACHEDIR.TAG").exists()).map(Path::to_owned)
}

/// Adds a source and what it includes from its folder; tells whether they may speak of their paths.
fn add_file(path: &Path, hash: &mut DefaultHasher) -> Option<bool> {
    let text = std::fs::read(path).ok()?;
    text.hash(hash);
    let text = String::from_utf8_lossy(&text);
    let mut tells_path = ["__FILE__", "assert", ".incbin"].iter().any(|word| text.contains(word));
    for line in text.lines() {
        let Some(rest) = line.trim_start().strip_prefix('#') else { continue };
        let Some(rest) = rest.trim_start().strip_prefix("include") else { continue };
        let Some((name, _)) = rest.trim_start().strip_prefix('"').and_then(|r| r.split_once('"'))
        else {
            continue;
        };
        let included = path.with_file_name(name);
        if included.is_file() {
            tells_path |= add_file(&included, hash)?;
        }
    }
    Some(tells_path)
}

/// What a compiler and its linker say they are.
fn version(compiler: &str) -> String {
    static KNOWN: LazyLock<Mutex<HashMap<String, String>>> = LazyLock::new(Mutex::default);
    let mut known = KNOWN.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
    let ask = || {
        let said =
            ["--version", "-Wl,--version"].map(|arg| Command::new(compiler).arg(arg).output());
        said.into_iter()
            .flatten()
            .fold(String::new(), |all, said| all + &String::from_utf8_lossy(&said.stdout))
    };
    known.entry(compiler.to_owned()).or_insert_with(ask).clone()
}

/// Copies a program that is kept.
pub(crate) fn take(kept: &Path, out: &Path) {
    std::fs::remove_file(out).ok();
    copy(kept, out);
}

/// Keeps a copy of a program. It is whole when it has its name, whoever else makes it now.
pub(crate) fn keep(out: &Path, kept: &Path) {
    let Some(dir) = kept.parent() else { return };
    let dir = std::fs::create_dir_all(dir).and_then(|()| TempDir::within(dir));
    // A folder that cannot be written costs time only.
    let Ok(dir) = dir else { return };
    let whole = dir.join("whole");
    copy(out, &whole);
    std::fs::rename(whole, kept).ok();
}

#[cfg(test)]
mod tests {
    use std::path::{Path, PathBuf};
    use std::process::Command;

    use super::path;
    use crate::TempDir;
    use crate::cc::Cc;

    fn kept(dir: &TempDir, args: &[&str]) -> Option<PathBuf> {
        let args: Vec<String> = args.iter().map(|arg| (*arg).to_owned()).collect();
        path("cc", &args, &[&dir.join("main.c")], &[])
    }

    fn write(dir: &TempDir, name: &str, text: &str) {
        std::fs::write(dir.join(name), text).expect("it is written");
    }

    #[test]
    fn what_a_program_is_made_of_tells_programs_apart() {
        let (dir, other) = (TempDir::new(), TempDir::new());
        for dir in [&dir, &other] {
            write(dir, "main.c", "#include \"one.h\"\nint main(void) { return N; }\n");
            write(dir, "one.h", "#include \"two.h\"\n");
            write(dir, "two.h", "#define N 1\n");
        }
        let first = kept(&dir, &["-O2"]);
        assert!(first.is_some());
        assert_eq!(kept(&other, &["-O2"]), first);
        assert_ne!(kept(&dir, &["-O1"]), first);
        write(&other, "two.h", "#define N 2\n");
        assert_ne!(kept(&other, &["-O2"]), first);
        assert_eq!(kept(&dir, &["-g"]), None, "it tells where its source was");
        assert_eq!(kept(&dir, &["-O2", "-L/tmp"]), None, "who knows what is there");
        assert_eq!(kept(&dir, &["-O2", "-gsplit-dwarf"]), None, "half of it is beside it");
        write(&dir, "two.h", "#define N sizeof __FILE__\n");
        assert_eq!(kept(&dir, &["-O2"]), None);
    }

    #[test]
    fn what_is_kept_is_the_same_program_and_copies_may_be_changed() {
        let dir = TempDir::new();
        let text = format!("int main(void) {{ return {} % 100; }}\n", std::process::id());
        write(&dir, "main.c", &text);
        let expected = Some((std::process::id() % 100) as i32);
        let kept = kept(&dir, &[]).expect("it can be");
        for name in ["first", "second", "third"] {
            let program =
                Cc::named("cc").compile_with(&[&dir.join("main.c")], &[], &dir.join(name));
            assert_eq!(
                Command::new(&program).status().expect("it runs").code(),
                expected,
                "{name}"
            );
            assert!(kept.is_file());
            std::fs::write(&program, "").expect("it is ours");
        }
        assert!(Path::new(&kept).metadata().expect("it stays").len() > 0);
        std::fs::remove_file(kept).expect("it is ours");
    }
}
