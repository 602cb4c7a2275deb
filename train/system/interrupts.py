"""SIGTERM and Ctrl-C: both ask to end in order; a second Ctrl-C ends at once."""

import contextlib
import os
import signal
import sys
import threading
from collections.abc import Callable, Iterator
from typing import Any

from ..config.errors import Interrupted

__all__ = ["CTRL_C", "HEARD", "announce", "handling", "stopping_at_once"]

CTRL_C = 130  # the exit code that shells give to what Ctrl-C ended
HEARD: set[int] = set()  # signals that this process was asked to end by
SOON = 0.02  # seconds
LATER: list[threading.Timer] = []  # of requests to end that are raised again
AGAIN = b"\nCtrl-C: ending as soon as what is done is saved; a second one ends at once\n"


@contextlib.contextmanager
def handling(number: int, act: Callable[[], None]) -> Iterator[None]:
    """Acts on a signal while the context lasts, in the main thread; a signal that the caller's shell ignores stays so.

    After the first Ctrl-C the next one ends the process as if nothing handled it, so without a traceback.
    """

    def handle(*_: object) -> None:
        HEARD.add(number)
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
        return lambda: _raise(f"{message}; the same command goes on from what is saved, or begins again", code)

    with contextlib.ExitStack() as handlers:
        if alone:
            handlers.enter_context(handling(signal.SIGTERM, end("asked to end by SIGTERM", 0)))
        handlers.enter_context(handling(signal.SIGINT, end("interrupted by Ctrl-C", CTRL_C)))
        handlers.enter_context(_raised_again())
        yield


def _raise(message: str, code: int) -> None:
    """Raises `Interrupted`; while a module is imported, a moment later.

    Extensions take what is raised as they are imported for a failure of their own, and some abort the process.
    """
    if _is_importing():
        _raise_later(message, code)
    else:
        raise Interrupted(message, code)


def _is_importing() -> bool:
    frame = sys._getframe()
    while frame is not None and not frame.f_code.co_filename.startswith("<frozen importlib"):
        frame = frame.f_back
    return frame is not None


def _raise_later(message: str, code: int) -> None:
    signal.signal(signal.SIGTERM, lambda *_: _raise(message, code))
    LATER.append(threading.Timer(SOON, os.kill, (os.getpid(), signal.SIGTERM)))
    LATER[-1].start()


@contextlib.contextmanager
def _raised_again() -> Iterator[None]:
    """While the context lasts, a request to end that Python drops is raised again, by SIGTERM a moment later.

    A handler runs wherever the program is, also in a finalizer or a callback of the garbage collector, which JAX and
    Orbax have: what is raised there Python prints and forgets.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = sys.unraisablehook

    def hook(unraisable: Any) -> None:
        dropped = unraisable.exc_value
        if isinstance(dropped, Interrupted):
            _raise_later(str(dropped), dropped.code)
        else:
            before(unraisable)

    handler = signal.getsignal(signal.SIGTERM)
    sys.unraisablehook = hook
    try:
        yield
    finally:
        sys.unraisablehook = before
        for timer in LATER:
            timer.cancel()
            timer.join()
        if LATER:
            signal.signal(signal.SIGTERM, handler)
        LATER.clear()


def announce() -> None:
    """Says in a signal handler, where Python's own streams may be in use, that the first Ctrl-C was received."""
    with contextlib.suppress(OSError):
        os.write(2, AGAIN)
