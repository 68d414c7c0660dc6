//! What a Debian package has beside the files that are installed: its control files, whose work it is,
//! and its changes, in the forms of Debian's policy.

use std::fs;
use std::path::Path;
use std::process::Command;

use anyhow::{Result, bail};

use crate::{cargo, check, output, root};

use super::ARCHITECTURE;

/// Who answers for the package.
const MAINTAINER: &str = "the skep developers <skep@localhost>";

/// What `lintian` need not say. The command and the library have one version, and who installs one may want
/// the other.
const OVERRIDES: &str = "# The command, the library and what is built against it are one package.\n\
    skep: link-to-shared-library-in-wrong-package *\n\
    skep: package-name-doesnt-match-sonames *\n\
    # Programs for BPF, beside the sources that pages show: data on every machine.\n\
    skep: arch-dependent-file-in-usr-share *usr/share/doc/skep/*.bpf.o*\n\
    skep: binary-from-other-architecture *usr/share/doc/skep/*.bpf.o*\n";

/// Writes them into a tree that has what is installed below `usr`. `libc` is the glibc that it needs,
/// `epoch` the second of the commit.
pub fn write(files: &Path, version: &str, libc: &str, epoch: &str) -> Result<()> {
    let doc = files.join("usr/share/doc/skep");
    fs::write(doc.join("copyright"), copyright()?)?;
    // Their texts are in `copyright`, or in every Debian.
    for file in ["LICENSE-MIT", "LICENSE-APACHE"] {
        fs::remove_file(doc.join(file))?;
    }
    let readme = fs::read_to_string(doc.join("README.md"))?
        .replace("](LICENSE-MIT)", "](copyright)")
        .replace("](LICENSE-APACHE)", "](/usr/share/common-licenses/Apache-2.0)");
    fs::write(doc.join("README.md"), readme)?;
    fs::write(doc.join("changelog"), changes(version, &date(epoch, "-R")?))?;
    check(Command::new("gzip").arg("-9n").arg(doc.join("changelog")))?;
    let control = files.join("DEBIAN");
    fs::create_dir_all(&control)?;
    fs::write(control.join("control"), control_file(version, libc))?;
    // For the dynamic linker's cache, and for packages that link with the library.
    fs::write(control.join("triggers"), "activate-noawait ldconfig\n")?;
    fs::write(control.join("shlibs"), "libskep 0 skep\n")?;
    let overrides = files.join("usr/share/lintian/overrides");
    fs::create_dir_all(&overrides)?;
    fs::write(overrides.join("skep"), OVERRIDES)?;
    Ok(())
}

/// A second since 1970 in a form of date(1): `-R` as RFC 5322 writes it.
pub fn date(epoch: &str, form: &str) -> Result<String> {
    if epoch.parse::<u64>().is_err() {
        bail!("SOURCE_DATE_EPOCH is `{epoch}`, not a number of seconds");
    }
    let mut date = Command::new("date");
    date.env("LC_ALL", "C").args(["-u", form, "-d"]).arg(format!("@{epoch}"));
    Ok(output(&mut date)?.trim().to_owned())
}

/// Debian's list of changes, which names the version; people read `CHANGELOG.md`.
fn changes(version: &str, date: &str) -> String {
    format!(
        "skep ({version}) unstable; urgency=medium\n\n  \
         * Version {version}; CHANGELOG.md says what it can do.\n\n \
         -- {MAINTAINER}  {date}\n"
    )
}

/// Debian's file about whose work it is, for the command and all that is linked into it.
fn copyright() -> Result<String> {
    let mut text = String::from(
        "Format: https://www.debian.org/doc/packaging-manuals/copyright-format/1.0/\n\
         Upstream-Name: skep\n\nFiles: *\nCopyright: the skep developers\n\
         License: Expat or Apache-2.0\nComment:\n \
         These crates are linked into the programs, each under its own license:\n",
    );
    let tree = ["tree", "-p", "skep-cli", "-p", "skep-capi", "--edges", "normal,no-proc-macro"];
    let form = ["--prefix", "none", "--no-dedupe", "--locked", "--format", "{p}\t{l}"];
    let listed = output(cargo().args(tree).args(form))?;
    let mut crates: Vec<&str> =
        listed.lines().filter(|line| !line.is_empty() && !line.contains("(/")).collect();
    crates.sort_unstable();
    crates.dedup();
    for line in crates {
        let (name, license) = line.split_once('\t').unwrap_or((line, ""));
        text.push_str(&format!(" {} ({})\n", name.trim_end_matches(" (*)"), license));
    }
    text.push_str("\nLicense: Expat\n");
    for line in fs::read_to_string(root().join("LICENSE-MIT"))?.lines() {
        text.push_str(if line.trim().is_empty() { " ." } else { " " });
        text.push_str(line.trim_end());
        text.push('\n');
    }
    // Every Debian has this one.
    text.push_str(
        "\nLicense: Apache-2.0\n \
         On Debian systems, the text of this license is in\n \
         /usr/share/common-licenses/Apache-2.0.\n",
    );
    Ok(text)
}

fn control_file(version: &str, libc: &str) -> String {
    format!(
        "Package: skep\nVersion: {version}\nArchitecture: {ARCHITECTURE}\nMaintainer: {MAINTAINER}\n\
         Depends: libc6 (>= {libc}), libgcc-s1 | libgcc1\nSection: devel\nPriority: optional\n\
         Description: eBPF subsystem outside the kernel\n \
         Loads ordinary eBPF objects, proves them safe, compiles them and runs them\n \
         inside ordinary processes: traces every function of a program at a few\n \
         nanoseconds a call, runs packet programs in chains, keeps and reads large\n \
         maps, without root.\n"
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_control_file_is_one() {
        let control = control_file("0.1.0", "2.28");
        assert!(control.ends_with('\n') && !control.contains("\n\n"));
        assert!(control.contains("Depends: libc6 (>= 2.28), libgcc-s1 | libgcc1\n"), "{control}");
        // As Debian's policy has it: lines of at most 80 columns.
        assert!(control.lines().skip(6).all(|line| line.len() <= 80), "{control}");
    }

    #[test]
    fn the_copyright_names_what_is_linked() {
        let text = copyright().unwrap();
        for part in ["\n clap v4", "\n rustix v1", "License: Expat\n", "License: Apache-2.0\n"] {
            assert!(text.contains(part), "{part}: {text}");
        }
    }

    #[test]
    fn the_changes_are_as_debian_writes_them() {
        assert_eq!(date("1790000000", "+%F").unwrap(), "2026-09-21");
        let date = date("1790000000", "-R").unwrap();
        assert_eq!(date, "Mon, 21 Sep 2026 14:13:20 +0000");
        let text = changes("0.1.0", &date);
        assert!(text.starts_with("skep (0.1.0) unstable; urgency=medium\n\n  * "), "{text}");
        assert!(text.ends_with(
            "\n\n -- the skep developers <skep@localhost>  Mon, 21 Sep 2026 14:13:20 +0000\n"
        ));
        assert!(super::date("yesterday", "-R").is_err());
    }
}
