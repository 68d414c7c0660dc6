//! Which maps have a value for each CPU, and how many CPUs that are.

use skep_isa::MapType;

use crate::error::{Error, Result};

const POSSIBLE: &str = "/sys/devices/system/cpu/possible";

/// Tells whether maps of a type have a value for each CPU.
pub(crate) fn is_per_cpu(map_type: MapType) -> bool {
    use MapType as T;
    matches!(map_type, T::PercpuHash | T::PercpuArray | T::LruPercpuHash | T::PercpuCgroupStorage)
}

/// Returns the number of values that a per-CPU map has for each key.
///
/// # Errors
/// `/sys` cannot be read.
pub fn possible_cpus() -> Result<usize> {
    let text = std::fs::read_to_string(POSSIBLE).map_err(|e| Error::new(POSSIBLE, e))?;
    count(&text).ok_or_else(|| Error::new(POSSIBLE, std::io::ErrorKind::InvalidData.into()))
}

/// The kernel numbers from 0, so the last number says how many there are.
fn count(list: &str) -> Option<usize> {
    let last = list.trim().rsplit([',', '-']).next()?;
    last.parse::<usize>().ok()?.checked_add(1)
}

#[cfg(test)]
mod tests {
    use super::count;

    #[test]
    fn the_last_number_counts() {
        assert_eq!(count("0\n"), Some(1));
        assert_eq!(count("0-7\n"), Some(8));
        assert_eq!(count("0-3,8-11\n"), Some(12));
        assert_eq!(count(""), None);
        assert_eq!(count(&format!("0-{}", usize::MAX)), None);
    }
}
