//! The processes whose addresses are normalized.

use std::fs;
use std::io::{BufRead, BufReader, Read, Write};
use std::os::fd::AsFd;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};

use rustix::mm::{MapFlags, ProtFlags, mmap, mmap_anonymous, munmap};

/// What a process has mapped besides the program itself.
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct Shape {
    /// Small ELF files, each with a build id of its own; two mappings each, one executable.
    pub files: usize,
    /// Mappings of the first file, every other one executable.
    pub of_one: usize,
    /// Mappings without a file.
    pub anonymous: usize,
    /// A thread that maps and unmaps without pause.
    pub churn: bool,
}

/// Pages of a file.
const PAGES: usize = 16;
const PAGE: usize = 4096;

/// A process that waits with its mappings until this is dropped.
pub struct Fixture {
    child: Child,
    dir: PathBuf,
}

impl Fixture {
    pub fn start(shape: Shape) -> Self {
        let dir = std::env::temp_dir().join(format!("procmap-bench-{}", std::process::id()));
        fs::create_dir_all(&dir).expect("there is room for files");
        for number in 0..shape.files.max(1) {
            fs::write(dir.join(format!("lib{number}.so")), elf(number)).expect("there is room");
        }
        let numbers = [shape.files, shape.of_one, shape.anonymous, usize::from(shape.churn)];
        let mut child = Command::new(std::env::current_exe().expect("it runs"))
            .arg("fixture")
            .arg(&dir)
            .args(numbers.map(|n| n.to_string()))
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .expect("it runs");
        let mut line = String::new();
        let mut out = BufReader::new(child.stdout.take().expect("it is a pipe"));
        out.read_line(&mut line).expect("the fixture speaks");
        assert_eq!(line, "ready\n");
        Self { child, dir }
    }

    pub fn pid(&self) -> u32 {
        self.child.id()
    }
}

impl Drop for Fixture {
    fn drop(&mut self) {
        drop(self.child.stdin.take());
        self.child.wait().ok();
        fs::remove_dir_all(&self.dir).ok();
    }
}

/// The process itself.
pub fn run(args: &[String]) {
    let dir = Path::new(&args[0]);
    let numbers: Vec<usize> = args[1..].iter().map(|n| n.parse().expect("a number")).collect();
    let read = ProtFlags::READ;
    let file = |number: usize| fs::File::open(dir.join(format!("lib{number}.so"))).expect("made");
    let map = |file: &fs::File, prot, pages| {
        // SAFETY: the kernel chooses addresses where nothing is mapped.
        let done = unsafe {
            mmap(std::ptr::null_mut(), pages * PAGE, prot, MapFlags::PRIVATE, file.as_fd(), 0)
        };
        done.expect("the limit of mappings is not reached");
    };
    for number in 0..numbers[0] {
        let file = file(number);
        map(&file, read, 1);
        map(&file, read | ProtFlags::EXEC, PAGES);
    }
    let first = file(0);
    for n in 0..numbers[1] {
        map(&first, if n % 2 == 0 { read } else { read | ProtFlags::EXEC }, 1);
    }
    for n in 0..numbers[2] {
        let prot = if n % 2 == 0 { read } else { read | ProtFlags::WRITE };
        // SAFETY: as above.
        unsafe { mmap_anonymous(std::ptr::null_mut(), PAGE, prot, MapFlags::PRIVATE) }
            .expect("the limit of mappings is not reached");
    }
    if numbers[3] == 1 {
        std::thread::spawn(|| {
            loop {
                // SAFETY: what is unmapped was mapped here.
                unsafe {
                    let flags = MapFlags::PRIVATE;
                    let at =
                        mmap_anonymous(std::ptr::null_mut(), 16 * PAGE, ProtFlags::READ, flags);
                    munmap(at.expect("there is room"), 16 * PAGE).expect("it was mapped");
                }
            }
        });
    }
    println!("ready");
    std::io::stdout().flush().expect("the parent listens");
    std::io::stdin().read_to_end(&mut Vec::new()).ok();
}

/// An ELF file with one segment of code, and its number for a build id.
fn elf(number: usize) -> Vec<u8> {
    let mut file = b"\x7fELF\x02\x01\x01\0\0\0\0\0\0\0\0\0".to_vec();
    file.extend([3u16, 62].map(u16::to_le_bytes).concat());
    file.extend(1u32.to_le_bytes());
    file.extend([0u64, 64, 0].map(u64::to_le_bytes).concat());
    file.extend(0u32.to_le_bytes());
    file.extend([64u16, 56, 2, 64, 0, 0].map(u16::to_le_bytes).concat());
    let size = (PAGES * PAGE) as u64;
    for (kind, flags, words) in
        [(1u32, 5u32, [0, 0, 0, size, size, 4096]), (4, 4, [176, 176, 176, 36, 36, 4])]
    {
        file.extend([kind, flags].map(u32::to_le_bytes).concat());
        file.extend(words.map(u64::to_le_bytes).concat());
    }
    file.extend([4u32, 20, 3].map(u32::to_le_bytes).concat());
    file.extend(b"GNU\0");
    file.extend([0xab; 12]);
    file.extend((number as u64).to_le_bytes());
    file.resize(PAGES * PAGE, 0xcc);
    file
}
