//! Process events from the kernel, through the process events connector
//! (Documentation/driver-api/connector.rst, and include/uapi/linux/cn_proc.h). It needs
//! CAP_NET_ADMIN in the initial user namespace. Without it, the agent reads /proc instead.

use rustix::fd::{AsFd, BorrowedFd, OwnedFd};
use rustix::io::Errno;
use rustix::net::netlink::{CONNECTOR, SocketAddrNetlink};
use rustix::net::{AddressFamily, RecvFlags, SendFlags, SocketFlags, SocketType};

/// `CN_IDX_PROC` and `CN_VAL_PROC`: the multicast group, and the connector's address.
const INDEX: u32 = 1;
const VALUE: u32 = 1;
/// `PROC_CN_MCAST_LISTEN`
const LISTEN: u32 = 1;
/// `NLMSG_DONE`
const DONE: u16 = 3;
/// Sizes of `struct nlmsghdr`, of `struct cn_msg`, and of the part of `struct proc_event` before
/// the data.
const MESSAGE_HEADER: usize = 16;
const CONNECTOR_HEADER: usize = 20;
const EVENT_HEADER: usize = 16;
/// `PROC_EVENT_FORK`, `PROC_EVENT_EXEC`, `PROC_EVENT_EXIT`
const FORK: u32 = 1;
const EXEC: u32 = 2;
const EXIT: u32 = 0x8000_0000;

/// A process event.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum News {
    /// A process was forked.
    Forked(i32),
    /// A process executes another program.
    Executes(i32),
    /// A process has ended.
    Ended(i32),
    /// Events were missed, so all processes must be checked.
    Missed,
}

/// The socket on which process events arrive.
pub struct ProcEvents {
    socket: OwnedFd,
}

impl ProcEvents {
    /// Subscribes to process events. Fails without permission.
    pub fn listen() -> rustix::io::Result<ProcEvents> {
        let socket = rustix::net::socket_with(
            AddressFamily::NETLINK,
            SocketType::DGRAM,
            SocketFlags::CLOEXEC | SocketFlags::NONBLOCK,
            Some(CONNECTOR),
        )?;
        rustix::net::bind(&socket, &SocketAddrNetlink::new(0, INDEX))?;
        rustix::net::send(&socket, &request(), SendFlags::NOSIGNAL)?;
        Ok(ProcEvents { socket })
    }

    /// Returns the events that have arrived. After an error, no more will arrive.
    pub fn news(&self) -> rustix::io::Result<Vec<News>> {
        /// Maximum number of events per call. The rest is left for the next call.
        const MOST: usize = 4096;
        let mut news = Vec::new();
        let mut room = [0; 8192];
        while news.len() < MOST {
            match rustix::net::recv(&self.socket, &mut room, RecvFlags::empty()) {
                Ok((_, 0)) => break,
                Ok((_, length)) => parse(&room[..length.min(room.len())], &mut news),
                Err(Errno::AGAIN) => break,
                Err(Errno::INTR) => {}
                // There was no room for all events.
                Err(Errno::NOBUFS) => news.push(News::Missed),
                Err(error) => return Err(error),
            }
        }
        Ok(news)
    }
}

impl AsFd for ProcEvents {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }
}

/// Composes a `nlmsghdr`, a `cn_msg` and an operation.
fn request() -> Vec<u8> {
    let length = MESSAGE_HEADER + CONNECTOR_HEADER + 4;
    let mut bytes = Vec::with_capacity(length);
    bytes.extend((length as u32).to_ne_bytes());
    bytes.extend(DONE.to_ne_bytes());
    // There are no flags, the sequence number is 0, and the port is the one that the kernel has
    // assigned to the socket.
    bytes.extend([0; 10]);
    for word in [INDEX, VALUE, 0, 0] {
        bytes.extend(word.to_ne_bytes());
    }
    bytes.extend(4u16.to_ne_bytes());
    bytes.extend(0u16.to_ne_bytes());
    bytes.extend(LISTEN.to_ne_bytes());
    bytes
}

/// Reads the messages of a datagram, skipping damaged ones.
fn parse(mut bytes: &[u8], news: &mut Vec<News>) {
    let word = |bytes: &[u8], at: usize| {
        let word = bytes.get(at..at + 4)?;
        Some(u32::from_ne_bytes(word.try_into().ok()?))
    };
    while let Some(length) = word(bytes, 0) {
        let length = length as usize;
        if length < MESSAGE_HEADER || length > bytes.len() {
            return;
        }
        let message = &bytes[..length];
        let at = MESSAGE_HEADER + CONNECTOR_HEADER;
        let data = at + EVENT_HEADER;
        let is_ours = word(message, MESSAGE_HEADER) == Some(INDEX);
        let of = |index: usize| word(message, data + 4 * index).map(|id| id as i32);
        match word(message, at).filter(|_| is_ours) {
            // The fields are the parent's thread and process, then the child's thread and process.
            // New threads are ignored.
            Some(FORK) => {
                if let (Some(thread), Some(process)) = (of(2), of(3))
                    && thread == process
                {
                    news.push(News::Forked(process));
                }
            }
            Some(EXEC) => news.extend(of(1).map(News::Executes)),
            Some(EXIT) => {
                if let (Some(thread), Some(process)) = (of(0), of(1))
                    && thread == process
                {
                    news.push(News::Ended(process));
                }
            }
            _ => {}
        }
        // The length is rounded up as by NLMSG_ALIGN.
        bytes = bytes.get(length.next_multiple_of(4)..).unwrap_or_default();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::{Duration, Instant};

    fn message(what: u32, words: &[u32]) -> Vec<u8> {
        let length = MESSAGE_HEADER + CONNECTOR_HEADER + EVENT_HEADER + 4 * words.len();
        let mut bytes = (length as u32).to_ne_bytes().to_vec();
        bytes.extend([0; 12]);
        bytes.extend(INDEX.to_ne_bytes());
        bytes.extend([0; 16]);
        bytes.extend(what.to_ne_bytes());
        bytes.extend([0; 12]);
        words
            .iter()
            .for_each(|word| bytes.extend(word.to_ne_bytes()));
        bytes
    }

    #[test]
    fn messages_are_read_and_damage_is_left_out() {
        let mut all = message(FORK, &[1, 1, 7, 7]);
        all.extend(message(FORK, &[1, 1, 9, 7]));
        all.extend(message(EXEC, &[7, 7]));
        all.extend(message(EXIT, &[9, 7, 0, 0]));
        all.extend(message(EXIT, &[7, 7, 0, 0]));
        let mut news = Vec::new();
        parse(&all, &mut news);
        assert_eq!(news, [News::Forked(7), News::Executes(7), News::Ended(7)]);
        for length in 0..all.len() {
            parse(&all[..length], &mut Vec::new());
        }
        for at in 0..all.len() {
            let mut damaged = all.clone();
            damaged[at] ^= 0xff;
            parse(&damaged, &mut Vec::new());
        }
    }

    /// The test needs CAP_NET_ADMIN. Without it, the agent reads /proc instead.
    #[test]
    fn the_kernel_tells_of_a_child() {
        // If many processes start and end while this thread is stopped, the socket has no space for
        // all events.
        for _ in 0..20 {
            let Ok(events) = ProcEvents::listen() else {
                return memhook_tests::not_run_here("process events are not permitted");
            };
            let mut child = std::process::Command::new("true").spawn().expect("true");
            let pid = child.id() as i32;
            child.wait().expect("reaped");
            let until = Instant::now() + Duration::from_secs(20);
            let mut seen = Vec::new();
            while !seen.contains(&News::Ended(pid)) && !seen.contains(&News::Missed) {
                if Instant::now() > until {
                    // Network namespaces other than the initial one get no events.
                    return memhook_tests::not_run_here("no process events arrive");
                }
                seen.extend(events.news().expect("readable"));
                std::thread::sleep(Duration::from_millis(5));
            }
            if !seen.contains(&News::Missed) {
                let made = [News::Forked(pid), News::Executes(pid)];
                assert!(made.iter().all(|news| seen.contains(news)), "{seen:?}");
                return;
            }
        }
        panic!("events are missed each time");
    }
}
