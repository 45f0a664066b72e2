//! One request over HTTP/2 (RFC 9113), as gRPC needs it: a connection of its own for each request, one stream on it, a
//! time by which all of it must be done, and bounds on what is taken.

use super::hpack::{self, Fields};
use std::io::{Error, ErrorKind, Read, Result, Write};

const PREFACE: &[u8] = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n";
/// More than any answer of ours has; a multiple of it is a server that means harm.
const MOST_FRAMES: usize = 10_000;
/// The largest frame that everybody takes.
const FRAME_BYTES: usize = 16_384;
/// What each side may send before the other allows more.
const FIRST_WINDOW: i64 = 65_535;
/// A window is never larger (6.9.1).
const LARGEST_WINDOW: i64 = (1 << 31) - 1;
const STREAM: u32 = 1;

const DATA: u8 = 0;
const HEADERS: u8 = 1;
const RST_STREAM: u8 = 3;
const SETTINGS: u8 = 4;
const PUSH_PROMISE: u8 = 5;
const PING: u8 = 6;
const GOAWAY: u8 = 7;
const WINDOW_UPDATE: u8 = 8;
const CONTINUATION: u8 = 9;

const END_STREAM: u8 = 1;
const ACK: u8 = 1;
const END_HEADERS: u8 = 4;
const PADDED: u8 = 8;
const PRIORITY: u8 = 32;

const HEADER_TABLE_SIZE: u16 = 1;
const ENABLE_PUSH: u16 = 2;
const INITIAL_WINDOW_SIZE: u16 = 4;

/// What a server answered.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct Response {
    /// Header fields, and those that follow the body.
    pub fields: Fields,
    /// The body, as far as it is of interest.
    pub body: Vec<u8>,
}

impl Response {
    /// A header field.
    pub fn field(&self, name: &str) -> Option<&str> {
        // What follows the body counts.
        let found = self.fields.iter().rfind(|(of, _)| of == name);
        found.map(|(_, value)| value.as_str())
    }
}

fn damaged(what: &str) -> Error {
    Error::new(ErrorKind::InvalidData, what.to_owned())
}

/// A connection with one stream.
struct Connection<S> {
    stream: S,
    /// What we may send, in all and on the stream.
    windows: [i64; 2],
    first_window: i64,
    response: Response,
    /// Header fields that are not complete.
    block: Option<(Vec<u8>, bool)>,
    is_complete: bool,
    frames: usize,
    most_body: usize,
}

/// Sends a request and returns the answer to it. `most_body`: what is taken of the answer's body.
pub fn call<S: Read + Write>(
    stream: S,
    fields: &[(&str, &str)],
    body: &[u8],
    most_body: usize,
) -> Result<Response> {
    let mut connection = Connection {
        stream,
        windows: [FIRST_WINDOW; 2],
        first_window: FIRST_WINDOW,
        response: Response::default(),
        block: None,
        is_complete: false,
        frames: 0,
        most_body,
    };
    let mut begin = PREFACE.to_vec();
    let mut settings = Vec::new();
    // The server is to keep no table of header fields, and to send nothing of its own accord.
    for setting in [HEADER_TABLE_SIZE, ENABLE_PUSH] {
        settings.extend(setting.to_be_bytes());
        settings.extend(0u32.to_be_bytes());
    }
    push_frame(&mut begin, SETTINGS, 0, 0, &settings);
    let block = hpack::encode(fields);
    let mut parts = block.chunks(FRAME_BYTES).peekable();
    let mut kind = HEADERS;
    while let Some(part) = parts.next() {
        let flags = if parts.peek().is_none() {
            END_HEADERS
        } else {
            0
        };
        push_frame(&mut begin, kind, flags, STREAM, part);
        kind = CONTINUATION;
    }
    connection.stream.write_all(&begin)?;
    connection.send(body)?;
    while !connection.is_complete {
        connection.take_frame()?;
    }
    Ok(connection.response)
}

fn push_frame(to: &mut Vec<u8>, kind: u8, flags: u8, stream: u32, payload: &[u8]) {
    to.extend(&(payload.len() as u32).to_be_bytes()[1..]);
    to.extend([kind, flags]);
    to.extend(stream.to_be_bytes());
    to.extend(payload);
}

impl<S: Read + Write> Connection<S> {
    /// Sends the body as fast as the server allows.
    fn send(&mut self, body: &[u8]) -> Result<()> {
        let mut rest = body;
        loop {
            let window = self.windows[0].min(self.windows[1]);
            let part = rest.len().min(FRAME_BYTES).min(window.max(0) as usize);
            if part == 0 && !rest.is_empty() {
                self.take_frame()?;
                if self.is_complete {
                    // It has answered without waiting for the rest.
                    return Ok(());
                }
                continue;
            }
            let (now, later) = rest.split_at(part);
            let flags = if later.is_empty() { END_STREAM } else { 0 };
            self.write(DATA, flags, STREAM, now)?;
            for window in &mut self.windows {
                *window -= part as i64;
            }
            rest = later;
            if rest.is_empty() {
                return Ok(());
            }
        }
    }

    fn write(&mut self, kind: u8, flags: u8, stream: u32, payload: &[u8]) -> Result<()> {
        let mut frame = Vec::with_capacity(payload.len() + 9);
        push_frame(&mut frame, kind, flags, stream, payload);
        self.stream.write_all(&frame)?;
        self.stream.flush()
    }

    fn take_frame(&mut self) -> Result<()> {
        self.frames += 1;
        if self.frames > MOST_FRAMES {
            return Err(damaged("the server sends more than an answer can be"));
        }
        let mut head = [0; 9];
        self.stream.read_exact(&mut head)?;
        let [a, b, c, kind, flags, stream @ ..] = head;
        let length = u32::from_be_bytes([0, a, b, c]) as usize;
        if length > FRAME_BYTES {
            return Err(damaged("what the server sends is no HTTP/2"));
        }
        let mut payload = vec![0; length];
        self.stream.read_exact(&mut payload)?;
        let stream = u32::from_be_bytes(stream) & (u32::MAX >> 1);
        if self.block.is_some() && kind != CONTINUATION {
            return Err(damaged("the header fields of the answer are not complete"));
        }
        self.take(kind, flags, stream, &payload)
    }

    fn take(&mut self, kind: u8, flags: u8, stream: u32, payload: &[u8]) -> Result<()> {
        match (kind, stream) {
            (DATA, STREAM) => {
                let data = unpadded(flags, payload)?;
                let room = self.most_body.saturating_sub(self.response.body.len());
                let taken = data.len().min(room);
                self.response.body.extend(&data[..taken]);
                self.is_complete |= flags & END_STREAM != 0;
                if !payload.is_empty() && !self.is_complete {
                    let bytes = (payload.len() as u32).to_be_bytes();
                    self.write(WINDOW_UPDATE, 0, 0, &bytes)?;
                    self.write(WINDOW_UPDATE, 0, STREAM, &bytes)?;
                }
            }
            (HEADERS, STREAM) => {
                let mut block = unpadded(flags, payload)?;
                if flags & PRIORITY != 0 {
                    block = block
                        .get(5..)
                        .ok_or_else(|| damaged("a frame is too short"))?;
                }
                self.block = Some((block.to_vec(), flags & END_STREAM != 0));
                self.end_block(flags)?;
            }
            (CONTINUATION, STREAM) => {
                let Some((block, _)) = &mut self.block else {
                    return Err(damaged("header fields without a beginning"));
                };
                block.extend(payload);
                self.end_block(flags)?;
            }
            (SETTINGS, 0) if flags & ACK == 0 => {
                self.settings(payload)?;
                self.write(SETTINGS, ACK, 0, &[])?;
            }
            (PING, 0) if flags & ACK == 0 => self.write(PING, ACK, 0, payload)?,
            (WINDOW_UPDATE, 0 | STREAM) => {
                let more = number(payload)? & (u32::MAX >> 1);
                let window = &mut self.windows[usize::from(stream == STREAM)];
                *window += i64::from(more);
                if *window > LARGEST_WINDOW {
                    return Err(damaged("the server allows more than there can be"));
                }
            }
            (RST_STREAM, STREAM) => {
                let why = number(payload)?;
                // No fault: it has answered and does not want the rest (8.1).
                if why == 0 && self.response.field(":status").is_some() {
                    self.is_complete = true;
                    return Ok(());
                }
                return Err(damaged(&format!(
                    "the server gives the request up (error {why})"
                )));
            }
            (GOAWAY, 0) => {
                let last = number(payload)?;
                if last & (u32::MAX >> 1) < STREAM {
                    return Err(damaged("the server goes away"));
                }
            }
            (PUSH_PROMISE, _) => return Err(damaged("the server sends what nobody asked for")),
            _ => {}
        }
        Ok(())
    }

    fn end_block(&mut self, flags: u8) -> Result<()> {
        // Before it is decoded: no server may fill the memory with a block that never ends.
        let is_too_large = |(block, _): &(Vec<u8>, bool)| block.len() > 4 * FRAME_BYTES;
        if self.block.as_ref().is_some_and(is_too_large) {
            return Err(damaged("the header fields of the answer are too large"));
        }
        if flags & END_HEADERS == 0 {
            return Ok(());
        }
        if let Some((block, is_last)) = self.block.take() {
            let fields = hpack::decode(&block);
            let fields = fields.ok_or_else(|| damaged("the header fields are damaged"))?;
            // What says that there is more to come is no answer.
            let is_interim = fields
                .iter()
                .any(|(name, value)| name == ":status" && value.starts_with('1'));
            if !is_interim {
                self.response.fields.extend(fields);
            }
            if self.response.fields.len() > MOST_FRAMES {
                return Err(damaged("the answer has too many header fields"));
            }
            self.is_complete |= is_last;
        }
        Ok(())
    }

    fn settings(&mut self, payload: &[u8]) -> Result<()> {
        for setting in payload.chunks_exact(6) {
            let value = i64::from(number(&setting[2..])?);
            if u16::from_be_bytes([setting[0], setting[1]]) == INITIAL_WINDOW_SIZE {
                if value > LARGEST_WINDOW {
                    return Err(damaged("the server allows more than there can be"));
                }
                self.windows[1] += value - self.first_window;
                self.first_window = value;
            }
        }
        Ok(())
    }
}

fn number(payload: &[u8]) -> Result<u32> {
    let bytes = payload
        .first_chunk()
        .ok_or_else(|| damaged("a frame is too short"))?;
    Ok(u32::from_be_bytes(*bytes))
}

fn unpadded(flags: u8, payload: &[u8]) -> Result<&[u8]> {
    if flags & PADDED == 0 {
        return Ok(payload);
    }
    let (&padding, rest) = payload
        .split_first()
        .ok_or_else(|| damaged("a frame is too short"))?;
    let length = rest.len().checked_sub(padding.into());
    let length = length.ok_or_else(|| damaged("a frame is too short"))?;
    Ok(&rest[..length])
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    /// What a server has sent already; what it gets is forgotten.
    struct Said<'a>(&'a [u8]);

    impl Read for Said<'_> {
        fn read(&mut self, to: &mut [u8]) -> Result<usize> {
            self.0.read(to)
        }
    }

    impl Write for Said<'_> {
        fn write(&mut self, bytes: &[u8]) -> Result<usize> {
            Ok(bytes.len())
        }

        fn flush(&mut self) -> Result<()> {
            Ok(())
        }
    }

    fn frame(kind: u8, flags: u8, stream: u32, payload: &[u8]) -> Vec<u8> {
        let mut frame = Vec::new();
        push_frame(&mut frame, kind, flags, stream, payload);
        frame
    }

    #[test]
    fn an_answer_comes_in_any_parts() {
        let block = hpack::encode(&[(":status", "200")]);
        let trailer = hpack::encode(&[("grpc-status", "0")]);
        let (one, other) = trailer.split_at(5);
        let said = [
            frame(SETTINGS, 0, 0, &[0, 4, 0, 0, 0, 10]),
            frame(PING, 0, 0, &[1; 8]),
            frame(WINDOW_UPDATE, 0, STREAM, &[0, 1, 0, 0]),
            frame(WINDOW_UPDATE, 0, 0, &[0, 1, 0, 0]),
            frame(HEADERS, END_HEADERS, STREAM, &block),
            frame(DATA, PADDED, STREAM, &[2, b'a', b'b', 0, 0]),
            frame(HEADERS, END_STREAM, STREAM, one),
            frame(CONTINUATION, END_HEADERS, STREAM, other),
        ]
        .concat();
        let answer = call(Said(&said), &[(":path", "/")], &[7; 100_000], 1).expect("it is right");
        assert_eq!(
            (answer.field("grpc-status"), &answer.body[..]),
            (Some("0"), &b"a"[..])
        );
        // Half of it is none.
        for end in 0..said.len() {
            assert!(
                call(Said(&said[..end]), &[], &[7; 100_000], 1).is_err(),
                "{end}"
            );
        }
    }

    #[test]
    fn servers_that_mean_harm_are_left() {
        let endless = frame(HEADERS, 0, STREAM, &[0; FRAME_BYTES]);
        let more = frame(CONTINUATION, 0, STREAM, &[0; FRAME_BYTES]).repeat(10);
        for said in [
            [endless, more].concat(),
            frame(PING, 0, 0, &[0; 8]).repeat(MOST_FRAMES + 1),
            frame(WINDOW_UPDATE, 0, 0, &[0x7f, 0xff, 0xff, 0xff]).repeat(2),
            frame(GOAWAY, 0, 0, &[0; 8]),
            frame(RST_STREAM, 0, STREAM, &[0, 0, 0, 7]),
            frame(PUSH_PROMISE, 0, STREAM, &[]),
            b"HTTP/1.1 400 Bad Request\r\nConnection: close\r\n\r\n".to_vec(),
        ] {
            assert!(call(Said(&said), &[], &[7; 100], 10).is_err());
        }
    }

    proptest! {
        #[test]
        fn nothing_that_a_server_sends_does_harm(
            frames in prop::collection::vec((0u8..12, any::<u8>(), 0u32..3, prop::collection::vec(any::<u8>(), 0..40)), 0..30),
        ) {
            let said: Vec<u8> = frames.iter().flat_map(|(k, f, s, p)| frame(*k, *f, *s, p)).collect();
            let _ = call(Said(&said), &[], &[0; 10], 100);
        }
    }
}
