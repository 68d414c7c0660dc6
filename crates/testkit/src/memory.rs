//! How much memory a test has used.

/// Returns the most memory that this process had in RAM so far, in bytes.
///
/// # Panics
/// Without procfs.
pub fn peak() -> u64 {
    let status = std::fs::read_to_string("/proc/self/status").expect("procfs");
    let line = status.lines().find_map(|line| line.strip_prefix("VmHWM:")).expect("it is there");
    line.trim().trim_end_matches(" kB").parse::<u64>().expect("a number") << 10
}
