//! A load balancer (`benches/chain/bpf/balancer.bpf.c`) on a mix of connections: by a test run of
//! skep and of the kernel, and on batches of frames.

use skep::port::{Outputs, Until};
use skep::test_run::{Engine, Input};
use skep::{Object, Session};

use crate::kernel::{self, Loaded};
use crate::mix::{self, Numbers, PACKET, PACKETS, VIPS};
use crate::packets::Frames;
use crate::{Case, Result, each, mark, take_turns, timed};

const OBJECT: &[u8] = include_bytes!("../../../../benches/chain/bpf/balancer.bpf.o");
const RUNS: u32 = 20 * PACKETS as u32;
const TX: u32 = 3;
const RING: u32 = 65_537;
/// Servers of each virtual address.
const SERVERS: u32 = 20;
const SEED: u64 = 0x5eed;
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

fn load(session: &Session) -> Result<Object> {
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

fn load_into_kernel() -> Result<Loaded> {
    let loaded = Loaded::new(skep::object::Object::parse(OBJECT)?)?;
    fill(|map, key, value| Ok(loaded.map(map)?.update(key, value, 0)?))?;
    Ok(loaded)
}

/// By skep.
pub fn ours() -> Result<()> {
    let session = Session::scratch()?;
    let object = load(&session)?;
    let globals = object.map(".bss")?;
    let mut cases: Vec<Case<'_>> = Vec::new();
    for program in ["driven", "driver"] {
        let runner = object.program(program)?.runner(Engine::Jit)?;
        let globals = &globals;
        let run = move || {
            let size = globals.lookup(&[0; 4])?.len();
            globals.update(&[0; 4], &mark::begin(size, RUNS), 0)?;
            let done = runner.test_run(&Input { repeat: RUNS, ..Input::data(&[0; PACKET]) })?;
            mark::check(done.retval, TX)?;
            mark::each(&globals.lookup(&[0; 4])?, RUNS)
        };
        cases.push((program.to_owned(), Box::new(run)));
    }
    let mut runner = object.program("balance")?.packets(Engine::Jit)?;
    let mut frames = Frames::new(mix::packets(SEED).concat(), PACKET);
    let until = Until { packets: Some(RUNS.into()), ..Until::default() };
    let run = move || {
        let pump = || Ok(runner.pump(&mut frames, &mut Outputs::new(), &until)?);
        let (took, stats) = timed(pump)?;
        mark::check(stats.verdicts[TX as usize] as u32, RUNS)?;
        Ok(each(took, RUNS.into()))
    };
    cases.push(("frames".to_owned(), Box::new(run)));
    take_turns(&mut cases).map(drop)
}

/// By the kernel.
pub fn kernels() -> Result<()> {
    let loaded = load_into_kernel()?;
    let mut cases: Vec<Case<'_>> = Vec::new();
    for name in ["driven", "driver"] {
        let program = loaded.program(name)?;
        let loaded = &loaded;
        let run = move || loaded.time(&program, &[0; PACKET], RUNS, TX);
        cases.push((name.to_owned(), Box::new(run)));
    }
    take_turns(&mut cases).map(drop)
}

/// Sums of counters over processors; of the VIPs without what connections were not remembered, as
/// that depends on what a full table throws out.
fn sums(values: &[u8]) -> [u64; 2] {
    let mut sums = [0; 2];
    for (at, word) in values.as_chunks::<8>().0.iter().enumerate() {
        sums[at % 2] += u64::from_ne_bytes(*word);
    }
    sums
}

/// Runs the mix, and what is cut or of other protocols, through both, packet by packet, and fails
/// at the first difference.
pub fn agree() -> Result<()> {
    let session = Session::scratch()?;
    let (object, loaded) = (load(&session)?, load_into_kernel()?);
    let ours = object.program("balance")?.runner(Engine::Jit)?;
    let kernels = loaded.program("balance")?;
    let mut numbers = Numbers::new(SEED + 1);
    let (mut packets, mut sent) = (0, 0);
    for packet in mix::packets(SEED + 2).into_iter().chain(mix::packets(SEED)) {
        let mut packet = packet.to_vec();
        // One in eight has something wrong.
        match numbers.below(64) {
            0..4 => packet.truncate(14 + numbers.below(50)),
            4..8 => {
                let at = 12 + numbers.below(12);
                packet[at] ^= 1 << numbers.below(8);
            }
            _ => {}
        }
        let (mine, its) =
            (ours.test_run(&Input::data(&packet))?, kernel::run(&kernels, &packet, 1)?);
        if mine.retval != its.retval || mine.data_out.as_deref() != Some(&its.data_out) {
            return Err(format!(
                "packet {packets}: {mine:02x?}, the kernel {its:02x?}: {packet:02x?}"
            )
            .into());
        }
        packets += 1;
        sent += u32::from(mine.retval == TX);
    }
    for (map, rows) in [("vip_counts", u32::from(VIPS)), ("real_counts", u32::from(VIPS) * SERVERS)]
    {
        for row in 0..rows {
            let key = row.to_ne_bytes();
            let (mine, its) = (object.map(map)?.lookup(&key)?, loaded.map(map)?.lookup(&key)?);
            if sums(&mine) != sums(&its) {
                return Err(format!(
                    "`{map}` {row}: {:?}, the kernel {:?}",
                    sums(&mine),
                    sums(&its)
                )
                .into());
            }
        }
    }
    println!("packets {packets}\nsent {sent}");
    if sent * 2 < packets { Err("most packets were not sent".into()) } else { Ok(()) }
}
