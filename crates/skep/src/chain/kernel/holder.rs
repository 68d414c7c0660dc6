//! What holds interfaces: the XDP programs on them, asked by netlink.

use std::io;

use rustix::net::{
    AddressFamily, RecvFlags, SendFlags, SocketFlags, SocketType, recv, send, socket_with,
};

const RTM_GETLINK: u16 = 18;
const RTM_NEWLINK: u16 = 16;
const NLM_F_REQUEST: u16 = 1;
/// All of them.
const NLM_F_DUMP: u16 = 0x300;
const NLMSG_ERROR: u16 = 2;
const NLMSG_DONE: u16 = 3;
const IFLA_IFNAME: u16 = 3;
const IFLA_XDP: u16 = 43;
/// Inside `IFLA_XDP`: the program of each mode.
const MODES: [(u16, &str); 3] = [(5, "native"), (6, "generic"), (7, "offload")];

/// Bytes of `struct nlmsghdr`, and of that and `struct ifinfomsg`.
const MESSAGE: usize = 16;
const HEAD: usize = MESSAGE + 16;

/// An XDP program on an interface.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Held {
    /// The interface's name.
    pub interface: String,
    /// `native`, `generic` or `offload`.
    pub mode: &'static str,
    /// The program's id.
    pub program: u32,
}

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

fn number(bytes: &[u8]) -> Option<u32> {
    bytes.first_chunk().map(|word| u32::from_ne_bytes(*word))
}

/// Splits what one call received into messages: type and contents.
fn messages(mut bytes: &[u8]) -> impl Iterator<Item = (u16, &[u8])> {
    std::iter::from_fn(move || {
        let len = number(bytes)? as usize;
        let kind = u16::from_ne_bytes(*bytes.get(4..)?.first_chunk()?);
        let body = bytes.get(MESSAGE..len)?;
        bytes = bytes.get(len.next_multiple_of(4)..).unwrap_or_default();
        Some((kind, body))
    })
}

/// Reads the programs of one interface out of the message about it.
fn held(body: &[u8]) -> Vec<Held> {
    let find = |wanted| {
        let mut all = attributes(body.get(HEAD - MESSAGE..).unwrap_or_default());
        all.find_map(|(n, body)| (n == wanted).then_some(body))
    };
    let name = find(IFLA_IFNAME).unwrap_or_default().split(|b| *b == 0).next().unwrap_or_default();
    let interface = String::from_utf8_lossy(name).into_owned();
    let programs = attributes(find(IFLA_XDP).unwrap_or_default()).filter_map(|(n, body)| {
        let (_, mode) = MODES.iter().find(|(m, _)| *m == n)?;
        Some(Held { interface: interface.clone(), mode, program: number(body)? })
    });
    programs.collect()
}

/// Finds the XDP programs of an interface, or of all interfaces of the thread's network namespace.
pub fn programs(ifindex: Option<u32>) -> io::Result<Vec<Held>> {
    // Without a protocol it is `NETLINK_ROUTE`.
    let (kind, flags) = (SocketType::RAW, SocketFlags::CLOEXEC);
    let socket = socket_with(AddressFamily::NETLINK, kind, flags, None)?;
    let mut request = (HEAD as u32).to_ne_bytes().to_vec();
    let all = if ifindex.is_none() { NLM_F_DUMP } else { 0 };
    request.extend([RTM_GETLINK, NLM_F_REQUEST | all].map(u16::to_ne_bytes).as_flattened());
    request.resize(HEAD - 12, 0);
    request.extend(ifindex.unwrap_or(0).to_ne_bytes());
    request.resize(HEAD, 0);
    send(&socket, &request, SendFlags::empty())?;
    let (mut found, mut answer) = (Vec::new(), vec![0; 64 << 10]);
    loop {
        let (len, _) = recv(&socket, &mut answer[..], RecvFlags::empty())?;
        for (kind, body) in messages(answer.get(..len).unwrap_or_default()) {
            match kind {
                RTM_NEWLINK => found.extend(held(body)),
                NLMSG_ERROR => {
                    let errno = number(body).unwrap_or(0).cast_signed().wrapping_neg();
                    return Err(io::Error::from_raw_os_error(errno));
                }
                NLMSG_DONE => return Ok(found),
                _ => {}
            }
        }
        if ifindex.is_some() {
            return Ok(found);
        }
    }
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

    #[test]
    fn messages_that_are_cut_end_the_list() {
        let mut bytes = vec![0; 2 * MESSAGE + 4];
        bytes[0] = MESSAGE as u8 + 1;
        bytes[4] = 9;
        bytes[MESSAGE] = 7;
        bytes[MESSAGE + 4] = MESSAGE as u8 + 1;
        let found: Vec<_> = messages(&bytes).collect();
        assert_eq!(found, [(9, &[7][..])]);
        assert_eq!(messages(&[0; 16]).count(), 0);
        assert_eq!(held(&[1; 5]), []);
    }
}
