//! Arguments of `skep test`.

use std::path::PathBuf;

use clap::Args;

use super::object::ObjectArgs;
use super::output::JsonArgs;
use super::prog::EngineName;

pub const HELP: &str = "\
A file names an object, and for each test a program, its input, and the expected result
(docs/unit-tests.md):

  object = \"filter.bpf.o\"

  [[test]]
  name = \"short packets are dropped\"
  program = \"drop_short\"
  packet = { zeros = 20 }
  expect = { retval = \"drop\" }

Each test loads the object anew, so no test depends on another.

Exit status: 0 if all tests passed, 1 if one failed, 2 if a file cannot be used.";

/// What is tested, and where results go.
#[derive(Args, Debug)]
pub struct TestArgs {
    /// Files with tests
    #[arg(required = true, value_name = "FILE")]
    pub files: Vec<PathBuf>,
    /// Run only tests whose name contains TEXT
    #[arg(long, value_name = "TEXT")]
    pub filter: Option<String>,
    /// Engine that runs the programs [default: jit; with `--lcov`: interp]
    #[arg(long, value_enum)]
    pub engine: Option<EngineName>,
    /// Write the results to FILE as JUnit XML
    #[arg(long, value_name = "FILE")]
    pub junit: Option<PathBuf>,
    /// Write which source lines ran to FILE, as lcov's `genhtml` reads it
    #[arg(long, value_name = "FILE")]
    pub lcov: Option<PathBuf>,
    /// How objects are read
    #[command(flatten)]
    pub reading: ObjectArgs,
    /// How the result looks
    #[command(flatten)]
    pub format: JsonArgs,
}
