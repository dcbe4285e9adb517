//! Rows of Parquet and Arrow files as lines of JSON, one object a row.

use std::fs::File;
use std::io::{BufReader, Read, Seek, Write};
use std::sync::Arc;

use arrow_array::RecordBatch;
use arrow_ipc::reader::{FileReader, StreamReader};
use arrow_schema::{ArrowError, DataType, FieldRef, Fields, Schema};
use parquet::arrow::arrow_reader::{ArrowReaderOptions, ParquetRecordBatchReaderBuilder};
use parquet::arrow::ProjectionMask;

use crate::json_cells::{cell_writer, has_json, quoted};
use crate::row_text::{RowText, MAX_ROW_BYTES};

/// Rows of Parquet that are decoded at once. Arrow files say themselves how many; of both no more
/// become text at once.
const BATCH_ROWS: usize = 1024;
/// Text that is handed out at once, about.
const PIECE_BYTES: usize = 1 << 20;

type Batches = Box<dyn Iterator<Item = Result<RecordBatch, ArrowError>> + Send>;

/// An open file. Memory: a batch of rows, and text of PIECE_BYTES and a row; of Parquet the current
/// page of each column besides, not a row group.
pub struct Table {
    batches: Batches,
    rest: Option<RecordBatch>, // of the batch that was read last
    rows: u64,
    /// "name (type)" of each column whose type has no JSON text.
    pub left_out: Vec<String>,
}

/// Which columns are read, and the others' names and types.
fn choose(schema: &Schema) -> Result<(Vec<usize>, Vec<String>), String> {
    let mut chosen = Vec::new();
    let mut left_out = Vec::new();
    for (index, field) in schema.fields().iter().enumerate() {
        if schema.fields()[..index].iter().any(|other| other.name() == field.name()) {
            return Err(format!("has two columns of the name {}", field.name()));
        }
        if has_json(field.data_type()) {
            chosen.push(index);
        } else {
            left_out.push(format!("{} ({})", field.name(), field.data_type()));
        }
    }
    Ok((chosen, left_out))
}

fn with_views(field: &FieldRef) -> FieldRef {
    Arc::new(field.as_ref().clone().with_data_type(with_views_of_texts(field.data_type())))
}

/// The type with views in the place of texts. A view names a text of a page: a page's dictionary
/// may hold one long text that each of many rows names, and copies of it would take what they all
/// have together.
fn with_views_of_texts(kind: &DataType) -> DataType {
    match kind {
        DataType::Utf8 | DataType::LargeUtf8 => DataType::Utf8View,
        DataType::List(item) => DataType::List(with_views(item)),
        DataType::LargeList(item) => DataType::LargeList(with_views(item)),
        DataType::FixedSizeList(item, length) => DataType::FixedSizeList(with_views(item), *length),
        DataType::Struct(fields) => DataType::Struct(fields.iter().map(with_views).collect()),
        other => other.clone(),
    }
}

fn open_parquet(file: File) -> Result<(Batches, Vec<String>), String> {
    let text = |e: parquet::errors::ParquetError| e.to_string();
    let again = file.try_clone().map_err(|e| e.to_string())?;
    let schema = ParquetRecordBatchReaderBuilder::try_new(again).map_err(text)?.schema().clone();
    let (chosen, left_out) = choose(&schema)?;

    let viewed: Fields = schema.fields().iter().map(with_views).collect();
    let viewed = Schema::new_with_metadata(viewed, schema.metadata().clone());
    let options = ArrowReaderOptions::new().with_schema(Arc::new(viewed));
    let builder =
        ParquetRecordBatchReaderBuilder::try_new_with_options(file, options).map_err(text)?;
    let columns = ProjectionMask::roots(builder.parquet_schema(), chosen);
    let reader = builder
        .with_projection(columns)
        .with_batch_size(BATCH_ROWS)
        .build()
        .map_err(text)?;
    Ok((Box::new(reader), left_out))
}

/// The schema is read first, for the choice of columns; then the file is opened with it.
fn open_arrow(mut file: File, stream: bool) -> Result<(Batches, Vec<String>), String> {
    let text = |e: ArrowError| e.to_string();
    let again = file.try_clone().map_err(|e| e.to_string())?;
    let schema = if stream {
        StreamReader::try_new(BufReader::new(again), None).map_err(text)?.schema()
    } else {
        FileReader::try_new(BufReader::new(again), None).map_err(text)?.schema()
    };
    let (chosen, left_out) = choose(&schema)?;

    file.rewind().map_err(|e| e.to_string())?;
    let buffered = BufReader::with_capacity(PIECE_BYTES, file);
    let batches: Batches = if stream {
        Box::new(StreamReader::try_new(buffered, Some(chosen)).map_err(text)?)
    } else {
        Box::new(FileReader::try_new(buffered, Some(chosen)).map_err(text)?)
    };
    Ok((batches, left_out))
}

impl Table {
    pub fn open(path: &str) -> Result<Table, String> {
        let mut file = File::open(path).map_err(|e| e.to_string())?;
        let mut head = [0u8; 6];
        file.read_exact(&mut head).map_err(|_| "is shorter than any such file".to_string())?;
        file.rewind().map_err(|e| e.to_string())?;
        let (batches, left_out) = if head.starts_with(b"PAR1") {
            open_parquet(file)?
        } else {
            open_arrow(file, head != *b"ARROW1")?
        };
        Ok(Table { batches, rest: None, rows: 0, left_out })
    }

    /// The next rows, a line each with its newline; nothing after the last.
    pub fn next_lines(&mut self) -> Result<Vec<u8>, String> {
        let mut out = RowText::new(MAX_ROW_BYTES);
        while out.len() < PIECE_BYTES {
            let batch = match self.rest.take() {
                Some(rest) => rest,
                None => match self.batches.next() {
                    Some(batch) => batch.map_err(|e| format!("after row {}: {e}", self.rows))?,
                    None => break,
                },
            };
            // A slice shares the batch's memory.
            let some = batch.slice(0, batch.num_rows().min(BATCH_ROWS));
            let taken = append_lines(&some, &mut out, self.rows)?;
            self.rows += taken as u64;
            if taken < batch.num_rows() {
                self.rest = Some(batch.slice(taken, batch.num_rows() - taken));
            }
        }
        Ok(out.into_bytes())
    }
}

/// Rows of the batch from its first on, until there is a piece of text; how many they were.
/// `before`: the rows that the file has before it.
fn append_lines(batch: &RecordBatch, out: &mut RowText, before: u64) -> Result<usize, String> {
    let schema = batch.schema();
    let mut columns = Vec::new();
    for (field, column) in schema.fields().iter().zip(batch.columns()) {
        let mut key = Vec::new();
        quoted(field.name(), &mut key).expect("writing to memory");
        key.push(b':');
        columns.push((key, cell_writer(column.as_ref())));
    }

    let write_row = |row: usize, out: &mut RowText| -> std::io::Result<()> {
        out.begin_row();
        out.write_all(b"{")?;
        for (at, (key, cell)) in columns.iter().enumerate() {
            if at > 0 {
                out.write_all(b",")?;
            }
            out.write_all(key)?;
            cell(row, out)?;
        }
        out.write_all(b"}\n")
    };
    for row in 0..batch.num_rows() {
        if out.len() >= PIECE_BYTES {
            return Ok(row);
        }
        write_row(row, out).map_err(|e| format!("row {} {e}", before + row as u64 + 1))?;
    }
    Ok(batch.num_rows())
}
