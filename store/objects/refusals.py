"""What a file system or a library behind fsspec says, as one error."""

from __future__ import annotations

import errno
import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

from store.model.errors import ObjectsUnavailable

_GIVE_CREDENTIALS = "give the credentials in the environment, or as storage options"


@contextmanager
def translated(where: object, secrets: Sequence[str] = ()) -> Iterator[None]:
    """Turn errors into `ObjectsUnavailable`. `FileNotFoundError` passes.

    where: the path or URL, for errors. secrets: no error shows them.
    """
    try:
        yield
    except (FileNotFoundError, ObjectsUnavailable):
        raise
    except OSError as error:
        if isinstance(error, PermissionError) or error.errno in (errno.EACCES, errno.EPERM):
            raise ObjectsUnavailable(f"{where}: no permission; {_GIVE_CREDENTIALS}") from error
        if is_timeout(error):
            raise ObjectsUnavailable(f"{where}: no answer in time; try again") from error
        why = os.strerror(error.errno) if error.errno else type(error).__name__
        raise ObjectsUnavailable(f"{where}: {error.strerror or why}") from error
    except Exception as error:  # libraries behind fsspec raise errors of their own, which have no other base
        said = f"{where}: {type(error).__name__}: {error}"
        if any(secret in said for secret in secrets):
            raise ObjectsUnavailable(f"{where}: {type(error).__name__}, of a URL with a secret") from None
        if "Credentials" in type(error).__name__:  # as botocore and Google name them
            said += f"; {_GIVE_CREDENTIALS}"
        raise ObjectsUnavailable(said) from error


def is_timeout(error: BaseException) -> bool:
    """Whether no answer came in time. The timeouts of botocore are known by their names."""
    return isinstance(error, TimeoutError | ConnectionError) or (
        isinstance(error, OSError) and "Timeout" in type(error).__name__
    )
