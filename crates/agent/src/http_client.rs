//! Requests to a configured server and to no other host, with verified certificates and limits on
//! time and size.

use base64::Engine;
use base64::prelude::BASE64_STANDARD;
use memhook_symbols::Getent;
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime};
use ureq::http::{Response, Uri};
use ureq::tls::{Certificate, PemItem, RootCerts, TlsConfig, parse_pem};
use ureq::{Agent, Body, RequestBuilder, unversioned::transport::DefaultConnector};

/// Maximum size, in bytes, of the response to a request with a body. The response is one word, or
/// an error of a few lines.
const MOST_OF_AN_ANSWER: u64 = 64 << 10;
/// Maximum pause that a server can ask for.
const LONGEST_RETRY_AFTER: Duration = Duration::from_secs(3600);
/// Maximum size of a file with a secret or certificates.
const MOST_OF_A_FILE: u64 = 1 << 20;

/// Answer of a server.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Answer {
    /// The server has accepted the request.
    Taken {
        /// Body of the answer.
        body: Vec<u8>,
    },
    /// The server may accept the request later, but not before this time.
    Later {
        /// Reason, in one line.
        why: String,
        /// Time to wait, if the server states it.
        after: Option<Duration>,
    },
    /// The server will never accept the request.
    Refused {
        /// Reason, in one line.
        why: String,
    },
}

/// A server, and the settings for requests to it.
pub struct Server<'a> {
    /// Address of the server, as configured.
    pub url: &'a str,
    /// Path below that of the address.
    pub path: &'static str,
    /// Headers of each request.
    pub headers: Vec<(&'static str, String)>,
    /// Our credentials.
    pub secret: Option<Secret>,
    /// File with the trusted certificates, in place of the system's.
    pub ca: Option<&'a Path>,
    /// True if the server's certificate is verified.
    pub verify: bool,
    /// Time limit for a whole request.
    pub timeout: Duration,
    /// Function that returns true if a request that got this status may be accepted later.
    pub comes_back: fn(u16) -> bool,
}

/// The client of one server.
pub struct Client {
    agent: Agent,
    uri: Uri,
    headers: Vec<(&'static str, String)>,
    comes_back: fn(u16) -> bool,
    secret: Option<Secret>,
}

/// Credentials. They are read again for each request, because tokens are replaced in their files.
pub enum Secret {
    /// A name, and the file with the password.
    Basic {
        /// The name.
        username: String,
        /// The file.
        password: PathBuf,
    },
    /// A file with a token.
    Bearer(PathBuf),
}

/// Reason why requests to a server are impossible.
#[derive(Debug, thiserror::Error)]
pub enum ClientError {
    /// A configured file cannot be read.
    #[error("cannot read {}", path.display())]
    Read {
        /// The file.
        path: PathBuf,
        /// Reason.
        #[source]
        source: std::io::Error,
    },
    /// The file contains no certificate.
    #[error("{}: it contains no certificate (PEM is expected)", path.display())]
    NoCertificate {
        /// The file.
        path: PathBuf,
    },
    /// A password or token is empty, or has characters that are invalid in headers.
    #[error("{}: one line of printable ASCII characters is expected", path.display())]
    Secret {
        /// The file.
        path: PathBuf,
    },
    /// The address is invalid.
    #[error("{host} is not an address: http:// or https:// and a host are expected")]
    Host {
        /// The host, as configured.
        host: String,
    },
}

fn read(path: &Path) -> Result<Vec<u8>, ClientError> {
    memhook_foreign::read_start(path, MOST_OF_A_FILE).map_err(|source| ClientError::Read {
        path: path.to_owned(),
        source,
    })
}

fn secret(path: &Path) -> Result<String, ClientError> {
    let text = String::from_utf8(read(path)?).unwrap_or_default();
    let secret = text.trim_end_matches(['\n', '\r']);
    if secret.is_empty() || !secret.bytes().all(|b| b.is_ascii_graphic() || b == b' ') {
        return Err(ClientError::Secret {
            path: path.to_owned(),
        });
    }
    Ok(secret.to_owned())
}

fn certificates(path: &Path) -> Result<Vec<Certificate<'static>>, ClientError> {
    let bytes = read(path)?;
    let items = parse_pem(&bytes).filter_map(|item| match item {
        Ok(PemItem::Certificate(certificate)) => Some(certificate),
        _ => None,
    });
    let found: Vec<Certificate<'static>> = items.collect();
    if found.is_empty() {
        return Err(ClientError::NoCertificate {
            path: path.to_owned(),
        });
    }
    Ok(found)
}

/// Returns the problems with configured files that contain secrets or certificates.
pub fn unusable_files<'a>(
    secrets: impl IntoIterator<Item = &'a PathBuf>,
    ca: Option<&Path>,
) -> Vec<ClientError> {
    let secrets = secrets.into_iter().map(|path| secret(path).err());
    let secrets: Vec<_> = secrets.collect();
    let ca = ca.map(|path| certificates(path).err());
    secrets.into_iter().chain(ca).flatten().collect()
}

impl Client {
    /// Creates the client of this server.
    pub fn new(server: Server<'_>) -> Result<Client, ClientError> {
        let certificates = server.ca.map(certificates).transpose()?;
        let address = server.url.trim_end_matches('/');
        let uri = format!("{address}{}", server.path).parse::<Uri>();
        let uri = uri.map_err(|_| ClientError::Host {
            host: address.to_owned(),
        })?;
        let roots = certificates.map_or(RootCerts::PlatformVerifier, RootCerts::from);
        let tls = TlsConfig::builder()
            .root_certs(roots)
            .disable_verification(!server.verify);
        let config = Agent::config_builder()
            .tls_config(tls.build())
            .timeout_global(Some(server.timeout))
            // A redirect would send names of functions, and the token, to another server.
            .max_redirects(0)
            .max_redirects_will_error(false)
            .http_status_as_error(false)
            // Only the configuration decides where data is sent, because the environment of a
            // service is easily overlooked.
            .proxy(None)
            .user_agent(concat!("memhook-rs/", env!("CARGO_PKG_VERSION")))
            .build();
        let client = Client {
            agent: Agent::with_parts(config, DefaultConnector::default(), Getent),
            uri,
            headers: server.headers,
            comes_back: server.comes_back,
            secret: server.secret,
        };
        client.authorization()?;
        Ok(client)
    }

    fn authorization(&self) -> Result<Option<String>, ClientError> {
        Ok(match &self.secret {
            None => None,
            Some(Secret::Basic { username, password }) => {
                let pair = format!("{username}:{}", secret(password)?);
                Some(format!("Basic {}", BASE64_STANDARD.encode(pair)))
            }
            Some(Secret::Bearer(token)) => Some(format!("Bearer {}", secret(token)?)),
        })
    }

    /// Sends a request with a body.
    pub fn post(&self, body: &[u8]) -> Answer {
        self.answer(self.agent.post(&self.uri), MOST_OF_AN_ANSWER, |request| {
            request.send(body)
        })
    }

    /// Requests the path. `most` is the maximum size of the response in bytes.
    pub fn get(&self, most: u64) -> Answer {
        self.answer(self.agent.get(&self.uri), most, RequestBuilder::call)
    }

    fn answer<B>(
        &self,
        mut request: RequestBuilder<B>,
        most: u64,
        send: impl FnOnce(RequestBuilder<B>) -> Result<Response<Body>, ureq::Error>,
    ) -> Answer {
        let authorization = match self.authorization() {
            Ok(authorization) => authorization,
            Err(error) => return later(crate::said::chain(&error)),
        };
        for (name, value) in &self.headers {
            request = request.header(*name, value);
        }
        if let Some(authorization) = authorization {
            request = request.header("Authorization", authorization);
        }
        let response = match send(request) {
            Ok(response) => response,
            Err(error) => return later(error.to_string()),
        };
        let status = response.status().as_u16();
        let header = |name: &str| {
            let value = response.headers().get(name)?;
            value.to_str().ok().map(str::to_owned)
        };
        let (after, to) = (header("retry-after"), header("location"));
        // The answer is complete only with its body.
        let is_taken = (200..=299).contains(&status);
        let body = response.into_body().into_with_config();
        let most = if is_taken { most } else { MOST_OF_AN_ANSWER };
        let body = body.limit(most).read_to_vec();
        if !is_taken {
            let said = body.unwrap_or_default();
            return self.failure(status, after.as_deref(), to.as_deref(), &said);
        }
        match body {
            Ok(body) => Answer::Taken { body },
            Err(error) => later(format!("incomplete response: {error}")),
        }
    }

    /// Returns the meaning of a status other than success.
    fn failure(&self, status: u16, after: Option<&str>, to: Option<&str>, said: &[u8]) -> Answer {
        match status {
            300..=399 => later(format!(
                "HTTP status {status}, redirect to {}; set url to the final address (redirects are not followed)",
                to.unwrap_or("an unknown address")
            )),
            401 | 403 | 407 => later(format!(
                "HTTP status {status}; check the token, the password or the tenant"
            )),
            // The path may be wrong, or the store behind a proxy may not be running yet. The
            // profile is not the cause.
            404 => later(format!(
                "HTTP status 404 (nothing at {}); check url, and whether the store is up",
                self.uri.path()
            )),
            _ if (self.comes_back)(status) => Answer::Later {
                why: format!("HTTP status {status}"),
                after: after.and_then(|text| retry_after(text, SystemTime::now())),
            },
            _ => {
                let text = String::from_utf8_lossy(said);
                let said: String = text.split_whitespace().collect::<Vec<_>>().join(" ");
                let said: String = said.chars().take(200).collect();
                Answer::Refused {
                    why: format!("HTTP status {status}: {said}"),
                }
            }
        }
    }
}

fn later(why: String) -> Answer {
    Answer::Later { why, after: None }
}

/// Parses seconds, or a date (RFC 9110, 10.2.3), and limits the result.
fn retry_after(text: &str, now: SystemTime) -> Option<Duration> {
    let after = match text.trim().parse::<u64>() {
        Ok(seconds) => Duration::from_secs(seconds),
        Err(_) => httpdate::parse_http_date(text.trim())
            .ok()?
            .duration_since(now)
            .unwrap_or_default(),
    };
    Some(after.min(LONGEST_RETRY_AFTER))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_pause_is_a_number_or_a_date() {
        let at = |seconds| SystemTime::UNIX_EPOCH + Duration::from_secs(seconds);
        let date = "Sun, 06 Nov 1994 08:49:37 GMT";
        let pause = |text: &str, now| retry_after(text, at(now));
        assert_eq!(pause("7", 0), Some(Duration::from_secs(7)));
        assert_eq!(pause(date, 784_111_770), Some(Duration::from_secs(7)));
        assert_eq!(pause(date, 784_111_780), Some(Duration::ZERO));
        assert_eq!(pause("99999999999", 0), Some(LONGEST_RETRY_AFTER));
        for text in [
            "",
            "soon",
            "-5",
            "Sun, 06 Nov 1994 08:49:37 CET",
            "a, b c d e f",
            "Sun, 99 Nov 1994 08:49:37 GMT",
        ] {
            assert_eq!(pause(text, 0), None, "{text}");
        }
    }
}
