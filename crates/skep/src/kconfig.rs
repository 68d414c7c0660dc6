//! Configuration values of this machine's kernel, for objects that ask for them (`extern …
//! __kconfig`).
//!
//! They come from where libbpf looks: `/boot/config-RELEASE` or `/proc/config.gz`, and the kernel's
//! version from `/proc`. Values that are not a kernel's configuration but begin with `LINUX_` are
//! answered as libbpf answers them.

use std::collections::HashMap;

use skep_object::{Object, ObjectError};

/// Holds the configuration of a kernel.
///
/// ```
/// use skep::kconfig::Kconfig;
/// let config = Kconfig::parse("6.1.0-13-amd64", "", "CONFIG_HZ=250\n# CONFIG_SMP is not set\n");
/// assert_eq!(config.get("CONFIG_HZ").as_deref(), Some("250"));
/// assert_eq!(config.get("LINUX_KERNEL_VERSION").as_deref(), Some("393472"));
/// assert_eq!(config.get("CONFIG_SMP"), None);
/// ```
#[derive(Debug, Clone)]
pub struct Kconfig {
    version: u32,
    values: HashMap<String, String>,
}

impl Kconfig {
    /// Reads the running kernel's configuration; what cannot be read is left out.
    #[must_use]
    pub fn of_machine() -> Self {
        let read = |path: &str| std::fs::read_to_string(path).unwrap_or_default();
        let release = read("/proc/sys/kernel/osrelease");
        let config = std::fs::read_to_string(format!("/boot/config-{}", release.trim()))
            .unwrap_or_else(|_| packed());
        Self::parse(release.trim(), read("/proc/sys/kernel/version").trim(), &config)
    }

    /// Takes a kernel's release (`uname -r`), its version (`uname -v`), and the text of a
    /// configuration file.
    #[must_use]
    pub fn parse(release: &str, version: &str, config: &str) -> Self {
        let line = |line: &str| {
            let (name, value) = line.split_once('=')?;
            name.starts_with("CONFIG_").then(|| (name.to_owned(), value.trim().to_owned()))
        };
        // Debian's releases have no third number; what is behind the word in the version does.
        let debian = version.split_once("Debian ").map(|(_, rest)| rest);
        Self {
            version: code(debian.unwrap_or(release)),
            values: config.lines().filter_map(line).collect(),
        }
    }

    /// Returns a value as a configuration file has it; `None` when it is not set.
    #[must_use]
    pub fn get(&self, name: &str) -> Option<String> {
        match name {
            "LINUX_KERNEL_VERSION" => Some(self.version.to_string()),
            // Attach cookies since 5.15, system calls behind wrappers since 4.17.
            // Ours, whatever the kernel has.
            "LINUX_HAS_BPF_COOKIE" => Some("1".to_owned()),
            "LINUX_HAS_SYSCALL_WRAPPER" => {
                Some(u32::from(self.version >= code("4.17.0")).to_string())
            }
            _ => self.values.get(name).cloned(),
        }
    }
}

/// Fills in the configuration values an object asks for; those set by hand stay.
///
/// # Errors
/// When a value does not fit its variable.
pub fn fill(object: &mut Object) -> Result<(), ObjectError> {
    if object.kconfig.is_empty() {
        return Ok(());
    }
    let config = Kconfig::of_machine();
    object.set_kconfig(|name| config.get(name))
}

/// Reads the configuration that is in the kernel itself; empty when it has none.
#[cfg(feature = "dwarf")]
fn packed() -> String {
    use std::io::Read;
    /// Much more than any configuration.
    const MOST: u64 = 16 << 20;
    let mut out = String::new();
    let file = std::fs::read("/proc/config.gz").unwrap_or_default();
    if let Some(data) = deflated(&file) {
        flate2::read::DeflateDecoder::new(data).take(MOST).read_to_string(&mut out).ok();
    }
    out
}

/// What a file of gzip holds (RFC 1952, section 2.3). Its checksum is not looked at, whose table would be
/// 16 KiB of the command: the kernel makes the file anew for each reader.
#[cfg(feature = "dwarf")]
fn deflated(file: &[u8]) -> Option<&[u8]> {
    const HEADER_CHECKSUM: u8 = 2;
    const EXTRA: u8 = 4;
    const NAME: u8 = 8;
    const COMMENT: u8 = 16;
    let (head, mut rest) = file.split_first_chunk::<10>()?;
    let [0x1f, 0x8b, 8, flags, ..] = *head else { return None };
    if flags & EXTRA != 0 {
        let (len, behind) = rest.split_first_chunk()?;
        rest = behind.get(usize::from(u16::from_le_bytes(*len))..)?;
    }
    for text in [NAME, COMMENT] {
        if flags & text != 0 {
            rest = rest.get(rest.iter().position(|byte| *byte == 0)? + 1..)?;
        }
    }
    if flags & HEADER_CHECKSUM != 0 { rest.get(2..) } else { Some(rest) }
}

#[cfg(not(feature = "dwarf"))]
fn packed() -> String {
    String::new()
}

/// Makes `KERNEL_VERSION(a, b, c)` of a release.
fn code(release: &str) -> u32 {
    let digits = |part: &str| {
        part.chars().take_while(char::is_ascii_digit).collect::<String>().parse().unwrap_or(0u32)
    };
    let mut parts = release.splitn(3, '.').map(digits);
    let mut next = || parts.next().unwrap_or(0);
    let (a, b, c) = (next(), next(), next());
    (a << 16 | b.min(255) << 8).saturating_add(c.min(255))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn versions_are_those_of_the_kernels_macro() {
        assert_eq!(code("6.18.5"), 6 << 16 | 18 << 8 | 5);
        assert_eq!(code("5.10.0-28-amd64"), 5 << 16 | 10 << 8);
        assert_eq!(code("4.19.300"), 4 << 16 | 19 << 8 | 255);
        assert_eq!(code(""), 0);
        let debian = Kconfig::parse(
            "6.1.0-42-amd64",
            "#1 SMP PREEMPT_DYNAMIC Debian 6.1.170-1 (2026-01-01)",
            "",
        );
        assert_eq!(debian.get("LINUX_KERNEL_VERSION"), Some((6 << 16 | 1 << 8 | 170).to_string()));
        assert_eq!(debian.get("LINUX_HAS_BPF_COOKIE").as_deref(), Some("1"));
    }
    /// As `gzip` writes it, with a file's name and without.
    #[cfg(feature = "dwarf")]
    #[test]
    fn what_gzip_has_packed_is_found() {
        use std::io::Read;
        let dir = skep_testkit::TempDir::new();
        let text = "CONFIG_BPF=y\n".repeat(1000);
        std::fs::write(dir.path().join("config"), &text).unwrap();
        for how in ["-n", "-N"] {
            let done = std::process::Command::new("gzip")
                .args(["-c", how, "config"])
                .current_dir(dir.path())
                .output()
                .unwrap();
            let mut out = String::new();
            let data = deflated(&done.stdout).unwrap();
            flate2::read::DeflateDecoder::new(data).read_to_string(&mut out).unwrap();
            assert_eq!(out, text, "{how}");
        }
        let name = b"\x1f\x8b\x08\x1e\0\0\0\0\0\0\x02\0ab".to_vec();
        let whole = [&name[..], b"name\0comment\0xxdata"].concat();
        assert_eq!(deflated(&whole), Some(&b"data"[..]));
        for end in 0..whole.len() - 4 {
            assert!(deflated(&whole[..end]).is_none_or(<[u8]>::is_empty), "{end}");
        }
        assert_eq!(deflated(b"text that is not packed"), None);
    }
}
