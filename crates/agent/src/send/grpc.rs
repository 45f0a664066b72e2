//! A unary call of gRPC (github.com/grpc/grpc, doc/PROTOCOL-HTTP2.md), and what its status means for OTLP.

use super::http_client::{Answer, LONGEST_RETRY_AFTER, MOST_OF_AN_ANSWER};
use super::http2::Response;
use base64::Engine;
use base64::alphabet::STANDARD;
use base64::engine::{DecodePaddingMode, GeneralPurpose, GeneralPurposeConfig};
use flate2::read::GzDecoder;
use prost::Message;
use std::io::Read;
use std::time::Duration;

/// Headers may have the padding or not.
const BASE64: GeneralPurpose = GeneralPurpose::new(
    &STANDARD,
    GeneralPurposeConfig::new().with_decode_padding_mode(DecodePaddingMode::Indifferent),
);

/// `google.rpc.Status`
#[derive(Clone, PartialEq, Message)]
struct Status {
    #[prost(message, repeated, tag = "3")]
    details: Vec<Detail>,
}

/// `google.protobuf.Any`
#[derive(Clone, PartialEq, Message)]
struct Detail {
    #[prost(string, tag = "1")]
    type_url: String,
    #[prost(bytes = "vec", tag = "2")]
    value: Vec<u8>,
}

/// `google.rpc.RetryInfo`
#[derive(Clone, PartialEq, Message)]
struct RetryInfo {
    #[prost(message, optional, tag = "1")]
    delay: Option<Delay>,
}

/// `google.protobuf.Duration`
#[derive(Clone, PartialEq, Message)]
struct Delay {
    #[prost(int64, tag = "1")]
    seconds: i64,
    #[prost(int32, tag = "2")]
    nanos: i32,
}

/// A message as it is sent: compressed, and with its length.
pub fn framed(gzipped: &[u8]) -> Vec<u8> {
    let mut framed = vec![1];
    framed.extend((gzipped.len() as u32).to_be_bytes());
    framed.extend(gzipped);
    framed
}

/// What an answer with the HTTP status 200 says.
pub fn answer(response: &Response) -> Answer {
    let later = |why: String, after| Answer::Later { why, after };
    let Some(status) = response.field("grpc-status") else {
        return later(
            "the answer is not complete: it has no grpc-status".into(),
            None,
        );
    };
    let said = response.field("grpc-message").unwrap_or_default();
    let said: String = said.chars().take(200).collect();
    let said = if said.is_empty() {
        said
    } else {
        format!(": {said}")
    };
    let status = status.trim();
    let delay = retry_delay(response);
    match status {
        "0" => match body(&response.body) {
            Some(body) => Answer::Taken { body },
            None => later("the answer is not complete".into(), None),
        },
        "7" | "16" => later(
            format!(
                "it answers gRPC status {status}: look at the token, the password or the tenant"
            ),
            None,
        ),
        // OTLP, "Failures": those, and an exhausted resource only if it will not stay so.
        "1" | "4" | "10" | "11" | "14" | "15" => {
            later(format!("it answers gRPC status {status}{said}"), delay)
        }
        "8" if delay.is_some() => later(format!("it answers gRPC status {status}{said}"), delay),
        _ => Answer::Refused {
            why: format!("it answers gRPC status {status}{said}"),
        },
    }
}

/// The message of an answer. Servers may compress it as the request was.
fn body(bytes: &[u8]) -> Option<Vec<u8>> {
    let (head, rest) = bytes.split_first_chunk::<5>()?;
    let length = u32::from_be_bytes([head[1], head[2], head[3], head[4]]) as usize;
    let is_whole = rest.len() == length || bytes.len() as u64 == MOST_OF_AN_ANSWER;
    match head[0] {
        _ if !is_whole => None,
        0 => Some(rest.to_vec()),
        1 => {
            let mut plain = Vec::new();
            let mut unpacked = GzDecoder::new(rest).take(MOST_OF_AN_ANSWER);
            unpacked.read_to_end(&mut plain).ok()?;
            Some(plain)
        }
        _ => None,
    }
}

/// How long the server asks to wait.
fn retry_delay(response: &Response) -> Option<Duration> {
    let packed = response.field("grpc-status-details-bin")?;
    let status = Status::decode(&BASE64.decode(packed).ok()?[..]).ok()?;
    let info = status
        .details
        .iter()
        .find(|detail| detail.type_url.ends_with("/google.rpc.RetryInfo"))?;
    let delay = RetryInfo::decode(&info.value[..]).ok()?.delay?;
    let seconds = u64::try_from(delay.seconds).ok()?;
    let delay = Duration::new(seconds, u32::try_from(delay.nanos).ok()?.min(999_999_999));
    Some(delay.min(LONGEST_RETRY_AFTER))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(fields: &[(&str, &str)], body: &[u8]) -> Answer {
        let fields = fields
            .iter()
            .map(|(name, value)| (name.to_string(), value.to_string()));
        answer(&Response {
            fields: fields.collect(),
            body: body.to_vec(),
        })
    }

    #[test]
    fn a_status_says_whether_to_come_back() {
        let taken = Answer::Taken { body: vec![7] };
        assert_eq!(of(&[("grpc-status", "0")], &[0, 0, 0, 0, 1, 7]), taken);
        let packed = framed(&super::super::pyroscope::gzip(&[7]));
        assert_eq!(of(&[("grpc-status", "0")], &packed), taken);
        let is_later = |answer: &Answer| matches!(answer, Answer::Later { after: None, .. });
        for (status, body) in [
            ("0", &[0, 0, 0, 0, 2, 7][..]),
            ("0", &[]),
            ("0", &[1, 0, 0, 0, 1, 7]),
            ("14", &[]),
            ("16", &[]),
        ] {
            assert!(is_later(&of(&[("grpc-status", status)], body)), "{status}");
        }
        assert!(is_later(&of(&[(":status", "200")], &[])));
        for status in ["3", "8", "12", "13", "nonsense"] {
            let answer = of(&[("grpc-status", status), ("grpc-message", "no")], &[]);
            let why = format!("it answers gRPC status {status}: no");
            assert_eq!(answer, Answer::Refused { why });
        }
        let info = RetryInfo {
            delay: Some(Delay {
                seconds: 7,
                nanos: 0,
            }),
        };
        let details = Status {
            details: vec![Detail {
                type_url: "type.googleapis.com/google.rpc.RetryInfo".into(),
                value: info.encode_to_vec(),
            }],
        };
        let details = BASE64.encode(details.encode_to_vec());
        let fields = [
            ("grpc-status", "8"),
            ("grpc-status-details-bin", details.trim_end_matches('=')),
        ];
        let Answer::Later { after, .. } = of(&fields, &[]) else {
            panic!("it may be taken later");
        };
        assert_eq!(after, Some(Duration::from_secs(7)));
    }
}
