"""Just enough of PNG for thumbnails, by the standard library: 8 bits, grey, RGB, with or without alpha, not interlaced.

For real pictures use Pillow. Here nothing has to be installed.
"""

import struct
import zlib
from collections.abc import Callable
from dataclasses import dataclass

SIGNATURE = b"\x89PNG\r\n\x1a\n"
CHANNELS = {0: 1, 2: 3, 4: 2, 6: 4}
"""By colour type: how many bytes a pixel has."""
MOST_PIXELS = 50_000_000


class NoPicture(ValueError):
    """The file is none that this reads."""


@dataclass(frozen=True, slots=True)
class Picture:
    """Rows of bytes, `channels` for each pixel."""

    width: int
    height: int
    channels: int
    rows: list[bytes]


def read(data: bytes) -> Picture:
    """The picture in a PNG file. Raises: NoPicture."""
    if not data.startswith(SIGNATURE):
        raise NoPicture("it is no PNG file")
    header, packed = b"", bytearray()
    try:
        place = len(SIGNATURE)
        while place < len(data):
            size, name = struct.unpack_from(">I4s", data, place)
            body = data[place + 8 : place + 8 + size]
            (checksum,) = struct.unpack_from(">I", data, place + 8 + size)
            if zlib.crc32(name + body) != checksum:
                raise NoPicture(f"its part {name!r} is damaged")
            header = body if name == b"IHDR" else header
            packed += body if name == b"IDAT" else b""
            place += 12 + size
        width, height, depth, colour, _, _, interlaced = struct.unpack(">IIBBBBB", header)
        if depth != 8 or colour not in CHANNELS or interlaced or not 0 < width * height <= MOST_PIXELS:
            raise NoPicture("it is a PNG file of a kind that is not read here")
        channels = CHANNELS[colour]
        expected = height * (width * channels + 1)
        raw = zlib.decompressobj().decompress(bytes(packed), expected)
    except (struct.error, zlib.error) as exc:
        raise NoPicture(f"it is damaged: {exc}") from exc
    if len(raw) != expected:
        raise NoPicture("it is cut short")
    return Picture(width, height, channels, _unfiltered(raw, width * channels, channels))


def write(picture: Picture) -> bytes:
    """A PNG file of a picture."""
    colour = next(kind for kind, count in CHANNELS.items() if count == picture.channels)
    header = struct.pack(">IIBBBBB", picture.width, picture.height, 8, colour, 0, 0, 0)
    body = zlib.compress(b"".join(b"\0" + row for row in picture.rows))
    parts = [(b"IHDR", header), (b"IDAT", body), (b"IEND", b"")]
    return SIGNATURE + b"".join(
        struct.pack(">I", len(part)) + name + part + struct.pack(">I", zlib.crc32(name + part)) for name, part in parts
    )


def shrink(picture: Picture, largest: int, tell: Callable[[float], None]) -> Picture:
    """The picture with no side above `largest`: each pixel is the mean of those that it stands for."""
    factor = max(1, -(-max(picture.width, picture.height) // largest))
    width, height = max(1, picture.width // factor), max(1, picture.height // factor)
    rows = []
    for y in range(height):
        block = picture.rows[y * factor : (y + 1) * factor]
        row = bytearray()
        for x in range(width):
            for channel in range(picture.channels):
                start = x * factor * picture.channels + channel
                values = [line[start : start + factor * picture.channels : picture.channels] for line in block]
                row.append(sum(map(sum, values)) // sum(map(len, values)))
        rows.append(bytes(row))
        tell((y + 1) / height)
    return Picture(width, height, picture.channels, rows)


def _unfiltered(raw: bytes, stride: int, channels: int) -> list[bytes]:
    """Undo what PNG does to rows so that they compress well."""
    above = bytes(stride)
    rows = []
    for start in range(0, len(raw), stride + 1):
        kind, row = raw[start], bytearray(raw[start + 1 : start + 1 + stride])
        for at in range(stride):
            left = row[at - channels] if at >= channels else 0
            corner = above[at - channels] if at >= channels else 0
            row[at] = (row[at] + _predicted(kind, left, above[at], corner)) & 0xFF
        above = bytes(row)
        rows.append(above)
    return rows


def _predicted(kind: int, left: int, up: int, corner: int) -> int:
    if kind == 0:
        return 0
    if kind == 1:
        return left
    if kind == 2:
        return up
    if kind == 3:
        return (left + up) // 2
    if kind == 4:
        guess = left + up - corner
        return min((abs(guess - left), 0, left), (abs(guess - up), 1, up), (abs(guess - corner), 2, corner))[2]
    raise NoPicture(f"a row has the filter {kind}, which does not exist")
