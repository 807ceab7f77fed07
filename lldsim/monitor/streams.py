"""A log's bytes as they were before they were packed: gzip and UTF-16 are undone on the way, with progress.

Everything streams: a gigabyte of gzipped JSON lines needs no more memory than the same file unpacked. What this file
does not do: look into the bytes (sources.py), or other archives.
"""

from __future__ import annotations

import codecs
import io
import zlib
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, BinaryIO

from lldsim.monitor.text_logs import Trouble

Progress = Callable[[int, int], None]  # bytes read, bytes in all
_CHUNK = 2**18
_UTF16 = (codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)


class _Counting:
    """A binary file that reports how far it has been read."""

    def __init__(self, file: BinaryIO, size: int, on_progress: Progress | None) -> None:
        self._file, self._size, self._say, self._next = file, size, on_progress, 0
        self.closed, self.readable, self.writable, self.seekable = False, lambda: True, lambda: False, lambda: False

    def read(self, n: int = -1) -> bytes:
        return self._count(self._file.read(n))

    def read1(self, n: int = -1) -> bytes:
        return self.read(n)

    def readline(self, n: int = -1) -> bytes:
        return self._count(self._file.readline(n))

    def flush(self) -> None:
        """Nothing is buffered here."""

    def close(self) -> None:
        """The opener closes; a text wrapper that is collected early must not."""

    def _count(self, data: bytes) -> bytes:
        if self._say:
            at = self._file.tell()
            if at >= self._next or not data:
                self._next = at + 2**22
                self._say(at, self._size)
        return data


class _Pieces(io.RawIOBase):
    """Bytes that come in pieces, as a raw file."""

    def __init__(self, pieces: Iterator[bytes]) -> None:
        self._pieces, self._left = pieces, b""

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        while not self._left:
            piece = next(self._pieces, None)
            if piece is None:
                return 0
            self._left = piece
        size = min(len(buffer), len(self._left))
        buffer[:size], self._left = self._left[:size], self._left[size:]
        return size


def _gunzipped(file: Any, trouble: Trouble) -> Iterator[bytes]:
    """Yield what one or more gzip members hold; a cut or damaged file yields what comes before the damage."""
    member, data = zlib.decompressobj(31), file.read(_CHUNK)
    while data:
        try:
            yield member.decompress(data, _CHUNK)
        except zlib.error:
            break
        data = member.unconsumed_tail
        if member.eof:
            data = (member.unused_data or file.read(_CHUNK)).lstrip(b"\0")
            if not data:
                return
            member = zlib.decompressobj(31)
        elif not data:
            data = file.read(_CHUNK)
    trouble.truncated = True


def _utf8(file: Any) -> Iterator[bytes]:
    decoder = codecs.getincrementaldecoder("utf-16")("replace")
    while data := file.read(_CHUNK):
        yield decoder.decode(data).encode("utf-8", "replace")
    yield decoder.decode(b"", True).encode("utf-8", "replace")


@contextmanager
def opened(path: Path, trouble: Trouble, on_progress: Progress | None = None) -> Iterator[Any]:
    """Give the file as a binary stream, unpacked and in UTF-8; progress counts the bytes on disk. Raises OSError."""
    with path.open("rb") as file:
        packed = file.peek(2)[:2] == b"\x1f\x8b"
        stream: Any = _Counting(file, path.stat().st_size, on_progress)
        if packed:
            stream = io.BufferedReader(_Pieces(_gunzipped(stream, trouble)), _CHUNK)
        head = stream.peek(2)[:2] if packed else file.peek(2)[:2]
        if head in _UTF16:
            stream = io.BufferedReader(_Pieces(_utf8(stream)), _CHUNK)
        yield stream
