//! The text of rows, none of which takes more memory than a limit.

use std::io::{Error, Write};

/// Of one row. A few bytes of a file may stand for more text than any memory has: a list that names
/// one long text of a dictionary again and again.
pub const MAX_ROW_BYTES: usize = 128 << 20;

/// Lines, one after the other. Writing beyond the limit of a line is an error.
pub struct RowText {
    bytes: Vec<u8>,
    row: usize, // where the current one begins
    max_row: usize,
}

impl RowText {
    pub fn new(max_row: usize) -> RowText {
        RowText { bytes: Vec::new(), row: 0, max_row }
    }
    pub fn len(&self) -> usize {
        self.bytes.len()
    }
    pub fn begin_row(&mut self) {
        self.row = self.bytes.len();
    }
    pub fn into_bytes(self) -> Vec<u8> {
        self.bytes
    }
}

impl Write for RowText {
    fn write(&mut self, part: &[u8]) -> std::io::Result<usize> {
        if self.bytes.len() - self.row + part.len() > self.max_row {
            return Err(Error::other(format!("has more than {} bytes of text", self.max_row)));
        }
        self.bytes.extend_from_slice(part);
        Ok(part.len())
    }
    fn flush(&mut self) -> std::io::Result<()> {
        Ok(())
    }
}
