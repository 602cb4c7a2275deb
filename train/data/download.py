"""Originals that are fetched where no root is given: through TFDS, checked against its checksums, and kept."""

import urllib.error
import urllib.request
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import tensorflow_datasets as tfds
from tensorflow_datasets.core import utils
from tensorflow_datasets.core.download import checksums, downloader

from train.errors import UserError
from train.storage import require_room, require_writable

__all__ = ["Download", "fetch", "fingerprint_download"]

SECONDS_TO_ANSWER = 10.0  # after which a server counts as out of reach
RETRIES = 2  # of a server that was reached; TFDS's own 10 take minutes


class Download(NamedTuple):
    """One file of originals.

    Attributes:
      url: Its address.
      source: The source that takes it.
      known: Its size in bytes, its SHA-256 and its name; None for a file that TFDS knows.
    """

    url: str
    source: str
    known: tuple[int, str, str] | None = None


def fingerprint_download(download: Download) -> str:
    """The first twelve digits of the file's checksum."""
    return _info(download).checksum[:12]


def fetch(download: Download, folder: Path, log: Callable[[str], None]) -> Path:
    """Downloads a file into a folder, unless it is there.

    Raises:
      UserError: at once where the server is out of reach, and for a file that breaks off or has another checksum; it
        says which file to put where instead.
    """
    info = _info(download)
    kept = folder / str(info.filename)
    if kept.exists():
        return kept
    require_writable(folder, f"the folder of downloads {folder}", "name another place with UNROLL_PREPARED")
    require_room(folder, int(info.size), f"{info.filename}")
    log(f"  downloading {download.url} ({info.size})")
    try:
        urllib.request.urlopen(_head(download.url), timeout=SECONDS_TO_ANSWER).close()
        # TFDS gives the file a name of its own and sets it in place when its checksum is right.
        fetched = _through_tfds(download.url, info, folder)
        return Path(fetched).rename(kept)
    except Exception as error:  # of requests, urllib, TFDS and promise, which share no base
        reason = (str(error) or type(error).__name__).splitlines()[0]
        raise UserError(
            f"cannot download {download.url} ({reason}); where there is no network, copy {info.filename} here from "
            f"elsewhere and name it: data.source={download.source} with data.root=PATH/{info.filename}"
        ) from error


def _info(download: Download) -> checksums.UrlInfo:
    if download.known is None:
        return checksums.get_all_url_infos()[download.url]
    size, checksum, filename = download.known
    return checksums.UrlInfo(utils.Size(size), checksum, filename)


def _head(url: str) -> urllib.request.Request:
    return urllib.request.Request(url, method="HEAD")


def _through_tfds(url: str, info: checksums.UrlInfo, folder: Path) -> str:
    downloader.MAX_RETRIES = RETRIES
    tfds.disable_progress_bar()
    manager = tfds.download.DownloadManager(download_dir=folder, url_infos={url: info}, force_checksums_validation=True)
    return str(manager.download(url))
