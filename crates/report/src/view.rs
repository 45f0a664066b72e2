//! The page of `memhook-rs view`.

use crate::Profile;
use std::io::{Result, Write};

pub(crate) fn write(profile: &Profile, out: &mut dyn Write) -> Result<()> {
    serde_json::to_writer(&mut *out, profile)?;
    Ok(())
}
