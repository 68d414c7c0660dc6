//! Repeated measurements: contestants take turns, so that what disturbs the machine disturbs them
//! alike.

use std::process::Command;

use anyhow::{Context, Result, bail};

use crate::output;

/// The median of several processes, and the lowest and highest of them.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Sample {
    /// The middle.
    pub median: f64,
    /// The best.
    pub low: f64,
    /// The worst.
    pub high: f64,
}

impl Sample {
    /// Of the values; panics when there are none.
    pub fn of(mut values: Vec<f64>) -> Self {
        values.sort_by(f64::total_cmp);
        let middle = values.len() / 2;
        let median = if values.len() % 2 == 1 {
            values[middle]
        } else {
            (values[middle - 1] + values[middle]) / 2.0
        };
        Self { median, low: values[0], high: values[values.len() - 1] }
    }

    /// What a contestant adds to the plain run, turn by turn.
    pub fn added(with: &[f64], plain: &[f64]) -> Self {
        Self::of(with.iter().zip(plain).map(|(with, plain)| with - plain).collect())
    }

    /// The same for each of `parts` equal parts.
    pub fn per(self, parts: f64) -> Self {
        Self { median: self.median / parts, low: self.low / parts, high: self.high / parts }
    }
}

/// Something that can be measured again and again, in a process of its own each time.
pub struct Contestant<'a> {
    /// For error messages.
    pub name: &'a str,
    /// One process, one number.
    pub run: Box<dyn Fn() -> Result<f64> + 'a>,
}

impl<'a> Contestant<'a> {
    /// Names a measurement.
    pub fn new(name: &'a str, run: impl Fn() -> Result<f64> + 'a) -> Self {
        Self { name, run: Box::new(run) }
    }
}

/// Runs everyone once to warm up, then `turns` times in turn; the values of each contestant in
/// order of the turns.
pub fn take_turns(turns: usize, contestants: &[Contestant<'_>]) -> Result<Vec<Vec<f64>>> {
    let mut values = vec![Vec::with_capacity(turns); contestants.len()];
    for turn in 0..=turns {
        for (contestant, values) in contestants.iter().zip(&mut values) {
            let value = (contestant.run)()
                .with_context(|| format!("cannot measure `{}`", contestant.name))?;
            if turn > 0 {
                values.push(value);
            }
        }
    }
    Ok(values)
}

/// Runs a bench program and takes the number after the word `measured` in what it prints.
pub fn measured(command: &mut Command) -> Result<f64> {
    let text = output(command)?;
    let number = text.lines().find_map(|line| line.strip_prefix("measured ")?.split(' ').next());
    match number.map(str::parse::<f64>) {
        Some(Ok(number)) => Ok(number),
        _ => bail!("no line `measured NUMBER` in:\n{text}"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_median_is_the_middle_and_the_spread_the_ends() {
        assert_eq!(Sample::of(vec![3.0, 1.0, 10.0]), Sample { median: 3.0, low: 1.0, high: 10.0 });
        assert_eq!(Sample::of(vec![4.0, 1.0, 2.0, 9.0]).median, 3.0);
        assert_eq!(Sample::added(&[5.0, 7.0, 6.0], &[1.0, 2.0, 1.0]).median, 5.0);
    }

    #[test]
    fn a_program_says_what_it_measured() {
        assert_eq!(measured(Command::new("echo").arg("measured 1.25 77")).unwrap(), 1.25);
        assert!(measured(Command::new("echo").arg("nothing")).is_err());
    }
}
