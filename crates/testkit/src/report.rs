//! What `skep trace --json` prints, as far as tests look at it.

use serde_json::Value;

/// One report.
#[derive(Debug)]
pub struct Report {
    /// The status of the command.
    pub status: i64,
    /// Functions that the patterns match.
    pub matched: u64,
    /// Functions of these that are hooked.
    pub attached: u64,
    /// Functions that are not, and why.
    pub skipped: Vec<Skipped>,
    /// What was measured.
    pub functions: Vec<Function>,
    /// Events that could not run, for instance those of a signal handler that interrupts another
    /// event.
    pub missed: u64,
    /// How long attaching took in the target, when the report says so.
    pub attach_ns: Option<u64>,
    /// The whole document.
    pub json: Value,
}

/// A function that is not hooked.
#[derive(Debug)]
pub struct Skipped {
    /// Its name.
    pub function: String,
    /// The file name of its module.
    pub module: String,
    /// Why.
    pub reason: String,
}

/// A line of the table.
#[derive(Debug)]
pub struct Function {
    /// Its name, demangled.
    pub name: String,
    /// The file name of its module.
    pub module: String,
    /// Calls.
    pub calls: u64,
    /// Time from entry to exit, callees included; 0 where calls are counted without times.
    pub total_ns: u64,
    /// The same without traced callees.
    pub self_ns: u64,
}

impl Report {
    /// Reads the document; the error says which key is missing or of another type.
    pub fn parse(text: &str) -> Result<Self, String> {
        let json: Value =
            serde_json::from_str(text).map_err(|error| format!("not JSON: {error}"))?;
        let sites = &json["sites"];
        let skipped = array(&sites["skipped"], "sites.skipped")?
            .iter()
            .map(|row| {
                Ok(Skipped {
                    function: string(&row["function"], "sites.skipped[].function")?,
                    module: string(&row["module"], "sites.skipped[].module")?,
                    reason: string(&row["reason"], "sites.skipped[].reason")?,
                })
            })
            .collect::<Result<_, String>>()?;
        let functions = array(&json["functions"], "functions")?
            .iter()
            .map(|row| {
                Ok(Function {
                    name: string(&row["name"], "functions[].name")?,
                    module: string(&row["module"], "functions[].module")?,
                    calls: number(&row["calls"], "functions[].calls")?,
                    total_ns: time(&row["total_ns"], "functions[].total_ns")?,
                    self_ns: time(&row["self_ns"], "functions[].self_ns")?,
                })
            })
            .collect::<Result<_, String>>()?;
        Ok(Self {
            status: json["status"].as_i64().ok_or("`status` is not a number")?,
            matched: number(&sites["matched"], "sites.matched")?,
            attached: number(&sites["attached"], "sites.attached")?,
            skipped,
            functions,
            missed: number(&json["missed"], "missed")?,
            attach_ns: json["attach_ns"].as_u64().or_else(|| sites["attach_ns"].as_u64()),
            json,
        })
    }

    /// The calls of a function of a module, by name; a C++ name may leave out the parameters when
    /// only one function has it.
    ///
    /// Rows with the same name add up. `None` when there is no row.
    pub fn calls(&self, module: &str, name: &str) -> Option<u64> {
        let rows = || self.functions.iter().filter(|row| file_name(&row.module) == module);
        let exact: Vec<u64> = rows().filter(|row| row.name == name).map(|row| row.calls).collect();
        if !exact.is_empty() {
            return Some(exact.iter().sum());
        }
        let short: Vec<u64> = rows()
            .filter(|row| row.name.split('(').next() == Some(name))
            .map(|row| row.calls)
            .collect();
        if short.len() == 1 { short.first().copied() } else { None }
    }

    /// The reason why a function was not hooked.
    pub fn reason(&self, module: &str, name: &str) -> Option<&str> {
        let row = self.skipped.iter().find(|row| {
            file_name(&row.module) == module
                && (row.function == name || row.function.split('(').next() == Some(name))
        });
        row.map(|row| row.reason.as_str())
    }
}

fn file_name(module: &str) -> &str {
    module.rsplit('/').next().unwrap_or(module)
}

fn array<'a>(value: &'a Value, key: &str) -> Result<&'a Vec<Value>, String> {
    value.as_array().ok_or_else(|| format!("`{key}` is not an array"))
}

fn string(value: &Value, key: &str) -> Result<String, String> {
    value.as_str().map(str::to_owned).ok_or_else(|| format!("`{key}` is not a string"))
}

fn number(value: &Value, key: &str) -> Result<u64, String> {
    value.as_u64().ok_or_else(|| format!("`{key}` is not a natural number"))
}

/// A time; `null` is that of a function whose calls are only counted.
fn time(value: &Value, key: &str) -> Result<u64, String> {
    if value.is_null() { Ok(0) } else { number(value, key) }
}

#[cfg(test)]
mod tests {
    use super::Report;

    #[test]
    fn names_match_with_and_without_parameters() {
        let report = Report::parse(
            r#"{"command":["x"],"status":0,"wall_ns":1,"missed":0,"functions":[
                {"name":"f(int)","module":"/a/x","calls":3,"total_ns":1,"self_ns":1,"p50_ns":1,"p99_ns":1},
                {"name":"g(int)","module":"x","calls":4,"total_ns":1,"self_ns":1,"p50_ns":1,"p99_ns":1},
                {"name":"g(long)","module":"x","calls":5,"total_ns":1,"self_ns":1,"p50_ns":1,"p99_ns":1},
                {"name":"h","module":"y","calls":6,"total_ns":1,"self_ns":1,"p50_ns":1,"p99_ns":1}],
                "sites":{"matched":5,"attached":4,"skipped":[{"function":"k","module":"x","reason":"too short"}]}}"#,
        )
        .unwrap();
        assert_eq!(report.calls("x", "f"), Some(3));
        assert_eq!(report.calls("x", "g(long)"), Some(5));
        assert_eq!(report.calls("x", "g"), None, "two functions have this name");
        assert_eq!(report.calls("x", "h"), None, "another module's");
        assert_eq!(report.reason("x", "k"), Some("too short"));
    }

    #[test]
    fn a_missing_key_is_named() {
        let error = Report::parse(r#"{"functions":[],"sites":{"skipped":[]}}"#).unwrap_err();
        assert!(error.contains("`status`"), "{error}");
    }
}
