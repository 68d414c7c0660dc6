//! Times and sizes for people: three digits and a unit, without a space, so that columns stay
//! fields.

/// Writes nanoseconds: `870ns`, `1.23µs`, `45.6ms`, `3.20s`.
pub fn time(ns: u64) -> String {
    match ns {
        0..1_000 => format!("{ns}ns"),
        _ => scaled(ns, &[(1_000, "µs"), (1_000_000, "ms"), (1_000_000_000, "s")]),
    }
}

/// Writes bytes: `96B`, `1.50KiB`, `64.0MiB`.
pub fn size(bytes: u64) -> String {
    match bytes {
        0..1024 => format!("{bytes}B"),
        _ => {
            scaled(bytes, &[(1 << 10, "KiB"), (1 << 20, "MiB"), (1 << 30, "GiB"), (1 << 40, "TiB")])
        }
    }
}

/// Writes a number of entries: `1 entry`, `2 entries`.
pub fn entries(n: u64) -> String {
    format!("{n} {}", if n == 1 { "entry" } else { "entries" })
}

/// Writes a number of things whose plural ends with `s`: `1 call`, `2 calls`.
pub fn count(n: u64, noun: &str) -> String {
    format!("{n} {noun}{}", if n == 1 { "" } else { "s" })
}

fn scaled(n: u64, units: &[(u64, &str)]) -> String {
    let mut text = String::new();
    for (unit, name) in units {
        let value = n as f64 / *unit as f64;
        // Where the next digit would round up decides how many are shown.
        text = if value < 9.995 {
            format!("{value:.2}{name}")
        } else if value < 99.95 {
            format!("{value:.1}{name}")
        } else {
            format!("{value:.0}{name}")
        };
        if value < 999.5 {
            break;
        }
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_have_three_digits() {
        let cases = [
            (0, "0ns"),
            (999, "999ns"),
            (1_000, "1.00µs"),
            (9_994, "9.99µs"),
            (9_996, "10.0µs"),
            (99_960, "100µs"),
            (999_400, "999µs"),
            (999_600, "1.00ms"),
            (45_600_000, "45.6ms"),
            (3_200_000_000, "3.20s"),
            (7_200_000_000_000, "7200s"),
        ];
        for (ns, want) in cases {
            assert_eq!(time(ns), want, "{ns}");
        }
    }

    #[test]
    fn one_is_no_plural() {
        assert_eq!([0, 1, 2].map(entries), ["0 entries", "1 entry", "2 entries"]);
        let calls = [0, 1, 2].map(|n| count(n, "call"));
        assert_eq!(calls, ["0 calls", "1 call", "2 calls"]);
    }

    #[test]
    fn sizes_are_binary() {
        assert_eq!([size(96), size(1536), size(64 << 20)], ["96B", "1.50KiB", "64.0MiB"]);
    }
}
