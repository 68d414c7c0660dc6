//! The libraries that a program is linked with, as its dynamic linker finds them.

use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use skep_proc::launch::{Linkage, inspect};

/// Lists them by asking the dynamic linker, which knows run paths, caches and `LD_LIBRARY_PATH`
/// best: it maps the files and runs nothing of them. Only that of glibc is asked; with others the
/// program stands alone.
pub(super) fn libraries(program: &Path) -> Vec<PathBuf> {
    let Ok(Linkage::Dynamic { linker, .. }) = inspect(program).map(|l| l.linkage) else {
        return Vec::new();
    };
    if !linker.file_name().is_some_and(|n| n.as_bytes().starts_with(b"ld-linux")) {
        return Vec::new();
    }
    // A relative path without a slash would be looked for among libraries.
    let Ok(program) = std::path::absolute(program) else { return Vec::new() };
    let listing = Command::new(linker)
        .arg("--list")
        .arg(program)
        .stdin(Stdio::null())
        .stderr(Stdio::null())
        .output();
    listing.map(|out| parse(&out.stdout)).unwrap_or_default()
}

/// Reads lines like `libm.so.6 => /lib/libm.so.6 (0x00007f3a)`.
fn parse(listing: &[u8]) -> Vec<PathBuf> {
    let line = |line: &[u8]| {
        let line = line.trim_ascii();
        let end = line.windows(4).rposition(|w| w == b" (0x")?;
        let line = line.get(..end)?;
        let path = match line.windows(4).position(|w| w == b" => ") {
            Some(at) => line.get(at + 4..)?,
            None => line,
        };
        path.starts_with(b"/").then(|| PathBuf::from(std::ffi::OsStr::from_bytes(path)))
    };
    listing.split(|b| *b == b'\n').filter_map(line).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_linkers_list_is_read() {
        let text = b"\tlinux-vdso.so.1 (0x00007ffc)\n\tlibx y.so => /opt/a b/libx y.so (0x00007f)\n\tlibgone.so => not found\n\
                     \t/lib64/ld-linux-x86-64.so.2 (0x00007f)\n";
        assert_eq!(
            parse(text),
            [Path::new("/opt/a b/libx y.so"), Path::new("/lib64/ld-linux-x86-64.so.2")]
        );
    }

    #[test]
    fn a_program_is_linked_with_the_c_library() {
        let own = std::env::current_exe().unwrap();
        assert!(
            libraries(&own)
                .iter()
                .any(|l| l.file_name().is_some_and(|n| n.as_bytes().starts_with(b"libc.so")))
        );
        assert_eq!(libraries(Path::new("/no/such/program")), Vec::<PathBuf>::new());
    }
}
