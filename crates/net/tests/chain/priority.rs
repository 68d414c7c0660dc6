//! libxdp's chains against a model: a list, walked as its dispatcher does.

use skep_net::chain::priority::{AtEnd, DEFAULT_ACTIONS, Entry, RunConfig, graph};
use skep_testkit::random::Random;

use crate::engines::engines;
use crate::model::{program, run, verdicts};

fn entry(id: u32, priority: u32, actions: u32) -> Entry {
    Entry {
        program: program(id),
        config: RunConfig { priority, actions },
        is_loaded: false,
        size: 16,
        tag: [0; 8],
        load_time: 0,
    }
}

#[test]
fn random_lists_run_as_the_dispatcher_would() {
    for seed in 0..2000 {
        let mut rng = Random::new(seed + 1);
        let count = rng.below(14) as u32;
        let list: Vec<Entry> = (1..=count)
            .map(|id| {
                let actions =
                    if rng.below(2) == 0 { DEFAULT_ACTIONS } else { rng.next_u64() as u32 };
                entry(id, 50 + rng.below(4) as u32, actions)
            })
            .collect();
        // Sorted by the slow way: the smallest is taken out again and again.
        let mut left: Vec<&Entry> = list.iter().collect();
        let mut sorted: Vec<&Entry> = Vec::new();
        while let Some(n) = (0..left.len())
            .min_by_key(|n| (left[*n].config.priority, left[*n].program.name.clone()))
        {
            sorted.push(left.remove(n));
        }
        let pool: Vec<u32> = verdicts().collect();
        let says: Vec<u32> = (0..=count).map(|_| pool[rng.below(pool.len())]).collect();
        for at_end in [AtEnd::Pass, AtEnd::Last] {
            let mut want = (Vec::new(), 2);
            for e in &sorted {
                let verdict = says[e.program.id as usize];
                want.0.push(e.program.id);
                let goes_on = verdict == 31 || verdict < 32 && e.config.actions >> verdict & 1 != 0;
                want.1 = if goes_on && at_end == AtEnd::Pass { 2 } else { verdict };
                if !goes_on {
                    break;
                }
            }
            let graph = graph(&list, at_end).expect("they are of one kind");
            assert_eq!(run(&graph, |id, _| says[id as usize]), want, "seed {seed}");
            if count > 0 {
                assert_eq!(engines(&graph, |id| says[id as usize]), want, "seed {seed}");
            }
        }
    }
}

#[test]
fn a_chained_drop_of_the_last_program_passes() {
    let all = [entry(1, 10, DEFAULT_ACTIONS), entry(2, 20, 1 << 1 | 1 << 2)];
    let says = |id: u32, _: usize| if id == 2 { 1 } else { 2 };
    assert_eq!(run(&graph(&all, AtEnd::Pass).expect("fine"), says), (vec![1, 2], 2));
    assert_eq!(run(&graph(&all, AtEnd::Last).expect("fine"), says), (vec![1, 2], 1));
}

#[test]
fn ties_are_broken_in_order() {
    let base = Entry { is_loaded: true, size: 8, load_time: 5, ..entry(1, 50, 4) };
    let mut other = base.clone();
    other.config.priority = 51;
    let new = Entry { is_loaded: false, ..base.clone() };
    assert!(new.order(&Entry { size: 16, ..new.clone() }).is_lt());
    assert!(base.order(&Entry { size: 16, ..base.clone() }).is_eq());
    let later: Vec<Entry> = vec![
        other,
        Entry { program: program(2), ..base.clone() },
        new,
        Entry { tag: [0, 0, 0, 0, 0, 0, 0, 1], ..base.clone() },
        Entry { load_time: 6, ..base.clone() },
    ];
    for later in later {
        assert!(base.order(&later).is_lt() && later.order(&base).is_gt(), "{later:?}");
    }
    // More than the ten that libxdp has room for.
    let many: Vec<Entry> = (1..=40).map(|id| entry(id, 1000 - id, 4)).collect();
    let (ran, _) = run(&graph(&many, AtEnd::Pass).expect("fine"), |_, _| 2);
    assert_eq!(ran, (1..=40).rev().collect::<Vec<_>>());
}
