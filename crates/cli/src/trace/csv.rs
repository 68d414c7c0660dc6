//! `skep trace --csv`: the functions for spreadsheets and data frames, as RFC 4180 has it.

use std::borrow::Cow;
use std::io::{self, Write};

use crate::report::{Function, Row};

/// The first line, behind `function`.
const COLUMNS: &str =
    "module,calls,total_ns,self_ns,p50_ns,p99_ns,error_ns,self_error_ns,running,path,symbol";

/// Writes a line of names, and one for each function. What is not known is empty.
pub fn write(out: &mut dyn Write, rows: &[Row<'_>], by_caller: bool) -> io::Result<()> {
    let caller = if by_caller { "caller," } else { "" };
    write!(out, "function,{caller}{COLUMNS}\r\n")?;
    for row in rows {
        let f = Function::from(row);
        write!(out, "{}", field(f.name))?;
        if by_caller {
            write!(out, ",{}", field(f.caller.flatten().unwrap_or_default()))?;
        }
        write!(out, ",{}", field(f.module))?;
        for number in [Some(f.calls), f.total_ns, f.self_ns, f.p50_ns, f.p99_ns] {
            match number {
                Some(number) => write!(out, ",{number}")?,
                None => write!(out, ",")?,
            }
        }
        write!(out, ",{},{},{}", f.error_ns, f.self_error_ns, f.running)?;
        write!(out, ",{},{}\r\n", field(f.path), field(row.symbol))?;
    }
    Ok(())
}

/// A field; in quotes where it has what would end it.
fn field(text: &str) -> Cow<'_, str> {
    if text.contains([',', '"', '\r', '\n']) {
        format!("\"{}\"", text.replace('"', "\"\"")).into()
    } else {
        text.into()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn fields_end_where_they_end() {
        let got = ["a", "f(int, char)", "operator\"\"_s", "a\nb", "", "a b"].map(field);
        let want = ["a", "\"f(int, char)\"", "\"operator\"\"\"\"_s\"", "\"a\nb\"", "", "a b"];
        assert_eq!(got.map(Cow::into_owned), want.map(str::to_owned));
    }
}
