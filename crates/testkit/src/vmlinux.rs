//! Numbers that the running kernel gives its functions: its types (`/sys/kernel/btf/vmlinux`), read just far enough.

use std::collections::HashMap;
use std::sync::OnceLock;

const HEADER: usize = 24;
const FUNC: u32 = 12;

/// BTF id of a function of the running kernel, as a call of a kfunc has it; `None` when it has none of this name.
#[must_use]
pub fn function_id(name: &str) -> Option<u32> {
    static FUNCTIONS: OnceLock<HashMap<Vec<u8>, u32>> = OnceLock::new();
    FUNCTIONS
        .get_or_init(|| std::fs::read("/sys/kernel/btf/vmlinux").map(|b| functions(&b).unwrap_or_default()).unwrap_or_default())
        .get(name.as_bytes())
        .copied()
}

fn word(bytes: &[u8], at: usize) -> Option<usize> {
    bytes.get(at..)?.first_chunk().map(|w| u32::from_le_bytes(*w) as usize)
}

fn functions(bytes: &[u8]) -> Option<HashMap<Vec<u8>, u32>> {
    let [types, types_len, strings] = [8, 12, 16].map(|at| word(bytes, at));
    let (mut at, strings) = (HEADER + types?, HEADER + strings?);
    let end = at + types_len?;
    let mut found = HashMap::new();
    let mut id = 0;
    while at < end {
        id += 1;
        let (name, info) = (word(bytes, at)?, word(bytes, at + 4)? as u32);
        let (kind, len) = (info >> 24 & 31, (info & 0xffff) as usize);
        if kind == FUNC {
            let name = bytes.get(strings + name..)?.split(|b| *b == 0).next()?;
            found.insert(name.to_vec(), id);
        }
        // What follows the three words of each type (include/uapi/linux/btf.h).
        at += 12
            + match kind {
                1 | 14 | 17 => 4,
                3 => 12,
                4 | 5 | 15 | 19 => 12 * len,
                6 | 13 => 8 * len,
                _ => 0,
            };
    }
    Some(found)
}

#[cfg(test)]
mod tests {
    #[test]
    fn functions_of_the_kernel_have_numbers() {
        if !std::path::Path::new("/sys/kernel/btf/vmlinux").exists() {
            return crate::skip("the types of the running kernel");
        }
        assert!(super::function_id("vfs_read").is_some_and(|id| id > 1));
        assert_eq!(super::function_id("no_such_function"), None);
    }
}
