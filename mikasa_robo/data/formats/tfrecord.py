"""TFRecord files of ``tf.train.Example`` messages, written without TensorFlow.

A TFRecord file is a sequence of records: the length of the data (8 bytes), its checksum (4 bytes), the data, and the
checksum of the data (4 bytes), all little-endian. See https://www.tensorflow.org/tutorials/load_data/tfrecord for this and
for the fields of ``tf.train.Example``, and https://protobuf.dev/programming-guides/encoding for how they are encoded.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable, Mapping, Sequence
from functools import cache
from typing import BinaryIO

import numpy as np
from numpy.typing import NDArray

from mikasa_robo.data.episode import Array

__all__ = ["Feature", "crc32c", "encode_example", "masked_crc32c", "write_record"]

Feature = Array | Sequence[bytes]
"""Numbers of any shape, which lose their shape and keep 64 bits as integers and 32 as floats; or byte strings."""

_POLYNOMIAL = 0x82F63B78  # of CRC-32C (Castagnoli), with the bits in reverse order
_ALL_BITS = 0xFFFFFFFF
_MASK_DELTA = 0xA282EAD8
_LOG_WIDTH = 7  # of the lanes, in bytes
_SHORT = 256  # bytes; below, a Python loop is quicker than NumPy

_LENGTH_DELIMITED = 2  # wire type of a string, a message and packed numbers


# ---------------------------------------------------------------------- records
def write_record(file: BinaryIO, data: bytes) -> int:
    """Append one record to a TFRecord file, and return how many bytes that took."""
    length = struct.pack("<Q", len(data))
    file.write(length + struct.pack("<I", masked_crc32c(length)))
    file.write(data)
    file.write(struct.pack("<I", masked_crc32c(data)))
    return len(data) + 16


def masked_crc32c(data: bytes) -> int:
    """The checksum as TFRecord stores it: rotated, and a constant added."""
    crc = crc32c(data)
    return (((crc >> 15) | (crc << 17)) + _MASK_DELTA) & _ALL_BITS


def crc32c(data: bytes) -> int:
    """CRC-32C of ``data``.

    Long data are cut into lanes of equal length whose checksums are computed side by side. Checksums are linear, so those
    of two neighbours join to that of both: the left one is advanced by as many zero bytes as the right one is long.
    """
    if len(data) < _SHORT:
        crc = _ALL_BITS
        table = _byte_table().tolist()
        for byte in data:
            crc = table[(crc ^ byte) & 0xFF] ^ (crc >> 8)
        return int(crc ^ _ALL_BITS)
    log_width = _LOG_WIDTH
    log_lanes = (-(-len(data) >> log_width) - 1).bit_length()
    lanes = 1 << log_lanes
    # Leading zeros do not change a checksum that begins with zero. Here it begins with ones, which is the same as inverting
    # the first four bytes.
    padded = np.zeros(lanes << log_width, dtype=np.uint8)
    padded[-len(data) :] = np.frombuffer(data, dtype=np.uint8)
    padded[len(padded) - len(data) :][:4] ^= 0xFF
    state = np.zeros(lanes, dtype=np.uint32)
    table_of_bytes = _byte_table()
    for column in np.ascontiguousarray(padded.reshape(lanes, -1).T):
        state = table_of_bytes[(state ^ column).astype(np.uint8)] ^ (state >> 8)
    for level in range(log_lanes):
        state = _apply(_zero_bytes(log_width + level), state[0::2]) ^ state[1::2]
    return int(state[0]) ^ _ALL_BITS


@cache
def _byte_table() -> NDArray[np.uint32]:
    """(256,) the checksum register after one byte."""
    table = np.arange(256, dtype=np.uint32)
    for _ in range(8):
        table = np.where(table & 1, (table >> 1) ^ np.uint32(_POLYNOMIAL), table >> 1).astype(np.uint32)
    return table


@cache
def _zero_bytes(log_count: int) -> NDArray[np.uint32]:
    """(32,) what each bit of the register becomes after 2**log_count zero bytes."""
    if log_count > 0:
        half = _zero_bytes(log_count - 1)
        return _apply(half, half)
    bits = np.uint32(1) << np.arange(32, dtype=np.uint32)
    return _byte_table()[bits & 0xFF] ^ (bits >> 8)


def _apply(images: NDArray[np.uint32], registers: NDArray[np.uint32]) -> NDArray[np.uint32]:
    """Apply a linear map, given by the images (32,) of the bits, to registers (n,)."""
    result = np.zeros_like(registers)
    for bit, image in enumerate(images):
        result ^= np.where((registers >> np.uint32(bit)) & 1, image, np.uint32(0))
    return result


# ---------------------------------------------------------------------- messages
def encode_example(features: Mapping[str, Feature]) -> bytes:
    """A ``tf.train.Example`` with these features, serialized; the order is that of the names.

    Booleans and integers are stored as int64, other numbers as float32.

    Raises:
        TypeError: an array has a dtype that an Example cannot hold.
    """
    entries = (
        _field(1, _field(1, name.encode()) + _field(2, _feature(name, features[name]))) for name in sorted(features)
    )
    return _field(1, b"".join(entries))


def _feature(name: str, value: Feature) -> bytes:
    if not isinstance(value, np.ndarray):
        return _field(1, b"".join(_field(1, item) for item in value))
    if value.dtype.kind in "bui":
        return _field(3, _field(1, _varints(value.reshape(-1))))
    if value.dtype.kind == "f":
        return _field(2, _field(1, value.astype("<f4").tobytes()))
    raise TypeError(f"{name} has dtype {value.dtype}, which tf.train.Example cannot hold; use numbers or booleans")


def _field(number: int, data: bytes) -> bytes:
    return _varint(number << 3 | _LENGTH_DELIMITED) + _varint(len(data)) + data


def _varints(values: Array) -> bytes:
    if values.dtype.kind == "b" or (len(values) and values.min() >= 0 and values.max() < 0x80):
        return values.astype(np.uint8).tobytes()  # one byte each
    return b"".join(map(_varint, _as_int64(values.tolist())))


def _as_int64(values: Iterable[int]) -> Iterable[int]:
    """Negative numbers as protobuf encodes them: two's complement with 64 bits."""
    return (value & 0xFFFFFFFFFFFFFFFF for value in values)


def _varint(value: int) -> bytes:
    groups = bytearray()
    while value >= 0x80:
        groups.append(value & 0x7F | 0x80)
        value >>= 7
    groups.append(value)
    return bytes(groups)
