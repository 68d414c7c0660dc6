//! The links of pages.

use std::path::{Component, Path, PathBuf};

/// The files that a page links to, relative to its folder, with some words that are no links: code has brackets
/// and parentheses, too.
pub fn links(page: &str) -> impl Iterator<Item = &str> {
    page.split("](")
        .skip(1)
        .filter_map(|rest| rest.split(')').next()?.split('#').next())
        .filter(|file| !file.is_empty() && !file.contains([' ', ':', '&', '"', '<']))
}

/// A path without `..`.
pub fn plain(path: &Path) -> PathBuf {
    let mut out = PathBuf::new();
    for part in path.components() {
        if part == Component::ParentDir {
            out.pop();
        } else {
            out.push(part);
        }
    }
    out
}

#[cfg(test)]
mod tests {
    use crate::{files_below, root};

    use super::*;

    /// Every page is in the book, and what pages link to is there.
    #[test]
    fn pages_are_in_the_book_and_links_lead_somewhere() {
        let is_page = |path: &Path| path.extension().is_some_and(|e| e == "md");
        let mut pages = files_below(&root().join("docs"), &is_page).unwrap();
        let book = std::fs::read_to_string(root().join("docs/SUMMARY.md")).unwrap();
        for page in &pages {
            let name = page.strip_prefix(root().join("docs")).unwrap().display().to_string();
            assert!(name == "SUMMARY.md" || book.contains(&format!("]({name})")), "{name}");
        }
        let others = ["README.md", "ARCHITECTURE.md", "DEVELOPING.md", "crates/test/README.md"];
        pages.extend(others.map(|name| root().join(name)));
        let (mut count, mut broken) = (0, Vec::new());
        for page in pages {
            let text = std::fs::read_to_string(&page).unwrap();
            for file in links(&text).filter(|file| file.contains('.')) {
                count += 1;
                if !page.parent().unwrap().join(file).exists() {
                    broken.push(format!("{}: {file}", page.display()));
                }
            }
        }
        assert!(broken.is_empty() && count > 100, "{count} links, {broken:#?}");
    }
}
