"""Features by frozen encoders, computed once and kept by content.

The cache is an SQLite file for each encoder, in the folder of downloaded data. It maps
the SHA-256 of an image file or of a text to features, and never holds the content.
"""

from __future__ import annotations

import hashlib
import json
import re
import sqlite3
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing, contextmanager
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from cirm.data.encoders import EncoderIdentity, FrozenEncoder
from cirm.data.image_files import read_image_as_pixels
from cirm.data.image_sets import get_data_cache_folder
from cirm.data.sources import hash_file_or_folder

Features = NDArray[np.float32]
BATCH = 32  # images or texts at a time: larger ones are no faster on a CPU
MOST_ASKED = 500  # keys in one question to SQLite, which allows 999
PATIENCE = 60.0  # seconds that one process waits for another to write
CREATE = "CREATE TABLE IF NOT EXISTS features (digest BLOB PRIMARY KEY, value BLOB)"
INSERT = "INSERT OR REPLACE INTO features VALUES (?, ?)"


def encode_image_files_as_features(
    paths: Sequence[Path], encoder: FrozenEncoder
) -> Features:
    """Return the features [n, features] of image files, computed once for each."""
    side = encoder.identity.side

    def read_images_at_indices(indices: Sequence[int]) -> NDArray[np.uint8]:
        return np.stack(
            [read_image_as_pixels(paths[place], side, 3) for place in indices]
        )

    digests = [bytes.fromhex(hash_file_or_folder(path)) for path in paths]
    return _read_or_compute_features(encoder, digests, read_images_at_indices)


def encode_texts_as_features(texts: Sequence[str], encoder: FrozenEncoder) -> Features:
    """Return the features [n, features] of texts, computed once for each."""
    digests = [
        hashlib.sha256(text.encode("utf-8", "surrogatepass")).digest() for text in texts
    ]
    return _read_or_compute_features(
        encoder, digests, lambda places: [texts[place] for place in places]
    )


def get_feature_cache_path(identity: EncoderIdentity) -> Path:
    """Return the file that keeps the features of an encoder."""
    content = json.dumps(asdict(identity), sort_keys=True)
    digest = hashlib.sha256(content.encode()).hexdigest()[:16]
    name = re.sub(r"[^\w.-]+", "-", identity.name)[:60]
    return get_data_cache_folder() / "features" / f"{name}-{digest}.sqlite"


def _read_or_compute_features(
    encoder: FrozenEncoder,
    digests: Sequence[bytes],
    read_inputs: Callable[[Sequence[int]], Any],
) -> Features:
    """Return features by digest; `read_inputs` reads those that are absent."""
    places = {digest: place for place, digest in enumerate(digests)}
    with _open_feature_cache(encoder.identity) as cache:
        known = dict(
            _read_features_from_cache(cache, list(places), encoder.identity.features)
        )
        absent = [place for digest, place in places.items() if digest not in known]
        for start in range(0, len(absent), BATCH):
            batch = absent[start : start + BATCH]
            features = encoder.encode(read_inputs(batch))
            rows = list(zip([digests[n] for n in batch], features, strict=True))
            known.update(rows)
            with cache:
                cache.executemany(INSERT, [(d, row.tobytes()) for d, row in rows])
    empty = np.zeros((0, encoder.identity.features), np.float32)
    return np.stack([known[digest] for digest in digests]) if digests else empty


def _read_features_from_cache(
    cache: sqlite3.Connection, digests: Sequence[bytes], n_features: int
) -> Iterator[tuple[bytes, Features]]:
    """Yield what the cache has of the digests."""
    for start in range(0, len(digests), MOST_ASKED):
        asked = digests[start : start + MOST_ASKED]
        marks = ",".join("?" * len(asked))
        query = f"SELECT digest, value FROM features WHERE digest IN ({marks})"
        for digest, value in cache.execute(query, asked):
            if len(value) == 4 * n_features:
                yield bytes(digest), np.frombuffer(value, np.float32)


@contextmanager
def _open_feature_cache(identity: EncoderIdentity) -> Iterator[sqlite3.Connection]:
    """Open the cache of an encoder, and say what to do if that is not possible."""
    path = get_feature_cache_path(identity)
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with closing(sqlite3.connect(path, timeout=PATIENCE)) as cache:
            with cache:
                cache.execute(CREATE)
            yield cache
    except (OSError, sqlite3.Error) as error:
        raise ValueError(
            f"cache: the features of the encoder cannot be stored in {path} "
            f"({error}). Remove this file, or set the environment variable CIRM_DATA "
            "to another folder."
        ) from None
