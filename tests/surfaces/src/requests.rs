//! Untrusted HTTP requests to the agent.

use memhook_foreign::fuzzing::{Asked, asked};

/// Limit in bytes; longer requests are refused.
const MOST_BYTES: usize = 64 << 10;

/// The server repeatedly parses the bytes received so far. Checks that the parser decides once, and
/// that later bytes do not change the decision.
pub fn http(bytes: &[u8]) {
    const NAME: &str = "agent.example";
    let whole = asked(bytes, NAME);
    if bytes.len() >= MOST_BYTES {
        assert_ne!(whole, Asked::Incomplete);
    }
    if let Asked::For(path, _) = &whole {
        assert!(!path.contains('?') && path.len() <= bytes.len());
    }
    // The first decision is final.
    let mut decided = None;
    for end in (0..bytes.len())
        .step_by(bytes.len() / 16 + 1)
        .chain([bytes.len()])
    {
        let now = asked(&bytes[..end], NAME);
        match &decided {
            None if now != Asked::Incomplete => decided = Some(now),
            Some(before @ Asked::For(..)) => assert_eq!(before, &now),
            _ => {}
        }
    }
    if matches!(whole, Asked::For(..)) {
        let longer = [bytes, b"GET /other HTTP/1.1\r\n\r\n"].concat();
        assert_eq!(asked(&longer, NAME), whole);
    }
}
