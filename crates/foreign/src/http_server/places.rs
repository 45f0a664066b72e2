//! Chooses the client that makes room for another.

use super::{Client, HttpServer, MOST_SILENT, MOST_SILENT_OF_ONE};
use std::io::{ErrorKind, Result};
use std::net::{IpAddr, Ipv6Addr, Shutdown, TcpStream};
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering::Relaxed};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Instant;

/// Connection whose request is incomplete.
pub(super) struct Silent {
    pub(super) client: Client,
    /// Deadline of its request.
    pub(super) until: Instant,
}

impl Silent {
    /// Adds a connection to a list that is sorted by age, oldest first. Drops another connection if there are too many.
    pub(super) fn enter(list: &mut Vec<Silent>, client: Client, until: Instant) {
        let addresses = list.iter().map(|one| one.client.address);
        if let Some(at) = yields(addresses, client.address, (MOST_SILENT, MOST_SILENT_OF_ONE)) {
            drop(list.remove(at));
        }
        list.push(Silent { client, until });
    }
}

/// Connections that are being answered, oldest first.
#[derive(Default)]
pub(super) struct Places {
    taken: Mutex<Vec<Answered>>,
    last: AtomicU64,
    /// Number of threads that produce answers, including those for clients that were turned away.
    threads: AtomicUsize,
}

struct Answered {
    number: u64,
    address: IpAddr,
    /// Connection, to end it from outside.
    stream: TcpStream,
}

impl Places {
    fn lock(&self) -> MutexGuard<'_, Vec<Answered>> {
        self.taken.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Accepts a client, and turns another client away if necessary. Accepts no client if so many threads are producing
    /// answers that they must be stuck.
    pub(super) fn enter(self: &Arc<Places>, client: &Client, server: &HttpServer) -> Result<Place> {
        let (stream, address) = (client.stream.try_clone()?, client.address);
        if self.threads.load(Relaxed) >= 2 * server.most_clients {
            return Err(ErrorKind::WouldBlock.into());
        }
        self.threads.fetch_add(1, Relaxed);
        let number = self.last.fetch_add(1, Relaxed);
        let mut taken = self.lock();
        let addresses = taken.iter().map(|one| one.address);
        if let Some(at) = yields(
            addresses,
            address,
            (server.most_clients, server.most_of_one),
        ) {
            let _ = taken.remove(at).stream.shutdown(Shutdown::Both);
        }
        taken.push(Answered {
            number,
            address,
            stream,
        });
        let places = Arc::clone(self);
        Ok(Place { places, number })
    }
}

/// Place of a client, held until it is dropped.
pub(super) struct Place {
    places: Arc<Places>,
    number: u64,
}

impl Drop for Place {
    fn drop(&mut self) {
        self.places.threads.fetch_sub(1, Relaxed);
        self.places.lock().retain(|one| one.number != self.number);
    }
}

/// Returns the client whose connection is closed for a new client, if any: the oldest client of the new client's
/// address if that address is at its limit, otherwise the oldest of the address with the most clients. `most`: limits
/// in total, and for one address.
fn yields(
    addresses: impl Iterator<Item = IpAddr>,
    new: IpAddr,
    most: (usize, usize),
) -> Option<usize> {
    let networks: Vec<IpAddr> = addresses.map(network).collect();
    let count = |of: &IpAddr| networks.iter().filter(|network| *network == of).count();
    let first = |of: &IpAddr| networks.iter().position(|network| network == of);
    let new = network(new);
    if count(&new) >= most.1 {
        return first(&new);
    }
    if networks.len() < most.0 {
        return None;
    }
    // If several addresses have equal numbers, the first one.
    networks
        .iter()
        .rev()
        .max_by_key(|network| count(network))
        .and_then(first)
}

/// Returns the range that counts as one address, because whoever owns one IPv6 address owns 2^64 of them.
fn network(address: IpAddr) -> IpAddr {
    match address.to_canonical() {
        IpAddr::V6(six) => {
            let [a, b, c, d, ..] = six.segments();
            Ipv6Addr::new(a, b, c, d, 0, 0, 0, 0).into()
        }
        four => four,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(addresses: &[&str], new: &str) -> Option<usize> {
        let parse = |text: &str| text.parse::<IpAddr>().expect("an address");
        yields(addresses.iter().map(|text| parse(text)), parse(new), (6, 3))
    }

    #[test]
    fn who_holds_most_makes_room() {
        assert_eq!(at(&[], "10.0.0.1"), None);
        assert_eq!(at(&["10.0.0.1", "10.0.0.2"], "10.0.0.1"), None);
        let full = [
            "10.0.0.9", "10.0.0.1", "10.0.0.2", "10.0.0.1", "10.0.0.1", "10.0.0.3",
        ];
        assert_eq!(at(&full, "10.0.0.1"), Some(1));
        assert_eq!(at(&full, "10.0.0.4"), Some(1));
        assert_eq!(at(&full[..5], "10.0.0.1"), Some(1));
        assert_eq!(at(&full[..5], "10.0.0.4"), None);
        let different = [
            "10.0.0.1", "10.0.0.2", "10.0.0.3", "10.0.0.4", "10.0.0.5", "10.0.0.6",
        ];
        assert_eq!(at(&different, "10.0.0.2"), Some(0));
    }

    #[test]
    fn a_network_of_ipv6_is_one_address() {
        let one = ["2001:db8::1", "2001:db8::ffff:2", "2001:db8::3"];
        assert_eq!(at(&one, "2001:db8::4"), Some(0));
        assert_eq!(at(&one, "2001:db8:0:1::4"), None);
        let mapped = ["::ffff:10.0.0.1", "10.0.0.1", "::ffff:10.0.0.2", "10.0.0.1"];
        assert_eq!(at(&mapped, "::ffff:10.0.0.1"), Some(0));
    }
}
