//! Folded stacks: one line each, the outermost function first, as Brendan Gregg's tools have them.

use std::collections::BTreeMap;
use std::io::{self, Write};

use super::Frames;

/// Writes the stacks, equal ones summed up, in order of their text.
pub fn write(frames: &Frames, out: &mut dyn Write) -> io::Result<()> {
    let mut lines: BTreeMap<String, u64> = BTreeMap::new();
    for stack in &frames.stacks {
        let mut line = String::new();
        for name in frames.names(stack) {
            if !line.is_empty() {
                line.push(';');
            }
            // What would end the frame or the line, or steer a terminal.
            line.extend(name.chars().map(|c| match c {
                ';' => ',',
                c if c.is_control() => ' ',
                c => c,
            }));
        }
        let sum = lines.entry(line).or_default();
        *sum = sum.saturating_add(stack.weight);
    }
    lines.iter().try_for_each(|(line, weight)| writeln!(out, "{line} {weight}"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::stacks::{Location, Named, NamedStack};

    #[test]
    fn a_name_ends_no_frame_and_steers_no_terminal() -> io::Result<()> {
        let name = "a;b\nc\x1b[2Jd".to_owned();
        let frames = Frames {
            functions: vec![Named { name, file: String::new(), line: 0 }],
            locations: vec![Location { addr: 0, module: String::new(), functions: vec![(0, 0)] }],
            stacks: vec![NamedStack { root: None, locations: vec![0], weight: 3 }],
            ..Frames::default()
        };
        let mut out = Vec::new();
        write(&frames, &mut out)?;
        assert_eq!(String::from_utf8_lossy(&out), "a,b c [2Jd 3\n");
        Ok(())
    }
}
