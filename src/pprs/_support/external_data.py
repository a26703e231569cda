"""The files in which an ONNX network keeps tensors that are too large for its own file.

A tensor may be in the main graph or in any subgraph, such as a branch of an If node, or in a function. The file is
therefore walked as a whole. It is read here without the package onnx, which ONNX Runtime does not need.
"""

from __future__ import annotations

from collections.abc import Iterator

# The fields of onnx.proto that lead to tensors: message -> {number of the field: message in it}.
_FIELDS = {
    "model": {7: "graph", 20: "training", 25: "function"},
    "training": {1: "graph", 2: "graph"},
    "function": {7: "node", 11: "attribute"},
    "graph": {1: "node", 5: "tensor", 15: "sparse"},
    "node": {5: "attribute"},
    "attribute": {5: "tensor", 6: "graph", 10: "tensor", 11: "graph", 22: "sparse", 23: "sparse"},
    "sparse": {1: "tensor", 2: "tensor"},
    "tensor": {13: "entry"},
    "entry": {},
}
_VARINT, _FIXED64, _BYTES, _FIXED32 = 0, 1, 2, 5  # kinds of fields


def external_files(network: bytes) -> list[str]:
    """Return the names of the files that hold tensors of the network, relative to its folder.

    Raises:
        ValueError: If the bytes are not an ONNX network.
    """
    return sorted(set(_locations(memoryview(network), "model")))


def _locations(message: memoryview, kind: str) -> Iterator[str]:
    pending = [(message, kind)]  # a list, since subgraphs may be nested deeper than Python's stack
    while pending:
        message, kind = pending.pop()
        if kind == "entry":  # a key and a value of a tensor's external data
            pair = {number: bytes(value) for number, value in _fields(message)}
            if pair.get(1) == b"location":
                yield pair.get(2, b"").decode()
            continue
        for number, value in _fields(message):
            if number in _FIELDS[kind]:
                pending.append((value, _FIELDS[kind][number]))


def _fields(message: memoryview) -> Iterator[tuple[int, memoryview]]:
    """Yield the number and content of every field that holds bytes."""
    position = 0
    while position < len(message):
        key, position = _read_varint(message, position)
        number, wire = key >> 3, key & 7
        if wire == _VARINT:
            _, position = _read_varint(message, position)
        elif wire in (_FIXED64, _FIXED32):
            position += 8 if wire == _FIXED64 else 4
        elif wire == _BYTES:
            size, position = _read_varint(message, position)
            if position + size > len(message):
                raise ValueError("a field is longer than its message")
            yield number, message[position : position + size]
            position += size
        else:
            raise ValueError(f"unknown kind of field {wire}")


def _read_varint(message: memoryview, position: int) -> tuple[int, int]:
    """Return a number and the position after it."""
    value = shift = 0
    while position < len(message) and shift < 70:
        byte = message[position]
        value |= (byte & 0x7F) << shift
        position, shift = position + 1, shift + 7
        if byte < 0x80:
            return value, position
    raise ValueError("a number has no end")
