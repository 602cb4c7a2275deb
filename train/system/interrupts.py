"""SIGTERM and Ctrl-C: the first one saves and ends, a second Ctrl-C ends at once."""

import contextlib
import os
import signal
import sys
import threading
from collections.abc import Callable, Iterator
from typing import Any

from ..config.errors import Interrupted

__all__ = ["CTRL_C", "HEARD", "announce", "handling", "stopping_at_once", "unreported"]

CTRL_C = 130  # exit code of shells for Ctrl-C
HEARD: set[int] = set()  # signals that this process was asked to end by
RETRY_SECONDS = 0.02
ANNOUNCEMENT = b"\nCtrl-C: ending as soon as what is done is saved; a second one ends at once\n"


@contextlib.contextmanager
def handling(number: int, act: Callable[[], None]) -> Iterator[None]:
    """Acts on a signal within the context, in the main thread; a signal that the shell ignores stays ignored.

    A second Ctrl-C ends the process by the system's own handler, so without a traceback.
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
    """Raises `Interrupted` on SIGTERM and Ctrl-C within the context: for all work but training.

    Args:
      alone: False for one of many processes, where JAX handles SIGTERM.
    """
    with contextlib.ExitStack() as handlers:
        handlers.enter_context(unreported(lambda error: isinstance(error, Interrupted)))
        if alone:
            handlers.enter_context(_raising(signal.SIGTERM, "asked to end by SIGTERM", 0))
        handlers.enter_context(_raising(signal.SIGINT, "interrupted by Ctrl-C", CTRL_C))
        yield


@contextlib.contextmanager
def _raising(number: int, reason: str, code: int) -> Iterator[None]:
    """Raises `Interrupted` on a signal, and again by an alarm until it leaves the context.

    Python drops an exception that is raised in a finalizer or a callback of the garbage collector, such as those of JAX
    and Orbax. During an import it waits: extensions take it for a failure of theirs, and some abort.
    """

    def act(*_: object) -> None:
        signal.signal(signal.SIGALRM, act)
        signal.setitimer(signal.ITIMER_REAL, RETRY_SECONDS)
        if not isinstance(sys.exception(), Interrupted) and not _is_importing():
            raise Interrupted(f"{reason}; the same command goes on from what is saved, or begins again", code)

    before = signal.getsignal(signal.SIGALRM)
    with handling(number, act):
        try:
            yield
        finally:
            if signal.getsignal(signal.SIGALRM) is act:
                signal.setitimer(signal.ITIMER_REAL, 0.0)
                signal.signal(signal.SIGALRM, before)


@contextlib.contextmanager
def unreported(dropped: Callable[[BaseException | None], bool]) -> Iterator[None]:
    """Keeps tracebacks of the exceptions that Python drops, as in finalizers, from the terminal if they match."""
    before = sys.unraisablehook

    def hook(unraisable: Any) -> None:
        if not dropped(unraisable.exc_value):
            before(unraisable)

    sys.unraisablehook = hook
    try:
        yield
    finally:
        sys.unraisablehook = before


def _is_importing() -> bool:
    frame = sys._getframe()
    while frame is not None and not frame.f_code.co_filename.startswith("<frozen importlib"):
        frame = frame.f_back
    return frame is not None


def announce() -> None:
    """Announces the first Ctrl-C from a signal handler, where Python's own streams may be in use."""
    with contextlib.suppress(OSError):
        os.write(2, ANNOUNCEMENT)
