//! Who makes objects is killed: nothing stays that is not collected.

use std::error::Error;
use std::process::{Command, Stdio};
use std::time::Duration;

use skep_store::btf;
use skep_store::dir::{Dir, Kind};
use skep_testkit::TempDir;
use skep_testkit::random::Random;

const DIR: &str = "SKEP_TEST_KILLED";

#[test]
#[ignore = "run by the test below"]
fn make_objects_without_end() -> Result<(), Box<dyn Error>> {
    let dir = Dir::open(std::env::var_os(DIR).ok_or("no directory")?.as_ref())?;
    loop {
        let stored = btf::store(&dir, &[7; 12_000])?;
        std::fs::remove_file(dir.object(Kind::Btf, stored.id()))?;
    }
}

/// A name that a file had until it was complete stayed for ever, and with it, as a second name, the object.
#[test]
fn nothing_stays_of_what_was_not_completed() -> Result<(), Box<dyn Error>> {
    let place = TempDir::in_memory();
    let dir = Dir::create(&place.join("skep"))?;
    let mut random = Random::new(5);
    for round in 0..40 {
        let last = || std::fs::read_to_string(dir.path().join("btf.next")).unwrap_or_default();
        let before = last();
        let mut child = Command::new(std::env::current_exe()?)
            .args(["--exact", "make_objects_without_end", "--ignored"])
            .env(DIR, dir.path())
            .stdout(Stdio::null())
            .spawn()?;
        while last() == before {
            std::thread::sleep(Duration::from_micros(100));
        }
        std::thread::sleep(Duration::from_micros(random.below(2_000) as u64));
        child.kill()?;
        child.wait()?;
        dir.collect()?;
        let left: Vec<_> = std::fs::read_dir(dir.kind(Kind::Btf))?.flatten().collect();
        assert!(left.is_empty(), "round {round}: {left:?}");
    }
    Ok(())
}
