"""Columns of free text: hashed words and pairs of words, or a frozen encoder.

A hash needs no vocabulary, so that a model stores no word of the text.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from typing import Any

import numpy as np
from numpy.typing import NDArray

from cirm.data.encoders import EncoderIdentity, open_frozen_encoder_of_model

HASHED_FEATURES = 256  # of a text without an encoder; collisions cost little below 1000
FEWEST_WORDS = 5  # in the median text; names, addresses and codes have fewer


def encode_texts_by_hashing_words(
    texts: Sequence[str], encoder: EncoderIdentity | None
) -> NDArray[np.float32]:
    """Return features [n, features] of texts, of mean square 1; 0 if a text is empty.

    An encoder of the user's own decides itself how large its features are.
    """
    width = encoder.features if encoder else HASHED_FEATURES
    features = np.zeros((len(texts), width), np.float32)
    places = [place for place, text in enumerate(texts) if text.strip()]
    given = [texts[place] for place in places]
    if not given:
        return features
    if encoder is None:
        # Rows of length 1 would be small beside standardised columns.
        hashed = (
            _create_word_hashing_vectorizer().transform(given).toarray() * width**0.5
        )
        features[places] = hashed
    else:
        from cirm.data.features import encode_texts_as_features

        features[places] = encode_texts_as_features(
            given, open_frozen_encoder_of_model(encoder)
        )
    return features


def do_texts_look_like_sentences(texts: Sequence[str]) -> bool:
    """Whether half of the texts have five words or more."""
    return float(np.median([len(text.split()) for text in texts])) >= FEWEST_WORDS


@cache
def _create_word_hashing_vectorizer() -> Any:  # noqa: ANN401  of scikit-learn
    from sklearn.feature_extraction.text import HashingVectorizer

    return HashingVectorizer(
        n_features=HASHED_FEATURES, ngram_range=(1, 2), strip_accents="unicode"
    )
