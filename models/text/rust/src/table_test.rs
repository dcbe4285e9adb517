//! Files that are small on disk and large as text.

use std::fs::File;
use std::path::PathBuf;
use std::sync::Arc;

use arrow_array::types::Int32Type;
use arrow_array::{
    Array, ArrayRef, DictionaryArray, FixedSizeListArray, Int32Array, RecordBatch, StringArray,
    UInt64Array,
};
use arrow_ipc::writer::StreamWriter;
use arrow_schema::Field;
use parquet::arrow::ArrowWriter;
use parquet::file::properties::WriterProperties;

use crate::row_text::MAX_ROW_BYTES;
use crate::table::Table;

const TEXT_BYTES: usize = 1 << 20;

/// A file of one batch, which goes when the test is over.
struct Written(PathBuf);

impl Drop for Written {
    fn drop(&mut self) {
        let _ = std::fs::remove_file(&self.0);
    }
}

fn written(name: &str, columns: Vec<(&str, ArrayRef)>) -> Written {
    let path = std::env::temp_dir().join(format!("retort-{name}-{}.arrow", std::process::id()));
    let batch = RecordBatch::try_from_iter(columns).unwrap();
    let file = File::create(&path).unwrap();
    let written = Written(path);
    let mut writer = StreamWriter::try_new(file, &batch.schema()).unwrap();
    writer.write(&batch).unwrap();
    writer.finish().unwrap();
    written
}

fn opened(file: &Written) -> Table {
    Table::open(file.0.to_str().unwrap()).unwrap()
}

/// One text, named by each of `count` values.
fn repeated(count: usize) -> ArrayRef {
    let texts = StringArray::from(vec!["x".repeat(TEXT_BYTES)]);
    let keys = Int32Array::from(vec![0; count]);
    Arc::new(DictionaryArray::<Int32Type>::new(keys, Arc::new(texts)))
}

/// 4 GiB of text in one batch, of a file of 1 MiB.
#[test]
fn a_batch_becomes_text_piece_by_piece() {
    let file = written("repeated", vec![("text", repeated(4096))]);
    assert!(std::fs::metadata(&file.0).unwrap().len() < 2 << 20);
    let mut table = opened(&file);
    for _ in 0..3 {
        let lines = table.next_lines().unwrap();
        assert!(lines.len() > TEXT_BYTES && lines.len() < 3 * TEXT_BYTES, "{}", lines.len());
        assert!(lines.starts_with(b"{\"text\":\"x") && lines.ends_with(b"x\"}\n"));
    }
}

#[test]
fn a_row_that_repeats_a_text_is_refused_by_its_number() {
    let items = repeated(2 * MAX_ROW_BYTES / TEXT_BYTES);
    let field = Arc::new(Field::new("item", items.data_type().clone(), false));
    let length = items.len() as i32 / 2;
    let lists = FixedSizeListArray::new(field, length, items, None);
    let file = written("list", vec![("texts", Arc::new(lists))]);
    let error = opened(&file).next_lines().unwrap_err();
    assert_eq!(error, format!("row 1 has more than {MAX_ROW_BYTES} bytes of text"));
}

/// 16 GiB of text in one batch, of a file whose dictionary has it once.
#[test]
fn a_text_of_a_dictionary_is_not_copied_for_each_row() {
    const ROWS: usize = 1024;
    let text: ArrayRef = Arc::new(StringArray::from(vec!["x".repeat(16 * TEXT_BYTES)]));
    let path = std::env::temp_dir().join(format!("retort-pages-{}.parquet", std::process::id()));
    let written = Written(path);
    let rows = RecordBatch::try_from_iter(vec![("text", text)]).unwrap();
    let properties = WriterProperties::builder()
        .set_dictionary_page_size_limit(64 * TEXT_BYTES)
        .set_statistics_enabled(parquet::file::properties::EnabledStatistics::None)
        .build();
    let file = File::create(&written.0).unwrap();
    let mut writer = ArrowWriter::try_new(file, rows.schema(), Some(properties)).unwrap();
    for _ in 0..ROWS {
        writer.write(&rows).unwrap();
    }
    writer.close().unwrap();
    assert!(std::fs::metadata(&written.0).unwrap().len() < 20 << 20);

    let mut table = opened(&written);
    for _ in 0..3 {
        let lines = table.next_lines().unwrap();
        assert_eq!(lines.len(), 16 * TEXT_BYTES + "{\"text\":\"\"}\n".len());
    }
}

/// Each row once and in its place, wherever a piece or what is cut from a batch ends.
#[test]
fn rows_are_those_of_the_batch() {
    let numbers = UInt64Array::from_iter_values(0..300_000);
    let file = written("numbers", vec![("n", Arc::new(numbers))]);
    let mut table = opened(&file);
    let mut row = 0;
    loop {
        let lines = table.next_lines().unwrap();
        if lines.is_empty() {
            break;
        }
        for line in std::str::from_utf8(&lines).unwrap().lines() {
            assert_eq!(line, format!("{{\"n\":{row}}}"));
            row += 1;
        }
    }
    assert_eq!(row, 300_000);
}
