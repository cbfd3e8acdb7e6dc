"""Pictures from files and bytes that anybody may have made: only the promised formats, and none too large to decode.

Pillow guesses a format from the first bytes, whatever the name says, and some of its 40 formats are programs for another
program: EPS starts Ghostscript. So it is told which ones to try, and the number of pixels is looked at before they are decoded.
"""

from __future__ import annotations

import io
from pathlib import Path

from PIL import Image

from fastntk.base.errors import InputError
from fastntk.base.files import regular_file

FORMATS = ("JPEG", "PNG", "BMP", "GIF", "WEBP", "TIFF", "PPM")
ENDINGS = (".jpg", ".jpeg", ".png", ".bmp", ".gif", ".webp", ".tif", ".tiff", ".ppm", ".pgm", ".pbm")

MOST_PIXELS = 1 << 27
"""Of a picture, as stored and after resizing: 134 million, which take 0.5 GB."""
MOST_BYTES = 1 << 29
"""Of a file with a picture."""


def decode(source: Path | bytes, *, name: str) -> Image.Image:
    """Decode a picture; ``name`` says in errors which one."""
    try:
        if isinstance(source, Path):
            regular_file(source, expected="a picture", most=MOST_BYTES)
        with Image.open(source if isinstance(source, Path) else io.BytesIO(source), formats=FORMATS) as image:
            width, height = image.size
            if width * height > MOST_PIXELS:
                raise InputError(f"{width} × {height} pixels, more than {MOST_PIXELS:,}")
            image.load()
            return image
    except Exception as error:  # a damaged picture can raise nearly anything
        reason = str(error) or type(error).__name__
        raise InputError(
            f"{name} cannot be decoded as an image: {reason}; repair or remove it ({', '.join(FORMATS)} are read)"
        ) from error
