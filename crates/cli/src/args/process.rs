//! Options on processes that run already, and times.

use std::time::Duration;

use clap::Args;

/// Which processes to attach to, and for how long.
#[derive(Args, Debug)]
pub struct ProcessArgs {
    /// Attach to this running process; can be repeated
    #[arg(short = 'p', long = "pid", value_name = "PID", conflicts_with_all = ["command", "allow_unmatched"])]
    pub pids: Vec<u32>,
    /// Leave the processes after this time, as in 500ms, 10s or 2m [default: when they end, or on
    /// Ctrl-C]
    #[arg(long = "for", value_name = "TIME", requires = "pids", conflicts_with = "command", value_parser = duration)]
    pub time: Option<Duration>,
    /// Also trace what the processes execute, and their children's programs
    #[arg(long, requires = "pids", conflicts_with = "command")]
    pub follow: bool,
}

impl ProcessArgs {
    /// The processes in order, each once.
    pub fn processes(&self) -> Vec<u32> {
        let mut pids = self.pids.clone();
        pids.sort_unstable();
        pids.dedup();
        pids
    }
}

/// Reads a time with its unit.
pub(super) fn duration(text: &str) -> Result<Duration, String> {
    let digits = text.find(|c: char| c.is_ascii_alphabetic()).unwrap_or(text.len());
    let (number, unit) = text.split_at(digits);
    let seconds = match unit {
        "ns" => 1e-9,
        "us" => 1e-6,
        "ms" => 1e-3,
        "s" => 1.0,
        "m" => 60.0,
        "h" => 3600.0,
        "" => return Err("it has no unit: ns, us, ms, s, m or h".into()),
        other => return Err(format!("no unit `{other}`: ns, us, ms, s, m or h")),
    };
    let number: f64 = number.parse().map_err(|_| format!("`{number}` is no number"))?;
    match Duration::try_from_secs_f64(number * seconds) {
        Ok(time) if !time.is_zero() => Ok(time),
        _ => Err("it must be more than nothing".into()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_have_units() {
        assert_eq!(duration("500ms"), Ok(Duration::from_millis(500)));
        assert_eq!(duration("1.5m"), Ok(Duration::from_secs(90)));
        for wrong in ["10", "s", "0s", "-1s", "1d", "1e400s", "nans", ""] {
            assert!(duration(wrong).is_err(), "{wrong}");
        }
    }
}
