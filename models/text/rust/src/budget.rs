//! How much a rendering may do. A template comes with a model that somebody else made, and ends
//! only if its loops do; what it builds is in memory at once. Both are counted, so that the same
//! template is refused on every machine.

use std::sync::atomic::{AtomicU64, Ordering};

use minijinja::value::Object;
use minijinja::{Error, State, Value};

use crate::python_value::{invalid, type_of, Type};

/// Steps of minijinja's machine in one rendering: some four for an addition.
pub const STEPS: u64 = 10_000_000;
/// Bytes of what one rendering builds, and a part of those that it reads again and again.
const BYTES: u64 = 256 << 20;
/// Bytes of one text, and of the text of one list, which is made part by part.
const LONGEST: usize = 64 << 20;
const LONGEST_PRINTED: usize = 16 << 20;
/// Bytes that a text in a template may have and not be counted when it is written.
pub const SHORT: usize = 32;

/// What a list's item and a dictionary's entry count for, about as much as they take.
const ITEM: u64 = 32;
pub const ENTRY: u64 = 64;

#[derive(Debug, Default)]
struct Spent(AtomicU64);

impl Object for Spent {}

pub fn out_of_steps() -> String {
    format!("the template takes more than {STEPS} steps, as one of which the loops do not end")
}

/// Counts bytes; an error where there are no more.
pub fn charge(state: &State, bytes: u64) -> Result<(), Error> {
    if bytes == 0 {
        return Ok(());
    }
    let spent = state.get_or_set_temp_object("_spent_", Spent::default);
    match spent.0.fetch_add(bytes, Ordering::Relaxed) + bytes {
        all if all > BYTES => Err(invalid(format!(
            "the template builds more than {} MiB of text and lists",
            BYTES >> 20
        ))),
        _ => Ok(()),
    }
}

/// Counts a value that was made.
pub fn built(state: &State, value: Value) -> Result<Value, Error> {
    let length = value.len().unwrap_or(0) as u64;
    charge(
        state,
        match type_of(&value) {
            Type::Text => value.as_str().map_or(0, str::len) as u64,
            Type::List | Type::Tuple | Type::View => length * ITEM,
            Type::Dictionary => length * ENTRY,
            _ => 0,
        },
    )?;
    Ok(value)
}

/// Counts values of which every part is looked at.
pub fn read(state: &State, values: &[Value]) -> Result<(), Error> {
    let cost = |value: &Value| match type_of(value) {
        Type::Text => value.as_str().map_or(0, str::len) as u64 / 4,
        Type::List | Type::Tuple | Type::View | Type::Dictionary => {
            value.len().unwrap_or(0) as u64 * ITEM / 4
        }
        _ => 0,
    };
    charge(state, values.iter().map(cost).sum())
}

/// Counts a text of which every letter becomes a value.
pub fn letters(state: &State, value: &Value) -> Result<(), Error> {
    charge(state, value.as_str().map_or(0, str::len) as u64 * ITEM)
}

fn within(length: usize, limit: usize) -> Result<(), Error> {
    if length > limit {
        let limit = limit >> 20;
        return Err(invalid(format!("the template makes a text of more than {limit} MiB")));
    }
    Ok(())
}

/// An error for a text that would be too long, before it is made.
pub fn fits(length: usize) -> Result<(), Error> {
    within(length, LONGEST)
}

/// The same of a list or dictionary that is printed, which may hold another twice, and so on.
pub fn prints(length: usize) -> Result<(), Error> {
    within(length, LONGEST_PRINTED)
}
