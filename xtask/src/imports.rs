//! Who may import whom: the layers of the workspace as a table, checked against `cargo metadata`.
//!
//! Only what is compiled into a crate counts; dev-dependencies may reach anywhere, since a test may
//! compare with whatever it likes. The second check keeps the agent small: every crate that ends up
//! inside a traced process is named in [`AGENT_TREE`]. The third finds [`circles`] of modules.

use std::collections::{BTreeMap, BTreeSet};

use anyhow::{Context, Result, bail};
use serde_json::Value;

use crate::{cargo, circles, output};

/// A crate and the workspace crates it may import.
const ALLOWED: &[(&str, &[&str])] = &[
    ("skep-isa", &[]),
    ("skep-proc", &[]),
    ("skep-object", &["skep-isa", "skep-proc"]),
    ("skep-maps", &["skep-isa", "skep-sys"]),
    ("skep-vm", &["skep-isa"]),
    ("skep-kernel", &["skep-isa"]),
    ("skep-verifier", &["skep-isa", "skep-object", "skep-proc"]),
    ("skep-sys", &[]),
    ("skep-attach", &["skep-proc", "skep-sys"]),
    ("skep-inject", &["skep-proc"]),
    ("skep-store", &["skep-isa", "skep-proc", "skep-sys", "skep-maps"]),
    ("skep-helpers", &["skep-isa", "skep-proc", "skep-sys", "skep-maps", "skep-vm"]),
    // XDP sockets get their frames by a program in the kernel.
    ("skep-net", &["skep-isa", "skep-kernel", "skep-sys", "skep-maps", "skep-vm", "skep-helpers"]),
    (
        "skep-runtime",
        &[
            "skep-isa",
            "skep-proc",
            "skep-sys",
            "skep-maps",
            "skep-vm",
            "skep-attach",
            "skep-store",
            "skep-helpers",
        ],
    ),
    (
        "skep",
        &[
            "skep-isa",
            "skep-proc",
            "skep-object",
            "skep-maps",
            "skep-vm",
            "skep-kernel",
            "skep-verifier",
            "skep-attach",
            "skep-inject",
            "skep-store",
            "skep-helpers",
            "skep-net",
            "skep-runtime",
        ],
    ),
    ("skep-text", &["skep-isa", "skep-maps", "skep-object"]),
    ("skep-test", &["skep", "skep-text"]),
    ("skep-cli", &["skep", "skep-kernel", "skep-proc", "skep-sys", "skep-test", "skep-text"]),
    ("skep-capi", &["skep", "skep-proc", "skep-sys"]),
    ("skep-preload", &["skep-sys", "skep-attach", "skep-runtime"]),
    ("skep-testkit", &["skep-kernel"]),
    ("xtask", &["skep-isa", "skep-kernel", "skep-testkit"]),
];

/// Crates from outside that may be linked into `libskep_preload.so`; procedural macros run in the
/// compiler and do not count.
const AGENT_TREE: &[&str] = &[
    "bitflags",
    "cfg-if",       // of cpp_demangle
    "cpp_demangle", // patterns match demangled names
    "dlmalloc",     // a heap apart from the program's
    "iced-x86",
    "lazy_static", // of iced-x86
    "libc",        // of errno, where rustix is told to use libc
    "linux-raw-sys",
    "errno",
    "rustc-demangle",
    "rustix",
    "thiserror",
    "twox-hash", // the code of modules is known by its hash
    "zerocopy",
];

/// Fails with every import that the tables do not allow.
pub fn check() -> Result<()> {
    let text = output(cargo().args([
        "metadata",
        "--format-version",
        "1",
        "--locked",
        "--filter-platform",
        "x86_64-unknown-linux-gnu",
    ]))?;
    let mut wrong =
        violations(&serde_json::from_str(&text).context("`cargo metadata` did not print JSON")?)?;
    // What the agent needs, not what a build of everything at once also turns on in the crates it
    // shares with the command.
    let tree = [
        "tree",
        "--package",
        "skep-preload",
        "--edges",
        "normal,no-proc-macro",
        "--prefix",
        "none",
        "--no-dedupe",
        "--locked",
    ];
    wrong.extend(strangers(&output(
        cargo().args(tree).args(["--target", "x86_64-unknown-linux-gnu"]),
    )?));
    wrong.extend(circles::violations()?);
    if wrong.is_empty() {
        return Ok(());
    }
    bail!("imports that are not allowed:\n  {}", wrong.join("\n  "));
}

/// One line for each import outside the tables.
fn violations(metadata: &Value) -> Result<Vec<String>> {
    let graph = Graph::read(metadata).context("`cargo metadata` has an unknown shape")?;
    let mut wrong = Vec::new();
    for member in &graph.members {
        let name = graph.name(member);
        let Some((_, allowed)) = ALLOWED.iter().find(|(known, _)| *known == name) else {
            wrong.push(format!("`{name}` is not in the table of crates"));
            continue;
        };
        for import in graph.imports(member) {
            if graph.members.contains(import) && !allowed.contains(&graph.name(import)) {
                wrong.push(format!("`{name}` imports `{}`", graph.name(import)));
            }
        }
    }
    Ok(wrong)
}

/// One line for each crate of the agent (as `cargo tree` lists them) that is not in [`AGENT_TREE`].
fn strangers(tree: &str) -> Vec<String> {
    let names: BTreeSet<&str> = tree
        .lines()
        .filter_map(|line| line.split(' ').next())
        .filter(|name| !name.is_empty())
        .collect();
    let ours = |name: &str| ALLOWED.iter().any(|(known, _)| *known == name);
    let strange = names.into_iter().filter(|name| !ours(name) && !AGENT_TREE.contains(name));
    strange
        .map(|name| {
            format!("the agent links `{name}`; `cargo tree -p skep-preload -i {name}` says why")
        })
        .collect()
}

/// The resolved packages by id.
struct Graph {
    names: BTreeMap<String, String>,
    members: BTreeSet<String>,
    /// What is linked into each package: neither dev- nor build-dependencies.
    normal: BTreeMap<String, Vec<String>>,
}

impl Graph {
    fn read(metadata: &Value) -> Option<Self> {
        let text = |value: &Value| value.as_str().map(str::to_owned);
        let mut graph =
            Self { names: BTreeMap::new(), members: BTreeSet::new(), normal: BTreeMap::new() };
        for package in metadata["packages"].as_array()? {
            let id = text(&package["id"])?;
            graph.names.insert(id, text(&package["name"])?);
        }
        for member in metadata["workspace_members"].as_array()? {
            graph.members.insert(text(member)?);
        }
        for node in metadata["resolve"]["nodes"].as_array()? {
            let mut linked = Vec::new();
            for dep in node["deps"].as_array()? {
                if dep["dep_kinds"].as_array()?.iter().any(|kind| kind["kind"].is_null()) {
                    linked.push(text(&dep["pkg"])?);
                }
            }
            graph.normal.insert(text(&node["id"])?, linked);
        }
        Some(graph)
    }

    fn name(&self, id: &str) -> &str {
        self.names.get(id).map_or("?", String::as_str)
    }

    fn imports(&self, id: &str) -> impl Iterator<Item = &String> {
        self.normal.get(id).into_iter().flatten()
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::violations;

    fn package(id: &str, kind: &str) -> serde_json::Value {
        json!({"id": id, "name": id, "targets": [{"kind": [kind]}]})
    }

    fn node(id: &str, deps: &[(&str, Option<&str>)]) -> serde_json::Value {
        let deps: Vec<_> = deps
            .iter()
            .map(|(pkg, kind)| json!({"pkg": pkg, "dep_kinds": [{"kind": kind}]}))
            .collect();
        json!({"id": id, "deps": deps})
    }

    #[test]
    fn upward_imports_are_named() {
        let metadata = json!({
            "packages": [package("skep-isa", "lib"), package("skep-maps", "lib"), package("skep-cli", "bin"), package("skep", "lib")],
            "workspace_members": ["skep-isa", "skep-maps", "skep-cli", "skep"],
            "resolve": {"nodes": [
                node("skep-isa", &[("skep-maps", None)]),
                node("skep-maps", &[("skep-isa", None), ("skep", Some("dev"))]),
                node("skep-cli", &[("skep", None)]),
                node("skep", &[("skep-maps", None)]),
            ]},
        });
        let wrong = violations(&metadata).unwrap();
        assert_eq!(wrong, ["`skep-isa` imports `skep-maps`"]);
    }

    #[test]
    fn crates_that_make_the_agent_large_are_named() {
        let tree = "skep-preload v0.1.0 (/x)\nskep v0.1.0 (/x)\nrustix v1.0.0\ntokio v1.0.0\n\ntokio v1.0.0\n";
        assert_eq!(
            super::strangers(tree),
            ["the agent links `tokio`; `cargo tree -p skep-preload -i tokio` says why"]
        );
    }

    #[test]
    fn a_new_crate_must_enter_the_table() {
        let metadata = json!({"packages": [package("skep-new", "lib")], "workspace_members": ["skep-new"], "resolve": {"nodes": []}});
        assert_eq!(violations(&metadata).unwrap(), ["`skep-new` is not in the table of crates"]);
    }
}
