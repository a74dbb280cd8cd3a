"""`address_at`: the address of a log that a user names by path or URL."""

from __future__ import annotations

from pathlib import Path

from store.archive.archive_log import ArchiveAddress
from store.archive.of_store import remembered
from store.archive.place import is_archive
from store.cluster.address import SCHEME, ClusterAddress
from store.directory.directory_log import DirectoryAddress, TieredDirectoryAddress
from store.format.layout import COMMIT_LOG_DIR
from store.model.errors import system_errors
from store.model.log_protocol import LogAddress
from store.objects.urls import local_path


def address_at(place: str, archive: str | None = None, options: str = "") -> LogAddress:
    """Return the address of the log at a path or URL.

    place: the path of a store, the path or URL of an archive, or "rocketmq://host:port" of a cluster.
    archive: the URL of the archive to read together with the store; "" for none; None for the one in its settings.
    options: fsspec's storage options, as JSON.
    """
    if place.startswith(SCHEME):
        return ClusterAddress.parse(place.removeprefix(SCHEME))
    local = local_path(place)
    if local is None:
        return ArchiveAddress(place, options)
    # Look for files, because an archive may have a folder of this name, for a topic. A store may contain an archive.
    with system_errors(local):
        is_store = any(each.is_file() for each in (Path(local) / COMMIT_LOG_DIR).glob("*"))
    if not is_store and is_archive(local):
        return ArchiveAddress(local, options)
    url = remembered(Path(local)).url if archive is None else archive
    return TieredDirectoryAddress(place, url, options) if url else DirectoryAddress(place)
