//! Checks the Host field of requests to our servers, which names the host that the client wants to reach.

use std::net::IpAddr;

/// Returns true if a request with this Host is meant for a server of ours with these names.
///
/// A foreign page can have a host name that resolves to this machine, and the browser would let it read our answers
/// under that name (DNS rebinding). An IP address cannot be a foreign name, and `localhost` is always this machine.
pub fn asks_for_us<'a>(host: &str, names: impl IntoIterator<Item = &'a str>) -> bool {
    let is_port = |port: &str| port.bytes().all(|byte| byte.is_ascii_digit());
    let name = match host.rsplit_once(':') {
        Some((name, port)) if is_port(port) => name,
        _ => host,
    };
    let inner = name
        .strip_prefix('[')
        .and_then(|rest| rest.strip_suffix(']'));
    let is_it = |own: &str| !own.is_empty() && name.eq_ignore_ascii_case(own);
    inner.unwrap_or(name).parse::<IpAddr>().is_ok()
        || is_it("localhost")
        || names.into_iter().any(is_it)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_our_own_names_and_addresses() {
        for host in [
            "127.0.0.1:80",
            "127.0.0.1",
            "[::1]:80",
            "10.3.4.5:9464",
            "localhost:8080",
            "LocalHost",
            "box:1",
            "agent.example",
        ] {
            assert!(asks_for_us(host, ["box", "agent.example"]), "{host}");
        }
        for host in [
            "evil.example:80",
            "localhost.evil.example",
            "127.0.0.1.evil.example",
            "",
            "box.evil:1",
        ] {
            assert!(
                !asks_for_us(host, ["box"]) && !asks_for_us(host, [""]),
                "{host}"
            );
        }
    }
}
