//! Capture files: what is read is what a naive writer wrote, and what is written is what another
//! reader finds, whatever the format, the byte order, and where the file is cut.

mod captures;

use std::io::{self, Read, Write};
use std::ops::ControlFlow;
use std::path::Path;
use std::process::Command;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use captures::{Capture, Packet, Random, read, read_all};
use skep_net::port::batch::Meta;
use skep_net::port::capture::{Format, Kind, Reader, Unit, Writer};
use skep_net::port::generator::Generator;
use skep_net::port::{
    Batch, Outputs, PortError, PumpError, Received, Sink, Source, Until, Verdict, pump,
};
use skep_testkit::run::run;
use skep_testkit::skip::has_command;
use skep_testkit::{TempDir, skip};

const LIMIT: Duration = Duration::from_secs(300);

/// Writes packets through a sink, batch by batch.
fn write(sink: &mut dyn Sink, packets: &[Packet]) -> Result<u64, PortError> {
    let (mut batch, mut sent) = (Batch::new(), 0);
    let mut send = |batch: &mut Batch| {
        let all: Vec<u16> = (0..batch.len() as u16).collect();
        sent += sink.send(batch, &all)?.packets;
        batch.clear();
        Ok::<_, PortError>(())
    };
    for packet in packets {
        if !batch.push(packet.meta, &packet.bytes) {
            send(&mut batch)?;
            assert!(batch.push(packet.meta, &packet.bytes));
        }
    }
    send(&mut batch)?;
    sink.flush()?;
    Ok(sent)
}

/// Lines as `read_capture.py` prints them.
fn lines(packets: &[Packet]) -> Vec<String> {
    let hex = |bytes: &[u8]| bytes.iter().map(|b| format!("{b:02x}")).collect::<String>();
    let line =
        |p: &Packet| format!("{} {} {} {}", p.meta.ns, p.meta.port, p.meta.wire_len, hex(&p.bytes));
    packets.iter().map(line).collect()
}

/// What `read_capture.py` finds; `None` without Python.
fn read_by_python(path: &Path) -> Option<Vec<String>> {
    if !has_command("python3") {
        skip("python3");
        return None;
    }
    let script = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/data/read_capture.py");
    let ended = run(Command::new("python3").arg(script).arg(path), b"", LIMIT);
    assert_eq!(ended.shell_status(), 0, "{}", ended.transcript());
    Some(String::from_utf8_lossy(&ended.stdout).lines().map(str::to_owned).collect())
}

#[test]
fn pcap_files_of_all_kinds_are_read() {
    let mut random = Random(1);
    for (big, nanoseconds) in [(false, false), (false, true), (true, false), (true, true)] {
        let capture = Capture::pcap(&mut random, big, nanoseconds, 300);
        let (packets, lost) = read(&capture.file);
        assert_eq!(lines(&packets), lines(&capture.packets));
        let lost = lost.expect("the file is whole");
        assert_eq!(lost.cut_at, None);
        let shortened = packets.iter().filter(|p| p.meta.wire_len as usize > p.bytes.len()).count();
        assert_eq!(lost.shortened, shortened as u64);
    }
}

#[test]
fn pcapng_files_of_many_sections_interfaces_and_unknown_blocks_are_read() {
    let dir = TempDir::new();
    for seed in 0..60 {
        let capture = Capture::pcapng(&mut Random(seed), 80);
        let (packets, lost) = read(&capture.file);
        assert_eq!(lines(&packets), lines(&capture.packets), "seed {seed}");
        assert_eq!(lost.expect("the file is whole").cut_at, None);
        // The naive writer is not alone with what it takes for a file.
        if seed < 5 {
            let path = dir.join("made.pcapng");
            std::fs::write(&path, &capture.file).expect("there is room");
            if let Some(found) = read_by_python(&path) {
                assert_eq!(found, lines(&packets), "seed {seed}");
            }
        }
    }
}

#[test]
fn the_seeds_of_the_fuzzer_are_read_as_python_reads_them() {
    let seeds = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../fuzz/seeds/capture");
    for (name, packets) in [("little-us.pcap", 3), ("big-ns.pcap", 3), ("sections.pcapng", 6)] {
        let mut reader = Reader::open(&seeds.join(name)).expect("it is committed");
        let (found, lost) = read_all(&mut reader);
        assert_eq!((found.len(), lost.expect("it is whole").cut_at), (packets, None), "{name}");
        if let Some(expected) = read_by_python(&seeds.join(name)) {
            assert_eq!(lines(&found), expected, "{name}");
        }
    }
}

#[test]
fn of_a_file_that_is_cut_anywhere_all_packets_before_are_read() {
    let mut random = Random(7);
    let mut captures = vec![
        Capture::pcap(&mut random, false, true, 12),
        Capture::pcap(&mut random, true, false, 12),
    ];
    captures.extend((0..6).map(|seed| Capture::pcapng(&mut Random(seed), 12)));
    for capture in captures {
        let first = capture.ends[0].0;
        // Every place near a border of blocks, and some in the middle of large ones.
        for cut in 0..capture.file.len() {
            let near = capture.ends.iter().any(|(end, _)| cut.abs_diff(*end) < 40);
            if !near && cut % 4999 != 0 {
                continue;
            }
            let (packets, lost) = read(&capture.file[..cut]);
            let whole = capture.ends.iter().rev().find(|(end, _)| *end <= cut);
            let expected = whole.map_or(0, |(_, packets)| *packets);
            assert!(packets == capture.packets[..expected], "cut at {cut}");
            match (lost, whole) {
                (Ok(lost), Some((end, _))) => {
                    assert_eq!(lost.cut_at, (cut != *end).then_some(*end as u64), "cut at {cut}");
                }
                (Ok(lost), None) => assert_eq!(lost.cut_at, Some(0), "cut at {cut}"),
                (Err(e), _) => {
                    let text = e.to_string();
                    assert!(
                        cut < first && text.contains(" ends inside its header")
                            || cut == 0 && text.ends_with("it is empty"),
                        "cut at {cut}: {text}"
                    );
                }
            }
        }
    }
}

#[test]
fn what_is_written_is_read_again_and_by_others() {
    let dir = TempDir::new();
    let mut random = Random(3);
    let mut packets = Capture::pcap(&mut random, false, true, 500).packets;
    for (n, packet) in packets.iter_mut().enumerate() {
        packet.meta.port = 1 + (n as u32 * 7 % 3);
    }
    // The ports of a file are numbered as they come.
    let mut seen = Vec::new();
    let numbered: Vec<Packet> = packets
        .iter()
        .map(|p| {
            let index = seen.iter().position(|port| *port == p.meta.port).unwrap_or_else(|| {
                seen.push(p.meta.port);
                seen.len() - 1
            });
            Packet { meta: Meta { port: index as u32 + 1, ..p.meta }, bytes: p.bytes.clone() }
        })
        .collect();
    let one_port: Vec<Packet> = packets
        .iter()
        .map(|p| Packet { meta: Meta { port: 1, ..p.meta }, bytes: p.bytes.clone() })
        .collect();
    let rounded: Vec<Packet> = one_port
        .iter()
        .map(|p| {
            let ns = p.meta.ns / 1000 * 1000;
            Packet { meta: Meta { ns, ..p.meta }, bytes: p.bytes.clone() }
        })
        .collect();
    let formats = [
        (Format::Pcapng, Kind::Pcapng, numbered),
        (Format::Pcap(Unit::Nanoseconds), Kind::PcapNanoseconds, one_port),
        (Format::Pcap(Unit::Microseconds), Kind::PcapMicroseconds, rounded),
    ];
    for (format, kind, expected) in formats {
        let path = dir.join("written");
        let mut writer = Writer::create(&path, format).expect("it can be created");
        assert_eq!(write(&mut writer, &packets).expect("there is room"), packets.len() as u64);
        let mut reader = Reader::open(&path).expect("it is a capture file");
        assert_eq!(reader.kind(), kind);
        let (found, lost) = read_all(&mut reader);
        assert_eq!(lines(&found), lines(&expected), "{format:?}");
        assert_eq!(lost.expect("it is whole").cut_at, None);
        if let Some(found) = read_by_python(&path) {
            assert_eq!(found, lines(&expected), "{format:?}");
        }
        for tool in ["capinfos", "tcpdump"] {
            if !has_command(tool) {
                skip(tool);
                continue;
            }
            let mut command = Command::new(tool);
            match tool {
                "capinfos" => command.args(["-M", "-c"]).arg(&path),
                _ => command.args(["-n", "-q", "-r"]).arg(&path),
            };
            let ended = run(&mut command, b"", LIMIT);
            assert_eq!(ended.shell_status(), 0, "{}", ended.transcript());
            let text = String::from_utf8_lossy(&ended.stdout);
            let found = match tool {
                "capinfos" => text.contains(&packets.len().to_string()),
                _ => text.lines().count() >= packets.len(),
            };
            assert!(found, "{}", ended.transcript());
        }
    }
}

#[test]
fn the_largest_and_the_smallest_packets_go_through() {
    let bytes = [0, 1, 64, 1514, 3520, 3521, 65_535, 65_536, 262_144, 0];
    let packets: Vec<Packet> = bytes
        .iter()
        .map(|len| Packet {
            meta: Meta { ns: 5, wire_len: *len as u32, port: 1, queue: 0 },
            bytes: vec![*len as u8; *len],
        })
        .collect();
    let dir = TempDir::new();
    for (name, format) in [("a.pcapng", Format::Pcapng), ("a.pcap", Format::of("a.pcap".as_ref()))]
    {
        let mut writer = Writer::create(&dir.join(name), format).expect("it can be created");
        write(&mut writer, &packets).expect("there is room");
        let mut reader = Reader::open(&dir.join(name)).expect("it is a capture file");
        assert_eq!(read_all(&mut reader).0, packets);
    }
}

/// A pipe that gives what it has, packet by packet.
struct Pieces(std::vec::IntoIter<Vec<u8>>);

impl Read for Pieces {
    fn read(&mut self, buf: &mut [u8]) -> io::Result<usize> {
        let Some(piece) = self.0.next() else { return Ok(0) };
        buf[..piece.len()].copy_from_slice(&piece);
        Ok(piece.len())
    }
}

#[test]
fn what_a_pipe_has_by_now_is_not_kept_back() {
    let packets: Vec<Packet> = (0..4)
        .map(|n| Packet { meta: Meta { wire_len: 60, ..Meta::default() }, bytes: vec![n; 60] })
        .collect();
    let mut c = Capture::default();
    c.words(&[0xa1b2_c3d4, 4 << 16 | 2, 0, 0, 0, 1]);
    let mut pieces = vec![std::mem::take(&mut c.file)];
    for packet in &packets {
        c.words(&[0, 0, 60, 60]);
        c.file.extend_from_slice(&packet.bytes);
        pieces.push(std::mem::take(&mut c.file));
    }
    let from = Box::new(Pieces(pieces.into_iter()));
    let mut reader = Reader::new("pipe", from).expect("the header comes first");
    for packet in &packets {
        let mut batch = Batch::new();
        assert_eq!(reader.receive(&mut batch, Duration::ZERO).expect("it reads"), Received::Frames);
        assert_eq!(batch.len(), 1);
        assert_eq!(batch.frame(0).map(|f| f.bytes.to_vec()), Some(packet.bytes.clone()));
    }
    let mut batch = Batch::new();
    assert_eq!(reader.receive(&mut batch, Duration::ZERO).expect("it reads"), Received::End);
}

#[test]
fn what_is_no_capture_file_is_refused_with_the_reason() {
    let error = |file: &[u8]| read(file).1.expect_err("it is refused").to_string();
    assert_eq!(error(b""), "`test`, after 0 packets: it is empty");
    assert_eq!(error(b"ab"), "`test`, after 0 packets: it ends inside its header");
    assert_eq!(
        error(b"\x7fELF, and so on, for more than a header"),
        "`test`, after 0 packets: it is neither pcap nor pcapng: it begins with 7f 45 4c 46"
    );
    let mut random = Random(1);
    let whole = Capture::pcap(&mut random, false, false, 3);
    let with = |at: usize, bytes: &[u8]| {
        let mut file = whole.file.clone();
        file[at..at + bytes.len()].copy_from_slice(bytes);
        file
    };
    assert!(error(&with(0, &0xa1b2_cd34_u32.to_le_bytes())).contains("Kuznetzov"));
    assert!(error(&with(4, &[3])).ends_with("version 3.4 of the format is not known"));
    assert!(error(&with(20, &[113])).ends_with("link type 113, packet programs take Ethernet (1)"));
    let second = whole.ends[1].0;
    let (packets, failed) = read(&with(second + 8, &[0, 0, 5, 0]));
    assert_eq!(packets, whole.packets[..1]);
    assert_eq!(
        failed.expect_err("it is damaged").to_string(),
        format!(
            "`test`, after 1 packet: the packet at byte {second} has 327680 bytes, no packet has \
             more than 262144"
        )
    );

    let mut c = Capture::default();
    c.section();
    let start = c.file.len();
    c.block(6, |c| c.words(&[1, 0, 0, 0, 0]));
    assert!(
        error(&c.file)
            .ends_with(&format!("packet at byte {start} is of interface 1, of 0 in its section"))
    );
    let mut wrong = c.file.clone();
    let last = wrong.len() - 4;
    wrong[last] ^= 4;
    assert!(error(&wrong).ends_with("the two lengths of it differ"));
    wrong[start + 4] = 8;
    assert!(error(&wrong).ends_with("its length is less than 12, or no multiple of 4"));
    wrong[8] ^= 1;
    assert!(error(&wrong).ends_with("the block at byte 0: it has no byte order"));
}

#[test]
fn damaged_files_end_with_an_error_or_fewer_packets_never_worse() {
    let rounds = if std::env::var_os("SKEP_STRESS").is_some() { 300_000 } else { 3000 };
    let mut random = Random(99);
    let whole: Vec<Vec<u8>> = (0..12)
        .map(|seed| {
            let mut random = Random(seed);
            match seed {
                0..4 => Capture::pcap(&mut random, seed & 1 != 0, seed & 2 != 0, 8).file,
                _ => Capture::pcapng(&mut random, 14).file,
            }
        })
        .map(|mut file| {
            file.truncate(8000);
            file
        })
        .collect();
    for _ in 0..rounds {
        let mut file = whole[random.below(12) as usize].clone();
        for _ in 0..=random.below(3) {
            let at = random.below(file.len() as u64) as usize;
            file[at] = [0, 0xff, 1, 0x7f, random.next() as u8][random.below(5) as usize];
        }
        let (packets, _) = read(&file);
        let bytes: usize = packets.iter().map(|p| p.bytes.len()).sum();
        assert!(bytes <= file.len(), "{bytes} bytes out of {}", file.len());
    }
}

/// Takes so many bytes, then says that the disk is full.
struct Limited {
    taken: Arc<Mutex<Vec<u8>>>,
    limit: usize,
}

impl Write for Limited {
    fn write(&mut self, buf: &[u8]) -> io::Result<usize> {
        let mut taken = self.taken.lock().expect("nobody panicked");
        let room = (self.limit - taken.len()).min(buf.len());
        if room == 0 {
            return Err(io::ErrorKind::StorageFull.into());
        }
        taken.extend_from_slice(&buf[..room]);
        Ok(room)
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

#[test]
fn a_full_disk_is_reported_with_the_packets_that_are_on_it() {
    let mut random = Random(5);
    for limit in [10, 24, 100, 5000, 300_000, 700_000] {
        let all = Capture::pcap(&mut random, false, true, 400).packets;
        let taken = Arc::new(Mutex::new(Vec::new()));
        let to = Box::new(Limited { taken: Arc::clone(&taken), limit });
        let mut writer = Writer::new("disk", to, Format::Pcap(Unit::Nanoseconds));
        let error = write(&mut writer, &all).expect_err("it is full");
        let PortError::Write { packets, lost, .. } = &error else { panic!("{error}") };
        let (found, _) = read(&taken.lock().expect("nobody panicked"));
        assert_eq!(found.len() as u64, *packets, "{limit}");
        assert_eq!(lines(&found), lines(&all[..found.len()]));
        assert!(*lost > 0 && packets + lost <= all.len() as u64);
        assert!(
            error.to_string().starts_with("cannot write `disk` any further: no storage space"),
            "{error}"
        );
        drop(writer);
        assert!(taken.lock().expect("nobody panicked").len() <= limit);
    }
}

/// Every frame is in the file, or counted as not written, whenever the disk becomes full: in the midst
/// of a batch, behind it, or when all is flushed.
#[test]
fn what_a_full_disk_does_not_take_is_counted() {
    for limit in [0, 24, 100, 5000, 262_144, 300_000] {
        for frames in [1, 63, 5000] {
            let taken = Arc::new(Mutex::new(Vec::new()));
            let to = Box::new(Limited { taken: Arc::clone(&taken), limit });
            let mut outputs = Outputs::new();
            let disk = Writer::new("disk", to, Format::Pcap(Unit::Nanoseconds));
            let disk = outputs.add(Box::new(disk));
            outputs.send_verdict(2, disk);
            let mut source = Generator::new(&[60]).packets(frames);
            let pumped = pump(&mut source, &mut outputs, &Until::default(), |batch, verdicts| {
                (0..batch.len()).for_each(|n| verdicts.set(n, Verdict::Pass));
                ControlFlow::Continue(())
            });
            if frames as usize * (60 + 16) + 24 <= limit {
                assert_eq!(pumped.expect("there is room").sent.packets, frames);
                continue;
            }
            let PumpError { stats, source } = pumped.expect_err("it is full");
            let PortError::Write { packets, lost, .. } = source else { panic!("{source}") };
            let sent = stats.sent;
            assert_eq!((sent.packets, sent.bytes), (packets, 60 * packets), "{limit}, {frames}");
            assert_eq!((sent.unwritten, sent.ring_full), (lost, 0), "{limit}, {frames}");
            assert_eq!(stats.verdicts[2], packets + lost, "{limit}, {frames}");
            let (found, _) = read(&taken.lock().expect("nobody panicked"));
            assert_eq!(found.len() as u64, packets, "{limit}, {frames}");
        }
    }
}

/// A file system of a few pages.
struct SmallDisk(TempDir);

impl SmallDisk {
    fn mount() -> Option<Self> {
        let dir = TempDir::new();
        let mut mount = Command::new("mount");
        mount.args(["-t", "tmpfs", "-o", "size=128k", "skep-test"]).arg(dir.path());
        (run(&mut mount, b"", LIMIT).shell_status() == 0).then_some(Self(dir))
    }
}

impl Drop for SmallDisk {
    fn drop(&mut self) {
        run(Command::new("umount").arg(self.0.path()), b"", LIMIT);
    }
}

#[test]
fn a_file_on_a_full_disk_ends_behind_a_packet() {
    let Some(disk) = has_command("mount").then(SmallDisk::mount).flatten() else {
        return skip("root, to mount a small file system");
    };
    let all = Capture::pcap(&mut Random(6), false, true, 300).packets;
    for format in [Format::Pcapng, Format::Pcap(Unit::Nanoseconds)] {
        let path = disk.0.join("full");
        let mut writer = Writer::create(&path, format).expect("there is room for a name");
        let error = write(&mut writer, &all).expect_err("it is full");
        let PortError::Write { packets, name, .. } = &error else { panic!("{error}") };
        assert_eq!(*name, path.display().to_string());
        drop(writer);
        let mut reader = Reader::open(&path).expect("it is a capture file");
        let (found, lost) = read_all(&mut reader);
        assert_eq!((found.len() as u64, lost.expect("it is whole").cut_at), (*packets, None));
        assert!(!found.is_empty());
        std::fs::remove_file(&path).expect("it is ours");
    }
}
