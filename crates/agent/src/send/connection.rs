//! A connection to a store that HTTP/2 is spoken on, by the same rules as any other: certificates that verify, and one
//! time by which everything is done.

use super::SendError;
use memhook_symbols::Getent;
use rustls::pki_types::ServerName;
use rustls::{ClientConfig, ClientConnection, RootCertStore, StreamOwned};
use rustls_platform_verifier::Verifier;
use std::io::{Error, ErrorKind, Read, Result, Write};
use std::net::TcpStream;
use std::sync::Arc;
use std::time::{Duration, Instant};
use ureq::http::Uri;
use ureq::tls::Certificate;

/// Where connections lead to.
pub struct Place {
    host: String,
    port: u16,
    /// The name that the certificate must have, and whom to trust; without it, nothing is encrypted.
    tls: Option<(ServerName<'static>, Arc<ClientConfig>)>,
}

/// Something that is read from and written to.
pub trait Stream: Read + Write {}
impl<S: Read + Write> Stream for S {}

impl Place {
    /// The place of an address, which has been checked. `roots`: certificates to trust, in place of those of the system.
    pub fn new(
        uri: &Uri,
        roots: Option<Vec<Certificate<'static>>>,
    ) -> std::result::Result<Place, SendError> {
        let is_encrypted = uri.scheme_str() == Some("https");
        let host = uri.host().unwrap_or_default();
        let host = host
            .trim_start_matches('[')
            .trim_end_matches(']')
            .to_owned();
        let tls = if is_encrypted {
            let name = ServerName::try_from(host.clone())
                .map_err(|_| SendError::Host { host: host.clone() })?;
            Some((name, Arc::new(trust(roots)?)))
        } else {
            None
        };
        Ok(Place {
            port: uri
                .port_u16()
                .unwrap_or(if is_encrypted { 443 } else { 80 }),
            host,
            tls,
        })
    }

    /// Connects.
    pub fn connect(&self, until: Instant) -> Result<Box<dyn Stream>> {
        let addresses = Getent::addresses(&self.host, left(until)?)?;
        let mut last = Error::new(ErrorKind::NotFound, "the host has no address");
        let mut stream = None;
        for address in addresses {
            match TcpStream::connect_timeout(&(address, self.port).into(), left(until)?) {
                Ok(found) => {
                    stream = Some(found);
                    break;
                }
                Err(error) => last = error,
            }
        }
        let Some(stream) = stream else {
            return Err(last);
        };
        stream.set_nodelay(true)?;
        let stream = Bounded { stream, until };
        let Some((name, config)) = &self.tls else {
            return Ok(Box::new(stream));
        };
        let connection = ClientConnection::new(Arc::clone(config), name.clone());
        let mut stream = StreamOwned::new(connection.map_err(Error::other)?, stream);
        // Nothing is sent before the certificate has been verified.
        while stream.conn.is_handshaking() {
            stream.conn.complete_io(&mut stream.sock)?;
        }
        if stream.conn.alpn_protocol() != Some(b"h2") {
            return Err(Error::other(
                "the store does not speak HTTP/2, which gRPC needs",
            ));
        }
        Ok(Box::new(stream))
    }
}

/// Whom to trust.
fn trust(roots: Option<Vec<Certificate<'static>>>) -> std::result::Result<ClientConfig, SendError> {
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let builder = ClientConfig::builder_with_provider(Arc::clone(&provider));
    let builder = builder
        .with_safe_default_protocol_versions()
        .map_err(SendError::Tls)?;
    let mut config = match roots {
        Some(certificates) => {
            let mut store = RootCertStore::empty();
            store.add_parsable_certificates(certificates.iter().map(|one| one.der().into()));
            builder.with_root_certificates(store).with_no_client_auth()
        }
        None => {
            let verifier = Verifier::new(provider).map_err(SendError::Tls)?;
            // The name is rustls': the verifier is the one that asks the system.
            let builder = builder.dangerous();
            let builder = builder.with_custom_certificate_verifier(Arc::new(verifier));
            builder.with_no_client_auth()
        }
    };
    config.alpn_protocols = vec![b"h2".to_vec()];
    Ok(config)
}

fn left(until: Instant) -> Result<Duration> {
    let left = until.saturating_duration_since(Instant::now());
    if left.is_zero() {
        return Err(Error::new(ErrorKind::TimedOut, "the store takes too long"));
    }
    Ok(left)
}

/// A connection on which nothing takes longer than until then.
struct Bounded {
    stream: TcpStream,
    until: Instant,
}

/// What a wait that was too long ends with: a word that people know.
fn told(error: Error) -> Error {
    match error.kind() {
        ErrorKind::WouldBlock => Error::new(ErrorKind::TimedOut, "the store takes too long"),
        _ => error,
    }
}

impl Read for Bounded {
    fn read(&mut self, to: &mut [u8]) -> Result<usize> {
        self.stream.set_read_timeout(Some(left(self.until)?))?;
        self.stream.read(to).map_err(told)
    }
}

impl Write for Bounded {
    fn write(&mut self, bytes: &[u8]) -> Result<usize> {
        self.stream.set_write_timeout(Some(left(self.until)?))?;
        self.stream.write(bytes).map_err(told)
    }

    fn flush(&mut self) -> Result<()> {
        self.stream.flush()
    }
}
