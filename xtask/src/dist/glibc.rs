//! Which glibc a program needs, and having it need no newer one: what the command's build does with
//! the agent (`crates/cli/build/versions.rs`), for what is packed.

use std::error::Error;
use std::path::Path;
use std::process::Command;

use anyhow::{Context, anyhow, bail};

use crate::output;

type Result<T, E = Box<dyn Error>> = std::result::Result<T, E>;

#[allow(dead_code, reason = "the build script uses more of it")]
#[path = "../../../crates/cli/build/elf.rs"]
mod elf;
#[path = "../../../crates/cli/build/versions.rs"]
mod versions;

/// Libraries of their own before glibc 2.34; since then, empty ones for programs like these. They
/// must be named, or the functions in them are not found there.
pub const LIBRARIES: &str =
    "-Wl,--push-state,--no-as-needed,-l:libpthread.so.0,-l:libdl.so.2,--pop-state";

/// Has a program do with the oldest glibc; returns the newest version that it needs now.
pub fn lower(program: &Path) -> anyhow::Result<String> {
    let name = program.display();
    let mut bytes = std::fs::read(program).with_context(|| format!("`{name}`"))?;
    versions::lower(&mut bytes).map_err(|e| anyhow!("`{name}`: {e}"))?;
    std::fs::write(program, bytes).with_context(|| format!("`{name}`"))?;
    let text = output(Command::new("objdump").arg("-T").arg(program))?;
    let newest = newest(&text).with_context(|| format!("`{name}` needs no symbol of glibc"))?;
    if newest > versions::OLDEST {
        let (major, minor) = versions::OLDEST;
        bail!("`{name}` needs glibc {}.{}, not {major}.{minor}", newest.0, newest.1);
    }
    let missing = missing(&text);
    if !missing.is_empty() {
        bail!("`{name}` needs functions that glibc 2.28 does not have: {}", missing.join(", "));
    }
    Ok(format!("{}.{}", newest.0, newest.1))
}

/// The newest version in a list of dynamic symbols.
fn newest(symbols: &str) -> Option<(u32, u32)> {
    let version = |word: &str| -> Option<(u32, u32)> {
        let word = word.trim_matches(['(', ')']).strip_prefix("GLIBC_")?;
        let (major, rest) = word.split_once('.')?;
        Some((major.parse().ok()?, rest.split('.').next()?.parse().ok()?))
    };
    symbols.split_whitespace().filter_map(version).max()
}

/// Functions that may lose their version, as glibc 2.28 has them in `libc.so.6`, `libm.so.6`,
/// `libpthread.so.0` or `libdl.so.2`.
const OLD: &[&str] = &[
    "__libc_start_main",
    "dladdr1",
    "dlopen",
    "dlsym",
    "exp2",
    "hypot",
    "pthread_attr_getguardsize",
    "pthread_attr_getstack",
    "pthread_attr_setstacksize",
    "pthread_create",
    "pthread_detach",
    "pthread_getattr_np",
    "pthread_join",
    "pthread_key_create",
    "pthread_key_delete",
    "pthread_setname_np",
    "pthread_setspecific",
    "pthread_sigmask",
];

/// Strong imports without a version that are none of these.
fn missing(symbols: &str) -> Vec<String> {
    let without_version = |line: &&str| {
        let mut words = line.split_whitespace();
        let is_import = words.any(|word| word == "*UND*");
        is_import && !line.contains('(') && !line.split_whitespace().any(|word| word == "w")
    };
    let names = symbols.lines().filter(without_version).filter_map(|l| l.split_whitespace().last());
    names.filter(|name| !OLD.contains(name)).map(str::to_owned).collect()
}

#[cfg(test)]
mod tests {
    use skep_testkit::program::copy;
    use skep_testkit::skip::has_command;
    use skep_testkit::{TempDir, skip};

    use super::*;

    #[test]
    fn versions_are_compared_as_numbers() {
        let symbols = "0 DF *UND* 0 (GLIBC_2.9) a\n0 DF *UND* 0 (GLIBC_2.34) b\n0 DF *UND* 0 (GLIBC_2.2.5) c\n\
                       0 DF *UND* 0 (GLIBC_PRIVATE) d\n0 DF .text 0 (GCC_3.0) e\n";
        assert_eq!(newest(symbols), Some((2, 34)));
        assert_eq!(newest("0 DF .text 0 Base main"), None);
        let symbols = "0      DF *UND* 0              arc4random\n0  w   DF *UND* 0              weak\n\
                       0      DF *UND* 0              dlsym\n0      DF *UND* 0 (GLIBC_2.2.5) read\n";
        assert_eq!(missing(symbols), ["arc4random"]);
    }

    /// A program with functions whose versions are new here runs without them, and does the same.
    #[test]
    fn a_program_needs_no_new_version_and_runs() {
        if !has_command("cc") || !has_command("objdump") {
            return skip("cc, objdump");
        }
        let dir = TempDir::new();
        let (source, program) = (dir.join("p.c"), dir.join("p"));
        let text = "#define _GNU_SOURCE\n#include <dlfcn.h>\n#include <math.h>\n#include <pthread.h>\n#include <stdio.h>\n\
            static void *f(void *x) { *(int *)x += 1; return x; }\n\
            int main(int n, char **v) { pthread_t t; void *r; pthread_create(&t, 0, f, &n); pthread_join(t, &r);\n\
            pthread_setname_np(pthread_self(), \"p\");\n\
            printf(\"%d %d %.3f %.3f\\n\", n, dlsym(RTLD_DEFAULT, \"printf\") != 0, hypot(n + 1, 4), exp2(n)); }\n";
        std::fs::write(&source, text).unwrap();
        let mut cc = Command::new("cc");
        cc.arg(&source).args(["-O0", "-fno-builtin", "-lm", LIBRARIES, "-o"]).arg(&program);
        output(&mut cc).unwrap();
        assert_eq!(output(&mut Command::new(&program)).unwrap(), "2 1 5.000 4.000\n");
        let newest = lower(&program).unwrap();
        assert!(newest.starts_with("2."), "{newest}");
        let lowered = dir.join("lowered");
        copy(&program, &lowered);
        assert_eq!(output(&mut Command::new(&lowered)).unwrap(), "2 1 5.000 4.000\n");
        // All of them at once when it starts, too.
        let mut at_once = Command::new(&lowered);
        assert_eq!(output(at_once.env("LD_BIND_NOW", "1")).unwrap(), "2 1 5.000 4.000\n");
        assert!(versions::lower(&mut std::fs::read(&program).unwrap()).unwrap().is_empty());
    }

    /// Whatever glibc the machine has that builds: the command as it is packed asks for none that is newer
    /// than 2.28, by a reader of its own, and runs.
    #[test]
    fn the_command_does_with_an_old_glibc() {
        if !has_command("objdump") {
            return skip("objdump");
        }
        let dir = TempDir::new();
        let command = dir.join("skep");
        std::fs::copy(skep_testkit::trace::skep_bin(), &command).unwrap();
        lower(&command).unwrap();
        let needed = output(Command::new("objdump").arg("-p").arg(&command)).unwrap();
        let versions = needed.lines().filter_map(|l| l.trim().rsplit_once(" GLIBC_2."));
        let minors: Vec<u32> =
            versions.map(|(_, minor)| minor.split('.').next().unwrap().parse().unwrap()).collect();
        assert!(!minors.is_empty() && minors.iter().all(|minor| *minor <= 28), "{needed}");
        let lowered = dir.join("lowered");
        copy(&command, &lowered);
        let mut bound_at_once = Command::new(&lowered);
        let said = output(bound_at_once.env("LD_BIND_NOW", "1").arg("--version")).unwrap();
        assert!(said.starts_with("skep "), "{said}");
    }
}
