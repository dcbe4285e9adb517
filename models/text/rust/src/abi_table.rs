//! The C interface of `table`.

use crate::abi::{guard, write_string, RtSlice, RtString};
use crate::table::Table;

/// `left_out`: the columns that are not read, "name (type), ..."; empty if all are.
/// # Safety
/// `path` is readable, the rest writable.
#[no_mangle]
pub unsafe extern "C" fn rt_table_open(
    path: RtSlice,
    out: *mut *mut Table,
    left_out: *mut RtString,
    error: *mut RtString,
) -> i32 {
    guard(error, || {
        let table = Table::open(path.text("the file's name")?)?;
        write_string(left_out, table.left_out.join(", ").into_bytes());
        *out = Box::into_raw(Box::new(table));
        Ok(())
    })
}

/// # Safety
/// `table` came from `rt_table_open` and is freed once.
#[no_mangle]
pub unsafe extern "C" fn rt_table_free(table: *mut Table) {
    if !table.is_null() {
        drop(Box::from_raw(table));
    }
}

/// # Safety
/// `table` is open and used by one thread, the rest writable.
#[no_mangle]
pub unsafe extern "C" fn rt_table_next(
    table: *mut Table,
    out: *mut RtString,
    error: *mut RtString,
) -> i32 {
    guard(error, || {
        write_string(out, (*table).next_lines()?);
        Ok(())
    })
}
