"""How commands report errors, Ctrl-C and a closed output pipe: in one line and with an exit code."""

import errno
import io
import logging
import os
import signal
import sys
import time
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import IO, Any, NoReturn

import click

from pyspark_mq.cli.terminal import VisibleFormatter, echo, visible
from store import StoreError

INTERRUPTED = 128 + signal.SIGINT


class Interrupted(click.ClickException):
    """Raised after Ctrl-C. The message says what the command had done by then."""

    exit_code = INTERRUPTED

    def show(self, file: IO[Any] | None = None) -> None:
        click.echo(f"Interrupted: {visible(self.format_message())}", file=file, err=file is None)


class WrongUsage(click.ClickException):
    exit_code = 2


class Commands(click.Group):
    """A group whose commands report usage errors, `StoreError` and `OSError` in one line."""

    def make_context(self, *arguments: Any, **more: Any) -> click.Context:
        with one_line():
            return super().make_context(*arguments, **more)

    def invoke(self, ctx: click.Context) -> Any:
        with one_line(), warnings.catch_warnings():
            warnings.showwarning = show_warning
            write_whole()
            if logging.lastResort is not None:
                logging.lastResort.setFormatter(VisibleFormatter())
            return super().invoke(ctx)


@contextmanager
def one_line() -> Iterator[None]:
    try:
        yield
    except click.exceptions.NoArgsIsHelpError:
        raise
    except click.UsageError as error:
        see = f"; see '{error.ctx.command_path} --help'" if error.ctx is not None else ""
        raise WrongUsage(visible(" ".join(error.format_message().split()).removesuffix(".") + see)) from error
    except (Interrupted, WrongUsage):
        raise
    except click.ClickException as error:
        raise click.ClickException(visible(error.format_message())) from error
    except KeyboardInterrupt as interrupt:
        raise Interrupted("the current step was done completely, or not at all") from interrupt
    except OSError as error:
        try:
            sys.stdout.flush()
        except OSError:  # otherwise Python flushes again at exit, and prints a traceback
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        if error.errno == errno.EPIPE:  # the reader closed the pipe
            raise click.exceptions.Exit(0) from error
        raise click.ClickException(visible(str(error))) from error
    except StoreError as error:
        raise click.ClickException(visible(str(error))) from error


def show_warning(message: Warning | str, *_where: object, **_to: object) -> None:
    echo(f"Warning: {message}", err=True)


def write_whole() -> None:
    """Buffer standard output, because a partial write raises no error with PYTHONUNBUFFERED."""
    out = sys.stdout or os.fdopen(os.open(os.devnull, os.O_WRONLY), "w")  # sys.stdout is None if it is closed
    sys.stdout = out
    if isinstance(out.buffer, io.RawIOBase):
        whole = os.fdopen(os.dup(out.fileno()), "wb")
        sys.stdout = io.TextIOWrapper(whole, out.encoding, out.errors, line_buffering=True)


@contextmanager
def interruptible(done: Callable[[], str]) -> Iterator[None]:
    """Turn Ctrl-C into `Interrupted`. done: returns what the command has done so far."""
    try:
        yield
    except KeyboardInterrupt as interrupt:
        raise Interrupted(done()) from interrupt


def sleep_until_interrupted() -> NoReturn:
    """Sleep until Ctrl-C, in short steps, because a signal that another thread receives does not end a sleep."""
    while True:
        time.sleep(1.0)


@contextmanager
def uninterrupted() -> Iterator[None]:
    """Defer Ctrl-C to the end of the block, which must be short. Only for the main thread."""
    came = False

    def note(*_: object) -> None:
        nonlocal came
        came = True

    before = signal.signal(signal.SIGINT, note)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)
    if came:
        raise KeyboardInterrupt
