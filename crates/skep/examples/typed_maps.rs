//! Makes a map, fills it, reads and takes its elements: what another process can do at once.

use skep::isa::MapType;
use skep::maps::MapDef;
use skep::{HashMap, Session};

#[allow(clippy::print_stdout, reason = "it is a report")]
fn main() -> Result<(), Box<dyn std::error::Error>> {
    let session = Session::scratch()?;
    let map = session.create_map(&MapDef {
        name: "squares".to_owned(),
        ..MapDef::new(MapType::Hash, 4, 8, 1000)
    })?;
    let squares: HashMap<u32, u64> = map.typed()?;
    for n in 1..=10 {
        squares.insert(&n, &(u64::from(n) * u64::from(n)))?;
    }
    // The same map by its id, as any other process would open it.
    let same: HashMap<u32, u64> = session.open_map(map.id())?.typed()?;
    println!("7 * 7 = {:?}", same.get(&7)?);
    let sum: u64 = same.iter().taken().map(|entry| entry.map(|(_, n)| n)).sum::<Result<_, _>>()?;
    println!("the sum of all is {sum}, and {} are left", squares.iter().count());
    Ok(())
}
