//! A process with mappings of all kinds, for tests of sources.

#![allow(dead_code, reason = "not every test uses everything")]

use std::fs;
use std::io::{BufRead, BufReader};
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};

use skep_proc::maps::{Filter, Live, MapSource, Vma, Want};

/// A quiet process with odd mappings, and its directory; both end with the value.
pub struct Fixture {
    pub child: Child,
    pub dir: PathBuf,
}

impl Fixture {
    pub fn new(name: &str) -> Self {
        let dir = fs::canonicalize(std::env::temp_dir())
            .unwrap()
            .join(format!("skep-maps-{name}-{}", std::process::id()));
        let _ = fs::remove_dir_all(&dir);
        fs::create_dir_all(dir.join("files")).unwrap();
        let source = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/fixtures/mappings.c");
        let program = dir.join("program");
        assert!(
            Command::new("cc")
                .args(["-O1", "-Wl,--build-id=sha1", "-o"])
                .arg(&program)
                .arg(source)
                .status()
                .unwrap()
                .success()
        );
        let mut child = Command::new(&program)
            .arg(dir.join("files"))
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let mut line = String::new();
        BufReader::new(child.stdout.take().unwrap()).read_line(&mut line).unwrap();
        assert_eq!(line, "ready\n");
        Self { child, dir }
    }

    pub fn live(&self) -> Live {
        Live::of(self.child.id()).unwrap()
    }

    pub fn text(&self) -> Live {
        self.live().text_only()
    }

    pub fn named(&self, name: &[u8]) -> Vma {
        let full = [self.dir.as_os_str().as_encoded_bytes(), b"/files/", name].concat();
        let live = self.live();
        let mut all = live.walk(&Filter::default(), Want::NAME);
        all.by_ref()
            .map(Result::unwrap)
            .find(|v| v.name.as_ref() == Some(&full))
            .unwrap_or_else(|| panic!("{name:?}"))
    }
}

impl Drop for Fixture {
    fn drop(&mut self) {
        drop(self.child.stdin.take());
        let _ = self.child.wait();
        let _ = fs::remove_dir_all(&self.dir);
    }
}
