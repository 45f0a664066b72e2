//! Name under which the loader lists an object that it has loaded from a descriptor.
//!
//! The name is the path that was passed to `dlopen`: the path of a descriptor in /proc. Debuggers, and symbolizers
//! within the process (dl_iterate_phdr(3), dladdr(3)), list the modules and open them by their names. To them, this
//! path leads to a different file, perhaps a pipe, and reading from it blocks, or takes data that was meant for others.
//! A program that loads its own libraries by such paths would get our object if it used the same number. So the name is
//! overwritten by a name that describes the object and is not a file name, like the kernel's `[vdso]`.
//!
//! glibc stores the name in two places, which are partly public: `l_name` of `struct link_map` (link.h), and the names
//! under which the object was requested, `l_libname` (include/link.h of its sources). A string is overwritten only if
//! it is the given path, so nothing is written if the fields are elsewhere.

use crate::{Error, Held};
use memhook_process::RemoteAddress;

/// Shown name, no longer than the shortest path of a descriptor. It is absolute, so that it is never looked up in a
/// working directory.
const SHOWN: &[u8] = b"/[memhook-hook]";

/// `l_name` of `struct link_map`.
const NAME: u64 = 8;
/// `l_libname`, after the five public members, `l_real` and `l_ns`; unchanged since glibc 2.4.
const ASKED_NAMES: u64 = 56;
/// A `struct libname_list` begins with a name, and has a pointer to the next structure at this offset.
const NEXT: u64 = 8;
/// Maximum number of names that are followed. The loader lists one name for each path by which an object was found, so
/// our object has one name.
const MOST_NAMES: u32 = 4;

/// Overwrites the names of the object with this `struct link_map`, which was loaded through `path`.
pub(crate) fn overwrite(held: &mut Held, link_map: u64, path: &str) -> Result<(), Error> {
    let link_map = RemoteAddress(link_map);
    overwrite_one(held, held.read_word(link_map + NAME)?, path)?;
    let mut list = held.read_word(link_map + ASKED_NAMES)?;
    for _ in 0..MOST_NAMES {
        if list == 0 {
            break;
        }
        // If this is not a list, it does not contain the name.
        let Ok(name) = held.read_word(RemoteAddress(list)) else {
            break;
        };
        overwrite_one(held, name, path)?;
        list = held.read_word(RemoteAddress(list) + NEXT)?;
    }
    Ok(())
}

fn overwrite_one(held: &Held, text: u64, path: &str) -> Result<(), Error> {
    let expected = [path.as_bytes(), b"\0"].concat();
    let mut found = vec![0; expected.len()];
    let is_it = held.read(RemoteAddress(text), &mut found).is_ok() && found == expected;
    if !is_it || SHOWN.len() > path.len() {
        return Ok(());
    }
    let mut shown = SHOWN.to_vec();
    shown.resize(expected.len(), 0);
    held.write(RemoteAddress(text), &shown)
}
