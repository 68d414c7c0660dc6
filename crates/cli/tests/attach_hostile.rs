//! `skep trace -p` on processes that mean harm: what they say of themselves is anything, and `skep`, which may
//! be root's, neither falls over it nor waits for ever.

mod common;

use std::path::PathBuf;
use std::process::Command;
use std::time::Duration;

use common::live::{LIMIT, Target};
use common::{Skep, fails};
use rustix::process::Signal;
use skep_testkit::TempDir;
use skep_testkit::cc::Cc;
use skep_testkit::run::{signal, start};

/// Has the mark of another version's agent, whose function for making room says that everybody has left,
/// and that so many places in a list are to be written, as its argument says.
const LIAR: &str = r#"
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <unistd.h>
enum { PAGE = 4096, LIBRARY = 3 * PAGE, STACK = 2 << 20, REST = 256, RESTING = PAGE, BUSY = 2048 };
__attribute__((noinline, noclone)) int work(int n) { __asm__ volatile(""); return n + 1; }
int main(int argc, char **argv) {
    uint64_t begin = LIBRARY + 2 * PAGE, len = begin + STACK + PAGE, one = 1, rest = REST, resting = RESTING, busy = BUSY;
    uint64_t library = LIBRARY, count = strtoull(argv[argc - 1], 0, 0);
    prctl(PR_SET_PTRACER, PR_SET_PTRACER_ANY, 0, 0, 0);
    char *at = mmap(0, len + PAGE, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0), *mark = at + begin;
    mprotect(at, begin, PROT_READ | PROT_WRITE | PROT_EXEC);
    mprotect(mark, STACK + PAGE, PROT_READ | PROT_WRITE);
    memcpy(mark, "SKEPLIVE", 8);
    mark[16] = mark[40] = 1;
    memcpy(mark + 48, &library, 8);
    memcpy(mark + 56, &len, 8);
    memcpy(mark + 64, &rest, 8);
    memcpy(mark + 72, &resting, 8);
    memcpy(mark + 80, &busy, 8);
    memcpy(mark + 96, "9.9", 4);
    memcpy(at + RESTING + 16, &count, 8);
    // mov rax, RESTING; mov qword [rax], 1; mov eax, EXIT; xor edi, edi; syscall
    uint64_t word = (uint64_t)(at + RESTING);
    memcpy(at + REST, "\x48\xb8", 2);
    memcpy(at + REST + 2, &word, 8);
    memcpy(at + REST + 10, "\x48\xc7\0\1\0\0\0\xb8\x3c\0\0\0\x31\xff\x0f\5", 16);
    puts("ready");
    fflush(stdout);
    while (read(0, &one, 1) > 0) work(1);
    return 7;
}
"#;

/// Sends so many messages on the agent's socket that `skep` reads nothing else, and reads none: requests of the kind
/// that its argument says.
const TALKER: &str = r#"
#include <dirent.h>
#include <fcntl.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>
__attribute__((noinline, noclone)) int work(int n) { __asm__ volatile(""); return n + 1; }
static void *talk(void *p) {
    static long stacks[1000];
    char message[25] = {(long)p};
    void *at = stacks;
    int count = 1000;
    memcpy(message + 13, &at, 8);
    memcpy(message + 21, &count, 4);
    for (int socket = -1, said = 0;;) {
        struct stat s;
        for (int fd = 800; socket < 0 && fd < 810; fd++)
            if (!fstat(fd, &s) && S_ISSOCK(s.st_mode)) socket = dup(fd);
        /* It may have a table of its own. */
        DIR *all = opendir("/proc/self/task");
        for (struct dirent *e; socket < 0 && (e = readdir(all));) {
            int thread = syscall(SYS_pidfd_open, atoi(e->d_name), O_EXCL);
            for (int fd = 800; thread >= 0 && socket < 0 && fd < 810; fd++) {
                socket = syscall(SYS_pidfd_getfd, thread, fd, 0);
                if (socket >= 0 && (fstat(socket, &s) || !S_ISSOCK(s.st_mode))) { close(socket); socket = -1; }
            }
            if (thread >= 0) close(thread);
        }
        closedir(all);
        if (socket >= 0 && send(socket, message, sizeof message, MSG_NOSIGNAL) > 0 && !said++) puts("talks");
    }
    return p;
}
int main(int argc, char **argv) {
    pthread_t t;
    char c;
    prctl(PR_SET_PTRACER, PR_SET_PTRACER_ANY, 0, 0, 0);
    setvbuf(stdout, 0, _IONBF, 0);
    puts("ready");
    pthread_create(&t, 0, talk, (void *)strtol(argv[argc - 1], 0, 0));
    while (read(0, &c, 1) > 0) work(1);
    return 7;
}
"#;

fn target(source: &str, args: &[&str]) -> Target {
    let dir = TempDir::new();
    let file = dir.join("hostile.c");
    std::fs::write(&file, source).expect("it is written");
    let path: PathBuf = Cc::c().args(&["-O1", "-pthread"]).compile(&[&file], &dir.join("hostile"));
    let mut command = Command::new(&path);
    command.args(args);
    Target::start(dir, path, &command)
}

/// `skep` asked for 100 GB of memory for the list, and was ended for that; with 2 GB the process held it for
/// many seconds.
#[test]
fn a_list_that_is_too_long() {
    let skep = Skep::new();
    for count in ["0xffffffff", "0x6000000"] {
        let mut target = target(LIAR, &[count]);
        let pid = target.pid().to_string();
        fails(&skep, &["trace", "hostile:work", "-p", &pid], 2, " bytes at 0x0 of process ");
        target.end();
    }
}

/// `skep` read its messages for ever, and did not notice that it was told to end; or waited until an answer to
/// one was read.
#[test]
fn one_that_never_stops_talking() {
    const STOP: &str = "2";
    const WRITE: &str = "3";
    const GO_ON: &str = "4";
    for kind in [STOP, WRITE, GO_ON] {
        let (skep, mut target) = (Skep::new(), target(TALKER, &[kind]));
        let pid = target.pid().to_string();
        let mut running = start(&skep.command(["trace", "hostile:work", "-p", &pid]), LIMIT);
        assert_eq!(target.line(), "talks");
        // Until there is no more room for answers.
        std::thread::sleep(Duration::from_millis(500));
        signal(running.id(), Signal::INT);
        assert!(running.wait().expect("it ends").code().is_some(), "it was not killed: {kind}");
        target.end();
    }
}
