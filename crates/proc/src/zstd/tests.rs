use std::io::Write;
use std::process::{Command, Stdio};

use skep_testkit::skip::{has_command, skip};

use super::*;

fn unpack(data: &[u8], most: usize) -> Option<Vec<u8>> {
    let mut frames = Frames::new(data);
    while frames.block()? {
        if frames.out().len() > most {
            return None;
        }
    }
    Some(frames.into_out())
}

fn random(seed: &mut u64) -> usize {
    *seed = seed.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
    (*seed >> 33) as usize
}

/// Runs of bytes, noise, words, and parts of what was before.
fn mixed(seed: &mut u64, size: usize) -> Vec<u8> {
    let mut out = Vec::new();
    while out.len() < size {
        let length = 1 << (random(seed) % 14);
        match random(seed) % 5 {
            0 => out.extend(std::iter::repeat_n(random(seed) as u8, length)),
            1 => out.extend((0..length).map(|_| random(seed) as u8)),
            2 => out.extend((0..length).map(|_| b"etaoin shrdlu\n"[random(seed) % 14])),
            3 if !out.is_empty() => {
                let from = random(seed) % out.len();
                let end = out.len().min(from + length);
                out.extend_from_within(from..end);
            }
            _ => out.extend((0..length / 8).flat_map(|n| (n as u64 * 24).to_le_bytes())),
        }
    }
    out.truncate(size);
    out
}

fn packed(data: &[u8], options: &[&str]) -> Vec<u8> {
    let mut zstd = Command::new("zstd")
        .args(["-q", "-c"])
        .args(options)
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let (mut to, data) = (zstd.stdin.take().unwrap(), data.to_vec());
    let writer = std::thread::spawn(move || to.write_all(&data));
    let out = zstd.wait_with_output().unwrap();
    writer.join().unwrap().unwrap();
    assert!(out.status.success());
    out.stdout
}

/// Of all levels, with and without a size in the header, with windows smaller than the data.
#[test]
fn what_zstd_compresses_is_what_it_was() {
    if !has_command("zstd") {
        return skip("zstd");
    }
    let mut seed = 1;
    let sizes = [0, 1, 100, 256, 40_000, (128 << 10) + 1, 700_000];
    let options: [&[&str]; 6] = [
        &["-1", "--stream-size"],
        &["-3", "--no-check"],
        &["-19"],
        &["--fast=20"],
        &["-5", "--long=18"],
        &["-3", "--zstd=wlog=10"],
    ];
    for size in sizes {
        let with_size = format!("--stream-size={size}");
        for options in options {
            let options: Vec<&str> = options
                .iter()
                .map(|option| if *option == "--stream-size" { &with_size } else { *option })
                .collect();
            // Compressing much takes longer than what is tested.
            if size > 150_000 && options == ["-19"] {
                continue;
            }
            let data = mixed(&mut seed, size);
            let packed = packed(&data, &options);
            let got = unpack(&packed, size);
            assert!(got.as_ref() == Some(&data), "{size} {options:?}");
            // Several, and what is skipped.
            let two = [&packed[..], &[0x5a, 0x2a, 0x4d, 0x18, 2, 0, 0, 0, 9, 9], &packed].concat();
            assert!(unpack(&two, 2 * size) == Some(data.repeat(2)), "{size} {options:?}");
        }
    }
    // What compilers write: text with few symbols, and of every length of a code.
    for number in 0..20 {
        let size = random(&mut seed) % 5000;
        let symbols = 1 + random(&mut seed) % 200;
        let data: Vec<u8> = (0..size)
            .map(|_| (random(&mut seed) % symbols * (random(&mut seed) % symbols) / symbols) as u8)
            .collect();
        let level = format!("-{}", 1 + number % 19);
        assert!(unpack(&packed(&data, &[&level]), size) == Some(data), "{number} {level}");
    }
}

/// A block becomes so much and no more, damaged or not.
#[test]
fn damaged_frames_become_no_more_than_their_blocks() {
    if !has_command("zstd") {
        return skip("zstd");
    }
    let mut seed = 2;
    for round in 0..4000 {
        let size = 1 + random(&mut seed) % 3000;
        let mut data = packed_once(&mut seed, size, round);
        for _ in 0..=random(&mut seed) % 3 {
            let at = random(&mut seed) % data.len();
            match random(&mut seed) % 3 {
                0 => data[at] = random(&mut seed) as u8,
                1 => data[at] ^= 1 << (random(&mut seed) % 8),
                _ => data.truncate(at + 1),
            }
        }
        let mut frames = Frames::new(&data);
        let mut before = 0;
        while let Some(true) = frames.block() {
            assert!(frames.out().len() - before <= MAX_BLOCK);
            before = frames.out().len();
        }
    }
}

/// Compressed data, a few of which are made for many rounds: starting a command takes long.
fn packed_once(seed: &mut u64, size: usize, round: usize) -> Vec<u8> {
    thread_local! {
        static KNOWN: std::cell::RefCell<Vec<Vec<u8>>> = const { std::cell::RefCell::new(Vec::new()) };
    }
    KNOWN.with_borrow_mut(|known| {
        if known.len() < 20 {
            let level = format!("-{}", 1 + round % 19);
            known.push(packed(&mixed(seed, size), &[&level]));
        }
        known[random(seed) % known.len()].clone()
    })
}

/// A block of 128 KiB with sequences of the greatest length would become gigabytes.
#[test]
fn sequences_longer_than_a_block_are_refused() {
    let bomb = bomb(60_000, 0xffff);
    assert!(bomb.len() < 128 << 10);
    let mut frames = Frames::new(&bomb);
    assert_eq!(frames.block(), None);
    assert!(frames.out().capacity() <= 2 * MAX_BLOCK, "{}", frames.out().capacity());
    // The same with lengths that fit, to see that there is nothing else to refuse.
    let small = self::bomb(1, 17);
    let mut frames = Frames::new(&small);
    assert_eq!(frames.block(), Some(true));
    assert_eq!(frames.out(), &vec![7; 1 + 65539 + 17]);
    assert_eq!(frames.block(), Some(false));
}

/// A frame of one block: sequences that each copy a literal and repeat it `65539 + more` times.
fn bomb(count: usize, more: u16) -> Vec<u8> {
    let literals = ((count as u32) << 4 | 3 << 2 | 1).to_le_bytes();
    let mut block = [&literals[..3], &[7]].concat();
    match count {
        0..128 => block.push(count as u8),
        128..0x7f00 => block.extend([(count >> 8) as u8 + 128, count as u8]),
        _ => block.extend([&[255][..], &((count - 0x7f00) as u16).to_le_bytes()].concat()),
    }
    // Each of the three numbers is one code: a literal, the last offset, a match of the longest kind.
    block.extend([0b0101_0100, 1, 0, 52]);
    // Codes of one kind take no bits, so there are those of the lengths only, and the last one.
    block.extend(more.to_le_bytes().repeat(count));
    block.push(1);
    let head = ((block.len() as u32) << 3 | 2 << 1 | 1).to_le_bytes();
    [&[0x28, 0xb5, 0x2f, 0xfd, 0, 0x70], &head[..3], &block].concat()
}
