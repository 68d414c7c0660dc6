//! The order of rows: by a number, largest first, and by name where numbers are equal, as most are of
//! functions that were called once.
//!
//! There may be hundreds of thousands, and comparing two of them waits for memory. So the numbers, and
//! then the first bytes of names that differ, are sorted apart from their rows, byte by byte.

use std::cmp::Ordering;

/// A key, and the place of the row that has it.
type Keyed = (u64, u32);

/// Fewer are compared with each other.
const FEW: usize = 64;
/// So many times eight bytes of names are sorted by, behind what all begin with.
const STEPS: usize = 4;

/// Returns the first `count` rows in their order. Rows with the same number and name are in that of
/// `rest`.
pub fn sorted<'r, T>(
    rows: &'r [T],
    count: usize,
    number: impl Fn(&T) -> u64,
    name: impl for<'t> Fn(&'t T) -> &'t str,
    rest: impl Fn(&T, &T) -> Ordering,
) -> Vec<&'r T> {
    let row = |at: u32| rows.get(at as usize);
    let name = |at: u32| row(at).map_or("", &name).as_bytes();
    let then = |a: u32, b: u32| {
        let of_rows = row(a).zip(row(b)).map_or(Ordering::Equal, |(a, b)| rest(a, b));
        name(a).cmp(name(b)).then(of_rows).then(a.cmp(&b))
    };
    let mut order: Vec<Keyed> = rows.iter().zip(0..).map(|(row, at)| (!number(row), at)).collect();
    if count < order.len() {
        order.select_nth_unstable_by(count, |a, b| a.0.cmp(&b.0).then_with(|| then(a.1, b.1)));
        order.truncate(count);
    }
    let mut spare = Vec::new();
    by_key(&mut order, &mut spare);
    for equal in equals(&mut order) {
        by_name(equal, (0, STEPS), &mut spare, &name, &then);
    }
    order.into_iter().filter_map(|(_, at)| row(at)).collect()
}

/// Sorts rows by name. `known`: with how many bytes all names begin that are the same, and how often
/// they are sorted by eight more.
fn by_name<'n>(
    rows: &mut [Keyed],
    known: (usize, usize),
    spare: &mut Vec<Keyed>,
    name: &impl Fn(u32) -> &'n [u8],
    then: &impl Fn(u32, u32) -> Ordering,
) {
    let (start, steps) = known;
    if steps == 0 || rows.len() < FEW {
        return rows.sort_unstable_by(|a, b| then(a.1, b.1));
    }
    let first = rows.first().map_or(&[][..], |(_, at)| name(*at));
    let mut common = first.len();
    for (_, at) in rows.iter() {
        let pairs = first.iter().zip(name(*at)).take(common).skip(start);
        common = start + pairs.take_while(|(a, b)| a == b).count();
    }
    for (key, at) in rows.iter_mut() {
        let mut bytes = [0; 8];
        bytes.iter_mut().zip(name(*at).iter().skip(common)).for_each(|(to, from)| *to = *from);
        *key = u64::from_be_bytes(bytes);
    }
    by_key(rows, spare);
    for equal in equals(rows) {
        by_name(equal, (common, steps - 1), spare, name, then);
    }
}

/// Rows that are still to be sorted, as their keys are the same.
fn equals(rows: &mut [Keyed]) -> impl Iterator<Item = &mut [Keyed]> {
    rows.chunk_by_mut(|a, b| a.0 == b.0).filter(|equal| equal.len() > 1)
}

/// Sorts by key: byte by byte, from the last to the first, those that differ.
fn by_key(rows: &mut [Keyed], spare: &mut Vec<Keyed>) {
    if rows.len() < FEW {
        return rows.sort_unstable();
    }
    let first = rows.first().map_or(0, |(key, _)| *key);
    let differing = rows.iter().fold(0, |bits, (key, _)| bits | (key ^ first));
    for byte in (0..8).filter(|byte| differing.to_le_bytes()[*byte] != 0) {
        let digit = |row: &Keyed| usize::from(row.0.to_le_bytes()[byte]);
        let mut places = [0; 256];
        rows.iter().for_each(|row| places[digit(row)] += 1);
        let mut before = 0;
        for place in &mut places {
            before += std::mem::replace(place, before);
        }
        spare.clear();
        spare.extend_from_slice(rows);
        for row in spare.iter() {
            let place = &mut places[digit(row)];
            if let Some(to) = rows.get_mut(*place) {
                *to = *row;
            }
            *place += 1;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A number, a name and what tells rows apart that have the same of both.
    type Row = (u64, String, u8);

    fn check(rows: &[Row]) {
        let mut naive: Vec<&Row> = rows.iter().collect();
        naive.sort_by(|a, b| b.0.cmp(&a.0).then_with(|| (&a.1, a.2).cmp(&(&b.1, b.2))));
        for count in [0, 1, FEW / 2, FEW, rows.len() / 2, rows.len(), usize::MAX] {
            let found = sorted(rows, count, |r| r.0, |r| &r.1, |a, b| a.2.cmp(&b.2));
            let expected = &naive[..count.min(rows.len())];
            assert!(found.iter().eq(expected), "{count} of {rows:?}");
        }
    }

    fn random(seed: &mut u64) -> u64 {
        *seed =
            seed.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        *seed >> 33
    }

    #[test]
    fn rows_are_in_the_order_that_comparing_them_says() {
        let mut seed = 1;
        for len in [0, 1, 2, 30, 63, 64, 65, 400, 3000] {
            for numbers in [1, 3, 300, u64::MAX] {
                let mut rows = |name: &dyn Fn(u64) -> String| -> Vec<Row> {
                    let mut row = || {
                        let number = random(&mut seed).wrapping_mul(0x1_0000_0001) % numbers;
                        (number, name(random(&mut seed)), random(&mut seed) as u8 % 3)
                    };
                    (0..len).map(|_| row()).collect()
                };
                check(&rows(&|n| format!("many_{n}")));
                check(&rows(&|n| "a".repeat(n as usize % 70)));
                check(&rows(&|n| {
                    format!("{}::{:03}", "namespace".repeat(n as usize % 5), n % 1000)
                }));
                check(&rows(&|n| char::from_u32(n as u32 % 0x300).map_or("", |_| "\0").repeat(3)));
            }
        }
    }

    /// As those that a program's symbols may have, the same in more bytes than are looked at.
    #[test]
    fn names_may_differ_far_behind_their_beginning() {
        let name = |n: u64| format!("{}{}{}", "x".repeat(100), n % 7, "y".repeat(n as usize % 50));
        let mut seed = 9;
        let rows: Vec<Row> = (0..2000).map(|_| (0, name(random(&mut seed)), 0)).collect();
        check(&rows);
        let ends: Vec<Row> = (0..300_u32)
            .map(|n| (0, format!("{}{}", "z\0".repeat(n as usize % 30), n % 4), n as u8))
            .collect();
        check(&ends);
    }
}
