//! The devices of maps that programs broadcast to.

use skep_maps::Map;

/// Interface numbers, each with the id of a program, or 0.
type Devices = Vec<(u32, u32)>;

/// The devices of maps, read once a batch.
#[derive(Debug, Default)]
pub(super) struct Broadcasts {
    /// Maps by number, and whether their devices are those of this batch.
    maps: Vec<(u32, bool, Devices)>,
}

impl Broadcasts {
    pub fn begin(&mut self) {
        self.maps.iter_mut().for_each(|(_, is_new, _)| *is_new = false);
    }

    /// Returns the devices in a map, each with the id of its program, or 0.
    pub fn of(&mut self, map: &Map) -> impl Iterator<Item = (u32, u32)> {
        let known = self.maps.iter().position(|(id, ..)| *id == map.id());
        let at = known.unwrap_or_else(|| {
            self.maps.push((map.id(), false, Vec::new()));
            self.maps.len() - 1
        });
        let devices = self.maps.get_mut(at).map(|(_, is_new, devices)| {
            if !std::mem::replace(is_new, true) {
                read_devices(map, devices);
            }
            devices
        });
        devices.into_iter().flat_map(|devices| devices.iter().copied())
    }
}

/// Reads the interface numbers and programs of a device map.
fn read_devices(map: &Map, devices: &mut Devices) {
    devices.clear();
    let mut key = None;
    let mut value = [0; 8];
    let room = map.user_value_size().min(value.len());
    // At most as many as there are entries, also if the map changes meanwhile.
    for _ in 0..=map.def().max_entries {
        let Ok(next) = map.next_key(key.as_deref()) else { return };
        let found = map.lookup_into(&next, value.get_mut(..room).unwrap_or_default(), 0);
        let [a, b, c, d, program @ ..] = value;
        let device = u32::from_ne_bytes([a, b, c, d]);
        if found.is_ok() && device != 0 {
            devices.push((device, u32::from_ne_bytes(program)));
        }
        key = Some(next);
    }
}
