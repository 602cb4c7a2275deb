"""SIGTERM and Ctrl-C: both ask to end in order; a second Ctrl-C ends at once."""

import contextlib
import os
import signal
import threading
from collections.abc import Callable, Iterator

from train.errors import Interrupted

__all__ = ["CTRL_C", "announce", "handling", "stopping_at_once"]

CTRL_C = 130  # the exit code that shells give to what Ctrl-C ended
AGAIN = b"\nCtrl-C: ending as soon as what is done is saved; a second one ends at once\n"


@contextlib.contextmanager
def handling(number: int, act: Callable[[], None]) -> Iterator[None]:
    """Acts on a signal while the context lasts, in the main thread; a signal that the caller's shell ignores stays so.

    After the first Ctrl-C the next one ends the process as if nothing handled it, so without a traceback.
    """

    def handle(*_: object) -> None:
        if number == signal.SIGINT:
            signal.signal(number, signal.SIG_DFL)
        act()

    if threading.current_thread() is not threading.main_thread() or signal.getsignal(number) == signal.SIG_IGN:
        yield
        return
    before = signal.signal(number, handle)
    try:
        yield
    finally:
        signal.signal(number, before)


@contextlib.contextmanager
def stopping_at_once(*, alone: bool = True) -> Iterator[None]:
    """SIGTERM and Ctrl-C raise `Interrupted` while the context lasts: where nothing is lost by that, outside of
    training.

    Args:
      alone: whether this process is not one of many: of those JAX hears SIGTERM, and they go on.
    """

    def end(message: str, code: int) -> Callable[[], None]:
        def act() -> None:
            raise Interrupted(f"{message}; the same command goes on from what is saved, or begins again", code)

        return act

    with contextlib.ExitStack() as handlers:
        if alone:
            handlers.enter_context(handling(signal.SIGTERM, end("asked to end by SIGTERM", 0)))
        handlers.enter_context(handling(signal.SIGINT, end("interrupted by Ctrl-C", CTRL_C)))
        yield


def announce() -> None:
    """Says in a signal handler, where Python's own streams may be in use, that the first Ctrl-C was heard."""
    with contextlib.suppress(OSError):
        os.write(2, AGAIN)
