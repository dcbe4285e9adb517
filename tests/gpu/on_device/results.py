"""What comes back: results.jsonl, a line for each number, and logs.tar.gz."""

import json
import shutil
import tarfile

from processes import Child

RETURNED_LIMIT = 14 * 2**20  # bytes of logs.tar.gz


def record(name, value, unit="", show=True, **more):
    line = {"step": Child.step, "name": name, "value": value, "unit": unit, "show": show, **more}
    with open(Child.output / "results.jsonl", "a") as f:
        f.write(json.dumps(line) + "\n")
    print("RESULT", json.dumps(line), flush=True)


def entries(output):
    """What is in results.jsonl; the last line may be half one."""
    path = output / "results.jsonl"
    for line in path.read_text().splitlines() if path.exists() else []:
        try:
            yield json.loads(line)
        except ValueError:
            pass


def pack(output):
    """All files but results.jsonl go into logs.tar.gz, as far as they fit."""
    files = [
        p
        for p in output.rglob("*")
        if p.is_file() and p.name not in ("results.jsonl", "logs.tar.gz")
    ]
    room = RETURNED_LIMIT
    with tarfile.open(output / "logs.tar.gz", "w:gz", compresslevel=5) as archive:
        for path in sorted(files, key=lambda p: (not p.name.endswith(".log"), p.stat().st_size)):
            # Logs are packed to a quarter at least; others count as they are.
            size = path.stat().st_size // (4 if path.suffix == ".log" else 1)
            if size <= room:
                archive.add(path, path.relative_to(output))
                room -= size
            path.unlink()
    for folder in sorted((p for p in output.rglob("*") if p.is_dir()), reverse=True):
        shutil.rmtree(folder, ignore_errors=True)
