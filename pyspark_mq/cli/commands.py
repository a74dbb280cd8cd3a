"""How commands end: with a result, with an error of one line, with Ctrl-C, or with a reader that has seen enough."""

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
    """Ctrl-C; the message says what was done."""

    exit_code = INTERRUPTED

    def show(self, file: IO[Any] | None = None) -> None:
        """One line, as errors are."""
        click.echo(f"Interrupted: {visible(self.format_message())}", file=file, err=file is None)


class WrongUsage(click.ClickException):
    """An option or an argument that is not understood."""

    exit_code = 2


class Commands(click.Group):
    """A group whose commands answer what goes wrong with one line: in usage, in the store, in the system."""

    def make_context(self, *arguments: Any, **more: Any) -> click.Context:
        """As every group does."""
        with one_line():
            return super().make_context(*arguments, **more)

    def invoke(self, ctx: click.Context) -> Any:
        """As every group does."""
        with one_line(), warnings.catch_warnings():
            warnings.showwarning = show_warning
            write_whole()
            if logging.lastResort is not None:
                logging.lastResort.setFormatter(VisibleFormatter())
            return super().invoke(ctx)


@contextmanager
def one_line() -> Iterator[None]:
    """Turns errors into those that click shows in one line."""
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
        raise Interrupted("what was under way is done wholly, or not at all") from interrupt
    except OSError as error:
        try:
            sys.stdout.flush()
        except OSError:  # or else it would be tried again when Python ends
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        if error.errno == errno.EPIPE:  # whoever reads our output has seen enough
            raise click.exceptions.Exit(0) from error
        raise click.ClickException(visible(str(error))) from error
    except StoreError as error:
        raise click.ClickException(visible(str(error))) from error


def show_warning(message: Warning | str, *_where: object, **_to: object) -> None:
    """One line, as errors are."""
    echo(f"Warning: {message}", err=True)


def write_whole() -> None:
    """From now on what is printed is written whole, or an error: with PYTHONUNBUFFERED it is cut without a word."""
    out = sys.stdout or os.fdopen(os.open(os.devnull, os.O_WRONLY), "w")  # None where it is closed
    sys.stdout = out
    if isinstance(out.buffer, io.RawIOBase):
        whole = os.fdopen(os.dup(out.fileno()), "wb")
        sys.stdout = io.TextIOWrapper(whole, out.encoding, out.errors, line_buffering=True)


@contextmanager
def interruptible(done: Callable[[], str]) -> Iterator[None]:
    """A block in which Ctrl-C ends the command; `done` says what it has done by then."""
    try:
        yield
    except KeyboardInterrupt as interrupt:
        raise Interrupted(done()) from interrupt


def sleep_until_interrupted() -> NoReturn:
    """Sleep until a signal handler raises. A signal may be delivered to another thread and end no sleep here."""
    while True:
        time.sleep(1.0)


@contextmanager
def uninterrupted() -> Iterator[None]:
    """A short block that is done wholly or not at all: Ctrl-C waits for its end. In the main thread."""
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
