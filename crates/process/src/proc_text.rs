//! Text that the kernel writes.

use std::{
    fs::File,
    io::{self, ErrorKind, Read},
    path::Path,
};

/// Room for most of these files. The kernel tells no size of them, and the standard library then begins with
/// reads of a few bytes, each of which makes the kernel write the text anew.
const ROOM: usize = 4096;

/// The bytes of a file in /proc, or another one that the kernel writes when it is read.
///
/// # Errors
/// Those of open(2) and read(2).
pub(crate) fn proc_bytes(path: impl AsRef<Path>) -> io::Result<Vec<u8>> {
    let mut file = File::open(path)?;
    let (mut bytes, mut length) = (vec![0; ROOM], 0);
    loop {
        match file.read(&mut bytes[length..]) {
            Ok(0) => break,
            Ok(read) => length += read,
            Err(error) if error.kind() == ErrorKind::Interrupted => {}
            Err(error) => return Err(error),
        }
        if length == bytes.len() {
            bytes.resize(2 * length, 0);
        }
    }
    bytes.truncate(length);
    Ok(bytes)
}

/// The text of a file in /proc. Names of threads, files and sockets in it may be any bytes; those that are
/// not text are replaced.
pub fn proc_text(path: impl AsRef<Path>) -> io::Result<String> {
    let bytes = proc_bytes(path)?;
    Ok(String::from_utf8(bytes)
        .unwrap_or_else(|error| String::from_utf8_lossy(error.as_bytes()).into_owned()))
}
