//! What holds an interface: the XDP programs on it, asked by netlink.

use rustix::net::{
    AddressFamily, RecvFlags, SendFlags, SocketFlags, SocketType, recv, send, socket_with,
};

const RTM_GETLINK: u16 = 18;
const RTM_NEWLINK: u16 = 16;
const NLM_F_REQUEST: u16 = 1;
const IFLA_XDP: u16 = 43;
/// Inside `IFLA_XDP`: the program of each mode.
const MODES: [(u16, &str); 3] = [(5, "native"), (6, "generic"), (7, "offload")];

/// Bytes of `struct nlmsghdr` and `struct ifinfomsg`.
const HEAD: usize = 16 + 16;

/// Finds attributes: number and contents.
fn attributes(mut bytes: &[u8]) -> impl Iterator<Item = (u16, &[u8])> {
    std::iter::from_fn(move || {
        let (head, _) = bytes.split_first_chunk::<4>()?;
        let [len, kind] = [[head[0], head[1]], [head[2], head[3]]].map(u16::from_ne_bytes);
        let body = bytes.get(4..len as usize)?;
        bytes = bytes.get((len as usize).next_multiple_of(4)..).unwrap_or_default();
        // The upper two bits are flags.
        Some((kind & 0x3fff, body))
    })
}

/// Names the XDP programs of an interface by id and mode; `None` when there is none or nobody tells.
pub fn programs(ifindex: u32) -> Option<String> {
    // Without a protocol it is `NETLINK_ROUTE`.
    let (kind, flags) = (SocketType::RAW, SocketFlags::CLOEXEC);
    let socket = socket_with(AddressFamily::NETLINK, kind, flags, None).ok()?;
    let mut request = (HEAD as u32).to_ne_bytes().to_vec();
    request.extend([RTM_GETLINK, NLM_F_REQUEST].map(u16::to_ne_bytes).as_flattened());
    request.resize(HEAD - 12, 0);
    request.extend(ifindex.to_ne_bytes());
    request.resize(HEAD, 0);
    send(&socket, &request, SendFlags::empty()).ok()?;
    let mut answer = vec![0; 64 << 10];
    let (len, _) = recv(&socket, &mut answer[..], RecvFlags::empty()).ok()?;
    let answer = answer.get(..len)?;
    let is_link = answer.get(4..6)? == RTM_NEWLINK.to_ne_bytes();
    let (_, xdp) = attributes(answer.get(HEAD..)?).find(|(n, _)| is_link && *n == IFLA_XDP)?;
    let number = |body: &[u8]| Some(u32::from_ne_bytes(*body.first_chunk()?));
    let found = attributes(xdp).filter_map(|(n, body)| {
        let (_, mode) = MODES.iter().find(|(m, _)| *m == n)?;
        Some(format!("program {} ({mode})", number(body)?))
    });
    let found: Vec<String> = found.collect();
    (!found.is_empty()).then(|| found.join(", "))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn attributes_that_are_cut_end_the_list() {
        let bytes = [8, 0, 43, 0x80, 1, 2, 3, 4, 5, 0, 2, 0, 9, 0, 0, 0, 9, 0, 1, 0, 1];
        let found: Vec<_> = attributes(&bytes).collect();
        assert_eq!(found, [(43, &[1, 2, 3, 4][..]), (2, &[9][..])]);
        assert_eq!(attributes(&[0; 8]).count(), 0);
    }
}
