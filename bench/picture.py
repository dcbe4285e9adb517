"""Writing a figure of matplotlib as a small PNG."""

import pathlib


def save(figure, path):
    """Few colours are enough for lines: an indexed PNG is a third of the size. Without Pillow the
    file is as matplotlib writes it."""
    output = pathlib.Path(path)
    output.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(output, dpi=130, metadata={"Software": None})
    try:
        from PIL import Image

        Image.open(output).convert("RGB").quantize(64).save(output, optimize=True)
    except ImportError:
        pass
    print(f"{output}: {output.stat().st_size / 1024:.0f} KiB")
