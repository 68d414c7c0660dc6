//! `cargo xtask book`: what `mdbook build` runs on the pages, since it knows files of `docs/` only. What
//! pages link to outside of that folder gets pages of its own at the book's end, and links lead there.

use std::collections::BTreeSet;
use std::io::Read;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, bail};
use serde_json::{Value, json};

use crate::links::{links, plain};
use crate::root;

/// Folder of the pages of files, in the book.
const FILES: &str = "files";

/// Reads a book as mdbook gives it to a preprocessor, and writes it with pages of files.
pub fn run(args: &[&str]) -> Result<()> {
    match args {
        ["supports", renderer] if *renderer == "html" => return Ok(()),
        ["supports", renderer] => bail!("`{renderer}` has no pages"),
        [] => {}
        _ => bail!("`mdbook build` runs this"),
    }
    let mut text = String::new();
    std::io::stdin().read_to_string(&mut text)?;
    let mut book: Value = serde_json::from_str(&text).context("no book from mdbook")?;
    let mut book = book.get_mut(1).context("no book")?.take();
    // Up to mdbook 0.4 the list has another name.
    let key = if book["items"].is_array() { "items" } else { "sections" };
    let mut linked = BTreeSet::new();
    let items = book[key].as_array_mut().context("a book without pages")?;
    items.iter_mut().for_each(|item| lead(item, &mut linked));
    items.push(json!({ "PartTitle": "Files" }));
    items.push(json!({ "Chapter": of_files(linked)? }));
    println!("{book}");
    Ok(())
}

/// Makes links of a page, and of those below it, lead to pages of files, and notes which.
fn lead(item: &mut Value, linked: &mut BTreeSet<PathBuf>) {
    let Some(chapter) = item.get_mut("Chapter") else { return };
    if let (Some(path), Some(text)) = (chapter["path"].as_str(), chapter["content"].as_str()) {
        let (text, files) = rewritten(text, &Path::new("docs").join(path), Path::new(path));
        chapter["content"] = text.into();
        linked.extend(files);
    }
    if let Some(items) = chapter["sub_items"].as_array_mut() {
        items.iter_mut().for_each(|item| lead(item, linked));
    }
}

/// The text of a page that is the file `source`, and is at `place` in the book, with links to pages of the
/// files outside of `docs/`, and these files.
fn rewritten(text: &str, source: &Path, place: &Path) -> (String, BTreeSet<PathBuf>) {
    let (mut out, mut files) = (text.to_owned(), BTreeSet::new());
    let up = "../".repeat(place.components().count() - 1);
    for link in links(text).map(str::to_owned).collect::<BTreeSet<_>>() {
        let mut file = plain(&source.parent().unwrap_or(Path::new("")).join(&link));
        if file.as_os_str().is_empty() {
            file.push("README.md");
        }
        if !root().join(&file).exists() {
            continue;
        }
        // mdbook has the pages and the pictures of `docs/`.
        let to = match file.strip_prefix("docs") {
            Ok(page) if source.starts_with("docs") => page.display().to_string(),
            Ok(page) => format!("{up}{}", page.display()),
            Err(_) => {
                let to = format!("{up}{}", page_of(&file).display());
                files.insert(file.clone());
                to
            }
        };
        if source.starts_with("docs") && file.starts_with("docs") {
            continue;
        }
        for end in [")", "#"] {
            out = out.replace(&format!("]({link}{end}"), &format!("]({to}{end}"));
        }
    }
    (out, files)
}

/// Where the page of a file is in the book.
fn page_of(file: &Path) -> PathBuf {
    PathBuf::from(format!("{FILES}/{}.md", file.display()))
}

/// The chapter with a page for each of these files, and for those that their pages link to.
fn of_files(linked: BTreeSet<PathBuf>) -> Result<Value> {
    let mut todo: Vec<PathBuf> = linked.into_iter().collect();
    let (mut seen, mut pages) = (BTreeSet::new(), Vec::new());
    while let Some(file) = todo.pop() {
        if !seen.insert(file.clone()) {
            continue;
        }
        let place = page_of(&file);
        let (text, files) = rewritten(&page(&file)?, &source_of(&file), &place);
        todo.extend(files);
        pages.push((file, place, text));
    }
    pages.sort();
    let chapter = |name: &str, place: &Path, text: &str, items: Vec<Value>| {
        json!({
            "name": name, "content": text, "number": null, "sub_items": items,
            "path": place, "source_path": null, "parent_names": [],
        })
    };
    let one = |(file, place, text): &(PathBuf, PathBuf, String)| json!({ "Chapter": chapter(&file.display().to_string(), place, text, Vec::new()) });
    let list = pages.iter().map(|(file, place, _)| {
        format!(
            "- [{}]({})\n",
            file.display(),
            place.strip_prefix(FILES).unwrap_or(place).display()
        )
    });
    let text = format!("# Files that pages link to\n\n{}", list.collect::<String>());
    let all = pages.iter().map(one).collect();
    Ok(chapter("Files that pages link to", &Path::new(FILES).join("all.md"), &text, all))
}

/// The file that links of a page count from: a list of a folder's files lies in the folder.
fn source_of(file: &Path) -> PathBuf {
    if root().join(file).is_dir() { file.join("list") } else { file.to_owned() }
}

/// What the page of a file has: the page that it is, its text, or the files of a folder.
fn page(file: &Path) -> Result<String> {
    let (path, name) = (root().join(file), file.display());
    if path.is_dir() {
        let mut files = Vec::new();
        for entry in std::fs::read_dir(&path)? {
            let entry = entry?;
            let name = entry.file_name().to_string_lossy().into_owned();
            let is_text = entry.file_type()?.is_file()
                && !name.contains("LICENSE")
                && std::fs::read_to_string(entry.path()).is_ok();
            files.extend(is_text.then(|| format!("- [{name}]({name})\n")));
        }
        files.sort();
        return Ok(format!("# {name}\n\n{}", files.concat()));
    }
    let text = std::fs::read_to_string(&path).with_context(|| format!("`{name}`"))?;
    Ok(match file.extension().and_then(|e| e.to_str()) {
        Some("md") => text,
        kind => {
            let language = match kind {
                Some("h") => "c",
                Some("rs") => "rust,ignore",
                other => other.unwrap_or(""),
            };
            format!("# {name}\n\n````{language}\n{}\n````\n", text.trim_end())
        }
    })
}

#[cfg(test)]
mod tests {
    use crate::files_below;

    use super::*;

    /// Whoever follows a link of the book gets somewhere, as does a reader of the repository.
    #[test]
    fn links_of_the_book_lead_somewhere() {
        let docs = root().join("docs");
        let mut linked = BTreeSet::new();
        let (mut there, mut pages) = (BTreeSet::new(), Vec::new());
        for path in files_below(&docs, &|_| true).unwrap() {
            let place = path.strip_prefix(&docs).unwrap().to_path_buf();
            if path.extension().is_some_and(|e| e == "md") {
                let text = std::fs::read_to_string(&path).unwrap();
                let mut item = json!({ "Chapter": { "path": place, "content": text } });
                lead(&mut item, &mut linked);
                pages
                    .push((place.clone(), item["Chapter"]["content"].as_str().unwrap().to_owned()));
            }
            there.insert(place);
        }
        let files = of_files(linked).unwrap();
        for item in
            [json!({ "Chapter": files })].iter().chain(files["sub_items"].as_array().unwrap())
        {
            let chapter = &item["Chapter"];
            let place = PathBuf::from(chapter["path"].as_str().unwrap());
            pages.push((place.clone(), chapter["content"].as_str().unwrap().to_owned()));
            there.insert(place);
        }
        let mut count = 0;
        for (place, text) in &pages {
            for link in links(text).filter(|link| link.ends_with(".md") || link.starts_with("../"))
            {
                count += 1;
                let to = plain(&place.parent().unwrap().join(link));
                assert!(there.contains(&to), "{}: {link}", place.display());
            }
        }
        assert!(count > 300 && there.contains(&page_of(Path::new("ARCHITECTURE.md"))), "{count}");
    }
}
