"""Checksums of encoders: what decides the features that they return.

The name of a built-in encoder says how it is built, so that its weights are enough. An
encoder of the user's own is known by its weights, its structure and its code.
"""

from __future__ import annotations

import hashlib
import inspect
import textwrap
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np

Part = bytes | memoryview  # of what is hashed; weights are not copied
PLAIN = (bool, int, float, complex, str, bytes, type(None))


def compute_checksum_of_weights(module: Any) -> str:  # noqa: ANN401  a torch module
    """Return the SHA-256 of the parameters and buffers of a torch module."""
    digest = hashlib.sha256()
    for part in _iterate_weights_of_module(module):
        digest.update(part)
    return digest.hexdigest()


def compute_checksum_of_own_encoder(name: str, function: Callable[[Any], Any]) -> str:
    """Return the SHA-256 of weights, structure and code of a user's own encoder.

    Of a function this includes all that its code refers to: constants, arrays, torch
    modules and other functions, also those of closures. Functions of other packages,
    such as NumPy, count by their names, so that a new version of a package does not
    make another encoder.

    Args:
        name: What the encoder is called in messages.
        function: A torch module or another function. If it has an attribute `checksum`,
            this is returned.

    Raises:
        ValueError: If the code of a function cannot be read.
    """
    own = getattr(function, "checksum", "")
    if isinstance(own, str) and own:
        return own
    digest = hashlib.sha256()
    try:
        for part in _iterate_what_decides_results(function, set()):
            digest.update(part)
    except (OSError, TypeError):
        raise ValueError(
            f"encoder {name}: a model stores a checksum of its encoder, but none can "
            "be computed for this object. Use a torch module or a plain function, or "
            "give the object an attribute `checksum`."
        ) from None
    return digest.hexdigest()


def _iterate_what_decides_results(
    function: Callable[[Any], Any], known: set[int]
) -> Iterator[Part]:
    """Yield what decides the results of a function or module, unless it is known."""
    from torch import nn

    if id(function) in known:
        return
    known.add(id(function))
    if isinstance(function, nn.Module):
        yield from _iterate_structure_of_module(function, known)
        yield from _iterate_weights_of_module(function)
        return
    yield _read_code_of_object(function)
    used = inspect.getclosurevars(function)
    package = _get_package_of_object(function)
    for key, value in (*sorted(used.nonlocals.items()), *sorted(used.globals.items())):
        yield f"{key}:\0".encode()
        is_own = not inspect.isfunction(value) or (
            _get_package_of_object(value) == package
        )
        yield from _iterate_content_of_value(value if is_own else key, known)


def _iterate_structure_of_module(module: Any, known: set[int]) -> Iterator[Part]:  # noqa: ANN401  a torch module
    """Yield the class and the settings of each part of a torch module.

    Parts of torch show their settings; those of other packages are known by the code of
    their class and the plain values that they hold.
    """
    for path, part in module.named_modules():
        kind = type(part)
        yield f"{path} {kind.__qualname__} {part.extra_repr()}\0".encode()
        if _get_package_of_object(kind) == "torch":
            continue
        yield _read_code_of_object(kind)
        for key, value in sorted(vars(part).items()):
            is_setting = not key.startswith("_") and key != "training"
            if is_setting and isinstance(value, (*PLAIN, tuple)):
                yield f"{key}:\0".encode()
                yield from _iterate_content_of_value(value, known)


def _iterate_weights_of_module(module: Any) -> Iterator[Part]:  # noqa: ANN401  a torch module
    """Yield names, shapes and bytes of the parameters and buffers of a module."""
    import torch

    for key, tensor in sorted(module.state_dict().items()):
        yield f"{key} {tensor.dtype} {list(tensor.shape)}\0".encode()
        plain = tensor.detach().cpu().contiguous().reshape(-1)
        yield plain.view(torch.uint8).numpy().data


def _read_code_of_object(thing: Any) -> bytes:  # noqa: ANN401  a function or class
    """Return the source of a function or class, or its byte code without source."""
    try:
        return textwrap.dedent(inspect.getsource(thing)).encode()
    except (OSError, TypeError):  # as at a prompt, or if it is not written in Python
        methods = vars(thing).values() if isinstance(thing, type) else [thing]
        codes = [method.__code__ for method in methods if inspect.isfunction(method)]
        if not codes:
            raise
        parts = [
            (c.co_code, c.co_names, [v for v in c.co_consts if isinstance(v, PLAIN)])
            for c in codes
        ]
        return repr(parts).encode()


def _get_package_of_object(thing: Any) -> str:  # noqa: ANN401  a function or class
    return str(thing.__module__).partition(".")[0]


def _iterate_content_of_value(value: Any, known: set[int]) -> Iterator[Part]:  # noqa: ANN401  anything that code refers to
    """Yield the content of a value that code refers to, or the name of other things."""
    from torch import Tensor, nn

    if isinstance(value, PLAIN):
        yield f"{value!r}\0".encode()
    elif isinstance(value, Mapping):
        for key in sorted(value, key=repr):
            yield f"{key!r}:\0".encode()
            yield from _iterate_content_of_value(value[key], known)
    elif isinstance(value, Sequence):
        for part in value:
            yield from _iterate_content_of_value(part, known)
    elif isinstance(value, Tensor | np.ndarray):
        array = np.ascontiguousarray(np.asarray(value))
        yield f"{array.dtype} {array.shape}\0".encode() + array.tobytes()
    elif isinstance(value, nn.Module) or inspect.isfunction(value):
        yield from _iterate_what_decides_results(value, known)
    else:
        yield f"{getattr(value, '__name__', type(value).__qualname__)}\0".encode()
