//! Running one test.

use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use skep::isa::{ProgramType, errno};
use skep::load::{Loaded, Loader};
use skep::test_run::{Coverage, Engine, Errno, Input, Outcome, Printed, Runner};
use skep_test::contents::{Samples, contents, samples};
use skep_test::elements::ElementError;
use skep_test::{compare, elements, verdict};

use super::file::{Bytes, Expect, Run, Subject, Test, TestFile};
use crate::args::ObjectArgs;
use crate::directory;
use crate::failure::{FAILED, Failure, Result};
use crate::objects::Objects;
use crate::prog;
use crate::rejection;

/// What came of a test.
pub struct Done {
    pub file: PathBuf,
    pub name: String,
    pub took: Duration,
    /// Why it failed; nothing when it passed.
    pub problems: Vec<String>,
}

/// How tests are run.
pub struct How<'a> {
    pub reading: &'a ObjectArgs,
    pub engine: Engine,
    /// Where source lines are counted.
    pub coverage: Option<&'a mut Coverage>,
}

/// Runs a test. An object that cannot be loaded and bytes that cannot be read are a failure of their test;
/// what is wrong with the file itself is an error.
pub fn run<'t>(file: &TestFile, test: &'t Test, path: &Path, how: &mut How<'_>) -> Result<Done> {
    let base = path.parent().unwrap_or(Path::new("."));
    let in_file = |f: Failure| Failure {
        message: format!("`{}`, test `{}`: {}", path.display(), test.name, f.message),
        ..f
    };
    let subject = file.subject(test, base).map_err(in_file)?;
    let read = |bytes: &Option<Bytes>| bytes.as_ref().map(|b| b.read(base)).transpose();
    let prepare = |run: &'t Run| {
        let Expect { packet, context, .. } = &run.expect;
        let expected = [read(packet)?, read(context)?];
        Ok((run, [read(&run.packet)?, read(&run.context)?], expected))
    };
    let inputs = test.runs().iter().map(prepare).collect::<Result<Vec<Prepared<'_>>>>();
    let started = Instant::now();
    let problems = match inputs {
        Err(failure) if failure.status != FAILED => return Err(in_file(failure)),
        inputs => inputs.and_then(|inputs| problems(test, &subject, &inputs, how)),
    };
    let problems = problems.unwrap_or_else(|failure| vec![lines(&failure)]);
    let took = started.elapsed();
    Ok(Done { file: path.to_owned(), name: test.name.clone(), took, problems })
}

/// All that a failure says.
fn lines(failure: &Failure) -> String {
    let mut all = vec![failure.message.clone()];
    all.extend(failure.causes.iter().map(|c| format!("  because {c}")));
    all.extend(failure.details.iter().map(|d| format!("  {d}")));
    all.extend(failure.hint.iter().map(|h| format!("  hint: {h}")));
    all.join("\n")
}

/// A run, its packet and context, and those that must come out.
type Prepared<'a> = (&'a Run, [Option<Vec<u8>>; 2], [Option<Vec<u8>>; 2]);

fn problems(
    test: &Test,
    subject: &Subject,
    runs: &[Prepared<'_>],
    how: &mut How<'_>,
) -> Result<Vec<String>> {
    let path = std::slice::from_ref(&subject.object);
    let objects = Objects::read_with(path, vec![subject.globals.clone()], how.reading)?;
    let Some(object) = objects.all.first() else { return Err(Failure::environment("no object")) };
    let index = prog::find(object, &subject.object, &subject.program)?;
    let name = object.programs.get(index).map(|p| p.name.clone()).unwrap_or_default();
    let scratch = directory::scratch()?;
    let text = subject.object.display().to_string();
    let refused = |e| rejection::load_failure(e, &text);
    let loader =
        Loader::new(scratch.dir()).autoload_only(&name).core_target(objects.target.as_ref());
    let loaded = loader.load(object).map_err(refused)?;
    let mut runner = Runner::new(scratch.dir(), &loaded, &name, how.engine)?;
    let mut samples = samples(&loaded)?;
    let printed = Printed::start(scratch.dir()).map_err(refused)?;
    // All files are open: whatever ends this process now leaves nothing behind.
    drop(scratch);
    if how.coverage.is_some() {
        runner.count_hits();
    }
    for (map, elements) in &test.before {
        fill(&loaded, object.btf.as_deref(), map, elements)?;
    }
    let mut problems = Vec::new();
    for (n, (run, [packet, context], expected)) in runs.iter().enumerate() {
        let done = runner.test_run(&Input {
            data: packet.as_deref(),
            ctx: context.as_deref(),
            repeat: run.repeat.unwrap_or(1),
        });
        let lines = printed.take()?;
        let kind = runner.program().prog_type();
        let mut these = results(&run.expect, &done, expected, kind);
        if let Some(wanted) = run.expect.printed.as_ref().filter(|wanted| **wanted != lines) {
            these.push(format!("printed {lines:?}, expected {wanted:?}"));
        }
        if !run.expect.maps.is_empty() {
            these.extend(maps(&run.expect, &loaded, object.btf.as_deref(), &mut samples)?);
        }
        let prefix = if runs.len() > 1 { format!("run {}: ", n + 1) } else { String::new() };
        problems.extend(these.into_iter().map(|p| format!("{prefix}{p}")));
    }
    if let Some(coverage) = &mut how.coverage {
        coverage.add(&runner);
        // What no test runs is not covered either.
        for other in (0..object.programs.len()).filter(|other| *other != index) {
            if let Ok(linked) = object.link_with(other, &objects.link_options()) {
                coverage.expect(&linked);
            }
        }
    }
    Ok(problems)
}

/// Puts elements into a map.
fn fill(
    loaded: &Loaded,
    btf: Option<&skep::object::Btf>,
    name: &str,
    elements: &[super::file::Element],
) -> Result {
    let map = loaded.map(name).ok_or_else(|| unknown(loaded, name))?;
    for element in elements {
        elements::put(map, name, btf, &element.key, &element.value).map_err(|e| match e {
            e @ ElementError::Update { .. } => Failure { status: FAILED, ..Failure::from(e) },
            e => Failure::environment(e.to_string()),
        })?;
    }
    Ok(())
}

fn unknown(loaded: &Loaded, name: &str) -> Failure {
    let known: Vec<String> = loaded.maps().iter().map(|m| format!("`{}`", m.name)).collect();
    Failure::environment(format!("the program has no map `{name}`"))
        .hint(format!("its maps are {}", known.join(", ")))
}

/// An error number as programs write it.
fn name(number: i32) -> String {
    errno::find(number).map_or_else(|| format!("error {number}"), |e| e.name.to_owned())
}

/// Compares what a run returned.
fn results(
    expect: &Expect,
    done: &Result<Outcome, Errno>,
    expected: &[Option<Vec<u8>>; 2],
    kind: ProgramType,
) -> Vec<String> {
    let mut problems = Vec::new();
    let done = match (done, &expect.errno) {
        (Err(errno), Some(wanted)) if errno.0 == *wanted => return problems,
        (Err(errno), Some(wanted)) => {
            return vec![format!("failed: {errno}, expected {}", name(*wanted))];
        }
        (Err(errno), None) => return vec![format!("could not run: {errno}")],
        (Ok(done), wanted) => {
            problems.extend(wanted.map(|w| format!("ran, expected to fail with {}", name(w))));
            done
        }
    };
    if let Some(wanted) = &expect.retval {
        match verdict::parse(wanted, kind) {
            Err(why) => problems.push(why),
            Ok(number) if number == done.retval => {}
            Ok(number) => {
                let [got, wanted] = [done.retval, number].map(|n| verdict::show(n, kind));
                problems.push(format!("returned {got}, expected {wanted}"));
            }
        }
    }
    let out = [("packet", &done.data_out), ("context", &done.ctx_out)];
    for ((what, got), wanted) in out.into_iter().zip(expected) {
        let Some(wanted) = wanted else { continue };
        problems.extend(compare::bytes(what, wanted, got.as_deref()));
    }
    problems
}

/// Compares what is in maps.
fn maps(
    expect: &Expect,
    loaded: &Loaded,
    btf: Option<&skep::object::Btf>,
    samples: &mut Samples,
) -> Result<Vec<String>> {
    let all = contents(loaded, btf, false, samples)?;
    let mut problems = Vec::new();
    for (name, wanted) in &expect.maps {
        match all.iter().find(|c| c.entries.shape().name == *name) {
            Some(there) => problems.extend(there.differences(wanted)),
            None => return Err(unknown(loaded, name)),
        }
    }
    Ok(problems)
}
