//! `pass=ok.pcapng,drop=bad.pcap`: which verdicts go to which file.

use std::path::PathBuf;

use crate::port::verdict::Verdict;

/// A file, and which frames it gets.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Part {
    /// For each kind of verdict, by its number, whether its frames go there.
    pub verdicts: [bool; Verdict::KINDS],
    /// The file; `-` is standard output.
    pub path: PathBuf,
}

/// Says what is wrong in a list of parts.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
#[non_exhaustive]
pub enum SplitError {
    /// A part of it names no file.
    #[error("`{part}` names no file; write `VERDICT=FILE`, several with commas between")]
    NoFile {
        /// Which part.
        part: String,
    },
    /// A part names a verdict that there is not.
    #[error(
        "there is no verdict `{verdict}`; there are {}, and `*` for those without a file",
        Verdict::NAMES.join(", ")
    )]
    Verdict {
        /// The word that is no verdict.
        verdict: String,
    },
    /// A verdict would go to two files.
    #[error("the verdict `{verdict}` has two files")]
    Twice {
        /// Which verdict.
        verdict: String,
    },
}

/// Reads a list of files: `VERDICT=FILE`, several with commas between. Verdicts are `pass`,
/// `drop`, `tx`, `redirect` and `aborted`, several for one file with `+` between, or `*` for all
/// that the list does not name. A file without verdicts is for frames that go on: `pass`, `tx` and
/// `redirect`.
///
/// ```
/// use skep_net::port::capture::split::parse;
///
/// let parts = parse("pass+tx=ok.pcapng,*=rest.pcap")?;
/// assert_eq!(parts[0].verdicts, [false, false, true, true, false]);
/// assert_eq!(parts[1].verdicts, [true, true, false, false, true]);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
///
/// # Errors
/// When a part names no file, or a verdict is unknown or named twice.
pub fn parse(list: &str) -> Result<Vec<Part>, SplitError> {
    let mut named = [false; Verdict::KINDS];
    let (mut parts, mut rest) = (Vec::new(), None);
    for text in list.split(',') {
        let no_file = || SplitError::NoFile { part: text.to_owned() };
        let (words, path) = text.split_once('=').unwrap_or(("pass+tx+redirect", text));
        if path.is_empty() {
            return Err(no_file());
        }
        let mut verdicts = [false; Verdict::KINDS];
        for word in words.split('+') {
            let twice = || SplitError::Twice { verdict: word.to_owned() };
            if word == "*" {
                if rest.replace(parts.len()).is_some() {
                    return Err(twice());
                }
                continue;
            }
            let kind = Verdict::NAMES.iter().position(|name| *name == word);
            let kind = kind.ok_or_else(|| SplitError::Verdict { verdict: word.to_owned() })?;
            if std::mem::replace(&mut named[kind], true) {
                return Err(twice());
            }
            verdicts[kind] = true;
        }
        parts.push(Part { verdicts, path: PathBuf::from(path) });
    }
    if let Some(part) = rest.and_then(|index: usize| parts.get_mut(index)) {
        for (verdict, named) in part.verdicts.iter_mut().zip(named) {
            *verdict |= !named;
        }
    }
    Ok(parts)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn files(list: &str) -> Vec<(String, String)> {
        let names = |o: &Part| {
            let of = o.verdicts.iter().zip(Verdict::NAMES).filter(|(on, _)| **on);
            (of.map(|(_, n)| n).collect::<Vec<_>>().join(" "), o.path.display().to_string())
        };
        parse(list).map(|all| all.iter().map(names).collect()).unwrap_or_else(|e| panic!("{e}"))
    }

    fn pair(a: &str, b: &str) -> (String, String) {
        (a.to_owned(), b.to_owned())
    }

    #[test]
    fn verdicts_are_split_over_files() {
        assert_eq!(
            files("pass=ok.pcapng,drop=bad.pcap"),
            [pair("pass", "ok.pcapng"), pair("drop", "bad.pcap")]
        );
        assert_eq!(files("-"), [pair("pass tx redirect", "-")]);
        assert_eq!(files("*=a=b"), [pair("aborted drop pass tx redirect", "a=b")]);
        assert_eq!(
            files("*=rest,pass=p"),
            [pair("aborted drop tx redirect", "rest"), pair("pass", "p")]
        );
        assert_eq!(files("drop+*=rest,pass=p")[0].0, "aborted drop tx redirect");
        assert_eq!(files("a.pcap,drop=b.pcap")[1], pair("drop", "b.pcap"));
    }

    #[test]
    fn what_is_wrong_is_said_in_one_line() {
        let error = |list| parse(list).expect_err(list).to_string();
        assert_eq!(
            error("pass="),
            "`pass=` names no file; write `VERDICT=FILE`, several with commas between"
        );
        assert_eq!(error("").split(';').next(), Some("`` names no file"));
        assert_eq!(
            error("accept=x"),
            "there is no verdict `accept`; there are aborted, drop, pass, tx, redirect, and `*` \
             for those without a file"
        );
        assert_eq!(error("pass=a,pass=b"), "the verdict `pass` has two files");
        assert_eq!(error("x.pcap,tx=b"), "the verdict `tx` has two files");
        assert_eq!(error("*=a,*=b"), "the verdict `*` has two files");
    }
}
