//! Keeps routes in a trie and finds the one for a path; then reads them by directory, in both
//! directions.

use skep::isa::{MapFlags, MapType};
use skep::maps::MapDef;
use skep::{QpTrie, Session};

#[allow(clippy::print_stdout, reason = "it is a report")]
fn main() -> Result<(), Box<dyn std::error::Error>> {
    let session = Session::scratch()?;
    // Byte strings of up to 100 bytes: their `key_size` is 16, and `map_extra` the longest.
    let def = MapDef::new(MapType::QpTrie, 16, 4, 1000).extra(100).flags(MapFlags::NO_PREALLOC);
    let routes: QpTrie<str, u32> = session.create_map(&def.named("routes"))?.typed()?;
    for (port, route) in (8000..).zip(["/", "/static/", "/api/", "/api/v2/", "/admin/"]) {
        routes.insert(route, &port)?;
    }
    for path in ["/index.html", "/api/v2/users", "/api/v1/users"] {
        if let Some((route, port)) = routes.longest_prefix(path)? {
            println!("{path} goes to {route} at port {port}");
        }
    }
    for entry in routes.prefix("/a").reversed() {
        let (route, port) = entry?;
        println!("{route}: {port}");
    }
    routes.entry("/api/").and_modify(|port| *port += 1000).or_insert(0)?;
    println!("{} routes removed", routes.remove_range("/api/"..="/api/v2/")?);
    println!("left: {:?}", routes.iter().collect::<Result<Vec<_>, _>>()?);
    Ok(())
}
