//! Who may import whom: the floors of the workspace as a table, checked against `cargo metadata`.
//!
//! Only what is compiled into a crate counts; dev-dependencies may reach anywhere, since a test may compare with
//! whatever it likes. The second check keeps the agent small: every crate that ends up inside a traced process is
//! named in [`AGENT_TREE`].

use std::collections::{BTreeMap, BTreeSet};

use anyhow::{Context, Result, bail};
use serde_json::Value;

use crate::{cargo, output};

/// A crate and the workspace crates it may import.
const ALLOWED: &[(&str, &[&str])] = &[
    ("skep-isa", &[]),
    ("skep-proc", &[]),
    ("skep-object", &["skep-isa"]),
    ("skep-maps", &["skep-isa"]),
    ("skep-vm", &["skep-isa"]),
    ("skep-verifier", &["skep-isa", "skep-object"]),
    ("skep-attach", &["skep-proc"]),
    ("skep", &["skep-isa", "skep-proc", "skep-object", "skep-maps", "skep-vm", "skep-verifier", "skep-attach"]),
    ("skep-cli", &["skep", "skep-proc"]),
    ("skep-preload", &["skep"]),
    ("skep-testkit", &[]),
    ("xtask", &["skep-testkit"]),
];

/// Crates from outside that may be linked into `libskep_preload.so`; procedural macros run in the compiler and do not count.
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
    "memchr", // of object
    "object",
    "rustc-demangle",
    "rustix",
    "thiserror",
    "zerocopy",
];

/// Fails with every import that the tables do not allow.
pub fn check() -> Result<()> {
    let text = output(cargo().args(["metadata", "--format-version", "1", "--locked", "--filter-platform", "x86_64-unknown-linux-gnu"]))?;
    let wrong = violations(&serde_json::from_str(&text).context("`cargo metadata` did not print JSON")?)?;
    if wrong.is_empty() {
        return Ok(());
    }
    bail!("imports that are not in the table:\n  {}", wrong.join("\n  "));
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
    if let Some(agent) = graph.members.iter().find(|member| graph.name(member) == "skep-preload") {
        let mut seen = BTreeSet::new();
        let mut todo = vec![agent.as_str()];
        while let Some(id) = todo.pop() {
            for import in graph.imports(id) {
                if graph.macros.contains(import) || !seen.insert(import) {
                    continue;
                }
                if !graph.members.contains(import) && !AGENT_TREE.contains(&graph.name(import)) {
                    wrong.push(format!("the agent links `{}` (through `{}`)", graph.name(import), graph.name(id)));
                }
                todo.push(import);
            }
        }
    }
    Ok(wrong)
}

/// The resolved packages by id.
struct Graph {
    names: BTreeMap<String, String>,
    macros: BTreeSet<String>,
    members: BTreeSet<String>,
    /// What is linked into each package: neither dev- nor build-dependencies.
    normal: BTreeMap<String, Vec<String>>,
}

impl Graph {
    fn read(metadata: &Value) -> Option<Self> {
        let text = |value: &Value| value.as_str().map(str::to_owned);
        let mut graph = Self { names: BTreeMap::new(), macros: BTreeSet::new(), members: BTreeSet::new(), normal: BTreeMap::new() };
        for package in metadata["packages"].as_array()? {
            let id = text(&package["id"])?;
            let is_macro = package["targets"].as_array()?.iter().any(|t| t["kind"][0] == "proc-macro");
            if is_macro {
                graph.macros.insert(id.clone());
            }
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
        let deps: Vec<_> = deps.iter().map(|(pkg, kind)| json!({"pkg": pkg, "dep_kinds": [{"kind": kind}]})).collect();
        json!({"id": id, "deps": deps})
    }

    #[test]
    fn upward_imports_and_large_agents_are_named() {
        let metadata = json!({
            "packages": [package("skep-isa", "lib"), package("skep-maps", "lib"), package("skep-preload", "cdylib"),
                package("skep", "lib"), package("tokio", "lib"), package("thiserror-impl", "proc-macro"), package("syn", "lib")],
            "workspace_members": ["skep-isa", "skep-maps", "skep-preload", "skep"],
            "resolve": {"nodes": [
                node("skep-isa", &[("skep-maps", None)]),
                node("skep-maps", &[("skep-isa", None), ("skep", Some("dev")), ("thiserror-impl", None)]),
                node("skep-preload", &[("skep", None)]),
                node("skep", &[("skep-maps", None), ("tokio", None)]),
                node("thiserror-impl", &[("syn", None)]),
            ]},
        });
        let wrong = violations(&metadata).unwrap();
        assert_eq!(wrong, ["`skep-isa` imports `skep-maps`", "the agent links `tokio` (through `skep`)"]);
    }

    #[test]
    fn a_new_crate_must_enter_the_table() {
        let metadata = json!({"packages": [package("skep-new", "lib")], "workspace_members": ["skep-new"], "resolve": {"nodes": []}});
        assert_eq!(violations(&metadata).unwrap(), ["`skep-new` is not in the table of crates"]);
    }
}
