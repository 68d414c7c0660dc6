//! Where unsafe code may live: crates that forbid it, and the named leaves of the others.

use std::path::Path;

use anyhow::{Context, Result, bail};

use crate::{files_below, relative, root};

/// Where a crate may be unsafe.
enum Policy {
    /// The crate root says `#![forbid(unsafe_code)]`.
    Forbid(&'static str),
    /// Files and folders (ending in `/`) below the crate's `src` that may.
    Leaves(&'static [&'static str]),
}

const CRATES: &[(&str, Policy)] = &[
    ("crates/isa", Policy::Forbid("lib.rs")),
    ("crates/object", Policy::Forbid("lib.rs")),
    ("crates/verifier", Policy::Forbid("lib.rs")),
    ("crates/test", Policy::Forbid("lib.rs")),
    ("crates/text", Policy::Forbid("lib.rs")),
    ("crates/testkit", Policy::Forbid("lib.rs")),
    // bpf(2) and what it shares with user space have no safe interface.
    ("crates/kernel", Policy::Leaves(&["mapping.rs", "perf.rs", "ringbuf.rs", "sys.rs"])),
    ("xtask", Policy::Forbid("main.rs")),
    // Behind `shm/`, the doors that running programs come through: they bring pointers, each map
    // type has three such functions.
    (
        "crates/maps",
        Policy::Leaves(&[
            "array.rs",
            "bloom_filter.rs",
            "devmap.rs",
            "hash/",
            "id_table.rs",
            "lpm_trie/",
            "map/",
            "map_in_map.rs",
            "ops.rs",
            "percpu.rs",
            "perf_event_array.rs",
            "qp_trie/",
            "queue_stack.rs",
            "ringbuf.rs",
            "shm/",
            "slots/",
            "stack_trace.rs",
            "user_ringbuf.rs",
        ]),
    ),
    // Structs with addresses: for the kernel, from the dynamic linker, from C; files that are mapped.
    (
        "crates/proc",
        Policy::Leaves(&[
            "ioctl.rs",
            "loader.rs",
            "own_proc.rs",
            "procmap_query.rs",
            "symbolize/image.rs",
        ]),
    ),
    (
        "crates/cli",
        Policy::Leaves(&[
            "calibrate.rs",
            // A test: it runs compiled code.
            "estimate/simulated.rs",
            "inherited.rs",
            "launch/mod.rs",
            "live/namespace.rs",
            "signals.rs",
        ]),
    ),
    // Runs what the verifier has proved: generated code, the interpreter that does the same,
    // memory of others.
    (
        "crates/vm",
        Policy::Leaves(&[
            "chain/interp.rs",
            "chain/unit.rs",
            "env.rs",
            "exec.rs",
            "fault/",
            "gdb/mod.rs",
            "interp/",
            "jit/mod.rs",
        ]),
    ),
    // Everything that touches the code, the stacks or the signals of the process.
    (
        "crates/attach",
        Policy::Leaves(&[
            "code.rs",
            "engine/",
            "frame.rs",
            "hook.rs",
            "hook_code.rs",
            "hook_list.rs",
            "hook_lists.rs",
            "island.rs",
            "live/",
            "patch/",
            "patch_site/",
            "per_thread/",
            "process.rs",
            "side_stack/",
            "signals/",
            "sites.rs",
            "sites/excerpt.rs",
            "stack_arguments/mod.rs",
            "stack_bounds.rs",
            "stack_check.rs",
            "sys/",
            "table.rs",
            "tramp/",
        ]),
    ),
    // ptrace(2) and wait4(2).
    ("crates/inject", Policy::Leaves(&["sys.rs"])),
    // System calls by number.
    (
        "crates/sys",
        Policy::Leaves(&[
            "dl.rs",
            "lib.rs",
            "of_proc.rs",
            "own_file.rs",
            "syscall.rs",
            "thread_words.rs",
        ]),
    ),
    // Takes the verifier's word for the instructions of a program; a link's control map is atomics.
    ("crates/store", Policy::Leaves(&["prog.rs", "words.rs"])),
    // Called by programs, with pointers.
    ("crates/helpers", Policy::Leaves(&[""])),
    // Packets in memory, and helpers that are called by programs.
    (
        "crates/net",
        Policy::Leaves(&[
            "csum.rs",
            "dynptr.rs",
            "fib.rs",
            "lookahead.rs",
            "packet.rs",
            "perf.rs",
            "port/context.rs",
            "port/interface/sys.rs",
            "redirect.rs",
            "route.rs",
            "skb.rs",
            "test_run/",
            "xdp.rs",
        ]),
    ),
    // The other end of hooks and of generated code.
    (
        "crates/runtime",
        Policy::Leaves(&[
            "agent/fork.rs",
            "agent/mod.rs",
            "agent/probes.rs",
            "agent/program.rs",
            "blocked.rs",
            "compile.rs",
            "detach_func.rs",
            "directory.rs",
            "exec/",
            "memory.rs",
            "own_hooks.rs",
            "own_thread.rs",
            "prepare.rs",
            "run.rs",
            "seccomp/inherited.rs",
            "seccomp/mod.rs",
            "start.rs",
            "tail.rs",
            "unwinders.rs",
            "vectors.rs",
        ]),
    ),
    // Hands what the verifier accepted to the store, and runs it.
    (
        "crates/skep",
        Policy::Leaves(&[
            "chain/compiled.rs",
            "chain/once.rs",
            "chain/runner.rs",
            "chain/step.rs",
            "chain/watch.rs",
            "convert.rs",
            "packets/",
            "test_run/mod.rs",
            "test_run/plain.rs",
        ]),
    ),
    // Every function takes addresses from C.
    ("crates/capi", Policy::Leaves(&[""])),
    // A library that other people's programs load: all of it stands at the edge of C.
    (
        "crates/preload",
        Policy::Leaves(&["alone/", "heap.rs", "lib.rs", "resident.rs", "signals.rs"]),
    ),
];

/// Fails with every file that is unsafe outside its crate's policy.
pub fn check() -> Result<()> {
    let mut wrong = Vec::new();
    for (dir, policy) in CRATES {
        let src = root().join(dir).join("src");
        match policy {
            Policy::Forbid(file) => {
                let path = src.join(file);
                let text = read(&path)?;
                if !text.lines().any(|line| line.trim() == "#![forbid(unsafe_code)]") {
                    wrong.push(format!(
                        "{} does not say `#![forbid(unsafe_code)]`",
                        relative(&path)
                    ));
                }
            }
            Policy::Leaves(leaves) => {
                for path in files_below(&src, &|path| path.extension().is_some_and(|e| e == "rs"))?
                {
                    let place = path.strip_prefix(&src).unwrap_or(&path).display().to_string();
                    let leaf = leaves.iter().any(|leaf| {
                        if leaf.ends_with('/') || leaf.is_empty() {
                            place.starts_with(leaf)
                        } else {
                            place == *leaf
                        }
                    });
                    if !leaf && let Some(line) = first_unsafe(&read(&path)?) {
                        wrong.push(format!(
                            "{}:{line} is unsafe, and not one of the leaves {leaves:?}",
                            relative(&path)
                        ));
                    }
                }
            }
        }
    }
    if !wrong.is_empty() {
        bail!("unsafe code outside its leaves:\n  {}", wrong.join("\n  "));
    }
    Ok(())
}

fn read(path: &Path) -> Result<String> {
    std::fs::read_to_string(path).with_context(|| format!("cannot read `{}`", relative(path)))
}

/// The first line with the keyword `unsafe` in code; comments do not count, nor do the tests at a
/// file's end. Good enough for a lint: an `unsafe` in a string literal is reported as well, and a
/// reader would want to know.
fn first_unsafe(text: &str) -> Option<usize> {
    text.lines()
        .take_while(|line| line.trim() != "#[cfg(test)]")
        .position(|line| {
            let code = line.split("//").next().unwrap_or("");
            code.split(|c: char| !(c.is_alphanumeric() || c == '_')).any(|word| word == "unsafe")
        })
        .map(|index| index + 1)
}

#[cfg(test)]
mod tests {
    use super::{CRATES, Policy, first_unsafe};
    use crate::{files_below, root};

    #[test]
    fn every_crate_has_a_row_and_every_leaf_a_file() {
        for manifest in
            files_below(&root().join("crates"), &|path| path.ends_with("Cargo.toml")).unwrap()
        {
            let dir = manifest.parent().unwrap();
            assert!(
                CRATES.iter().any(|(known, _)| root().join(known) == dir),
                "no row for `{}`",
                dir.display()
            );
        }
        for (dir, policy) in CRATES {
            if let Policy::Leaves(leaves) = policy {
                for leaf in *leaves {
                    assert!(
                        root().join(dir).join("src").join(leaf).exists(),
                        "`{dir}` has no `{leaf}`"
                    );
                }
            }
        }
    }

    #[test]
    fn the_keyword_counts_the_word_in_comments_and_names_does_not() {
        assert_eq!(first_unsafe("fn f() {}\n    unsafe { g() }\n"), Some(2));
        assert_eq!(first_unsafe("pub unsafe fn f() {}"), Some(1));
        assert_eq!(
            first_unsafe("fn f() {}\n#[cfg(test)]\nmod tests {\n    unsafe { g() }\n}\n"),
            None
        );
        assert_eq!(
            first_unsafe("// unsafe\n#![forbid(unsafe_code)]\n#![deny(unsafe_op_in_unsafe_fn)]\n"),
            None
        );
    }
}
