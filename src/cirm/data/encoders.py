"""Frozen encoders: what turns images or text into features before anything is learned.

An encoder is never trained. A model file stores which one made its features, by name
and by a checksum of its weights, and refuses every other.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple

import numpy as np
from numpy.typing import NDArray

from cirm.data.base import shorten_error_message
from cirm.data.encoder_checksums import (
    compute_checksum_of_own_encoder,
    compute_checksum_of_weights,
)
from cirm.registry import NamedClassRegistry

EncoderKind = Literal["images", "text"]
EncoderLike = Any
"""A key, an import path, a torch module, or a function of a batch."""

_PACKAGES = "cirm.data.encoder_packages"
ENCODERS = {
    "efficientnet-lite0": f"{_PACKAGES}:create_efficientnet_lite0_encoder",
    "minilm": f"{_PACKAGES}:create_minilm_text_encoder",
}
"""Import path of the function that creates an encoder, by key."""

PREFIXES = {
    "torchvision": "cirm.data.encoder_packages:create_torchvision_encoder",
    "timm": "cirm.data.encoder_packages:create_timm_encoder",
}
"""The same for the networks of packages that have many, as in timm:resnet18."""

REGISTRY = NamedClassRegistry("encoder", "cirm.encoders", __name__, ENCODERS)
FACTORIES = NamedClassRegistry(
    "encoder", "cirm.encoders", __name__, {**ENCODERS, **PREFIXES}
)
SIDE = 224  # pixels of images, unless the encoder or the user says otherwise
MOST_FEATURES = 65_536  # of one image or text; no usual encoder has more


class EncoderComponents(NamedTuple):
    """What creates features.

    Attributes:
        function: A torch module or another function of a batch; see
            `open_frozen_encoder`.
        kind: What it encodes.
        side: The width and height of its images in pixels; 0 for text.
        checksum: SHA-256 of what decides its features; if empty, that of its weights.
    """

    function: Callable[[Any], Any]
    kind: EncoderKind
    side: int = 0
    checksum: str = ""


@dataclass(frozen=True)
class EncoderIdentity:
    """Which encoder made features, as model files store it.

    Attributes:
        name: Its key, import path or class.
        checksum: SHA-256 of its weights; of an encoder of the user's own also of its
            structure and code.
        features: The number of features that it returns.
        side: The width and height of its images in pixels; 0 for text.
    """

    name: str
    checksum: str
    features: int
    side: int = 0

    def __str__(self) -> str:
        return f"{self.name} (weights {self.checksum[:8]})"


@dataclass(frozen=True, eq=False)
class FrozenEncoder:
    """An encoder that is ready for use, and its identity.

    Attributes:
        identity: Its name, the checksum of its weights and the number of features.
        function: The function of a batch.
        device: Where its inputs belong.
    """

    identity: EncoderIdentity
    function: Callable[[Any], Any]
    device: str = "cpu"

    def encode(self, batch: NDArray[np.uint8] | Sequence[str]) -> NDArray[np.float32]:
        """Return features [n, features] of images [n, 3, side, side] or of texts."""
        features = _compute_features_by_function(self.function, batch, self.device)
        wanted = (len(batch), self.identity.features)
        if features.shape != wanted or not np.isfinite(features).all():
            raise ValueError(
                f"encoder {self.identity.name}: for {len(batch)} inputs the encoder "
                f"must return finite numbers of the shape {list(wanted)}, but it "
                f"returned the shape {list(features.shape)}, or values that are NaN "
                "or infinite. Correct the encoder, or choose another one."
            )
        return features


_OPEN: dict[EncoderIdentity, FrozenEncoder] = {}
"""Encoders that were opened in this process, which takes seconds."""
_NAMED: dict[tuple[str, EncoderKind, int], EncoderIdentity] = {}


def open_frozen_encoder(
    choice: EncoderLike, kind: EncoderKind, side: int = 0
) -> FrozenEncoder:
    """Return a frozen encoder, ready for use.

    Args:
        choice: A key ("efficientnet-lite0", "minilm", "torchvision:NAME",
            "timm:NAME"), the name of an entry point of the group `cirm.encoders`, an
            import path "package.module:name", a torch module, or a function. It gets
            a batch, images [n, 3, side, side] from 0 to 1 as a tensor or a list of
            texts, and returns features [n, ...]. A function that is not a module and
            has no source code needs an attribute `checksum`.
        kind: What it is to encode, "images" or "text".
        side: Width and height of images in pixels; 0 for the encoder's own.

    Raises:
        ValueError: If there is no such encoder, its package is not installed, or it
            encodes something else.

    Example:
        >>> from torch import nn
        >>> pool = nn.AdaptiveAvgPool2d(1)
        >>> encoder = open_frozen_encoder(pool, "images", side=8)
        >>> encoder.identity.name, encoder.identity.features
        ('AdaptiveAvgPool2d', 3)
        >>> encoder.encode(np.full((2, 3, 8, 8), 255, np.uint8)).tolist()
        [[1.0, 1.0, 1.0], [1.0, 1.0, 1.0]]
    """
    key = (choice, kind, side) if isinstance(choice, str) else None
    if key in _NAMED:
        return _OPEN[_NAMED[key]]
    name, parts = _create_encoder_components(choice, kind)
    if parts.kind != kind:
        raise ValueError(
            f"encoder {name}: this encoder is for {parts.kind}, but the data are "
            f"{kind}. Choose an encoder for {kind}."
        )
    encoder = _build_frozen_encoder(name, parts, side)
    identity = encoder.identity
    _OPEN[identity] = encoder
    if key:
        _NAMED[key] = identity
    return _OPEN[identity]


def open_frozen_encoder_of_model(identity: EncoderIdentity) -> FrozenEncoder:
    """Return the encoder that a model file names, whose weights must be the same.

    What a file names is never imported unless it is built in or offered by an
    installed package: otherwise the user must have opened it before.
    """
    if identity in _OPEN:
        return _OPEN[identity]
    is_known = identity.name in REGISTRY.list_keys()
    if not is_known and identity.name.partition(":")[0] not in PREFIXES:
        raise ValueError(
            f"encoder {identity.name}: the model was fitted on features from this "
            "encoder, which is not part of cirm, so cirm cannot load it by itself. "
            "Give the encoder with --encoder package.module:name (in Python "
            "encoder=)."
        )
    kind: EncoderKind = "images" if identity.side else "text"
    return check_encoder_identity(
        open_frozen_encoder(identity.name, kind, identity.side), identity
    )


def check_encoder_identity(
    encoder: FrozenEncoder, identity: EncoderIdentity
) -> FrozenEncoder:
    """Return an encoder if it is the one that made the features of a model."""
    if encoder.identity == identity:
        return encoder
    raise ValueError(
        f"encoder {encoder.identity}: the model was fitted on features from the "
        f"encoder {identity}, and another encoder would give other features. Give the "
        f"encoder {identity}, or fit a new model."
    )


def _create_encoder_components(
    choice: EncoderLike, kind: EncoderKind
) -> tuple[str, EncoderComponents]:
    """Return the name and the parts of an encoder in any form."""
    if not isinstance(choice, str):
        name = getattr(choice, "__qualname__", type(choice).__qualname__)
        return name, _create_components_of_encoder_function(name, choice, kind)
    prefix, _, network = choice.partition(":")
    if prefix in PREFIXES:
        return choice, FACTORIES.load(prefix)(network)
    made = REGISTRY.load(choice)
    if choice in REGISTRY.list_keys():
        return choice, made()
    return choice, _create_components_of_encoder_function(
        choice, made() if isinstance(made, type) else made, kind
    )


def _create_components_of_encoder_function(
    name: str, encoder_function: EncoderLike, kind: EncoderKind
) -> EncoderComponents:
    """Return the parts of a user's own module or function."""
    if isinstance(encoder_function, EncoderComponents):
        return encoder_function
    if not callable(encoder_function):
        raise ValueError(
            f"encoder: an object of type {type(encoder_function).__name__} cannot be "
            f"called. Pass the name of an encoder ({', '.join(REGISTRY.list_keys())}), "
            "a torch module or a function."
        )
    checksum = compute_checksum_of_own_encoder(name, encoder_function)
    side = SIDE if kind == "images" else 0
    return EncoderComponents(encoder_function, kind, side, checksum)


def _build_frozen_encoder(
    name: str, components: EncoderComponents, side: int
) -> FrozenEncoder:
    """Return an encoder that does not change, after a first batch to count features."""
    import torch
    from torch import nn

    function, device = components.function, "cpu"
    checksum = components.checksum
    if isinstance(function, nn.Module):
        checksum = checksum or compute_checksum_of_weights(function)
        device = "cuda" if torch.cuda.is_available() else "cpu"
        function = copy.deepcopy(function).eval().requires_grad_(False).to(device)
    checksum = checksum or compute_checksum_of_own_encoder(name, function)
    side = side or components.side
    batch: Any = np.zeros((1, 3, side, side), np.uint8)
    if components.kind == "text":
        side, batch = 0, ["text"]
    try:
        features = _compute_features_by_function(function, batch, device).shape[1]
    except (RuntimeError, TypeError, ValueError, IndexError) as error:
        raise ValueError(
            f"encoder {name}: the encoder failed on {components.kind} "
            f"({shorten_error_message(error)}). Give a function that takes a batch of n"
            " inputs and returns an array of features of the shape [n, ...]."
        ) from None
    if not 0 < features <= MOST_FEATURES:
        raise ValueError(
            f"encoder {name}: the encoder returns {features:,} features for each "
            f"input. Use an encoder that returns 1 to {MOST_FEATURES:,}."
        )
    return FrozenEncoder(
        EncoderIdentity(name, checksum, features, side), function, device
    )


def _compute_features_by_function(
    function: Callable[[Any], Any],
    batch: Any,  # noqa: ANN401  images or texts
    device: str,
) -> NDArray[np.float32]:
    import torch  # late: most models have no encoder, and predict without torch

    with torch.inference_mode():
        if isinstance(batch, np.ndarray):
            pixels = torch.from_numpy(batch).to(device).float() / 255
            # Convolutions are 1.4 times as fast in this layout (EfficientNet-Lite0).
            batch = pixels.contiguous(memory_format=torch.channels_last)
        made = function(batch)
        if not isinstance(made, torch.Tensor):
            made = torch.as_tensor(np.asarray(made))
        plain: NDArray[np.float32] = made.flatten(1).float().cpu().numpy()
    return plain
