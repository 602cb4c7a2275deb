import functools
import hashlib
import http.server
import io
import tarfile
import threading
import time

import numpy as np
import pytest
from tensorflow_datasets.core.download import checksums

from unroll_jax.train.config.data import ImageConfig
from unroll_jax.train.config.errors import UserError
from unroll_jax.train.data import images
from unroll_jax.train.data.files import Download, fetch
from unroll_jax.train.data.images import IMAGES, load

RECORDS = 20  # of each file, instead of 10,000


@functools.cache  # gzip writes the second it packs in: a second packing may differ
def archive() -> bytes:
    """CIFAR-10's archive with few records: their classes, and pixels of one level each."""
    packed = io.BytesIO()
    with tarfile.open(fileobj=packed, mode="w:gz") as tar:
        for name in images.FILES:
            content = b"".join(bytes([number % 10]) + bytes([number]) * 3072 for number in range(RECORDS))
            member = tarfile.TarInfo(f"{images.FOLDER}/{name}")
            member.size = len(content)
            tar.addfile(member, io.BytesIO(content))
    return packed.getvalue()


@pytest.fixture
def server(monkeypatch):
    """Serves CIFAR-10's archive on this machine; tells TFDS its checksum; counts requests."""
    content, requests = archive(), []

    class Handler(http.server.BaseHTTPRequestHandler):
        def do_HEAD(self):
            requests.append(self.command)
            self.send_response(200)
            self.send_header("Content-Length", str(len(content)))
            self.end_headers()

        def do_GET(self):
            self.do_HEAD()
            self.wfile.write(content)

        def log_message(self, *_):
            pass

    running = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=running.serve_forever)
    thread.start()
    url = f"http://127.0.0.1:{running.server_port}/cifar-10-binary.tar.gz"
    known = {url: checksums.UrlInfo(len(content), hashlib.sha256(content).hexdigest(), images.ARCHIVE)}
    monkeypatch.setattr(checksums, "get_all_url_infos", lambda: dict(known))
    monkeypatch.setattr(images, "RECORDS", RECORDS)
    monkeypatch.setenv("NO_PROXY", "127.0.0.1")
    yield Download(url, "cifar10"), known, requests
    running.shutdown()
    thread.join()
    running.server_close()


def test_cifar10_without_a_root_is_downloaded_and_prepared_once(server, tmp_path, monkeypatch):
    download, _, requests = server
    monkeypatch.setitem(IMAGES, "cifar10", IMAGES["cifar10"]._replace(download=download))
    for _ in range(2):
        data = load(ImageConfig("cifar10", prepared=str(tmp_path)), log=lambda line: None)
        assert data.num_examples("test") == RECORDS
    assert requests == ["HEAD", "GET"]
    np.testing.assert_array_equal(np.sort(next(data.examples("test", batch_size=20)).labels), np.arange(20) // 2)


def test_a_file_that_tfds_does_not_know_is_fetched_by_the_checksum_that_comes_with_it(server, tmp_path):
    download, known, _ = server
    info = known.pop(download.url)
    pinned = download._replace(known=(len(archive()), info.checksum, "own.tar.gz"))
    assert fetch(pinned, tmp_path, print).read_bytes() == archive()
    assert pinned.fingerprint == info.checksum[:12]
    with pytest.raises(UserError, match="cannot download"):
        fetch(download._replace(known=(len(archive()), "0" * 64, "other.tar.gz")), tmp_path, print)


def test_without_a_network_one_line_says_at_once_which_file_to_put_where(monkeypatch, tmp_path):
    download = Download("http://127.0.0.1:9/cifar-10-binary.tar.gz", "cifar10")  # where nothing listens
    info = checksums.UrlInfo(1, "0" * 64, images.ARCHIVE)
    monkeypatch.setattr(checksums, "get_all_url_infos", lambda: {download.url: info})
    monkeypatch.setenv("NO_PROXY", "127.0.0.1")
    start = time.monotonic()
    with pytest.raises(UserError, match=r"name it: data.source=cifar10 with data.root=PATH/cifar-10-binary.tar.gz"):
        fetch(download, tmp_path, print)
    assert time.monotonic() - start < 5.0
