//! Calls that a link's program did not see: how many, and why.

use serde_json::{Value as Json, json};
use skep::link::Missed;

use crate::printer::Printer;
use crate::units;

/// Says in how many calls a link's program did not run, by reason; nothing if there are none.
pub fn note(printer: Printer, prefix: &str, missed: Missed) {
    let reasons = [
        (
            missed.inside,
            "made by a signal handler that interrupted the tracer, or by the tracer itself",
        ),
        (missed.stack, "made too deep in the stack to hook their return"),
        (missed.thread, "made on threads that could not be registered"),
        (missed.slots, "made on threads that share a slot, while a stopped thread held it"),
        (missed.namespace, "made by processes that were forked into another PID namespace"),
    ];
    for (calls, why) in reasons.into_iter().filter(|(calls, _)| *calls > 0) {
        printer.note(&format!("{prefix}{} not counted: {why}", units::count(calls, "call")));
    }
}

/// The same for `--json`.
pub fn to_json(missed: Missed) -> Json {
    json!({ "inside": missed.inside, "stack": missed.stack, "thread": missed.thread, "slots": missed.slots, "namespace": missed.namespace })
}
