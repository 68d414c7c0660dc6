//! What is written is read, and nothing else.

use serde_json::Value as Json;
use skep::link::{AgentRecord, FunctionRecord, LinkTarget, Untraced};

use super::parts::blank_agent;
use super::*;

/// A recording of calls, and one of call paths.
fn files() -> [Vec<u8>; 2] {
    let mut told = nothing();
    told.command = Some(vec!["app".to_owned(), "-x".to_owned(), "app".to_owned()]);
    told.status = Some(-1);
    told.overhead_ns = 12.5;
    told.caller_overhead_ns = Some(3.25);
    told.missed.stack = 7;
    told.state.spec.include = LinkTarget::all(["app:*"]);
    told.state.modules = vec!["/bin/app".to_owned(), "/lib/libx.so".to_owned()];
    for (module, name) in [(0, "main"), (1, "f"), (1, "g")] {
        let skipped = (name == "g").then(|| "denied".to_owned());
        let named = FunctionRecord {
            module,
            name: name.to_owned(),
            vaddr: 4096,
            size: 5,
            skipped,
            entry_only: None,
        };
        told.state.functions.push(named);
    }
    told.state.agents.push(AgentRecord { pid: 7, exe: "/bin/app".to_owned(), ..blank_agent() });
    told.state.untraced.push(Untraced { path: "/bin/sh".to_owned(), reason: "denied".to_owned() });
    let mut calls = Vec::new();
    let mut writer = Writer::default();
    writer.process(7, "app");
    for n in 0..5 {
        let mut call = Event {
            function: n % 2,
            pid: 7,
            tid: 8,
            depth: 1,
            start_ns: u64::from(n) << 40,
            took_ns: (n != 3).then_some(200),
            running: n == 4,
            left: n == 2,
            values: format!("(n={n})"),
            args: serde_json::json!({"n": n, "name": "x"}),
            ret: (n == 1).then_some(Json::Null),
        };
        writer.call(&mut calls, &mut call).expect("memory");
    }
    writer.end(&mut calls, &mut told).expect("memory");
    let node = |caller, function, thread| Node {
        caller,
        function,
        thread,
        calls: 3,
        self_ns: 1 << 33,
        ..Node::default()
    };
    told.paths = Some((
        vec![node(None, 0, Some(0)), node(Some(0), 1, Some(0)), node(Some(0), 2, None)],
        vec![Thread { pid: 7, tid: 8, name: "worker".to_owned() }],
    ));
    let mut paths = Vec::new();
    Writer::default().end(&mut paths, &mut told).expect("memory");
    [calls, paths]
}

/// All that a reader finds, as text.
fn read(mut reader: Reader<'_>) -> Done<String> {
    let mut all = String::new();
    loop {
        match reader.next()? {
            Item::Call(call) => all += &format!("{call:?}\n"),
            Item::End(told) => return Ok(format!("{all}{told:?}{:?}", reader.processes)),
        }
    }
}

#[test]
fn what_is_written_is_read() -> Done {
    let [calls, paths] = files();
    let text = read(Reader::new(&calls)?)?;
    assert_eq!(text.matches("Event {").count(), 5);
    assert!(text.contains(r#"args: Object {"n": Number(4), "name": String("x")}"#), "{text}");
    assert_eq!(text.matches("left: true").count(), 1, "{text}");
    assert!(text.contains("took_ns: None") && text.contains("ret: Some(Null)"), "{text}");
    assert!(text.contains("status: Some(-1)") && text.contains("stack: 7"), "{text}");
    assert!(text.contains("overhead_ns: 12.5") && text.ends_with(r#"{7: "app"}"#), "{text}");
    let text = read(Reader::new(&paths)?)?;
    assert_eq!(text.matches("self_ns: 8589934592").count(), 3, "{text}");
    assert!(text.contains(r#"caller: Some(0), function: 2, thread: None"#), "{text}");
    // Written again it is the same file.
    for file in [calls, paths] {
        let (mut reader, mut writer, mut again) =
            (Reader::new(&file)?, Writer::default(), Vec::new());
        let mut named = false;
        loop {
            let item = reader.next()?;
            if !reader.processes.is_empty() && !std::mem::replace(&mut named, true) {
                writer.process(7, "app");
            }
            match item {
                Item::Call(mut call) => writer.call(&mut again, &mut call).expect("memory"),
                Item::End(mut told) => break writer.end(&mut again, &mut told).expect("memory"),
            }
        }
        assert_eq!(again, file);
    }
    Ok(())
}

#[test]
fn a_file_that_ends_early_or_is_changed_is_refused() {
    for file in files() {
        for len in 0..file.len() {
            assert!(Reader::new(&file[..len]).is_err(), "{len}");
        }
        for at in 0..file.len() {
            let mut changed = file.clone();
            changed[at] ^= 1 << (at % 8);
            assert!(Reader::new(&changed).is_err(), "{at}");
        }
    }
}

/// Whoever makes a file can make its checksum, too.
#[test]
fn no_items_lead_a_reader_astray() {
    let mut state = 0x9e37_79b9_7f4a_7c15_u64;
    let mut random = move |below: usize| {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        usize::try_from(state % below.max(1) as u64).unwrap_or(0)
    };
    let mut refused = 0;
    for file in files() {
        let items = &file[16..file.len() - 16];
        for _ in 0..20_000 {
            let mut changed = items.to_vec();
            for _ in 0..=random(3) {
                let at = random(changed.len());
                match random(4) {
                    0 => changed[at] = random(256) as u8,
                    1 => changed[at] ^= 1 << random(8),
                    2 => changed.truncate(at + 1),
                    _ => changed.insert(at, [0xff, 0x80, 0, 1][random(4)]),
                }
            }
            match read(Reader::of_items(&changed)) {
                Ok(text) => assert!(text.len() < 1 << 20),
                Err(why) => {
                    assert_eq!(why, Unreadable::Damaged);
                    refused += 1;
                }
            }
        }
    }
    assert!(refused > 10_000, "{refused}");
}
