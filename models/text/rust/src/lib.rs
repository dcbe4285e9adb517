//! Tokenizers, templates and tables behind the C ABI of `../retort_text.h`.
//!
//! Every function that can fail returns a status (0 = done, 1 = error, 2 = a panic was caught) and
//! writes an error text on failure. Nothing unwinds into the caller; what a function hands out is
//! freed by the matching `_free`. The C functions are in the `abi` modules.

mod abi;
mod abi_table;
mod abi_template;
mod abi_text_template;
mod abi_tokenizer;
mod abi_train;
mod answers;
mod files;
mod jinja_source;
mod json_cells;
mod python;
mod table;
mod template;
mod text_template;
mod tokenizer;
mod train;
