//! The load balancer on both engines, packet for packet.

use skep::Session;
use skep::test_run::{Engine, Input};

use crate::Result;
use crate::balancer_maps::{SERVERS, TX, load, load_into_kernel};
use crate::kernel;
use crate::mix::{self, Numbers, SEED, VIPS};

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
pub fn run() -> Result<()> {
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
