//! `skep trace --csv`: the functions for spreadsheets and data frames, as RFC 4180 has it.

use std::borrow::Cow;
use std::io::{self, Write};

use crate::report::{Function, Row};

/// The first line, behind `function`.
const COLUMNS: &str = "module,calls,total_ns,self_ns,p50_ns,p99_ns,entry_only,estimated,error_ns,self_error_ns,running,path,symbol";

/// Writes a line of names, and one for each row. What is not known is empty. `columns`: those that tell
/// the rows of a function apart.
pub fn write(out: &mut dyn Write, rows: &[&Row<'_>], columns: &[&str]) -> io::Result<()> {
    write!(out, "function,")?;
    columns.iter().try_for_each(|column| write!(out, "{column},"))?;
    write!(out, "{COLUMNS}\r\n")?;
    for row in rows {
        let f = Function::from(*row);
        write!(out, "{}", field(f.name))?;
        for column in columns {
            let number = |n: Option<u32>| n.map_or_else(String::new, |n| n.to_string()).into();
            let value: Cow<'_, str> = match *column {
                "caller" => field(f.caller.flatten().unwrap_or_default()),
                "pid" => number(f.pid),
                "tid" => number(f.tid),
                _ => field(f.comm.unwrap_or_default()),
            };
            write!(out, ",{value}")?;
        }
        write!(out, ",{}", field(f.module))?;
        for number in [Some(f.calls), f.total_ns, f.self_ns, f.p50_ns, f.p99_ns] {
            match number {
                Some(number) => write!(out, ",{number}")?,
                None => write!(out, ",")?,
            }
        }
        write!(out, ",{},{}", field(f.entry_only.unwrap_or_default()), f.estimated)?;
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
    use crate::report::{Figures, Part};
    use skep_text::fields::Text;

    /// `estimated` and `entry_only` were in JSON only.
    #[test]
    fn columns_are_the_members_of_json() -> io::Result<()> {
        let stat = Figures {
            calls: 4,
            total_ns: 0,
            self_ns: 0,
            error_ns: None,
            self_error_ns: None,
            running: 1,
            p50_ns: None,
            p99_ns: None,
        };
        let row = Row {
            name: "f(int)".into(),
            symbol: "_Z1fi",
            path: "/lib/x.so",
            entry_only: Some("it jumps, and returns elsewhere"),
            stat,
            part: Some(Part::Thread { pid: 1, tid: 2, name: "main" }),
        };
        let (mut out, mut json) = (Vec::new(), Text::default());
        Function::from(&row).write(&mut json);
        write(&mut out, &[&row], &["pid", "tid", "comm"])?;
        let text = String::from_utf8_lossy(&out);
        let (head, values) = text.split_once("\r\n").expect("two lines");
        let mut names: Vec<&str> = head.split(',').collect();
        names[0] = "name";
        names.sort_unstable();
        let members: serde_json::Map<String, serde_json::Value> =
            serde_json::from_slice(json.bytes())?;
        let mut members: Vec<&str> = members.keys().map(String::as_str).collect();
        members.sort_unstable();
        assert_eq!(names, members);
        let wanted = "f(int),1,2,main,x.so,4,,,,,\"it jumps, and returns elsewhere\",false,0,0,1,/lib/x.so,_Z1fi\r\n";
        assert_eq!(values, wanted);
        Ok(())
    }

    #[test]
    fn fields_end_where_they_end() {
        let got = ["a", "f(int, char)", "operator\"\"_s", "a\nb", "", "a b"].map(field);
        let want = ["a", "\"f(int, char)\"", "\"operator\"\"\"\"_s\"", "\"a\nb\"", "", "a b"];
        assert_eq!(got.map(Cow::into_owned), want.map(str::to_owned));
    }
}
