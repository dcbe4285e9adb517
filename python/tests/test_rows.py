"""Files that are being written, files that are damaged, and steps that were written twice."""
from retort.rows import DamagedFileError, read_metrics, read_rows
from tests.support import FolderTest


class ReadRowsTest(FolderTest):
    def test_no_file_has_no_rows(self):
        self.assertEqual(read_rows(self.folder / "none.jsonl"), [])

    def test_a_line_without_its_end_is_being_written(self):
        for rest in ('{"b"', '{"b": 2}', "\u00e9"[:1]):
            path = self.write("rows.jsonl", '{"a": 1}\n' + rest)
            self.assertEqual(read_rows(path), [{"a": 1}])

    def test_a_damaged_line_is_named(self):
        for line in ('{"b"', "", "[1]", "7", "nothing"):
            path = self.write("rows.jsonl", f'{{"a": 1}}\n{line}\n{{"c": 3}}\n')
            with self.assertRaises(DamagedFileError) as caught:
                read_rows(path)
            self.assertIn(f"{path}:2: ", str(caught.exception))

    def test_bytes_that_are_no_text_are_damage(self):
        path = self.folder / "rows.jsonl"
        path.write_bytes(b'{"a": "\xff"}\n')
        with self.assertRaises(DamagedFileError):
            read_rows(path)


class ReadMetricsTest(FolderTest):
    def read(self, *rows):
        return read_metrics(self.write_rows("metrics.jsonl", rows))

    def test_a_step_and_its_evaluation_are_two_rows(self):
        rows = [
            {"step": 0, "eval_loss": 9},
            {"step": 1, "loss": 5},
            {"step": 2, "loss": 4},
            {"step": 2, "eval_loss": 3},
            {"step": 3, "loss": 2},
        ]
        self.assertEqual(self.read(*rows), rows)

    def test_the_later_life_of_a_run_counts(self):
        found = self.read(
            {"step": 1, "loss": 5},
            {"step": 2, "loss": 4},
            {"step": 2, "eval_loss": 3},
            {"step": 3, "loss": 2},
            {"step": 2, "loss": 40},
            {"step": 2, "eval_loss": 30},
        )
        expected = [
            {"step": 1, "loss": 5}, {"step": 2, "loss": 40}, {"step": 2, "eval_loss": 30}
        ]
        self.assertEqual(found, expected)

    def test_what_a_life_that_is_over_had_ahead_is_left_out(self):
        # It logged every step, this one every second.
        found = self.read(*({"step": step, "loss": step} for step in (1, 2, 3, 2, 4)))
        self.assertEqual([row["step"] for row in found], [1, 2, 4])

    def test_a_row_without_a_step_is_damage(self):
        for row in ({"loss": 1}, {"step": "1"}, {"step": True}, {"step": 1.5}):
            with self.assertRaises(DamagedFileError) as caught:
                self.read({"step": 1}, row)
            self.assertIn("metrics.jsonl:2: ", str(caught.exception))
