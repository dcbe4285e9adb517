#!/usr/bin/env python3
"""Writes tests/data/tables: one set of rows as JSONL, Parquet and Arrow files, by pyarrow.

`rows.jsonl` is what pyarrow reads back (`to_pylist`), as Python's json writes it: the reference
that table_rows_test compares with. `many.parquet` has five million short rows, which compress to
little.
"""

import datetime
import decimal
import json
import pathlib

import pyarrow as pa
import pyarrow.feather
import pyarrow.parquet as pq

FOLDER = pathlib.Path(__file__).parent / "tables"
GOLDEN_RUNS = pathlib.Path(__file__).parents[1] / "recipes" / "goldens"
MANY_ROWS = 5_000_000


def rows():
    words = ["w1", "w2 \"q\" \\ /", "é ü 漢 🙂", "tab\tline\nend", "", "\u0001\u007f"]
    for i in range(300):
        yield {
            "prompt": f"w{i % 90} w{(i + 30) % 90}",
            "completion": None if i % 50 == 49 else words[i % len(words)],
            "messages": [
                {"role": "user", "content": f"w{i % 7}", "name": None if i % 2 else "n"},
                {"role": "assistant", "content": words[i % len(words)], "name": None},
            ][: i % 3],
            "input_ids": None if i % 10 == 3 else [i, 2 * i, -i][: i % 4],
            "score": None if i % 11 == 5 else i / 4,
            "small": i % 100,
            "big": 2**63 - 1 - i,
            "unsigned": 2**64 - 1 - i,
            "label": i % 3 == 0 if i % 5 else None,
            "kind": ["a", "b", None][i % 3],
            "pair": {"x": i, "y": {"z": [f"w{i % 9}"]}} if i % 6 else None,
            "fixed": [i % 3 + 0.5, 1.0],
            "nothing": None,
            # Types without a JSON text, which are left out.
            "day": datetime.date(2026, 11, 24),
            "price": decimal.Decimal("1.50"),
            "bytes": b"\x00\xff",
        }


SCHEMA = pa.schema([
    ("prompt", pa.string()),
    ("completion", pa.large_string()),
    ("messages", pa.list_(pa.struct([("role", pa.string()), ("content", pa.string()),
                                     ("name", pa.string())]))),
    ("input_ids", pa.large_list(pa.int32())),
    ("score", pa.float64()),
    ("small", pa.int8()),
    ("big", pa.int64()),
    ("unsigned", pa.uint64()),
    ("label", pa.bool_()),
    ("kind", pa.dictionary(pa.int32(), pa.string())),
    ("pair", pa.struct([("x", pa.int16()),
                        ("y", pa.struct([("z", pa.list_(pa.string()))]))])),
    ("fixed", pa.list_(pa.float32(), 2)),
    ("nothing", pa.null()),
    ("day", pa.date32()),
    ("price", pa.decimal128(10, 2)),
    ("bytes", pa.binary()),
])
LEFT_OUT = {"day", "price", "bytes"}


def write_jsonl(table):
    with open(FOLDER / "rows.jsonl", "w", encoding="utf-8") as out:
        for row in table.to_pylist():
            kept = {name: value for name, value in row.items() if name not in LEFT_OUT}
            out.write(json.dumps(kept, ensure_ascii=False, separators=(",", ":")) + "\n")


def write_training_rows():
    """The rows of the recipes' golden runs: in two Parquet files, and as `datasets` keeps them."""
    lines = (GOLDEN_RUNS / "rows.jsonl").read_text().splitlines()
    table = pa.Table.from_pylist([json.loads(line) for line in lines])
    for part, (begin, rows_of_part) in enumerate(((0, 13), (13, 7))):
        pq.write_table(table.slice(begin, rows_of_part), FOLDER / f"training-{part}.parquet")
    with pa.ipc.new_stream(FOLDER / "training.arrow", table.schema) as stream:
        stream.write_table(table, max_chunksize=8)


def main():
    FOLDER.mkdir(exist_ok=True)
    table = pa.Table.from_pylist(list(rows()), schema=SCHEMA)
    write_jsonl(table)
    for codec in ("none", "snappy", "zstd", "gzip", "lz4", "brotli"):
        pq.write_table(table, FOLDER / f"{codec}.parquet", compression=codec, row_group_size=70,
                       store_schema=codec != "none")
    pq.write_table(table, FOLDER / "second_version.parquet", compression="zstd",
                   data_page_version="2.0", use_dictionary=False, data_page_size=512)
    for codec in ("uncompressed", "lz4", "zstd"):
        pa.feather.write_feather(table, FOLDER / f"{codec}.arrow", compression=codec, chunksize=64)
    with pa.ipc.new_stream(FOLDER / "stream.arrow", SCHEMA) as stream:
        stream.write_table(table, max_chunksize=64)

    write_training_rows()
    cycle = [f"w{i} w{i + 1} w{i + 2}" for i in range(8)]
    many = pa.table({"text": pa.array(cycle * (MANY_ROWS // 8))})
    pq.write_table(many, FOLDER / "many.parquet", compression="zstd", compression_level=19,
                   row_group_size=500_000)
    twice = pa.Table.from_arrays([pa.array(["w1"]), pa.array(["w2"])], names=["text", "text"])
    pq.write_table(twice, FOLDER / "twice.parquet")


main()
