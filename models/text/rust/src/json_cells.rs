//! The values of Arrow arrays as JSON text.

use std::io::{Result, Write};

use arrow_array::cast::AsArray;
use arrow_array::types::{
    ArrowDictionaryKeyType, ArrowPrimitiveType, Float16Type, Float32Type, Float64Type, Int16Type,
    Int32Type, Int64Type, Int8Type, UInt16Type, UInt32Type, UInt64Type, UInt8Type,
};
use arrow_array::{Array, ArrayRef};
use arrow_schema::DataType;

use crate::row_text::RowText;

/// Appends the JSON text of the value at an index; an error where its row becomes too long.
pub type CellWriter<'a> = Box<dyn Fn(usize, &mut RowText) -> Result<()> + 'a>;

/// Whether values of the type have a JSON text of their own; times, decimals and bytes do not.
pub fn has_json(kind: &DataType) -> bool {
    match kind {
        DataType::Null
        | DataType::Boolean
        | DataType::Int8
        | DataType::Int16
        | DataType::Int32
        | DataType::Int64
        | DataType::UInt8
        | DataType::UInt16
        | DataType::UInt32
        | DataType::UInt64
        | DataType::Float16
        | DataType::Float32
        | DataType::Float64
        | DataType::Utf8
        | DataType::LargeUtf8
        | DataType::Utf8View => true,
        DataType::List(item) | DataType::LargeList(item) | DataType::FixedSizeList(item, _) => {
            has_json(item.data_type())
        }
        DataType::Struct(fields) => fields.iter().all(|field| has_json(field.data_type())),
        DataType::Dictionary(_, value) => has_json(value),
        _ => false,
    }
}

pub fn quoted(text: &str, out: &mut dyn Write) -> Result<()> {
    Ok(serde_json::to_writer(out, text)?)
}

fn integers<'a, T: ArrowPrimitiveType>(array: &'a dyn Array) -> CellWriter<'a>
where
    T::Native: std::fmt::Display,
{
    let values = array.as_primitive::<T>();
    Box::new(move |i, out| write!(out, "{}", values.value(i)))
}

fn item_list<'a>(
    items: &'a ArrayRef,
    range: impl Fn(usize) -> (usize, usize) + 'a,
) -> CellWriter<'a> {
    let item = cell_writer(items.as_ref());
    Box::new(move |i, out| {
        let (begin, end) = range(i);
        out.write_all(b"[")?;
        for at in begin..end {
            if at > begin {
                out.write_all(b",")?;
            }
            item(at, out)?;
        }
        out.write_all(b"]")
    })
}

fn object<'a>(array: &'a dyn Array) -> CellWriter<'a> {
    let values = array.as_struct();
    let mut members = Vec::new();
    for (name, column) in values.column_names().into_iter().zip(values.columns()) {
        let mut key = Vec::new();
        quoted(name, &mut key).expect("writing to memory");
        key.push(b':');
        members.push((key, cell_writer(column.as_ref())));
    }
    Box::new(move |i, out| {
        out.write_all(b"{")?;
        for (at, (key, member)) in members.iter().enumerate() {
            if at > 0 {
                out.write_all(b",")?;
            }
            out.write_all(key)?;
            member(i, out)?;
        }
        out.write_all(b"}")
    })
}

fn dictionary<'a, K: ArrowDictionaryKeyType>(array: &'a dyn Array) -> CellWriter<'a> {
    let coded = array.as_dictionary::<K>();
    let value = cell_writer(coded.values().as_ref());
    Box::new(move |i, out| match coded.key(i) {
        Some(key) => value(key, out),
        None => out.write_all(b"null"),
    })
}

fn dictionary_by_key<'a>(key: &DataType, array: &'a dyn Array) -> CellWriter<'a> {
    match key {
        DataType::Int8 => dictionary::<Int8Type>(array),
        DataType::Int16 => dictionary::<Int16Type>(array),
        DataType::Int32 => dictionary::<Int32Type>(array),
        DataType::Int64 => dictionary::<Int64Type>(array),
        DataType::UInt8 => dictionary::<UInt8Type>(array),
        DataType::UInt16 => dictionary::<UInt16Type>(array),
        DataType::UInt32 => dictionary::<UInt32Type>(array),
        _ => dictionary::<UInt64Type>(array),
    }
}

fn present_writer<'a>(array: &'a dyn Array) -> CellWriter<'a> {
    match array.data_type() {
        DataType::Boolean => {
            let values = array.as_boolean();
            Box::new(move |i, out| {
                out.write_all(if values.value(i) { &b"true"[..] } else { &b"false"[..] })
            })
        }
        DataType::Int8 => integers::<Int8Type>(array),
        DataType::Int16 => integers::<Int16Type>(array),
        DataType::Int32 => integers::<Int32Type>(array),
        DataType::Int64 => integers::<Int64Type>(array),
        DataType::UInt8 => integers::<UInt8Type>(array),
        DataType::UInt16 => integers::<UInt16Type>(array),
        DataType::UInt32 => integers::<UInt32Type>(array),
        DataType::UInt64 => integers::<UInt64Type>(array),
        // A number that is not finite is null, as JSON has none.
        DataType::Float16 => {
            let values = array.as_primitive::<Float16Type>();
            Box::new(move |i, out| Ok(serde_json::to_writer(out, &values.value(i).to_f32())?))
        }
        DataType::Float32 => {
            let values = array.as_primitive::<Float32Type>();
            Box::new(move |i, out| Ok(serde_json::to_writer(out, &values.value(i))?))
        }
        DataType::Float64 => {
            let values = array.as_primitive::<Float64Type>();
            Box::new(move |i, out| Ok(serde_json::to_writer(out, &values.value(i))?))
        }
        DataType::Utf8 => {
            let values = array.as_string::<i32>();
            Box::new(move |i, out| quoted(values.value(i), out))
        }
        DataType::LargeUtf8 => {
            let values = array.as_string::<i64>();
            Box::new(move |i, out| quoted(values.value(i), out))
        }
        DataType::Utf8View => {
            let values = array.as_string_view();
            Box::new(move |i, out| quoted(values.value(i), out))
        }
        DataType::List(_) => {
            let lists = array.as_list::<i32>();
            let ends = lists.value_offsets();
            item_list(lists.values(), move |i| (ends[i] as usize, ends[i + 1] as usize))
        }
        DataType::LargeList(_) => {
            let lists = array.as_list::<i64>();
            let ends = lists.value_offsets();
            item_list(lists.values(), move |i| (ends[i] as usize, ends[i + 1] as usize))
        }
        DataType::FixedSizeList(_, _) => {
            let lists = array.as_fixed_size_list();
            let length = lists.value_length() as usize;
            item_list(lists.values(), move |i| {
                let begin = lists.value_offset(i) as usize;
                (begin, begin + length)
            })
        }
        DataType::Struct(_) => object(array),
        DataType::Dictionary(key, _) => dictionary_by_key(key, array),
        _ => Box::new(|_, out| out.write_all(b"null")),
    }
}

/// Of an array whose type `has_json`.
pub fn cell_writer<'a>(array: &'a dyn Array) -> CellWriter<'a> {
    let present = present_writer(array);
    if array.logical_null_count() == 0 {
        return present;
    }
    let nulls = array.logical_nulls();
    Box::new(move |i, out| match &nulls {
        Some(nulls) if nulls.is_null(i) => out.write_all(b"null"),
        _ => present(i, out),
    })
}
