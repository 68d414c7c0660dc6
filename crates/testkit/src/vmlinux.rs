//! Numbers that the running kernel gives its functions: its types (`/sys/kernel/btf/vmlinux`), read
//! just far enough.

use std::collections::HashMap;
use std::sync::OnceLock;

const HEADER: usize = 24;
const FUNC: u32 = 12;

/// BTF id of a function of the running kernel, as a call of a kfunc has it; `None` when it has none
/// of this name.
#[must_use]
pub fn function_id(name: &str) -> Option<u32> {
    static FUNCTIONS: OnceLock<HashMap<Vec<u8>, u32>> = OnceLock::new();
    FUNCTIONS
        .get_or_init(|| {
            std::fs::read("/sys/kernel/btf/vmlinux")
                .map(|b| functions(&b).unwrap_or_default())
                .unwrap_or_default()
        })
        .get(name.as_bytes())
        .copied()
}

/// Returns instructions whose helper calls of a number with a `name` are calls of the running
/// kernel's function of that name.
///
/// # Errors
/// The first name that it has no function of.
pub fn with_functions<'a>(
    insns: &[u8],
    name: impl Fn(u32) -> Option<&'a str>,
) -> Result<Vec<u8>, &'a str> {
    const CALL: u8 = 0x85;
    const PSEUDO_KFUNC_CALL: u8 = 2;
    let mut out = insns.to_vec();
    for [code, regs, _, _, imm @ ..] in out.as_chunks_mut::<8>().0 {
        if (*code, *regs >> 4) != (CALL, 0) {
            continue;
        }
        if let Some(name) = name(u32::from_le_bytes(*imm)) {
            *regs |= PSEUDO_KFUNC_CALL << 4;
            *imm = function_id(name).ok_or(name)?.to_le_bytes();
        }
    }
    Ok(out)
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

    #[test]
    fn only_calls_with_a_name_are_renumbered() {
        // A helper call, a call of a function of the program, a helper call with a name, an `exit`.
        let insns = [
            [0x85, 0, 0, 0, 5, 0, 0, 0],
            [0x85, 0x10, 0, 0, 9, 0, 0, 0],
            [0x85, 0, 0, 0, 9, 0, 0, 0],
            [0x95, 0, 0, 0, 9, 0, 0, 0],
        ];
        let named =
            |name| super::with_functions(insns.as_flattened(), move |id| (id == 9).then_some(name));
        assert_eq!(named("no_such_function"), Err("no_such_function"));
        let Some(id) = super::function_id("vfs_read") else {
            return crate::skip("the types of the running kernel");
        };
        let mut expected = insns;
        expected[2][1] = 0x20;
        expected[2][4..].copy_from_slice(&id.to_le_bytes());
        assert_eq!(named("vfs_read").unwrap(), expected.as_flattened());
    }
}
