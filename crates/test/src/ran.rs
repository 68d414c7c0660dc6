//! What came of a run.

use skep::isa::{ProgramType, errno};
use skep::test_run::{Errno, Outcome};

use crate::{compare, verdict};

/// What a program did. Each `assert_…` panics when something else came, and says what; they can be
/// chained.
#[derive(Clone, Debug)]
#[must_use = "a run that nobody looks at tests nothing"]
pub struct Ran {
    program: String,
    kind: ProgramType,
    given: Option<Vec<u8>>,
    done: Result<Outcome, Errno>,
    printed: Vec<String>,
}

impl Ran {
    pub(crate) fn new(
        program: &str,
        kind: ProgramType,
        given: Option<Vec<u8>>,
        done: Result<Outcome, Errno>,
        printed: Vec<String>,
    ) -> Self {
        Self { program: program.to_owned(), kind, given, done, printed }
    }

    /// Returns what the kernel's `BPF_PROG_TEST_RUN` would: return value, packet, context; or the
    /// error number that it would fail with.
    ///
    /// # Errors
    /// With that number.
    pub fn outcome(&self) -> Result<&Outcome, Errno> {
        self.done.as_ref().map_err(|e| *e)
    }

    #[track_caller]
    fn done(&self) -> &Outcome {
        match &self.done {
            Ok(done) => done,
            Err(e) => panic!("`{}` could not run: {e}", self.program),
        }
    }

    /// Returns the return value.
    ///
    /// # Panics
    /// When the program did not run: [`Ran::outcome`] tells why.
    #[must_use]
    #[track_caller]
    pub fn retval(&self) -> u32 {
        self.done().retval
    }

    /// Returns the packet as the program left it; nothing for programs without packets.
    ///
    /// # Panics
    /// When the program did not run.
    #[must_use]
    #[track_caller]
    pub fn packet(&self) -> &[u8] {
        self.done().data_out.as_deref().unwrap_or_default()
    }

    /// Returns the context as the kernel would give it back, where one was given.
    ///
    /// # Panics
    /// When the program did not run.
    #[must_use]
    #[track_caller]
    pub fn context(&self) -> Option<&[u8]> {
        self.done().ctx_out.as_deref()
    }

    /// Returns the lines that `bpf_printk` printed.
    #[must_use]
    pub fn printed(&self) -> &[String] {
        &self.printed
    }

    /// Asserts the verdict by name: `pass`, `XDP_DROP`, `shot`, `TC_ACT_OK`.
    ///
    /// # Panics
    /// When it is another, or there is none of this name.
    #[track_caller]
    pub fn assert_verdict(&self, name: &str) -> &Self {
        match verdict::parse(&name.into(), self.kind) {
            Ok(wanted) => self.assert_retval(wanted as i32),
            Err(_) => panic!("`{name}` is no verdict of `{}` programs", self.kind.name()),
        }
    }

    /// Asserts the return value.
    ///
    /// # Panics
    /// When it is another.
    #[track_caller]
    pub fn assert_retval(&self, wanted: i32) -> &Self {
        let (got, wanted) = (self.done().retval, wanted as u32);
        let show = |n| verdict::show(n, self.kind);
        assert!(
            got == wanted,
            "`{}` returned {}, expected {}",
            self.program,
            show(got),
            show(wanted)
        );
        self
    }

    /// Asserts the packet after the run.
    ///
    /// # Panics
    /// When it differs: says where.
    #[track_caller]
    pub fn assert_packet(&self, wanted: impl AsRef<[u8]>) -> &Self {
        let problem = compare::bytes("packet", wanted.as_ref(), self.done().data_out.as_deref());
        assert!(problem.is_none(), "`{}`: {}", self.program, problem.unwrap_or_default());
        self
    }

    /// Asserts that the packet is as it was given.
    ///
    /// # Panics
    /// When it differs: says where.
    #[track_caller]
    pub fn assert_packet_unchanged(&self) -> &Self {
        self.assert_packet(self.given.clone().unwrap_or_default())
    }

    /// Asserts the bytes of the context after the run.
    ///
    /// # Panics
    /// When they differ: says where.
    #[track_caller]
    pub fn assert_context(&self, wanted: impl AsRef<[u8]>) -> &Self {
        let problem = compare::bytes("context", wanted.as_ref(), self.context());
        assert!(problem.is_none(), "`{}`: {}", self.program, problem.unwrap_or_default());
        self
    }

    /// Asserts the lines that `bpf_printk` printed, all of them.
    ///
    /// # Panics
    /// When there are others.
    #[track_caller]
    pub fn assert_printed(&self, wanted: &[&str]) -> &Self {
        assert!(
            self.printed == wanted,
            "`{}` printed {:?}, expected {wanted:?}",
            self.program,
            self.printed
        );
        self
    }

    /// Asserts that the kernel would refuse the run, with this error: `EINVAL`.
    ///
    /// # Panics
    /// When the program ran, or the error is another.
    #[track_caller]
    pub fn assert_errno(&self, name: &str) -> &Self {
        match &self.done {
            Ok(_) => panic!("`{}` ran, expected to fail with {name}", self.program),
            Err(e) => assert!(
                errno::find(e.0).is_some_and(|known| known.name == name),
                "`{}` failed: {e}, expected {name}",
                self.program
            ),
        }
        self
    }
}
