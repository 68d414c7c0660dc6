//! The counters of a running chain on a terminal, drawn over and over in the same place.

use std::io::{self, IsTerminal, Write};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use skep::chain::{Chain, Stats, picture};

use crate::printer::Printer;
use crate::units;

/// Time from one drawing to the next.
const EVERY: Duration = Duration::from_millis(500);

/// Draws until it is dropped, and leaves the terminal as it was.
pub struct Live {
    end: Arc<AtomicBool>,
    thread: Option<JoinHandle<()>>,
}

impl Live {
    /// Begins to draw what this process counts, if standard error is a terminal and nothing else is
    /// wanted.
    pub fn start(chain: Chain, printer: Printer) -> Option<Self> {
        let is_dumb = std::env::var_os("TERM").is_some_and(|t| t == "dumb");
        if printer.is_quiet() || is_dumb || !io::stderr().is_terminal() {
            return None;
        }
        let end = Arc::new(AtomicBool::new(false));
        let ended = Arc::clone(&end);
        let draw = move || {
            let mut screen = Screen { lines: 0, began: Instant::now(), last: None };
            loop {
                std::thread::park_timeout(EVERY);
                if ended.load(Relaxed) {
                    break;
                }
                screen.draw(&chain);
            }
            screen.erase(&mut io::stderr().lock());
        };
        let thread = std::thread::Builder::new().name("skep-live".to_owned()).spawn(draw).ok()?;
        Some(Self { end, thread: Some(thread) })
    }
}

impl Drop for Live {
    fn drop(&mut self) {
        self.end.store(true, Relaxed);
        if let Some(thread) = self.thread.take() {
            thread.thread().unpark();
            // It only draws: when it failed, there is nothing to be done.
            drop(thread.join());
        }
    }
}

/// What is drawn.
struct Screen {
    /// Lines that stand there.
    lines: usize,
    began: Instant,
    /// Packets at the drawing before, and when that was.
    last: Option<(u64, Instant)>,
}

impl Screen {
    fn draw(&mut self, chain: &Chain) {
        let (Ok(graph), Ok(running)) = (chain.graph(), chain.running()) else { return };
        let mut stats = Stats::default();
        let own = running.iter().filter(|r| r.process == std::process::id());
        own.for_each(|r| stats.merge(&r.stats));
        let runs = |id| stats.nodes.get(&id).map_or(0, skep::chain::NodeStats::runs);
        let packets = graph.entry().map_or(0, runs);
        let now = Instant::now();
        let (before, at) = self.last.replace((packets, now)).unwrap_or((0, self.began));
        let rate = packets.saturating_sub(before) as f64 / (now - at).as_secs_f64().max(1e-9);
        let mut text = format!(
            "{}  {rate:.0}/s  {}s  revision {}  (Ctrl-C ends)\n",
            units::count(packets, "packet"),
            self.began.elapsed().as_secs(),
            graph.revision()
        );
        text += &picture::text(&graph, Some(&stats));
        let size = rustix::termios::tcgetwinsize(io::stderr()).ok();
        let (rows, columns) = size.map_or((24, 80), |s| (s.ws_row.into(), s.ws_col.into()));
        let mut out = io::stderr().lock();
        self.erase(&mut out);
        // A line that is too long would be two; what does not fit could not be erased.
        let limit = |n: usize, otherwise| if n == 0 { otherwise } else { n };
        let (rows, columns) = (limit(rows, 24), limit(columns, 80));
        for line in text.lines().take(rows.saturating_sub(1)) {
            let line: String = line.chars().take(columns.saturating_sub(1)).collect();
            drop(writeln!(out, "{line}"));
            self.lines += 1;
        }
        drop(out.flush());
    }

    fn erase(&mut self, out: &mut dyn Write) {
        if self.lines > 0 {
            // To the start of the line so many lines above, and all behind that away.
            drop(write!(out, "\x1b[{}F\x1b[J", self.lines));
            drop(out.flush());
            self.lines = 0;
        }
    }
}
