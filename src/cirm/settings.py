"""Settings of dataclasses, parsed from text such as name=value."""

from __future__ import annotations

import dataclasses
import re
import types
import typing
from collections.abc import Mapping
from functools import lru_cache
from typing import Any, Literal, TypeVar, Union

T = TypeVar("T")


def list_setting_fields(cls: type) -> dict[str, tuple[Any, Any]]:
    """Return the type and default of each setting of a dataclass, by name."""
    hints = _get_type_hints(cls)
    return {
        f.name: (hints[f.name], _get_field_default(f))
        for f in dataclasses.fields(cls)
        if f.init
    }


@lru_cache(maxsize=200)  # evaluating the hints of a learner takes a millisecond
def _get_type_hints(cls: type) -> dict[str, Any]:
    return typing.get_type_hints(cls)


def parse_settings_by_type(
    cls: type, texts: Mapping[str, str], where: str
) -> dict[str, Any]:
    """Return the values of the settings in `texts`, each parsed by its type."""
    known = list_setting_fields(cls)
    values = {}
    for name, text in texts.items():
        if name not in known:
            choice = (
                f"Choose one of {', '.join(known)}."
                if known
                else f"No settings can be given here; leave out {name}."
            )
            raise ValueError(f"{where}: there is no setting {name!r}. {choice}")
        values[name] = parse_setting_value(
            known[name][0], text, f"{where}: the setting {name}"
        )
    return values


def parse_setting_value(kind: Any, text: str, where: str) -> Any:  # noqa: ANN401  any type's value
    """Parse a text as a type: a scalar, choice, tuple or union."""
    origin, options = typing.get_origin(kind), typing.get_args(kind)
    if origin in (Union, types.UnionType):
        return _parse_value_of_union_type(options, text, where)
    if origin is Literal:
        return _parse_literal_choice(options, text, where)
    if origin is tuple:
        parts = [part.strip() for part in text.split(",") if part.strip()]
        return tuple(parse_setting_value(options[0], part, where) for part in parts)
    if kind is bool:
        if text.lower() not in ("true", "false", "yes", "no", "1", "0"):
            raise ValueError(f"{where} is {text!r}. Use true or false.")
        return text.lower() in ("true", "yes", "1")
    if kind in (int, float):
        return _parse_number_in_text(kind, text, where)
    if kind is str:
        return text
    raise ValueError(
        f"{where} cannot be given as text, such as {text!r}. Set it in Python instead."
    )


def replace_settings_from_text(instance: T, texts: Mapping[str, str], where: str) -> T:
    """Return a copy of a settings object with fields parsed from text."""
    cls: Any = type(instance)
    return dataclasses.replace(instance, **parse_settings_by_type(cls, texts, where))  # type: ignore[type-var]


def parse_name_value_assignments(assignments: list[str], where: str) -> dict[str, str]:
    """Split assignments such as name=value into names and texts."""
    texts = {}
    for assignment in assignments:
        name, equals, text = assignment.partition("=")
        if not equals or not name.strip():
            raise ValueError(
                f"{where}: {assignment!r} has no value. Write name=value, such as "
                "epochs=50."
            )
        texts[name.strip()] = text.strip()
    return texts


def describe_setting_type(kind: Any) -> str:  # noqa: ANN401  any type
    """Return a type in words for the user."""
    origin, options = typing.get_origin(kind), typing.get_args(kind)
    if origin in (Union, types.UnionType):
        return " or ".join(
            "none" if o is type(None) else describe_setting_type(o) for o in options
        )
    if origin is Literal:
        return "|".join(map(str, options))
    if origin is tuple:
        return f"{describe_setting_type(options[0])},..."
    return {int: "whole number", float: "number", str: "text", bool: "true|false"}.get(
        kind, getattr(kind, "__name__", str(kind))
    )


def _parse_literal_choice(options: tuple[Any, ...], text: str, where: str) -> Any:  # noqa: ANN401
    for option in options:
        if text == str(option):
            return option
    listed = ", ".join(map(str, options))
    raise ValueError(f"{where} is {text!r}. Use one of {listed}.")


def _parse_number_in_text(
    kind: type[int] | type[float], text: str, where: str
) -> int | float:
    noun = "a whole number" if kind is int else "a number"
    try:
        number = kind(text)
    except ValueError:
        raise ValueError(f"{where} is {text!r}. Use {noun}.") from None
    if number != number:  # NaN would pass every check of a range
        raise ValueError(f"{where} is {text!r}. Use {noun}.")
    return number


def _parse_value_of_union_type(options: tuple[Any, ...], text: str, where: str) -> Any:  # noqa: ANN401
    if type(None) in options and text.lower() == "none":
        return None
    choices = [option for option in options if option is not type(None)]
    for option in choices[:-1]:
        try:
            return parse_setting_value(option, text, where)
        except ValueError:
            continue
    if len(choices) == 1:
        return parse_setting_value(choices[0], text, where)
    try:
        return parse_setting_value(choices[-1], text, where)
    except ValueError:
        kinds = " or ".join(map(describe_setting_type, choices))
        kinds = re.sub(r"\b(whole number|number)\b", r"a \1", kinds)
        raise ValueError(f"{where} is {text!r}. Use {kinds}.") from None


def _get_field_default(field: dataclasses.Field[Any]) -> Any:  # noqa: ANN401  any default
    if field.default_factory is not dataclasses.MISSING:
        return field.default_factory()
    return None if field.default is dataclasses.MISSING else field.default
