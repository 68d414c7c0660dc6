//! Files that are to be executed.
//!
//! Whoever writes one in a process whose other threads start programs has it busy for a moment after
//! it was closed (`ETXTBSY`): a child that another thread made meanwhile holds it open until it
//! executes its own program. So another process writes it.

use std::path::Path;
use std::process::Command;
use std::time::Duration;

use crate::run::run;

const LIMIT: Duration = Duration::from_secs(300);

/// Copies a program, with its permissions.
pub fn copy(from: &Path, to: &Path) {
    written(Command::new("cp").arg(from).arg(to), "");
}

/// Writes a script that every user may execute.
pub fn script(path: &Path, text: &str) {
    written(Command::new("sh").args(["-c", "cat > \"$0\" && chmod 755 \"$0\""]).arg(path), text);
}

fn written(command: &mut Command, text: &str) {
    let ended = run(command, text.as_bytes(), LIMIT);
    assert_eq!(ended.shell_status(), 0, "{command:?}: {}", ended.transcript());
}

#[cfg(test)]
mod tests {
    use std::process::{Command, Stdio};
    use std::sync::atomic::{AtomicBool, Ordering::Relaxed};

    use super::{copy, script};
    use crate::TempDir;
    use crate::run::SetOnDrop;

    #[test]
    fn what_was_written_can_be_executed_while_others_start_programs() {
        let dir = TempDir::new();
        let (first, second) = (dir.join("first"), dir.join("second"));
        let end = AtomicBool::new(false);
        std::thread::scope(|scope| {
            let _end = SetOnDrop(&end);
            for _ in 0..3 {
                scope.spawn(|| {
                    while !end.load(Relaxed) {
                        let status = Command::new("true").stdin(Stdio::null()).status();
                        assert!(status.expect("it starts").success());
                    }
                });
            }
            for n in 0..40 {
                script(&first, &format!("#!/bin/sh\necho {n}\n"));
                copy(&first, &second);
                for program in [&first, &second] {
                    let said = Command::new(program).output().expect("it starts").stdout;
                    assert_eq!(said, format!("{n}\n").into_bytes());
                }
            }
        });
    }
}
