//! Arguments of `skep trace`.

use std::ffi::OsString;
use std::path::PathBuf;
use std::time::Duration;

use clap::Args;

use super::process::{ProcessArgs, duration};
use super::shown::ShownArgs;

pub(super) const HELP: &str = "\
A PATTERN is FUNCTION or MODULE:FUNCTION. Both are shell globs (* ? [a-z]). A
module is given by file name (libc.so.6), by the part before .so (libc), or by
path; a C++ or Rust function by symbol or by demangled name. A comma separates
several functions: libc:malloc,free means both of libc.

Examples:
  skep trace 'libc:*' -- sort /etc/services
  skep trace 'sqlite3_*' --exclude '*mutex*' --sort calls -- ./app
  skep trace '*' --json -o profile.json -- ./app --with arguments
  skep trace 'app:*' --csv -o profile.csv -- ./app
  skep trace 'app:*' --tree --min 1ms -- ./app
  skep trace 'app:*' --caller --sort calls -- ./app
  skep trace 'app:*' --tid -- ./app
  skep trace 'app:*' --flame app.svg -- ./app
  skep trace 'app:*' --record app.skep -- ./app
  skep trace 'libc:open*' --args --ret -- ./app
  skep trace 'app:*' --if 'size > 4096' -- ./app
  skep trace 'app:*' --last 5ms --on 'app:report_error' --args -- ./app
  skep trace 'app:*' --chrome app.json -- ./app
  skep trace 'libc:malloc' --return 'libc:malloc=NULL' --every 100 -- ./app
  skep trace 'libc:malloc' -p 4711 --for 10s
  skep trace 'app:*' --top -p 4711
  skep trace '*' --budget 5% -- ./app
  skep trace 'app:*' --coverage app.info -- ./app
  skep trace --diff before.json after.json
  skep trace --report      print the report of a trace whose `skep` was killed

In the table, `~` marks estimated times, `+` times with calls that had not returned.";

/// What calls are summed up for, and not printed one by one.
const TABLES: [&str; 12] = [
    "orphan", "csv", "caller", "tid", "tgid", "tree", "graph", "flame", "folded", "pprof", "exact",
    "coverage",
];

/// What calls are listed for.
const TIMELINES: [&str; 2] = ["chrome", "perfetto"];

/// What needs all calls of a function.
const COUNTED: [&str; 18] = [
    "orphan", "csv", "caller", "tid", "tgid", "tree", "graph", "flame", "folded", "pprof", "exact",
    "depth", "min", "chrome", "perfetto", "record", "sort", "limit",
];

/// What calls are counted by path for.
const PATHS: [&str; 9] =
    ["caller", "tid", "tgid", "tree", "graph", "flame", "folded", "pprof", "depth"];
/// What calls are looked at one by one for, or kept for later.
const ONE_BY_ONE: [&str; 11] = [
    "orphan",
    "args",
    "ret",
    "deref",
    "condition",
    "last",
    "chrome",
    "perfetto",
    "record",
    "coverage",
    "diff",
];

/// Arguments of `skep trace`.
#[derive(Args, Debug)]
pub struct TraceArgs {
    /// Functions to trace: FUNCTION or MODULE:FUNCTION, with globs and commas
    #[arg(required_unless_present_any = ["orphan", "diff"], value_name = "PATTERN")]
    pub patterns: Vec<String>,
    /// Do not trace functions that match this pattern; can be repeated
    #[arg(long, value_name = "PATTERN")]
    pub exclude: Vec<String>,
    /// What the report shows
    #[command(flatten)]
    pub shown: ShownArgs,
    /// Write what was counted to FILE, by call path: `skep report FILE` shows it later
    #[arg(long, value_name = "FILE", conflicts_with_all = ["orphan", "chrome", "perfetto"])]
    pub record: Option<PathBuf>,
    /// With `--record`: write each call
    #[arg(long, requires = "record", conflicts_with_all = TABLES)]
    pub calls: bool,
    /// Write which functions were called, for lcov, or for Cobertura if FILE ends in .xml; only the
    /// first call of each function takes longer
    #[arg(long, value_name = "FILE", conflicts_with_all = COUNTED)]
    pub coverage: Option<PathBuf>,
    /// Keep the cost of tracing below this share of the time, as in 5%: skep lets go of the functions
    /// with the most calls first, and lists them with their share of the time
    #[arg(long, value_name = "PERCENT", value_parser = percent, conflicts_with_all = ONE_BY_ONE, conflicts_with_all = PATHS)]
    pub budget: Option<f64>,
    /// Print each call with its arguments, by debug information or `--prototype`
    #[arg(long, conflicts_with_all = TABLES)]
    pub args: bool,
    /// Print each call with its result
    #[arg(long, conflicts_with_all = TABLES)]
    pub ret: bool,
    /// Print structures behind pointers, too
    #[arg(long, conflicts_with_all = TABLES)]
    pub deref: bool,
    /// Look only at calls for which this holds, as in 'size > 4096 && ret != 0' or 'path == "/etc/*"';
    /// it is evaluated in the traced process
    #[arg(long = "if", value_name = "CONDITION", allow_hyphen_values = true, conflicts_with_all = TABLES)]
    pub condition: Option<String>,
    /// Declare a function that has no debug information, as in C; can be repeated
    #[arg(long = "prototype", value_name = "DECLARATION")]
    pub prototypes: Vec<String>,
    /// Print only calls that ended within this time before the last call, or before what `--on` names
    #[arg(long, value_name = "TIME", value_parser = duration, conflicts_with_all = TABLES)]
    pub last: Option<Duration>,
    /// With `--last`: print them at each call of a function that matches, or that takes longer than a
    /// time, as in '>5ms'; can be repeated
    #[arg(long, value_name = "PATTERN|>TIME", requires = "last", value_parser = trigger)]
    pub on: Vec<Trigger>,
    /// Let calls return a value without running, as in 'libc:open*=-1'; can be repeated
    #[arg(long = "return", value_name = "PATTERN=VALUE", value_parser = fault, conflicts_with = "orphan")]
    pub faults: Vec<Fault>,
    /// With `--return`: set `errno` to this, by name or number
    #[arg(long, value_name = "ERROR", value_parser = errno, requires = "faults")]
    pub errno: Option<u32>,
    /// With `--return`: only every N-th call returns the value
    #[arg(long, value_name = "N", default_value_t = 1, requires = "faults", value_parser = clap::value_parser!(u64).range(1..))]
    pub every: u64,
    /// Time every call, even of short functions that are called often
    #[arg(long, conflicts_with_all = TIMELINES)]
    pub exact: bool,
    /// Run the command even if a pattern without wildcards matches no function of the program or
    /// of the libraries it is linked with
    #[arg(long)]
    pub allow_unmatched: bool,
    /// Run no command; print the report of a trace whose `skep` was killed [default: the newest]
    #[arg(long = "report", value_name = "ID", num_args = 0..=1, require_equals = false, conflicts_with_all = ["patterns", "command", "pids", "exclude", "exact", "allow_unmatched", "caller", "tid", "tgid", "tree", "graph", "flame", "folded", "pprof", "depth", "chrome", "perfetto"])]
    #[expect(
        clippy::option_option,
        reason = "clap's form of an option whose value may be left out"
    )]
    pub orphan: Option<Option<u32>>,
    /// Run no command; compare two reports of `--json`, and print what changed most
    #[arg(long, value_names = ["BEFORE", "AFTER"], num_args = 2, conflicts_with_all = ["patterns", "command", "exclude", "orphan", "pids", "csv", "caller", "tid", "tgid", "tree", "graph", "flame", "folded", "pprof", "depth", "min", "exact", "args", "ret", "deref", "condition", "prototypes", "chrome", "perfetto", "faults", "record", "coverage"])]
    pub diff: Vec<PathBuf>,
    /// Processes that run already
    #[command(flatten)]
    pub process: ProcessArgs,
    /// Show the table while the command or the processes run; keys sort and filter it, q ends it
    #[arg(long, conflicts_with_all = ONE_BY_ONE, conflicts_with_all = ["calls", "tree", "graph", "depth"])]
    pub top: bool,
    /// Attach at most this many functions
    #[arg(long, value_name = "N", default_value_t = 1 << 18, value_parser = clap::value_parser!(u32).range(1..=1 << 22))]
    pub max_functions: u32,
    /// The command and its arguments
    #[arg(last = true, required_unless_present_any = ["orphan", "pids", "diff"], value_name = "COMMAND")]
    pub command: Vec<OsString>,
}

impl TraceArgs {
    /// Tells whether calls are printed one by one.
    pub fn wants_values(&self) -> bool {
        self.args || self.ret || self.deref || self.condition.is_some() || self.last.is_some()
    }

    /// Tells whether calls are recorded one by one.
    pub fn wants_calls(&self) -> bool {
        self.wants_values() || self.calls || self.shown.timeline().is_some()
    }

    /// Tells whether calls are counted by call path.
    pub fn wants_paths(&self) -> bool {
        self.shown.wants_paths() || self.record.is_some()
    }
}

/// What `--on` waits for.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Trigger {
    /// A call of such a function.
    Function(String),
    /// A call that takes longer.
    Longer(Duration),
}

/// Reads a pattern, or a time behind `>`.
fn trigger(text: &str) -> Result<Trigger, String> {
    match text.strip_prefix('>') {
        Some(time) => duration(time.trim_start()).map(Trigger::Longer),
        None => Ok(Trigger::Function(text.to_owned())),
    }
}

/// Reads a part of the time.
fn percent(text: &str) -> Result<f64, String> {
    let number = text.strip_suffix('%').ok_or("write it as 5%")?;
    match number.trim_end().parse() {
        Ok(percent @ 0.0..=100.0) => Ok(percent / 100.0),
        _ => Err(format!("`{number}` is no number from 0 to 100")),
    }
}

/// A rule of `--return`.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Fault {
    /// Functions.
    pub pattern: String,
    /// What they return.
    pub value: i64,
}

/// Reads `PATTERN=VALUE`.
fn fault(text: &str) -> Result<Fault, String> {
    let (pattern, value) = text.rsplit_once('=').ok_or("write it as PATTERN=VALUE")?;
    let (digits, minus) = value.strip_prefix('-').map_or((value, false), |rest| (rest, true));
    let number = match (digits.strip_prefix("0x"), digits) {
        (Some(hex), _) => u64::from_str_radix(hex, 16).ok(),
        (None, "NULL" | "false") => Some(0),
        (None, "true") => Some(1),
        (None, digits) => digits.parse().ok(),
    };
    let number = number.ok_or_else(|| format!("`{value}` is no number"))? as i64;
    if pattern.is_empty() {
        return Err("there is no pattern in front of the `=`".into());
    }
    Ok(Fault {
        pattern: pattern.to_owned(),
        value: if minus { number.wrapping_neg() } else { number },
    })
}

/// Names of errors from 1 on (include/uapi/asm-generic/errno.h); `-` where there is none.
const ERRNO: &str = "EPERM ENOENT ESRCH EINTR EIO ENXIO E2BIG ENOEXEC EBADF ECHILD EAGAIN ENOMEM EACCES \
    EFAULT ENOTBLK EBUSY EEXIST EXDEV ENODEV ENOTDIR EISDIR EINVAL ENFILE EMFILE ENOTTY \
    ETXTBSY EFBIG ENOSPC ESPIPE EROFS EMLINK EPIPE EDOM ERANGE EDEADLK ENAMETOOLONG ENOLCK \
    ENOSYS ENOTEMPTY ELOOP - ENOMSG EIDRM ECHRNG EL2NSYNC EL3HLT EL3RST ELNRNG EUNATCH \
    ENOCSI EL2HLT EBADE EBADR EXFULL ENOANO EBADRQC EBADSLT - EBFONT ENOSTR ENODATA ETIME \
    ENOSR ENONET ENOPKG EREMOTE ENOLINK EADV ESRMNT ECOMM EPROTO EMULTIHOP EDOTDOT EBADMSG \
    EOVERFLOW ENOTUNIQ EBADFD EREMCHG ELIBACC ELIBBAD ELIBSCN ELIBMAX ELIBEXEC EILSEQ \
    ERESTART ESTRPIPE EUSERS ENOTSOCK EDESTADDRREQ EMSGSIZE EPROTOTYPE ENOPROTOOPT \
    EPROTONOSUPPORT ESOCKTNOSUPPORT EOPNOTSUPP EPFNOSUPPORT EAFNOSUPPORT EADDRINUSE \
    EADDRNOTAVAIL ENETDOWN ENETUNREACH ENETRESET ECONNABORTED ECONNRESET ENOBUFS EISCONN \
    ENOTCONN ESHUTDOWN ETOOMANYREFS ETIMEDOUT ECONNREFUSED EHOSTDOWN EHOSTUNREACH EALREADY \
    EINPROGRESS ESTALE EUCLEAN ENOTNAM ENAVAIL EISNAM EREMOTEIO EDQUOT ENOMEDIUM EMEDIUMTYPE \
    ECANCELED ENOKEY EKEYEXPIRED EKEYREVOKED EKEYREJECTED EOWNERDEAD ENOTRECOVERABLE ERFKILL \
    EHWPOISON";

/// Reads the name or number of an error.
fn errno(text: &str) -> Result<u32, String> {
    if let Ok(number @ 1..4096) = text.parse() {
        return Ok(number);
    }
    let text = match text {
        "EWOULDBLOCK" => "EAGAIN",
        "ENOTSUP" => "EOPNOTSUPP",
        "EDEADLOCK" => "EDEADLK",
        text => text,
    };
    let named = ERRNO.split(' ').zip(1..).find(|(name, _)| *name == text && text != "-");
    named
        .map(|(_, number)| number)
        .ok_or_else(|| "it is not known: a name as ENOENT, or its number".into())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn faults_are_a_pattern_and_a_value() {
        let read = |text| fault(text).map(|f| (f.pattern, f.value));
        assert_eq!(read("libc:open*=-2"), Ok(("libc:open*".to_owned(), -2)));
        assert_eq!(read("malloc=NULL"), Ok(("malloc".to_owned(), 0)));
        assert_eq!(read("a=0xffffffffffffffff"), Ok(("a".to_owned(), -1)));
        assert_eq!(read("operator==1"), Ok(("operator=".to_owned(), 1)));
        for wrong in ["malloc", "malloc=", "=1", "malloc=x", "malloc=1e3"] {
            assert!(fault(wrong).is_err(), "{wrong}");
        }
        assert_eq!((errno("ENOENT"), errno("110"), errno("-").ok()), (Ok(2), Ok(110), None));
        let names = ["ENODATA", "ETIMEDOUT", "ECONNREFUSED", "EHWPOISON"].map(errno);
        assert_eq!(names, [Ok(61), Ok(110), Ok(111), Ok(133)]);
        assert!(errno("ENOTHING").is_err() && errno("0").is_err() && errno("-1").is_err());
    }
}
