//! Results as JUnit XML, which services for continuous integration read.

use std::io::{self, Write};

use super::case::Done;

/// Text of an attribute or element. Characters that XML has no place for become `?`.
pub fn escaped(text: &str) -> String {
    let mut out = String::new();
    for c in text.chars() {
        match c {
            '&' => out.push_str("&amp;"),
            '<' => out.push_str("&lt;"),
            '>' => out.push_str("&gt;"),
            '"' => out.push_str("&quot;"),
            '\n' => out.push_str("&#10;"),
            '\t' => out.push_str("&#9;"),
            c if c.is_control() || matches!(c, '\u{fffe}' | '\u{ffff}') => out.push('?'),
            c => out.push(c),
        }
    }
    out
}

/// Writes a document with one suite for each file.
pub fn write(out: &mut dyn Write, all: &[Done]) -> io::Result<()> {
    writeln!(out, "<?xml version=\"1.0\" encoding=\"UTF-8\"?>\n<testsuites>")?;
    for suite in all.chunk_by(|a, b| a.file == b.file) {
        let failed = suite.iter().filter(|d| !d.problems.is_empty()).count();
        let seconds: f64 = suite.iter().map(|d| d.took.as_secs_f64()).sum();
        let file = suite.first().map(|d| d.file.display().to_string()).unwrap_or_default();
        let file = escaped(&file);
        // The schema of Jenkins has milliseconds here.
        writeln!(
            out,
            "  <testsuite name=\"{file}\" tests=\"{}\" failures=\"{failed}\" errors=\"0\" skipped=\"0\" time=\"{seconds:.3}\">",
            suite.len()
        )?;
        for done in suite {
            let (name, took) = (escaped(&done.name), done.took.as_secs_f64());
            write!(out, "    <testcase classname=\"{file}\" name=\"{name}\" time=\"{took:.6}\"")?;
            match done.problems.first() {
                None => writeln!(out, "/>")?,
                Some(first) => {
                    let first = escaped(first.lines().next().unwrap_or_default());
                    let whole = escaped(&done.problems.join("\n")).replace("&#10;", "\n");
                    writeln!(
                        out,
                        ">\n      <failure type=\"failed\" message=\"{first}\">{whole}</failure>\n    </testcase>"
                    )?;
                }
            }
        }
        writeln!(out, "  </testsuite>")?;
    }
    writeln!(out, "</testsuites>")
}
