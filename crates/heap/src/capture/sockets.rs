//! Data that waits in the local sockets of a process, including loopback connections: threads may
//! pass pointers to each other through them.

use crate::capture::kernel_words::is_closed;
use crate::snapshot::addresses_anywhere;
use memhook_inject::duplicate_descriptor;
use memhook_process::proc_text;
use nix::sys::socket::{MsgFlags, SockType, getsockopt, recvmsg, sockopt};
use std::cell::OnceCell;
use std::collections::BTreeSet;
use std::io::IoSliceMut;
use std::os::fd::AsRawFd;
use std::path::{Path, PathBuf};

/// Size that exceeds any socket buffer, unless net.core.wmem_max was raised.
const PEEK_BYTES: usize = 1 << 20;

/// The local sockets of a process's network namespace, by inode.
///
/// Each list is read when a socket is first looked up in it. To list TCP connections, the kernel
/// walks a hash table whose size depends on the memory of the machine, which takes milliseconds on
/// a large machine. Most short-lived programs have no socket.
pub struct Sockets {
    /// The process's directory in /proc.
    directory: PathBuf,
    /// Unix sockets; `None` if the kernel does not list them.
    unix: OnceCell<Option<BTreeSet<u64>>>,
    /// Loopback TCP connections that have unread data.
    waiting_tcp: OnceCell<BTreeSet<u64>>,
    buffer: Vec<u8>,
}

impl Sockets {
    /// Prepares to list the sockets of the process with this directory in /proc.
    pub fn listed_in(directory: &Path) -> Sockets {
        Sockets {
            directory: directory.to_owned(),
            unix: OnceCell::new(),
            waiting_tcp: OnceCell::new(),
            buffer: Vec::new(),
        }
    }

    /// Returns true if unread data in this socket may come from the process itself. Other sockets
    /// do not normally carry pointers of the process. Returns `None` if the kernel does not report
    /// it.
    fn is_local(&self, inode: u64) -> Option<bool> {
        let unix = self.unix.get_or_init(|| unix_sockets(&self.directory));
        if unix.as_ref()?.contains(&inode) {
            return Some(true);
        }
        let tcp = self
            .waiting_tcp
            .get_or_init(|| waiting_connections(&self.directory));
        Some(tcp.contains(&inode))
    }

    /// Returns true if no unread data in this socket can come from the process itself.
    pub fn is_of_others(&self, inode: u64) -> bool {
        self.is_local(inode) == Some(false)
    }

    /// Adds every word of the unread data in this socket that may be a pointer, at any offset. The
    /// data stays in the socket. Returns `false` if not all of the data is visible, because only
    /// the first of several messages can be peeked at.
    pub fn read(&mut self, pid: i32, number: u64, inode: u64, found: &mut Vec<u64>) -> bool {
        match self.is_local(inode) {
            None => return false,
            Some(false) => return true,
            Some(true) => {}
        }
        let descriptor = match duplicate_descriptor(pid, number) {
            Ok(descriptor) => descriptor,
            Err(error) => return is_closed(&error),
        };
        self.buffer.resize(PEEK_BYTES, 0);
        let flags = MsgFlags::MSG_PEEK | MsgFlags::MSG_DONTWAIT;
        // The call fails for a listening or unconnected socket, which has no data.
        let mut buffers = [IoSliceMut::new(&mut self.buffer)];
        let Ok(message) = recvmsg::<()>(descriptor.as_raw_fd(), &mut buffers, None, flags) else {
            return true;
        };
        // Without a buffer for ancillary data, the call only reports that such data is present. It
        // consists of file descriptors, perhaps of pipes that no other process has open (cmsg(3)).
        // A peek does not get past them.
        let (bytes, carries_more) = (message.bytes, message.flags.contains(MsgFlags::MSG_CTRUNC));
        found.extend(addresses_anywhere(&self.buffer[..bytes]));
        let is_stream = getsockopt(&descriptor, sockopt::SockType) == Ok(SockType::Stream);
        bytes == 0 || (is_stream && bytes < PEEK_BYTES && !carries_more)
    }
}

fn unix_sockets(directory: &Path) -> Option<BTreeSet<u64>> {
    // Num RefCount Protocol Flags Type St Inode Path
    let inode = |line: &str| line.split_whitespace().nth(6)?.parse().ok();
    // Names of sockets need not be valid text.
    let listed = proc_text(directory.join("net/unix")).ok()?;
    Some(listed.lines().filter_map(inode).collect())
}

fn waiting_connections(directory: &Path) -> BTreeSet<u64> {
    let mut found = BTreeSet::new();
    for file in ["net/tcp", "net/tcp6"] {
        let text = proc_text(directory.join(file)).unwrap_or_default();
        found.extend(text.lines().filter_map(waiting_loopback));
    }
    found
}

/// Returns the inode of a loopback TCP connection with unread data, from lines like `0:
/// 0100007F:8124 0100007F:0016 01 00000000:00000008 00:00000000 00000000 1000 0 61423 ...`
/// (proc_pid_net(5)). Addresses are 32-bit words in the processor's byte order.
fn waiting_loopback(line: &str) -> Option<u64> {
    let fields: Vec<&str> = line.split_whitespace().collect();
    let (address, _) = fields.get(2)?.split_once(':')?;
    let is_loopback = match address.len() {
        8 => address.ends_with("7F"),
        _ => {
            address == "00000000000000000000000001000000"
                || (address.starts_with("0000000000000000FFFF0000") && address.ends_with("7F"))
        }
    };
    let (_, waiting) = fields.get(4)?.split_once(':')?;
    let waits = u64::from_str_radix(waiting, 16).is_ok_and(|bytes| bytes > 0);
    (is_loopback && waits).then(|| fields.get(9)?.parse().ok())?
}

/// Returns the inode in a descriptor's link in /proc, such as `socket:[61423]`.
pub fn socket_inode(link: &Path) -> Option<u64> {
    let text = link.to_str()?.strip_prefix("socket:[")?;
    text.strip_suffix(']')?.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;
    use nix::errno::Errno;
    use std::io::{Read, Write};
    use std::net::{TcpListener, TcpStream};
    use std::os::linux::net::SocketAddrExt;
    use std::os::unix::net::{SocketAddr, UnixDatagram, UnixListener, UnixStream};

    fn read(descriptor: i32) -> (Vec<u64>, bool) {
        let pid = std::process::id() as i32;
        let link = std::fs::read_link(format!("/proc/{pid}/fd/{descriptor}")).unwrap();
        let mut found = Vec::new();
        let inode = socket_inode(&link).unwrap();
        let seen = Sockets::listed_in(Path::new("/proc/self")).read(
            pid,
            descriptor as u64,
            inode,
            &mut found,
        );
        (found, seen)
    }

    #[test]
    fn sockets_whose_names_are_no_text() {
        let name = [b"\xff".as_slice(), &std::process::id().to_le_bytes()].concat();
        let name = SocketAddr::from_abstract_name(name).unwrap();
        let listening = UnixListener::bind_addr(&name).unwrap();
        let mut near = UnixStream::connect_addr(&name).unwrap();
        let (far, _) = listening.accept().unwrap();
        let word = 0x55d0_c0ff_ee00u64;
        near.write_all(&word.to_le_bytes()).unwrap();
        assert_eq!(read(far.as_raw_fd()), (vec![word], true));
    }

    #[test]
    fn what_cannot_be_had_was_not_seen() {
        let (near, _far) = UnixStream::pair().unwrap();
        let unlisted = Sockets::listed_in(Path::new("/no/such/process"));
        let pid = std::process::id() as i32;
        let read = |mut sockets: Sockets, number| sockets.read(pid, number, 7, &mut Vec::new());
        assert!(!read(unlisted, near.as_raw_fd() as u64));
        let closed = Sockets::listed_in(Path::new("/proc/self"));
        closed.unix.set(Some([7].into())).unwrap();
        assert!(read(closed, 1 << 20), "closed meanwhile");
        assert!(!is_closed(&std::io::Error::from(Errno::EPERM)));
    }

    #[test]
    fn connections_with_this_machine_itself() {
        let mut pairs = Vec::new();
        for address in ["127.0.0.1:0", "[::1]:0"] {
            // The machine may have no IPv6.
            let Ok(listening) = TcpListener::bind(address) else {
                continue;
            };
            let near = TcpStream::connect(listening.local_addr().unwrap()).unwrap();
            pairs.push((near, listening.accept().unwrap().0));
        }
        assert!(!pairs.is_empty());
        for (near, far) in &mut pairs {
            assert_eq!(read(far.as_raw_fd()), (vec![], true));
            let word = 0x55d0_c0ff_ee00u64;
            near.write_all(&word.to_le_bytes()).unwrap();
            // On the loopback interface, data arrives before the call returns, or shortly after.
            let mut waits = [0];
            assert_eq!(far.peek(&mut waits).unwrap(), 1);
            assert_eq!(read(far.as_raw_fd()), (vec![word], true));
        }
        let far_away = "1: 0100007F:8124 0200A8C0:0016 01 00000000:00000008 00:0 0 0 0 61423 1";
        assert_eq!(waiting_loopback(far_away), None);
        assert_eq!(waiting_loopback("sl local_address rem_address"), None);
    }

    #[test]
    fn what_waits_is_seen_and_stays() {
        let word = 0x55d0_c0ff_ee00u64;
        let (mut near, mut far) = UnixStream::pair().unwrap();
        assert_eq!(read(far.as_raw_fd()), (vec![], true));
        let message = [b"msg".as_slice(), &word.to_le_bytes()].concat();
        near.write_all(&message).unwrap();
        let (found, seen) = read(far.as_raw_fd());
        assert!(found.contains(&word) && seen, "{found:x?}");
        let mut got = vec![0; message.len()];
        far.read_exact(&mut got).unwrap();
        assert_eq!(got, message);

        let (near, far) = UnixDatagram::pair().unwrap();
        near.send(&word.to_le_bytes()).unwrap();
        assert_eq!(read(far.as_raw_fd()), (vec![word], false));
        assert_eq!(socket_inode(Path::new("pipe:[12]")), None);
    }
}
