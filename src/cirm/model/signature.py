"""The checksum and the signature of a model file."""

from __future__ import annotations

import hashlib
import hmac

BLANK = "0" * 64  # stands where a digest will be
LEAST_KEY, MOST_KEY = 16, 4096  # bytes; a shorter key could be guessed


def add_digest_and_signature_to_file(content: bytes, key: bytes = b"") -> bytes:
    """Return content with its digests in place of zeros, signed if there is a key."""
    if key:
        content = _replace_digest_in_content(
            content, "hmac", BLANK, _compute_hmac_signature(content, key)
        )
    digest = hashlib.sha256(content).hexdigest()
    return _replace_digest_in_content(content, "sha256", BLANK, digest)


def check_digest_of_model_file(
    content: bytes, expected_digest: str, where: str
) -> None:
    """Raise an error if the content was changed since its digest was computed."""
    blank = _replace_digest_in_content(content, "sha256", expected_digest, BLANK)
    if hashlib.sha256(blank).hexdigest() != expected_digest:
        raise ValueError(
            f"{where} is damaged: its checksum does not match its content. Restore it "
            "from a backup, or fit the model again."
        )


def check_signature_of_model_file(
    content: bytes, metadata: dict[str, str], key: bytes, where: str
) -> None:
    """Raise an error unless the content was signed with the key."""
    signature = metadata.get("hmac")
    if not isinstance(signature, str):
        raise ValueError(
            f"{where} is not signed, but a key is given to check its signature with. "
            "Ask the sender for a signed file, or leave out the key if you trust "
            "this file."
        )
    blank = _replace_digest_in_content(content, "sha256", metadata["sha256"], BLANK)
    blank = _replace_digest_in_content(blank, "hmac", signature, BLANK)
    if not hmac.compare_digest(
        _compute_hmac_signature(blank, key).encode(), signature.encode()
    ):
        raise ValueError(
            f"{where} was not signed with the given key, or was changed afterwards. "
            "Check that the key is right; if it is, do not use the file."
        )


def _compute_hmac_signature(content: bytes, key: bytes) -> str:
    if not LEAST_KEY <= len(key) <= MOST_KEY:
        raise ValueError(
            f"The key has {len(key):,} bytes, but {LEAST_KEY} to {MOST_KEY:,} are "
            "needed. To sign a model file, create a key, for example with `openssl "
            "rand -hex 32`; to check one, use the key that it was signed with."
        )
    return hmac.new(key, content, hashlib.sha256).hexdigest()


def _replace_digest_in_content(content: bytes, name: str, old: str, new: str) -> bytes:
    # Inside the description quotes are escaped, so this occurs only once.
    before, found, after = content.partition(f'"{name}":"{old}"'.encode())
    return before + f'"{name}":"{new}"'.encode() + after if found else content
