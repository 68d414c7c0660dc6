//! `cargo xtask picture`: the terminal of the README, `docs/terminal.svg`, drawn of what the README's
//! first command really prints. The command's own output, which is `ls`'s, is left out.

use std::path::Path;
use std::process::Command;

use anyhow::{Context, Result, bail};

use crate::{readme, root};

/// Sizes in pixels: of a character, of a line, around the text, of the bar above.
const CHARACTER: f64 = 8.4;
const LINE: usize = 19;
const MARGIN: usize = 16;
const BAR: usize = 30;

/// Lines of the notes that are shown.
const NOTES: usize = 6;

/// Draws the picture.
pub fn run(args: &[&str]) -> Result<()> {
    if !args.is_empty() {
        bail!("usage: cargo xtask picture");
    }
    let words = words(&readme::try_command()?)?;
    let report = std::env::temp_dir().join(format!("skep-picture-{}", std::process::id()));
    let done = Command::new(skep_testkit::trace::skep_bin())
        .args(words.first())
        .arg("-o")
        .arg(&report)
        .args(&words[1..])
        .env_remove("SKEP_DIR")
        .output()
        .context("cannot run `skep`")?;
    let table = std::fs::read_to_string(&report).context("no report");
    std::fs::remove_file(&report).ok();
    if !done.status.success() {
        bail!("`skep` failed: {}", String::from_utf8_lossy(&done.stderr));
    }
    let mut lines = vec![format!("$ skep {}", shell(&words)), "…".to_owned()];
    lines.extend(table?.lines().map(str::to_owned));
    let notes = String::from_utf8_lossy(&done.stderr).into_owned();
    let all: Vec<&str> = notes.lines().collect();
    let (head, tail) = all.split_at(all.len().min(NOTES / 2));
    lines.extend(head.iter().map(|l| (*l).to_owned()));
    if tail.len() > NOTES / 2 {
        lines.push("…".to_owned());
    }
    let shown = tail.len().saturating_sub(NOTES - NOTES / 2);
    lines.extend(tail[shown..].iter().map(|l| (*l).to_owned()));
    let path = root().join("docs/terminal.svg");
    std::fs::write(&path, svg(&lines)).with_context(|| format!("`{}`", path.display()))?;
    println!("wrote {}", path.strip_prefix(root()).unwrap_or(Path::new("")).display());
    Ok(())
}

/// The words behind `skep`, as the shell splits the README's line: `cargo run --release -- WORDS`.
fn words(line: &str) -> Result<Vec<String>> {
    let (_, line) = line.split_once(" -- ").context("the README's command has no ` -- `")?;
    let quoted = line.split('\'').enumerate();
    let words = quoted.flat_map(|(n, part)| match n % 2 {
        1 => vec![part.to_owned()],
        _ => part.split_whitespace().map(str::to_owned).collect(),
    });
    Ok(words.collect())
}

fn shell(words: &[String]) -> String {
    let quoted = |w: &String| if w.contains('*') { format!("'{w}'") } else { w.clone() };
    words.iter().map(quoted).collect::<Vec<_>>().join(" ")
}

/// Draws lines as a terminal shows them.
fn svg(lines: &[String]) -> String {
    let widest = lines.iter().map(|l| l.chars().count()).max().unwrap_or(0).clamp(80, 120);
    let width = (widest as f64 * CHARACTER).ceil() as usize + 2 * MARGIN;
    let height = BAR + lines.len() * LINE + MARGIN;
    let mut out = format!(
        "<svg xmlns=\"http://www.w3.org/2000/svg\" width=\"{width}\" height=\"{height}\" viewBox=\"0 0 {width} {height}\" role=\"img\">\n\
         <title>{}</title>\n\
         <rect width=\"{width}\" height=\"{height}\" rx=\"8\" fill=\"#1e2227\"/>\n",
        escaped(lines.first().map_or("", String::as_str))
    );
    for (x, color) in [(20, "#ff5f57"), (40, "#febc2e"), (60, "#28c840")] {
        out.push_str(&format!("<circle cx=\"{x}\" cy=\"17\" r=\"6\" fill=\"{color}\"/>\n"));
    }
    out.push_str(
        "<g font-family=\"ui-monospace,SFMono-Regular,Menlo,Consolas,'DejaVu Sans Mono',monospace\" font-size=\"14\" fill=\"#d7dae0\" xml:space=\"preserve\" style=\"white-space:pre\">\n",
    );
    for (n, line) in lines.iter().enumerate() {
        let y = BAR + (n + 1) * LINE;
        let cut: String = line.chars().take(120).collect();
        let color = match n {
            0 => " fill=\"#98c379\"",
            _ if line.trim_start().starts_with("calls ") => " fill=\"#61afef\"",
            _ => "",
        };
        // The width is said, so that columns stand under each other with any font.
        let length = cut.chars().count() as f64 * CHARACTER;
        let length =
            if cut.is_empty() { String::new() } else { format!(" textLength=\"{length:.1}\"") };
        out.push_str(&format!(
            "<text x=\"{MARGIN}\" y=\"{y}\"{color}{length}>{}</text>\n",
            escaped(&cut)
        ));
    }
    out.push_str("</g>\n</svg>\n");
    out
}

fn escaped(text: &str) -> String {
    text.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn words_are_those_of_the_shell() {
        let line = "cargo run --release -- trace --limit 8 'libc.so.6:*' -- ls -l /usr/bin";
        let all = words(line).unwrap();
        assert_eq!(all, ["trace", "--limit", "8", "libc.so.6:*", "--", "ls", "-l", "/usr/bin"]);
        assert_eq!(shell(&all), "trace --limit 8 'libc.so.6:*' -- ls -l /usr/bin");
        assert!(words("cargo test").is_err());
    }

    #[test]
    fn lines_are_drawn_as_they_are() {
        let lines = ["$ skep", "a < b && c", ""].map(str::to_owned);
        let svg = svg(&lines);
        assert!(svg.contains(">a &lt; b &amp;&amp; c</text>"), "{svg}");
        assert_eq!(svg.matches("<text ").count(), 3);
        assert_eq!(svg.matches('<').count(), svg.matches('>').count());
    }

    /// The picture is of the command that the README gives.
    #[test]
    fn the_picture_shows_the_readmes_command() {
        let svg = std::fs::read_to_string(root().join("docs/terminal.svg")).unwrap();
        let line = format!("$ skep {}", shell(&words(&readme::try_command().unwrap()).unwrap()));
        assert!(svg.contains(&escaped(&line)), "{line}");
        assert!(svg.contains("matching functions attached"), "{svg}");
    }
}
