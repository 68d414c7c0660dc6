//! libxdp itself beside the chains of its kind: what it made of random lists of programs, and what its
//! dispatchers answered on a kernel (`libxdp/record.c`).

use std::error::Error;
use std::str::FromStr;

use skep_net::chain::priority::{AtEnd, Entry, RunConfig, graph};

use crate::engines::engines;
use crate::model::{Ran, program, run};

type Result<T = (), E = Box<dyn Error>> = std::result::Result<T, E>;

/// A list of programs, and what became of it.
#[derive(Default)]
struct Recorded {
    entries: Vec<Entry>,
    /// The number of the program at each place.
    order: Vec<usize>,
    /// The verdict of the program at each place; how many of them ran, and the answer.
    runs: Vec<(Vec<u32>, usize, u32)>,
}

fn numbers<T: FromStr>(words: &str) -> Result<Vec<T>, T::Err> {
    words.split_whitespace().map(str::parse).collect()
}

/// Reads `name priority actions size`, of a loaded program `loaded tag time` besides.
fn entry(id: u32, words: &str) -> Result<Entry> {
    let words: Vec<&str> = words.split_whitespace().collect();
    let [name, priority, actions, size, loaded @ ..] = &words[..] else {
        return Err(format!("{words:?}").into());
    };
    let (mut program, mut tag, mut load_time) = (program(id), [0; 8], 0);
    program.name = (*name).into();
    if let [_, hex, time] = loaded {
        tag = u64::from_str_radix(hex, 16)?.to_be_bytes();
        load_time = time.parse()?;
    }
    let actions = u32::from_str_radix(actions, 16)?;
    let config = RunConfig { priority: priority.parse()?, actions };
    let (is_loaded, size) = (!loaded.is_empty(), size.parse()?);
    Ok(Entry { program, config, is_loaded, size, tag, load_time })
}

fn recorded() -> Result<Vec<Recorded>> {
    let mut lists: Vec<Recorded> = Vec::new();
    for line in include_str!("libxdp/recorded.txt").lines() {
        let (what, rest) = line.split_once(' ').unwrap_or((line, ""));
        if what == "list" {
            lists.push(Recorded::default());
            continue;
        }
        let list = lists.last_mut().ok_or("no list yet")?;
        match what {
            "program" => list.entries.push(entry(list.entries.len() as u32, rest)?),
            "order" => list.order = numbers(rest)?,
            "run" => {
                let (says, answer) = rest.split_once(" -> ").ok_or(line)?;
                let (ran, verdict) = answer.split_once(' ').ok_or(line)?;
                // A dispatcher runs a list from its beginning to some place.
                let count = ran.trim_end_matches('0').len();
                assert!(!ran[..count].contains('0'), "{line}");
                list.runs.push((numbers(says)?, count, verdict.parse()?));
            }
            _ => return Err(line.into()),
        }
    }
    Ok(lists)
}

#[test]
fn lists_run_as_libxdp_ran_them() -> Result {
    let lists = recorded()?;
    assert_eq!(lists.len(), 120);
    for (n, list) in lists.iter().enumerate() {
        let graph = graph(&list.entries, AtEnd::Pass)?;
        let ours = |says: &dyn Fn(u32) -> u32| -> Ran {
            let ran = run(&graph, |id, _| says(id));
            assert_eq!(engines(&graph, says), ran, "list {n}");
            ran
        };
        // Upon 31 every list of libxdp goes on.
        let all: Vec<u32> = list.order.iter().map(|id| *id as u32).collect();
        let every = ours(&|_| 31).0;
        assert_eq!(every, all, "order of list {n}");
        assert_eq!(list.runs.len(), 4, "list {n}");
        for (says, count, verdict) in &list.runs {
            let place = |id: u32| all.iter().position(|other| *other == id).expect("in the list");
            let ran = ours(&|id| says[place(id)]);
            assert_eq!(ran, (all[..*count].to_vec(), *verdict), "list {n}, {says:?}");
        }
    }
    Ok(())
}
