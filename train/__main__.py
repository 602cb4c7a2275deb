"""`python -m train`."""

import os
import signal
import sys
import threading
import time

CLOSED_PIPE = 141  # what shells say of a program whose reader, such as `head`, has gone: 128 and SIGPIPE
CTRL_C = 130
LATE = 0.5  # seconds after a second Ctrl-C that nothing answered, as where XLA compiles


def run() -> int:
    """Runs the command that was given; a reader of its output that leaves early ends it in silence."""
    _end_at_second_interrupt()
    from train.cli import main
    from train.interrupts import HEARD

    try:
        code = main(sys.argv[1:])
        sys.stdout.flush()
        if HEARD and not _is_one_of_many():
            # What was interrupted may still compute in threads, and crashes where Python is taken down under it.
            sys.stderr.flush()
            os._exit(code)
    except BrokenPipeError:
        _discard_output()
        return CLOSED_PIPE
    except OSError as error:
        _discard_output()
        sys.stderr.write(f"error: cannot write to the standard output ({error.strerror}); send it elsewhere\n")
        return 2
    return code


def _is_one_of_many() -> bool:
    """Whether other processes wait for this one to say that it leaves."""
    jax = sys.modules.get("jax")
    return jax is not None and jax.distributed.is_initialized()


def _discard_output() -> None:
    """Python flushes stdout once more as it exits: let it do so into nothing."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def _end_at_second_interrupt() -> None:
    """Ctrl-C outside of `main`, or a second one, ends the process without a traceback, whatever it is busy with.

    Python's own handlers run between two of its instructions, so not while XLA compiles; a thread sees signals then.
    """
    if signal.getsignal(signal.SIGINT) == signal.SIG_IGN:  # started in the background of a script
        return
    signal.signal(signal.SIGINT, signal.SIG_DFL)
    seen, noted = os.pipe()
    os.set_blocking(noted, False)
    signal.set_wakeup_fd(noted, warn_on_full_buffer=False)

    def watch() -> None:
        interrupts = 0
        while interrupts < 2:
            interrupts += os.read(seen, 1)[0] == signal.SIGINT
        time.sleep(LATE)  # what handles it in order, does so before
        os._exit(CTRL_C)

    threading.Thread(target=watch, daemon=True).start()


if __name__ == "__main__":
    sys.exit(run())
