//! Allocators and settings with which a run is replayed.

use std::path::{Path, PathBuf};

/// Library directories of Debian and Ubuntu, Fedora, and Arch.
const DIRECTORIES: [&str; 3] = ["/usr/lib/x86_64-linux-gnu", "/usr/lib64", "/usr/lib"];

/// An allocator that distributions offer as a library.
struct Known {
    name: &'static str,
    /// Prefix of the file names of its library.
    module: &'static str,
    files: &'static [&'static str],
}

const KNOWN: [Known; 3] = [
    Known {
        name: "jemalloc",
        module: "libjemalloc",
        files: &["libjemalloc.so.2"],
    },
    Known {
        name: "tcmalloc",
        module: "libtcmalloc",
        files: &["libtcmalloc_minimal.so.4", "libtcmalloc.so.4"],
    },
    Known {
        name: "mimalloc",
        module: "libmimalloc",
        files: &["libmimalloc.so.2", "libmimalloc.so.3"],
    },
];

/// Names of modules that replace the allocator of the C library.
pub(crate) const MODULES: [&str; 3] = [KNOWN[0].module, KNOWN[1].module, KNOWN[2].module];

/// An allocator with settings.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Variant {
    /// Name in reports.
    pub allocator: String,
    /// Settings as environment variables, separated by spaces in reports.
    pub settings: Vec<(&'static str, &'static str)>,
    /// Library that is loaded before all others; `None` for the allocator of the C library.
    pub library: Option<PathBuf>,
}

impl Variant {
    fn glibc(settings: &[(&'static str, &'static str)]) -> Variant {
        Variant {
            allocator: "glibc".to_owned(),
            settings: settings.to_vec(),
            library: None,
        }
    }

    /// Returns the allocator of a library.
    pub fn of_library(path: &Path) -> Variant {
        let name = path.file_name().unwrap_or(path.as_os_str());
        Variant {
            allocator: name.to_string_lossy().into_owned(),
            settings: Vec::new(),
            library: Some(path.to_owned()),
        }
    }

    /// Returns the settings in words; empty for the defaults.
    pub fn settings_text(&self) -> String {
        let settings = self.settings.iter();
        let settings = settings.map(|(name, value)| format!("{name}={value}"));
        settings.collect::<Vec<_>>().join(" ")
    }
}

/// Returns the variant that the recorded process used, recognized by the module of its allocator,
/// followed by all other variants that are installed.
///
/// The first is `None` if its library is not on this machine.
pub(crate) fn all(recorded: Option<&str>) -> (Option<Variant>, Vec<Variant>) {
    let mut others = vec![
        Variant::glibc(&[]),
        Variant::glibc(&[("MALLOC_ARENA_MAX", "1")]),
        Variant::glibc(&[("MALLOC_ARENA_MAX", "2")]),
        // Each of these settings also keeps glibc from adapting its thresholds to the program
        // (mallopt(3)).
        Variant::glibc(&[("MALLOC_TRIM_THRESHOLD_", "131072")]),
        Variant::glibc(&[("MALLOC_MMAP_THRESHOLD_", "65536")]),
        Variant::glibc(&[("GLIBC_TUNABLES", "glibc.malloc.tcache_count=0")]),
    ];
    let mut found_recorded = None;
    for known in &KNOWN {
        let paths = DIRECTORIES.iter().flat_map(|directory| {
            let files = known.files.iter();
            files.map(move |file| Path::new(directory).join(file))
        });
        let Some(path) = paths.into_iter().find(|path| path.is_file()) else {
            continue;
        };
        let variant = Variant {
            allocator: known.name.to_owned(),
            ..Variant::of_library(&path)
        };
        if recorded == Some(known.module) {
            found_recorded = Some(variant);
        } else {
            others.push(variant);
        }
    }
    if recorded.is_none() {
        found_recorded = Some(others.remove(0));
    }
    (found_recorded, others)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_recorded_allocator_is_replayed_once() {
        let (same, others) = all(None);
        let same = same.expect("this C library");
        assert_eq!((same.allocator.as_str(), same.settings.len()), ("glibc", 0));
        assert!(!others.contains(&same));
        let (_, others) = all(Some("libjemalloc"));
        assert!(others.contains(&same));
        assert!(others.iter().all(|variant| variant.allocator != "jemalloc"));
    }

    #[test]
    fn settings_in_words() {
        let variant = Variant::glibc(&[("A", "1"), ("B", "2")]);
        assert_eq!(variant.settings_text(), "A=1 B=2");
    }
}
