//! Requests to a store: to this host and no other, with certificates that verify, within bounds of time and size.

use super::SendError;
use crate::config::Store as Configured;
use base64::Engine;
use base64::prelude::BASE64_STANDARD;
use memhook_symbols::Getent;
use std::path::Path;
use std::time::{Duration, SystemTime};
use ureq::http::Uri;
use ureq::tls::{Certificate, PemItem, RootCerts, TlsConfig, parse_pem};
use ureq::{Agent, unversioned::transport::DefaultConnector};

/// So much of an answer is read: stores answer with a word or an error of some lines.
const MOST_OF_AN_ANSWER: u64 = 64 << 10;
/// A store that asks for a longer pause is asked again after this one.
const LONGEST_RETRY_AFTER: Duration = Duration::from_secs(3600);
/// A file with a secret or certificates is not larger.
const MOST_OF_A_FILE: u64 = 1 << 20;

/// What a store answered.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Answer {
    /// It has taken the request.
    Taken {
        /// What it says to that.
        body: Vec<u8>,
    },
    /// It may take it later, not before this time.
    Later {
        /// Why, in one line.
        why: String,
        /// If it says when.
        after: Option<Duration>,
    },
    /// It will never take it.
    Refused {
        /// Why, in one line.
        why: String,
    },
}

/// How a store is spoken to.
pub struct Manner {
    /// The path, below that of the address.
    pub path: &'static str,
    /// Set for each request, beside those of the configuration.
    pub headers: Vec<(&'static str, String)>,
    /// Whether a request that was answered with this status may be taken later.
    pub comes_back: fn(u16) -> bool,
}

/// The client of one store.
pub struct Client {
    agent: Agent,
    uri: Uri,
    headers: Vec<(&'static str, String)>,
    comes_back: fn(u16) -> bool,
    secret: Option<Secret>,
}

/// What proves who we are. Read anew for each request, because tokens are replaced in their files.
enum Secret {
    Basic {
        username: String,
        password: std::path::PathBuf,
    },
    Bearer(std::path::PathBuf),
}

fn read(path: &Path) -> Result<Vec<u8>, SendError> {
    memhook_foreign::read_start(path, MOST_OF_A_FILE).map_err(|source| SendError::Read {
        path: path.to_owned(),
        source,
    })
}

fn secret(path: &Path) -> Result<String, SendError> {
    let text = String::from_utf8(read(path)?).unwrap_or_default();
    let secret = text.trim_end_matches(['\n', '\r']);
    if secret.is_empty() || !secret.bytes().all(|b| b.is_ascii_graphic() || b == b' ') {
        return Err(SendError::Secret {
            path: path.to_owned(),
        });
    }
    Ok(secret.to_owned())
}

fn certificates(path: &Path) -> Result<Vec<Certificate<'static>>, SendError> {
    let bytes = read(path)?;
    let items = parse_pem(&bytes).filter_map(|item| match item {
        Ok(PemItem::Certificate(certificate)) => Some(certificate),
        _ => None,
    });
    let found: Vec<Certificate<'static>> = items.collect();
    if found.is_empty() {
        return Err(SendError::NoCertificate {
            path: path.to_owned(),
        });
    }
    Ok(found)
}

/// What is wrong with the files that the configuration of a store names.
pub fn unusable_files(configured: &Configured) -> Vec<SendError> {
    let secrets = [&configured.password_file, &configured.token_file];
    let secrets = secrets.into_iter().flatten().map(|path| secret(path).err());
    let ca = configured.ca.iter().map(|path| certificates(path).err());
    secrets.chain(ca).flatten().collect()
}

impl Client {
    /// For the store of this configuration.
    pub fn new(configured: &Configured, manner: Manner) -> Result<Client, SendError> {
        let certificates = configured.ca.as_deref().map(certificates).transpose()?;
        let address = configured.url.get_ref().trim_end_matches('/');
        let uri = format!("{address}{}", manner.path).parse::<Uri>();
        let uri = uri.map_err(|_| SendError::Host {
            host: address.to_owned(),
        })?;
        let roots = certificates.map_or(RootCerts::PlatformVerifier, RootCerts::from);
        let mut headers = manner.headers;
        if let Some(tenant) = &configured.tenant {
            headers.push(("X-Scope-OrgID", tenant.get_ref().clone()));
        }
        let secret = match (
            &configured.username,
            &configured.password_file,
            &configured.token_file,
        ) {
            (Some(username), Some(password), _) => Some(Secret::Basic {
                username: username.get_ref().clone(),
                password: password.clone(),
            }),
            (_, _, Some(token)) => Some(Secret::Bearer(token.clone())),
            _ => None,
        };
        let config = Agent::config_builder()
            .tls_config(TlsConfig::builder().root_certs(roots).build())
            .timeout_global(Some(configured.timeout.0))
            // A redirect would take names of functions, and the token, to somebody else.
            .max_redirects(0)
            .max_redirects_will_error(false)
            .http_status_as_error(false)
            // Of the environment of a service nobody thinks: what is sent where is for the configuration to say.
            .proxy(None)
            .user_agent(concat!("memhook-rs/", env!("CARGO_PKG_VERSION")))
            .build();
        let client = Client {
            agent: Agent::with_parts(config, DefaultConnector::default(), Getent),
            uri,
            headers,
            comes_back: manner.comes_back,
            secret,
        };
        client.authorization()?;
        Ok(client)
    }

    fn authorization(&self) -> Result<Option<String>, SendError> {
        Ok(match &self.secret {
            None => None,
            Some(Secret::Basic { username, password }) => {
                let pair = format!("{username}:{}", secret(password)?);
                Some(format!("Basic {}", BASE64_STANDARD.encode(pair)))
            }
            Some(Secret::Bearer(token)) => Some(format!("Bearer {}", secret(token)?)),
        })
    }

    /// Sends a request.
    pub fn post(&self, body: &[u8]) -> Answer {
        let authorization = match self.authorization() {
            Ok(authorization) => authorization,
            Err(error) => return later(crate::said::chain(&error)),
        };
        let mut request = self.agent.post(&self.uri);
        for (name, value) in &self.headers {
            request = request.header(*name, value);
        }
        if let Some(authorization) = authorization {
            request = request.header("Authorization", authorization);
        }
        let response = match request.send(body) {
            Ok(response) => response,
            Err(error) => return later(error.to_string()),
        };
        let status = response.status().as_u16();
        let header = |name: &str| {
            let value = response.headers().get(name)?;
            value.to_str().ok().map(str::to_owned)
        };
        let (after, to) = (header("retry-after"), header("location"));
        // The answer is complete only when its body is.
        let body = response.into_body().into_with_config();
        let body = body.limit(MOST_OF_AN_ANSWER).read_to_vec();
        if !(200..=299).contains(&status) {
            let said = body.unwrap_or_default();
            return self.failure(status, after.as_deref(), to.as_deref(), &said);
        }
        match body {
            Ok(body) => Answer::Taken { body },
            Err(error) => later(format!("the answer is not complete: {error}")),
        }
    }

    /// What a status means that is no success.
    fn failure(&self, status: u16, after: Option<&str>, to: Option<&str>, said: &[u8]) -> Answer {
        match status {
            300..=399 => later(format!(
                "it answers {status} and names {}: redirects are not followed; set url to where the store is",
                to.unwrap_or("nothing")
            )),
            401 | 403 | 407 => later(format!(
                "it answers {status}: look at the token, the password or the tenant"
            )),
            // Of a path that is wrong, or of a store that is not up yet behind its proxy: no fault of the profile.
            404 => later(format!(
                "it answers 404 (there is nothing at {}): check url, and whether the store is up",
                self.uri.path()
            )),
            _ if (self.comes_back)(status) => Answer::Later {
                why: format!("it answers {status}"),
                after: after.and_then(|text| retry_after(text, SystemTime::now())),
            },
            _ => {
                let text = String::from_utf8_lossy(said);
                let said: String = text.split_whitespace().collect::<Vec<_>>().join(" ");
                let said: String = said.chars().take(200).collect();
                Answer::Refused {
                    why: format!("it answers {status}: {said}"),
                }
            }
        }
    }
}

fn later(why: String) -> Answer {
    Answer::Later { why, after: None }
}

/// Seconds, or a date (RFC 9110, 10.2.3); bounded.
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
