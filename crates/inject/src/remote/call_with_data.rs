//! Remote calls of functions that read and write their caller's memory.

use crate::scratch::Scratch;
use crate::{Error, Held};
use memhook_process::RemoteAddress;

/// Number of bytes that [`Held::call_with_data`] can pass.
pub const MAX_CALL_DATA: usize = Scratch::DATA_BYTES as usize;

impl Held {
    /// Like [`Held::call`], for a function that reads and writes its caller's memory. `data` is copied into the target,
    /// and `args` builds the arguments from its address there (8-byte aligned). After the call, the data is copied
    /// back.
    ///
    /// Panics if `data` is longer than [`MAX_CALL_DATA`].
    pub fn call_with_data(
        &mut self,
        function: RemoteAddress,
        data: &mut [u8],
        args: impl FnOnce(RemoteAddress) -> Vec<u64>,
    ) -> Result<u64, Error> {
        assert!(data.len() <= MAX_CALL_DATA, "{} bytes", data.len());
        let at = self.scratch()?.data();
        self.write(at, data)?;
        let result = self.call(function, &args(at))?;
        self.read(at, data)?;
        Ok(result)
    }
}
