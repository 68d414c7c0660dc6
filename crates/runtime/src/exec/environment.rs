//! The environment of a program that is about to be executed, and a copy without the agent.

use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

use skep_sys::sandbox;

use super::contains;
use skep_store::dir::{ENV_DIR, ENV_LINKS, OWN_DIR};
use skep_sys::syscall::{MMAP, MUNMAP, call6};

const PRELOAD: &[u8] = b"LD_PRELOAD=";
/// How the agent's library is called.
const LIBRARY: &[u8] = b"libskep_preload";

/// The entries of a value of `LD_PRELOAD`.
pub(super) fn entries(value: &[u8]) -> impl Iterator<Item = &[u8]> {
    value.split(|b| matches!(b, b':' | b' ')).filter(|e| !e.is_empty())
}

/// Tells whether an entry is the agent.
pub(super) fn is_agent(entry: &[u8]) -> bool {
    entry.rsplit(|b| *b == b'/').next().is_some_and(|name| name.starts_with(LIBRARY))
}

/// Tells whether the run-time part of a sanitizer stands before the agent, as it wants to.
pub(super) fn has_sanitizer_first(value: &[u8]) -> bool {
    entries(value)
        .take_while(|e| !is_agent(e))
        .any(|e| contains(e, b"libasan") || contains(e, b"libclang_rt.asan"))
}

/// # Safety
/// A string that stays as it is.
unsafe fn bytes<'a>(at: *const u8) -> &'a [u8] {
    let mut len = 0;
    // SAFETY: up to the zero that ends it.
    unsafe {
        while at.add(len).read() != 0 {
            len += 1;
        }
        std::slice::from_raw_parts(at, len)
    }
}

/// Finds the value of `LD_PRELOAD`, and whether the agent and its links are in the environment.
///
/// # Safety
/// `envp` is an environment that stays as it is.
pub(super) unsafe fn find<'a>(envp: *const *const u8) -> Option<(&'a [u8], bool)> {
    let (mut value, mut links) = (None, false);
    let mut at = envp;
    // SAFETY: up to the null that ends it.
    unsafe {
        while !(*at).is_null() {
            let text = bytes(*at);
            if value.is_none() {
                value = text.strip_prefix(PRELOAD);
            }
            links |= names(text, ENV_LINKS);
            at = at.add(1);
        }
    }
    value.map(|value| (value, links && entries(value).any(is_agent)))
}

fn names(text: &[u8], variable: &str) -> bool {
    value(text, variable).is_some()
}

fn value<'a>(text: &'a [u8], variable: &str) -> Option<&'a [u8]> {
    text.strip_prefix(variable.as_bytes())?.strip_prefix(b"=")
}

/// Copies an environment without the agent and its variables, of which the user's own `SKEP_DIR` is
/// none; `None` without memory. It stays until this thread asks again.
///
/// # Safety
/// `envp` is an environment with `LD_PRELOAD` that stays as it is.
pub(super) unsafe fn without_agent(envp: *const *const u8) -> Option<*const *const u8> {
    let (mut count, mut longest, mut own_dir) = (0, 0, false);
    // SAFETY: up to the null that ends it.
    unsafe {
        while !(*envp.add(count)).is_null() {
            let text = bytes(*envp.add(count));
            if text.starts_with(PRELOAD) {
                longest += text.len() + 1;
            }
            own_dir |= value(text, ENV_LINKS)
                .is_some_and(|links| links.split(|b| *b == b',').any(|l| l == OWN_DIR.as_bytes()));
            count += 1;
        }
        let memory = memory((count + 1) * 8 + longest)?;
        let (list, mut texts) =
            (memory as *mut *const u8, (memory as *mut u8).add((count + 1) * 8));
        let mut kept = 0;
        for i in 0..count {
            let at = *envp.add(i);
            let text = bytes(at);
            if names(text, ENV_LINKS) || (names(text, ENV_DIR) && !own_dir) {
                continue;
            }
            let Some(value) = text.strip_prefix(PRELOAD) else {
                list.add(kept).write(at);
                kept += 1;
                continue;
            };
            let start = texts;
            let mut put = |b: u8| {
                texts.write(b);
                texts = texts.add(1);
            };
            let mut first = true;
            for entry in entries(value).filter(|e| !is_agent(e)) {
                if first {
                    PRELOAD.iter().for_each(|b| put(*b))
                } else {
                    put(b':')
                }
                entry.iter().for_each(|b| put(*b));
                first = false;
            }
            if !first {
                put(0);
                list.add(kept).write(start);
                kept += 1;
            }
        }
        list.add(kept).write(std::ptr::null());
        Some(list)
    }
}

/// Memory of threads, by thread pointer.
struct Owned {
    thread: AtomicU64,
    at: AtomicU64,
    len: AtomicU64,
}

const THREADS: usize = 64;
static OWNED: [Owned; THREADS] =
    [const { Owned { thread: AtomicU64::new(0), at: AtomicU64::new(0), len: AtomicU64::new(0) } };
        THREADS];

/// Memory for when none can be had any more.
static RESERVED: AtomicU64 = AtomicU64::new(0);
const RESERVED_LEN: u64 = 256 << 10;

/// Sets memory aside for programs that are executed when system calls are over. All threads share
/// it: two that execute programs in the same moment, both in children of `vfork`, would get in each
/// other's way.
pub(super) fn reserve() {
    if RESERVED.load(Relaxed) == 0
        && let Some(at) = map(RESERVED_LEN)
    {
        RESERVED.store(at, Relaxed);
    }
}

fn map(len: u64) -> Option<u64> {
    const READ_WRITE: u64 = 3;
    const PRIVATE_ANONYMOUS: u64 = 0x22;
    // SAFETY: new memory.
    let at = unsafe { call6(MMAP, 0, len, READ_WRITE, PRIVATE_ANONYMOUS, u64::MAX, 0) };
    (at < u64::MAX - 4096).then_some(at)
}

/// Gives this thread's memory, which a child of `vfork` shares with the thread that waits for it.
/// With more than 64 threads that execute what cannot be traced, the others' memory is not used
/// again.
fn memory(len: usize) -> Option<u64> {
    let thread = skep_attach::thread();
    let len = (len as u64).next_multiple_of(4096);
    if !sandbox::may_call_system() {
        return Some(RESERVED.load(Relaxed)).filter(|at| *at != 0 && len <= RESERVED_LEN);
    }
    let mine = |o: &&Owned| {
        o.thread.load(Relaxed) == thread
            || o.thread.compare_exchange(0, thread, Relaxed, Relaxed).is_ok()
    };
    let owned = OWNED.iter().find(mine);
    if let Some(owned) = owned
        && owned.len.load(Relaxed) >= len
    {
        return Some(owned.at.load(Relaxed));
    }
    let at = map(len)?;
    if let Some(owned) = owned {
        let old = owned.at.load(Relaxed);
        if old != 0 {
            // SAFETY: this thread's own, and its last use is over.
            unsafe { call6(MUNMAP, old, owned.len.load(Relaxed), 0, 0, 0, 0) };
        }
        owned.at.store(at, Relaxed);
        owned.len.store(len, Relaxed);
    }
    Some(at)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::ffi::CString;

    fn environment(list: &[&str]) -> (Vec<CString>, Vec<*const u8>) {
        let texts: Vec<CString> =
            list.iter().map(|t| CString::new(*t).expect("no zeros")).collect();
        let pointers = texts.iter().map(|t| t.as_ptr().cast()).chain([std::ptr::null()]).collect();
        (texts, pointers)
    }

    fn stripped(list: &[&str]) -> Vec<String> {
        let (_texts, pointers) = environment(list);
        let mut out = Vec::new();
        // SAFETY: an environment, and the copy.
        unsafe {
            let mut at = without_agent(pointers.as_ptr()).expect("memory");
            while !(*at).is_null() {
                out.push(String::from_utf8_lossy(bytes(*at)).into_owned());
                at = at.add(1);
            }
        }
        out
    }

    /// Everything but the agent stays, in its order.
    #[test]
    fn the_agent_goes_and_all_else_stays() {
        let agent = "/x/target/libskep_preload.so";
        let env = |preload: String| {
            stripped(&[
                "A=1",
                &preload,
                "SKEP_LINKS=1,2",
                "SKEP_LINKSX=3",
                "SKEP_DIR=/d",
                "=odd",
                "B",
            ])
        };
        assert_eq!(env(format!("LD_PRELOAD={agent}")), ["A=1", "SKEP_LINKSX=3", "=odd", "B"]);
        for (before, after) in [
            (format!("liba.so:{agent}"), "LD_PRELOAD=liba.so"),
            (format!("{agent} /b/libb.so"), "LD_PRELOAD=/b/libb.so"),
            (format!("a:{agent}:b {agent}"), "LD_PRELOAD=a:b"),
        ] {
            assert_eq!(
                env(format!("LD_PRELOAD={before}")),
                ["A=1", after, "SKEP_LINKSX=3", "=odd", "B"]
            );
        }
        let agent_only = format!("LD_PRELOAD={agent}");
        assert_eq!(
            stripped(&[&agent_only, "SKEP_DIR=/mine", "SKEP_LINKS=1,dir", "A=1"]),
            ["SKEP_DIR=/mine", "A=1"]
        );
        let long = "x".repeat(20_000);
        assert_eq!(
            stripped(&[&format!("LD_PRELOAD={agent}:{long}")]),
            [format!("LD_PRELOAD={long}")]
        );
        assert!(stripped(&[&format!("LD_PRELOAD={agent}")]).is_empty());
    }

    #[test]
    fn whether_the_agent_is_there_is_found() {
        let found = |list: &[&str]| {
            let (_texts, pointers) = environment(list);
            // SAFETY: an environment.
            unsafe { find(pointers.as_ptr()) }.map(|(value, there)| (value.to_vec(), there))
        };
        assert_eq!(found(&["A=1"]), None);
        assert_eq!(
            found(&["LD_PRELOAD=/l/libskep_preload.so"]),
            Some((b"/l/libskep_preload.so".to_vec(), false))
        );
        assert_eq!(found(&["LD_PRELOAD=x", "SKEP_LINKS=1"]), Some((b"x".to_vec(), false)));
        assert_eq!(
            found(&["SKEP_LINKS=1", "LD_PRELOAD=x:/l/libskep_preload.so"]),
            Some((b"x:/l/libskep_preload.so".to_vec(), true))
        );
        assert!(has_sanitizer_first(b"libasan.so.8:/l/libskep_preload.so"));
        assert!(!has_sanitizer_first(b"/l/libskep_preload.so:libasan.so.8"));
    }
}
