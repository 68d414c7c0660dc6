//! The commands that README.md gives, which are run as they stand there.

use anyhow::{Context, Result, bail};

use crate::root;

/// The first block of "Try it": builds the command and traces something.
pub fn try_command() -> Result<String> {
    block_after(&text()?, "## Try it")
}

/// The block after the `ci:test` mark, the same one that `.ci/run` takes.
pub fn test_command() -> Result<String> {
    block_after(&text()?, "<!-- ci:test -->")
}

fn text() -> Result<String> {
    std::fs::read_to_string(root().join("README.md")).context("cannot read `README.md`")
}

/// The first code block after `mark`.
fn block_after(readme: &str, mark: &str) -> Result<String> {
    let (_, after) =
        readme.split_once(mark).with_context(|| format!("README.md has no `{mark}`"))?;
    let block = after
        .split("```")
        .nth(1)
        .with_context(|| format!("README.md has no code block after `{mark}`"))?;
    let command = block.split_once('\n').map_or("", |(_, command)| command).trim();
    if command.is_empty() {
        bail!("the code block after `{mark}` in README.md is empty");
    }
    Ok(command.to_owned())
}

#[cfg(test)]
mod tests {
    use super::{block_after, test_command, try_command};

    #[test]
    fn a_command_is_the_block_after_its_mark() {
        let readme =
            "# x\n```sh\nother\n```\n<!-- ci:test -->\n```sh\ncargo test --workspace\n```\n";
        assert_eq!(block_after(readme, "<!-- ci:test -->").unwrap(), "cargo test --workspace");
        assert!(
            block_after("# x\n", "## Try it").unwrap_err().to_string().contains("no `## Try it`")
        );
        assert!(
            block_after("## Try it\n```sh\n\n```\n", "## Try it")
                .unwrap_err()
                .to_string()
                .contains("is empty")
        );
    }

    #[test]
    fn the_readme_has_both() {
        assert!(test_command().unwrap().starts_with("cargo test"));
        let try_it = try_command().unwrap();
        assert!(try_it.starts_with("cargo run --release -- trace "), "{try_it}");
        assert_eq!(try_it.lines().count(), 1, "{try_it}");
    }
}
