"""Which names of categories a model may store, and digests in place of the others."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Collection

# The name of a category is stored only if it is neither rare nor like free text. Five
# rows are the usual least size of a published cell; a code of three bytes is no name;
# the others leave room for "Inferior wall, left" but not for a sentence, an address, a
# date of birth or a telephone number.
FEWEST_NAMED, CODE_BYTES, MOST_NAME, MOST_WORDS, MOST_DIGITS = 5, 3, 40, 4, 5
DIGEST = re.compile("#[0-9a-f]{6}")  # a name of this form would be taken for one
PERSON_COLUMN = re.compile(
    r"(.*[ _.-])?(doctor|physician|surgeon|nurse|patient|person|user|employee|client|"
    r"customer|contact|author|owner|phone|telephone|mobile|e-?mail|address)"
    r"([ _.-]?name)?s?|((first|last|full|sur|given|family)[ _.-]?)?names?",
    re.IGNORECASE,
)
PERSON_NAME = re.compile(r"(?:[^\W\d_][\w'.-]*,? ){1,3}[^\W\d_][\w'-]*")
MOST_TITLES = 10  # wards or regions of two capitalised words; more are people


def may_category_name_identify_person(category: str, n_rows: int) -> bool:
    """Whether a category name may identify a person: it is rare, or free text."""
    is_rare = (
        n_rows < FEWEST_NAMED and len(category.encode("utf-8", "replace")) > CODE_BYTES
    )
    words, digits = len(category.split()), sum(c.isdigit() for c in category)
    is_free = len(category) > MOST_NAME or words > MOST_WORDS or digits > MOST_DIGITS
    return is_rare or is_free or "@" in category or bool(DIGEST.fullmatch(category))


def may_column_name_persons(column: str, categories: Collection[str]) -> bool:
    """Whether a column seems to name persons, by its own name or by its categories."""
    like_names = [
        category
        for category in categories
        if PERSON_NAME.fullmatch(category)
        and all(word[0].isupper() for word in category.split())
    ]
    is_many = len(like_names) > max(MOST_TITLES, len(categories) / 2)
    return is_many or bool(PERSON_COLUMN.fullmatch(column.strip()))


def hash_category_name(category: str, column: str) -> str:
    """Return the digest under which a category is known if its name is not stored.

    It has 24 bits: a value that is no category is taken for one of 50 with a
    probability of 3 in a million, while a digest fits 600 of all telephone numbers.
    """
    digest = hashlib.blake2b(
        category.encode("utf-8", "surrogatepass"), digest_size=3, person=b"category"
    )
    digest.update(b"\0" + column.encode("utf-8", "surrogatepass"))
    return f"#{digest.hexdigest()}"
