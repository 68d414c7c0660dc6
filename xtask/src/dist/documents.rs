//! The pages that are installed: README.md, CHANGELOG.md, all of `docs/`, and what these link to, in the
//! folders that they have here, so that links lead somewhere. Programs come with their objects.

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result};

use crate::links::{links, plain};
use crate::{files_below, root};

/// Copies them into a folder.
pub fn write(to: &Path) -> Result<()> {
    for file in files()? {
        let copy = to.join(&file);
        fs::create_dir_all(copy.parent().context("a path without a directory")?)?;
        fs::copy(root().join(&file), &copy).with_context(|| format!("`{}`", file.display()))?;
    }
    Ok(())
}

/// What is installed, by its path below the root.
fn files() -> Result<BTreeSet<PathBuf>> {
    let below = |dir: &str| files_below(&root().join(dir), &|_| true);
    let mut todo = [below("docs")?, below("gallery")?].concat();
    todo.extend(["README.md", "CHANGELOG.md"].map(|file| root().join(file)));
    let mut all = BTreeSet::new();
    while let Some(path) = todo.pop() {
        if path.is_dir() {
            todo.extend(of_folder(&path)?);
            continue;
        }
        if !all.insert(path.strip_prefix(root())?.to_path_buf()) {
            continue;
        }
        let name = path.to_string_lossy();
        if let Some(program) = name.strip_suffix(".bpf.c") {
            todo.extend(Some(PathBuf::from(format!("{program}.bpf.o"))).filter(|o| o.exists()));
        }
        if name.ends_with(".md") {
            let folder = path.parent().context("a path without a directory")?;
            let text = fs::read_to_string(&path)?;
            todo.extend(links(&text).map(|link| plain(&folder.join(link))).filter(|p| p.exists()));
        }
    }
    Ok(all)
}

/// What stands for a folder that a page links to: its files, and its page alone if it is a crate's.
fn of_folder(folder: &Path) -> Result<Vec<PathBuf>> {
    if folder.join("Cargo.toml").exists() {
        return Ok(vec![folder.join("README.md")]);
    }
    let mut files = Vec::new();
    for entry in fs::read_dir(folder)? {
        let path = entry?.path();
        if path.is_file() {
            files.push(path);
        }
    }
    Ok(files)
}

#[cfg(test)]
mod tests {
    use skep_testkit::TempDir;

    use super::*;

    /// A reader of the package gets to where a reader of the repository gets.
    #[test]
    fn links_of_installed_pages_lead_somewhere() {
        let dir = TempDir::new();
        write(dir.path()).unwrap();
        let mut count = 0;
        for page in
            files_below(dir.path(), &|path| path.extension().is_some_and(|e| e == "md")).unwrap()
        {
            let folder = page.parent().unwrap();
            let here = root().join(folder.strip_prefix(dir.path()).unwrap());
            for link in links(&fs::read_to_string(&page).unwrap()) {
                if here.join(link).exists() {
                    count += 1;
                    assert!(folder.join(link).exists(), "{}: {link}", page.display());
                }
            }
        }
        assert!(count > 200, "{count}");
        for file in [
            "gallery/callers.bpf.o",
            "gallery/targets/leaks.c",
            "crates/skep/tests/data/chain.bpf.o",
        ] {
            assert!(dir.join(file).exists(), "{file}");
        }
        assert!(!dir.join("crates/proc/Cargo.toml").exists());
    }
}
