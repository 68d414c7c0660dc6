//! The load balancer (`benches/chain/bpf/balancer.bpf.c`), loaded by skep and by the kernel, with the
//! same in its maps.

use skep::{Object, Session};

use crate::Result;
use crate::kernel::Loaded;
use crate::mix::{self, Numbers, SEED, VIPS};

const OBJECT: &[u8] = include_bytes!("../../../../benches/chain/bpf/balancer.bpf.o");
/// The verdict on packets that are sent on.
pub const TX: u32 = 3;
const RING: u32 = 65_537;
/// Servers of each virtual address.
pub const SERVERS: u32 = 20;
/// The flag of an address whose connections go by their source address alone.
const ALL_PORTS: u32 = 1;

/// Fills the maps of the balancer; `put` stores an element of a map.
fn fill(mut put: impl FnMut(&str, &[u8], &[u8]) -> Result<()>) -> Result<()> {
    put("control", &[0; 4], &[2, 0, 0, 0, 0, 9, 2, 0, 0, 0, 0, 1])?;
    let mut numbers = Numbers::new(SEED);
    for vip in 0..VIPS {
        let (address, protocol) = mix::vip(vip);
        let all_ports = mix::takes_all_ports(vip);
        let port = if all_ports { 0 } else { mix::PORT };
        let [high, low] = port.to_be_bytes();
        let key = [&address[..], &[high, low, protocol, 0]].concat();
        let flags = if all_ports { ALL_PORTS } else { 0 };
        put("vips", &key, &[flags.to_ne_bytes(), u32::from(vip).to_ne_bytes()].concat())?;
        for server in 0..SERVERS {
            let mut address = [0; 20];
            if mix::is_v6(vip) {
                address[..2].copy_from_slice(&[0xfd, 0]);
                address[14..17].copy_from_slice(&[vip, server as u8, 1]);
            } else {
                address[..4].copy_from_slice(&[10, 1, vip, server as u8]);
            }
            put("reals", &(u32::from(vip) * SERVERS + server).to_ne_bytes(), &address)?;
        }
        for place in 0..RING {
            let server = u32::from(vip) * SERVERS + numbers.below(SERVERS as usize) as u32;
            put("rings", &(u32::from(vip) * RING + place).to_ne_bytes(), &server.to_ne_bytes())?;
        }
    }
    for (n, packet) in (0_u32..).zip(mix::packets(SEED)) {
        put("mix", &n.to_ne_bytes(), &packet)?;
    }
    Ok(())
}

/// Loads it into skep.
pub fn load(session: &Session) -> Result<Object> {
    let object = session.loader().load_bytes(OBJECT)?;
    let mut maps = std::collections::BTreeMap::new();
    for map in object.maps() {
        maps.insert(map.name().to_owned(), map);
    }
    fill(|map, key, value| {
        let map = maps.get(map).ok_or_else(|| format!("no map `{map}`"))?;
        Ok(map.update(key, value, 0)?)
    })?;
    Ok(object)
}

/// Loads it into the kernel.
pub fn load_into_kernel() -> Result<Loaded> {
    let loaded = Loaded::new(skep::object::Object::parse(OBJECT)?)?;
    fill(|map, key, value| Ok(loaded.map(map)?.update(key, value, 0)?))?;
    Ok(loaded)
}
