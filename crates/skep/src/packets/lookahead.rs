//! When the lookups of a batch are looked up ahead of its programs.

/// Says whether what programs look up for the frames of a batch is fetched from memory before they run,
/// for all frames at once: the first lookup of each in a large hash. That changes nothing but the time
/// that it takes.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
#[non_exhaustive]
pub enum LookAhead {
    /// When it was found faster, which is tried again from time to time.
    #[default]
    Auto,
    /// Never.
    Never,
    /// Always, where programs have such lookups.
    Always,
}

/// Frames without which a batch is not worth it.
const LEAST: usize = 8;
/// Batches that are compared, half of them each way, ...
const TRIED: u32 = 32;
/// ... out of so many.
const PERIOD: u32 = 2048;

/// Finds out what is faster.
#[derive(Debug, Default)]
pub(crate) struct Trial {
    mode: LookAhead,
    /// The number of the batch in its period.
    batch: u32,
    /// Nanoseconds and frames of those that were tried without, and with.
    spent: [(u64, u64); 2],
    pays: bool,
}

impl Trial {
    /// Begins anew.
    pub fn new(mode: LookAhead) -> Self {
        Self { mode, ..Self::default() }
    }

    /// Says whether to look ahead on the next batch, of so many frames, and whether it is one to
    /// compare.
    #[inline]
    pub fn begin(&mut self, frames: usize) -> (bool, bool) {
        if frames < LEAST {
            return (false, false);
        }
        match self.mode {
            LookAhead::Never => (false, false),
            LookAhead::Always => (true, false),
            LookAhead::Auto if self.batch < TRIED => (!self.batch.is_multiple_of(2), true),
            LookAhead::Auto => {
                self.batch = (self.batch + 1) % PERIOD;
                (self.pays, false)
            }
        }
    }

    /// Notes how many nanoseconds a batch took that was one to compare.
    pub fn end(&mut self, ns: u64, frames: usize) {
        if self.batch == 0 {
            self.spent = Default::default();
        }
        let [without, with] = &mut self.spent;
        let tried = if self.batch.is_multiple_of(2) { &mut *without } else { &mut *with };
        tried.0 = tried.0.saturating_add(ns);
        tried.1 += frames as u64;
        self.batch += 1;
        let each = |(ns, frames): (u64, u64)| ns as f64 / frames.max(1) as f64;
        self.pays = each(*with) < each(*without);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Goes through batches of `frames` frames that take so long without, and with.
    fn try_out(trial: &mut Trial, batches: u32, frames: usize, took: [u64; 2]) -> u32 {
        (0..batches)
            .map(|_| {
                let (ahead, is_compared) = trial.begin(frames);
                if is_compared {
                    trial.end(took[usize::from(ahead)], frames);
                }
                u32::from(ahead)
            })
            .sum()
    }

    #[test]
    fn the_faster_way_is_taken_and_tried_again() {
        let mut trial = Trial::default();
        assert_eq!(try_out(&mut trial, PERIOD, 64, [2, 1]), TRIED / 2 + PERIOD - TRIED);
        assert_eq!(try_out(&mut trial, PERIOD, 64, [1, 2]), TRIED / 2);
        assert_eq!(try_out(&mut trial, PERIOD, 64, [2, 1]), TRIED / 2 + PERIOD - TRIED);
        assert_eq!(try_out(&mut trial, 10, LEAST - 1, [2, 1]), 0, "short batches");
        let mut never = Trial::new(LookAhead::Never);
        assert_eq!(try_out(&mut never, 100, 64, [2, 1]), 0);
        let mut always = Trial::new(LookAhead::Always);
        assert_eq!(try_out(&mut always, 100, 64, [1, 2]), 100);
    }
}
