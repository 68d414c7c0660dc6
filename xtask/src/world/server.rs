//! Servers: started on a free loopback port, asked a bounded number of things by four clients,
//! ended by SIGTERM.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::{Ipv4Addr, TcpListener, TcpStream};
use std::os::unix::process::CommandExt;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context, Result};
use skep_testkit::run::{Signal, children, kill_group, signal};

use super::run::{LIMIT, how};

/// Who talks to a server.
#[derive(Clone, Copy)]
pub enum Client {
    /// Redis' own protocol.
    Redis,
    /// HTTP/1.1 on connections that stay open.
    Http,
}

/// Clients at a time.
const CLIENTS: usize = 4;
/// Rounds of requests of each.
pub const ROUNDS: usize = 50;

/// A port that was free a moment ago.
pub fn free_port() -> Result<u16> {
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0))
        .context("cannot listen on the loopback interface")?;
    Ok(listener.local_addr()?.port())
}

/// The answers to all clients, the server's errors, and how it ended.
pub fn run(
    command: &mut Command,
    client: Client,
    port: u16,
    rounds: usize,
    traced: bool,
) -> Result<(Vec<u8>, Vec<u8>, String)> {
    command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::piped()).process_group(0);
    let mut server = command.spawn().context("cannot start the server")?;
    let mut stderr = server.stderr.take().expect("stderr was asked for as a pipe");
    let errors = std::thread::spawn(move || {
        let mut bytes = Vec::new();
        stderr.read_to_end(&mut bytes).ok();
        bytes
    });
    let answers = if is_ready(&mut server, port) {
        ask(client, port, rounds)
    } else {
        b"it never listened\n".to_vec()
    };
    if matches!(server.try_wait(), Ok(None)) {
        // Traced, the server is the only child of skep, which then ends with its status.
        let process = if traced {
            children(server.id()).first().copied().unwrap_or(server.id())
        } else {
            server.id()
        };
        signal(process, Signal::TERM);
    }
    let end = wait(&mut server).map_or("did not end when told to".to_owned(), how);
    // What the server has left behind has its stderr open.
    kill_group(&mut server);
    Ok((answers, errors.join().expect("reading does not panic"), end))
}

/// Waits until the server listens, or has ended, or does neither for too long.
fn is_ready(server: &mut Child, port: u16) -> bool {
    let start = Instant::now();
    while start.elapsed() < LIMIT && matches!(server.try_wait(), Ok(None)) {
        if TcpStream::connect((Ipv4Addr::LOCALHOST, port)).is_ok() {
            return true;
        }
        std::thread::sleep(Duration::from_millis(5));
    }
    false
}

fn wait(server: &mut Child) -> Option<std::process::ExitStatus> {
    let start = Instant::now();
    while start.elapsed() < LIMIT {
        if let Ok(Some(status)) = server.try_wait() {
            return Some(status);
        }
        std::thread::sleep(Duration::from_millis(5));
    }
    None
}

/// What all clients were answered, one after the other; an error is an answer, too.
fn ask(client: Client, port: u16, rounds: usize) -> Vec<u8> {
    let clients = (0..CLIENTS).map(|n| {
        std::thread::spawn(move || {
            let mut answers = format!("client {n}\n").into_bytes();
            let talk = match client {
                Client::Redis => redis,
                Client::Http => http,
            };
            if let Err(error) = talk(n, port, rounds, &mut answers) {
                answers.extend(format!("error: {error}\n").bytes());
            }
            answers
        })
    });
    let clients: Vec<_> = clients.collect();
    clients.into_iter().flat_map(|client| client.join().expect("clients do not panic")).collect()
}

fn connect(port: u16) -> std::io::Result<(TcpStream, BufReader<TcpStream>)> {
    let stream = TcpStream::connect((Ipv4Addr::LOCALHOST, port))?;
    stream.set_read_timeout(Some(LIMIT))?;
    stream.set_nodelay(true)?;
    Ok((stream.try_clone()?, BufReader::new(stream)))
}

fn redis(n: usize, port: u16, rounds: usize, answers: &mut Vec<u8>) -> std::io::Result<()> {
    let (mut to, mut from) = connect(port)?;
    for i in 0..rounds {
        let key = |what: &str| format!("{what}{n}");
        let (text, list, hash, set, number) =
            (key("text"), key("list"), key("hash"), key("set"), key("number"));
        let (i, long) = (i.to_string(), "x".repeat(i * 97 % 3000));
        let commands: [&[&str]; 11] = [
            &["SET", &text, &long],
            &["GET", &text],
            &["INCRBY", &number, &i],
            &["LPUSH", &list, &i, "a", "b"],
            &["LRANGE", &list, "0", "5"],
            &["HSET", &hash, &i, &long],
            &["HLEN", &hash],
            &["ZADD", &set, &i, &i],
            &["ZRANGEBYSCORE", &set, "3", "7"],
            &[
                "EVAL",
                "local s = 0 for i = 1, 100 do s = s + i * tonumber(ARGV[1]) end return {s, redis.call('GET', KEYS[1])}",
                "1",
                &number,
                &i,
            ],
            &["LPUSH", &text, "wrong type"],
        ];
        for command in commands {
            let mut request = format!("*{}\r\n", command.len());
            command.iter().for_each(|word| request += &format!("${}\r\n{word}\r\n", word.len()));
            to.write_all(request.as_bytes())?;
            redis_answer(&mut from, answers)?;
        }
    }
    if n == 0 {
        // A forked child writes everything down; its first words depend on when it is asked.
        to.write_all(b"*1\r\n$6\r\nBGSAVE\r\n")?;
        redis_answer(&mut from, answers)?;
    }
    Ok(())
}

/// One answer, whatever its type: a line, a text of a length, or a list of answers.
fn redis_answer(from: &mut impl BufRead, answers: &mut Vec<u8>) -> std::io::Result<()> {
    let mut left = 1usize;
    while left > 0 {
        left -= 1;
        let mut line = String::new();
        if from.read_line(&mut line)? == 0 {
            return Err(std::io::ErrorKind::UnexpectedEof.into());
        }
        answers.extend(line.bytes());
        let number = line[1..].trim().parse::<usize>().unwrap_or(0);
        match line.as_bytes()[0] {
            b'*' => left += number,
            b'$' if !line.starts_with("$-") => {
                let mut text = vec![0; number + 2];
                from.read_exact(&mut text)?;
                answers.extend(text);
            }
            _ => {}
        }
    }
    Ok(())
}

fn http(n: usize, port: u16, rounds: usize, answers: &mut Vec<u8>) -> std::io::Result<()> {
    let (mut to, mut from) = connect(port)?;
    for i in 0..rounds {
        for path in [
            format!("/{n}/{i}"),
            "/re/abc?x=1".to_owned(),
            "/gone".to_owned(),
            format!("/proxy/{i}"),
            "/re/A B".to_owned(),
        ] {
            let method = if i % 7 == 6 { "HEAD" } else { "GET" };
            let more = if i % 3 == 0 { "Accept-Encoding: gzip\r\n" } else { "" };
            to.write_all(
                format!("{method} {path} HTTP/1.1\r\nHost: localhost\r\n{more}\r\n").as_bytes(),
            )?;
            if !http_answer(&mut from, method == "HEAD", answers)? {
                (to, from) = connect(port)?;
            }
        }
    }
    Ok(())
}

/// The status, the kind and the body of one answer; tells whether the connection stays open.
fn http_answer(
    from: &mut impl BufRead,
    head: bool,
    answers: &mut Vec<u8>,
) -> std::io::Result<bool> {
    let (mut length, mut chunked, mut open) = (0, false, true);
    loop {
        let mut line = String::new();
        if from.read_line(&mut line)? == 0 {
            return Err(std::io::ErrorKind::UnexpectedEof.into());
        }
        let (name, value) =
            line.split_once(':').map_or((line.trim(), ""), |(name, value)| (name, value.trim()));
        match name.to_ascii_lowercase().as_str() {
            "content-length" => length = value.parse().unwrap_or(0),
            "transfer-encoding" => chunked = value == "chunked",
            "connection" => open = value != "close",
            // The time.
            "date" => continue,
            _ => {}
        }
        answers.extend(line.bytes());
        if line.trim().is_empty() {
            break;
        }
    }
    if head {
        return Ok(open);
    }
    loop {
        if chunked {
            let mut line = String::new();
            from.read_line(&mut line)?;
            length = usize::from_str_radix(line.trim(), 16).unwrap_or(0) + 2;
        }
        let mut body = vec![0; length];
        from.read_exact(&mut body)?;
        answers.extend(&body);
        if !chunked || length == 2 {
            return Ok(open);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_answer_of_every_type_is_read_whole() {
        let bytes = b"*3\r\n:7\r\n$3\r\na\r\n\r\n*1\r\n$-1\r\n+next\r\n";
        let (mut from, mut answers) = (&bytes[..], Vec::new());
        redis_answer(&mut from, &mut answers).unwrap();
        assert_eq!(from, b"+next\r\n");
        assert!(redis_answer(&mut &b"*2\r\n:1\r\n"[..], &mut answers).is_err());
    }

    #[test]
    fn chunked_and_plain_bodies_are_read_whole() {
        let plain = b"HTTP/1.1 200 OK\r\nDate: now\r\nContent-Length: 2\r\n\r\nhiREST";
        let (mut from, mut answers) = (&plain[..], Vec::new());
        assert!(http_answer(&mut from, false, &mut answers).unwrap());
        assert_eq!(
            (from, answers.as_slice()),
            (&b"REST"[..], &b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nhi"[..])
        );
        let chunked = b"HTTP/1.1 400 Bad\r\nConnection: close\r\nTransfer-Encoding: chunked\r\n\r\n3\r\nabc\r\n0\r\n\r\nREST";
        let mut from = &chunked[..];
        assert!(!http_answer(&mut from, false, &mut answers).unwrap());
        assert_eq!(from, b"REST");
    }
}
