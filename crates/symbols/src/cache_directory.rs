//! The directory that holds our caches, and whose it is.
//!
//! The next run believes what is kept there, and files in it are removed. So it must be the user's own: not
//! the end of a link, nor the directory of another user, which HOME names after `sudo -E`.

use std::{
    ffi::OsString,
    fs::{DirBuilder, Metadata},
    os::unix::fs::{DirBuilderExt, MetadataExt},
    path::{Path, PathBuf},
};

/// The user's cache directory (XDG Base Directory Specification): `$XDG_CACHE_HOME`, or `.cache` in `$HOME`.
/// The HOME of root may be that of another user; then it is in root's own home. `None` if the user has none.
pub(crate) fn of_user() -> Option<PathBuf> {
    let user = nix::unistd::geteuid().as_raw();
    folder_of(user, &|name| std::env::var_os(name), home_of_root)
}

/// The same for this user, in an environment with these variables.
fn folder_of(
    user: u32,
    variable: &dyn Fn(&str) -> Option<OsString>,
    home_of_root: impl FnOnce() -> Option<PathBuf>,
) -> Option<PathBuf> {
    let absolute = |name: &str| {
        let path = PathBuf::from(variable(name)?);
        path.is_absolute().then_some(path)
    };
    if let Some(directory) = absolute("XDG_CACHE_HOME") {
        // The user asked for this one: if it cannot be used, no other is used instead.
        let is_own = directory.ancestors().find_map(|path| path.metadata().ok());
        return is_own.filter(|found| is_of(found, user)).map(|_| directory);
    }
    let is_own = |home: &PathBuf| home.metadata().is_ok_and(|found| is_of(&found, user));
    let home = absolute("HOME").filter(is_own);
    let home = home.or_else(|| home_of_root().filter(|home| user == 0 && is_own(home)));
    Some(home?.join(".cache"))
}

/// From passwd(5): a static program cannot safely call the C library's functions for it.
fn home_of_root() -> Option<PathBuf> {
    let users = std::fs::read_to_string("/etc/passwd").ok()?;
    let home = users.lines().find_map(|line| {
        let fields: Vec<&str> = line.split(':').collect();
        (*fields.get(2)? == "0")
            .then(|| fields.get(5).copied())
            .flatten()
    });
    home.map(PathBuf::from).filter(|home| home.is_absolute())
}

/// Whether it is a directory of this user that not everybody can write to.
fn is_of(found: &Metadata, user: u32) -> bool {
    found.is_dir() && found.uid() == user && found.mode() & 0o002 == 0
}

/// Whether this is a directory of ours that is not reached through a link.
pub(crate) fn is_ours(directory: &Path) -> bool {
    let user = nix::unistd::geteuid().as_raw();
    let found = std::fs::symlink_metadata(directory);
    found.is_ok_and(|found| is_of(&found, user) && found.mode() & 0o020 == 0)
}

/// Makes a directory below the one of all our caches, if that is ours or can be made.
pub(crate) fn make(caches: &Path, name: &str) -> std::io::Result<PathBuf> {
    let directory = caches.join(name);
    // The specification wants them to be accessible to the user alone.
    DirBuilder::new()
        .recursive(true)
        .mode(0o700)
        .create(&directory)?;
    if is_ours(caches) && is_ours(&directory) {
        Ok(directory)
    } else {
        Err(std::io::ErrorKind::PermissionDenied.into())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs::Permissions;
    use std::os::unix::fs::PermissionsExt;

    #[test]
    fn a_home_that_is_not_the_users_own_is_not_used() {
        let base = std::env::temp_dir().join(format!("memhook-homes-{}", std::process::id()));
        let _ = std::fs::remove_dir_all(&base);
        let made = |name: &str, mode: u32| {
            let path = base.join(name);
            std::fs::create_dir_all(&path).expect("made");
            std::fs::set_permissions(&path, Permissions::from_mode(mode)).expect("ours");
            path
        };
        let (own, open, root) = (made("own", 0o755), made("open", 0o777), made("root", 0o700));
        let user = own.metadata().expect("there").uid();
        let chosen = |user: u32, variables: &[(&str, &Path)]| {
            let variable = |name: &str| {
                let found = variables.iter().find(|(known, _)| *known == name);
                found.map(|(_, value)| value.as_os_str().to_owned())
            };
            folder_of(user, &variable, || Some(root.clone()))
        };
        let cache = |home: &Path| Some(home.join(".cache"));
        assert_eq!(chosen(user, &[("HOME", &own)]), cache(&own));
        // Another user's, as after `sudo -E`: root has a home of its own, and nobody else may use that.
        let is_root = user == 0;
        let instead = is_root.then(|| root.join(".cache"));
        for foreign in [&open, Path::new("relative"), &base.join("missing")] {
            assert_eq!(chosen(user, &[("HOME", foreign)]), instead, "{foreign:?}");
        }
        let other = user + 1;
        assert_eq!(chosen(other, &[("HOME", &own)]), None);
        assert_eq!(chosen(other, &[]), None);
        // Asked for, it is used or nothing is; one that is still to be made belongs to who owns the place.
        let new = own.join("new/cache");
        assert_eq!(chosen(user, &[("XDG_CACHE_HOME", &new)]), Some(new.clone()));
        let both = [("XDG_CACHE_HOME", &*new), ("HOME", &*own)];
        assert_eq!(chosen(other, &both), None);
        std::fs::remove_dir_all(&base).expect("ours");
    }
}
