//! Where a mutant can sit: line by line, in source as rustfmt leaves it. A switch never adds a
//! line.

/// One place and what its mutant does there.
#[derive(Clone, Debug)]
pub struct Site {
    /// The number that turns it on.
    pub number: u32,
    /// The file below `src`.
    pub file: String,
    /// The line, from 0.
    pub at: usize,
    /// What the mutant does.
    pub kind: &'static str,
    /// The line as it is.
    pub line: String,
    /// How many before it in the file have the same key.
    twin: usize,
    /// The part of the line that is replaced, in bytes.
    from: usize,
    to: usize,
    edit: Edit,
}

#[derive(Clone, Copy, Debug)]
enum Edit {
    /// `if cond {`: never.
    Never,
    /// `Err(…)`: accepted.
    Accept,
    /// A statement: left out.
    Skip,
    /// A term of a conjunction: true.
    True,
    /// A term of a disjunction: false.
    False,
    /// A comparison: its end included, or not.
    Other(&'static str, &'static str),
}

impl Site {
    /// How `mutants.txt` names it.
    pub fn key(&self) -> String {
        let part = match self.edit {
            Edit::True | Edit::False | Edit::Other(..) => {
                format!(": {}", &self.line[self.from..self.to])
            }
            _ => String::new(),
        };
        format!("{} | {}{part} | {}", self.file, self.kind, self.line.trim())
    }

    /// What no other site has.
    pub fn name(&self) -> String {
        format!("{} #{}", self.key(), self.twin)
    }

    /// The replacement, around what the sites inside have made of the part.
    fn around(&self, inside: &str) -> String {
        let n = self.number;
        match self.edit {
            Edit::Never if self.from == self.to => format!("&& !crate::mutant::on({n}) "),
            Edit::Never if inside.contains("let ") => {
                format!("{inside} && !crate::mutant::on({n})")
            }
            Edit::Never => format!("({inside}) && !crate::mutant::on({n})"),
            Edit::Accept => format!("crate::mutant::keep({n}, {inside})"),
            Edit::Skip => format!("if !crate::mutant::on({n}) {{ {inside} }}"),
            Edit::True => format!("(({inside}) || crate::mutant::on({n}))"),
            Edit::False => format!("(({inside}) && !crate::mutant::on({n}))"),
            Edit::Other(was, becomes) => {
                let other = self.line[self.from..self.to].replacen(was, becomes, 1);
                format!("crate::mutant::other({n}, {inside}, {other})")
            }
        }
    }
}

/// Finds all sites of a file.
pub fn find(file: &str, text: &str) -> Vec<Site> {
    let lines: Vec<&str> = text.lines().collect();
    let end = lines.iter().position(|l| *l == "#[cfg(test)]").unwrap_or(lines.len());
    let mut sites = Vec::new();
    for at in 0..end {
        let line = lines[at];
        let code = line.trim_start();
        let indent = line.len() - code.len();
        if code.starts_with("//") || code.starts_with('#') {
            continue;
        }
        let mut add = |from: usize, to: usize, kind, edit| {
            sites.push(Site {
                number: 0,
                file: file.to_owned(),
                at,
                kind,
                line: line.to_owned(),
                twin: 0,
                from,
                to,
                edit,
            });
        };
        let next = lines.get(at + 1).map_or("", |l| l.trim_start());
        if next.starts_with("return Err(") && line.ends_with('{') {
            if let Some(cond) = condition(line) {
                add(cond.0, cond.1, "check never made", Edit::Never);
            } else if code == "{" && conjunction_above(&lines, at) {
                // The end of a condition of several lines gets a term that is never true.
                add(indent, indent, "check never made", Edit::Never);
            }
        }
        for from in occurrences(line, "Err(Reason::").chain(occurrences(line, "Err(wrong(")) {
            if let Some(to) = closing(line, from + 3) {
                let guarded = at > 0
                    && code.starts_with("return Err(")
                    && lines[at - 1].ends_with('{')
                    && !lines[at - 1].contains("else {");
                if !guarded {
                    add(from, to + 1, "accepted", Edit::Accept);
                }
            }
        }
        if is_statement(code) {
            add(indent, line.len(), "statement left out", Edit::Skip);
        }
        terms(line, &mut add);
        for (was, becomes) in [(" <= ", " < "), (" < ", " <= "), (" >= ", " > "), (" > ", " >= ")] {
            for op in occurrences(line, was) {
                if let Some((from, to)) = operands(line, op, op + was.len()) {
                    add(from, to, "end of a range", Edit::Other(was, becomes));
                }
            }
        }
    }
    // Of two that cross each other one is enough.
    let crosses =
        |a: &Site, b: &Site| a.at == b.at && a.from < b.from && b.from < a.to && a.to < b.to;
    let crossing: Vec<bool> = sites.iter().map(|b| sites.iter().any(|a| crosses(a, b))).collect();
    let mut crossing = crossing.iter();
    sites.retain(|_| crossing.next() == Some(&false));
    let mut seen = std::collections::BTreeMap::<String, usize>::new();
    for site in &mut sites {
        let n = seen.entry(site.key()).or_default();
        site.twin = *n;
        *n += 1;
    }
    sites
}

/// The condition of `if … {` and `} else if … {`.
fn condition(line: &str) -> Option<(usize, usize)> {
    let from = line.find("if ")? + 3;
    let code = line.trim_start();
    (code.starts_with("if ") || code.starts_with("} else if ")).then(|| (from, line.len() - 2))
}

/// Tells whether the lines above `{` are a condition whose terms all must hold.
fn conjunction_above(lines: &[&str], at: usize) -> bool {
    for line in lines[..at].iter().rev() {
        let code = line.trim_start();
        if code.starts_with("||") || code.contains(" || ") {
            return false;
        }
        if code.starts_with("if ") {
            return true;
        }
        if code.ends_with(';') || code.ends_with('{') {
            return false;
        }
    }
    false
}

fn occurrences<'a>(line: &'a str, what: &'a str) -> impl Iterator<Item = usize> + 'a {
    line.match_indices(what).map(|(i, _)| i)
}

/// The bracket that closes the one at `open`, on the same line.
fn closing(line: &str, open: usize) -> Option<usize> {
    let mut depth = 0;
    let mut quoted = false;
    for (i, c) in line.char_indices().skip_while(|(i, _)| *i < open) {
        match c {
            '"' => quoted = !quoted,
            '(' | '[' | '{' if !quoted => depth += 1,
            ')' | ']' | '}' if !quoted => {
                depth -= 1;
                if depth == 0 {
                    return Some(i);
                }
            }
            _ => {}
        }
    }
    None
}

/// A call for its effect, or a change of a field.
fn is_statement(code: &str) -> bool {
    let word = |c: char| c.is_ascii_alphanumeric() || matches!(c, '_' | '.' | '*' | '[' | ']');
    let Some(stop) = code.find(|c| !word(c)) else { return false };
    let (head, rest) = code.split_at(stop);
    let keyword = ["let", "return", "use", "const", "static", "pub", "mod", "break", "continue"]
        .contains(&head);
    let call = rest.starts_with('(') && head.contains('.');
    let change = head.contains(['.', '*'])
        && [" = ", " += ", " -= ", " |= ", " &= "].iter().any(|op| rest.starts_with(op));
    !keyword && (call || change) && code.ends_with(';') && balanced(code)
}

fn balanced(code: &str) -> bool {
    let count = |set: [char; 3]| code.matches(set).count();
    count(['(', '[', '{']) == count([')', ']', '}'])
}

/// Terms of conditions: of those on one line, and those that have a line of their own.
fn terms(line: &str, add: &mut impl FnMut(usize, usize, &'static str, Edit)) {
    let code = line.trim_start();
    let indent = line.len() - code.len();
    if code.contains("let ") || code.contains('|') && code.contains("matches!") {
        return;
    }
    let tail = if code.ends_with(" {") { 2 } else { usize::from(code.ends_with([';', ','])) };
    let (from, to) = match code {
        _ if code.starts_with("&& ") || code.starts_with("|| ") => (indent + 3, line.len() - tail),
        _ if condition(line).is_some() && code.ends_with(" {") => {
            condition(line).unwrap_or_default()
        }
        _ if balanced(code)
            && !code.contains("=>")
            && !code.contains(" = ")
            && !code.ends_with('{') =>
        {
            (indent, line.len() - tail)
        }
        _ => return,
    };
    let from = if line[from..].starts_with("return ") { from + "return ".len() } else { from };
    if from >= to || !balanced(&line[from..to]) {
        return;
    }
    let (ands, ors) = (split(line, from, to, " && "), split(line, from, to, " || "));
    if code.starts_with("&& ") && ors.len() == 1 {
        ands.iter().for_each(|(f, t)| add(*f, *t, "term taken for true", Edit::True));
    } else if code.starts_with("|| ") && ands.len() == 1 {
        ors.iter().for_each(|(f, t)| add(*f, *t, "term taken for false", Edit::False));
    } else if ands.len() > 1 && ors.len() == 1 {
        ands.iter().for_each(|(f, t)| add(*f, *t, "term taken for true", Edit::True));
    } else if ors.len() > 1 {
        ors.iter().for_each(|(f, t)| add(*f, *t, "term taken for false", Edit::False));
    }
}

/// Cuts a part of a line at an operator outside all brackets.
fn split(line: &str, from: usize, to: usize, by: &str) -> Vec<(usize, usize)> {
    let (mut parts, mut depth, mut start) = (Vec::new(), 0, from);
    for (i, c) in line.char_indices().filter(|(i, _)| (from..to).contains(i)) {
        match c {
            '(' | '[' | '{' => depth += 1,
            ')' | ']' | '}' => depth -= 1,
            _ if depth == 0 && line[i..to].starts_with(by) => {
                parts.push((start, i));
                start = i + by.len();
            }
            _ => {}
        }
    }
    parts.push((start, to));
    parts
}

/// The simple operands around a comparison: names, fields, calls without spaces.
fn operands(line: &str, left_end: usize, right_start: usize) -> Option<(usize, usize)> {
    let part =
        |c: char| c.is_ascii_alphanumeric() || matches!(c, '_' | '.' | ':' | '(' | ')' | '[' | ']');
    let left = line[..left_end].rfind(|c| !part(c)).map_or(0, |i| i + 1);
    let right = line[right_start..].find(|c| !part(c)).map_or(line.len(), |i| right_start + i);
    // Brackets that belong to something outside.
    let mut from = left;
    while from < left_end && !balanced(&line[from..left_end]) {
        from += 1;
    }
    let mut to = right;
    while to > right_start && !balanced(&line[right_start..to]) {
        to -= 1;
    }
    let before = line[..from].chars().last();
    let after = line[to..].chars().next();
    let clear = before.is_none_or(|c| matches!(c, ' ' | '(' | '!'))
        && after.is_none_or(|c| matches!(c, ' ' | ')' | ';' | ','));
    // Arithmetic binds tighter than the comparison.
    let arithmetic = |s: &str| {
        s.ends_with(" +")
            || s.ends_with(" -")
            || s.ends_with(" &")
            || s.ends_with(" as")
            || s.ends_with(" *")
    };
    let more = ["+ ", "- ", "& ", "as ", "* ", "<< "]
        .iter()
        .any(|op| line[to..].trim_start().starts_with(op));
    (clear && from < left_end && to > right_start && !arithmetic(line[..from].trim_end()) && !more)
        .then_some((from, to))
}

/// Puts the switches into a file's text.
pub fn apply<'a>(text: &str, sites: impl Iterator<Item = &'a Site>) -> String {
    let mut lines: Vec<String> = text.lines().map(str::to_owned).collect();
    let mut all: Vec<&Site> = sites.collect();
    all.sort_by_key(|s| (s.at, s.from, std::cmp::Reverse(s.to)));
    for of_line in all.chunk_by(|a, b| a.at == b.at) {
        let line = &of_line[0].line;
        lines[of_line[0].at] = render(line, 0, line.len(), of_line);
    }
    lines.push(String::new());
    lines.join("\n")
}

/// A part of a line with the switches inside it; of sites in one another the outer ones come first.
fn render(line: &str, from: usize, to: usize, mut sites: &[&Site]) -> String {
    let (mut out, mut at) = (String::new(), from);
    while let Some((first, rest)) = sites.split_first() {
        let inner = rest
            .iter()
            .take_while(|s| s.to <= first.to && s.from < first.to.max(first.from + 1))
            .count();
        out.push_str(&line[at..first.from]);
        out.push_str(&first.around(&render(line, first.from, first.to, &rest[..inner])));
        at = first.to;
        sites = &rest[inner..];
    }
    out.push_str(&line[at..to]);
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    fn mutated(text: &str) -> String {
        let mut sites = find("f.rs", text);
        for (n, s) in sites.iter_mut().enumerate() {
            s.number = n as u32 + 1;
        }
        apply(text, sites.iter())
    }

    #[test]
    fn a_check_of_one_line_gets_a_switch() {
        let made = mutated("    if a.b || c {\n        return Err(Reason::Empty);\n    }\n");
        assert!(made.starts_with("    if (((a.b) && !crate::mutant::on("), "{made}");
        assert!(
            made.contains(") && !crate::mutant::on(1) {\n        return Err(Reason::Empty);"),
            "{made}"
        );
    }

    #[test]
    fn statements_arms_and_ends_of_ranges_get_switches() {
        assert_eq!(
            mutated("    self.flow.mark(r.node);\n"),
            "    if !crate::mutant::on(1) { self.flow.mark(r.node); }\n"
        );
        let arm = mutated("        _ => Err(Reason::Wrong { reg, kind: f(x) }),\n");
        assert_eq!(
            arm,
            "        _ => crate::mutant::keep(1, Err(Reason::Wrong { reg, kind: f(x) })),\n"
        );
        let end = mutated("    (start >= 0)\n");
        assert_eq!(end, "    (crate::mutant::other(1, start >= 0, start > 0))\n");
        let returned = mutated("    return a && b;\n");
        assert_eq!(
            returned,
            "    return ((a) || crate::mutant::on(1)) && ((b) || crate::mutant::on(2));\n"
        );
        assert_eq!(mutated("    let x = 5;\n"), "    let x = 5;\n");
    }
}
