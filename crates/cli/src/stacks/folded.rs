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
            // What would end the frame or the line.
            line.extend(name.chars().map(|c| match c {
                ';' => ',',
                '\n' | '\r' => ' ',
                c => c,
            }));
        }
        let sum = lines.entry(line).or_default();
        *sum = sum.saturating_add(stack.weight);
    }
    lines.iter().try_for_each(|(line, weight)| writeln!(out, "{line} {weight}"))
}
