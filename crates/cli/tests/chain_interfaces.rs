//! `skep chain run` on veth pairs and TAP devices in network namespaces of the test's own: packets
//! come and go, and what cannot be done any more is reported with what was done before.

mod common;

use std::io::Read;
use std::time::{Duration, Instant};

use common::{Skep, fails, json, out, text};
use serde_json::{Value as Json, json};
use skep_testkit::network::{self, command, veth};
use skep_testkit::run::Running;
use skep_testkit::skip;

const LIMIT: Duration = Duration::from_secs(300);
const DATA: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../skep/tests/data");

/// A directory with files of chains: `fw.toml` drops short packets and marks others, `swap.toml`
/// sends all back.
fn prepared() -> Skep {
    let skep = Skep::new();
    let program = |object: &str, program: &str| {
        format!("[[program]]\nobject = '{DATA}/{object}'\nprogram = '{program}'\n")
    };
    let fw = program("chain.bpf.o", "drop_short") + &program("chain.bpf.o", "mark");
    std::fs::write(skep.path("fw.toml"), fw).unwrap();
    std::fs::write(skep.path("swap.toml"), program("packets/packets.bpf.o", "swap")).unwrap();
    skep
}

/// Starts a chain, and waits until so many packet sockets receive.
fn start(skep: &Skep, chain: &str, args: &[&str], sockets: usize) -> Running {
    let chain = skep.path(chain).display().to_string();
    let running = skep.start(["chain", "run", &chain, "--json"].iter().chain(args));
    until("it has its sockets", || packet_sockets() >= sockets);
    running
}

/// Waits until something is so, and fails when that takes far too long.
fn until(what: &str, is_so: impl Fn() -> bool) {
    let began = Instant::now();
    while !is_so() {
        assert!(began.elapsed() < LIMIT, "{what} in the end");
        std::thread::yield_now();
    }
}

/// Counts the packet sockets of this thread's network namespace that receive from one interface.
fn packet_sockets() -> usize {
    let table = std::fs::read_to_string("/proc/thread-self/net/packet").unwrap();
    // sk RefCnt Type Proto Iface R …
    let receives = |line: &&str| {
        let words: Vec<&str> = line.split_whitespace().collect();
        words[3] == "0003" && words[4] != "0" && words[5] == "1"
    };
    table.lines().skip(1).filter(receives).count()
}

/// Waits for the end of a run: its status, report and messages.
fn ended(mut running: Running) -> (Option<i32>, Json, String) {
    let (mut report, mut said) = (String::new(), String::new());
    running.stdout.take().unwrap().read_to_string(&mut report).unwrap();
    running.stderr.take().unwrap().read_to_string(&mut said).unwrap();
    (running.wait().unwrap().code(), json(report.as_bytes()), said)
}

/// Sends packets of 64 and 54 bytes in turn to an interface.
fn send(skep: &Skep, packets: u32, to: &str) {
    let (chain, packets) = (skep.path("swap.toml").display().to_string(), packets.to_string());
    let to = format!("*={to}");
    let args = ["chain", "run", &chain, "--in", "gen:64+54", "--packets", &packets, "--out", &to];
    out(skep, &args);
}

#[test]
fn a_chain_runs_on_what_comes_in_on_an_interface() {
    if !network::enter(true) {
        return;
    }
    let skep = prepared();
    veth("one", "two");
    veth("three", "four");
    let file = skep.path("ok.pcap").display().to_string();
    let to = format!("pass={file},drop=three");
    let args = ["--in", "two", "--out", &to, "--packets", "200"];
    let running = start(&skep, "fw.toml", &args, 1);
    let short = start(&skep, "fw.toml", &["--in", "four", "--packets", "100"], 2);
    send(&skep, 200, "one");
    let (status, report, said) = ended(running);
    assert_eq!(status, Some(0), "{said}");
    assert_eq!(report["verdicts"]["pass"], json!(100), "{report}");
    assert_eq!(report["nodes"][0]["verdicts"], json!({"drop": 100, "pass": 100}));
    assert_eq!(report["sent"]["packets"], json!(200));
    assert_eq!(report["dropped"]["before_receive"], json!(0));
    let captured = std::fs::read(file).unwrap();
    let packets: Vec<&[u8]> = captured[24..].chunks(80).collect();
    assert_eq!(packets.len(), 100);
    assert!(packets.iter().all(|p| p[16 + 12..16 + 14] == [0xbe, 0xe5]), "all are marked");
    let (status, report, said) = ended(short);
    assert_eq!((status, &report["verdicts"]["drop"]), (Some(0), &json!(100)), "{said}");
    assert_eq!(report["bytes"], json!(5400));
}

#[test]
fn a_chain_runs_between_the_kernel_and_a_tap_device() {
    if !network::enter(true) {
        return;
    }
    if !std::path::Path::new("/dev/net/tun").exists() {
        return skip("/dev/net/tun");
    }
    let skep = prepared();
    let chain = skep.path("fw.toml").display().to_string();
    let file = skep.path("ok.pcap").display().to_string();
    let to = format!("pass={file}");
    let running = skep.start(["chain", "run", &chain, "--in", "tap:t0", "--out", &to, "--json"]);
    let is_up = || std::fs::read_to_string("/proc/thread-self/net/dev").unwrap().contains("t0:");
    until("the device is there", is_up);
    command("ip link set t0 addrgenmode none");
    command("ip link set t0 up");
    send(&skep, 300, "t0");
    // What the device is asked for now ends the run: it is removed.
    let enough = |lines: &str| {
        let line = lines.lines().find(|l| l.contains("t0:")).unwrap();
        line.split_whitespace().nth(10).unwrap().parse::<u64>().unwrap() >= 300
    };
    let devices = || std::fs::read_to_string("/proc/thread-self/net/dev").unwrap();
    until("all was sent", || enough(&devices()));
    command("ip link del t0");
    let (status, report, said) = ended(running);
    assert_eq!(status, Some(1), "{said}");
    assert!(said.contains("`t0` is down, or gone"), "{said}");
    let passed = report["verdicts"]["pass"].as_u64().unwrap();
    let packets = report["packets"].as_u64().unwrap();
    // What the kernel had not handed over when the device went is gone with it.
    assert!(passed > 0 && (150..=160).contains(&passed) || packets < 300, "{report}");
    assert_eq!(report["sent"]["packets"], json!(passed));
    let written = std::fs::metadata(file).unwrap().len();
    assert_eq!(written, report["sent"]["bytes"].as_u64().unwrap() + 24 + 16 * passed);
}

#[test]
fn an_interface_that_goes_away_ends_a_run_with_its_report() {
    if !network::enter(true) {
        return;
    }
    let skep = prepared();
    veth("one", "two");
    // The input goes.
    let (file, all) = (skep.path("all.pcap"), format!("*={}", skep.path("all.pcap").display()));
    let running = start(&skep, "fw.toml", &["--in", "two", "--out", &all], 1);
    send(&skep, 20, "one");
    let written = || std::fs::metadata(&file).map_or(0, |m| m.len());
    until("all is written", || written() == 24 + 10 * (80 + 70));
    command("ip link del one");
    let (status, report, said) = ended(running);
    assert_eq!((status, &report["packets"]), (Some(1), &json!(20)), "{said}");
    assert!(said.contains("the interface `two` is down, or gone"), "{said}");
    assert_eq!(report["error"], json!("the interface `two` is down, or gone"));

    // An output goes, of each kind: what it has taken is counted, and what it has not, too.
    for (to, name, column) in [("one", "one", 10), ("xdp:one@0", "one", 10), ("tap:t1", "t1", 2)] {
        if name == "one" {
            veth("one", "two");
        } else if !std::path::Path::new("/dev/net/tun").exists() {
            return skip("/dev/net/tun");
        }
        let to = format!("*={to}");
        let running = start(&skep, "swap.toml", &["--in", "gen:64", "--out", &to], 0);
        let packets = || {
            let devices = std::fs::read_to_string("/proc/thread-self/net/dev").unwrap();
            let line = devices.lines().find(|l| l.contains(&format!("{name}:")));
            let word = line.and_then(|line| line.split_whitespace().nth(column));
            word.map_or(0, |word| word.parse::<u64>().unwrap())
        };
        until("something is sent", || packets() > 100);
        command(&format!("ip link del {name}"));
        let (status, report, said) = ended(running);
        assert_eq!(status, Some(1), "{said}");
        assert!(said.contains(&format!("the interface `{name}` is down, or gone")), "{said}");
        assert_eq!(report["nodes"][0]["runs"], report["packets"]);
        assert!(report["dropped"]["unwritten"].as_u64() > Some(0), "{report}");
        assert_eq!(accounted(&report), report["packets"].as_u64(), "{report}");
    }
}

/// Packets that were sent or are known to be lost.
fn accounted(report: &Json) -> Option<u64> {
    let dropped = report["dropped"].as_object()?.values().filter_map(Json::as_u64);
    Some(report["sent"]["packets"].as_u64()? + dropped.sum::<u64>())
}

/// Each kind of file that packets are written to, on a disk that is full sooner or later.
#[test]
fn each_kind_of_file_on_a_full_disk_is_reported() {
    if !network::enter(true) {
        return;
    }
    let skep = prepared();
    let chain = skep.path("fw.toml").display().to_string();
    let disk = skep.path("disk");
    std::fs::create_dir(&disk).unwrap();
    command(&format!("mount -t tmpfs -o size=64k none {}", disk.display()));
    let bad = skep.path("bad.pcap");
    for (option, file) in [
        ("--out=pass=", "ok.pcap"),
        ("--out=pass=", "ok.pcapng"),
        ("--dump=mark=", "mark.pcap"),
        ("--dump=mark:after=", "mark.pcapng"),
    ] {
        let path = disk.join(file);
        let wanted = format!("{option}{}", path.display());
        let drops = format!("drop={}", bad.display());
        let args = ["chain", "run", &chain, "--in", "gen:64+54", "--packets", "9000", "--json"];
        let ended = skep.run(args.iter().chain(&[wanted.as_str(), "--out", &drops]));
        let (report, said) = (json(&ended.stdout), text(&ended.stderr));
        assert_eq!(ended.shell_status(), 1, "{}", ended.transcript());
        let full = format!("cannot write `{}` any further: No space left", path.display());
        assert!(said.contains(&full), "{said}");
        assert!(report["error"].as_str().is_some_and(|e| e.contains(&full)), "{report}");
        // The other file has all of its packets.
        let dropped = report["verdicts"]["drop"].as_u64().unwrap();
        assert_eq!(std::fs::metadata(&bad).unwrap().len(), 24 + dropped * (16 + 54));
        if option.starts_with("--out") {
            assert_eq!(accounted(&report), report["packets"].as_u64(), "{report}");
        }
        let there = path.display().to_string();
        let again = out(&skep, &["chain", "run", &chain, "--in", &there, "--json"]);
        let again = json(again.as_bytes());
        let count = again["packets"].as_u64().unwrap();
        assert!(count > 100, "{again}");
        assert_eq!(again["cut_at"], json!(null));
        assert!(said.contains(&format!("{count} packets are in it")), "{count}: {said}");
        std::fs::remove_file(&path).unwrap();
    }
    command(&format!("umount {}", disk.display()));
    // The report itself.
    let full = std::fs::File::options().write(true).open("/dev/full").unwrap();
    let mut command = skep.command(["chain", "run", &chain, "--in", "gen:64", "--packets", "5"]);
    let ended = command.stdout(full).output().unwrap();
    let said = text(&ended.stderr);
    assert!(said.contains("cannot write to `stdout`: No space left"), "{said}");
    assert_eq!(ended.status.code(), Some(2));
}

/// The file that describes the chain, and its objects, were overwritten.
#[test]
fn no_output_is_a_file_that_the_chain_comes_from() {
    let skep = prepared();
    let object = skep.path("own.bpf.o").display().to_string();
    std::fs::copy(format!("{DATA}/chain.bpf.o"), &object).unwrap();
    let chain = skep.path("own.toml").display().to_string();
    std::fs::write(&chain, format!("[[program]]\nobject = '{object}'\nprogram = 'mark'\n"))
        .unwrap();
    out(&skep, &["chain", "create", "own", &chain, "--quiet"]);
    let link = skep.path("link").display().to_string();
    std::os::unix::fs::symlink(&chain, &link).unwrap();
    let files = || [&chain, &object].map(|path| std::fs::read(path).unwrap());
    let before = files();
    for (run, option) in [
        (chain.as_str(), format!("--out={chain}")),
        (&chain, format!("--out=pass={object}")),
        (&chain, format!("--out=drop={link}")),
        (&chain, format!("--dump=mark={chain}")),
        ("own", format!("--out=pass={object}")),
        ("own", format!("--dump=1:after={object}")),
    ] {
        let line = ["chain", "run", run, "--in", "gen:64", "--packets", "5", &option];
        fails(&skep, &line, 2, "is a part of what is run, and would be overwritten");
    }
    let program = ["prog", "run", &object, "mark", "--in", "gen:64", "--packets", "5"];
    fails(&skep, &[&program[..], &["--out", &object]].concat(), 2, "would be overwritten");
    assert!(files() == before);
}

#[test]
fn a_full_disk_ends_a_run_and_what_was_written_is_whole() {
    if !network::enter(true) {
        return;
    }
    let skep = prepared();
    let disk = skep.path("disk");
    std::fs::create_dir(&disk).unwrap();
    // Not seen outside of this thread's namespace.
    command(&format!("mount -t tmpfs -o size=64k none {}", disk.display()));
    let (file, chain) = (disk.join("ok.pcap"), skep.path("fw.toml").display().to_string());
    let to = format!("pass={}", file.display());
    let args = ["chain", "run", &chain, "--in", "gen:64", "--packets", "5000", "--out", &to];
    let ended = skep.run(args.iter().chain(&["--json"]));
    let (report, said) = (json(&ended.stdout), text(&ended.stderr));
    assert_eq!(ended.shell_status(), 1, "{}", ended.transcript());
    let written = std::fs::metadata(&file).unwrap().len();
    let whole = (written - 24) / 80;
    assert_eq!((written - 24) % 80, 0, "it ends behind a packet");
    assert!(whole > 700 && written <= 65_536, "{written}");
    assert!(
        said.contains(&format!("No space left on device (os error 28); {whole} packets are in it")),
        "{said}"
    );
    assert!(report["packets"].as_u64() >= Some(whole), "{report}");
    // What is there can be read again.
    let input = file.display().to_string();
    let again = json(out(&skep, &["chain", "run", &chain, "--in", &input, "--json"]).as_bytes());
    assert_eq!((&again["packets"], &again["cut_at"]), (&json!(whole), &json!(null)));
    command(&format!("umount {}", disk.display()));
}
