//! Debug files from debuginfod servers (debuginfod(8), "WEBAPI").
//!
//! A file is downloaded into a directory next to the cached names, and used from there the next
//! time. The caller decides whether servers are asked; see [`Debuginfod::from_environment`].

use crate::debug_files::DebugFile;
use crate::file::{hex, open_checked};
use crate::host_names::Getent;
use crate::{SymbolCache, SymbolError};
use memhook_foreign::CacheDirectory;
use std::{
    fs::File,
    path::{Path, PathBuf},
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::{Duration, SystemTime},
};
use ureq::tls::{RootCerts, TlsConfig};
use ureq::{Agent, unversioned::transport::DefaultConnector};

/// Maximum number of bytes in all downloaded files. The last file stays, regardless of its size.
const MAX_FILES_BYTES: u64 = 8 << 30;
/// Upper bound on the size of a debug file.
const MAX_FILE_BYTES: u64 = 16 << 30;
/// Time for which the absence of a file on all servers is remembered.
const ABSENCE: Duration = Duration::from_secs(600);

/// Time limits for servers.
#[derive(Clone, Copy, Debug)]
pub struct TimeLimits {
    /// Limit for the name lookup, the connection, and the time between two pieces of an answer.
    pub silence: Duration,
    /// Limit for a whole file.
    pub total: Duration,
}

impl Default for TimeLimits {
    fn default() -> Self {
        TimeLimits {
            silence: Duration::from_secs(10),
            total: Duration::from_secs(600),
        }
    }
}

/// Servers of debug files.
#[derive(Clone, Debug)]
pub struct Debuginfod {
    servers: Vec<String>,
    /// Directory of all caches, and the name of the cache for files.
    directory: (PathBuf, &'static str),
    agent: Agent,
    /// Servers that failed. Each is reported once and not asked again.
    failed: Arc<Mutex<Vec<bool>>>,
}

/// Reason why a server gave no file.
enum Refusal {
    /// The server does not have the requested file.
    Absent,
    /// The server, or the connection to it, failed.
    Failed(String),
    /// The server sent a wrong file.
    Wrong(SymbolError),
}

impl From<std::io::Error> for Refusal {
    fn from(error: std::io::Error) -> Self {
        Refusal::Failed(error.to_string())
    }
}

impl Debuginfod {
    /// Returns the servers in `DEBUGINFOD_URLS`, separated by spaces; `None` without any.
    pub fn from_environment(cache: &SymbolCache) -> Option<Debuginfod> {
        let urls = std::env::var("DEBUGINFOD_URLS").ok()?;
        Debuginfod::new(&urls, cache, TimeLimits::default())
    }

    /// Parses a list of servers separated by spaces.
    pub fn new(urls: &str, cache: &SymbolCache, limits: TimeLimits) -> Option<Debuginfod> {
        let servers: Vec<String> = urls
            .split_whitespace()
            // Lists for newer clients also contain keywords about signatures.
            .filter(|word| word.starts_with("http://") || word.starts_with("https://"))
            .map(|url| url.trim_end_matches('/').to_owned())
            .collect();
        // The system's certificates are used, because a company may sign its own server's.
        let certificates = TlsConfig::builder().root_certs(RootCerts::PlatformVerifier);
        let config = Agent::config_builder()
            .tls_config(certificates.build())
            .timeout_global(Some(limits.total))
            .timeout_resolve(Some(limits.silence))
            .timeout_connect(Some(limits.silence))
            .timeout_recv_response(Some(limits.silence))
            .timeout_per_read(Some(limits.silence))
            .user_agent(concat!("memhook-rs/", env!("CARGO_PKG_VERSION")))
            .build();
        (!servers.is_empty()).then(|| Debuginfod {
            failed: Arc::new(Mutex::new(vec![false; servers.len()])),
            servers,
            directory: cache.debug_files(),
            agent: Agent::with_parts(config, DefaultConnector::default(), Getent),
        })
    }

    /// Finds the debug file of a build.
    pub(crate) fn find(&self, id: &[u8], problems: &mut Vec<SymbolError>) -> Option<DebugFile> {
        let name = hex(id);
        // The directory is created for the first download, unless there is a link or another user's
        // directory.
        let directory = self.place().make().ok()?;
        let path = directory.join(&name);
        if let Ok(data) = open_checked(&path, &[], Some(id)) {
            let _ = File::open(&path).and_then(|file| file.set_modified(SystemTime::now()));
            return Some(DebugFile { path, data });
        }
        let absence = directory.join(format!("{name}.absent"));
        if is_recent(&absence) {
            return None;
        }
        let mut is_sure = true;
        for (number, server) in self.servers.iter().enumerate() {
            if self.has_failed(number) {
                is_sure = false;
                continue;
            }
            let url = format!("{server}/buildid/{name}/debuginfo");
            match self.download(&url, id) {
                Ok(file) => return Some(file),
                Err(Refusal::Absent) => {}
                Err(Refusal::Wrong(problem)) => {
                    is_sure = false;
                    problems.push(problem);
                }
                Err(Refusal::Failed(reason)) => {
                    is_sure = false;
                    if self.is_first_failure(number) {
                        problems.push(SymbolError::Download { url, reason });
                    }
                }
            }
        }
        if is_sure {
            let nothing = |_: &mut File, _: &Path| Ok::<(), std::io::Error>(());
            let _ = self.place().write_whole(&format!("{name}.absent"), nothing);
        }
        None
    }

    fn download(&self, url: &str, id: &[u8]) -> Result<DebugFile, Refusal> {
        let response = match self.agent.get(url).call() {
            Ok(response) => response,
            Err(ureq::Error::StatusCode(404)) => return Err(Refusal::Absent),
            Err(error) => return Err(Refusal::Failed(error.to_string())),
        };
        let body = response.into_body().into_with_config();
        let mut body = body.limit(MAX_FILE_BYTES).reader();
        let name = hex(id);
        let path = self.place().write_whole(&name, |file, path| {
            std::io::copy(&mut body, file)?;
            // The file gets the name of the build only if it belongs to that build.
            let right = open_checked(path, &[], Some(id));
            right
                .map(drop)
                .map_err(|problem| Refusal::Wrong(problem.about(url)))
        })?;
        self.place().prune(&name, MAX_FILES_BYTES);
        match open_checked(&path, &[], Some(id)) {
            Ok(data) => Ok(DebugFile { path, data }),
            Err(problem) => Err(Refusal::Wrong(problem)),
        }
    }
}

impl Debuginfod {
    fn place(&self) -> CacheDirectory<'_> {
        CacheDirectory {
            caches: &self.directory.0,
            name: self.directory.1,
        }
    }

    fn failures(&self) -> MutexGuard<'_, Vec<bool>> {
        self.failed.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn has_failed(&self, server: usize) -> bool {
        self.failures()[server]
    }

    fn is_first_failure(&self, server: usize) -> bool {
        !std::mem::replace(&mut self.failures()[server], true)
    }
}

fn is_recent(path: &Path) -> bool {
    let modified = std::fs::metadata(path).and_then(|metadata| metadata.modified());
    // A time in the future comes from a wrong clock and means nothing.
    modified.is_ok_and(|time| time.elapsed().is_ok_and(|age| age < ABSENCE))
}
