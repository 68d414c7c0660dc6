//! Reports as Apache Parquet: a row for each function.
//!
//! The plainest file that the format allows, as reports are small (github.com/apache/parquet-format):
//! one row group, one page for each column, neither dictionaries nor compression. Headers and the
//! footer are structures of Thrift in its compact protocol.
//!
//! ```text
//! "PAR1"  (page header, values) of each column  footer  length of the footer (4 bytes)  "PAR1"
//! ```

use std::io::{self, Write};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use super::{Labels, P50, P99, Report, SELF, TOTAL};

const MAGIC: &[u8] = b"PAR1";
/// `Type`
const INT64: i64 = 2;
const BYTE_ARRAY: i64 = 6;
/// `ConvertedType`
const UTF8: i64 = 0;
const TIMESTAMP_MICROS: i64 = 10;
/// `Encoding`
const PLAIN: i64 = 0;
const RLE: i64 = 3;

/// Columns that each file has; those of labels follow.
const COLUMNS: [&str; 9] =
    ["time", "function", "module", "calls", "total_ns", "self_ns", "p50_ns", "p99_ns", "wall_ns"];

/// Tells whether a column is one that each file has.
pub fn is_own(name: &str) -> bool {
    COLUMNS.contains(&name)
}

struct Column<'a> {
    name: &'a str,
    values: Values<'a>,
}

enum Values<'a> {
    /// Microseconds since 1970, UTC.
    Times(Vec<i64>),
    Numbers(Vec<i64>),
    /// Some of them are missing.
    Optional(Vec<Option<i64>>),
    Texts(Vec<&'a str>),
}

/// Writes the file.
pub fn write(
    out: &mut dyn Write,
    report: &Report,
    labels: &Labels,
    end: SystemTime,
) -> io::Result<()> {
    let rows = report.functions.len();
    let (mut file, mut chunks) = (MAGIC.to_vec(), Vec::new());
    let columns = columns(report, labels, end);
    if rows > 0 {
        for column in &columns {
            let start = file.len();
            let page = column.values.page();
            file.extend(page_header(rows, page.len()));
            file.extend(page);
            chunks.push((column, start, file.len() - start));
        }
    }
    let footer = footer(&columns, &chunks, rows, report.missed);
    let len = u32::try_from(footer.len()).map_err(io::Error::other)?;
    for part in [&file, &footer, &len.to_le_bytes()[..], MAGIC] {
        out.write_all(part)?;
    }
    Ok(())
}

fn columns<'a>(report: &'a Report, labels: &'a Labels, end: SystemTime) -> Vec<Column<'a>> {
    let all = &report.functions;
    let number = |n: u64| i64::try_from(n).unwrap_or(i64::MAX);
    let micros = end.duration_since(UNIX_EPOCH).unwrap_or(Duration::ZERO).as_micros();
    let micros = i64::try_from(micros).unwrap_or(i64::MAX);
    let times = |which: usize| {
        Values::Optional(
            all.iter().map(|f| f.times.get(which).copied().flatten().map(number)).collect(),
        )
    };
    let values = [
        Values::Times(vec![micros; all.len()]),
        Values::Texts(all.iter().map(|f| &*f.name).collect()),
        Values::Texts(all.iter().map(|f| &*f.module).collect()),
        Values::Numbers(all.iter().map(|f| number(f.calls)).collect()),
        times(TOTAL),
        times(SELF),
        times(P50),
        times(P99),
        Values::Numbers(vec![number(report.wall_ns); all.len()]),
    ];
    let own = COLUMNS.into_iter().zip(values).map(|(name, values)| Column { name, values });
    let labels = labels
        .iter()
        .map(|(name, value)| Column { name, values: Values::Texts(vec![value; all.len()]) });
    own.chain(labels).collect()
}

impl Values<'_> {
    fn kind(&self) -> i64 {
        if matches!(self, Self::Texts(_)) { BYTE_ARRAY } else { INT64 }
    }

    /// The bytes of the page: which values are there, where some may be missing, and the values.
    fn page(&self) -> Vec<u8> {
        let mut page = Vec::new();
        match self {
            Self::Times(numbers) | Self::Numbers(numbers) => {
                numbers.iter().for_each(|n| page.extend(n.to_le_bytes()));
            }
            Self::Optional(numbers) => {
                let mut levels = Vec::new();
                for run in numbers.chunk_by(|a, b| a.is_some() == b.is_some()) {
                    varint(&mut levels, (run.len() as u64) << 1);
                    levels.push(run.first().is_some_and(Option::is_some).into());
                }
                page.extend((levels.len() as u32).to_le_bytes());
                page.extend(levels);
                numbers.iter().flatten().for_each(|n| page.extend(n.to_le_bytes()));
            }
            Self::Texts(texts) => {
                for text in texts {
                    page.extend((text.len() as u32).to_le_bytes());
                    page.extend(text.as_bytes());
                }
            }
        }
        page
    }
}

/// `PageHeader`
fn page_header(rows: usize, len: usize) -> Vec<u8> {
    Struct::default()
        .i32(1, 0)
        .i32(2, len as i64)
        .i32(3, len as i64)
        .field(5, Struct::default().i32(1, rows as i64).i32(2, PLAIN).i32(3, RLE).i32(4, RLE))
        .end()
}

/// `FileMetaData`
fn footer(
    columns: &[Column<'_>],
    chunks: &[(&Column<'_>, usize, usize)],
    rows: usize,
    missed: u64,
) -> Vec<u8> {
    let root = Struct::default().text(4, "schema").i32(5, columns.len() as i64);
    let schema = columns.iter().map(|Column { name, values }| {
        let optional = matches!(values, Values::Optional(_));
        let element = Struct::default().i32(1, values.kind()).i32(3, optional.into()).text(4, name);
        match values {
            Values::Texts(_) => element.i32(6, UTF8),
            Values::Times(_) => element.i32(6, TIMESTAMP_MICROS),
            Values::Numbers(_) | Values::Optional(_) => element,
        }
    });
    let written = chunks.iter().map(|(column, start, len)| {
        let meta = Struct::default()
            .i32(1, column.values.kind())
            .numbers(2, &[PLAIN, RLE])
            .texts(3, &[column.name])
            .i32(4, 0)
            .i64(5, rows as i64)
            .i64(6, *len as i64)
            .i64(7, *len as i64)
            .i64(9, *start as i64);
        Struct::default().i64(2, *start as i64).field(3, meta)
    });
    let total: usize = chunks.iter().map(|(_, _, len)| len).sum();
    let group =
        Struct::default().structs(1, written.collect()).i64(2, total as i64).i64(3, rows as i64);
    let groups = if rows > 0 { vec![group] } else { Vec::new() };
    let missed = Struct::default().text(1, "missed").text(2, &missed.to_string());
    Struct::default()
        .i32(1, 1)
        .structs(2, std::iter::once(root).chain(schema).collect())
        .i64(3, rows as i64)
        .structs(4, groups)
        .structs(5, vec![missed])
        .text(6, concat!("skep version ", env!("CARGO_PKG_VERSION")))
        .end()
}

/// A structure of Thrift; its fields come in the order of their numbers.
#[derive(Default)]
struct Struct {
    bytes: Vec<u8>,
    last: u8,
}

/// Types of fields and of the elements of lists.
const I32: u8 = 5;
const I64: u8 = 6;
const BINARY: u8 = 8;
const LIST: u8 = 9;
const STRUCT: u8 = 12;

impl Struct {
    /// A field's head: how much its number is above that of the one before, and its type.
    fn head(mut self, number: u8, kind: u8) -> Self {
        self.bytes.push((number - self.last) << 4 | kind);
        self.last = number;
        self
    }

    fn i32(self, number: u8, value: i64) -> Self {
        let mut all = self.head(number, I32);
        zigzag(&mut all.bytes, value);
        all
    }

    fn i64(self, number: u8, value: i64) -> Self {
        let mut all = self.head(number, I64);
        zigzag(&mut all.bytes, value);
        all
    }

    fn text(self, number: u8, text: &str) -> Self {
        let mut all = self.head(number, BINARY);
        binary(&mut all.bytes, text);
        all
    }

    fn field(self, number: u8, value: Self) -> Self {
        let mut all = self.head(number, STRUCT);
        all.bytes.extend(value.end());
        all
    }

    fn list(self, number: u8, kind: u8, len: usize) -> Self {
        let mut all = self.head(number, LIST);
        match u8::try_from(len).ok().filter(|len| *len < 15) {
            Some(len) => all.bytes.push(len << 4 | kind),
            None => {
                all.bytes.push(15 << 4 | kind);
                varint(&mut all.bytes, len as u64);
            }
        }
        all
    }

    fn numbers(self, number: u8, values: &[i64]) -> Self {
        let mut all = self.list(number, I32, values.len());
        values.iter().for_each(|value| zigzag(&mut all.bytes, *value));
        all
    }

    fn texts(self, number: u8, values: &[&str]) -> Self {
        let mut all = self.list(number, BINARY, values.len());
        values.iter().for_each(|value| binary(&mut all.bytes, value));
        all
    }

    fn structs(self, number: u8, values: Vec<Self>) -> Self {
        let mut all = self.list(number, STRUCT, values.len());
        values.into_iter().for_each(|value| all.bytes.extend(value.end()));
        all
    }

    fn end(mut self) -> Vec<u8> {
        self.bytes.push(0);
        self.bytes
    }
}

fn varint(out: &mut Vec<u8>, mut value: u64) {
    while value >= 0x80 {
        out.push(value as u8 | 0x80);
        value >>= 7;
    }
    out.push(value as u8);
}

fn zigzag(out: &mut Vec<u8>, value: i64) {
    varint(out, (value << 1 ^ value >> 63) as u64);
}

fn binary(out: &mut Vec<u8>, text: &str) {
    varint(out, text.len() as u64);
    out.extend(text.as_bytes());
}
