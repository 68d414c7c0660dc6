//! Network namespaces of a test's own, with their devices. They go when the thread of the test ends.

use std::process::Command;
use std::time::Duration;

use crate::run::run;
use crate::skip::{is_root, skip};

const LIMIT: Duration = Duration::from_secs(300);

/// Gives the calling thread, and what it starts, a network namespace of its own, and with `mounts` a
/// mount namespace whose mounts stay in it; says why it cannot.
pub fn enter(mounts: bool) -> bool {
    if !is_root() {
        skip("root, for a network namespace");
        return false;
    }
    if !Command::new("ip").arg("-V").output().is_ok_and(|ended| ended.status.success()) {
        skip("ip, of iproute2");
        return false;
    }
    if skep_kernel::enter_namespaces(mounts).is_err() {
        skip("a kernel that makes network namespaces");
        return false;
    }
    if mounts {
        command("mount --make-rprivate /");
    }
    true
}

/// Runs a command, its words with spaces between them, which must succeed.
pub fn command(line: &str) {
    let mut words = line.split(' ');
    let ended = run(Command::new(words.next().expect("a command")).args(words), b"", LIMIT);
    assert_eq!(ended.shell_status(), 0, "{line}: {}", ended.transcript());
}

/// Makes a pair of veth devices without addresses: nothing but the test sends there.
pub fn veth(one: &str, two: &str) {
    command(&format!("ip link add {one} type veth peer name {two}"));
    for device in [one, two] {
        command(&format!("ip link set {device} addrgenmode none"));
        command(&format!("ip link set {device} up"));
    }
}

/// How many frames a device of the calling thread's namespace has received, and worked off where an XDP
/// program is attached by its driver.
pub fn received(device: &str) -> u64 {
    let devices = std::fs::read_to_string("/proc/thread-self/net/dev").expect("devices");
    let line = devices.lines().find_map(|line| line.trim_start().strip_prefix(device));
    let numbers = line.and_then(|line| line.strip_prefix(':')).expect("the device is there");
    // Bytes, then frames.
    let frames = numbers.split_ascii_whitespace().nth(1).expect("some numbers");
    frames.parse().expect("a number")
}
