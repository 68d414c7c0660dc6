//! `skep chain attach --kernel` and its like, on interfaces of network namespaces of their own.

mod common;

use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use common::page::shape;
use common::{Skep, json, text};
use serde_json::{Value as Json, json};
use skep_testkit::network::{self, command};
use skep_testkit::run::{Ended, run};
use skep_testkit::skip::without_bpf;

const LIMIT: Duration = Duration::from_secs(300);

const GUIDE: &str = include_str!(concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/chains.md"));

/// Calls `ip`.
fn ip(line: &str) -> Ended {
    run(Command::new("ip").args(line.split(' ')), b"", LIMIT)
}

/// A network namespace with `one` and `two`, both ends of a cable, and a mount namespace with a bpf
/// file system, for this thread and what it starts. They go with the thread.
struct World {
    skep: Skep,
    bpf: PathBuf,
}

impl World {
    /// `None` where that cannot be had; the reason is printed.
    fn new() -> Option<Self> {
        if without_bpf() || !network::enter(true) {
            return None;
        }
        let skep = Skep::new();
        for name in ["chain.bpf.o", "corpus.bpf.o"] {
            let from = Path::new(env!("CARGO_MANIFEST_DIR")).join("../skep/tests/data").join(name);
            std::fs::copy(from, skep.path(name)).unwrap();
        }
        for (language, body) in blocks() {
            if language == "toml" {
                let name = body.lines().next().and_then(|l| l.strip_prefix("# ")).unwrap();
                std::fs::write(skep.path(name), &body).unwrap();
            }
        }
        command("mount -t bpf bpf /sys/fs/bpf");
        let bpf = PathBuf::from("/sys/fs/bpf");
        network::veth("one", "two");
        Some(Self { skep, bpf })
    }

    /// The command in the directory of the files.
    fn command(&self, line: &str) -> Command {
        let mut command = self.skep.command(line.split(' '));
        command.current_dir(self.skep.path("."));
        command
    }

    fn run(&self, line: &str) -> Ended {
        run(&mut self.command(line), b"", LIMIT)
    }

    fn must(&self, line: &str) -> Ended {
        let ended = self.run(line);
        assert_eq!(ended.shell_status(), 0, "{line}: {}", ended.transcript());
        ended
    }

    /// Status and first line of what is said.
    fn said(&self, line: &str) -> (i32, String) {
        let ended = self.run(line);
        let first = text(&ended.stderr).lines().next().unwrap_or_default().to_owned();
        (ended.shell_status(), first)
    }

    /// What skep left in the bpf file system.
    fn links(&self) -> usize {
        std::fs::read_dir(self.bpf.join("skep")).map_or(0, Iterator::count)
    }
}

/// The id of the program on an interface, by `ip`.
fn attached(interface: &str) -> Option<u64> {
    let shown: Json = json(&ip(&format!("-j link show dev {interface}")).stdout);
    shown[0]["xdp"]["prog"]["id"].as_u64()
}

/// Language and text of the blocks of the guide.
fn blocks() -> Vec<(String, String)> {
    let mut all = Vec::new();
    let mut lines = GUIDE.lines();
    while let Some(line) = lines.next() {
        if let Some(language) = line.strip_prefix("```") {
            let body: Vec<&str> = lines.by_ref().take_while(|l| *l != "```").collect();
            all.push((language.to_owned(), body.join("\n") + "\n"));
        }
    }
    all
}

/// Sends frames of so many bytes from one end of the pair, and waits until the other has received them: where the machine
/// has much else to do, the kernel leaves that to a thread.
fn send(interface: &str, sizes: &[usize]) {
    let other = if interface == "one" { "two" } else { "one" };
    let before = network::received(other);
    let name = std::ffi::CString::new(interface).unwrap();
    // SAFETY: a socket and a send of bytes that are borrowed; the address is initialized.
    unsafe {
        let index = libc::if_nametoindex(name.as_ptr());
        let socket = libc::socket(libc::AF_PACKET, libc::SOCK_RAW, 0);
        assert!(socket >= 0 && index != 0);
        let mut to: libc::sockaddr_ll = std::mem::zeroed();
        to.sll_family = libc::AF_PACKET as u16;
        to.sll_ifindex = index as i32;
        for size in sizes {
            let mut frame = vec![0xff; *size];
            frame[12] = 8;
            let sent = libc::sendto(
                socket,
                frame.as_ptr().cast(),
                frame.len(),
                0,
                (&raw const to).cast(),
                size_of_val(&to) as u32,
            );
            assert_eq!(sent, *size as isize, "{}", std::io::Error::last_os_error());
        }
        libc::close(socket);
    }
    let end = Instant::now() + LIMIT;
    while network::received(other) < before + sizes.len() as u64 {
        assert!(Instant::now() < end, "`{other}` does not receive what `{interface}` sends");
        std::thread::sleep(Duration::from_millis(1));
    }
}

/// Programs were judged by the rules for what runs here, so those of others that the kernel takes were
/// refused: with padding in keys, and with sections of other names.
#[test]
fn programs_that_the_kernel_takes_are_attached() {
    let Some(world) = World::new() else { return };
    for name in ["padding.bpf.o", "unnamed.bpf.o"] {
        let from = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/data").join(name);
        std::fs::copy(from, world.skep.path(name)).unwrap();
    }
    let program = |object: &str, name: &str, on: &str| {
        format!("[[program]]\nobject = '{object}'\nprogram = '{name}'\non = {{ '*' = '{on}' }}\n")
    };
    let all = program("chain.bpf.o", "mark", "next")
        + &program("padding.bpf.o", "padded", "next")
        + &program("unnamed.bpf.o", "count", "end:pass")
        + &program("padding.bpf.o", "padded", "end");
    std::fs::write(world.skep.path("others.toml"), all).unwrap();
    world.must("chain attach two others.toml --kernel");
    send("one", &[64, 80]);
    world.must("chain add two unnamed.bpf.o:count --after 3 --on * --kernel");
    let shown = json(&world.must("chain show two --kernel --json").stdout);
    let nodes = shown["nodes"].as_array().unwrap();
    let runs = nodes.iter().map(|n| (n["node"].as_u64(), n["runs"].as_u64() >= Some(2)));
    assert_eq!(runs.take(3).collect::<Vec<_>>(), [1, 2, 3].map(|n| (Some(n), true)), "{shown}");
    assert_eq!(nodes[3]["node"], 5, "{shown}");
    world.must("chain detach two --kernel");
}

/// Commands of the guide's part about the kernel, which the other test leaves out.
#[test]
fn the_guide_about_the_kernel_is_true() {
    let Some(world) = World::new() else { return };
    let (mut ran, mut listed) = (0, None);
    for (language, body) in blocks() {
        if language == "sh root" {
            for line in body.lines() {
                let line = line.strip_prefix("skep ").unwrap().replace("eth0", "two");
                let ended = world.must(&line);
                if line.starts_with("chain list") {
                    listed = Some(text(&ended.stdout));
                }
                ran += 1;
            }
        } else if let Some(listed) = listed.take() {
            // The list of interfaces; the page's has another interface with a program of others.
            assert_eq!(language, "text");
            let row = body.lines().next().unwrap().replace("eth0", "two");
            assert_eq!(listed.lines().map(shape).collect::<Vec<_>>(), [shape(&row)]);
        }
    }
    assert!(ran >= 4);
}

#[test]
fn a_chain_counts_on_an_interface_and_outlives_the_command() {
    let Some(world) = World::new() else { return };
    let maps = world.bpf.join("maps").display().to_string();
    world.must(&format!("chain attach two fw.toml --kernel --pin {maps}"));
    let first = attached("two").expect("it is attached");
    // Frames of the kernel's own may come too; the short ones are all ours.
    send("one", &[20, 20, 20, 64, 64]);
    let shown = json(&world.must("chain show two --kernel --json").stdout);
    let node = |n: usize| &shown["nodes"][n];
    assert_eq!(node(0)["verdicts"]["drop"], 3);
    assert!(node(1)["runs"].as_u64() >= Some(2));
    assert_eq!((&node(2)["program"], &node(2)["runs"]), (&json!("count"), &json!(3)));
    assert_eq!(node(2)["bytes"], 60);
    let dump = |name: &str| text(&world.must(&format!("map dump --kernel {maps}/{name}")).stdout);
    assert_eq!(dump("chain/packets"), "0: 3\n");
    for picture in ["--dot", "--svg"] {
        let drawn = text(&world.must(&format!("chain show two --kernel {picture}")).stdout);
        assert!(drawn.contains("drop_short") && drawn.contains("3 runs"), "{drawn}");
    }
    // A swap: another program, the same map, counters that go on.
    world.must(&format!("chain attach two fw.toml --kernel --time --pin {maps}"));
    assert_ne!(attached("two"), Some(first));
    send("one", &[20, 20]);
    let shown = json(&world.must("chain show two --kernel --json").stdout);
    assert_eq!((&shown["nodes"][2]["runs"], &shown["nodes"][2]["bytes"]), (&json!(5), &json!(100)));
    assert!(shown["nodes"][2]["ns"].as_u64() > Some(0));
    assert_eq!(dump("chain/packets"), "0: 5\n");
    // Another chain, in which the program is another node; it does not count itself.
    world.must("chain attach two by-priority.toml --kernel --no-count");
    send("one", &[20, 20]);
    let again = json(&world.must("chain show two --kernel --json").stdout);
    let count = again["nodes"].as_array().unwrap().iter().find(|n| n["program"] == "count");
    assert_eq!(count.map(|n| &n["runs"]), Some(&json!(5)));
    // A third one is told of the second's too.
    world.must("chain attach two fw.toml --kernel");
    send("one", &[20]);
    let last = json(&world.must("chain show two --kernel --json").stdout);
    assert_eq!((&last["nodes"][2]["runs"], &last["nodes"][2]["bytes"]), (&json!(6), &json!(120)));
    assert_eq!(world.links(), 1);
    world.must("chain detach two --kernel");
    assert_eq!((attached("two"), world.links()), (None, 0));
}

/// What runs on interfaces, as `ip` tells it: so many that the kernel tells in several messages.
#[test]
fn the_list_has_the_programs_of_all_interfaces() {
    let Some(world) = World::new() else { return };
    let listed = || json(&world.must("chain list --kernel --json").stdout);
    assert_eq!(listed(), json!([]));
    assert_eq!(text(&world.must("chain list --kernel").stdout), "");
    for n in 0..40 {
        command(&format!("ip link add left{n} type veth peer name right{n}"));
    }
    world.must("chain attach two fw.toml --kernel");
    world.must("chain attach one by-priority.toml --kernel --mode generic");
    // Of somebody else.
    let object = world.skep.path("chain.bpf.o").display().to_string();
    command(&format!("ip link set dev right39 xdp obj {object} sec xdp"));

    let mut ours: Vec<(String, String, u64)> = Vec::new();
    for on in listed().as_array().unwrap() {
        let word = |key: &str| on[key].as_str().unwrap().to_owned();
        let (name, chain) = match &*word("interface") {
            "two" => ("skep_chain", json!(["drop_short", "mark", "count"])),
            "one" => ("skep_chain", json!(["drop_short", "count", "mark"])),
            _ => ("drop_short", Json::Null),
        };
        assert_eq!((&*word("name"), &on["chain"]), (name, &chain), "{on}");
        ours.push((word("interface"), word("mode"), on["program_id"].as_u64().unwrap()));
    }
    let shown = json(&ip("-j link show").stdout);
    let with = shown.as_array().unwrap().iter().filter(|link| !link["xdp"].is_null());
    let mut ips: Vec<(String, String, u64)> = with
        .map(|link| {
            let mode = ["", "native", "generic"][link["xdp"]["mode"].as_u64().unwrap() as usize];
            let name = link["ifname"].as_str().unwrap();
            (name.to_owned(), mode.to_owned(), link["xdp"]["prog"]["id"].as_u64().unwrap())
        })
        .collect();
    ours.sort();
    ips.sort();
    assert_eq!((&ours, ours.len()), (&ips, 3));
    let lines = text(&world.must("chain list --kernel").stdout);
    let of = |name: &str| lines.lines().find(|line| line.starts_with(name)).unwrap();
    assert!(of("two").ends_with("  chain of drop_short, mark, count"), "{lines}");
    assert!(of("right39").ends_with("  not a chain of skep: drop_short"), "{lines}");
}

/// A chain of the skep directory, made by commands, with numbers that have gaps; what cannot go along
/// is told.
#[test]
fn a_chain_by_its_name_goes_into_the_kernel() {
    let Some(world) = World::new() else { return };
    world.must("chain create named");
    for line in [
        "chain.bpf.o:mark",
        "chain.bpf.o:drop_short",
        "chain.bpf.o:count --after 2 --on drop",
        "corpus.bpf.o:sum",
    ] {
        world.must(&format!("chain add named {line}"));
    }
    world.must("chain del named 1");
    world.must("chain attach two named --kernel");
    send("one", &[20, 20, 64]);
    let shown = |line: &str| json(&world.must(line).stdout);
    let programs = |shown: &Json| -> Vec<(u64, String)> {
        let each =
            |n: &Json| (n["node"].as_u64().unwrap(), n["program"].as_str().unwrap().to_owned());
        shown["nodes"].as_array().unwrap().iter().map(each).collect()
    };
    let (here, there) = (shown("chain show named --json"), shown("chain show two --kernel --json"));
    assert_eq!(programs(&here), programs(&there));
    assert_eq!(programs(&there).first(), Some(&(2, "drop_short".to_owned())));
    assert_eq!(there["nodes"][0]["verdicts"]["drop"], 2);
    // Another one, at which the counts go on.
    world.must("chain add named chain.bpf.o:count --first --on * --own-maps");
    world.must("chain attach two named --kernel");
    send("one", &[20]);
    let drops = |shown: &Json| {
        let nodes = shown["nodes"].as_array().unwrap();
        nodes.iter().find(|n| n["node"] == 2).map(|n| n["verdicts"]["drop"].clone())
    };
    assert_eq!(drops(&shown("chain show two --kernel --json")), Some(json!(3)));
    let before = attached("two");
    world.must("map create seen --type array --key-size 4 --value-size 8 --entries 1");
    world.must("chain create given");
    world.must("chain add given chain.bpf.o:count --map packets=seen");
    world.must("chain add given chain.bpf.o:count --map packets=seen --own-maps");
    let (status, text) = world.said("chain attach two given --kernel");
    assert!(status == 1 && text.contains("with `--map`"), "{status} {text}");
    let (status, text) = world.said("chain attach two nobody --kernel");
    assert!(status == 1 && text.contains("`nobody`"), "{status} {text}");
    std::fs::copy(world.skep.path("corpus.bpf.o"), world.skep.path("chain.bpf.o")).unwrap();
    let (status, text) = world.said("chain attach two named --kernel");
    assert!(status == 1 && text.contains("chain.bpf.o` is another file"), "{status} {text}");
    std::fs::remove_file(world.skep.path("chain.bpf.o")).unwrap();
    let (status, text) = world.said("chain attach two named --kernel");
    assert!(status == 2 && text.contains("cannot read"), "{status} {text}");
    assert_eq!(attached("two"), before);
}

/// Programs on an interface by their nodes' numbers: name, runs.
fn nodes(world: &World) -> Vec<(u64, String, u64)> {
    let shown = json(&world.must("chain show two --kernel --json").stdout);
    let node = |n: &Json| {
        let number = |key: &str| n[key].as_u64().unwrap();
        (number("node"), n["program"].as_str().unwrap().to_owned(), number("runs"))
    };
    shown["nodes"].as_array().unwrap().iter().map(node).collect()
}

/// The value of an array of one number, which a chain's program refers to by this name.
fn counted(map: &str) -> Vec<u64> {
    let program = skep_kernel::Program::open(attached("two").unwrap() as u32).unwrap();
    let maps = program.id_and_maps().unwrap().1.into_iter();
    let maps = maps.map(|id| skep_kernel::Map::open(id).unwrap());
    let named = maps.filter(|m| m.info().unwrap().name == map);
    let value = |m: skep_kernel::Map| {
        u64::from_ne_bytes(m.lookup(&[0; 4]).unwrap()[..8].try_into().unwrap())
    };
    named.map(value).collect()
}

/// Programs are added to a chain that is attached, and taken out of it: what others have counted, and
/// their maps, stay, though nobody has pinned them.
#[test]
fn one_program_of_an_attached_chain_comes_and_goes() {
    let Some(world) = World::new() else { return };
    let (status, said) = world.said("chain add two chain.bpf.o:count --kernel");
    assert_eq!((status, &*said), (1, "error: interface `two` has no chain in the kernel"));
    world.must("chain attach two fw.toml --kernel");
    send("one", &[20, 20, 20]);
    let node = |number: u64| nodes(&world).into_iter().find(|n| n.0 == number);
    let count = |number| node(number).map(|n| (n.1, n.2));
    assert_eq!(count(3), Some(("count".to_owned(), 3)));

    // Its map is that of the other program of its file; the first program's counts are its own.
    let first = attached("two");
    world.must("chain add two chain.bpf.o:count --first --on drop,pass --kernel");
    assert_ne!(attached("two"), first);
    send("one", &[20]);
    assert_eq!((count(3).unwrap().1, counted("packets")), (4, vec![5]));
    assert_eq!(count(4).map(|c| c.0), Some("count".to_owned()));
    // The same program once more, with maps of its own.
    world.must("chain add two chain.bpf.o:count --after 3 --on * --own-maps --kernel");
    send("one", &[20]);
    let mut both = counted("packets");
    both.sort();
    assert_eq!((count(5).unwrap().1, both), (1, vec![1, 7]));
    // Another file, and changes of the edges.
    world.must("chain add two corpus.bpf.o:sum --after 2 --on pass --kernel");
    world.must("chain move two 6 --after 5 --on pass --kernel");
    world.must("chain connect two 6 --on drop --to end:pass --kernel");
    send("one", &[20]);
    assert_eq!(node(6), Some((6, "sum".to_owned(), 1)));
    // Each of three nodes of one program goes on with what it counted itself.
    world.must("chain del two 4 --kernel");
    assert_eq!((count(3).unwrap().1, count(4), count(5).unwrap().1), (6, None, 2));
    world.must("chain del two 3 --bridge drop --kernel");
    // Nothing leads there any more.
    assert_eq!((count(3), count(5).unwrap().1), (None, 2));
    for node in [2, 5, 6] {
        world.must(&format!("chain del two {node} --kernel"));
    }
    assert_eq!(nodes(&world).len(), 1);

    // What cannot be is told, and changes nothing.
    let last = attached("two");
    let text = |line: &str| world.said(line);
    let (status, said) = text("chain del two 1 --kernel");
    assert!(status == 1 && said.contains("no program"), "{status} {said}");
    let (status, said) = text("chain del two --kernel");
    assert!(status == 2 && said.contains("no node"), "{status} {said}");
    let (status, said) = text("chain del two 9 --kernel");
    assert_eq!((status, &*said), (1, "error: there is no node 9"));
    let (status, said) = text("chain connect two 1 --on pass --to 1 --kernel");
    assert!(status == 1 && said.contains("never end"), "{status} {said}");
    let (status, said) = text("chain add two chain.bpf.o:nothing --kernel");
    assert!(status == 1 && said.contains("no program `nothing`"), "{status} {said}");
    std::fs::copy(world.skep.path("corpus.bpf.o"), world.skep.path("chain.bpf.o")).unwrap();
    let (status, said) = text("chain add two corpus.bpf.o:sum --kernel");
    assert!(status == 1 && said.contains("chain.bpf.o` is another file"), "{status} {said}");
    assert_eq!((attached("two"), world.links()), (last, 1));
    world.must("chain detach two --kernel");
}

/// Several commands change the chain of one interface at once, and that of a directory: none of the
/// changes is lost, and none refused.
#[test]
fn changes_at_the_same_time_all_happen() {
    let Some(world) = World::new() else { return };
    world.must("chain attach two fw.toml --kernel");
    world.must("chain create here");
    for (chain, kernel) in [("two", " --kernel"), ("here", "")] {
        let add = format!("chain add {chain} chain.bpf.o:mark --first{kernel}");
        for _ in 0..3 {
            let mut all: Vec<_> = (0..4)
                .map(|_| world.command(&add).stderr(Stdio::piped()).spawn().unwrap())
                .collect();
            for child in all.drain(..) {
                let ended = child.wait_with_output().unwrap();
                assert!(ended.status.success(), "{}", text(&ended.stderr));
            }
        }
    }
    assert_eq!(nodes(&world).len(), 3 + 12);
    let here = json(&world.must("chain show here --json").stdout);
    assert_eq!(here["nodes"].as_array().map(Vec::len), Some(12));
}

#[test]
fn what_cannot_be_attached_is_told_and_changes_nothing() {
    let Some(world) = World::new() else { return };
    let (status, said) = world.said("chain attach three fw.toml --kernel");
    assert_eq!((status, &*said), (2, "error: there is no interface `three`"));
    let (status, said) = world.said("chain detach two --kernel");
    assert_eq!((status, &*said), (1, "error: interface `two` has no chain in the kernel"));
    let (status, said) = world.said("chain attach two fw.toml --kernel --bpf-fs /proc");
    assert_eq!(status, 2);
    assert!(said.starts_with("error: `/proc` is not in a bpf file system"), "{said}");
    let (status, said) = world.said("chain attach two no.toml --kernel");
    assert_eq!((status, &*said), (2, "error: there is no file `no.toml`"));
    // Somebody else's program stays.
    let object = world.skep.path("chain.bpf.o").display().to_string();
    command(&format!("ip link set dev two xdp obj {object} sec xdp"));
    let foreign = attached("two");
    let (status, said) = world.said("chain attach two fw.toml --kernel");
    assert!(status == 1 && said.contains("`two` is taken"), "{said}");
    assert!(said.contains(&format!("program {}", foreign.unwrap())), "{said}");
    assert_eq!((attached("two"), world.links()), (foreign, 0));
    command("ip link set dev two xdp off");
    // Somebody else cannot take the place of a chain.
    world.must("chain attach two fw.toml --kernel");
    let ours = attached("two");
    assert_ne!(ip(&format!("link set dev two xdp obj {object} sec xdp")).shell_status(), 0);
    assert_ne!(ip("link set dev two xdp off").shell_status(), 0);
    assert_eq!(attached("two"), ours);
    // The interface goes and comes again: what was left of the chain is no hindrance.
    command("ip link del one");
    command("ip link add one type veth peer name two");
    let (status, said) = world.said("chain show two --kernel");
    assert_eq!((status, &*said), (1, "error: interface `two` has no chain in the kernel"));
    world.must("chain attach two fw.toml --kernel --mode generic");
    assert!(attached("two").is_some());
    world.must("chain detach two --kernel");
}

/// Runs a command until its `n`-th system call of the kind that changes something (`bpf`, `unlink`,
/// `rename`, `mkdir`), kills it before or after that call, and tells whether it came to that.
fn killed_at(command: &mut Command, n: usize) -> bool {
    const CALLS: [libc::c_long; 8] = [
        libc::SYS_bpf,
        libc::SYS_unlink,
        libc::SYS_unlinkat,
        libc::SYS_rename,
        libc::SYS_renameat2,
        libc::SYS_mkdir,
        libc::SYS_flock,
        libc::SYS_close,
    ];
    command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
    // SAFETY: one system call between fork and exec.
    unsafe {
        command.pre_exec(|| {
            let done = libc::ptrace(libc::PTRACE_TRACEME, 0, 0, 0);
            if done == 0 { Ok(()) } else { Err(std::io::Error::last_os_error()) }
        });
    }
    let mut child = command.spawn().unwrap();
    let pid = child.id() as i32;
    let mut stops = 0;
    // SAFETY: the child is ours, and stopped where it is asked; the structures are ours.
    let reached = unsafe {
        let mut status = 0;
        assert_eq!(libc::waitpid(pid, &mut status, 0), pid);
        libc::ptrace(libc::PTRACE_SETOPTIONS, pid, 0, libc::PTRACE_O_TRACESYSGOOD);
        let mut deliver = 0;
        loop {
            libc::ptrace(libc::PTRACE_SYSCALL, pid, 0, deliver as libc::c_long);
            if libc::waitpid(pid, &mut status, 0) != pid || !libc::WIFSTOPPED(status) {
                break false;
            }
            let signal = libc::WSTOPSIG(status);
            deliver = if signal & 0x80 != 0 { 0 } else { signal };
            if signal & 0x80 == 0 {
                continue;
            }
            let mut regs: libc::user_regs_struct = std::mem::zeroed();
            libc::ptrace(libc::PTRACE_GETREGS, pid, 0, &raw mut regs);
            if CALLS.contains(&(regs.orig_rax as libc::c_long)) {
                if stops == n {
                    break true;
                }
                stops += 1;
            }
        }
    };
    if reached {
        child.kill().unwrap();
    }
    child.wait().ok();
    reached
}

/// Whoever is killed at any step leaves the chain that was there or the new one, and nothing that
/// hinders the next.
#[test]
fn killed_at_any_step_it_leaves_the_old_chain_or_the_new_one() {
    let Some(world) = World::new() else { return };
    let maps = world.bpf.join("maps").display().to_string();
    let attach = format!("chain attach two fw.toml --kernel --pin {maps}");
    // How many of the stops to look at: all under stress.
    let step = if std::env::var_os("SKEP_STRESS").is_some() { 1 } else { 3 };
    // A first chain: nothing or the chain.
    let mut n = 0;
    while killed_at(&mut world.command(&attach), n) {
        let pinned = world.links() == 1;
        assert_eq!(attached("two").is_some(), pinned, "killed at {n}");
        if pinned {
            world.must("chain detach two --kernel");
        }
        assert_eq!(attached("two"), None);
        n += step;
    }
    assert!(n > 10, "{n}");
    // A swap: one of the two.
    world.must(&attach);
    let mut n = 0;
    let (mut before, mut swapped) = (attached("two"), 0);
    while killed_at(&mut world.command(&attach), n) {
        let now = attached("two");
        assert!(now.is_some(), "killed at {n}");
        swapped += usize::from(now != before);
        json(&world.must("chain show two --kernel --json").stdout);
        before = now;
        n += step;
    }
    assert!(n > 10 && swapped > 0, "{n} {swapped}");
    // One program more: the chain without it, or with it.
    let add = "chain add two chain.bpf.o:mark --kernel";
    let (mut n, mut with) = (0, nodes(&world).len());
    let all = with;
    while killed_at(&mut world.command(add), n) {
        let now = nodes(&world).len();
        assert!(now == with || now == with + 1, "killed at {n}: {with}, {now}");
        with = now;
        n += 2 * step;
    }
    world.must(add);
    assert!(n > 10 && with > all, "{n} {with}");
    world.must(&attach);
    // Detaching: the chain or nothing.
    let mut n = 0;
    while killed_at(&mut world.command("chain detach two --kernel"), n) {
        assert_eq!(attached("two").is_some(), world.links() == 1, "killed at {n}");
        world.must(&attach);
        n += 1;
    }
    assert!(n > 5, "{n}");
    assert_eq!((attached("two"), world.links()), (None, 0));
    let left = std::fs::read_dir(Path::new(&maps).join("chain")).unwrap();
    let left: Vec<_> = left.flatten().map(|f| f.file_name()).collect();
    assert_eq!(left, ["packets"]);
}
