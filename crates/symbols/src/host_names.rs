//! Resolves host names through `getent`.
//!
//! The C library's getaddrinfo(3) loads the plug-ins named in /etc/nsswitch.conf, which is safe in
//! a static program only with the C library that it was built with. `getent` is part of every
//! glibc, and gives the same answers that other programs on the machine get.

use crossbeam_channel::bounded;
use std::{
    io::Read,
    net::{IpAddr, SocketAddr},
    process::{Command, Stdio},
    time::Duration,
};
use ureq::{
    Error, Timeout,
    config::Config,
    http::Uri,
    unversioned::{
        resolver::{ResolvedSocketAddrs, Resolver},
        transport::NextTimeout,
    },
};

/// Resolver for ureq.
#[derive(Debug)]
pub struct Getent;

impl Resolver for Getent {
    fn resolve(
        &self,
        uri: &Uri,
        _: &Config,
        timeout: NextTimeout,
    ) -> Result<ResolvedSocketAddrs, Error> {
        let host = uri.host().ok_or(Error::HostNotFound)?;
        let default = if uri.scheme_str() == Some("http") {
            80
        } else {
            443
        };
        let port = uri.port_u16().unwrap_or(default);
        let host = host.trim_start_matches('[').trim_end_matches(']');
        let mut addresses = self.empty();
        for address in found_for(host, *timeout.after)?
            .into_iter()
            .take(MAX_ADDRESSES)
        {
            addresses.push(SocketAddr::new(address, port));
        }
        Ok(addresses)
    }
}

fn found_for(host: &str, within: Duration) -> Result<Vec<IpAddr>, Error> {
    match host.parse::<IpAddr>() {
        Ok(address) => Ok(vec![address]),
        Err(_) => ask(host, within),
    }
}

/// Maximum number of addresses that ureq takes.
const MAX_ADDRESSES: usize = 16;

fn ask(host: &str, within: Duration) -> Result<Vec<IpAddr>, Error> {
    // An option or an empty word is not a host.
    if host.is_empty() || host.starts_with('-') {
        return Err(Error::HostNotFound);
    }
    let mut child = Command::new("getent")
        .args(["ahosts", host])
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::null())
        .spawn()?;
    let out = child.stdout.take();
    let (send, receive) = bounded(1);
    std::thread::spawn(move || {
        let mut text = String::new();
        let read = out.map(|mut out| out.read_to_string(&mut text));
        let _ = send.send(matches!(read, Some(Ok(_))).then_some(text));
    });
    let answer = receive.recv_timeout(within);
    let _ = child.kill();
    child.wait()?;
    let text = answer.map_err(|_| Error::Timeout(Timeout::Resolve))?;
    let addresses = parsed(&text.unwrap_or_default());
    if addresses.is_empty() {
        Err(Error::HostNotFound)
    } else {
        Ok(addresses)
    }
}

/// Parses addresses and removes duplicates, because `ahosts` prints a line for each socket type.
fn parsed(text: &str) -> Vec<IpAddr> {
    let mut addresses = Vec::new();
    for line in text.lines() {
        let address = line.split_whitespace().next().and_then(|a| a.parse().ok());
        if let Some(address) = address.filter(|a| !addresses.contains(a)) {
            addresses.push(address);
        }
    }
    addresses
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_of_a_name() {
        let text =
            "::1  STREAM localhost\n::1  DGRAM\n127.0.0.1 STREAM\n127.0.0.1 RAW\nfe80::1%2 RAW\n";
        let expected: [IpAddr; 2] = ["::1".parse().unwrap(), "127.0.0.1".parse().unwrap()];
        assert_eq!(parsed(text), expected);
        // Resolving a name would need an entry in /etc/hosts, which some containers lack.
        let found = ask("127.0.0.1", Duration::from_secs(60)).unwrap();
        assert!(found.iter().all(IpAddr::is_loopback), "{found:?}");
        assert!(ask("no-such-host.invalid", Duration::from_secs(60)).is_err());
        assert!(ask("-V", Duration::from_secs(60)).is_err());
    }
}
