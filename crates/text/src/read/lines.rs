//! Elements out of lines `KEY: VALUE`, as `skep map dump` prints them without options and with
//! `--raw`.

use super::Problem;
use super::encoder::Encoder;
use crate::input::Role;

/// Reads all lines.
pub fn read(text: &str, encoder: &mut Encoder<'_>) -> Result<(), Problem> {
    for (i, line) in text.lines().enumerate().filter(|(_, line)| !line.trim().is_empty()) {
        element(line, encoder).map_err(|what| Problem { at: format!("line {}", i + 1), what })?;
    }
    Ok(())
}

fn element(line: &str, encoder: &mut Encoder<'_>) -> Result<(), String> {
    let has_keys = encoder.shape().keys.max_len() > 0;
    let (key, value) = match find(line, ": ") {
        _ if !has_keys => ("", line),
        Some(at) => (&line[..at], &line[at + 2..]),
        None => return Err("it is not a key, a colon and a value".to_owned()),
    };
    for (role, text) in [(Role::Key, key), (Role::Value, value)] {
        if text.starts_with("0x") && encoder.looks_raw(role, text) {
            return Err(super::looks_raw(text));
        }
    }
    let key = if has_keys { encoder.text(Role::Key, key)? } else { Vec::new() };
    let value = if encoder.shape().per_cpu {
        let mut each = Vec::new();
        for (cpu, text) in of_cpus(value)? {
            let value = encoder.text(Role::Value, text)?;
            let zero = vec![0; value.len()];
            if cpu < each.len() {
                return Err(format!("CPU {cpu} stands behind another one"));
            }
            if cpu > MOST_CPUS {
                return Err(format!("there is no CPU {cpu}"));
            }
            each.resize(cpu, zero);
            each.push(value);
        }
        encoder.values(each)?
    } else {
        encoder.text(Role::Value, value)?
    };
    encoder.push(&key, &value);
    Ok(())
}

/// More processors than a kernel can have.
const MOST_CPUS: usize = 1 << 16;

/// Parts the values of CPUs: `12 = 5 (cpu 1) + 7 (cpu 3)`, `{ .n = 1 } (cpu 0), { .n = 2 } (cpu 2)`,
/// or the first one's alone.
fn of_cpus(text: &str) -> Result<Vec<(usize, &str)>, String> {
    const MARK: &str = " (cpu ";
    let Some(_) = find(text, MARK) else { return Ok(vec![(0, text)]) };
    let mut rest = match text.split_once(" = ") {
        Some((sum, rest)) if sum.parse::<i128>().is_ok() => rest,
        _ => text,
    };
    let mut each = Vec::new();
    while !rest.is_empty() {
        let one = rest;
        let wrong = || format!("`{one}` is not a value and its CPU");
        let at = find(rest, MARK).ok_or_else(wrong)?;
        let (cpu, behind) = rest[at + MARK.len()..].split_once(')').ok_or_else(wrong)?;
        each.push((cpu.parse().map_err(|_| wrong())?, &rest[..at]));
        rest = behind.strip_prefix(" + ").or(behind.strip_prefix(", ")).unwrap_or(behind);
        if !behind.is_empty() && rest.len() == behind.len() {
            return Err(wrong());
        }
    }
    Ok(each)
}

/// Finds a mark that does not stand in quotes.
pub fn find(text: &str, mark: &str) -> Option<usize> {
    let (mut quote, mut escaped) = (None, false);
    for (at, c) in text.char_indices() {
        match quote {
            Some(_) if escaped => escaped = false,
            Some(_) if c == '\\' => escaped = true,
            Some(q) if c == q => quote = None,
            Some(_) => {}
            None if text[at..].starts_with(mark) => return Some(at),
            None if matches!(c, '"' | '\'') => quote = Some(c),
            None => {}
        }
    }
    None
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn marks_in_quotes_are_none() {
        for (text, want) in [
            ("1: 2", Some(1)),
            (r#""a: b\": ": 3"#, Some(10)),
            (r#"{ .c = '\'', .w = ": " }: 1"#, Some(24)),
            ("none", None),
            (r#""open: "#, None),
        ] {
            assert_eq!(find(text, ": "), want, "{text}");
        }
    }

    #[test]
    fn values_of_cpus_are_told_apart() {
        for (text, want) in [
            ("12 = 5 (cpu 1) + 7 (cpu 3)", vec![(1, "5"), (3, "7")]),
            ("5 (cpu 1)", vec![(1, "5")]),
            ("0", vec![(0, "0")]),
            ("{ .n = 1 } (cpu 0), { .n = 2 } (cpu 2)", vec![(0, "{ .n = 1 }"), (2, "{ .n = 2 }")]),
            (r#""x (cpu 1), " (cpu 4)"#, vec![(4, r#""x (cpu 1), ""#)]),
            ("0x01ff (cpu 0), 0x0002 (cpu 1)", vec![(0, "0x01ff"), (1, "0x0002")]),
        ] {
            assert_eq!(of_cpus(text).as_deref(), Ok(&want[..]), "{text}");
        }
        assert!(of_cpus("5 (cpu x)").is_err() && of_cpus("5 (cpu 1) 6").is_err());
    }
}
