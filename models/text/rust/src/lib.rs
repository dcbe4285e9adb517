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
mod budget;
mod depth;
mod environment;
mod files;
mod jinja_calls;
mod jinja_expression;
mod jinja_filters;
mod jinja_lexer;
mod jinja_list_filters;
mod jinja_lookups;
mod jinja_objects;
mod jinja_operand;
mod jinja_scopes;
mod jinja_source;
mod jinja_statement;
mod jinja_tests;
mod jinja_text_filters;
mod jinja_tokens;
mod json_cells;
mod python;
mod python_call;
mod python_format;
mod python_json;
mod python_letters;
mod python_number;
mod python_operators;
mod python_spec;
mod python_text;
mod python_value;
mod row_text;
mod table;
#[cfg(test)]
mod table_test;
mod template;
#[cfg(test)]
mod template_limits_test;
mod text_template;
mod tokenizer;
mod tokenizer_class;
mod tokenizer_growth;
mod train;
