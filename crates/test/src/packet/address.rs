//! Addresses, however they are written.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};

/// An address with a port: a text, or one of `std::net`.
pub trait Address {
    /// Returns it.
    ///
    /// # Panics
    /// When it is a text that is none.
    fn address(self) -> SocketAddr;
}

impl Address for &str {
    #[track_caller]
    fn address(self) -> SocketAddr {
        self.parse().unwrap_or_else(|_| {
            panic!("`{self}` is no address with a port, such as `10.0.0.1:80` or `[::1]:80`")
        })
    }
}

impl Address for SocketAddr {
    fn address(self) -> SocketAddr {
        self
    }
}

impl<H: Host> Address for (H, u16) {
    fn address(self) -> SocketAddr {
        SocketAddr::new(self.0.host(), self.1)
    }
}

/// An address without a port: a text, or one of `std::net`.
pub trait Host {
    /// Returns it.
    ///
    /// # Panics
    /// When it is a text that is none.
    fn host(self) -> IpAddr;
}

impl Host for &str {
    #[track_caller]
    fn host(self) -> IpAddr {
        self.parse().unwrap_or_else(|_| {
            panic!("`{self}` is no address, such as `10.0.0.1` or `2001:db8::1`")
        })
    }
}

impl Host for IpAddr {
    fn host(self) -> IpAddr {
        self
    }
}

impl Host for Ipv4Addr {
    fn host(self) -> IpAddr {
        self.into()
    }
}

impl Host for Ipv6Addr {
    fn host(self) -> IpAddr {
        self.into()
    }
}
