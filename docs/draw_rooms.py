#!/usr/bin/env python3
"""Draws docs/rooms.svg from the tables of docs/architecture.md: each module with its rooms.

A room stands above every room that it includes, so that includes only go downwards. Run it after
the tables have changed. With --check it draws nothing, and ends with 1 where the picture is not
what the tables say.
"""
import pathlib
import re
import sys

DOCS = pathlib.Path(__file__).parent
# Modules from the top, those side by side that stand on the same floor.
BANDS = [["launch"], ["recipes", "rewards", "data", "losses"], ["engines", "roles"],
         ["models", "rpc"], ["parallel", "kernels", "http", "base"]]
WIDTH, MARGIN, GAP, ROW, LETTER = 860, 20, 12, 28, 7.1
FILLS = ["#e6f6ff", "#e3f9e5", "#fffbea", "#f0f4f8", "#f5f0ff"]
EDGES = ["#2186eb", "#3f9142", "#cb6e17", "#627d98", "#7c5cc4"]


def read_rooms():
    """The block of rooms: what each includes, by module."""
    text = (DOCS / "architecture.md").read_text()
    block = re.search(r"```rooms\n(.*?)```", text, re.S).group(1)
    block = re.sub(r",\n +", ", ", block)
    rooms = {}
    for room, included in re.findall(r"^(\S+) -> (.*)$", block, re.M):
        rooms[room] = [] if included == "none" else included.split(", ")
    return rooms


def module_of(room):
    return room.split("/")[0]


def floors_of(rooms):
    """The floor of each room: one above the highest that it includes."""
    floors = {}

    def floor(room):
        if room not in floors:
            floors[room] = 1 + max((floor(other) for other in rooms[room]), default=-1)
        return floors[room]

    for room in rooms:
        floor(room)
    return floors


def label_of(room, module):
    return room if room == module else room[len(module) + 1:]


def rows_of(module, rooms, floors, width):
    """Lines of rooms from the top floor down; a floor that is too wide takes several."""
    mine = [room for room in rooms if module_of(room) == module]
    rows = []
    for height in sorted({floors[room] for room in mine}, reverse=True):
        row, used = [], 0
        for room in sorted(room for room in mine if floors[room] == height):
            label = label_of(room, module)
            size = len(label) * LETTER + 18
            if row and used + size > width:
                rows.append(row)
                row, used = [], 0
            row.append((label, size))
            used += size + 8
        rows.append(row)
    return rows


def main():
    rooms = read_rooms()
    floors = floors_of(rooms)
    parts, top = [], MARGIN
    for band, fill, edge in zip(BANDS, FILLS, EDGES):
        weights = [3 if module == "recipes" else 2 if any(
            module_of(room) == module for room in rooms) else 1 for module in band]
        inner = WIDTH - 2 * MARGIN - GAP * (len(band) - 1)
        widths = [inner * weight / sum(weights) for weight in weights]
        lines = [rows_of(module, rooms, floors, width - 24)
                 for module, width in zip(band, widths)]
        height = 40 + ROW * max([len(rows) for rows in lines] + [0])
        left = MARGIN
        for module, width, rows in zip(band, widths, lines):
            parts.append(f'<rect x="{left:.0f}" y="{top}" width="{width:.0f}" height="{height}" '
                         f'rx="10" fill="{fill}" stroke="{edge}"/>')
            parts.append(f'<text x="{left + 14:.0f}" y="{top + 24}" font-weight="bold" '
                         f'fill="{edge}">{module}</text>')
            for number, row in enumerate(rows):
                x, y = left + 14, top + 36 + ROW * number
                for label, size in row:
                    parts.append(f'<rect x="{x:.0f}" y="{y}" width="{size:.0f}" height="22" '
                                 f'rx="5" fill="#ffffff" stroke="{edge}"/>')
                    parts.append(f'<text x="{x + size / 2:.0f}" y="{y + 15}" font-size="12" '
                                 f'text-anchor="middle">{label}</text>')
                    x += size + 8
            left += width + GAP
        top += height + GAP
    body = "\n  ".join(parts)
    picture = (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {top + 8}" width="{WIDTH}" '
        f'height="{top + 8}" font-family="DejaVu Sans, Helvetica, Arial, sans-serif" '
        f'font-size="14" fill="#1f2933">\n  <title>The modules and their rooms: each includes '
        f'only what stands below it</title>\n  <rect width="{WIDTH}" height="{top + 8}" '
        f'fill="#ffffff"/>\n  {body}\n</svg>\n')

    path = DOCS / "rooms.svg"
    if "--check" not in sys.argv:
        path.write_text(picture)
    elif path.read_text() != picture:
        sys.exit("docs/rooms.svg is not what the tables say: run docs/draw_rooms.py")


if __name__ == "__main__":
    main()
