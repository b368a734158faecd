"""A CSV table from standard input, which is read once and kept until the end."""

from __future__ import annotations

import hashlib
import io
import shutil
import sys
import tempfile
import threading
import weakref
from collections.abc import Collection, Iterator
from typing import IO, Any

from cirm.data.cell_errors import STANDARD_INPUT
from cirm.data.sources import DataSource, SourceRowChunk
from cirm.data.table_files import read_csv_in_chunks


class StandardInputSource(DataSource):
    """A CSV table from standard input.

    Data are read several times, so the input is copied to a temporary file without a
    name, which disappears with the process.
    """

    name = where = STANDARD_INPUT

    def __init__(self, stream: IO[bytes] | None = None) -> None:
        self._stream = stream or sys.stdin.buffer
        self._file: IO[bytes] | None = None
        self._lock = threading.Lock()

    def iterate_chunks(
        self, numeric_columns: Collection[str] = ()
    ) -> Iterator[SourceRowChunk]:
        """Yield the rows, each labelled by its number."""
        return map(
            SourceRowChunk,
            read_csv_in_chunks(
                self._open_independent_reader, self.where, numeric_columns
            ),
        )

    def hash_files(self) -> dict[str, str]:
        """Return the SHA-256 of the input."""
        digest = hashlib.sha256()
        with self._open_independent_reader() as view:
            while part := view.read(2**20):
                digest.update(part)
        return {self.name: digest.hexdigest()}

    def _open_independent_reader(self) -> io.BufferedReader:
        """Return a reader that starts at the beginning, independent of others."""
        with self._lock:
            if self._file is None:
                self._file = tempfile.TemporaryFile()  # noqa: SIM115  it lives on
                weakref.finalize(self, self._file.close)
                shutil.copyfileobj(self._stream, self._file)
        return io.BufferedReader(_SharedFileReader(self._file, self._lock))


class _SharedFileReader(io.RawIOBase):
    """A position of its own in a file that others read as well."""

    def __init__(self, file: IO[bytes], lock: threading.Lock) -> None:
        self._file, self._lock, self._position = file, lock, 0

    def readable(self) -> bool:
        """Return that it can be read."""
        return True

    def readinto(self, buffer: Any) -> int:  # noqa: ANN401  a writable buffer
        """Read the next bytes into a buffer; return their number."""
        with self._lock:
            self._file.seek(self._position)
            part = self._file.read(len(buffer))
        buffer[: len(part)] = part
        self._position += len(part)
        return len(part)
