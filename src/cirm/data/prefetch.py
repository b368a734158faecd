"""Reading ahead: the next items are made while the last ones are used."""

from __future__ import annotations

import queue
import threading
from collections.abc import Iterable, Iterator
from typing import TypeVar

T = TypeVar("T")
WAITING = 2  # items that may be ready and unused


class End:
    """What comes after the last item: nothing, or the error that stopped it."""

    def __init__(self, error: BaseException | None = None) -> None:
        self.error = error


def prefetch(items: Iterable[T]) -> Iterator[T]:
    """The same items in order, made by another thread a little ahead of their use."""
    ready: queue.Queue[T | End] = queue.Queue(WAITING)
    left = threading.Event()

    def put(item: T | End) -> None:
        while not left.is_set():
            try:
                ready.put(item, timeout=0.1)
                return
            except queue.Full:
                continue

    def make() -> None:
        try:
            for item in items:
                put(item)
                if left.is_set():
                    return
        except BaseException as error:  # raised where items are used
            put(End(error))
        else:
            put(End())

    maker = threading.Thread(target=make, daemon=True)
    maker.start()
    try:
        while not isinstance(item := ready.get(), End):
            yield item
        if item.error is not None:
            raise item.error
    finally:
        left.set()
        maker.join()
