//! Circles of modules inside a crate: files that import each other, directly or through others.
//!
//! A reader of one file of a circle has to know all of them, so a circle of more than [`LARGEST`]
//! files fails. What counts is a path that begins with `crate` or `super`, in code: not in
//! comments, strings and test modules. The crate's root does not count, nor do the paths by which a
//! parent re-exports from its children.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;

use anyhow::{Context, Result};

use crate::{files_below, root};

/// The most files of a circle.
const LARGEST: usize = 3;

/// Crates with larger circles: the most files there.
const EXCEPTIONS: &[(&str, usize)] = &[];

/// Modules of a crate by path (`hash/table`), with the modules that each imports.
type Graph = BTreeMap<String, BTreeSet<String>>;

/// Returns a line for each circle that is too large.
pub fn violations() -> Result<Vec<String>> {
    let mut wrong = Vec::new();
    let manifests =
        files_below(&root().join("crates"), &|path| path.ends_with("Cargo.toml"))?.into_iter();
    for manifest in manifests.chain([root().join("xtask/Cargo.toml")]) {
        let dir = manifest.parent().unwrap_or(root());
        let name = crate::relative(dir);
        let exception = EXCEPTIONS.iter().find(|(known, _)| *known == name);
        let largest = exception.map_or(LARGEST, |(_, size)| *size);
        let graph = graph(&sources(&dir.join("src"))?);
        for circle in circles(&graph).iter().filter(|circle| circle.len() > largest) {
            wrong.push(describe(&name, circle, &graph));
        }
    }
    Ok(wrong)
}

/// Names the files of a circle, each with what it imports of the others.
fn describe(name: &str, circle: &[String], graph: &Graph) -> String {
    let mut line = format!("`{name}`: {} files in a circle of imports:", circle.len());
    for module in circle {
        let others: Vec<&str> =
            graph[module].iter().filter(|m| circle.contains(m)).map(String::as_str).collect();
        line.push_str(&format!("\n    {module} -> {}", others.join(" ")));
    }
    line
}

/// The text of each module below a crate's `src`.
fn sources(src: &Path) -> Result<BTreeMap<String, String>> {
    let mut texts = BTreeMap::new();
    for path in files_below(src, &|path| path.extension().is_some_and(|e| e == "rs"))? {
        let text = std::fs::read_to_string(&path)
            .with_context(|| format!("cannot read `{}`", path.display()))?;
        let name = path.strip_prefix(src).unwrap_or(&path).with_extension("").display().to_string();
        let name = name.strip_suffix("/mod").unwrap_or(&name);
        if !matches!(name, "lib" | "main") {
            texts.insert(name.to_owned(), text);
        }
    }
    Ok(texts)
}

/// Who imports whom, of modules given by their text.
fn graph(texts: &BTreeMap<String, String>) -> Graph {
    let mut test_modules = BTreeSet::new();
    let mut paths = BTreeMap::new();
    for (module, text) in texts {
        let mut tokens = tokens(text);
        for child in remove_tests(&mut tokens) {
            test_modules.insert(format!("{module}/{child}"));
        }
        paths.insert(module, imports(&tokens));
    }
    let modules: BTreeSet<&str> =
        texts.keys().map(String::as_str).filter(|m| !test_modules.contains(*m)).collect();
    let of = |module: &str| -> BTreeSet<String> {
        let found =
            paths[&module.to_owned()].iter().filter_map(|path| resolve(module, path, &modules));
        found.filter(|other| other != module).collect()
    };
    modules.iter().map(|module| ((*module).to_owned(), of(module))).collect()
}

/// The module that a path leads into: the longest beginning that is one.
fn resolve(module: &str, path: &[String], modules: &BTreeSet<&str>) -> Option<String> {
    let mut at: Vec<&str> = Vec::new();
    let mut words = path.iter().map(String::as_str).peekable();
    if words.next_if_eq(&"crate").is_none() {
        at = module.split('/').collect();
        while words.next_if_eq(&"super").is_some() {
            at.pop();
        }
    }
    at.extend(words);
    (1..=at.len()).rev().map(|n| at[..n].join("/")).find(|name| modules.contains(name.as_str()))
}

/// Circles of a graph (its strongly connected components of more than one module), by Tarjan's
/// algorithm.
fn circles(graph: &Graph) -> Vec<Vec<String>> {
    let mut search = Search { graph, seen: BTreeMap::new(), stack: Vec::new(), found: Vec::new() };
    for module in graph.keys() {
        if !search.seen.contains_key(module.as_str()) {
            search.visit(module);
        }
    }
    search.found.sort();
    search.found
}

struct Search<'a> {
    graph: &'a Graph,
    /// When each module was first seen.
    seen: BTreeMap<&'a str, usize>,
    /// Modules whose circle is not complete.
    stack: Vec<&'a str>,
    found: Vec<Vec<String>>,
}

impl<'a> Search<'a> {
    /// Returns the earliest module on the stack that `module` leads to.
    fn visit(&mut self, module: &'a str) -> usize {
        let number = self.seen.len();
        self.seen.insert(module, number);
        let depth = self.stack.len();
        self.stack.push(module);
        let mut earliest = number;
        let graph = self.graph;
        for next in graph.get(module).into_iter().flatten() {
            match self.seen.get(next.as_str()) {
                None => earliest = earliest.min(self.visit(next)),
                Some(seen) if self.stack.contains(&next.as_str()) => earliest = earliest.min(*seen),
                Some(_) => {}
            }
        }
        if earliest == number {
            let mut circle: Vec<String> = self.stack.drain(depth..).map(str::to_owned).collect();
            circle.sort();
            if circle.len() > 1 {
                self.found.push(circle);
            }
        }
        earliest
    }
}

/// The words and signs of a source text, without comments, strings and characters. A sign is one
/// character, except `::`.
fn tokens(text: &str) -> Vec<&str> {
    let mut tokens = Vec::new();
    let mut rest = text;
    while let Some(first) = rest.chars().next() {
        let (len, kept) = match first {
            '/' if rest.starts_with("//") => (rest.find('\n').unwrap_or(rest.len()), false),
            '/' if rest.starts_with("/*") => (block_comment(rest), false),
            '"' => (string(rest), false),
            '\'' => (character(rest), false),
            ':' if rest.starts_with("::") => (2, true),
            _ if first.is_alphanumeric() || first == '_' => match word(rest) {
                // A raw string: `r"`, `br#"`, `cr##"`.
                word if rest[..word].ends_with('r') && raw_string(&rest[word..]).is_some() => {
                    (word + raw_string(&rest[word..]).unwrap_or(0), false)
                }
                word => (word, true),
            },
            _ => (first.len_utf8(), !first.is_whitespace()),
        };
        let (token, after) = rest.split_at(len);
        if kept {
            tokens.push(token);
        }
        rest = after;
    }
    tokens
}

fn word(text: &str) -> usize {
    text.find(|c: char| !(c.is_alphanumeric() || c == '_')).unwrap_or(text.len())
}

/// The length of a comment, which may have others in it.
fn block_comment(text: &str) -> usize {
    let (mut depth, mut at) = (0, 0);
    while at < text.len() {
        match text.as_bytes().get(at..at + 2) {
            Some(b"/*") => (depth, at) = (depth + 1, at + 2),
            Some(b"*/") if depth == 1 => return at + 2,
            Some(b"*/") => (depth, at) = (depth - 1, at + 2),
            _ => at += 1,
        }
    }
    text.len()
}

/// The length of a string in quotes.
fn string(text: &str) -> usize {
    let mut escaped = true;
    for (at, c) in text.char_indices() {
        match c {
            _ if escaped => escaped = false,
            '\\' => escaped = true,
            '"' => return at + 1,
            _ => {}
        }
    }
    text.len()
}

/// The length of what follows the `r` of a raw string; `None` when that is none.
fn raw_string(text: &str) -> Option<usize> {
    let hashes = text.find(|c| c != '#')?;
    let end = format!("\"{}", &text[..hashes]);
    let body = text[hashes..].strip_prefix('"')?;
    Some(hashes + 1 + body.find(&end).map_or(body.len(), |at| at + end.len()))
}

/// The length of a character, or of the quote before a lifetime.
fn character(text: &str) -> usize {
    let mut chars = text.char_indices().skip(1);
    match chars.next() {
        Some((_, '\\')) => {
            chars.next();
            chars.find(|(_, c)| *c == '\'').map_or(text.len(), |(at, _)| at + 1)
        }
        Some(_) => match chars.next() {
            Some((at, '\'')) => at + 1,
            _ => 1,
        },
        None => 1,
    }
}

/// Removes what is compiled for tests only: items after an attribute `cfg` with the word `test`.
/// Returns the names of modules among them.
fn remove_tests(tokens: &mut Vec<&str>) -> Vec<String> {
    let mut modules = Vec::new();
    let mut at = 0;
    while at < tokens.len() {
        if !tokens[at..].starts_with(&["#", "[", "cfg", "("]) {
            at += 1;
            continue;
        }
        let attribute = at + 1 + group(&tokens[at + 1..]);
        let words = &tokens[at..attribute];
        if !words.contains(&"test") || words.contains(&"not") {
            at = attribute;
            continue;
        }
        let item = &tokens[attribute..];
        let end = attribute + item_len(item);
        if let Some(["mod", name]) = item.get(..2) {
            modules.push((*name).to_owned());
        }
        tokens.drain(at..end);
    }
    modules
}

/// The number of tokens of an item: up to its semicolon, or to the end of its braces.
fn item_len(tokens: &[&str]) -> usize {
    let mut at = 0;
    while let Some(token) = tokens.get(at) {
        match *token {
            ";" => return at + 1,
            "{" => return at + group(&tokens[at..]),
            "(" | "[" => at += group(&tokens[at..]),
            _ => at += 1,
        }
    }
    at
}

/// The number of tokens from an opening bracket to the closing one.
fn group(tokens: &[&str]) -> usize {
    let mut depth = 0usize;
    for (at, token) in tokens.iter().enumerate() {
        match *token {
            "(" | "[" | "{" => depth += 1,
            ")" | "]" | "}" => depth = depth.saturating_sub(1),
            _ => {}
        }
        if depth == 0 {
            return at + 1;
        }
    }
    tokens.len()
}

/// All paths that begin with `crate` or `super`; a tree in braces is as many as it has leaves.
fn imports(tokens: &[&str]) -> Vec<Vec<String>> {
    let mut found = Vec::new();
    let mut at = 0;
    while at < tokens.len() {
        if matches!(tokens[at], "crate" | "super") && tokens.get(at + 1) == Some(&"::") {
            at += tree(&tokens[at..], &[], &mut found);
        } else {
            at += 1;
        }
    }
    found
}

/// Adds the paths of a tree below `base`; returns its number of tokens.
fn tree(tokens: &[&str], base: &[String], found: &mut Vec<Vec<String>>) -> usize {
    let mut path = base.to_vec();
    let mut at = 0;
    loop {
        match tokens.get(at) {
            Some(&"{") => {
                let end = at + group(&tokens[at..]);
                at += 1;
                while at + 1 < end {
                    at += tree(&tokens[at..end - 1], &path, found).max(1);
                    // What may follow a name: `as other`, and the comma.
                    while at + 1 < end && tokens[at] != "," {
                        at += 1;
                    }
                    at += 1;
                }
                return end;
            }
            Some(&name) if name.starts_with(|c: char| c.is_alphabetic() || c == '_') => {
                // `self` in braces is what stands before them.
                if name != "self" {
                    path.push(name.to_owned());
                }
                at += 1;
                if tokens.get(at) != Some(&"::") {
                    break;
                }
                at += 1;
            }
            _ => break,
        }
    }
    found.push(path);
    at
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The graph of a small crate, as `module: its imports`.
    fn small(files: &[(&str, &str)]) -> Graph {
        let texts = files.iter().map(|(name, text)| ((*name).to_owned(), (*text).to_owned()));
        graph(&texts.collect())
    }

    fn edges(graph: &Graph, module: &str) -> Vec<String> {
        graph[module].iter().cloned().collect()
    }

    #[test]
    fn paths_lead_to_the_innermost_module() {
        let graph = small(&[
            ("hash", "use crate::slots::Slot; fn f() { crate::shm::page::get::<u8>() }"),
            ("hash/table", "use super::Hash; use super::super::slots; use super::walk::Walk;"),
            ("hash/walk", "use crate::Error; pub use super::table::{self, Table};"),
            ("shm", ""),
            ("shm/page", "type T = super::super::hash::Hash;"),
            ("slots", "use std::collections::hash_map; use super::shm as memory;"),
        ]);
        assert_eq!(edges(&graph, "hash"), ["shm/page", "slots"]);
        assert_eq!(edges(&graph, "hash/table"), ["hash", "hash/walk", "slots"]);
        assert_eq!(edges(&graph, "hash/walk"), ["hash/table"]);
        assert_eq!(edges(&graph, "shm/page"), ["hash"]);
        assert_eq!(edges(&graph, "slots"), ["shm"]);
    }

    #[test]
    fn trees_have_many_leaves() {
        let all = "use crate::{a::{self, b::{C, D as E}}, c::*, d as e, f::g,};\nuse crate::h;";
        let paths: Vec<String> = imports(&tokens(all)).iter().map(|p| p.join("::")).collect();
        assert_eq!(
            paths,
            [
                "crate::a",
                "crate::a::b::C",
                "crate::a::b::D",
                "crate::c",
                "crate::d",
                "crate::f::g",
                "crate::h"
            ]
        );
    }

    #[test]
    fn comments_strings_and_tests_do_not_count() {
        let graph = small(&[
            (
                "a",
                r##"
                // crate::b
                /* crate::b /* nested */ crate::b */
                const TEXT: &str = "crate::b \" crate::b";
                const RAW: &str = r#"crate::b " crate::b"#;
                fn f<'a>(c: &'a char) -> bool { *c == '"' || *c == '\'' || c.is_c("//") }
                use crate::c;
                #[cfg(all(test, unix))]
                use crate::b;
                #[cfg(not(test))]
                use crate::e;
                #[cfg(test)]
                mod oracle;
                #[cfg(test)]
                mod tests { use crate::b; mod more { use crate::b; } }
                use crate::d;
                "##,
            ),
            ("a/oracle", "use crate::b;"),
            ("b", ""),
            ("c", ""),
            ("d", ""),
            ("e", ""),
        ]);
        assert_eq!(edges(&graph, "a"), ["c", "d", "e"]);
        assert!(!graph.contains_key("a/oracle"));
    }

    #[test]
    fn a_circle_has_all_that_lead_to_each_other() {
        let graph = small(&[
            ("a", "use crate::b;"),
            ("b", "use crate::c;"),
            ("c", "use crate::{a, d};"),
            ("d", "use crate::e;"),
            ("e", "use crate::{d, f};"),
            ("f", "use crate::f::F;"),
        ]);
        let circles = circles(&graph);
        assert_eq!(circles, [vec!["a", "b", "c"], vec!["d", "e"]]);
        assert_eq!(
            describe("small", &circles[0], &graph),
            "`small`: 3 files in a circle of imports:\n    a -> b\n    b -> c\n    c -> a"
        );
    }

    #[test]
    fn exceptions_are_crates() {
        for (name, _) in EXCEPTIONS {
            assert!(root().join(name).is_dir(), "{name}");
        }
    }
}
