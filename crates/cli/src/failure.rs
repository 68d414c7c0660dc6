//! Why a command ends without having done its work: a message, its causes, a hint, and the exit
//! status.

use std::error::Error;
use std::fmt::Display;

/// The asked-for thing failed or was not found.
pub const FAILED: u8 = 1;
/// Usage or environment.
pub const ENVIRONMENT: u8 = 2;

/// What is printed and with which status the process ends.
#[derive(Debug)]
pub struct Failure {
    /// Exit status.
    pub status: u8,
    /// One line without a full stop.
    pub message: String,
    /// Lines that show what the message is about.
    pub details: Vec<String>,
    /// From the nearest to the deepest.
    pub causes: Vec<String>,
    /// What to do about it.
    pub hint: Option<String>,
}

/// Result of a command's steps.
pub type Result<T = (), E = Failure> = std::result::Result<T, E>;

impl Failure {
    /// The asked-for thing failed or was not found.
    pub fn failed(message: impl Into<String>) -> Self {
        Self {
            status: FAILED,
            message: message.into(),
            details: Vec::new(),
            causes: Vec::new(),
            hint: None,
        }
    }

    /// The command was called wrongly, or the machine does not allow it.
    pub fn environment(message: impl Into<String>) -> Self {
        Self { status: ENVIRONMENT, ..Self::failed(message) }
    }

    /// Adds what to do about it.
    pub fn hint(self, hint: impl Into<String>) -> Self {
        Self { hint: Some(hint.into()), ..self }
    }

    /// Adds what was behind it.
    pub fn because(mut self, error: &dyn Error) -> Self {
        self.causes.extend(chain(error));
        self
    }
}

/// The messages of an error and of what caused it; a wrapper that only repeats its source is left
/// out.
fn chain(error: &dyn Error) -> Vec<String> {
    let mut out: Vec<String> = Vec::new();
    let mut at = Some(error);
    while let Some(e) = at {
        let text = e.to_string();
        if out.last().is_none_or(|last| !last.contains(&text)) {
            out.push(text);
        }
        at = e.source();
    }
    out
}

impl<E: Error> From<E> for Failure {
    fn from(error: E) -> Self {
        let mut chain = chain(&error).into_iter();
        Self {
            status: ENVIRONMENT,
            message: chain.next().unwrap_or_default(),
            details: Vec::new(),
            causes: chain.collect(),
            hint: None,
        }
    }
}

/// Puts what was being done before an error.
pub trait Context<T> {
    /// Fails with status 2 and `what` as the message, the error as its cause.
    fn context(self, what: impl Display) -> Result<T>;
}

impl<T, E: Error> Context<T> for Result<T, E> {
    fn context(self, what: impl Display) -> Result<T> {
        self.map_err(|e| Failure::environment(what.to_string()).because(&e))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[derive(Debug)]
    struct Outer(std::io::Error);

    impl Display for Outer {
        fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
            write!(f, "cannot open `x`: {}", self.0)
        }
    }

    impl Error for Outer {
        fn source(&self) -> Option<&(dyn Error + 'static)> {
            Some(&self.0)
        }
    }

    #[test]
    fn a_cause_that_the_message_already_holds_is_not_repeated() {
        let outer = Outer(std::io::Error::from_raw_os_error(2));
        let failure = Failure::from(outer);
        assert_eq!(
            (failure.message.as_str(), failure.causes.len()),
            ("cannot open `x`: No such file or directory (os error 2)", 0)
        );
    }
}
