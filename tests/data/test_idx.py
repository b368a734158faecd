"""The IDX reader takes what is right and refuses everything else in one sentence."""

import gzip
import struct
import tracemalloc
import zlib

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from hypothesis.extra.numpy import array_shapes, arrays

from cirm.data.idx import (
    convert_idx_bytes_to_array,
    decompress_and_check_idx,
    read_and_check_idx_file,
)
from tests.data.sentences import has_remedy

IMAGES = arrays(np.uint8, array_shapes(min_dims=3, max_dims=3, min_side=1, max_side=6))
LABELS = arrays(np.uint8, array_shapes(min_dims=1, max_dims=1, min_side=1, max_side=40))
WRAPPERS = st.sampled_from([bytes, gzip.compress])


def encoded(array: np.ndarray) -> bytes:
    header = bytes((0, 0, 8, array.ndim)) + struct.pack(f">{array.ndim}I", *array.shape)
    return header + array.tobytes()


def parse(data: bytes, axes: int, where: str) -> np.ndarray:
    return convert_idx_bytes_to_array(decompress_and_check_idx(data, axes, where))


def refused(data: bytes, axes: int) -> str:
    with pytest.raises(ValueError) as caught:
        parse(data, axes, "here")
    message = str(caught.value)
    assert message.startswith("here: ") and has_remedy(message)
    return message


@given(st.one_of(IMAGES, LABELS), WRAPPERS)
def test_what_was_written_is_read(array, wrap):
    got = parse(wrap(encoded(array)), array.ndim, "here")
    assert got.dtype == np.uint8
    np.testing.assert_array_equal(got, array)


@given(st.binary(max_size=200), st.sampled_from([1, 3]), WRAPPERS)
@example(b"", 1, bytes)
@example(b"\x1f\x8b", 3, bytes)
@example(b"\x00\x00\x08\x03", 3, gzip.compress)
def test_arbitrary_bytes_are_read_or_refused(data, axes, wrap):
    try:
        array = parse(wrap(data), axes, "here")
    except ValueError as error:
        assert str(error).startswith("here: ") and has_remedy(error)
    else:
        assert encoded(array) == data


@given(st.binary(max_size=60), st.sampled_from([1, 3]), WRAPPERS)
def test_arbitrary_bytes_after_a_true_magic_are_read_or_refused(tail, axes, wrap):
    data = bytes((0, 0, 8, axes)) + tail
    try:
        array = parse(wrap(data), axes, "here")
    except ValueError as error:
        assert str(error).startswith("here: ") and has_remedy(error)
    else:
        assert encoded(array) == data


@given(IMAGES, WRAPPERS, st.data())
def test_a_cut_file_is_refused(array, wrap, data):
    whole = wrap(encoded(array))
    keep = data.draw(st.integers(0, len(whole) - 1))
    refused(whole[:keep], 3)


@given(IMAGES, st.data())
def test_a_gzip_file_with_a_changed_byte_is_never_read_wrongly(array, data):
    whole = bytearray(gzip.compress(encoded(array), mtime=0))
    place = data.draw(st.integers(0, len(whole) - 1))
    whole[place] ^= data.draw(st.integers(1, 255))
    try:
        got = parse(bytes(whole), 3, "here")
    except ValueError as error:
        assert "\n" not in str(error)
    else:  # parts of the gzip header, such as its date, do not matter
        np.testing.assert_array_equal(got, array)


@pytest.mark.parametrize("wrap", [bytes, gzip.compress])
def test_bytes_after_the_end_are_refused(wrap):
    assert "according to its header it should have 11" in refused(
        wrap(encoded(np.arange(3, dtype="u1")) + b"x"), 1
    )


def test_labels_are_not_taken_for_images():
    message = refused(encoded(np.arange(3, dtype=np.uint8)), 3)
    assert "00 00 08 03" in message and "00 00 08 01" in message


def test_a_file_without_examples_is_refused():
    assert "[0, 28, 28]" in refused(encoded(np.zeros((0, 28, 28), np.uint8)), 3)


@pytest.mark.parametrize("wrap", [bytes, gzip.compress])
def test_a_header_that_promises_too_much_costs_no_memory(wrap):
    data = wrap(b"\x00\x00\x08\x03" + b"\xff" * 12 + b"\x00" * 100)
    tracemalloc.start()
    refused(data, 3)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 1_000_000


def test_a_gzip_bomb_is_unpacked_no_further_than_its_header_says():
    data = gzip.compress(encoded(np.arange(9, dtype=np.uint8)) + bytes(30_000_000), 1)
    tracemalloc.start()
    refused(data, 1)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 2_000_000


def test_a_wrong_checksum_is_refused():
    data = bytearray(gzip.compress(encoded(np.arange(9, dtype=np.uint8))))
    data[-8:-4] = struct.pack("<I", zlib.crc32(b"something else"))
    assert "complete gzip file" in refused(bytes(data), 1)


@pytest.mark.parametrize("wrap", [bytes, gzip.compress])
def test_a_file_is_read_by_its_path(tmp_path, wrap):
    images = np.arange(24, dtype=np.uint8).reshape(2, 3, 4)
    (tmp_path / "images").write_bytes(wrap(encoded(images)))
    np.testing.assert_array_equal(
        convert_idx_bytes_to_array(read_and_check_idx_file(tmp_path / "images", 3)),
        images,
    )


def test_a_path_without_a_file_is_named(tmp_path):
    with pytest.raises(FileNotFoundError, match="nothing-here"):
        read_and_check_idx_file(tmp_path / "nothing-here", 1)
    with pytest.raises(FileNotFoundError, match="there is no such IDX file"):
        read_and_check_idx_file(tmp_path, 1)
