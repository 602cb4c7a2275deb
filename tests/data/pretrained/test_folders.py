"""Where a pretrained encoder is looked for: here, or on a hub that is played by a server on this machine."""

import hashlib
import http.server
import json
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.errors import assert_fails
from tests.started import environment
from unroll_jax.train.config.errors import UserError
from unroll_jax.train.data.pretrained.folders import FILES, find_folder

COMMIT = "0123456789abcdef0123456789abcdef01234567"
SHARDS = ("model-00001-of-00002.safetensors", "model.safetensors.index.json")
# Repositories of one owner, and the files of each.
REPOSITORIES = {
    "tiny": (*FILES, "pytorch_model.bin"),
    "split": ("config.json", *SHARDS, "tokenizer.json"),
}
# The hub's address and its cache are read when huggingface_hub is imported, so each hub has a process of its own.
CALLS = """
import json, sys
from unroll_jax.train.config.errors import UserError
from unroll_jax.train.data.pretrained.folders import find_folder
said = []
for source, revision in json.loads(sys.argv[1]):
    lines = []
    try:
        folder = find_folder(source, revision=revision, log=lines.append)
        lines.append(str(sorted(file.name for file in folder.iterdir())))
    except UserError as error:
        lines.append(f"error: {error}")
    said.append(lines)
print(json.dumps(said))
"""
ASKED = [*((f"owner/{name}", None) for name in REPOSITORIES), ("owner/none", None), ("owner/tiny", "no-such-branch")]


class Hub(http.server.BaseHTTPRequestHandler):
    """The part of the hub's protocol that small repositories at their branch main need."""

    def do_HEAD(self) -> None:
        self.do_GET()

    def do_GET(self) -> None:
        path = self.path.split("?")[0]
        name = path.rsplit("/", 1)[-1]
        owned = next((f"owner/{repo}" for repo in REPOSITORIES if f"/owner/{repo}/" in path), "nobody/nothing")
        content = {name: f"content of {name}".encode() for name in REPOSITORIES.get(owned.split("/")[1], ())}
        if path == f"/api/models/{owned}/revision/main":
            siblings = [{"rfilename": name} for name in content]
            described = {"id": owned, "sha": COMMIT, "siblings": siblings, "tags": [], "private": False}
            self.answer(200, json.dumps(described).encode(), "application/json")
        elif path in (f"/api/models/{owned}/tree/{COMMIT}", f"/api/models/{owned}/tree/main"):
            files = [{"type": "file", "path": name, "size": len(content[name]), "oid": COMMIT} for name in content]
            self.answer(200, json.dumps(files).encode(), "application/json")
        elif path in (f"/{owned}/resolve/{COMMIT}/{name}", f"/{owned}/resolve/main/{name}") and name in content:
            self.answer(200, content[name], "application/octet-stream")
        else:
            self.send_response(404)
            self.send_header("X-Error-Code", "RevisionNotFound" if content else "RepoNotFound")
            self.send_header("Content-Length", "0")
            self.end_headers()

    def answer(self, status: int, content: bytes, kind: str) -> None:
        self.send_response(status)
        self.send_header("Content-Type", kind)
        self.send_header("Content-Length", str(len(content)))
        self.send_header("ETag", f'"{hashlib.sha1(content).hexdigest()}"')
        self.send_header("X-Repo-Commit", COMMIT)
        self.end_headers()
        if self.command == "GET":
            self.wfile.write(content)

    def log_message(self, format: str, *args: object) -> None:
        """Says nothing."""


@pytest.fixture(scope="module")
def hub() -> Iterator[str]:
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Hub) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{server.server_port}"
        server.shutdown()


@pytest.fixture(scope="module")
def printed(hub, tmp_path_factory):
    """What is said of each that is asked for: with a network, and then without, where the cache is the same."""
    cache = str(tmp_path_factory.mktemp("cache"))
    unset = ("HF_HUB_OFFLINE", "HF_HUB_CACHE", "HTTP_PROXY", "http_proxy", "ALL_PROXY", "all_proxy")
    variables = {name: value for name, value in environment(HF_HOME=cache).items() if name not in unset}

    def ask(address: str, repositories: list[tuple[str, str | None]]) -> dict[tuple[str, str | None], list[str]]:
        command = [sys.executable, "-c", CALLS, json.dumps(repositories)]
        settings = {**variables, "HF_ENDPOINT": address}
        done = subprocess.run(command, env=settings, capture_output=True, text=True, timeout=120)
        assert done.returncode == 0, done.stderr
        return dict(zip(repositories, json.loads(done.stdout.splitlines()[-1]), strict=True))

    return {
        "online": ask(hub, ASKED),
        "offline": ask("http://127.0.0.1:9", [("owner/tiny", None), ("owner/new", None)]),
    }


def test_a_folder_here_has_no_revision(tmp_path):
    assert_fails(lambda folder: find_folder(str(folder), revision="v2"), tmp_path, "revision=v2", "omit it")


@pytest.mark.parametrize("source", ["no/such/folder/here", "./missing", "spaces in it", "", "model.safetensors"])
def test_a_source_that_is_neither_a_folder_nor_a_repository_fails_without_a_network(source, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "model.safetensors").touch()
    with pytest.raises(UserError, match=f"pretrained={source} is neither a folder nor a repository"):
        find_folder(source)


def test_a_repository_is_downloaded_once_without_its_pickles(printed):
    lines = printed["online"]["owner/tiny", None]
    assert any("looking for owner/tiny on the Hugging Face hub" in line for line in lines)
    assert lines[-1] == str(sorted(FILES))
    # Then it is at hand, network or not.
    assert printed["offline"]["owner/tiny", None][-1] == str(sorted(FILES))


def test_a_repository_is_downloaded_with_its_shards(printed):
    assert printed["online"]["owner/split", None][-1] == str(sorted(("config.json", *SHARDS, "tokenizer.json")))


@pytest.mark.parametrize(("repository", "revision"), [("owner/none", None), ("owner/tiny", "no-such-branch")])
def test_what_the_hub_does_not_have_is_told_in_one_line(printed, repository, revision):
    error = one_error(printed["online"][repository, revision])
    assert f"pretrained={repository} is not a folder, and the Hugging Face hub cannot provide it (404" in error


def test_without_a_network_the_way_out_is_told(printed):
    error = one_error(printed["offline"]["owner/new", None])
    assert "pretrained=owner/new" in error
    assert "without a network, copy config.json, model.safetensors, tokenizer.json into a folder" in error


def one_error(lines):
    """The last of the lines, which is the only error and one line."""
    (error,) = [line for line in lines if line.startswith("error:")]
    assert error == lines[-1]
    assert "\n" not in error
    return error


def test_knowing_the_experiments_needs_neither_the_hub_nor_tokenizers():
    code = "import sys, train.experiments; print(sorted({'huggingface_hub', 'tokenizers'} & set(sys.modules)))"
    root = Path(__file__).parents[2]
    process = subprocess.run([sys.executable, "-c", code], cwd=root, capture_output=True, text=True, check=True)
    assert process.stdout.strip() == "[]"
